//! Few queries: rows of keys and values are read once, where they lie, and the arithmetic of all queries hides behind that.

use entensor_components::DType;

use super::{FlashAttn, Gathered, Masks, Query, load_part};
use crate::{
    simd::{Level, PlainRows},
    tensor::{Bases, Tensor},
};

/// Query rows of a plane up to which they are few.
pub(super) const ROWS: usize = 8;

/// Keys that are looked at together; sums are added up over this many before they join the rest.
const KEYS: usize = 32;

/// Elements of rows that are looked at together.
const WIDTH: usize = 128;

type Tile<const N: usize> = [[f32; WIDTH]; N];

/// Rows of a plane: read where they lie if they are packed f16, else decoded.
struct Source<'a> {
    tensor: Tensor<'a>,
    plane: [usize; 2],
    in_place: bool,
}

impl<'a> Source<'a> {
    fn new(tensor: Tensor<'a>, plane: [usize; 2]) -> Self {
        let place = tensor.place();
        Self { tensor, plane, in_place: place.dtype == DType::F16 && place.is_row_packed() }
    }

    /// Calls `f` with columns of `count` rows from `first` on.
    #[inline(always)]
    fn with<L: Level>(
        &self,
        level: L,
        (first, count): (usize, usize),
        (start, len): (usize, usize),
        decoded: &mut [[f32; WIDTH]],
        f: impl FnOnce(PlainRows<'_>),
    ) {
        if self.in_place {
            let at = [first, self.plane[0], self.plane[1]];
            // SAFETY: no step writes an operand while it runs, and the result lies elsewhere.
            let (bytes, stride_bytes) = unsafe { self.tensor.rows_bytes(at, count, start..start + len) };
            f(PlainRows { halves: true, bytes, stride_bytes, count });
        } else {
            level.vectorize(
                #[inline(always)]
                || {
                    for (row, tile) in decoded.iter_mut().enumerate().take(count) {
                        let row = self.tensor.row([first + row, self.plane[0], self.plane[1]]);
                        load_part(level, &row, self.tensor.place().dtype, start, &mut tile[..len]);
                    }
                },
            );
            let bytes = bytemuck::cast_slice(decoded.as_flattened());
            f(PlainRows { halves: false, bytes, stride_bytes: WIDTH * 4, count });
        }
    }
}

/// The products of rows with all queries, added to their scores.
#[inline(always)]
fn score<L: Level>(level: L, rows: PlainRows<'_>, len: usize, queries: &[[f32; WIDTH]], scores: &mut [[f32; KEYS]]) {
    for (queries, scores) in queries.chunks(3).zip(scores.chunks_mut(3)) {
        match (queries, scores) {
            ([a, b, c], [x, y, z]) => level.add_scores(len, rows, [&a[..], b, c], [&mut x[..], y, z]),
            ([a, b], [x, y]) => level.add_scores(len, rows, [&a[..], b], [&mut x[..], y]),
            ([a], [x]) => level.add_scores(len, rows, [&a[..]], [&mut x[..]]),
            _ => unreachable!("chunks of up to three, of the same length"),
        }
    }
}

/// The weighted sums of rows of values, for all queries. Weights begin at `first`.
#[inline(always)]
fn gather<L: Level>(
    level: L,
    rows: PlainRows<'_>,
    len: usize,
    (weights, first, rescale): (&[[f32; KEYS]], usize, &[f32]),
    sums: &mut [[f32; WIDTH]],
) {
    for ((weights, rescale), sums) in weights.chunks(3).zip(rescale.chunks(3)).zip(sums.chunks_mut(3)) {
        match (weights, rescale, sums) {
            ([a, b, c], &[r, s, t], [x, y, z]) => {
                let sums = [&mut x[..len], &mut y[..len], &mut z[..len]];
                level.add_weighted(rows, [&a[first..], &b[first..], &c[first..]], [r, s, t], sums);
            }
            ([a, b], &[r, s], [x, y]) => {
                level.add_weighted(rows, [&a[first..], &b[first..]], [r, s], [&mut x[..len], &mut y[..len]]);
            }
            ([a], &[r], [x]) => level.add_weighted(rows, [&a[first..]], [r], [&mut x[..len]]),
            _ => unreachable!("chunks of up to three, of the same length"),
        }
    }
}

impl FlashAttn {
    /// All queries of a plane, over a part of the keys.
    pub(super) fn few<L: Level>(&self, level: L, bases: Bases<'_>, plane: usize, part: usize) {
        let (k, v) = (bases.tensor(&self.k), bases.tensor(&self.v));
        let sources = [k, v].map(|tensor| Source::new(tensor, self.plane(plane)));
        if sources.iter().all(|source| source.in_place) {
            self.few_of(level, bases, plane, part, (sources, &mut []));
        } else {
            let mut decoded: Tile<KEYS> = [[0.0; WIDTH]; KEYS];
            self.few_of(level, bases, plane, part, (sources, &mut decoded));
        }
    }

    /// The same, with memory for a tile of decoded rows, if any are.
    fn few_of<L: Level>(
        &self,
        level: L,
        bases: Bases<'_>,
        plane: usize,
        part: usize,
        ([k, v], decoded): ([Source<'_>; 2], &mut [[f32; WIDTH]]),
    ) {
        let (q, count) = (bases.tensor(&self.q), self.cut.rows);
        let (mut queries, mut mask_rows) = ([Query::NONE; ROWS], [None; ROWS]);
        let masks = self.queries(bases, (plane, 0), &mut queries[..count], &mut mask_rows);
        let (queries, mask_rows) = (&mut queries[..count], &mask_rows[..masks]);
        let keys = self.cut.keys(part, self.k.shape[1]);
        let mut tile: Tile<ROWS> = [[0.0; WIDTH]; ROWS];
        let mut sums: Tile<ROWS> = [[0.0; WIDTH]; ROWS];
        let (mut scores, mut rescale) = ([[0.0; KEYS]; ROWS], [1.0; ROWS]);
        let mut of_tile = [Masks::<KEYS>::NONE; ROWS];
        let of_tile = &mut of_tile[..masks];
        let (width, columns) = (self.k.shape[0], self.v.shape[0]);
        let load_queries = |queries: &[Query], start: usize, len: usize, tile: &mut Tile<ROWS>| {
            for (query, tile) in queries.iter().zip(tile) {
                q.row([query.token, query.head, query.batch]).load(level, start, &mut tile[..len]);
            }
        };
        if width <= WIDTH {
            load_queries(queries, 0, width, &mut tile);
        }
        for window in (0..columns).step_by(WIDTH) {
            let len = (columns - window).min(WIDTH);
            if window > 0 {
                sums = [[0.0; WIDTH]; ROWS];
                queries.iter_mut().for_each(|query| (query.max, query.sum) = (f32::NEG_INFINITY, 0.0));
            }
            for first in keys.clone().step_by(KEYS) {
                let n_keys = (keys.end - first).min(KEYS);
                level.vectorize(
                    #[inline(always)]
                    || {
                        for (masks, row) in of_tile.iter_mut().zip(mask_rows) {
                            masks.load(level, row.as_ref(), first, n_keys);
                        }
                    },
                );
                if of_tile.iter().all(|masks| masks.is_out) {
                    continue;
                }
                scores[..count].fill([0.0; KEYS]);
                for start in (0..width).step_by(WIDTH) {
                    let len = (width - start).min(WIDTH);
                    if width > WIDTH {
                        load_queries(queries, start, len, &mut tile);
                    }
                    k.with(
                        level,
                        (first, n_keys),
                        (start, len),
                        decoded,
                        #[inline(always)]
                        |rows| score(level, rows, len, &tile[..count], &mut scores[..count]),
                    );
                }
                level.vectorize(
                    #[inline(always)]
                    || {
                        for ((query, scores), rescale) in queries.iter_mut().zip(&mut scores).zip(&mut rescale) {
                            let masks = &of_tile[query.mask];
                            *rescale = query.take_in(level, scores, masks, (self.scale, self.softcap));
                        }
                    },
                );
                let weights = (&scores, &rescale);
                if of_tile.iter().any(|masks| masks.any_out) {
                    let v = (&v, &mut *decoded);
                    self.gather_seen(level, v, (first, window, len), of_tile, queries, weights, &mut sums);
                } else {
                    v.with(
                        level,
                        (first, n_keys),
                        (window, len),
                        decoded,
                        #[inline(always)]
                        |rows| gather(level, rows, len, (&scores[..count], 0, &rescale[..count]), &mut sums[..count]),
                    );
                }
            }
            let gathered = Gathered { queries, sums: sums.as_flattened(), stride: WIDTH, start: window, len };
            self.keep(level, bases, part, &gathered);
        }
    }

    /// Weighted sums where some keys are taken out: their values may be anything, so they are not touched. What is seen mostly lies
    /// in one stretch.
    fn gather_seen<L: Level>(
        &self,
        level: L,
        (v, decoded): (&Source<'_>, &mut [[f32; WIDTH]]),
        (first, window, len): (usize, usize, usize),
        masks: &[Masks<KEYS>],
        queries: &[Query],
        (weights, rescale): (&[[f32; KEYS]; ROWS], &[f32; ROWS]),
        sums: &mut Tile<ROWS>,
    ) {
        for (index, masks) in masks.iter().enumerate() {
            // Queries that see the same keys stand side by side.
            let of = queries.iter().position(|query| query.mask == index).unwrap_or(0);
            let of = of..of + queries.iter().filter(|query| query.mask == index).count();
            let mut rescale = *rescale;
            let mut end = 0;
            while let Some(start) = (end..KEYS).find(|&key| masks.values[key] != f32::NEG_INFINITY) {
                end = (start..KEYS).find(|&key| masks.values[key] == f32::NEG_INFINITY).unwrap_or(KEYS);
                v.with(level, (first + start, end - start), (window, len), decoded, |rows| {
                    let weights = (&weights[of.clone()], start, &rescale[of.clone()]);
                    gather(level, rows, len, weights, &mut sums[of.clone()]);
                });
                rescale = [1.0; ROWS];
            }
        }
    }
}
