//! Small products one behind the other, with what is done to their elements in between: a tile of rows goes through all layers before the next
//! one begins, so nothing but weights and the last result leaves the first-level cache.
//!
//! Many rows stand side by side: sixteen of them are the lanes of vectors, and every element of a weight meets all of them, so weights
//! are read as they are. Their results are again lines of sixteen, which the next layer takes as they come. A few rows go one by one, each
//! against eight rows of weights at a time. Either way a row is summed in one order, wherever it lies among them.
#![expect(unsafe_code, reason = "reads operands in place, and writes the rows of its chunk")]

use std::{fmt, ops::Range};

use super::{Map, Zip};
use crate::{
    place::Place,
    simd::{LANES, Level, PANEL, PlainRows},
    tensor::{Bases, Tensor},
};

/// The widest activations of a chain: a tile of them stays in the caches.
pub(crate) const WIDEST: usize = 256;

/// Rows that stand side by side.
pub(crate) const TILE_ROWS: usize = PANEL;

/// From so many rows on a tile costs less than its rows one by one.
const MANY: usize = 7;

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
    /// A packed row of f32 to add to the sums.
    pub(crate) bias: Option<Place>,
    /// Whether what is below zero becomes zero then, at once.
    pub(crate) relu: bool,
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

    #[inline(always)]
    fn product<'a>(&'a self, bases: Bases<'a>) -> LayerProduct<'a> {
        const NO_BIAS: &[u8] = &[0; WIDEST * 4];
        let (weights, m) = (bases.tensor(&self.weights), self.m());
        // SAFETY: no step writes an operand of a product while it runs, and results lie elsewhere.
        let (bytes, stride_bytes) = unsafe { weights.whole_rows_bytes([0; 3], m) };
        let rows = PlainRows { halves: false, bytes, stride_bytes, count: m };
        // SAFETY: as above.
        let bias = self.bias.as_ref().map_or(&NO_BIAS[..m * 4], |bias| unsafe { bases.tensor(bias).row_bytes([0; 3]) });
        LayerProduct { k: self.k(), rows, bias, relu: self.relu }
    }
}

/// What a level needs to know of a layer.
#[derive(Clone, Copy)]
pub(crate) struct LayerProduct<'a> {
    /// Elements of a row of weights.
    pub(crate) k: usize,
    /// Rows of f32 weights.
    pub(crate) rows: PlainRows<'a>,
    /// As many little-endian f32.
    pub(crate) bias: &'a [u8],
    pub(crate) relu: bool,
}

impl LayerProduct<'_> {
    /// Panics unless there are so many rows of weights and biases.
    #[inline(always)]
    pub(crate) fn check(&self, m: usize) {
        self.rows.check(self.k);
        assert!(!self.rows.halves && self.rows.count >= m && self.bias.len() >= m * 4);
    }
}

/// The whole chain.
pub(crate) struct Chain {
    /// `[k,n]` of f32.
    pub(crate) x: Place,
    pub(crate) layers: Box<[Layer]>,
    /// Whole tiles, but for the last chunk.
    pub(crate) rows_per_chunk: usize,
}

/// Lines of a tile, an element of sixteen rows each; used by turns.
type Lines<const N: usize> = [[[f32; PANEL]; N]; 2];

impl Chain {
    pub(crate) fn chunks(&self) -> usize {
        self.x.shape[1].div_ceil(self.rows_per_chunk)
    }

    fn widest(&self) -> usize {
        self.layers.iter().map(|layer| layer.k().max(layer.m())).max().unwrap_or(0)
    }

    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let rows = chunk * self.rows_per_chunk..((chunk + 1) * self.rows_per_chunk).min(self.x.shape[1]);
        // What is cleared once a chunk is no larger than it has to be.
        match (self.x.shape[1] < MANY, self.widest()) {
            (true, 0..=64) => rows.for_each(|row| self.one_row::<L, 64>(level, bases, row)),
            (true, _) => rows.for_each(|row| self.one_row::<L, WIDEST>(level, bases, row)),
            (false, 0..=64) => self.tiles::<L, 64>(level, bases, rows),
            (false, 65..=128) => self.tiles::<L, 128>(level, bases, rows),
            (false, _) => self.tiles::<L, WIDEST>(level, bases, rows),
        }
    }

    #[inline(always)]
    fn tiles<L: Level, const N: usize>(&self, level: L, bases: Bases<'_>, rows: Range<usize>) {
        let mut lines: Lines<N> = [[[0.0; PANEL]; N]; 2];
        let [mut from, mut to] = lines.each_mut();
        for first in rows.clone().step_by(TILE_ROWS) {
            let rows = first..(first + TILE_ROWS).min(rows.end);
            self.turn_in(level, bases, rows.clone(), to, from);
            for layer in &self.layers {
                let m = layer.m();
                // Lanes without a row hold what earlier tiles left there, and nobody looks at them.
                level.lines_product(&layer.product(bases), rows.len(), &from[..layer.k()], &mut to[..m]);
                std::mem::swap(&mut from, &mut to);
                for done in 0..=layer.then.len() {
                    for (_, place) in layer.stores.iter().filter(|(behind, _)| *behind == done) {
                        turn_out(level, bases.tensor(place), rows.clone(), &from[..], m);
                    }
                    match layer.then.get(done) {
                        None => {}
                        Some(Then::Map(f)) => {
                            level.map(&**f, from[..m].as_flattened(), to[..m].as_flattened_mut());
                            std::mem::swap(&mut from, &mut to);
                        }
                        Some(Then::Zip(f, place)) => {
                            let mut with = [0.0; N];
                            bases.tensor(place).row([0; 3]).load(level, 0, &mut with[..m]);
                            for (line, with) in from[..m].iter_mut().zip(with) {
                                level.zip(&**f, line, &[with; PANEL]);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Rows of the input as lines.
    #[inline(always)]
    fn turn_in<L: Level, const N: usize>(
        &self,
        level: L,
        bases: Bases<'_>,
        rows: Range<usize>,
        spare: &mut [[f32; PANEL]; N],
        lines: &mut [[f32; PANEL]; N],
    ) {
        let (x, k) = (bases.tensor(&self.x), self.x.shape[0]);
        if rows.len() == TILE_ROWS && k.is_multiple_of(LANES) {
            // SAFETY: no step writes an operand of a product while it runs, and results lie elsewhere.
            let (bytes, stride_bytes) = unsafe { x.whole_rows_bytes([rows.start, 0, 0], TILE_ROWS) };
            if let (Ok(floats), 0) = (bytemuck::try_cast_slice(bytes), stride_bytes % 4) {
                return level.turn_into_panel(floats, stride_bytes / 4, &mut lines[..k]);
            }
        }
        let (spare, width) = (spare.as_flattened_mut(), k.next_multiple_of(LANES));
        for (row, to) in rows.zip(spare.chunks_exact_mut(width)) {
            x.row([row, 0, 0]).load(level, 0, &mut to[..k]);
        }
        level.turn_into_panel(&spare[..TILE_ROWS * width], width, &mut lines[..width]);
    }

    #[inline(always)]
    fn one_row<L: Level, const N: usize>(&self, level: L, bases: Bases<'_>, row: usize) {
        let mut lines = [[0.0; N]; 2];
        let [mut from, mut to] = lines.each_mut();
        for (index, layer) in self.layers.iter().enumerate() {
            let (k, m) = (layer.k(), layer.m());
            let x = match index {
                // SAFETY: no step writes an operand of a product while it runs, and results lie elsewhere.
                0 => unsafe { bases.tensor(&self.x).row_bytes([row, 0, 0]) },
                _ => bytemuck::cast_slice(&from[..k]),
            };
            level.row_product(&layer.product(bases), x, &mut to[..m]);
            std::mem::swap(&mut from, &mut to);
            for done in 0..=layer.then.len() {
                for (_, place) in layer.stores.iter().filter(|(behind, _)| *behind == done) {
                    // SAFETY: the row belongs to this chunk.
                    unsafe { bases.tensor(place).row_mut([row, 0, 0]) }.store(level, 0, &from[..m]);
                }
                match layer.then.get(done) {
                    None => {}
                    Some(Then::Map(f)) => {
                        level.map(&**f, &from[..m], &mut to[..m]);
                        std::mem::swap(&mut from, &mut to);
                    }
                    Some(Then::Zip(f, place)) => {
                        bases.tensor(place).row([0; 3]).load(level, 0, &mut to[..m]);
                        level.zip(&**f, &mut from[..m], &to[..m]);
                    }
                }
            }
        }
    }
}

/// Writes `m` lines as rows.
#[inline(always)]
fn turn_out<L: Level>(level: L, out: Tensor<'_>, rows: Range<usize>, lines: &[[f32; PANEL]], m: usize) {
    let mut turned = [[0.0; PANEL]; PANEL];
    for start in (0..m).step_by(PANEL) {
        let len = (m - start).min(PANEL);
        level.turn_into_panel(lines[start..start + PANEL].as_flattened(), PANEL, &mut turned);
        for (row, values) in rows.clone().zip(&turned) {
            // SAFETY: the row belongs to this chunk.
            let out = unsafe { out.row_mut([row, 0, 0]) };
            match (len, values.first_chunk::<LANES>()) {
                (PANEL, _) => out.set_array(start, values),
                (LANES, Some(half)) => out.set_array(start, half),
                _ => out.set_run(start, &values[..len]),
            }
        }
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = self.layers.iter().map(Layer::m).collect();
        f.debug_struct("Chain").field("x", &self.x).field("widths", &widths).finish_non_exhaustive()
    }
}
