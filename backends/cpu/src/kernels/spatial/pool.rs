//! The largest element or the mean of windows.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use std::ops::Range;

use entensor_components::PoolOp;

use super::{Axis, common};
use crate::{
    kernels::{Grid, Piece},
    place::Place,
    simd::Level,
    tensor::{Bases, Row, TILE, Tensor},
};

/// Partial results of a window.
const LANES: usize = 8;

/// A pool over axes 0 and 1.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) op: PoolOp,
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) axes: [Axis; 2],
    /// Over the rows of the result.
    pub(crate) grid: Grid,
}

impl Pool {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let elements = self.axes[0].taps as f64 * self.axes[1].taps as f64;
        match self.op {
            PoolOp::Max => {
                // NaN replaces everything, and nothing replaces it.
                let larger = |most: f64, v: f64| if v > most || v.is_nan() { v } else { most };
                self.rows(level, bases, chunk, f64::NEG_INFINITY, larger, |most| most);
            }
            PoolOp::Avg => self.rows(level, bases, chunk, 0.0, |sum, v| sum + v, |sum| sum / elements),
        }
    }

    #[inline(always)]
    fn rows<L: Level>(
        &self,
        level: L,
        bases: Bases<'_>,
        chunk: usize,
        start: f64,
        fold: impl Fn(f64, f64) -> f64,
        finish: impl Fn(f64) -> f64,
    ) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let mut values = [0.0; TILE];
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the piece belongs to this chunk.
            let out = unsafe { out.row_mut(at) };
            for (first, len) in piece.tiles() {
                let outputs = first..first + len;
                let mut folded = [start; TILE];
                if self.axes[0].taps > self.axes[0].output {
                    for (output, folded) in outputs.zip(&mut folded) {
                        *folded = self.window(level, x, at, output, start, &fold);
                    }
                } else {
                    self.taps(level, x, at, &outputs, &mut folded, &fold);
                }
                for (v, folded) in values.iter_mut().zip(&folded[..len]) {
                    *v = finish(*folded) as f32;
                }
                out.store(level, first, &values[..len]);
            }
        }
    }

    /// The rows of the input that windows at a place of the result meet.
    #[inline(always)]
    fn inputs<'a>(&'a self, x: Tensor<'a>, [oy, i2, i3]: [usize; 3]) -> impl Iterator<Item = Row> + 'a {
        let across = &self.axes[1];
        let input = move |tap| across.input_at(oy, tap);
        across.taps_of(oy).filter_map(input).map(move |iy| x.row([iy, i2, i3]))
    }

    /// Outputs side by side, a tap at a time: for windows that are shorter than rows of the result.
    #[inline(always)]
    fn taps<L: Level>(
        &self,
        level: L,
        x: Tensor<'_>,
        at: [usize; 3],
        whole: &Range<usize>,
        folded: &mut [f64; TILE],
        fold: &impl Fn(f64, f64) -> f64,
    ) {
        let along = &self.axes[0];
        let mut tile = [0.0; TILE];
        for row in self.inputs(x, at) {
            for tap in along.taps_of_any(whole) {
                let outputs = common(&along.outputs_of(tap), whole);
                let Some(first) = along.input_at(outputs.start, tap) else { continue };
                if outputs.is_empty() {
                    continue;
                }
                let tile = &mut tile[..outputs.len()];
                row.every(first, along.stride as usize).load(level, 0, tile);
                for (folded, v) in folded[outputs.start - whole.start..].iter_mut().zip(tile) {
                    *folded = fold(*folded, f64::from(*v));
                }
            }
        }
    }

    /// One output, along its window.
    #[inline(always)]
    fn window<L: Level>(
        &self,
        level: L,
        x: Tensor<'_>,
        at: [usize; 3],
        output: usize,
        start: f64,
        fold: &impl Fn(f64, f64) -> f64,
    ) -> f64 {
        let along = &self.axes[0];
        let taps = along.taps_of(output);
        let mut lanes = [start; LANES];
        let mut tile = [0.0; TILE];
        if let Some(first) = along.input_at(output, taps.start) {
            for row in self.inputs(x, at) {
                for (from, len) in (Piece { row: 0, start: first, end: first + taps.len() }).tiles() {
                    row.load(level, from, &mut tile[..len]);
                    let (eights, rest) = tile[..len].as_chunks::<LANES>();
                    for eight in eights.iter().map(<[f32; LANES]>::as_slice).chain([rest]) {
                        for (lane, v) in lanes.iter_mut().zip(eight) {
                            *lane = fold(*lane, f64::from(*v));
                        }
                    }
                }
            }
        }
        lanes.into_iter().fold(start, fold)
    }
}
