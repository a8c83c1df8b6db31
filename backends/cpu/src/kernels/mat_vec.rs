//! Matrix products with a single row of activations: what a model does for every token that it writes. Weights are read once, so each
//! chunk is a stream of neighbouring rows.
#![expect(unsafe_code, reason = "reads rows of operands in place, and writes the elements of its chunk")]

use std::ops::{Range, RangeInclusive};

use entensor_components::{DType, codec};

use super::{Grid, Piece, matmul::side_rows};
use crate::{
    memory::layout::{SIDE, is_repacked},
    place::Place,
    simd::{BLOCK, Fetch, Level, Pairing, QUAD, QUAD_BYTES, Streams, WeightRows},
    tensor::{Bases, RowMut, TILE, work_row},
};

/// Rounds single rows of activations to 8 bits for [`MatVec`].
#[derive(Debug)]
pub(crate) struct QuantizeVectors {
    /// `[k, 1, …]`.
    pub(crate) x: Place,
    /// A row for each of `x` in work memory; the dtype stands for bytes only.
    pub(crate) out: Place,
    pub(crate) pairing: Pairing,
    /// Over the rows.
    pub(crate) grid: Grid,
}

impl QuantizeVectors {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let k = self.x.shape[0];
        for piece in self.grid.chunk(chunk) {
            let row = x.row(self.x.row_at(piece.row));
            // SAFETY: the row belongs to this chunk, and nobody else uses it before the step is done.
            let vector = unsafe { work_row(&out, [piece.row, 0, 0]) };
            if !k.is_multiple_of(QUAD * BLOCK) {
                // Blocks that the last quad lacks are zeros.
                vector[k / (QUAD * BLOCK) * QUAD_BYTES..].fill(0);
            }
            let mut tile = [0.0; TILE];
            for (start, len) in (Piece { row: 0, start: 0, end: k }).tiles() {
                row.load(level, start, &mut tile[..len]);
                level.quantize_vector(&tile[..len], start / BLOCK, self.pairing, vector);
            }
        }
    }
}

/// `[k,m] × [k,1] → [m,1]` for every outer index of the activations.
#[derive(Debug)]
pub(crate) struct MatVec {
    /// Packed rows.
    pub(crate) weights: Place,
    /// Packed f32 rows with the axes of the activations; or rounded ones, a row for each.
    pub(crate) x: Place,
    pub(crate) out: Place,
    /// Elements that are summed over.
    pub(crate) k: usize,
    /// How many planes of activations share a plane of weights, on axes 2 and 3.
    pub(crate) group: [usize; 2],
    pub(crate) cut: RowCut,
    /// Of weights in blocks. Depends on what else the run reads, see [`MatVec::set_fetch`].
    pub(crate) fetch: Fetch,
}

/// How a product is cut into chunks: some rows of a plane, or some planes; depends on shapes alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowCut {
    rows: usize,
    /// Rows of a plane that stay together; whole sides.
    together: usize,
    /// Neighbouring chunks that are claimed at once.
    chunks_together: usize,
    /// Over these parts of all planes.
    grid: Grid,
}

/// Bytes of weights that a chunk has: two microseconds of reading at least, since every chunk costs a part of one to begin, and eight at
/// most, since larger ones let threads wait for the last.
const STREAM_BYTES: RangeInclusive<usize> = 32 * 1024..=128 * 1024;

/// Bytes of weights that are claimed at once while there is much left: some 30 µs, soon over for those who want to pause. On a Zen 4 server
/// two threads decode a fifth faster than with single chunks, which are pieces of one stream by turns.
const CLAIM_BYTES: usize = 512 * 1024;

/// Chunks that a product should have at least: enough for many threads to end at nearly the same time.
const ENOUGH_CHUNKS: usize = 128;

/// Rows that are written together: sides are whole in it, and what a tile costs by itself is little beside its products.
const M_TILE: usize = 64;

const _: () = assert!(M_TILE.is_multiple_of(SIDE));

impl RowCut {
    /// For products of `row_bytes` of weights a row.
    pub(crate) fn new(row_bytes: usize, out: &Place) -> Self {
        let [rows, _, d2, d3] = out.shape;
        let planes = if out.is_empty() { 0 } else { d2 * d3 };
        let row_cost = row_bytes.max(16);
        // Rows that lie side by side in the private layout stay together.
        let share = row_cost.saturating_mul(rows) / ENOUGH_CHUNKS;
        let chunk_bytes = share.clamp(*STREAM_BYTES.start(), *STREAM_BYTES.end());
        let together = chunk_bytes.div_ceil(row_cost).next_multiple_of(SIDE).min(rows.max(1));
        let parts = planes * rows.div_ceil(together);
        // The grid's own unit of cost is that of moving bytes between kernels; here a chunk is what `together` says, or several small planes.
        let per_chunk = (chunk_bytes / row_cost.saturating_mul(together)).max(1);
        let chunks_together = CLAIM_BYTES / row_cost.saturating_mul(together).saturating_mul(per_chunk).max(1);
        Self { rows, together, chunks_together, grid: Grid::parts(parts, per_chunk) }
    }

    pub(crate) fn chunks(&self) -> usize {
        self.grid.chunks()
    }

    pub(crate) fn chunks_together(&self) -> usize {
        self.chunks_together
    }
}

/// Rows of a plane, and what they are multiplied with.
struct Rows<'a> {
    dtype: DType,
    /// From row `first` on.
    weights: WeightRows<'a>,
    first: usize,
    x: &'a [u8],
    out: RowMut,
    k: usize,
    /// Rows of the plane that lie side by side.
    side_rows: usize,
    fetch: Fetch,
}

impl<'a> Rows<'a> {
    /// Products of rows, a tile at a time. The first of them is the first of its side.
    #[inline(always)]
    fn tiles(&self, rows: Range<usize>, products: impl Fn(WeightRows<'a>, &mut [f32])) {
        let mut tile = [0.0; M_TILE];
        for start in rows.clone().step_by(M_TILE) {
            let tile = &mut tile[..M_TILE.min(rows.end - start)];
            let bytes = &self.weights.bytes[(start - self.first) * self.weights.stride_bytes..];
            products(WeightRows { bytes, ..self.weights }, tile);
            self.out.set_run(start, tile);
        }
    }

    #[inline(always)]
    fn blocks<B: Streams, const REPACKED: bool>(&self, level: impl Level, rows: Range<usize>) {
        let (k, x, fetch) = (self.k, self.x, self.fetch);
        let border = if REPACKED { self.side_rows.clamp(rows.start, rows.end) } else { rows.start };
        if REPACKED {
            self.tiles(rows.start..border, |w, out| level.vector_blocks::<B, SIDE>(k, w, x, fetch, out));
        }
        self.tiles(border..rows.end, |w, out| level.vector_blocks::<B, 1>(k, w, x, fetch, out));
    }

    #[inline(always)]
    fn run(&self, level: impl Level, rows: Range<usize>) {
        let (k, x) = (self.k, self.x);
        match self.dtype {
            DType::F32 => self.tiles(rows, |w, out| level.vector_f32(k, w, x, out)),
            DType::F16 => self.tiles(rows, |w, out| level.vector_f16(k, w, x, out)),
            DType::Bf16 => self.tiles(rows, |w, out| level.vector_bf16(k, w, x, out)),
            DType::Q4_0 => self.blocks::<codec::Q4_0, { is_repacked(DType::Q4_0) }>(level, rows),
            DType::Q4_1 => self.blocks::<codec::Q4_1, { is_repacked(DType::Q4_1) }>(level, rows),
            DType::Q5_0 => self.blocks::<codec::Q5_0, { is_repacked(DType::Q5_0) }>(level, rows),
            DType::Q5_1 => self.blocks::<codec::Q5_1, { is_repacked(DType::Q5_1) }>(level, rows),
            DType::Q8_0 => self.blocks::<codec::Q8_0, { is_repacked(DType::Q8_0) }>(level, rows),
            DType::Q2K => self.blocks::<codec::Q2K, { is_repacked(DType::Q2K) }>(level, rows),
            DType::Q3K => self.blocks::<codec::Q3K, { is_repacked(DType::Q3K) }>(level, rows),
            DType::Q4K => self.blocks::<codec::Q4K, { is_repacked(DType::Q4K) }>(level, rows),
            DType::Q5K => self.blocks::<codec::Q5K, { is_repacked(DType::Q5K) }>(level, rows),
            DType::Q6K => self.blocks::<codec::Q6K, { is_repacked(DType::Q6K) }>(level, rows),
            DType::Iq4Nl => self.blocks::<codec::Iq4Nl, { is_repacked(DType::Iq4Nl) }>(level, rows),
            DType::Mxfp4 => self.blocks::<codec::Mxfp4, { is_repacked(DType::Mxfp4) }>(level, rows),
            // The op table has no product of integers.
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => {}
        }
    }
}

/// Weights of a run that caches may hold until the next: as large as those of common server CPUs, and larger than those of players. Fetching past
/// the caches costs more than it gives where weights would have stayed.
const KEPT_BYTES: usize = 64 << 20;

impl MatVec {
    /// Decides for all products of a run.
    pub(crate) fn set_fetch<'a>(products: impl Iterator<Item = &'a mut Self>) {
        let products: Vec<_> = products.collect();
        let bytes =
            |product: &Self| product.weights.rows() * product.weights.row_units() * product.weights.unit_bytes();
        let total = products.iter().fold(0_usize, |total, product| total.saturating_add(bytes(product)));
        let fetch = if total > KEPT_BYTES { Fetch::Pass } else { Fetch::Keep };
        products.into_iter().for_each(|product| product.fetch = fetch);
    }

    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let (d2, parts_per_plane) = (self.out.shape[2], self.cut.rows.div_ceil(self.cut.together));
        let rounded = self.weights.dtype.is_block();
        let (weights, side_rows) = (bases.tensor(&self.weights), side_rows(bases, &self.weights));
        for piece in self.cut.grid.chunk(chunk) {
            let (plane, part) = (piece.row / parts_per_plane, piece.row % parts_per_plane);
            let at = [plane % d2, plane / d2];
            let x_at = if rounded { [plane, 0, 0] } else { [0, at[0], at[1]] };
            let start = part * self.cut.together;
            let end = (start + self.cut.together).min(self.cut.rows);
            let first = [start, at[0] / self.group[0], at[1] / self.group[1]];
            // SAFETY: no step writes an operand of a product while it runs; the elements that are set belong to this chunk.
            let ((bytes, stride_bytes), x, out) = unsafe {
                (weights.whole_rows_bytes(first, end - start), x.row_bytes(x_at), out.row_mut([0, at[0], at[1]]))
            };
            let dtype = self.weights.dtype;
            let packed_bytes = self.weights.row_units() * self.weights.unit_bytes();
            assert!(side_rows == 0 || !is_repacked(dtype) || stride_bytes == packed_bytes, "rows side by side");
            let weights = WeightRows { bytes, stride_bytes };
            let rows = Rows { dtype, weights, first: start, x, out, k: self.k, side_rows, fetch: self.fetch };
            rows.run(level, start..end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_cover_every_row_once_and_never_cut_rows_side_by_side() {
        for (rows, planes, row_bytes) in
            [(1, 1, 4), (7, 3, 360), (576, 1, 360), (49_153, 1, 612), (9, 1000, 8), (5, 1, 1 << 30)]
        {
            let out = Place::packed(0, DType::F32, [rows, 1, planes, 1]).expect("small");
            let cut = RowCut::new(row_bytes, &out);
            let parts = rows.div_ceil(cut.together);
            let mut seen = vec![0_u8; rows * planes];
            for piece in (0..cut.chunks()).flat_map(|chunk| cut.grid.chunk(chunk)) {
                let (plane, start) = (piece.row / parts, piece.row % parts * cut.together);
                assert!(start.is_multiple_of(SIDE) && plane < planes);
                for row in start..(start + cut.together).min(rows) {
                    seen[plane * rows + row] += 1;
                }
            }
            assert!(seen.iter().all(|&n| n == 1), "{rows} rows, {planes} planes: {cut:?}");
        }
    }
}
