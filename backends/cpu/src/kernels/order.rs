//! Indices of rows in the order of their elements.
//!
//! Elements are sorted as keys: the rank of the value in the upper half, its index in the lower. No two keys are equal, so
//! that a sort that is not stable (and needs no memory) gives the one order that the op table asks for.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use entensor_components::SortOrder;

use super::{
    Grid,
    sums::{LANES, whole},
};
use crate::{
    place::Place,
    simd::Level,
    tensor::{Bases, Row, TILE, Tensor, work_row},
};

/// f32 elements of a key in work memory.
pub(crate) const KEY_WIDTH: usize = 2;

/// A number's place among all numbers: ranks compare as the numbers do, -0 as 0, NaN above everything.
#[inline(always)]
fn rank(v: f32) -> u32 {
    let bits = if v == 0.0 { 0 } else { v.to_bits() };
    // Negative numbers are turned round, and put below the positive ones.
    let flipped = (bits.cast_signed() >> 31).cast_unsigned() | 1 << 31;
    if v.is_nan() { u32::MAX } else { bits ^ flipped }
}

/// As [`rank`] with the order turned round; NaN stays above everything.
#[inline(always)]
fn rank_from_largest(v: f32) -> u32 {
    if v.is_nan() { u32::MAX } else { !rank(v) }
}

#[inline(always)]
fn key(rank: u32, index: usize) -> u64 {
    u64::from(rank) << 32 | index as u64
}

/// The index in a key. Rows have at most 2^31 elements by the op table's rule.
#[inline(always)]
fn index(key: u64) -> i32 {
    (key as u32).cast_signed()
}

/// The keys that a chunk works on.
///
/// # Safety
/// As for [`work_row`].
#[inline(always)]
unsafe fn chunk_keys<'a>(keys: &Tensor<'a>, chunk: usize) -> &'a mut [u64] {
    // SAFETY: the caller's promise is passed on. Regions of work memory begin at cache lines, and rows are whole keys.
    bytemuck::cast_slice_mut(unsafe { work_row(keys, [chunk, 0, 0]) })
}

/// Sorts each row.
#[derive(Debug)]
pub(crate) struct Argsort {
    pub(crate) order: SortOrder,
    pub(crate) x: Place,
    pub(crate) out: Place,
    /// Work memory: a row of keys for each chunk.
    pub(crate) keys: Place,
    pub(crate) grid: Grid,
}

#[inline(always)]
fn fill<L: Level>(level: L, x: &Row, keys: &mut [u64], rank: impl Fn(f32) -> u32) {
    let mut tile = [0.0; TILE];
    for (start, len) in whole(x.len()).tiles() {
        x.load(level, start, &mut tile[..len]);
        for (i, (key_of, &v)) in keys[start..].iter_mut().zip(&tile[..len]).enumerate() {
            *key_of = key(rank(v), start + i);
        }
    }
}

impl Argsort {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        // SAFETY: the row of work memory has this chunk's number.
        let keys = unsafe { chunk_keys(&bases.tensor(&self.keys), chunk) };
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            match self.order {
                SortOrder::Ascending => fill(level, &x.row(at), keys, rank),
                SortOrder::Descending => fill(level, &x.row(at), keys, rank_from_largest),
            }
            keys.sort_unstable();
            // SAFETY: the row belongs to this chunk.
            let out = unsafe { out.row_mut(at) };
            keys.iter().enumerate().for_each(|(i, &key)| out.set_integer(i, index(key)));
        }
    }
}

/// Candidates that a chunk of [`TopK`] keeps at a time: a multiple of `k`, so that they are rarely sifted, and no more than
/// there are elements.
pub(crate) fn top_k_candidates(k: usize, width: usize) -> usize {
    k.saturating_mul(2).max(TILE).min(width)
}

/// The largest elements of each row.
#[derive(Debug)]
pub(crate) struct TopK {
    /// At least 1, and no more than a row has.
    pub(crate) k: usize,
    pub(crate) x: Place,
    pub(crate) out: Place,
    /// Work memory: a row of [`top_k_candidates`] keys for each chunk.
    pub(crate) keys: Place,
    pub(crate) grid: Grid,
}

impl TopK {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        // SAFETY: the row of work memory has this chunk's number.
        let keys = unsafe { chunk_keys(&bases.tensor(&self.keys), chunk) };
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            let found = self.candidates(level, &x.row(at), keys);
            found.sort_unstable();
            // SAFETY: the row belongs to this chunk.
            let out = unsafe { out.row_mut(at) };
            found.iter().enumerate().for_each(|(i, &key)| out.set_integer(i, index(key)));
        }
    }

    /// The row's first `k` keys, in any order.
    #[inline(always)]
    fn candidates<'a, L: Level>(&self, level: L, x: &Row, keys: &'a mut [u64]) -> &'a mut [u64] {
        let (mut tile, mut found) = ([0.0; TILE], 0);
        // Keys from here on have `k` before them.
        let mut bar = u64::MAX;
        for (start, len) in whole(x.len()).tiles() {
            x.load(level, start, &mut tile[..len]);
            // Most tiles of a long row have nothing to add. What equals the bar comes behind it.
            if u64::from(rank_from_largest(largest(&mut tile, len))) >= bar >> 32 {
                continue;
            }
            for (i, &v) in tile[..len].iter().enumerate() {
                let key = key(rank_from_largest(v), start + i);
                if key < bar {
                    keys[found] = key;
                    found += 1;
                    if found == keys.len() {
                        bar = *keys.select_nth_unstable(self.k - 1).1;
                        found = self.k;
                    }
                }
            }
        }
        if found > self.k {
            keys[..found].select_nth_unstable(self.k - 1);
        }
        &mut keys[..self.k]
    }
}

/// The largest element of each row.
#[derive(Debug)]
pub(crate) struct Argmax {
    pub(crate) x: Place,
    pub(crate) out: Place,
    /// A "row" is an element of the result.
    pub(crate) grid: Grid,
}

impl Argmax {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        for piece in self.grid.chunk(chunk) {
            let at = self.x.row_at(piece.row);
            // An empty row has no largest element, and its tensor no rows to look at.
            let largest = if self.x.is_empty() { None } else { first_largest(level, &x.row(at)) };
            // SAFETY: the element belongs to this chunk, and nothing else of the row is touched.
            let out = unsafe { out.row_mut([at[1], at[2], 0]) };
            out.set_integer(at[0], largest.map_or(-1, |index| (index as u32).cast_signed()));
        }
    }
}

/// The largest number of a tile, minus infinity if there is none. Whatever lies behind `len` is overwritten.
#[inline(always)]
fn largest(tile: &mut [f32; TILE], len: usize) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let end = len.next_multiple_of(LANES);
    tile[len..end].fill(f32::NEG_INFINITY);
    for eight in tile[..end].as_chunks::<LANES>().0 {
        for (lane, &v) in lanes.iter_mut().zip(eight) {
            *lane = if v > *lane { v } else { *lane };
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// Where a row's largest number stands first.
#[inline(always)]
fn first_largest<L: Level>(level: L, x: &Row) -> Option<usize> {
    let (mut tile, mut best) = ([0.0; TILE], f32::NEG_INFINITY);
    let mut found = None;
    for (start, len) in whole(x.len()).tiles() {
        x.load(level, start, &mut tile[..len]);
        let largest = largest(&mut tile, len);
        // Without a number so far, minus infinity will do; a tile without one has no place for it.
        if (largest > best || found.is_none())
            && let Some(index) = tile[..len].iter().position(|&v| v == largest)
        {
            (best, found) = (largest, Some(start + index));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_compare_as_numbers_do() {
        let numbers = [
            f32::NEG_INFINITY,
            f32::MIN,
            -1.0,
            -f32::MIN_POSITIVE,
            -f32::from_bits(1),
            0.0,
            f32::from_bits(1),
            1.0,
            f32::MAX,
            f32::INFINITY,
        ];
        for pair in numbers.windows(2) {
            assert!(
                rank(pair[0]) < rank(pair[1]) && rank_from_largest(pair[0]) > rank_from_largest(pair[1]),
                "{pair:?}"
            );
        }
        assert_eq!((rank(-0.0), rank_from_largest(-0.0)), (rank(0.0), rank_from_largest(0.0)));
        for nan in [f32::NAN, -f32::NAN] {
            assert!(rank(nan) > rank(f32::INFINITY) && rank_from_largest(nan) > rank_from_largest(f32::NEG_INFINITY));
        }
    }
}
