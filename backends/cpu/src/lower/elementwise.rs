//! Functions of elements.

use entensor_components::Op;

use super::{
    Builder,
    nodes::{may_flatten, pieces},
};
use crate::{
    kernels::{Binary, BinaryFunction, Kernel, Unary, UnaryFunction},
    place::Place,
};

impl Builder {
    pub(super) fn unary(&mut self, op: &Op, x: Place, out: Place) {
        let function = UnaryFunction::of(op).expect("the table of functions says which ops come here");
        let (x, out) = if may_flatten(&[&x, &out]) { (x.flat(), out.flat()) } else { (x, out) };
        let grid = pieces(&out, function.cost());
        let cost = out.elements().saturating_mul(function.cost());
        self.push(Kernel::Unary(Unary { function, x, out, grid }), grid.chunks(), &[x], Some(&out), cost);
    }

    /// Two operands, or the halves of the rows of one.
    pub(super) fn binary(&mut self, op: &Op, operands: &[Place], out: Place) {
        let function = BinaryFunction::of(op).expect("the table of functions says which ops come here");
        let (a, b) = match operands {
            [both] => (both.half_rows(false), both.half_rows(true)),
            _ => (operands[0], operands[1]),
        };
        let flat = may_flatten(&[&a, &b, &out]);
        let (a, b, out) = if flat { (a.flat(), b.flat(), out.flat()) } else { (a, b, out) };
        let grid = pieces(&out, function.cost());
        let cost = out.elements().saturating_mul(function.cost());
        self.push(Kernel::Binary(Binary { function, a, b, out, grid }), grid.chunks(), &[a, b], Some(&out), cost);
    }
}
