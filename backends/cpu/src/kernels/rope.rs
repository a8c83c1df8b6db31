//! Rotary embedding: a table of sines and cosines per token, then rotations.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use entensor_components::RopeMode;

use super::{Grid, Piece};
use crate::{
    place::Place,
    simd::Level,
    tensor::{Bases, TILE},
};

/// Cosines, then sines, of a token's angles; every head and every rope of the split with the same positions shares them.
#[derive(Debug)]
pub(crate) struct RopeTable {
    pub(crate) positions: Place,
    pub(crate) factors: Option<Place>,
    /// What the position of each pair is multiplied by.
    pub(crate) frequencies: Box<[f64]>,
    /// Which of a token's positions each pair turns by; `None` if there is only one.
    pub(crate) kinds: Option<Box<[u8]>>,
    /// What cosines and sines are multiplied by.
    pub(crate) magnitude: f64,
    /// `[2 · pairs, tokens]` f32.
    pub(crate) table: Place,
    pub(crate) grid: Grid,
}

impl RopeTable {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (positions, table) = (bases.tensor(&self.positions), bases.tensor(&self.table));
        let factors = self.factors.as_ref().map(|place| bases.tensor(place).row([0; 3]));
        let pairs = self.frequencies.len();
        let tokens = self.table.shape[1];
        for piece in self.grid.chunk(chunk) {
            let position = |kind: usize| positions.integer([kind * tokens + piece.row, 0, 0, 0]) as f64;
            let of_kinds = match self.kinds {
                Some(_) => [0, 1, 2, 3].map(position),
                None => [position(0); 4],
            };
            // SAFETY: the row belongs to this chunk.
            let row = unsafe { table.row_mut([piece.row, 0, 0]) };
            for (pair, frequency) in self.frequencies.iter().enumerate() {
                let mut factor = [1.0];
                if let Some(factors) = &factors {
                    factors.load(level, pair, &mut factor);
                }
                let position = of_kinds[self.kinds.as_ref().map_or(0, |kinds| usize::from(kinds[pair]))];
                let (sin, cos) = libm::sincos(position * frequency / f64::from(factor[0]));
                row.set(pair, (cos * self.magnitude) as f32);
                row.set(pairs + pair, (sin * self.magnitude) as f32);
            }
        }
    }
}

/// The rotation of rows, elements beyond the rotated ones copied.
#[derive(Debug)]
pub(crate) struct Rope {
    pub(crate) mode: RopeMode,
    pub(crate) x: Place,
    pub(crate) table: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

/// Pairs that are rotated at a time: two halves of a tile.
const PAIRS: usize = TILE / 2;

impl Rope {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, table, out) = (bases.tensor(&self.x), bases.tensor(&self.table), bases.tensor(&self.out));
        let pairs = self.table.shape[0] / 2;
        let (mut cos, mut sin) = ([0.0; PAIRS], [0.0; PAIRS]);
        let mut tile = [0.0; TILE];
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the row belongs to this chunk.
            let (x, out) = (x.row(at), unsafe { out.row_mut(at) });
            let angles = (pairs > 0).then(|| table.row([at[1], 0, 0]));
            for start in (0..pairs).step_by(PAIRS) {
                let n = (pairs - start).min(PAIRS);
                if let Some(angles) = &angles {
                    angles.load(level, start, &mut cos[..n]);
                    angles.load(level, pairs + start, &mut sin[..n]);
                }
                match self.mode {
                    RopeMode::Normal => {
                        x.load(level, 2 * start, &mut tile[..2 * n]);
                        for ((pair, cos), sin) in tile[..2 * n].as_chunks_mut::<2>().0.iter_mut().zip(&cos).zip(&sin) {
                            *pair = [pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos];
                        }
                        out.store(level, 2 * start, &tile[..2 * n]);
                    }
                    RopeMode::Neox | RopeMode::Mrope | RopeMode::Vision | RopeMode::Imrope => {
                        let (first, second) = tile.split_at_mut(PAIRS);
                        x.load(level, start, &mut first[..n]);
                        x.load(level, pairs + start, &mut second[..n]);
                        for (((a, b), cos), sin) in first[..n].iter_mut().zip(&mut second[..n]).zip(&cos).zip(&sin) {
                            (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                        }
                        out.store(level, start, &first[..n]);
                        out.store(level, pairs + start, &second[..n]);
                    }
                }
            }
            for (start, len) in (Piece { row: 0, start: 2 * pairs, end: x.len() }).tiles() {
                out.copy_units(start, &x, start, len);
            }
        }
    }
}
