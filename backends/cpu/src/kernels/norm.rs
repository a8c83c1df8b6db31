//! Ops that look at a whole row: sums, norms, softmax.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use super::{Grid, Piece};
use crate::{
    math::exp,
    place::Place,
    simd::Level,
    tensor::{Bases, Row, RowMut, TILE},
};

/// Partial sums of a row, added pairwise at the end; one order for every level.
const LANES: usize = 8;

#[inline(always)]
fn total(mut lanes: [f64; LANES]) -> f64 {
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
fn accumulate(lanes: &mut [f64; LANES], tile: &[f32], f: impl Fn(f64) -> f64) {
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

#[inline(always)]
fn sum_of<L: Level>(level: L, x: &Row, f: impl Fn(f64) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let mut tile = [0.0; TILE];
    for (start, len) in whole(x.len()).tiles() {
        x.load(level, start, &mut tile[..len]);
        accumulate(&mut lanes, &tile[..len], &f);
    }
    total(lanes)
}

/// A whole row as a piece.
#[inline(always)]
fn whole(width: usize) -> Piece {
    Piece { row: 0, start: 0, end: width }
}

/// Rows divided by the root of their mean square.
#[derive(Debug)]
pub(crate) struct RmsNorm {
    pub(crate) eps: f32,
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl RmsNorm {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let mut tile = [0.0; TILE];
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the row belongs to this chunk.
            let (x, out) = (x.row(at), unsafe { out.row_mut(at) });
            let mean = sum_of(level, &x, |v| v * v) / x.len() as f64;
            let scale = (1.0 / (mean + f64::from(self.eps)).sqrt()) as f32;
            for (start, len) in piece.tiles() {
                x.load(level, start, &mut tile[..len]);
                tile[..len].iter_mut().for_each(|v| *v *= scale);
                out.store(level, start, &tile[..len]);
            }
        }
    }
}

/// Sums of rows.
#[derive(Debug)]
pub(crate) struct SumRows {
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
            unsafe { out.row_mut(at) }.set(0, sum as f32);
        }
    }
}

/// Softmax of `x · scale + mask`.
#[derive(Debug)]
pub(crate) struct SoftMax {
    pub(crate) scale: f32,
    pub(crate) x: Place,
    pub(crate) mask: Option<Place>,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

/// The scores of one row, computed as often as they are needed.
struct Scores {
    x: Row,
    mask: Option<Row>,
    scale: f32,
}

impl Scores {
    #[inline(always)]
    fn load<L: Level>(&self, level: L, start: usize, tile: &mut [f32]) {
        self.x.load(level, start, tile);
        tile.iter_mut().for_each(|v| *v *= self.scale);
        if let Some(mask) = &self.mask {
            let mut added = [0.0; TILE];
            mask.load(level, start, &mut added[..tile.len()]);
            tile.iter_mut().zip(&added).for_each(|(v, m)| *v += m);
        }
    }

    /// The largest score. NaN is passed over here and comes back with the sum of exponentials.
    #[inline(always)]
    fn max<L: Level>(&self, level: L) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let mut tile = [0.0; TILE];
        for (start, len) in whole(self.x.len()).tiles() {
            self.load(level, start, &mut tile[..len]);
            // Lanes beyond the end must not count.
            let end = len.next_multiple_of(LANES);
            tile[len..end].fill(f32::NEG_INFINITY);
            for eight in tile[..end].as_chunks::<LANES>().0 {
                for (lane, &v) in lanes.iter_mut().zip(eight) {
                    *lane = if v > *lane { v } else { *lane };
                }
            }
        }
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    /// What a row becomes whose scores are minus infinity or NaN: zeros, or NaN if there is any.
    #[inline(never)]
    fn fill_masked<L: Level>(&self, level: L, out: RowMut) {
        let mut tile = [0.0; TILE];
        let mut value = 0.0;
        for (start, len) in whole(self.x.len()).tiles() {
            self.load(level, start, &mut tile[..len]);
            if tile[..len].iter().any(|v| v.is_nan()) {
                value = f32::NAN;
            }
        }
        tile.fill(value);
        for (start, len) in whole(self.x.len()).tiles() {
            out.store(level, start, &tile[..len]);
        }
    }
}

impl SoftMax {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let mut tile = [0.0; TILE];
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            let mask = self
                .mask
                .as_ref()
                .map(|place| bases.tensor(place).row([at[0], at[1] % place.shape[2], at[2] % place.shape[3]]));
            let scores = Scores { x: x.row(at), mask, scale: self.scale };
            // SAFETY: the row belongs to this chunk.
            let out = unsafe { out.row_mut(at) };
            let max = scores.max(level);
            if max == f32::NEG_INFINITY {
                scores.fill_masked(level, out);
                continue;
            }
            let mut lanes = [0.0; LANES];
            for (start, len) in piece.tiles() {
                scores.load(level, start, &mut tile[..len]);
                tile[..len].iter_mut().for_each(|v| *v = exp(*v - max));
                accumulate(&mut lanes, &tile[..len], |v| v);
                out.store(level, start, &tile[..len]);
            }
            let scale = (1.0 / total(lanes)) as f32;
            for (start, len) in piece.tiles() {
                out.as_row().load(level, start, &mut tile[..len]);
                tile[..len].iter_mut().for_each(|v| *v *= scale);
                out.store(level, start, &tile[..len]);
            }
        }
    }
}
