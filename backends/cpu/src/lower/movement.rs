//! Copies and repetition.

use super::{
    Builder,
    nodes::{cost, may_flatten, pieces},
};
use crate::{
    kernels::{CopyLinear, CopyRows, Kernel, Repeat},
    place::Place,
};

impl Builder {
    pub(super) fn copy(&mut self, from: Place, to: Place) {
        if from.shape == to.shape {
            return self.copy_rows(from, to);
        }
        let grid = pieces(&to, cost::MOVE);
        let kernel = Kernel::CopyLinear(CopyLinear { from, to, grid });
        self.push(kernel, grid.chunks(), &[from], Some(&to), to.elements().saturating_mul(cost::MOVE));
    }

    /// A copy between equal shapes, converting where dtypes differ.
    pub(super) fn copy_rows(&mut self, from: Place, to: Place) {
        let flat = may_flatten(&[&to, &from]);
        let (from, to) = if flat { (from.flat(), to.flat()) } else { (from, to) };
        let cost = if from.dtype == to.dtype { cost::MOVE } else { cost::CONVERT };
        let grid = pieces(&to, cost);
        let kernel = Kernel::CopyRows(CopyRows { from, to, grid });
        self.push(kernel, grid.chunks(), &[from], Some(&to), to.elements().saturating_mul(cost));
    }

    pub(super) fn repeat(&mut self, from: Place, to: Place) {
        let grid = pieces(&to, cost::MOVE);
        let kernel = Kernel::Repeat(Repeat { from, to, grid });
        self.push(kernel, grid.chunks(), &[from], Some(&to), to.elements().saturating_mul(cost::MOVE));
    }
}
