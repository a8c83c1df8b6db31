//! Attention without a score matrix: a tile of keys after the other, with a running maximum and sum for each query.
//!
//! A chunk is a few queries that share keys and values (of one head, or of the heads of a group), so that these are decoded
//! once for all of them. What a query has gathered so far lies in its row of the result.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use super::{Grid, Piece};
use crate::{
    math::{exp, tanh},
    place::Place,
    simd::Level,
    tensor::{Bases, Row, RowMut, TILE, Tensor},
};

/// Queries that share decoded keys and values.
pub(crate) const QUERIES: usize = 8;

/// Keys that are looked at together; sums are added up over this many before they join the rest.
const KEYS: usize = 16;

/// Queries and keys whose products are computed together, and keys for a single query.
const QUERY_TILE: usize = 4;
const KEY_TILE: usize = 2;
const KEY_TILE_SINGLE: usize = 4;

/// Means of values, weighted by the softmax of scores.
#[derive(Debug)]
pub(crate) struct FlashAttn {
    pub(crate) q: Place,
    pub(crate) k: Place,
    pub(crate) v: Place,
    pub(crate) mask: Option<Place>,
    pub(crate) sinks: Option<Place>,
    pub(crate) out: Place,
    pub(crate) scale: f32,
    pub(crate) max_bias: f32,
    pub(crate) softcap: f32,
    /// Over the blocks of queries.
    pub(crate) grid: Grid,
}

/// Blocks of the queries that share a plane of keys and values.
pub(crate) fn blocks_per_plane(q: &Place, k: &Place) -> usize {
    (q.shape[2] / k.shape[2].max(1) * q.shape[1]).div_ceil(QUERIES)
}

/// What ALiBi multiplies the mask of a head by.
fn slope(max_bias: f32, head: usize, heads: usize) -> f32 {
    if max_bias == 0.0 {
        return 1.0;
    }
    let power = 1 << heads.ilog2();
    let (steps, of) = if head < power { (head + 1, power) } else { (2 * (head - power) + 1, 2 * power) };
    (-f64::from(max_bias) * steps as f64 / of as f64).exp2() as f32
}

/// A query on its way through the keys.
struct Query {
    q: Row,
    mask: Option<Row>,
    out: RowMut,
    slope: f32,
    sink: Option<f32>,
    /// The largest score so far. NaN is passed over here and comes back with the sum.
    max: f32,
    /// The weights so far, relative to that score.
    sum: f64,
}

/// The weights of a tile of keys for one query.
#[derive(Clone, Copy)]
struct Weights {
    /// What the query has gathered before is multiplied by this.
    rescale: f32,
    weights: [f32; KEYS],
    /// Keys that take part.
    keys: [u8; KEYS],
    count: usize,
}

impl Weights {
    const NONE: Self = Self { rescale: 1.0, weights: [0.0; KEYS], keys: [0; KEYS], count: 0 };
}

impl Query {
    /// Takes the scores of a tile of keys in. A mask of minus infinity takes a key out, whatever its score is.
    #[inline(always)]
    fn take_in(&mut self, scores: &[f32; KEYS], masks: &[f32; KEYS], scale: f32, softcap: f32) -> Weights {
        let mut scores = scores.map(|score| score * scale);
        if softcap != 0.0 {
            scores = scores.map(|score| softcap * tanh(score / softcap));
        }
        let mut taken = Weights::NONE;
        let mut max = self.max;
        for (key, (score, &mask)) in scores.iter_mut().zip(masks).enumerate() {
            let out = mask == f32::NEG_INFINITY;
            *score = if out { f32::NEG_INFINITY } else { *score + self.slope * mask };
            max = if *score > max { *score } else { max };
            taken.keys[taken.count] = key as u8;
            taken.count += usize::from(!out);
        }
        // Anything finite will do where all scores are minus infinity.
        let reference = if max == f32::NEG_INFINITY { 0.0 } else { max };
        taken.weights = scores.map(|score| exp(score - reference));
        taken.rescale = exp(self.max - reference);
        let sum: f64 = taken.weights.iter().map(|&w| f64::from(w)).sum();
        self.sum = self.sum * f64::from(taken.rescale) + sum;
        self.max = max;
        taken
    }

    /// Divides what was gathered by the sum of the weights, the sink's included.
    #[inline(always)]
    fn finish<L: Level>(&self, level: L) {
        let (mut sum, mut factor) = (self.sum, 1.0);
        if let Some(sink) = self.sink {
            let max = self.max.max(sink);
            let reference = if max == f32::NEG_INFINITY { 0.0 } else { max };
            factor = f64::from(exp(self.max - reference));
            sum = sum * factor + f64::from(exp(sink - reference));
        }
        let scale = (factor / sum) as f32;
        let mut tile = [0.0; TILE];
        for (start, len) in whole(self.out.as_row().len()).tiles() {
            // A row without weights is zeros, whatever the values are.
            if sum != 0.0 {
                self.out.as_row().load(level, start, &mut tile[..len]);
                tile[..len].iter_mut().for_each(|v| *v *= scale);
            }
            self.out.store(level, start, &tile[..len]);
        }
    }
}

fn whole(width: usize) -> Piece {
    Piece { row: 0, start: 0, end: width }
}

/// Adds rows of values, weighted: four at a time, so that sums are loaded and stored less often.
#[inline(always)]
fn add_values(sums: &mut [f32], values: &[[f32; TILE]; KEYS], taken: &Weights) {
    let len = sums.len();
    let row = |key: u8| (taken.weights[key as usize], &values[key as usize][..len]);
    let (fours, rest) = taken.keys[..taken.count].as_chunks::<4>();
    for four in fours {
        let [(a, x), (b, y), (c, z), (d, w)] = four.map(row);
        for i in 0..len {
            sums[i] += (a * x[i] + b * y[i]) + (c * z[i] + d * w[i]);
        }
    }
    for &key in rest {
        let (weight, value) = row(key);
        sums.iter_mut().zip(value).for_each(|(sum, v)| *sum += weight * v);
    }
}

/// The products of queries and keys, added to the scores.
#[inline(always)]
fn add_products<L: Level>(
    level: L,
    len: usize,
    keys: &[[f32; TILE]; KEYS],
    queries: &[[f32; TILE]; QUERIES],
    (n_keys, n_queries): (usize, usize),
    scores: &mut [[f32; KEYS]; QUERIES],
) {
    fn bytes(row: &[f32; TILE], len: usize) -> &[u8] {
        bytemuck::cast_slice(&row[..len])
    }
    let mut i = 0;
    while i + QUERY_TILE <= n_queries {
        // Keys beyond the last are multiplied as well where the tile has them; nobody looks at their scores.
        for j in (0..n_keys).step_by(KEY_TILE) {
            let w: [_; KEY_TILE] = std::array::from_fn(|key| bytes(&keys[j + key], len));
            let x: [_; QUERY_TILE] = std::array::from_fn(|query| bytes(&queries[i + query], len));
            let dots = level.dots_f32(len, w, x);
            for (key, dots) in dots.iter().enumerate() {
                dots.iter().enumerate().for_each(|(query, dot)| scores[i + query][j + key] += dot);
            }
        }
        i += QUERY_TILE;
    }
    for i in i..n_queries {
        for j in (0..n_keys).step_by(KEY_TILE_SINGLE) {
            let w: [_; KEY_TILE_SINGLE] = std::array::from_fn(|key| bytes(&keys[j + key], len));
            let dots = level.dots_f32(len, w, [bytes(&queries[i], len)]);
            dots.iter().enumerate().for_each(|(key, dot)| scores[i][j + key] += dot[0]);
        }
    }
}

impl FlashAttn {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        for piece in self.grid.chunk(chunk) {
            self.block(level, bases, piece.row);
        }
    }

    /// The queries of a block and the plane of their keys and values.
    #[inline(always)]
    fn queries<L: Level>(&self, level: L, bases: Bases<'_>, block: usize) -> ([Option<Query>; QUERIES], [usize; 2]) {
        let (q, out) = (bases.tensor(&self.q), bases.tensor(&self.out));
        let mask = self.mask.as_ref().map(|place| bases.tensor(place));
        let sinks = self.sinks.as_ref().map(|place| bases.tensor(place).row([0; 3]));
        let [_, per_head, heads, batches] = self.q.shape;
        let group = [heads / self.k.shape[2], batches / self.k.shape[3]];
        let per_plane = blocks_per_plane(&self.q, &self.k);
        let (plane, first) = (block / per_plane, block % per_plane * QUERIES);
        let (kv_head, batch) = (plane % self.k.shape[2], plane / self.k.shape[2]);
        let query = |index: usize| {
            let index = first + index;
            if index >= group[0] * per_head {
                return None;
            }
            let (head, query) = (kv_head * group[0] + index / per_head, index % per_head);
            let mask = mask.as_ref().map(|mask: &Tensor<'_>| {
                let shape = &mask.place().shape;
                mask.row([query, head % shape[2], batch % shape[3]])
            });
            // SAFETY: the row belongs to this chunk.
            let out = unsafe { out.row_mut([head, query, batch]) };
            let sink = sinks.as_ref().map(|sinks| {
                let mut sink = [0.0];
                sinks.load(level, head, &mut sink);
                sink[0]
            });
            let slope = slope(self.max_bias, head, heads);
            let q = q.row([query, head, batch]);
            Some(Query { q, mask, out, slope, sink, max: f32::NEG_INFINITY, sum: 0.0 })
        };
        (std::array::from_fn(query), [kv_head, batch / group[1]])
    }

    #[inline(always)]
    fn block<L: Level>(&self, level: L, bases: Bases<'_>, block: usize) {
        let (k, v) = (bases.tensor(&self.k), bases.tensor(&self.v));
        let (mut all, plane) = self.queries(level, bases, block);
        let count = all.iter().flatten().count();
        let (width, n_keys) = (self.k.shape[0], self.k.shape[1]);
        let zeros = [0.0; TILE];
        for query in all.iter().flatten() {
            whole(self.v.shape[0]).tiles().for_each(|(start, len)| query.out.store(level, start, &zeros[..len]));
        }
        let (mut rows, mut queries) = ([[0.0; TILE]; KEYS], [[0.0; TILE]; QUERIES]);
        for (query, tile) in all.iter().flatten().zip(&mut queries) {
            let len = width.min(TILE);
            query.q.load(level, 0, &mut tile[..len]);
        }
        for first in (0..n_keys).step_by(KEYS) {
            let keys = (n_keys - first).min(KEYS);
            let mut masks = [[f32::NEG_INFINITY; KEYS]; QUERIES];
            for (query, masks) in all.iter().flatten().zip(&mut masks) {
                match &query.mask {
                    Some(mask) => mask.load(level, first, &mut masks[..keys]),
                    None => masks[..keys].fill(0.0),
                }
            }
            if masks.as_flattened().iter().all(|&mask| mask == f32::NEG_INFINITY) {
                continue;
            }
            let mut scores = [[0.0; KEYS]; QUERIES];
            for (start, len) in whole(width).tiles() {
                for (key, tile) in rows[..keys].iter_mut().enumerate() {
                    k.row([first + key, plane[0], plane[1]]).load(level, start, &mut tile[..len]);
                }
                if width > TILE {
                    for (query, tile) in all.iter().flatten().zip(&mut queries) {
                        query.q.load(level, start, &mut tile[..len]);
                    }
                }
                add_products(level, len, &rows, &queries, (keys, count), &mut scores);
            }
            let mut taken = [Weights::NONE; QUERIES];
            for ((query, taken), (scores, masks)) in
                all.iter_mut().flatten().zip(&mut taken).zip(scores.iter().zip(&masks))
            {
                *taken = query.take_in(scores, masks, self.scale, self.softcap);
            }
            let (mut sums, mut gathered) = ([0.0; TILE], [0.0; TILE]);
            for (start, len) in whole(self.v.shape[0]).tiles() {
                for (key, tile) in rows[..keys].iter_mut().enumerate() {
                    v.row([first + key, plane[0], plane[1]]).load(level, start, &mut tile[..len]);
                }
                for (query, taken) in all.iter().flatten().zip(&taken) {
                    if taken.count == 0 {
                        continue;
                    }
                    sums[..len].fill(0.0);
                    add_values(&mut sums[..len], &rows, taken);
                    query.out.as_row().load(level, start, &mut gathered[..len]);
                    let pairs = gathered[..len].iter_mut().zip(&sums[..len]);
                    pairs.for_each(|(gathered, sum)| *gathered = *gathered * taken.rescale + sum);
                    query.out.store(level, start, &gathered[..len]);
                }
            }
        }
        for query in all.iter().flatten() {
            query.finish(level);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_the_paper() {
        let eight: Vec<f32> = (0..8).map(|head| slope(8.0, head, 8)).collect();
        assert_eq!(eight, [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]);
        // Twelve heads: those of eight, then every other one of sixteen.
        let twelve: Vec<f32> = (8..12).map(|head| slope(8.0, head, 12)).collect();
        assert_eq!(twelve, [-0.5_f32, -1.5, -2.5, -3.5].map(f32::exp2));
        assert_eq!(slope(0.0, 3, 7), 1.0);
        assert!(slope(126.0, 63, 64).is_normal());
    }
}
