//! Sums: of rows, along rows, of everything. All of them are accumulated in f64, in an order that shapes and layouts set.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use super::{Grid, Piece};
use crate::{
    place::Place,
    simd::Level,
    tensor::{Bases, Row, TILE, work_row},
};

/// Partial sums of a row, added pairwise at the end; one order for every level.
pub(super) const LANES: usize = 8;

#[inline(always)]
pub(super) fn total(mut lanes: [f64; LANES]) -> f64 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Adds `f` of every element to the partial sums, in f64.
#[inline(always)]
pub(super) fn accumulate(lanes: &mut [f64; LANES], tile: &[f32], f: impl Fn(f64) -> f64) {
    let (eights, rest) = tile.as_chunks::<LANES>();
    for eight in eights {
        for (lane, v) in lanes.iter_mut().zip(eight) {
            *lane += f(f64::from(*v));
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane += f(f64::from(*v));
    }
}

/// Adds `f` of every element of a piece of a row to the partial sums.
#[inline(always)]
pub(super) fn accumulate_piece<L: Level>(
    level: L,
    lanes: &mut [f64; LANES],
    x: &Row,
    piece: Piece,
    f: impl Fn(f64) -> f64,
) {
    let mut tile = [0.0; TILE];
    for (start, len) in piece.tiles() {
        x.load(level, start, &mut tile[..len]);
        accumulate(lanes, &tile[..len], &f);
    }
}

#[inline(always)]
pub(super) fn sum_of<L: Level>(level: L, x: &Row, f: impl Fn(f64) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    accumulate_piece(level, &mut lanes, x, whole(x.len()), f);
    total(lanes)
}

/// A whole row as a piece.
#[inline(always)]
pub(super) fn whole(width: usize) -> Piece {
    Piece { row: 0, start: 0, end: width }
}

/// Sums of rows, divided by a number: 1, or their length.
#[derive(Debug)]
pub(crate) struct SumRows {
    pub(crate) divisor: f64,
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl SumRows {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // An empty row sums to zero, and its tensor has no rows to look at.
            let sum = if self.x.is_empty() { 0.0 } else { sum_of(level, &x.row(at), |v| v) };
            // SAFETY: the row belongs to this chunk.
            unsafe { out.row_mut(at) }.set(0, (sum / self.divisor) as f32);
        }
    }
}

/// f32 elements of a row of partial sums: an f64, and nothing else on its cache line.
pub(crate) const PARTIAL_WIDTH: usize = 16;

/// The sum of each chunk's pieces, to work memory.
#[derive(Debug)]
pub(crate) struct SumPieces {
    pub(crate) x: Place,
    /// A row of [`PARTIAL_WIDTH`] for each chunk.
    pub(crate) partials: Place,
    pub(crate) grid: Grid,
}

impl SumPieces {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, partials) = (bases.tensor(&self.x), bases.tensor(&self.partials));
        let mut lanes = [0.0; LANES];
        for piece in self.grid.chunk(chunk) {
            accumulate_piece(level, &mut lanes, &x.row(self.x.row_at(piece.row)), piece, |v| v);
        }
        // SAFETY: the row of work memory has this chunk's number.
        let partial = unsafe { work_row(&partials, [chunk, 0, 0]) };
        partial[..8].copy_from_slice(&total(lanes).to_le_bytes());
    }
}

/// The sum of what [`SumPieces`] left. One chunk.
#[derive(Debug)]
pub(crate) struct SumPartials {
    pub(crate) partials: Place,
    pub(crate) out: Place,
}

impl SumPartials {
    pub(crate) fn run(&self, bases: Bases<'_>) {
        let (partials, out) = (bases.tensor(&self.partials), bases.tensor(&self.out));
        let mut lanes = [0.0; LANES];
        for row in 0..self.partials.rows() {
            // SAFETY: the steps before are complete, and nobody else writes this region of work memory until this one is.
            let bytes = unsafe { partials.row_bytes([row, 0, 0]) };
            let (partial, _) = bytes.split_first_chunk().expect("a row of partial sums holds an f64");
            lanes[row % LANES] += f64::from_le_bytes(*partial);
        }
        // SAFETY: the step has one chunk.
        unsafe { out.row_mut([0; 3]) }.set(0, total(lanes) as f32);
    }
}

/// Running sums along rows.
#[derive(Debug)]
pub(crate) struct Cumsum {
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl Cumsum {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let mut tile = [0.0; TILE];
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the row belongs to this chunk.
            let (x, out) = (x.row(at), unsafe { out.row_mut(at) });
            let mut sum = 0.0;
            for (start, len) in piece.tiles() {
                x.load(level, start, &mut tile[..len]);
                for v in &mut tile[..len] {
                    sum += f64::from(*v);
                    *v = sum as f32;
                }
                out.store(level, start, &tile[..len]);
            }
        }
    }
}
