//! Dtypes of blocks of 256, whose eight parts are two quads: parts `i` and `4 + i` make pair `i`.

use core::arch::x86_64::*;

use entensor_components::codec::{BlockCodec, Q2K, Q3K, Q4K, Q5K, Q6K};

use super::{
    super::{
        super::QUAD_BYTES,
        blocks::{all_f16, q3_k_scales, six_bit_scales},
    },
    Quad, Stream, both, fetch_ahead, fold_16, fold_32, high_nibbles, low_nibbles, unsigned_pair, widen,
};

/// The partial sums of a row: products, and what is taken off.
#[derive(Clone, Copy)]
struct Sums {
    products: __m256,
    taken_off: __m256,
}

/// Blocks of 256.
trait Large: BlockCodec {
    /// Adds the products of a block.
    ///
    /// # Safety
    /// `w` must point to a block, `x` must be its quads of activations, and the CPU must have AVX2, FMA and F16C.
    unsafe fn add(w: *const u8, x: [Quad; 2], sums: Sums) -> Sums;
}

/// # Safety
/// As for [`Stream::row`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn row<B: Large, const S: usize, const PASS: bool>(w: *const u8, k: usize, x: *const u8) -> __m256 {
    let mut sums = Sums { products: _mm256_setzero_ps(), taken_off: _mm256_setzero_ps() };
    for block in 0..k / B::ELEMENTS {
        let w = w.wrapping_add(block * S * B::BYTES);
        match B::BYTES {
            ..104 => fetch_ahead::<64, PASS>(w),
            104..150 => fetch_ahead::<136, PASS>(w),
            150..200 => fetch_ahead::<176, PASS>(w),
            _ => fetch_ahead::<216, PASS>(w),
        }
        // SAFETY: the block lies in the row, and its quads in the activations.
        sums = unsafe {
            let first = x.add(block * 2 * QUAD_BYTES);
            B::add(w, [Quad(first), Quad(first.add(QUAD_BYTES))], sums)
        };
    }
    _mm256_sub_ps(sums.products, sums.taken_off)
}

/// Products of `q4_K`, and of `q5_K` with its fifth bits before the nibbles.
///
/// # Safety
/// As for [`Large::add`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_minimum<const FIFTH: bool>(w: *const u8, x: [Quad; 2], sums: Sums) -> Sums {
    // SAFETY: the caller promises a block, and everything read lies in it.
    unsafe {
        let worth = _mm256_cvtph_ps(_mm_set1_epi32(w.cast::<i32>().read_unaligned()));
        let (scales, minima) = six_bit_scales(w);
        let by_turns =
            _mm_unpacklo_epi8(_mm_cvtsi64_si128(scales.cast_signed()), _mm_cvtsi64_si128(minima.cast_signed()));
        // Parts 0 1 4 5 2 3 6 7: those of the first quad first.
        let heads = _mm_shuffle_epi32::<0b11_01_10_00>(by_turns);
        let (nibbles, fifth) = if FIFTH {
            (w.add(48), [split(w.add(16)), split(w.add(32))])
        } else {
            (w.add(16), [_mm256_setzero_si256(); 2])
        };
        let sums = add_minimum_quad::<FIFTH, 0>(nibbles, fifth, heads, worth, x[0], sums);
        add_minimum_quad::<FIFTH, 1>(nibbles.add(32), fifth, _mm_srli_si128::<8>(heads), worth, x[1], sums)
    }
}

/// A quad of [`add_minimum`]: the nibbles of its parts, the fifth bits of all, its scales and minima by turns, and what those are worth.
///
/// # Safety
/// `nibbles` must point to two runs of 32 bytes, 64 apart, and `x` must be a quad of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_minimum_quad<const FIFTH: bool, const QUAD: usize>(
    nibbles: *const u8,
    fifth: [__m256i; 2],
    heads: __m128i,
    worth: __m256,
    x: Quad,
    sums: Sums,
) -> Sums {
    // SAFETY: as the caller promises.
    let packed = unsafe { [both(nibbles, nibbles.add(64)), both(nibbles.add(16), nibbles.add(80))] };
    let mut low = [low_nibbles(packed[0]), low_nibbles(packed[1])];
    let mut high = [high_nibbles(packed[0]), high_nibbles(packed[1])];
    if FIFTH {
        for half in 0..2 {
            let (first, second) = if QUAD == 0 {
                (_mm256_slli_epi16::<4>(fifth[half]), _mm256_slli_epi16::<3>(fifth[half]))
            } else {
                (_mm256_slli_epi16::<2>(fifth[half]), _mm256_slli_epi16::<1>(fifth[half]))
            };
            let sixteen = _mm256_set1_epi8(16);
            low[half] = _mm256_or_si256(low[half], _mm256_and_si256(first, sixteen));
            high[half] = _mm256_or_si256(high[half], _mm256_and_si256(second, sixteen));
        }
    }
    // SAFETY: as the caller promises.
    unsafe {
        let first = unsigned_pair(low, [x.quants(0, 0), x.quants(0, 1)]);
        let second = unsigned_pair(high, [x.quants(1, 0), x.quants(1, 1)]);
        // At most 31 · 127 · 8, so 16 bits are enough.
        let dots = _mm256_cvtepi32_ps(widen(fold_16([first, second])));
        let heads = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(heads)), worth);
        let scales = _mm256_mul_ps(_mm256_moveldup_ps(heads), x.scales());
        Sums {
            products: _mm256_fmadd_ps(dots, scales, sums.products),
            taken_off: _mm256_fmadd_ps(heads, x.sums(), sums.taken_off),
        }
    }
}

/// Sixteen bytes of one bit a part: as they are for the lower side of pairs, shifted to the bits of parts 4–7 for the upper.
///
/// # Safety
/// `at` must point to 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn split(at: *const u8) -> __m256i {
    // SAFETY: as the caller promises.
    let bits = unsafe { _mm_loadu_si128(at.cast()) };
    _mm256_set_m128i(_mm_srli_epi16::<4>(bits), bits)
}

/// A 16-bit lane of each half, in all lanes of that half.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn spread_lane<const LANE: i16>(v: __m256i) -> __m256i {
    _mm256_shuffle_epi8(v, _mm256_set1_epi16(const { (2 * LANE) | ((2 * LANE + 1) << 8) }))
}

/// Dot products of a quad whose halves of parts have scales of their own: unsigned quants of up to 6 bits by pair and half. `scales` are
/// those of the quad in the lower four 16-bit lanes of each half.
///
/// # Safety
/// `x` must be a quad of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scaled_dots(quants: [[__m256i; 2]; 2], scales: __m256i, x: Quad) -> __m256i {
    // SAFETY: as the caller promises.
    unsafe {
        let first = _mm256_madd_epi16(_mm256_maddubs_epi16(quants[0][0], x.quants(0, 0)), spread_lane::<0>(scales));
        let second = _mm256_madd_epi16(_mm256_maddubs_epi16(quants[0][1], x.quants(0, 1)), spread_lane::<1>(scales));
        let third = _mm256_madd_epi16(_mm256_maddubs_epi16(quants[1][0], x.quants(1, 0)), spread_lane::<2>(scales));
        let fourth = _mm256_madd_epi16(_mm256_maddubs_epi16(quants[1][1], x.quants(1, 1)), spread_lane::<3>(scales));
        fold_32([_mm256_add_epi32(first, second), _mm256_add_epi32(third, fourth)])
    }
}

/// The quants of activations, added up with such scales.
///
/// # Safety
/// `x` must be a quad of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scaled_counts(scales: __m256i, x: Quad) -> __m256i {
    // SAFETY: as the caller promises.
    _mm256_madd_epi16(_mm256_shuffle_epi32::<0b01_01_00_00>(scales), unsafe { x.counts() })
}

/// The scales of the second quad, where those of the first are wanted.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn second_quad(scales: __m256i) -> __m256i {
    _mm256_srli_si256::<8>(scales)
}

/// Bytes shifted to the left; to the right, if `BY` is negative.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shifted<const BY: i32>(v: __m256i) -> __m256i {
    match BY {
        -6 => _mm256_srli_epi16::<6>(v),
        -4 => _mm256_srli_epi16::<4>(v),
        -2 => _mm256_srli_epi16::<2>(v),
        -1 => _mm256_srli_epi16::<1>(v),
        0 => v,
        1 => _mm256_slli_epi16::<1>(v),
        2 => _mm256_slli_epi16::<2>(v),
        4 => _mm256_slli_epi16::<4>(v),
        _ => unreachable!("no other shift is asked for"),
    }
}

/// Some bits of shifted bytes, in both halves of a pair.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bits<const BY: i32>(v: [__m256i; 2], mask: i8) -> [__m256i; 2] {
    let mask = _mm256_set1_epi8(mask);
    [_mm256_and_si256(shifted::<BY>(v[0]), mask), _mm256_and_si256(shifted::<BY>(v[1]), mask)]
}

/// Lower and upper bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn join(low: [__m256i; 2], high: [__m256i; 2]) -> [__m256i; 2] {
    [_mm256_or_si256(low[0], high[0]), _mm256_or_si256(low[1], high[1])]
}

/// Adds the products of a quad of unsigned quants, from each of which `2^BIAS` is taken off.
///
/// # Safety
/// `x` must be a quad of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_biased<const BIAS: i32>(
    quants: [[__m256i; 2]; 2],
    scales: __m256i,
    worth: __m256,
    x: Quad,
    sums: Sums,
) -> Sums {
    // SAFETY: as the caller promises.
    unsafe {
        let bias = _mm256_slli_epi32::<BIAS>(scaled_counts(scales, x));
        let dots = _mm256_cvtepi32_ps(_mm256_sub_epi32(scaled_dots(quants, scales, x), bias));
        Sums { products: _mm256_fmadd_ps(dots, _mm256_mul_ps(worth, x.scales()), sums.products), ..sums }
    }
}

/// # Safety
/// As for [`Large::add`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_q6_k(w: *const u8, x: [Quad; 2], sums: Sums) -> Sums {
    // SAFETY: the caller promises a block, and everything read lies in it.
    unsafe {
        let scales = _mm256_cvtepi8_epi16(_mm_loadu_si128(w.add(192).cast()));
        let worth = all_f16(w.add(208));
        // Parts 0 and 2 share bytes of lower bits, and 1 and 3; all four those of the upper bits.
        let even = [both(w, w.add(64)), both(w.add(16), w.add(80))];
        let odd = [both(w.add(32), w.add(96)), both(w.add(48), w.add(112))];
        let upper = [both(w.add(128), w.add(160)), both(w.add(144), w.add(176))];
        let quants =
            [join(bits::<0>(even, 15), bits::<4>(upper, 0x30)), join(bits::<0>(odd, 15), bits::<2>(upper, 0x30))];
        let sums = add_biased::<5>(quants, scales, worth, x[0], sums);
        let quants =
            [join(bits::<-4>(even, 15), bits::<0>(upper, 0x30)), join(bits::<-4>(odd, 15), bits::<-2>(upper, 0x30))];
        add_biased::<5>(quants, second_quad(scales), worth, x[1], sums)
    }
}

/// # Safety
/// As for [`Large::add`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_q3_k(w: *const u8, x: [Quad; 2], sums: Sums) -> Sums {
    // SAFETY: the caller promises a block, and everything read lies in it.
    unsafe {
        let scales = _mm256_cvtepi8_epi16(q3_k_scales(w));
        let worth = all_f16(w.add(108));
        let third = [split(w), split(w.add(16))];
        let packed = [both(w.add(32), w.add(64)), both(w.add(48), w.add(80))];
        let quants =
            [join(bits::<0>(packed, 3), bits::<2>(third, 4)), join(bits::<-2>(packed, 3), bits::<1>(third, 4))];
        let sums = add_biased::<2>(quants, scales, worth, x[0], sums);
        let quants =
            [join(bits::<-4>(packed, 3), bits::<0>(third, 4)), join(bits::<-6>(packed, 3), bits::<-1>(third, 4))];
        add_biased::<2>(quants, second_quad(scales), worth, x[1], sums)
    }
}

/// # Safety
/// As for [`Large::add`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_q2_k(w: *const u8, x: [Quad; 2], sums: Sums) -> Sums {
    // SAFETY: the caller promises a block, and everything read lies in it.
    unsafe {
        let (nibbles, low) = (_mm_loadu_si128(w.cast()), _mm_set1_epi8(15));
        let scales = _mm256_cvtepu8_epi16(_mm_and_si128(nibbles, low));
        let minima = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16::<4>(nibbles), low));
        let worth = [all_f16(w.add(80)), all_f16(w.add(82))];
        let packed = [both(w.add(16), w.add(48)), both(w.add(32), w.add(64))];
        let quants = [bits::<0>(packed, 3), bits::<-2>(packed, 3)];
        let sums = add_with_minima(quants, [scales, minima], worth, x[0], sums);
        let quants = [bits::<-4>(packed, 3), bits::<-6>(packed, 3)];
        add_with_minima(quants, [second_quad(scales), second_quad(minima)], worth, x[1], sums)
    }
}

/// Adds the products of a quad whose halves of parts have scales and minima.
///
/// # Safety
/// `x` must be a quad of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_with_minima(
    quants: [[__m256i; 2]; 2],
    [scales, minima]: [__m256i; 2],
    worth: [__m256; 2],
    x: Quad,
    sums: Sums,
) -> Sums {
    // SAFETY: as the caller promises.
    unsafe {
        let dots = _mm256_cvtepi32_ps(scaled_dots(quants, scales, x));
        let counts = _mm256_cvtepi32_ps(scaled_counts(minima, x));
        Sums {
            products: _mm256_fmadd_ps(dots, _mm256_mul_ps(worth[0], x.scales()), sums.products),
            taken_off: _mm256_fmadd_ps(counts, _mm256_mul_ps(worth[1], x.scales()), sums.taken_off),
        }
    }
}

macro_rules! large {
    ($($name:ident $add:path;)+) => {$(
        impl Large for $name {
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn add(w: *const u8, x: [Quad; 2], sums: Sums) -> Sums {
                // SAFETY: as the caller promises.
                unsafe { $add(w, x, sums) }
            }
        }

        impl Stream for $name {
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn row<const S: usize, const PASS: bool>(w: *const u8, k: usize, x: *const u8) -> __m256 {
                // SAFETY: as the caller promises.
                unsafe { row::<$name, S, PASS>(w, k, x) }
            }
        }
    )+};
}

large! {
    Q2K add_q2_k;
    Q3K add_q3_k;
    Q4K add_minimum::<false>;
    Q5K add_minimum::<true>;
    Q6K add_q6_k;
}
