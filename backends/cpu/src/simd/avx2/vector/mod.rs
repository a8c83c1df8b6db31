//! Products with a single row of activations: one linear stream of weights, as few instructions a weight as can be. The layout of the
//! activations is that of [`crate::simd::vector`].

mod large;
mod plain;
mod small;

use core::arch::x86_64::*;

use entensor_components::codec::BlockCodec;

use plain::row_plain;

use super::{
    super::{
        BLOCK,
        vector::{COUNTS, Pairing, SCALES, SUMS, WeightRows},
    },
    RoundedBlock,
};

/// A dtype that has products with a single row.
pub(crate) trait Stream {
    /// The product of a row of weights with the activations, in eight partial sums. What comes next is fetched past the caches
    /// ([`super::super::Fetch::Pass`]), or else into them.
    ///
    /// # Safety
    /// `w` must point to a row of `k` weights whose blocks are each `S` blocks behind the last, with readable memory in between, `x` to `k`
    /// activations in the layout of [`crate::simd::vector`], and the CPU must have AVX2, FMA and F16C.
    unsafe fn row<const S: usize, const PASS: bool>(w: *const u8, k: usize, x: *const u8) -> __m256;
}

/// How far ahead weights are fetched. The hardware's own prefetching begins anew at every page, of which a row of a small model has a
/// fraction: on a Zen 1 server, reads of mapped weights go from 5.6 to 8.1 GB/s with it (one thread, `q4_1`).
const AHEAD_BYTES: usize = 4096;

/// Asks for the weights that come up, `BYTES` of them: every line, also where a step is not a whole number of them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fetch_ahead<const BYTES: usize, const PASS: bool>(w: *const u8) {
    for line in 0..const { BYTES.div_ceil(64) } {
        let at = w.wrapping_add(AHEAD_BYTES + line * 64).cast();
        // Prefetching reads nothing: an address outside of memory is ignored.
        if PASS {
            _mm_prefetch::<_MM_HINT_NTA>(at);
        } else {
            _mm_prefetch::<_MM_HINT_T0>(at);
        }
    }
}

/// Products of neighbouring rows, one after the other: a loop around one copy of the row's code, since calls, and finding out where a row
/// lies, would cost rows of half a kilobyte a fifth of their time.
///
/// # Safety
/// As for [`Stream::row`]; all rows must lie in `w`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn blocks<B: Stream + BlockCodec, const S: usize, const PASS: bool>(
    k: usize,
    w: WeightRows<'_>,
    x: *const u8,
    out: &mut [f32],
) {
    for (row, out) in out.iter_mut().enumerate() {
        // Rows without elements lie nowhere.
        let at = w.bytes.as_ptr().wrapping_add(w.start::<S>(row, B::BYTES));
        // SAFETY: as the caller promises.
        *out = unsafe { sum_pairs(B::row::<S, PASS>(at, k, x)) };
    }
}

/// The same for rows of plain weights.
///
/// # Safety
/// As for [`row_plain`]; all rows must lie in `w`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn plain<const W: u8>(k: usize, w: WeightRows<'_>, x: *const u8, out: &mut [f32]) {
    for (row, out) in out.iter_mut().enumerate() {
        let at = w.bytes.as_ptr().wrapping_add(row * w.stride_bytes);
        // SAFETY: as the caller promises.
        *out = unsafe { sum_pairs(row_plain::<W>(at, k, x)) };
    }
}

/// The sum of all lanes: neighbours first, then pairs of them, then the halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_pairs(v: __m256) -> f32 {
    let two = _mm256_add_ps(v, _mm256_movehdup_ps(v));
    let four = _mm256_add_ps(two, _mm256_permute_ps::<0b10>(two));
    _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(four), _mm256_extractf128_ps::<1>(four)))
}

/// Sixteen bytes for each side of a pair.
///
/// # Safety
/// Both must point to 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn both(a: *const u8, b: *const u8) -> __m256i {
    // SAFETY: the caller promises the bytes.
    unsafe {
        let low = _mm256_castsi128_si256(_mm_loadu_si128(a.cast()));
        _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(b.cast()))
    }
}

/// A quad of activations.
#[derive(Clone, Copy)]
struct Quad(*const u8);

impl Quad {
    /// # Safety
    /// The pointer must be that of a quad.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(self, at: usize) -> __m256i {
        // SAFETY: the caller promises the quad, and `at` is one of its vectors.
        unsafe { _mm256_loadu_si256(self.0.add(at).cast()) }
    }

    /// The quants of a half of a pair.
    ///
    /// # Safety
    /// As for [`Self::load`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(self, pair: usize, half: usize) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe { self.load((pair * 2 + half) * BLOCK) }
    }

    /// # Safety
    /// As for [`Self::load`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(self) -> __m256 {
        // SAFETY: as the caller promises.
        _mm256_castsi256_ps(unsafe { self.load(SCALES) })
    }

    /// # Safety
    /// As for [`Self::load`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn sums(self) -> __m256 {
        // SAFETY: as the caller promises.
        _mm256_castsi256_ps(unsafe { self.load(SUMS) })
    }

    /// # Safety
    /// As for [`Self::load`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn counts(self) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe { self.load(COUNTS) }
    }
}

/// The lower and upper four 16-bit lanes of each half, added: both pairs in one vector, `A C | B D`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fold_16(pairs: [__m256i; 2]) -> __m256i {
    _mm256_add_epi16(_mm256_unpacklo_epi64(pairs[0], pairs[1]), _mm256_unpackhi_epi64(pairs[0], pairs[1]))
}

/// The same for 32-bit lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fold_32(pairs: [__m256i; 2]) -> __m256i {
    _mm256_add_epi32(_mm256_unpacklo_epi64(pairs[0], pairs[1]), _mm256_unpackhi_epi64(pairs[0], pairs[1]))
}

/// Neighbouring 16-bit lanes, added to 32 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen(v: __m256i) -> __m256i {
    _mm256_madd_epi16(v, _mm256_set1_epi16(1))
}

/// Products of unsigned weights with activations, added up over both halves: at most 31 · 127 · 4 in a lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unsigned_pair(w: [__m256i; 2], x: [__m256i; 2]) -> __m256i {
    _mm256_add_epi16(_mm256_maddubs_epi16(w[0], x[0]), _mm256_maddubs_epi16(w[1], x[1]))
}

/// The lower four bits of bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn low_nibbles(v: __m256i) -> __m256i {
    _mm256_and_si256(v, _mm256_set1_epi8(15))
}

/// The upper four bits of bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn high_nibbles(v: __m256i) -> __m256i {
    _mm256_and_si256(_mm256_srli_epi16::<4>(v), _mm256_set1_epi8(15))
}

/// Writes rounded blocks, the first of which is block `first` of the row.
///
/// # Safety
/// `out` must point to a row that has these blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn quantize_vector(x: &[f32], first: usize, pairing: Pairing, out: *mut u8) {
    for (b, block) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
        let slot = pairing.slot(first + b);
        let RoundedBlock { quants, even, odd, sum } = super::round_block(block);
        let fours = widen(_mm256_maddubs_epi16(_mm256_set1_epi8(1), quants));
        let turns = _mm256_add_epi32(fours, _mm256_shuffle_epi32::<0b01_00_11_10>(fours));
        let (low, high) = (_mm256_castsi256_si128(turns), _mm256_extracti128_si256::<1>(turns));
        let counts = _mm_unpacklo_epi16(_mm_packs_epi32(low, low), _mm_packs_epi32(high, high));
        // SAFETY: all of this lies in the quad of the block, which the caller promises.
        unsafe {
            let at = out.add(slot.quants());
            _mm_storeu_si128(at.cast(), _mm256_castsi256_si128(quants));
            _mm_storeu_si128(at.add(BLOCK).cast(), _mm256_extracti128_si256::<1>(quants));
            _mm_storel_pd(out.add(slot.scales()).cast(), _mm_castps_pd(_mm_unpacklo_ps(even, odd)));
            _mm_storel_pd(out.add(slot.sums()).cast(), _mm_castps_pd(_mm_unpacklo_ps(_mm_setzero_ps(), sum)));
            _mm_storel_epi64(out.add(slot.counts()).cast(), counts);
        }
    }
}
