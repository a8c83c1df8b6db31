//! The kernels: each runs one chunk of one step, for any instruction level.
//!
//! A kernel decodes tiles of f32 from its operands, computes, and encodes tiles into the rows of its chunk. Reading a
//! tile before writing it is what makes it right when the result takes over an operand's memory.

mod chain;
mod copy;
mod elementwise;
mod flash;
mod ids;
mod mat_vec;
mod matmul;
mod movement;
mod norm;
mod order;
mod panels;
mod recurrent;
mod rope;
mod routes;
mod soft_max;
mod spatial;
mod sums;
mod upscale;

pub(crate) use chain::{Chain, Layer, LayerProduct, TILE_ROWS, Then, WIDEST};
pub(crate) use copy::{CopyLinear, CopyRows, Repeat};
pub(crate) use elementwise::{Binary, Gate, Map, Unary, Zip};
pub(crate) use flash::{Cut, FlashAttn, FlashMerge, partial_width};
pub(crate) use ids::{AddId, BadId, CheckIds, GetRows, SetRows};
pub(crate) use mat_vec::{MatVec, QuantizeVectors, RowCut};
pub(crate) use matmul::{Activations, MulMat, Quantize, Tiling};
pub(crate) use movement::{Arange, Pad, Roll, TimestepEmbedding};
pub(crate) use norm::{GroupNorm, Norm, NormKind, RmsNorm};
pub(crate) use order::{Argmax, Argsort, KEY_WIDTH, TopK, top_k_candidates};
pub(crate) use panels::{PanelProduct, PanelTiling, panel_activations};
pub(crate) use recurrent::{Gru, Lstm};
pub(crate) use rope::{Rope, RopeTable};
pub(crate) use routes::{Gather, Route, max_groups, table_len};
pub(crate) use soft_max::{DiagMask, SoftMax};
pub(crate) use spatial::{Axis, Conv, Depthwise, Im2col, LINES, NARROW, PackKernel, Pool, WIDE};
pub(crate) use sums::{Cumsum, PARTIAL_WIDTH, SumPartials, SumPieces, SumRows};
pub(crate) use upscale::{Positions, Upscale};

use crate::{
    simd::{AnyLevel, Level, Panels},
    tensor::Bases,
};

/// The work of one step.
#[derive(Debug)]
pub(crate) enum Kernel {
    CheckIds(CheckIds),
    Unary(Unary),
    Binary(Binary),
    RmsNorm(RmsNorm),
    Norm(Norm),
    GroupNorm(GroupNorm),
    SoftMax(SoftMax),
    DiagMask(DiagMask),
    Argmax(Argmax),
    Argsort(Argsort),
    TopK(TopK),
    SumRows(SumRows),
    SumPieces(SumPieces),
    SumPartials(SumPartials),
    Cumsum(Cumsum),
    Quantize(Quantize),
    MulMat(MulMat),
    Chain(Chain),
    QuantizeVectors(QuantizeVectors),
    MatVec(MatVec),
    PanelProduct(PanelProduct),
    GetRows(GetRows),
    SetRows(SetRows),
    CopyRows(CopyRows),
    CopyLinear(CopyLinear),
    Repeat(Repeat),
    Pad(Pad),
    Roll(Roll),
    Upscale(Upscale),
    Arange(Arange),
    TimestepEmbedding(TimestepEmbedding),
    RopeTable(RopeTable),
    Rope(Rope),
    PackKernel(PackKernel),
    Conv(Conv),
    Depthwise(Depthwise),
    Im2col(Im2col),
    Pool(Pool),
    AddId(AddId),
    Route(Route),
    Gather(Gather),
    FlashAttn(Box<FlashAttn>),
    FlashMerge(FlashMerge),
    Lstm(Lstm),
    Gru(Gru),
}

impl Kernel {
    /// Runs one chunk of the step's grid.
    pub(crate) fn run(&self, level: AnyLevel, bases: Bases<'_>, chunk: usize) -> Result<(), BadId> {
        match level {
            AnyLevel::Portable(level) => self.run_at(level, bases, chunk),
            #[cfg(target_arch = "x86_64")]
            AnyLevel::Avx2(level) => self.run_at(level, bases, chunk),
            #[cfg(target_arch = "x86_64")]
            AnyLevel::Avx512(level) => match self {
                Self::PanelProduct(kernel) => {
                    kernel.run(level, bases, chunk);
                    Ok(())
                }
                _ => self.run_at(level.base(), bases, chunk),
            },
        }
    }

    /// Neighbouring chunks that one walker had better take at once.
    pub(crate) fn chunks_together(&self) -> usize {
        if let Self::MatVec(kernel) = self { kernel.cut.chunks_together() } else { 1 }
    }

    fn run_at<L: Panels<Base = L> + Level>(&self, level: L, bases: Bases<'_>, chunk: usize) -> Result<(), BadId> {
        // A closure is compiled for the level only where it is inlined, and large ones are not unless told.
        macro_rules! run {
            ($kernel:ident) => {
                level.vectorize(
                    #[inline(always)]
                    || $kernel.run(level, bases, chunk),
                )
            };
        }
        match self {
            Self::CheckIds(kernel) => return kernel.run(bases),
            Self::Unary(kernel) => run!(kernel),
            Self::Binary(kernel) => run!(kernel),
            Self::RmsNorm(kernel) => run!(kernel),
            Self::Norm(kernel) => run!(kernel),
            Self::GroupNorm(kernel) => run!(kernel),
            Self::SoftMax(kernel) => run!(kernel),
            Self::DiagMask(kernel) => run!(kernel),
            Self::Argmax(kernel) => run!(kernel),
            Self::Argsort(kernel) => run!(kernel),
            Self::TopK(kernel) => run!(kernel),
            Self::SumRows(kernel) => run!(kernel),
            Self::SumPieces(kernel) => run!(kernel),
            Self::SumPartials(kernel) => kernel.run(bases),
            Self::Cumsum(kernel) => run!(kernel),
            Self::Quantize(kernel) => run!(kernel),
            Self::MulMat(kernel) => run!(kernel),
            Self::Chain(kernel) => run!(kernel),
            Self::QuantizeVectors(kernel) => run!(kernel),
            Self::MatVec(kernel) => run!(kernel),
            Self::PanelProduct(kernel) => kernel.run(level, bases, chunk),
            Self::GetRows(kernel) => run!(kernel),
            Self::SetRows(kernel) => run!(kernel),
            Self::CopyRows(kernel) => run!(kernel),
            Self::CopyLinear(kernel) => run!(kernel),
            Self::Repeat(kernel) => run!(kernel),
            Self::Pad(kernel) => run!(kernel),
            Self::Roll(kernel) => run!(kernel),
            Self::Upscale(kernel) => run!(kernel),
            Self::Arange(kernel) => run!(kernel),
            Self::TimestepEmbedding(kernel) => run!(kernel),
            Self::RopeTable(kernel) => run!(kernel),
            Self::Rope(kernel) => run!(kernel),
            Self::PackKernel(kernel) => run!(kernel),
            Self::Conv(kernel) => run!(kernel),
            Self::Depthwise(kernel) => run!(kernel),
            Self::Im2col(kernel) => run!(kernel),
            Self::Pool(kernel) => run!(kernel),
            Self::AddId(kernel) => run!(kernel),
            Self::Route(kernel) => kernel.run(bases),
            Self::Gather(kernel) => run!(kernel),
            Self::FlashAttn(kernel) => kernel.run(level, bases, chunk),
            Self::FlashMerge(kernel) => run!(kernel),
            Self::Lstm(kernel) => run!(kernel),
            Self::Gru(kernel) => run!(kernel),
        }
        Ok(())
    }
}

/// A fixed partition of a tensor's rows: whole rows a chunk, or pieces of rows that are long by themselves. It depends
/// on the shape alone, so that no thread count ever moves a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    rows: usize,
    width: usize,
    rows_per_chunk: usize,
    /// Elements of a piece; at least `width` where rows stay whole.
    piece: usize,
}

/// A part of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Linear index of the row.
    pub(crate) row: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// What a chunk should cost at least, in the unit of [`Grid`]'s constructors: about 4 µs, so that handing it out is cheap.
pub(crate) const CHUNK_COST: usize = 32 * 1024;

impl Grid {
    /// Rows that stay whole, of `cost` each (bytes moved; more for arithmetic).
    pub(crate) fn rows(rows: usize, width: usize, cost: usize) -> Self {
        Self { rows, width, rows_per_chunk: (CHUNK_COST / cost.max(1)).max(1), piece: usize::MAX }
    }

    /// Rows that may be cut, of `cost` an element. Pieces are whole tiles.
    pub(crate) fn pieces(rows: usize, width: usize, cost: usize) -> Self {
        let piece = (CHUNK_COST / cost.max(1)).max(1).next_multiple_of(crate::tensor::TILE);
        if width > piece {
            Self { rows, width, rows_per_chunk: 1, piece }
        } else {
            Self::rows(rows, width, cost.saturating_mul(width))
        }
    }

    /// Parts of any kind, so many a chunk.
    pub(crate) fn parts(parts: usize, per_chunk: usize) -> Self {
        Self { rows: parts, width: 1, rows_per_chunk: per_chunk.max(1), piece: usize::MAX }
    }

    /// Everything in one chunk, in linear order.
    pub(crate) fn serial(self) -> Self {
        Self { rows_per_chunk: self.rows.max(1), piece: usize::MAX, ..self }
    }

    /// Whole rows in at most so many chunks.
    pub(crate) fn at_most(self, chunks: usize) -> Self {
        Self { rows_per_chunk: self.rows_per_chunk.max(self.rows.div_ceil(chunks)), ..self }
    }

    pub(crate) fn chunks(&self) -> usize {
        if self.width == 0 {
            return 0;
        }
        self.rows.div_ceil(self.rows_per_chunk) * self.pieces_per_row()
    }

    fn pieces_per_row(&self) -> usize {
        if self.piece < self.width { self.width.div_ceil(self.piece) } else { 1 }
    }

    /// What a chunk covers.
    #[inline(always)]
    pub(crate) fn chunk(&self, chunk: usize) -> impl Iterator<Item = Piece> {
        let per_row = self.pieces_per_row();
        let first = chunk / per_row * self.rows_per_chunk;
        let start = if per_row == 1 { 0 } else { chunk % per_row * self.piece };
        let end = if per_row == 1 { self.width } else { (start + self.piece).min(self.width) };
        (first..(first + self.rows_per_chunk).min(self.rows)).map(move |row| Piece { row, start, end })
    }
}

impl Piece {
    /// The piece in tiles: start and length of each.
    #[inline(always)]
    pub(crate) fn tiles(self) -> impl Iterator<Item = (usize, usize)> {
        (self.start..self.end).step_by(crate::tensor::TILE).map(move |start| {
            let len = (self.end - start).min(crate::tensor::TILE);
            (start, len)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_cover_every_element_once() {
        for (rows, width, cost) in
            [(1, 1, 1), (5, 7, 4), (3, 100_000, 8), (1000, 64, 8), (0, 5, 1), (5, 0, 1), (2, 700, 1 << 20)]
        {
            for grid in [Grid::rows(rows, width, cost * width), Grid::pieces(rows, width, cost), {
                Grid::pieces(rows, width, cost).serial()
            }] {
                let mut seen = vec![0_u8; rows * width];
                for piece in (0..grid.chunks()).flat_map(|chunk| grid.chunk(chunk)) {
                    for (start, len) in piece.tiles() {
                        seen[piece.row * width..][start..start + len].iter_mut().for_each(|n| *n += 1);
                    }
                }
                assert!(seen.iter().all(|&n| n == 1), "{grid:?}");
            }
        }
    }
}
