//! Softmax of rows, and the causal mask.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use super::{
    Grid,
    sums::{LANES, accumulate, total, whole},
};
use crate::{
    math::exp,
    place::Place,
    simd::Level,
    tensor::{Bases, Row, RowMut, TILE},
};

/// Softmax of `x · scale + slope · mask`, with a score more per head that takes its share.
#[derive(Debug)]
pub(crate) struct SoftMax {
    pub(crate) scale: f32,
    pub(crate) max_bias: f32,
    pub(crate) x: Place,
    pub(crate) mask: Option<Place>,
    pub(crate) sinks: Option<Place>,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

/// The scores of one row, computed as often as they are needed.
struct Scores {
    x: Row,
    mask: Option<Row>,
    scale: f32,
    slope: f32,
}

impl Scores {
    #[inline(always)]
    fn load<L: Level>(&self, level: L, start: usize, tile: &mut [f32]) {
        self.x.load(level, start, tile);
        tile.iter_mut().for_each(|v| *v *= self.scale);
        if let Some(mask) = &self.mask {
            let mut added = [0.0; TILE];
            mask.load(level, start, &mut added[..tile.len()]);
            tile.iter_mut().zip(&added).for_each(|(v, m)| *v += self.slope * m);
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

    /// What a row becomes whose scores, its sink included, are minus infinity or NaN: zeros, or NaN if there is any.
    #[inline(never)]
    fn fill_masked<L: Level>(&self, level: L, sink: Option<f32>, out: RowMut) {
        let mut tile = [0.0; TILE];
        let mut value = if sink.is_some_and(f32::is_nan) { f32::NAN } else { 0.0 };
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
    /// What the mask is multiplied by for a head: 1, or its slope of ALiBi. Heads beyond the largest power of two take the
    /// places between the first ones.
    #[inline(always)]
    fn slope(&self, head: usize) -> f32 {
        if self.max_bias == 0.0 {
            return 1.0;
        }
        let n = 1_usize << self.x.shape[2].ilog2();
        let power = if head < n { (head + 1) as f64 } else { (head - n) as f64 + 0.5 };
        libm::exp2(-f64::from(self.max_bias) * power / n as f64) as f32
    }

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
            let sink = self.sinks.as_ref().map(|place| {
                let mut sink = [0.0];
                bases.tensor(place).row([0; 3]).load(level, at[1], &mut sink);
                sink[0]
            });
            let scores = Scores { x: x.row(at), mask, scale: self.scale, slope: self.slope(at[1]) };
            // SAFETY: the row belongs to this chunk.
            let out = unsafe { out.row_mut(at) };
            // Here `max` passes over a sink that is NaN; it comes back with the sum as well.
            let max = scores.max(level).max(sink.unwrap_or(f32::NEG_INFINITY));
            if max == f32::NEG_INFINITY {
                scores.fill_masked(level, sink, out);
                continue;
            }
            let mut lanes = [0.0; LANES];
            for (start, len) in piece.tiles() {
                scores.load(level, start, &mut tile[..len]);
                tile[..len].iter_mut().for_each(|v| *v = exp(*v - max));
                accumulate(&mut lanes, &tile[..len], |v| v);
                out.store(level, start, &tile[..len]);
            }
            let sum = total(lanes) + sink.map_or(0.0, |sink| f64::from(exp(sink - max)));
            let scale = (1.0 / sum) as f32;
            for (start, len) in piece.tiles() {
                out.as_row().load(level, start, &mut tile[..len]);
                tile[..len].iter_mut().for_each(|v| *v *= scale);
                out.store(level, start, &tile[..len]);
            }
        }
    }
}

/// A copy with minus infinity right of the diagonal.
#[derive(Debug)]
pub(crate) struct DiagMask {
    pub(crate) n_past: usize,
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl DiagMask {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let mut tile = [0.0; TILE];
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the piece belongs to this chunk.
            let (x, out) = (x.row(at), unsafe { out.row_mut(at) });
            let kept = self.n_past.saturating_add(at[0]).saturating_add(1);
            for (start, len) in piece.tiles() {
                x.load(level, start, &mut tile[..len]);
                tile[kept.saturating_sub(start).min(len)..len].fill(f32::NEG_INFINITY);
                out.store(level, start, &tile[..len]);
            }
        }
    }
}
