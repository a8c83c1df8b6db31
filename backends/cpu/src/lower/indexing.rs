//! Rows by index.

use super::{
    Builder,
    nodes::{cost, pieces, whole_rows},
};
use crate::{
    kernels::{AddId, CHUNK_COST, CheckIds, GetRows, Kernel, SetRows},
    place::Place,
};

impl Builder {
    pub(super) fn check_ids(&mut self, ids: Place, rows: usize) {
        let chunks = usize::from(!ids.is_empty());
        self.push(Kernel::CheckIds(CheckIds { ids, rows }), chunks, &[ids], None, ids.elements().saturating_mul(4));
    }

    pub(super) fn get_rows(&mut self, table: Place, ids: Place, out: Place) {
        self.check_ids(ids, table.shape[1]);
        let grid = whole_rows(&out, out.shape[0], cost::CONVERT);
        let kernel = Kernel::GetRows(GetRows { table, ids, out, grid });
        self.push(kernel, grid.chunks(), &[table, ids], Some(&out), out.elements().saturating_mul(cost::CONVERT));
    }

    pub(super) fn add_id(&mut self, a: Place, b: Place, ids: Place, out: Place) {
        self.check_ids(ids, b.shape[1]);
        let grid = pieces(&out, cost::MOVE);
        let kernel = Kernel::AddId(AddId { a, b, ids, out, grid });
        self.push(kernel, grid.chunks(), &[a, b, ids], Some(&out), out.elements().saturating_mul(cost::MOVE));
    }

    pub(super) fn set_rows(&mut self, rows: Place, ids: Place, target: Place) {
        self.check_ids(ids, target.shape[1]);
        let cost = rows.elements().saturating_mul(cost::CONVERT);
        // Every chunk walks all ids, so there are few of them.
        let parallel = if target.is_injective() { (cost / CHUNK_COST).clamp(1, 8) } else { 1 };
        let chunks = if rows.is_empty() { 0 } else { parallel };
        let kernel = Kernel::SetRows(SetRows { target, rows, ids, chunks: parallel });
        self.push(kernel, chunks, &[rows, ids], Some(&target), cost);
    }
}
