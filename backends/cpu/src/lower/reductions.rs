//! Norms, sums and whatever else looks at a whole row.

use entensor_components::{BackendError, DType, SortOrder};

use super::{
    Builder, Work,
    nodes::{cost, may_flatten, ordered, pieces, whole_rows},
};
use crate::{
    kernels::{
        Argmax, Argsort, Cumsum, DiagMask, Grid, GroupNorm, KEY_WIDTH, Kernel, Norm, NormKind, PARTIAL_WIDTH, RmsNorm,
        SoftMax, SumPartials, SumPieces, SumRows, TopK, top_k_candidates,
    },
    place::Place,
};

/// Chunks of a sort at most: each has work memory of its own.
const SORT_CHUNKS: usize = 64;

impl Builder {
    pub(super) fn rms_norm(&mut self, eps: f32, x: Place, out: Place) {
        let grid = whole_rows(&out, out.shape[0], cost::NORM);
        let kernel = Kernel::RmsNorm(RmsNorm { eps, sum: None, x, by: None, out, grid });
        self.push(kernel, grid.chunks(), &[x], Some(&out), out.elements().saturating_mul(cost::NORM));
    }

    pub(super) fn norm(&mut self, kind: NormKind, eps: f32, x: Place, out: Place) {
        let grid = whole_rows(&out, out.shape[0], cost::NORM);
        let kernel = Kernel::Norm(Norm { kind, eps, x, out, grid });
        self.push(kernel, grid.chunks(), &[x], Some(&out), out.elements().saturating_mul(cost::NORM));
    }

    pub(super) fn group_norm(&mut self, n_groups: usize, eps: f32, x: Place, out: Place) {
        if out.is_empty() {
            return;
        }
        let [width, height, channels, items] = x.shape;
        let size = channels.div_ceil(n_groups);
        let elements = width * height * size;
        if may_flatten(&[&x, &out]) && channels.is_multiple_of(size) {
            // Every group is one long row.
            let rows = |mut place: Place| {
                place.shape = [elements, channels / size, items, 1];
                let row = elements * place.unit_bytes();
                place.strides = [place.unit_bytes(), row, row * (channels / size), 0];
                place
            };
            return self.norm(NormKind::Standard, eps, rows(x), rows(out));
        }
        let groups = channels.div_ceil(size);
        let grid = ordered(Grid::rows(groups * items, elements, elements.saturating_mul(cost::NORM)), &out);
        let kernel = Kernel::GroupNorm(GroupNorm { eps, size, groups, x, out, grid });
        self.push(kernel, grid.chunks(), &[x], Some(&out), out.elements().saturating_mul(cost::NORM));
    }

    pub(super) fn soft_max(&mut self, scale: f32, max_bias: f32, operands: &[Place], out: Place) {
        let grid = whole_rows(&out, out.shape[0], cost::EXP);
        let (x, mask, sinks) = (operands[0], operands.get(1).copied(), operands.get(2).copied());
        let kernel = Kernel::SoftMax(SoftMax { scale, max_bias, x, mask, sinks, out, grid });
        self.push(kernel, grid.chunks(), operands, Some(&out), out.elements().saturating_mul(cost::EXP));
    }

    pub(super) fn diag_mask_inf(&mut self, n_past: usize, x: Place, out: Place) {
        let grid = pieces(&out, cost::MOVE);
        let kernel = Kernel::DiagMask(DiagMask { n_past, x, out, grid });
        self.push(kernel, grid.chunks(), &[x], Some(&out), out.elements().saturating_mul(cost::MOVE));
    }

    pub(super) fn argmax(&mut self, x: Place, out: Place) {
        let grid = ordered(Grid::rows(out.elements(), 1, x.shape[0].saturating_mul(cost::MOVE)), &out);
        let kernel = Kernel::Argmax(Argmax { x, out, grid });
        self.push(kernel, grid.chunks(), &[x], Some(&out), x.elements().saturating_mul(cost::MOVE));
    }

    /// The grid of a sort of rows of `out`, with room for so many keys in every chunk.
    fn sort_grid(
        &mut self,
        out: &Place,
        width: usize,
        cost: usize,
        keys: usize,
    ) -> Result<(Grid, Place), BackendError> {
        let grid = whole_rows(out, width, cost).at_most(SORT_CHUNKS);
        let keys = self.work(Work::Scratch, DType::F32, [keys.saturating_mul(KEY_WIDTH), grid.chunks(), 1, 1])?;
        Ok((grid, keys))
    }

    pub(super) fn argsort(&mut self, order: SortOrder, x: Place, out: Place) -> Result<(), BackendError> {
        let width = x.shape[0];
        let (grid, keys) = self.sort_grid(&out, width, cost::SORT, width)?;
        let kernel = Kernel::Argsort(Argsort { order, x, out, keys, grid });
        self.push_writing(kernel, grid.chunks(), &[x], &[out, keys], x.elements().saturating_mul(cost::SORT));
        Ok(())
    }

    pub(super) fn top_k(&mut self, k: usize, x: Place, out: Place) -> Result<(), BackendError> {
        let width = x.shape[0];
        let (grid, keys) = self.sort_grid(&out, width, cost::CONVERT, top_k_candidates(k, width))?;
        let kernel = Kernel::TopK(TopK { k, x, out, keys, grid });
        self.push_writing(kernel, grid.chunks(), &[x], &[out, keys], x.elements().saturating_mul(cost::CONVERT));
        Ok(())
    }

    /// In two steps over a grid of its own: what each chunk sums to, and the sum of that.
    pub(super) fn sum(&mut self, x: Place, out: Place) -> Result<(), BackendError> {
        let x = if may_flatten(&[&x]) { x.flat() } else { x };
        let grid = Grid::pieces(x.rows(), x.shape[0], cost::MOVE);
        let partials = self.work(Work::Scratch, DType::F32, [PARTIAL_WIDTH, grid.chunks(), 1, 1])?;
        let pieces = Kernel::SumPieces(SumPieces { x, partials, grid });
        self.push(pieces, grid.chunks(), &[x], Some(&partials), x.elements().saturating_mul(cost::MOVE));
        let total = Kernel::SumPartials(SumPartials { partials, out });
        self.push(total, 1, &[partials], Some(&out), partials.elements().saturating_mul(cost::MOVE));
        Ok(())
    }

    /// Sums of rows, divided.
    pub(super) fn sum_rows(&mut self, divisor: f64, x: Place, out: Place) {
        let grid = whole_rows(&out, x.shape[0], cost::MOVE);
        let kernel = Kernel::SumRows(SumRows { divisor, x, out, grid });
        self.push(kernel, grid.chunks(), &[x], Some(&out), x.elements().saturating_mul(cost::MOVE));
    }

    pub(super) fn cumsum(&mut self, x: Place, out: Place) {
        let grid = whole_rows(&out, out.shape[0], cost::NORM);
        let kernel = Kernel::Cumsum(Cumsum { x, out, grid });
        self.push(kernel, grid.chunks(), &[x], Some(&out), out.elements().saturating_mul(cost::NORM));
    }
}
