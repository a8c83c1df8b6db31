//! Attention without a score matrix: keys and values pass by in tiles, with a running maximum and sum for each query.
//!
//! Queries that share keys and values (those of a group of heads, of several tokens) are computed together, so that each row of the cache is
//! read once for all of them. Keys that the mask hides from all of them are skipped a tile at a time, so what a step costs follows
//! what the mask shows and not the size of the cache: how much of the cache is in use is data.
//!
//! Few queries ([`few`]) read keys and values where they lie; many ([`tiles`]) meet panels of them, as in a matrix product. Where there
//! are too few queries to go around, keys are cut as well, on a fixed grid: each part leaves its sums in work memory, and a step behind
//! ([`FlashMerge`]) joins them in order, whoever computed them.
#![expect(unsafe_code, reason = "reads rows of operands in place, and writes the rows of its chunk")]

mod few;
mod query;
mod tiles;

use entensor_components::DType;

use query::{Query, is_out, slope};

use super::Grid;
use crate::{
    math::exp,
    place::Place,
    simd::Level,
    tensor::{Bases, Row, TILE, work_row},
};

/// Columns of values that are gathered at a time; scores are computed again for further ones.
const COLUMNS: usize = TILE;

/// Elements of a result that are written together.
const PIECE: usize = 64;

/// Means of values, weighted by the softmax of scores.
#[derive(Debug)]
pub(crate) struct FlashAttn {
    pub(crate) q: Place,
    pub(crate) k: Place,
    pub(crate) v: Place,
    pub(crate) mask: Option<Place>,
    pub(crate) sinks: Option<Place>,
    pub(crate) out: Place,
    /// Where sums of parts of the keys go: `[partial_width, rows, parts]`. Absent where keys are not cut.
    pub(crate) partials: Option<Place>,
    pub(crate) scale: f32,
    pub(crate) max_bias: f32,
    pub(crate) softcap: f32,
    pub(crate) cut: Cut,
}

/// How attention is cut into chunks; depends on shapes alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Whether queries are few.
    few: bool,
    /// Query rows that share a plane of keys and values: those of a group of heads.
    rows: usize,
    /// Blocks of these rows; 1 for few.
    blocks: usize,
    /// Planes of keys and values, counted as often as a batch of queries uses them.
    planes: usize,
    /// Planes that a chunk goes through, so that it reads all of a stretch of the cache.
    planes_per_chunk: usize,
    /// Parts that the keys are cut into.
    pub(crate) parts: usize,
    keys_per_part: usize,
}

/// Keys of a part, at least. Parts of 128 cost 4 % more of a token that is written 2048 tokens into a conversation than parts of 512 (the bench
/// `llm_vs_llamacpp` with the words `q4_1 tg64@2048 1t`); longer ones are fewer threads' work.
const PART_KEYS: usize = 256;

/// Parts at most: a cache that is mostly empty costs a look at the mask of each.
const MAX_PARTS: usize = 32;

impl Cut {
    pub(crate) fn new(q: &Place, k: &Place) -> Self {
        let rows = q.shape[2] / k.shape[2].max(1) * q.shape[1];
        let few = rows <= few::ROWS;
        let blocks = if few { 1 } else { rows.div_ceil(tiles::ROWS) };
        let planes = k.shape[2] * q.shape[3];
        let planes_per_chunk = if few { k.shape[2].max(1) } else { 1 };
        // Enough chunks for several threads, where there are not enough queries.
        let units = (blocks * planes / planes_per_chunk).max(1);
        let wanted = MAX_PARTS.div_ceil(units).min(k.shape[1].div_ceil(PART_KEYS)).max(1);
        let keys_per_part = k.shape[1].div_ceil(wanted).max(1).next_multiple_of(tiles::KEYS);
        let parts = k.shape[1].div_ceil(keys_per_part).max(1);
        Self { few, rows, blocks, planes, planes_per_chunk, parts, keys_per_part }
    }

    pub(crate) fn chunks(&self) -> usize {
        self.planes / self.planes_per_chunk * self.blocks * self.parts
    }

    /// The keys of a part.
    fn keys(&self, part: usize, keys: usize) -> std::ops::Range<usize> {
        part * self.keys_per_part..((part + 1) * self.keys_per_part).min(keys)
    }
}

/// Elements of a row of partial sums: the sums of values in whole cache lines, the largest score, the sum of weights, and what fills up
/// another line.
pub(crate) fn partial_width(columns: usize) -> usize {
    columns.next_multiple_of(16) + 16
}

/// The running state of a block of queries at the end of a part of the keys.
struct Gathered<'a> {
    queries: &'a [Query],
    /// Sums of values, a row a query.
    sums: &'a [f32],
    stride: usize,
    /// The columns that they are of.
    start: usize,
    len: usize,
}

impl FlashAttn {
    /// Vectorized by parts: the whole is too much for the compiler to put into one function, and what it leaves out would be
    /// compiled for the least of CPUs.
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (unit, part) = (chunk / self.cut.parts, chunk % self.cut.parts);
        if self.skips(level, bases, unit, part) {
            return;
        }
        if self.cut.few {
            let first = unit * self.cut.planes_per_chunk;
            self.few(level, bases, first..first + self.cut.planes_per_chunk, part);
        } else {
            self.block(level, bases, unit / self.cut.blocks, unit % self.cut.blocks, part);
        }
    }

    /// Whether the mask hides a part of the keys from all queries of few. Then its sums count for nothing, and nobody looks at them.
    #[inline(always)]
    fn skips<L: Level>(&self, level: L, bases: Bases<'_>, batch: usize, part: usize) -> bool {
        let (Some(partials), Some(mask), true) = (&self.partials, &self.mask, self.cut.few) else { return false };
        let (rows, keys) = (bases.tensor(mask), self.cut.keys(part, self.k.shape[1]));
        let [_, tokens, heads, _] = self.q.shape;
        let hidden = |plane: usize, token: usize| {
            let row = rows.row([token, plane, batch % mask.shape[3]]);
            // SAFETY: no step writes an operand while it runs, and the result lies elsewhere.
            unsafe { row.halves(keys.start, keys.len()) }.is_some_and(is_out)
        };
        let all_hidden = level.vectorize(
            #[inline(always)]
            || (0..mask.shape[2]).all(|plane| (0..tokens).all(|token| hidden(plane, token))),
        );
        if all_hidden {
            for row in batch * tokens * heads..(batch + 1) * tokens * heads {
                // SAFETY: the row belongs to this chunk, and nobody reads it before the step is done.
                let row = unsafe { work_row(&bases.tensor(partials), [row, part, 0]) };
                let row: &mut [f32] = bytemuck::cast_slice_mut(row);
                let behind = row.len() - 16;
                (row[behind], row[behind + 1]) = (f32::NEG_INFINITY, 0.0);
            }
        }
        all_hidden
    }

    /// Heads and batches of queries that share a plane.
    fn group(&self) -> [usize; 2] {
        [self.q.shape[2] / self.k.shape[2], self.q.shape[3] / self.k.shape[3]]
    }

    /// A plane of keys and values on their axes 2 and 3.
    fn plane(&self, plane: usize) -> [usize; 2] {
        [plane % self.k.shape[2], plane / self.k.shape[2] / self.group()[1]]
    }

    /// Queries of a plane from `first` on, a token's heads side by side; gives how many masks they need, and notes the rows of those.
    fn queries(
        &self,
        bases: Bases<'_>,
        (plane, first): (usize, usize),
        queries: &mut [Query],
        mask_rows: &mut [Option<Row>],
    ) -> usize {
        let (heads, group) = (self.q.shape[2], self.group()[0]);
        let (kv_head, batch) = (plane % self.k.shape[2], plane / self.k.shape[2]);
        let mut masks = 0;
        let mut last = None;
        for (offset, query) in queries.iter_mut().enumerate() {
            let (token, head) = ((first + offset) / group, kv_head * group + (first + offset) % group);
            let at = self.mask.as_ref().map(|mask| [token, head % mask.shape[2], batch % mask.shape[3]]);
            if masks == 0 || last != at {
                mask_rows[masks] = self.mask.as_ref().zip(at).map(|(mask, at)| bases.tensor(mask).row(at));
                (masks, last) = (masks + 1, at);
            }
            let slope = slope(self.max_bias, head, heads);
            *query = Query { token, head, batch, slope, mask: masks - 1, ..Query::NONE };
        }
        masks
    }

    /// Keeps what was gathered of a part, or divides it by the sum of the weights where there is one part.
    #[inline(always)]
    fn keep<L: Level>(&self, level: L, bases: Bases<'_>, part: usize, gathered: &Gathered<'_>) {
        let [_, n, heads, _] = self.q.shape;
        for (query, sums) in gathered.queries.iter().zip(gathered.sums.chunks(gathered.stride)) {
            let sums = &sums[..gathered.len];
            match &self.partials {
                Some(partials) => {
                    let row = (query.batch * n + query.token) * heads + query.head;
                    // SAFETY: the row belongs to this chunk, and nobody reads it before the step is done.
                    let row = unsafe { work_row(&bases.tensor(partials), [row, part, 0]) };
                    let row: &mut [f32] = bytemuck::cast_slice_mut(row);
                    row[gathered.start..gathered.start + gathered.len].copy_from_slice(sums);
                    let behind = row.len() - 16;
                    row[behind] = query.max;
                    row[behind + 1] = query.sum as f32;
                }
                None => {
                    let scale = share(query.max, query.sum, self.sink(level, bases, query.head));
                    let out = bases.tensor(&self.out);
                    // SAFETY: the row belongs to this chunk.
                    let out = unsafe { out.row_mut([query.head, query.token, query.batch]) };
                    for (start, sums) in (gathered.start..).step_by(PIECE).zip(sums.chunks(PIECE)) {
                        let mut piece = [0.0; PIECE];
                        // A row without weights is zeros, whatever the values are.
                        if query.sum != 0.0 {
                            piece[..sums.len()].iter_mut().zip(sums).for_each(|(v, sum)| *v = sum * scale);
                        }
                        out.store(level, start, &piece[..sums.len()]);
                    }
                }
            }
        }
    }

    fn sink<L: Level>(&self, level: L, bases: Bases<'_>, head: usize) -> Option<f32> {
        sink_of(level, bases, self.sinks.as_ref(), head)
    }
}

/// Decodes elements of a row that may be a part of a block: blocks of some dtypes are longer than what is looked at together.
#[inline(always)]
fn load_part<L: Level>(level: L, row: &Row, dtype: DType, start: usize, out: &mut [f32]) {
    let block = dtype.block_elements() as usize;
    if start.is_multiple_of(block) && out.len().is_multiple_of(block) {
        return row.load(level, start, out);
    }
    let (mut whole, first) = ([0.0; TILE], start / block * block);
    row.load(level, first, &mut whole[..block]);
    out.copy_from_slice(&whole[start - first..][..out.len()]);
}

fn sink_of<L: Level>(level: L, bases: Bases<'_>, sinks: Option<&Place>, head: usize) -> Option<f32> {
    sinks.map(|sinks| {
        let mut sink = [0.0];
        bases.tensor(sinks).row([0; 3]).load(level, head, &mut sink);
        sink[0]
    })
}

/// What to multiply sums of values with: one over the sum of all weights, the sink's included.
fn share(max: f32, sum: f64, sink: Option<f32>) -> f32 {
    let (mut total, mut factor) = (sum, 1.0);
    if let Some(sink) = sink {
        let largest = max.max(sink);
        let reference = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
        factor = f64::from(exp(max - reference));
        total = sum * factor + f64::from(exp(sink - reference));
    }
    (factor / total) as f32
}

/// Joins what was gathered of the parts of the keys.
#[derive(Debug)]
pub(crate) struct FlashMerge {
    pub(crate) partials: Place,
    pub(crate) sinks: Option<Place>,
    pub(crate) out: Place,
    /// Over the rows of the result.
    pub(crate) grid: Grid,
}

impl FlashMerge {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (partials, out) = (bases.tensor(&self.partials), bases.tensor(&self.out));
        let (parts, columns) = (self.partials.shape[2], self.out.shape[0]);
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the row belongs to this chunk.
            let to = unsafe { out.row_mut(at) };
            let row = |part: usize| {
                // SAFETY: the step that writes partial sums is done.
                let bytes = unsafe { partials.row_bytes([piece.row, part, 0]) };
                let row: &[f32] = bytemuck::cast_slice(bytes);
                let (sums, behind) = row.split_at(row.len() - 16);
                (sums, behind[0], f64::from(behind[1]))
            };
            let max = (0..parts).fold(f32::NEG_INFINITY, |max, part| max.max(row(part).1));
            let reference = if max == f32::NEG_INFINITY { 0.0 } else { max };
            let (mut sum, mut factors) = (0.0, [0.0; MAX_PARTS]);
            for (part, factor) in factors.iter_mut().enumerate().take(parts) {
                let (_, largest, of_part) = row(part);
                // What saw no key adds nothing.
                if of_part != 0.0 {
                    *factor = exp(largest - reference);
                    sum += of_part * f64::from(*factor);
                }
            }
            let scale = share(max, sum, sink_of(level, bases, self.sinks.as_ref(), at[0]));
            for start in (0..columns).step_by(COLUMNS) {
                let len = (columns - start).min(COLUMNS);
                let mut tile = [0.0; COLUMNS];
                for (part, &factor) in factors.iter().enumerate().take(parts) {
                    let (sums, _, of_part) = row(part);
                    if of_part == 0.0 {
                        continue;
                    }
                    for (v, sum) in tile[..len].iter_mut().zip(&sums[start..]) {
                        *v += sum * factor;
                    }
                }
                if sum != 0.0 {
                    tile[..len].iter_mut().for_each(|v| *v *= scale);
                } else {
                    tile[..len].fill(0.0);
                }
                to.store(level, start, &tile[..len]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_key_once_and_stay_few() {
        let place = |shape| Place::packed(0, DType::F32, shape).expect("small");
        for keys in [1, 64, 127, 128, 129, 300, 2048, 4095, 131_072] {
            for queries in [1, 2, 33, 512] {
                let cut = Cut::new(&place([64, queries, 9, 2]), &place([64, keys, 3, 1]));
                let covered: Vec<usize> = (0..cut.parts).flat_map(|part| cut.keys(part, keys)).collect();
                assert!(covered.iter().copied().eq(0..keys), "{keys} keys, {queries} queries: {cut:?}");
                assert!(cut.parts <= MAX_PARTS && cut.keys_per_part.is_multiple_of(tiles::KEYS));
                assert_eq!(cut.chunks() % cut.parts, 0);
            }
        }
    }
}
