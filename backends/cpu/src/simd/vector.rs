//! Activations of products with a single row, as their kernels want them.
//!
//! Such a product reads every weight once, so what counts is how few instructions a weight costs. Blocks are taken four at a
//! time, a *quad*: two pairs, each of which shares a vector, one block in its lower half and one in its upper. The halves of
//! a block then meet in the same lanes, and all four blocks end up in one vector of sums that is scaled at once:
//!
//! ```text
//! quants   A 0–15 | B 0–15    A 16–31 | B 16–31    C 0–15 | D 0–15    C 16–31 | D 16–31     32 bytes each
//! scales   A even  A odd  C even  C odd | B even  B odd  D even  D odd                      f32
//! sums     0  A  0  C | 0  B  0  D                                                          f32
//! counts   A: even 0–15, even 16–31, odd 0–15, odd 16–31; C; B; D                           i16: quants added up
//! ```
//!
//! Which blocks make a pair follows from how weights are packed: neighbours where blocks are independent, and blocks four
//! apart in those of 256 elements, where these share bytes. Blocks that are missing at the end are zeros.

use super::{BLOCK, FOUR, spread_bytes};

/// Bytes of a quad.
pub(crate) const QUAD_BYTES: usize = 224;

/// Blocks of a quad.
pub(crate) const QUAD: usize = 4;

/// Where scales begin in a quad.
pub(super) const SCALES: usize = QUAD * BLOCK;
/// Where sums begin in a quad.
pub(super) const SUMS: usize = SCALES + 32;
/// Where counts begin in a quad.
pub(super) const COUNTS: usize = SUMS + 32;

/// Bytes of a row of `k` activations in this layout.
pub(crate) const fn vector_bytes(k: usize) -> usize {
    k.div_ceil(QUAD * BLOCK) * QUAD_BYTES
}

/// Neighbouring rows of weights, as such products read them.
#[derive(Clone, Copy)]
pub(crate) struct WeightRows<'a> {
    /// From the first block of the first row on.
    pub(crate) bytes: &'a [u8],
    /// From a row to the next, on the average of those that lie side by side.
    pub(crate) stride_bytes: usize,
}

impl<'a> WeightRows<'a> {
    /// Where a row begins, if `S` at a time lie side by side and the first row is the first of its side.
    #[inline(always)]
    pub(super) fn start<const S: usize>(self, row: usize, block_bytes: usize) -> usize {
        let beside = row % S;
        (row - beside) * self.stride_bytes + beside * block_bytes
    }

    /// The bytes of a row, of which every `S`th block is meant.
    ///
    /// # Panics
    /// If some of them lie outside.
    #[inline(always)]
    pub(super) fn row<const S: usize>(self, row: usize, blocks: usize, block_bytes: usize) -> &'a [u8] {
        if blocks == 0 {
            return &[];
        }
        &self.bytes[self.start::<S>(row, block_bytes)..][..spread_bytes(blocks, S, block_bytes)]
    }

    /// Panics unless so many rows lie inside.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn check<const S: usize>(self, rows: usize, blocks: usize, block_bytes: usize) {
        // Then no row ends behind the last one.
        assert!(S == 1 || blocks == 0 || self.stride_bytes >= block_bytes);
        if let Some(last) = rows.checked_sub(1) {
            assert!(last.checked_mul(self.stride_bytes).is_some());
            self.row::<S>(last, blocks, block_bytes);
        }
    }
}

/// How far apart the blocks of a pair are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pairing {
    /// Next to each other.
    Neighbours,
    /// Four apart: the first half of a block of 256 with its second.
    Halves,
}

impl Pairing {
    /// For weights whose blocks have so many elements.
    pub(crate) const fn of(block_elements: usize) -> Self {
        if block_elements == BLOCK { Self::Neighbours } else { Self::Halves }
    }

    /// Bytes of a row that has so many blocks, as far as they are written.
    pub(super) fn bytes_up_to(self, blocks: usize) -> usize {
        let whole = if self == Self::Neighbours { blocks } else { blocks.next_multiple_of(8) };
        vector_bytes(whole * BLOCK)
    }

    /// Where a block lies.
    #[inline(always)]
    pub(super) fn slot(self, block: usize) -> Slot {
        let distance = if self == Self::Neighbours { 1 } else { 4 };
        let (group, in_group) = (block / (2 * distance), block % (2 * distance));
        let pair = group * distance + in_group % distance;
        Slot { quad: pair / 2 * QUAD_BYTES, pair: pair % 2, side: in_group / distance }
    }
}

/// Where a block lies: in which quad, in which of its pairs, on which side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    quad: usize,
    pair: usize,
    side: usize,
}

impl Slot {
    /// The quants of the first half, 16 bytes; those of the second are [`BLOCK`] bytes behind.
    #[inline(always)]
    pub(super) fn quants(self) -> usize {
        self.quad + self.pair * 2 * BLOCK + self.side * (BLOCK / 2)
    }

    #[inline(always)]
    fn lane(self) -> usize {
        (self.side * 2 + self.pair) * 8
    }

    /// The scales of even and odd fours.
    #[inline(always)]
    pub(super) fn scales(self) -> usize {
        self.quad + SCALES + self.lane()
    }

    /// A zero, and the sum of what the quants stand for.
    #[inline(always)]
    pub(super) fn sums(self) -> usize {
        self.quad + SUMS + self.lane()
    }

    /// The sums of quants of even fours in the first and second half, and those of odd fours.
    #[inline(always)]
    pub(super) fn counts(self) -> usize {
        self.quad + COUNTS + self.lane()
    }
}

/// The sums of quants that a block keeps.
pub(super) fn count(quants: &[u8; BLOCK]) -> [i16; 4] {
    let mut counts = [0; 4];
    for (i, q) in quants.iter().enumerate() {
        counts[i / FOUR % 2 * 2 + i / (BLOCK / 2)] += i16::from(q.cast_signed());
    }
    counts
}

#[cfg(test)]
mod tests;
