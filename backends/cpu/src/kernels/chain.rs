//! Small products one behind the other, with what is done to their elements in between: a tile of rows goes through all layers before the next
//! one begins, so nothing but weights and the last result leaves the first-level cache.
//!
//! Every row is summed in one order, wherever it lies in a tile. Many rows meet weights in panels, transposed beforehand; a few rows
//! meet the rows of the weights as they are, since transposing would take longer than the products.
#![expect(unsafe_code, reason = "reads weights in place, and writes the rows of its chunk")]

use std::fmt;

use super::{Map, Zip};
use crate::{
    place::Place,
    simd::{LANES, Level, PANEL_VECTORS},
    tensor::{Bases, Tensor, work_row},
};

/// The widest activations of a chain: a tile of them stays in the caches.
pub(crate) const WIDEST: usize = 256;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 24;

/// Rows that meet a panel side by side.
const SIDE_ROWS: usize = 6;

/// Columns of a panel.
const PANEL: usize = PANEL_VECTORS * LANES;

/// What is done to the elements of a row behind a product.
pub(crate) enum Then {
    /// A function of each.
    Map(Box<dyn Map>),
    /// A function of each and of the element of a row that all rows share.
    Zip(Box<dyn Zip>, Place),
}

/// A product and what is done to its result.
pub(crate) struct Layer {
    /// `[k,m]`, packed rows of f32.
    pub(crate) weights: Place,
    /// A packed row of f32 to begin the sums with.
    pub(crate) bias: Option<Place>,
    pub(crate) then: Box<[Then]>,
    /// Where values are written, and behind how many of `then`.
    pub(crate) stores: Box<[(usize, Place)]>,
}

impl Layer {
    fn k(&self) -> usize {
        self.weights.shape[0]
    }

    fn m(&self) -> usize {
        self.weights.shape[1]
    }

    /// f32 of the weights as panels of their columns, each behind its part of the bias; the last panel may be half as wide.
    pub(crate) fn panels_len(&self) -> usize {
        (self.k() + 1) * self.m().next_multiple_of(LANES)
    }
}

/// Weights as panels, in work memory: `panel[k][column]`, so that one element of a row meets many columns at once.
#[derive(Debug)]
pub(crate) struct PackPanels {
    pub(crate) weights: Place,
    pub(crate) bias: Option<Place>,
    /// A row of [`Layer::panels_len`].
    pub(crate) out: Place,
}

impl PackPanels {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>) {
        let (weights, out) = (bases.tensor(&self.weights), bases.tensor(&self.out));
        let [k, m, ..] = self.weights.shape;
        // SAFETY: the step has one chunk, and nobody reads the region before it is done.
        let out = unsafe { work_row(&out, [0; 3]) };
        let out: &mut [f32] = bytemuck::cast_slice_mut(out);
        let mut rows = [[0.0; WIDEST]; LANES];
        for (first, eight) in (0..m).step_by(LANES).zip(0..) {
            let (panel, half) = (eight / PANEL_VECTORS, eight % PANEL_VECTORS);
            let width = if m - panel * PANEL <= LANES { LANES } else { PANEL };
            let panel = &mut out[panel * PANEL * (k + 1)..];
            for (i, row) in rows.iter_mut().enumerate() {
                match first + i < m {
                    true => weights.row([first + i, 0, 0]).load(level, 0, &mut row[..k]),
                    false => row[..k].fill(0.0),
                }
            }
            let column = half * LANES;
            let bias = &mut panel[column..column + LANES];
            bias.fill(0.0);
            if let Some(place) = &self.bias {
                let len = (m - first).min(LANES);
                bases.tensor(place).row([0; 3]).load(level, first, &mut bias[..len]);
            }
            for (kk, line) in panel[width..].chunks_mut(width).take(k).enumerate() {
                for (to, row) in line[column..column + LANES].iter_mut().zip(&rows) {
                    *to = row[kk];
                }
            }
        }
    }
}

/// The whole chain.
pub(crate) struct Chain {
    /// `[k,n]` of f32.
    pub(crate) x: Place,
    pub(crate) layers: Box<[Layer]>,
    /// Each layer's panels; without them the weights are read as they are.
    pub(crate) panels: Option<Box<[Place]>>,
    /// Whole tiles, but for the last chunk.
    pub(crate) rows_per_chunk: usize,
}

/// Two tiles of rows, `N` elements each, used by turns.
struct Tiles<const N: usize>([[f32; N]; 2]);

impl Chain {
    pub(crate) fn chunks(&self) -> usize {
        self.x.shape[1].div_ceil(self.rows_per_chunk)
    }

    fn widest(&self) -> usize {
        self.layers.iter().map(|layer| layer.k().max(layer.m())).max().unwrap_or(0).next_multiple_of(LANES)
    }

    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let rows = chunk * self.rows_per_chunk..((chunk + 1) * self.rows_per_chunk).min(self.x.shape[1]);
        // The tiles are cleared once a chunk, so they are no larger than they have to be.
        match (&self.panels, self.widest()) {
            (None, _) => rows.for_each(|row| self.one_row(level, bases, row)),
            (Some(panels), 0..=64) => self.tiles::<L, { TILE_ROWS * 64 }>(level, bases, panels, rows),
            (Some(panels), 65..=128) => self.tiles::<L, { TILE_ROWS * 128 }>(level, bases, panels, rows),
            (Some(panels), _) => self.tiles::<L, { TILE_ROWS * WIDEST }>(level, bases, panels, rows),
        }
    }

    #[inline(always)]
    fn tiles<L: Level, const N: usize>(
        &self,
        level: L,
        bases: Bases<'_>,
        panels: &[Place],
        rows: std::ops::Range<usize>,
    ) {
        let x = bases.tensor(&self.x);
        let mut tiles = Tiles([[0.0; N]; 2]);
        for first in rows.clone().step_by(TILE_ROWS) {
            let count = (rows.end - first).min(TILE_ROWS);
            let [mut from, mut to] = {
                let [a, b] = &mut tiles.0;
                [a, b]
            };
            let mut stride = self.x.shape[0].next_multiple_of(LANES);
            for row in 0..count {
                x.row([first + row, 0, 0]).load(level, 0, &mut from[row * stride..][..self.x.shape[0]]);
            }
            for (layer, panels) in self.layers.iter().zip(panels) {
                let out_stride = layer.m().next_multiple_of(LANES);
                // SAFETY: an earlier step has written the panels, and nobody writes them while this one runs.
                let panels = unsafe { bases.tensor(panels).row_bytes([0; 3]) };
                let panels: &[f32] = bytemuck::cast_slice(panels);
                // Rows behind the last one hold what earlier tiles left there, and nobody looks at them.
                for column in (0..out_stride).step_by(PANEL) {
                    let panel = &panels[column * (layer.k() + 1)..];
                    for row in (0..count).step_by(SIDE_ROWS) {
                        let (x, out) = (&from[row * stride..], &mut to[row * out_stride + column..]);
                        if out_stride - column >= PANEL {
                            level.add_columns::<SIDE_ROWS, PANEL_VECTORS>(
                                layer.k(),
                                (x, stride),
                                panel,
                                (out, out_stride),
                            );
                        } else {
                            level.add_columns::<SIDE_ROWS, 1>(layer.k(), (x, stride), panel, (out, out_stride));
                        }
                    }
                }
                layer.finish(level, bases, &mut to[..count * out_stride], out_stride, first);
                std::mem::swap(&mut from, &mut to);
                stride = out_stride;
            }
        }
    }

    #[inline(always)]
    fn one_row<L: Level>(&self, level: L, bases: Bases<'_>, row: usize) {
        let [mut from, mut to] = [[0.0; WIDEST]; 2];
        bases.tensor(&self.x).row([row, 0, 0]).load(level, 0, &mut from[..self.x.shape[0]]);
        for layer in &self.layers {
            let (k, m) = (layer.k(), layer.m());
            let weights = bases.tensor(&layer.weights);
            if let Some(bias) = &layer.bias {
                bases.tensor(bias).row([0; 3]).load(level, 0, &mut to[..m]);
            } else {
                to[..m].fill(0.0);
            }
            // SAFETY: no step writes an operand of a product while it runs, and results lie elsewhere.
            let (bytes, stride_bytes) = unsafe { weights.whole_rows_bytes([0; 3], m) };
            for first in (0..m).step_by(LANES) {
                // Sums of a last row that are too many go nowhere.
                let row = |i: usize| &bytes[(first + i).min(m - 1) * stride_bytes..][..k * 4];
                let rows = [row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)];
                let sums = level.eight_dots(k, rows, &from[..k]);
                for (to, sum) in to[first..m].iter_mut().zip(sums) {
                    *to += sum;
                }
            }
            layer.finish(level, bases, &mut to[..m], m, row);
            std::mem::swap(&mut from, &mut to);
        }
    }
}

impl Layer {
    /// What is done to sums behind the product, and writes what is kept. The rows begin at `first` of the result.
    #[inline(always)]
    fn finish<L: Level>(&self, level: L, bases: Bases<'_>, tile: &mut [f32], stride: usize, first: usize) {
        for done in 0..=self.then.len() {
            for (_, place) in self.stores.iter().filter(|(behind, _)| *behind == done) {
                self.store(level, bases.tensor(place), tile, stride, first);
            }
            match self.then.get(done) {
                None => {}
                // What pads rows is mapped with them.
                Some(Then::Map(f)) => level.map(&**f, tile),
                Some(Then::Zip(f, place)) => {
                    let mut with = [0.0; WIDEST];
                    bases.tensor(place).row([0; 3]).load(level, 0, &mut with[..self.m()]);
                    for row in tile.chunks_exact_mut(stride) {
                        level.zip(&**f, &mut row[..self.m()], &with[..self.m()]);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn store<L: Level>(&self, level: L, out: Tensor<'_>, tile: &[f32], stride: usize, first: usize) {
        for (row, values) in tile.chunks_exact(stride).enumerate() {
            // SAFETY: the row belongs to this chunk.
            unsafe { out.row_mut([first + row, 0, 0]) }.store(level, 0, &values[..self.m()]);
        }
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = self.layers.iter().map(Layer::m).collect();
        f.debug_struct("Chain").field("x", &self.x).field("widths", &widths).finish_non_exhaustive()
    }
}
