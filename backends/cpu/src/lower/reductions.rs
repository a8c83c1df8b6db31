//! Norms, sums and whatever else looks at a whole row.

use super::{
    Builder,
    nodes::{cost, whole_rows},
};
use crate::{
    kernels::{Kernel, RmsNorm, SoftMax, SumRows},
    place::Place,
};

impl Builder {
    pub(super) fn rms_norm(&mut self, eps: f32, x: Place, out: Place) {
        let grid = whole_rows(&out, out.shape[0], cost::NORM);
        let kernel = Kernel::RmsNorm(RmsNorm { eps, x, out, grid });
        self.push(kernel, grid.chunks(), &[x], Some(&out), out.elements().saturating_mul(cost::NORM));
    }

    pub(super) fn soft_max(&mut self, scale: f32, operands: &[Place], out: Place) {
        let grid = whole_rows(&out, out.shape[0], cost::EXP);
        let (x, mask) = (operands[0], operands.get(1).copied());
        let kernel = Kernel::SoftMax(SoftMax { scale, x, mask, out, grid });
        self.push(kernel, grid.chunks(), operands, Some(&out), out.elements().saturating_mul(cost::EXP));
    }

    pub(super) fn sum_rows(&mut self, x: Place, out: Place) {
        let grid = whole_rows(&out, x.shape[0], cost::MOVE);
        let kernel = Kernel::SumRows(SumRows { x, out, grid });
        self.push(kernel, grid.chunks(), &[x], Some(&out), x.elements().saturating_mul(cost::MOVE));
    }
}
