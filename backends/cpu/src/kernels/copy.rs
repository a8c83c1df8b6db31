//! Ops that move elements: copies between layouts and dtypes, repetition.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use super::{Grid, Piece};
use crate::{
    place::Place,
    simd::Level,
    tensor::{Bases, Row, RowMut, TILE},
};

/// A copy between equal shapes.
#[derive(Debug)]
pub(crate) struct CopyRows {
    pub(crate) from: Place,
    pub(crate) to: Place,
    pub(crate) grid: Grid,
}

/// Copies a range of elements (whole blocks of them), converting when the dtypes differ.
#[inline(always)]
fn copy_range<L: Level>(level: L, same: bool, block: usize, from: (&Row, usize), to: (RowMut, usize), len: usize) {
    if same {
        to.0.copy_units(to.1 / block, from.0, from.1 / block, len / block);
        return;
    }
    let mut tile = [0.0; TILE];
    for (start, len) in (Piece { row: 0, start: 0, end: len }).tiles() {
        from.0.load(level, from.1 + start, &mut tile[..len]);
        to.0.store(level, to.1 + start, &tile[..len]);
    }
}

impl CopyRows {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (from, to) = (bases.tensor(&self.from), bases.tensor(&self.to));
        let same = self.from.dtype == self.to.dtype;
        let block = self.to.dtype.block_elements() as usize;
        for piece in self.grid.chunk(chunk) {
            let at = self.to.row_at(piece.row);
            // SAFETY: the piece belongs to this chunk.
            let to = unsafe { to.row_mut(at) };
            copy_range(level, same, block, (&from.row(at), piece.start), (to, piece.start), piece.end - piece.start);
        }
    }
}

/// A copy between different shapes of as many elements; plain dtypes only.
#[derive(Debug)]
pub(crate) struct CopyLinear {
    pub(crate) from: Place,
    pub(crate) to: Place,
    /// Over the rows of the target.
    pub(crate) grid: Grid,
}

impl CopyLinear {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (from, to) = (bases.tensor(&self.from), bases.tensor(&self.to));
        let same = self.from.dtype == self.to.dtype;
        let (source_width, width) = (self.from.shape[0], self.to.shape[0]);
        for piece in self.grid.chunk(chunk) {
            // SAFETY: the piece belongs to this chunk.
            let to = unsafe { to.row_mut(self.to.row_at(piece.row)) };
            let mut start = piece.start;
            while start < piece.end {
                // As far as both rows go.
                let linear = piece.row * width + start;
                let column = linear % source_width;
                let run = (source_width - column).min(piece.end - start);
                let from = from.row(self.from.row_at(linear / source_width));
                copy_range(level, same, 1, (&from, column), (to, start), run);
                start += run;
            }
        }
    }
}

/// Repetition along every axis.
#[derive(Debug)]
pub(crate) struct Repeat {
    pub(crate) from: Place,
    pub(crate) to: Place,
    pub(crate) grid: Grid,
}

impl Repeat {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, _level: L, bases: Bases<'_>, chunk: usize) {
        let (from, to) = (bases.tensor(&self.from), bases.tensor(&self.to));
        let [width, d1, d2, d3] = self.from.shape;
        for piece in self.grid.chunk(chunk) {
            let at = self.to.row_at(piece.row);
            let from = from.row([at[0] % d1, at[1] % d2, at[2] % d3]);
            // SAFETY: the piece belongs to this chunk.
            let to = unsafe { to.row_mut(at) };
            let mut start = piece.start;
            while start < piece.end {
                let column = start % width;
                let run = (width - column).min(piece.end - start);
                to.copy_units(start, &from, column, run);
                start += run;
            }
        }
    }
}
