//! Functions of elements.

use super::{
    Builder,
    chain::Function,
    nodes::{may_flatten, pieces},
};
use crate::{
    kernels::{Binary, Kernel, Map, Unary, Zip},
    place::Place,
};

impl Builder {
    /// `f` of every element of the operand.
    pub(super) fn unary(&mut self, operands: &[Place], out: Place, cost: usize, f: impl Map + 'static) {
        if let Some(function) = &mut self.function {
            *function = Some(Function::One(Box::new(f)));
            return;
        }
        let x = operands[0];
        let (x, out) = if may_flatten(&[&x, &out]) { (x.flat(), out.flat()) } else { (x, out) };
        let (grid, f) = (pieces(&out, cost), Box::new(f));
        let kernel = Kernel::Unary(Unary { f, x, out, grid });
        self.push(kernel, grid.chunks(), &[x], Some(&out), out.elements().saturating_mul(cost));
    }

    /// `f` of every element of the first operand with one of the second, which is repeated.
    pub(super) fn binary(&mut self, operands: &[Place], out: Place, cost: usize, f: impl Zip + 'static) {
        if let Some(function) = &mut self.function {
            *function = Some(Function::Two(Box::new(f)));
            return;
        }
        let (a, b) = (operands[0], operands[1]);
        let flat = may_flatten(&[&a, &b, &out]);
        let (a, b, out) = if flat { (a.flat(), b.flat(), out.flat()) } else { (a, b, out) };
        let (grid, f) = (pieces(&out, cost), Box::new(f));
        let kernel = Kernel::Binary(Binary { f, a, b, out, grid });
        self.push(kernel, grid.chunks(), &[a, b], Some(&out), out.elements().saturating_mul(cost));
    }

    /// `f` of a gate and a value: two operands, or the halves of one.
    pub(super) fn gated(&mut self, operands: &[Place], out: Place, cost: usize, f: impl Zip + 'static) {
        match operands {
            [both] => self.binary(&[both.half_rows(false), both.half_rows(true)], out, cost, f),
            _ => self.binary(operands, out, cost, f),
        }
    }
}
