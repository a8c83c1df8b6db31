//! Many queries: keys and values become panels once for a block of queries, and all products are those of small matrices.

use entensor_components::DType;

use super::{
    COLUMNS, FlashAttn, Gathered, load_part,
    query::{Masks, Query, take_in},
};
use crate::{
    simd::{Level, PANEL},
    tensor::{Bases, Tensor},
};

/// Query rows of a block: what panels are made for once.
pub(super) const ROWS: usize = 48;

/// Query rows whose products with a panel are computed together; more sums would not fit the registers.
const ROW_TILE: usize = 6;

/// Keys that are looked at together; sums are added up over this many before they join the rest.
pub(super) const KEYS: usize = 64;

/// Elements of keys, or of values, in panels at a time.
const WIDTH: usize = 128;

/// A tile of keys turned, or of values, in panels.
struct Panels {
    /// Of keys a panel is [`PANEL`] keys, element by element; of values [`PANEL`] elements, key by key.
    lines: [[f32; PANEL]; KEYS * WIDTH / PANEL],
    /// Decoded rows on their way.
    rows: [f32; PANEL * WIDTH],
}

/// Rows of a plane, decoded side by side from column `start` on.
#[inline(always)]
fn decode<L: Level>(
    level: L,
    from: &Tensor<'_>,
    (first, count, plane): (usize, usize, [usize; 2]),
    (start, len): (usize, usize),
    rows: &mut [f32],
) {
    let place = from.place();
    for (row, to) in rows.chunks_exact_mut(WIDTH).take(count).enumerate() {
        let at = [first + row, plane[0], plane[1]];
        if place.dtype == DType::F16 && place.is_row_packed() {
            // SAFETY: no step writes an operand while it runs, and the result lies elsewhere.
            let row = unsafe { from.row_bytes(at) };
            level.decode_f16(&row[start * 2..(start + len) * 2], &mut to[..len]);
        } else {
            load_part(level, &from.row(at), place.dtype, start, &mut to[..len]);
        }
    }
}

impl Panels {
    const EMPTY: Self = Self { lines: [[0.0; PANEL]; KEYS * WIDTH / PANEL], rows: [0.0; PANEL * WIDTH] };

    /// Columns of up to [`KEYS`] keys.
    #[inline(always)]
    fn turn_keys<L: Level>(
        &mut self,
        level: L,
        keys: &Tensor<'_>,
        (first, count, plane): (usize, usize, [usize; 2]),
        columns: (usize, usize),
    ) {
        for (offset, panel) in (0..count).step_by(PANEL).zip(self.lines.chunks_exact_mut(WIDTH)) {
            let keys_of_panel = (count - offset).min(PANEL);
            self.rows[keys_of_panel * WIDTH..].fill(0.0);
            decode(level, keys, (first + offset, keys_of_panel, plane), columns, &mut self.rows);
            level.turn_into_panel(&self.rows, WIDTH, &mut panel[..columns.1]);
        }
    }

    /// Columns of up to [`KEYS`] values. What a panel has beyond the columns is zeros.
    #[inline(always)]
    fn copy_values<L: Level>(
        &mut self,
        level: L,
        values: &Tensor<'_>,
        (first, count, plane): (usize, usize, [usize; 2]),
        columns: (usize, usize),
    ) {
        for offset in (0..count).step_by(PANEL) {
            let rows = (count - offset).min(PANEL);
            decode(level, values, (first + offset, rows, plane), columns, &mut self.rows);
            for (row, from) in self.rows.chunks_exact_mut(WIDTH).take(rows).enumerate() {
                from[columns.1..].fill(0.0);
                for (panel, sixteen) in from.as_chunks::<PANEL>().0.iter().enumerate() {
                    if panel * PANEL < columns.1 {
                        self.lines[panel * KEYS + offset + row] = *sixteen;
                    }
                }
            }
        }
    }

    /// Whether all of the values are finite.
    #[inline(always)]
    fn are_finite(&self, count: usize, len: usize) -> bool {
        let mut largest = [0_u32; PANEL];
        for panel in self.lines.chunks_exact(KEYS).take(len.div_ceil(PANEL)) {
            for line in &panel[..count] {
                for (largest, v) in largest.iter_mut().zip(line) {
                    *largest = (*largest).max(v.to_bits() & 0x7fff_ffff);
                }
            }
        }
        largest.iter().all(|&bits| bits < f32::INFINITY.to_bits())
    }
}

/// Products of rows with panels, added to sums: rows are `strides[0]` apart, those of sums `strides[1]`.
#[inline(always)]
fn add_products<'a, L: Level>(
    level: L,
    rows: usize,
    a: &[f32],
    panels: impl Iterator<Item = &'a [[f32; PANEL]]>,
    sums: &mut [f32],
    strides: [usize; 2],
) {
    for (index, panel) in panels.enumerate() {
        // Rows beyond the last are zeros, up to a whole tile.
        for row in (0..rows).step_by(ROW_TILE) {
            let (a, sums) = (&a[row * strides[0]..], &mut sums[row * strides[1] + index * PANEL..]);
            level.add_panel::<ROW_TILE>(a, panel, sums, strides);
        }
    }
}

/// Weighted sums of the values that a query sees, where others are not finite.
#[inline(never)]
fn add_seen(weights: &[f32], masks: &Masks<KEYS>, panels: &Panels, sums: &mut [f32]) {
    for (key, weight) in weights.iter().enumerate().filter(|&(key, _)| masks.values[key] != f32::NEG_INFINITY) {
        for (column, sum) in sums.iter_mut().enumerate() {
            *sum += weight * panels.lines[column / PANEL * KEYS + key][column % PANEL];
        }
    }
}

impl FlashAttn {
    /// A block of the queries of a plane, over a part of the keys.
    pub(super) fn block<L: Level>(&self, level: L, bases: Bases<'_>, plane: usize, block: usize, part: usize) {
        let (q, k, v) = (bases.tensor(&self.q), bases.tensor(&self.k), bases.tensor(&self.v));
        let (first_row, kv_plane) = (block * ROWS, self.plane(plane));
        let count = (self.cut.rows - first_row).min(ROWS);
        let (mut queries, mut mask_rows) = ([Query::NONE; ROWS], [None; ROWS]);
        let masks = self.queries(bases, (plane, first_row), &mut queries[..count], &mut mask_rows);
        let queries = &mut queries[..count];
        let (width, columns, keys) = (self.k.shape[0], self.v.shape[0], self.cut.keys(part, self.k.shape[1]));
        let load_queries = |queries: &[Query], start: usize, len: usize, tile: &mut [f32]| {
            for (query, to) in queries.iter().zip(tile.chunks_exact_mut(WIDTH)) {
                q.row([query.token, query.head, query.batch]).load(level, start, &mut to[..len]);
            }
        };
        let mut tile = [0.0; ROWS * WIDTH];
        let mut panels = Panels::EMPTY;
        let mut sums = [0.0; ROWS * COLUMNS];
        let mut of_tile = [Masks::<KEYS>::NONE; ROWS];
        if width <= WIDTH {
            load_queries(queries, 0, width, &mut tile);
        }
        for window in (0..columns).step_by(COLUMNS) {
            let window_len = (columns - window).min(COLUMNS);
            let stride = window_len.next_multiple_of(PANEL);
            if window > 0 {
                sums.fill(0.0);
                queries.iter_mut().for_each(Query::forget);
            }
            for first in keys.clone().step_by(KEYS) {
                let n_keys = (keys.end - first).min(KEYS);
                level.vectorize(
                    #[inline(always)]
                    || {
                        for (masks, row) in of_tile.iter_mut().zip(&mask_rows[..masks]) {
                            masks.load(level, row.as_ref(), first, n_keys);
                        }
                    },
                );
                let of_tile = &of_tile[..masks];
                // Keys that no query sees, such as those to come, are neither multiplied nor touched where they are the last of a tile.
                let n_keys = of_tile.iter().map(|masks| masks.seen).max().unwrap_or(0).min(n_keys);
                if n_keys == 0 {
                    continue;
                }
                let mut scores = [0.0; ROWS * KEYS];
                for start in (0..width).step_by(WIDTH) {
                    let len = (width - start).min(WIDTH);
                    if width > WIDTH {
                        load_queries(queries, start, len, &mut tile);
                    }
                    level.vectorize(
                        #[inline(always)]
                        || {
                            panels.turn_keys(level, &k, (first, n_keys, kv_plane), (start, len));
                            let turned = panels.lines.chunks_exact(WIDTH).map(|panel| &panel[..len]);
                            let turned = turned.take(n_keys.div_ceil(PANEL));
                            add_products(level, count, &tile, turned, &mut scores, [WIDTH, KEYS]);
                        },
                    );
                }
                level.vectorize(
                    #[inline(always)]
                    || self.weigh(level, queries, of_tile, &mut scores, (&mut sums, stride)),
                );
                let any_out = of_tile.iter().any(|masks| masks.any_out);
                for start in (0..window_len).step_by(WIDTH) {
                    let len = (window_len - start).min(WIDTH);
                    level.vectorize(
                        #[inline(always)]
                        || {
                            panels.copy_values(level, &v, (first, n_keys, kv_plane), (window + start, len));
                            if any_out && !panels.are_finite(n_keys, len) {
                                for (row, query) in queries.iter().enumerate() {
                                    let weights = &scores[row * KEYS..][..KEYS];
                                    let sums = &mut sums[row * stride + start..][..len];
                                    add_seen(weights, &of_tile[query.mask], &panels, sums);
                                }
                                return;
                            }
                            let values = panels.lines.chunks_exact(KEYS).map(|panel| &panel[..n_keys]);
                            let values = values.take(len.div_ceil(PANEL));
                            add_products(level, count, &scores, values, &mut sums[start..], [KEYS, stride]);
                        },
                    );
                }
            }
            let gathered = Gathered { queries, sums: &sums, stride, start: window, len: window_len };
            self.keep(level, bases, part, &gathered);
        }
    }

    /// Turns a tile of scores into weights, and brings what was gathered before to the new largest scores.
    #[inline(always)]
    fn weigh<L: Level>(
        &self,
        level: L,
        queries: &mut [Query],
        masks: &[Masks<KEYS>],
        scores: &mut [f32],
        (sums, stride): (&mut [f32], usize),
    ) {
        let mut rescale = [1.0; ROWS];
        take_in(level, queries, scores.as_chunks_mut::<KEYS>().0, masks, (self.scale, self.softcap), &mut rescale);
        for (rescale, sums) in rescale.iter().zip(sums.chunks_exact_mut(stride)).take(queries.len()) {
            if *rescale != 1.0 {
                sums.iter_mut().for_each(|sum| *sum *= rescale);
            }
        }
    }
}
