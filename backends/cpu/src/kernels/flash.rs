//! Attention without a score matrix: a tile of keys after the other, with a running maximum and sum for each query.
//!
//! A chunk is a few queries that share keys and values (of one head, or of the heads of a group), so that these are decoded
//! once for all of them. What a query has gathered so far lies in its row of the result.
#![expect(unsafe_code, reason = "reads rows of operands in place, and writes the rows of its chunk")]

use entensor_components::DType;

use super::{Grid, Piece};
use crate::{
    math::{exp, tanh},
    place::Place,
    simd::Level,
    tensor::{Bases, Row, RowMut, TILE, Tensor},
};

/// Queries that share decoded keys and values.
pub(crate) const QUERIES: usize = 16;

/// Keys that are looked at together; sums are added up over this many before they join the rest.
const KEYS: usize = 32;

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
    /// No weights yet, all keys.
    const START: Self = {
        let mut keys = [0; KEYS];
        let mut key = 0;
        while key < KEYS {
            keys[key] = key as u8;
            key += 1;
        }
        Self { rescale: 1.0, weights: [0.0; KEYS], keys, count: KEYS }
    };

    /// Leaves out the keys whose mask is minus infinity.
    #[inline(always)]
    fn leave_out(&mut self, masks: &[f32; KEYS]) {
        self.count = 0;
        for (key, &mask) in masks.iter().enumerate() {
            self.keys[self.count] = key as u8;
            self.count += usize::from(mask != f32::NEG_INFINITY);
        }
    }
}

impl Query {
    /// Takes the scores of a tile of keys in. A mask of minus infinity takes a key out, whatever its score is.
    #[inline(always)]
    fn take_in(&mut self, scores: &[f32; KEYS], masks: &[f32; KEYS], scale: f32, softcap: f32, taken: &mut Weights) {
        let weights = &mut taken.weights;
        for (weight, score) in weights.iter_mut().zip(scores) {
            *weight = score * scale;
        }
        if softcap != 0.0 {
            for weight in weights.iter_mut() {
                *weight = softcap * tanh(*weight / softcap);
            }
        }
        let mut left_out = false;
        let mut max = self.max;
        for (weight, &mask) in weights.iter_mut().zip(masks) {
            let out = mask == f32::NEG_INFINITY;
            left_out |= out;
            *weight = if out { f32::NEG_INFINITY } else { *weight + self.slope * mask };
            max = if *weight > max { *weight } else { max };
        }
        // Anything finite will do where all scores are minus infinity.
        let reference = if max == f32::NEG_INFINITY { 0.0 } else { max };
        for weight in weights.iter_mut() {
            *weight = exp(*weight - reference);
        }
        let mut sums = *weights;
        let mut width = KEYS / 2;
        while width > 0 {
            for i in 0..width {
                sums[i] += sums[i + width];
            }
            width /= 2;
        }
        taken.rescale = exp(self.max - reference);
        self.sum = self.sum * f64::from(taken.rescale) + f64::from(sums[0]);
        self.max = max;
        if left_out {
            taken.leave_out(masks);
        }
    }

    /// Adds a tile of values to what was gathered, from column `start` on.
    #[inline(always)]
    fn gather<L: Level>(
        &self,
        level: L,
        start: usize,
        values: &[[f32; TILE]; KEYS],
        taken: &Weights,
        (sums, gathered): (&mut [f32], &mut [f32]),
    ) {
        sums.fill(0.0);
        add_values(sums, values, taken);
        self.out.as_row().load(level, start, gathered);
        for (gathered, sum) in gathered.iter_mut().zip(sums) {
            *gathered = *gathered * taken.rescale + *sum;
        }
        self.out.store(level, start, gathered);
    }

    /// Before the first key nothing was gathered.
    fn clear<L: Level>(&self, level: L) {
        for (start, len) in whole(self.out.as_row().len()).tiles() {
            self.out.store(level, start, &[0.0; TILE][..len]);
        }
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
                for v in &mut tile[..len] {
                    *v *= scale;
                }
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
        let [(a, x), (b, y), (c, z), (d, w)] = [row(four[0]), row(four[1]), row(four[2]), row(four[3])];
        for i in 0..len {
            sums[i] += (a * x[i] + b * y[i]) + (c * z[i] + d * w[i]);
        }
    }
    for &key in rest {
        let (weight, value) = row(key);
        for (sum, v) in sums.iter_mut().zip(value) {
            *sum += weight * v;
        }
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
    let key = |index: usize| bytemuck::cast_slice(&keys[index][..len]);
    let query = |index: usize| bytemuck::cast_slice(&queries[index][..len]);
    let mut i = 0;
    while i + QUERY_TILE <= n_queries {
        // Keys beyond the last are multiplied as well where the tile has them; nobody looks at their scores.
        for j in (0..n_keys).step_by(KEY_TILE) {
            let dots: [[f32; QUERY_TILE]; KEY_TILE] = level.dots_f32(
                len,
                std::array::from_fn(|offset| key(j + offset)),
                std::array::from_fn(|offset| query(i + offset)),
            );
            for (offset, dots) in dots.iter().enumerate() {
                for (row, dot) in dots.iter().enumerate() {
                    scores[i + row][j + offset] += dot;
                }
            }
        }
        i += QUERY_TILE;
    }
    for (query, scores) in queries.iter().zip(scores).take(n_queries).skip(i) {
        for j in (0..n_keys).step_by(KEY_TILE_SINGLE) {
            let dots: [[f32; 1]; KEY_TILE_SINGLE] = level.dots_f32(
                len,
                std::array::from_fn(|offset| key(j + offset)),
                [bytemuck::cast_slice(&query[..len])],
            );
            for (score, dot) in scores[j..].iter_mut().zip(&dots) {
                *score += dot[0];
            }
        }
    }
}

/// A tile of rows, decoded from column `start` on.
#[inline(always)]
fn decode<L: Level>(
    level: L,
    from: &Tensor<'_>,
    (first, plane): (usize, [usize; 2]),
    start: usize,
    len: usize,
    rows: &mut [[f32; TILE]],
) {
    let place = from.place();
    for (row, tile) in rows.iter_mut().enumerate() {
        let at = [first + row, plane[0], plane[1]];
        if place.dtype == DType::F16 && place.is_row_packed() {
            // SAFETY: no step writes an operand while it runs, and the result lies elsewhere.
            let row = unsafe { from.row_bytes(at) };
            level.decode_f16(&row[start * 2..], &mut tile[..len]);
        } else {
            from.row(at).load(level, start, &mut tile[..len]);
        }
    }
}

impl FlashAttn {
    /// Vectorized by parts: the whole is too much for the compiler to put into one function, and what it leaves out would be
    /// compiled for the least of CPUs.
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

    fn block<L: Level>(&self, level: L, bases: Bases<'_>, block: usize) {
        let (k, v) = (bases.tensor(&self.k), bases.tensor(&self.v));
        let (mut all, plane) = self.queries(level, bases, block);
        let count = all.iter().flatten().count();
        let (width, n_keys) = (self.k.shape[0], self.k.shape[1]);
        let (mut rows, mut queries) = ([[0.0; TILE]; KEYS], [[0.0; TILE]; QUERIES]);
        let (mut sums, mut gathered) = ([0.0; TILE], [0.0; TILE]);
        for query in all.iter().flatten() {
            query.clear(level);
        }
        if width <= TILE {
            load_queries(level, &all, 0, width, &mut queries);
        }
        for first in (0..n_keys).step_by(KEYS) {
            let keys = (n_keys - first).min(KEYS);
            let mut masks = [[f32::NEG_INFINITY; KEYS]; QUERIES];
            for (query, masks) in all.iter().flatten().zip(&mut masks) {
                match &query.mask {
                    Some(mask) => level.vectorize(|| mask.load(level, first, &mut masks[..keys])),
                    None => masks[..keys].fill(0.0),
                }
            }
            if masks.as_flattened().iter().all(|&mask| mask == f32::NEG_INFINITY) {
                continue;
            }
            let mut scores = [[0.0; KEYS]; QUERIES];
            for (start, len) in whole(width).tiles() {
                if width > TILE {
                    load_queries(level, &all, start, len, &mut queries);
                }
                level.vectorize(|| decode(level, &k, (first, plane), start, len, &mut rows[..keys]));
                level.vectorize(|| add_products(level, len, &rows, &queries, (keys, count), &mut scores));
            }
            let mut taken = [Weights::START; QUERIES];
            let scored = scores.iter().zip(&masks);
            for ((query, taken), (scores, masks)) in all.iter_mut().flatten().zip(&mut taken).zip(scored) {
                level.vectorize(|| query.take_in(scores, masks, self.scale, self.softcap, taken));
            }
            for (start, len) in whole(self.v.shape[0]).tiles() {
                level.vectorize(|| decode(level, &v, (first, plane), start, len, &mut rows[..keys]));
                for (query, taken) in all.iter().flatten().zip(&taken).filter(|(_, taken)| taken.count > 0) {
                    level.vectorize(|| {
                        query.gather(level, start, &rows, taken, (&mut sums[..len], &mut gathered[..len]));
                    });
                }
            }
        }
        for query in all.iter().flatten() {
            level.vectorize(|| query.finish(level));
        }
    }
}

fn load_queries<L: Level>(
    level: L,
    all: &[Option<Query>; QUERIES],
    start: usize,
    len: usize,
    queries: &mut [[f32; TILE]; QUERIES],
) {
    for (query, tile) in all.iter().flatten().zip(queries) {
        level.vectorize(|| query.q.load(level, start, &mut tile[..len]));
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
