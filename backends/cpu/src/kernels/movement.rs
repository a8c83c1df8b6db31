//! Ops that move elements to other places of another shape, or make them from nothing.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use super::Grid;
use crate::{
    place::Place,
    simd::Level,
    tensor::{Bases, TILE},
};

/// Zeros around a tensor; plain dtypes only.
#[derive(Debug)]
pub(crate) struct Pad {
    /// Zeros before the first element of each axis.
    pub(crate) left: [usize; 4],
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl Pad {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, _level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the piece belongs to this chunk.
            let out = unsafe { out.row_mut(at) };
            // Left of the first row, wrapping makes it larger than any axis.
            let of_x: [usize; 3] = std::array::from_fn(|axis| at[axis].wrapping_sub(self.left[axis + 1]));
            if (0..3).any(|axis| of_x[axis] >= self.x.shape[axis + 1]) {
                out.fill_zero(piece.start, piece.end - piece.start);
                continue;
            }
            let first = self.left[0].clamp(piece.start, piece.end);
            let last = (self.left[0] + self.x.shape[0]).clamp(piece.start, piece.end);
            out.fill_zero(piece.start, first - piece.start);
            if first < last {
                out.copy_units(first, &x.row(of_x), first - self.left[0], last - first);
            }
            out.fill_zero(last, piece.end - last);
        }
    }
}

/// A tensor moved round along each axis; plain dtypes only.
#[derive(Debug)]
pub(crate) struct Roll {
    /// Which element comes first along each axis.
    pub(crate) first: [usize; 4],
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl Roll {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, _level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let shape = self.x.shape;
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            let from = x.row(std::array::from_fn(|axis| (at[axis] + self.first[axis + 1]) % shape[axis + 1]));
            // SAFETY: the piece belongs to this chunk.
            let out = unsafe { out.row_mut(at) };
            let mut start = piece.start;
            while start < piece.end {
                let column = (start + self.first[0]) % shape[0];
                let run = (shape[0] - column).min(piece.end - start);
                out.copy_units(start, &from, column, run);
                start += run;
            }
        }
    }
}

/// Numbers at equal distances, in one row.
#[derive(Debug)]
pub(crate) struct Arange {
    pub(crate) start: f32,
    pub(crate) step: f32,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl Arange {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let out = bases.tensor(&self.out);
        let mut tile = [0.0; TILE];
        for piece in self.grid.chunk(chunk) {
            // SAFETY: the piece belongs to this chunk.
            let out = unsafe { out.row_mut(self.out.row_at(piece.row)) };
            for (start, len) in piece.tiles() {
                // Tiles begin at multiples of their length, which have few digits, so the sum below rounds once.
                let first = start as f32;
                for (i, v) in tile[..len].iter_mut().enumerate() {
                    *v = self.start + (first + i as f32) * self.step;
                }
                out.store(level, start, &tile[..len]);
            }
        }
    }
}

/// Cosines, then sines, of each time step at falling frequencies.
#[derive(Debug)]
pub(crate) struct TimestepEmbedding {
    pub(crate) timesteps: Place,
    pub(crate) frequencies: Box<[f64]>,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl TimestepEmbedding {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (timesteps, out) = (bases.tensor(&self.timesteps).row([0; 3]), bases.tensor(&self.out));
        let half = self.frequencies.len();
        for piece in self.grid.chunk(chunk) {
            let mut step = [0.0];
            timesteps.load(level, piece.row, &mut step);
            // SAFETY: the row belongs to this chunk.
            let row = unsafe { out.row_mut([piece.row, 0, 0]) };
            for (j, frequency) in self.frequencies.iter().enumerate() {
                let (sin, cos) = libm::sincos(f64::from(step[0]) * frequency);
                row.set(j, cos as f32);
                row.set(half + j, sin as f32);
            }
            for odd in 2 * half..piece.end {
                row.set(odd, 0.0);
            }
        }
    }
}
