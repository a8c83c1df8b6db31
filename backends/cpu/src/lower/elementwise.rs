//! Functions of elements.

use super::{
    Builder,
    nodes::{may_flatten, pieces},
};
use crate::{
    kernels::{Binary, BinaryOp, Kernel, Unary, UnaryOp},
    place::Place,
};

impl Builder {
    pub(super) fn unary(&mut self, op: UnaryOp, x: Place, out: Place, cost: usize) {
        let (x, out) = if may_flatten(&[&x, &out]) { (x.flat(), out.flat()) } else { (x, out) };
        let grid = pieces(&out, cost);
        self.push(
            Kernel::Unary(Unary { op, x, out, grid }),
            grid.chunks(),
            &[x],
            Some(&out),
            out.elements().saturating_mul(cost),
        );
    }

    pub(super) fn binary(&mut self, op: BinaryOp, a: Place, b: Place, out: Place, cost: usize) {
        let flat = may_flatten(&[&a, &b, &out]);
        let (a, b, out) = if flat { (a.flat(), b.flat(), out.flat()) } else { (a, b, out) };
        let grid = pieces(&out, cost);
        let kernel = Kernel::Binary(Binary { op, a, b, out, grid });
        self.push(kernel, grid.chunks(), &[a, b], Some(&out), out.elements().saturating_mul(cost));
    }
}
