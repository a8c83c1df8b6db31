//! Gated recurrent steps.

use super::{
    Builder,
    nodes::{cost, pieces},
};
use crate::{
    kernels::{Grid, Gru, Kernel, Lstm},
    place::Place,
};

impl Builder {
    pub(super) fn lstm(&mut self, gates: Place, cell: Place, out: Place) {
        let rows = Grid::pieces(cell.rows(), cell.shape[0], 5 * cost::EXP);
        let grid = if out.is_injective() { rows } else { rows.serial() };
        let kernel = Kernel::Lstm(Lstm { gates, cell, out, grid });
        let cost = cell.elements().saturating_mul(5 * cost::EXP);
        self.push(kernel, grid.chunks(), &[gates, cell], Some(&out), cost);
    }

    pub(super) fn gru(&mut self, x_gates: Place, h_gates: Place, hidden: Place, out: Place) {
        let grid = pieces(&out, 3 * cost::EXP);
        let kernel = Kernel::Gru(Gru { x_gates, h_gates, hidden, out, grid });
        let cost = out.elements().saturating_mul(3 * cost::EXP);
        self.push(kernel, grid.chunks(), &[x_gates, h_gates, hidden], Some(&out), cost);
    }
}
