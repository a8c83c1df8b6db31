//! Norms: of rows, and of groups of channels.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use super::{
    Grid,
    sums::{LANES, accumulate, accumulate_piece, sum_of, total, whole},
};
use crate::{
    place::Place,
    simd::Level,
    tensor::{Bases, Row, RowMut, TILE, Tensor},
};

/// Rows divided by the root of their mean square.
#[derive(Debug)]
pub(crate) struct RmsNorm {
    pub(crate) eps: f32,
    /// What the rows are sums of, if they are added up here.
    pub(crate) sum: Option<[Place; 2]>,
    /// The rows; written where they are sums.
    pub(crate) x: Place,
    /// A packed row that all results are multiplied by.
    pub(crate) by: Option<Place>,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl RmsNorm {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x_tensor, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let sum = self.sum.as_ref().map(|[a, b]| [bases.tensor(a), bases.tensor(b)]);
        let by = self.by.as_ref().map(|by| bases.tensor(by).row([0; 3]));
        let (mut tile, mut second) = ([0.0; TILE], [0.0; TILE]);
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the row belongs to this chunk.
            let (x, out) = (x_tensor.row(at), unsafe { out.row_mut(at) });
            let mut lanes = [0.0; LANES];
            for (start, len) in piece.tiles() {
                let tile = &mut tile[..len];
                if let Some([a, b]) = &sum {
                    a.row(at).load(level, start, tile);
                    b.row(at).load(level, start, &mut second[..len]);
                    tile.iter_mut().zip(&second).for_each(|(a, b)| *a += b);
                    // SAFETY: the row belongs to this chunk.
                    unsafe { x_tensor.row_mut(at) }.store(level, start, tile);
                } else {
                    x.load(level, start, tile);
                }
                accumulate(&mut lanes, tile, |v| v * v);
            }
            let mean = total(lanes) / x.len() as f64;
            let exact = 1.0 / (mean + f64::from(self.eps)).sqrt();
            let scale = exact as f32;
            for (start, len) in piece.tiles() {
                let tile = &mut tile[..len];
                x.load(level, start, tile);
                if scale.is_normal() {
                    tile.iter_mut().for_each(|v| *v *= scale);
                } else {
                    // The scale of tiny or huge elements is no f32, though the results are.
                    tile.iter_mut().for_each(|v| *v = (f64::from(*v) * exact) as f32);
                }
                if let Some(by) = &by {
                    by.load(level, start, &mut second[..len]);
                    tile.iter_mut().zip(&second).for_each(|(v, by)| *v *= by);
                }
                out.store(level, start, tile);
            }
        }
    }
}

/// What rows are brought to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NormKind {
    /// Mean 0 and variance 1.
    Standard,
    /// Length 1.
    L2,
}

/// Rows moved and scaled. In f64: the difference to a large mean has few digits in f32, and the scale may be no f32.
#[derive(Debug)]
pub(crate) struct Norm {
    pub(crate) kind: NormKind,
    pub(crate) eps: f32,
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

/// Writes `(x - shift) · scale`.
#[inline(always)]
fn apply<L: Level>(level: L, x: &Row, out: RowMut, shift: f64, scale: f64) {
    let mut tile = [0.0; TILE];
    for (start, len) in whole(x.len()).tiles() {
        x.load(level, start, &mut tile[..len]);
        tile[..len].iter_mut().for_each(|v| *v = ((f64::from(*v) - shift) * scale) as f32);
        out.store(level, start, &tile[..len]);
    }
}

impl Norm {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let eps = f64::from(self.eps);
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the row belongs to this chunk.
            let (x, out) = (x.row(at), unsafe { out.row_mut(at) });
            let (shift, scale) = match self.kind {
                NormKind::Standard => {
                    let mean = sum_of(level, &x, |v| v) / x.len() as f64;
                    let variance = sum_of(level, &x, |v| (v - mean) * (v - mean)) / x.len() as f64;
                    (mean, 1.0 / (variance + eps).sqrt())
                }
                NormKind::L2 => {
                    let length = sum_of(level, &x, |v| v * v).sqrt();
                    // This way round a NaN stays.
                    (0.0, 1.0 / if length < eps { eps } else { length })
                }
            };
            apply(level, &x, out, shift, scale);
        }
    }
}

/// Groups of channels (axis 2) with mean 0 and variance 1, for layouts in which a group is not one long row.
#[derive(Debug)]
pub(crate) struct GroupNorm {
    pub(crate) eps: f32,
    /// Channels of a group; the last has what is left.
    pub(crate) size: usize,
    /// Groups of an item of the batch.
    pub(crate) groups: usize,
    pub(crate) x: Place,
    pub(crate) out: Place,
    /// A "row" is a group of an item.
    pub(crate) grid: Grid,
}

impl GroupNorm {
    /// The rows of a group.
    #[inline(always)]
    fn rows(&self, group: usize) -> impl Iterator<Item = [usize; 3]> {
        let [_, height, channels, _] = self.x.shape;
        let (item, first) = (group / self.groups, group % self.groups * self.size);
        let last = (first + self.size).min(channels);
        (first..last).flat_map(move |channel| (0..height).map(move |row| [row, channel, item]))
    }

    /// The sum of `f` of a group's elements.
    #[inline(always)]
    fn sum_of<L: Level>(&self, level: L, x: &Tensor<'_>, group: usize, f: impl Fn(f64) -> f64) -> f64 {
        let mut lanes = [0.0; LANES];
        for at in self.rows(group) {
            let row = x.row(at);
            accumulate_piece(level, &mut lanes, &row, whole(row.len()), &f);
        }
        total(lanes)
    }

    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        for piece in self.grid.chunk(chunk) {
            let elements = (self.rows(piece.row).count() * self.x.shape[0]) as f64;
            let mean = self.sum_of(level, &x, piece.row, |v| v) / elements;
            let variance = self.sum_of(level, &x, piece.row, |v| (v - mean) * (v - mean)) / elements;
            let scale = 1.0 / (variance + f64::from(self.eps)).sqrt();
            for at in self.rows(piece.row) {
                // SAFETY: the group belongs to this chunk.
                apply(level, &x.row(at), unsafe { out.row_mut(at) }, mean, scale);
            }
        }
    }
}
