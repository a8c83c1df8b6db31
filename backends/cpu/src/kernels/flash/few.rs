//! Few queries: rows of keys and values are read once, where they lie, and the arithmetic of all queries hides behind that.

use std::ops::Range;

use entensor_components::DType;

use super::{
    FlashAttn, Gathered, load_part,
    query::{Masks, Query, take_in},
};
use crate::{
    place::Place,
    simd::{Level, PlainRows},
    tensor::{Bases, Row, Tensor},
};

/// Query rows of a plane up to which they are few.
pub(super) const ROWS: usize = 8;

/// Keys that are looked at together; sums are added up over this many before they join the rest.
const KEYS: usize = 32;

/// Rows of one plane that are read before those of the next: few, so that what lies side by side in memory is read at nearly the same time.
const TOGETHER: usize = 16;

/// Elements of rows that are looked at together.
const WIDTH: usize = 128;

/// Elements of rows.
type Line = [f32; WIDTH];

/// Rows of a plane: read where they lie if they are packed f16, else decoded.
struct Source<'a> {
    tensor: Tensor<'a>,
    plane: [usize; 2],
    in_place: bool,
}

/// Whether rows can be read where they lie.
fn is_read_in_place(place: &Place) -> bool {
    place.dtype == DType::F16 && place.is_row_packed()
}

impl<'a> Source<'a> {
    fn new(tensor: Tensor<'a>, plane: [usize; 2]) -> Self {
        Self { tensor, plane, in_place: is_read_in_place(tensor.place()) }
    }

    /// Calls `f` with columns of `count` rows from `first` on.
    #[inline(always)]
    fn with<L: Level>(
        &self,
        level: L,
        (first, count): (usize, usize),
        (start, len): (usize, usize),
        decoded: &mut [Line],
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

/// The products of rows with all queries, added to their scores from `first` on.
#[inline(always)]
fn score<L: Level>(
    level: L,
    rows: PlainRows<'_>,
    len: usize,
    queries: &[Line],
    (scores, first): (&mut [[f32; KEYS]], usize),
) {
    for (queries, scores) in queries.chunks(3).zip(scores.chunks_mut(3)) {
        match (queries, scores) {
            ([a, b, c], [x, y, z]) => {
                level.add_scores(len, rows, [&a[..], b, c], [&mut x[first..], &mut y[first..], &mut z[first..]]);
            }
            ([a, b], [x, y]) => level.add_scores(len, rows, [&a[..], b], [&mut x[first..], &mut y[first..]]),
            ([a], [x]) => level.add_scores(len, rows, [&a[..]], [&mut x[first..]]),
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
    sums: &mut [Line],
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

/// Planes that are gone through side by side at most, if they share their masks: heads of a cache mostly lie side by side, so that memory is
/// read as one stream.
const PLANES: usize = 4;

/// Query rows of all of these together, or those of one plane.
const SHARED_ROWS: usize = 12;

const _: () = assert!(SHARED_ROWS >= ROWS);

/// A plane and its queries, with what they have seen so far.
struct OfPlane<'a> {
    keys: Source<'a>,
    values: Source<'a>,
    queries: [Query; ROWS],
    mask_rows: [Option<Row>; ROWS],
    masks: usize,
    /// Elements of the queries.
    tile: &'a mut [Line],
    sums: &'a mut [Line],
}

impl FlashAttn {
    /// All queries of some planes, over a part of the keys.
    pub(super) fn few<L: Level>(&self, level: L, bases: Bases<'_>, planes: Range<usize>, part: usize) {
        let mut decoded: [Line; KEYS];
        let decoded = if is_read_in_place(&self.k) && is_read_in_place(&self.v) {
            &mut [][..]
        } else {
            decoded = [[0.0; WIDTH]; KEYS];
            &mut decoded
        };
        let one_mask = self.mask.as_ref().is_none_or(|mask| mask.shape[2] == 1);
        let at_once = if one_mask { (SHARED_ROWS / self.cut.rows.max(1)).min(PLANES) } else { 1 };
        for first in planes.clone().step_by(at_once) {
            self.side_by_side(level, bases, first..(first + at_once).min(planes.end), part, decoded);
        }
    }

    fn of_plane<'a>(&'a self, bases: Bases<'a>, plane: usize, [tile, sums]: [&'a mut [Line]; 2]) -> OfPlane<'a> {
        let (mut queries, mut mask_rows) = ([Query::NONE; ROWS], [None; ROWS]);
        let masks = self.queries(bases, (plane, 0), &mut queries[..self.cut.rows], &mut mask_rows);
        let (keys, values) = (bases.tensor(&self.k), bases.tensor(&self.v));
        OfPlane {
            keys: Source::new(keys, self.plane(plane)),
            values: Source::new(values, self.plane(plane)),
            queries,
            mask_rows,
            masks,
            tile,
            sums,
        }
    }

    /// Loads columns of the queries of a plane.
    fn load_queries<L: Level>(&self, level: L, bases: Bases<'_>, of: &mut OfPlane<'_>, (start, len): (usize, usize)) {
        let q = bases.tensor(&self.q);
        for (query, tile) in of.queries[..self.cut.rows].iter().zip(&mut *of.tile) {
            q.row([query.token, query.head, query.batch]).load(level, start, &mut tile[..len]);
        }
    }

    /// Up to [`PLANES`] planes, with memory for a tile of decoded rows, if any are.
    fn side_by_side<L: Level>(
        &self,
        level: L,
        bases: Bases<'_>,
        planes: Range<usize>,
        part: usize,
        decoded: &mut [Line],
    ) {
        let (mut tiles, mut sums) = ([[0.0; WIDTH]; SHARED_ROWS], [[0.0; WIDTH]; SHARED_ROWS]);
        let rows = self.cut.rows.max(1);
        let mut states: [Option<OfPlane<'_>>; PLANES] = [const { None }; PLANES];
        let rows = tiles.chunks_exact_mut(rows).zip(sums.chunks_exact_mut(rows));
        for ((state, plane), (tile, sums)) in states.iter_mut().zip(planes).zip(rows) {
            *state = Some(self.of_plane(bases, plane, [tile, sums]));
        }
        let keys = self.cut.keys(part, self.k.shape[1]);
        let mut of_tile = [Masks::<KEYS>::NONE; ROWS];
        let (width, columns) = (self.k.shape[0], self.v.shape[0]);
        if width <= WIDTH {
            states.iter_mut().flatten().for_each(|of| self.load_queries(level, bases, of, (0, width)));
        }
        for window in (0..columns).step_by(WIDTH) {
            let len = (columns - window).min(WIDTH);
            if window > 0 {
                for of in states.iter_mut().flatten() {
                    of.sums.fill([0.0; WIDTH]);
                    of.queries.iter_mut().for_each(Query::forget);
                }
            }
            for first in keys.clone().step_by(KEYS) {
                let n_keys = (keys.end - first).min(KEYS);
                let Some(of_tile) = self.masks(level, &states, &mut of_tile, (first, n_keys)) else { continue };
                self.take_in_keys(level, bases, &mut states, (first, n_keys), (window, len), (of_tile, decoded));
            }
            for of in states.iter().flatten() {
                let queries = &of.queries[..self.cut.rows];
                let gathered = Gathered { queries, sums: of.sums.as_flattened(), stride: WIDTH, start: window, len };
                self.keep(level, bases, part, &gathered);
            }
        }
    }

    /// The masks of a tile of keys, which all planes share; `None` if they hide all of it.
    fn masks<'m, L: Level>(
        &self,
        level: L,
        planes: &[Option<OfPlane<'_>>],
        of_tile: &'m mut [Masks<KEYS>],
        (first, n_keys): (usize, usize),
    ) -> Option<&'m [Masks<KEYS>]> {
        let of = planes.iter().flatten().next()?;
        let of_tile = &mut of_tile[..of.masks];
        level.vectorize(
            #[inline(always)]
            || {
                for (masks, row) in of_tile.iter_mut().zip(&of.mask_rows) {
                    masks.load(level, row.as_ref(), first, n_keys);
                }
            },
        );
        (!of_tile.iter().all(|masks| masks.is_out)).then_some(of_tile)
    }

    /// A tile of keys and values meets the queries of its planes.
    fn take_in_keys<L: Level>(
        &self,
        level: L,
        bases: Bases<'_>,
        planes: &mut [Option<OfPlane<'_>>],
        (first, n_keys): (usize, usize),
        (window, len): (usize, usize),
        (masks, decoded): (&[Masks<KEYS>], &mut [Line]),
    ) {
        let (count, width) = (self.cut.rows, self.k.shape[0]);
        let (mut scores, mut rescale) = ([[0.0; KEYS]; SHARED_ROWS], [1.0; SHARED_ROWS]);
        for start in (0..width).step_by(WIDTH) {
            let len = (width - start).min(WIDTH);
            if width > WIDTH {
                planes.iter_mut().flatten().for_each(|of| self.load_queries(level, bases, of, (start, len)));
            }
            for from in (0..n_keys).step_by(TOGETHER) {
                let n_keys = (n_keys - from).min(TOGETHER);
                for (of, scores) in planes.iter().flatten().zip(scores.chunks_mut(count)) {
                    of.keys.with(
                        level,
                        (first + from, n_keys),
                        (start, len),
                        decoded,
                        #[inline(always)]
                        |rows| score(level, rows, len, of.tile, (scores, from)),
                    );
                }
            }
        }
        let of_planes = planes.iter_mut().flatten().zip(scores.chunks_mut(count)).zip(rescale.chunks_mut(count));
        for ((of, scores), rescale) in of_planes {
            let queries = &mut of.queries[..count];
            level.vectorize(
                #[inline(always)]
                || take_in(level, queries, scores, masks, (self.scale, self.softcap), rescale),
            );
        }
        if masks.iter().any(|masks| masks.any_out) {
            for ((of, scores), rescale) in
                planes.iter_mut().flatten().zip(scores.chunks(count)).zip(rescale.chunks(count))
            {
                self.gather_seen(level, of, (first, window, len), (masks, decoded), (scores, rescale));
            }
            return;
        }
        for from in (0..n_keys).step_by(TOGETHER) {
            let n_keys = (n_keys - from).min(TOGETHER);
            for ((of, scores), rescale) in
                planes.iter_mut().flatten().zip(scores.chunks(count)).zip(rescale.chunks_mut(count))
            {
                let sums = &mut *of.sums;
                of.values.with(
                    level,
                    (first + from, n_keys),
                    (window, len),
                    decoded,
                    #[inline(always)]
                    |rows| gather(level, rows, len, (scores, from, rescale), sums),
                );
                rescale.fill(1.0);
            }
        }
    }

    /// Weighted sums where some keys are taken out: their values may be anything, so they are not touched. What is seen mostly lies
    /// in one stretch.
    fn gather_seen<L: Level>(
        &self,
        level: L,
        of: &mut OfPlane<'_>,
        (first, window, len): (usize, usize, usize),
        (masks, decoded): (&[Masks<KEYS>], &mut [Line]),
        (weights, rescale): (&[[f32; KEYS]], &[f32]),
    ) {
        let queries = &of.queries[..self.cut.rows];
        for (index, masks) in masks.iter().enumerate() {
            // Queries that see the same keys stand side by side.
            let same = queries.iter().position(|query| query.mask == index).unwrap_or(0);
            let same = same..same + queries.iter().filter(|query| query.mask == index).count();
            let mut rescale = &rescale[same.clone()];
            let mut end = 0;
            while let Some(start) = (end..KEYS).find(|&key| masks.values[key] != f32::NEG_INFINITY) {
                // No stretch is longer than what is read together: bits must not depend on what other queries see.
                let most = (start + 1).next_multiple_of(TOGETHER).min(KEYS);
                end = (start..most).find(|&key| masks.values[key] == f32::NEG_INFINITY).unwrap_or(most);
                of.values.with(level, (first + start, end - start), (window, len), decoded, |rows| {
                    let weights = (&weights[same.clone()], start, rescale);
                    gather(level, rows, len, weights, &mut of.sums[same.clone()]);
                });
                rescale = &[1.0; ROWS][..same.len()];
            }
        }
    }
}
