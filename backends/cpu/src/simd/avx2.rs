//! AVX2 with FMA and F16C, by hand where it matters: conversions, rounding of activations, dot products.
#![expect(unsafe_code, reason = "instructions beyond the target's baseline, and unaligned loads from checked slices")]

use core::arch::x86_64::*;

use super::{BLOCK, GROUP, GroupLayout, Level, Rounded, group_bytes};

/// Proof that this CPU has AVX2, FMA and F16C: only [`Avx2::detect`] makes one.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        let has =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn with_features<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// The sum of all lanes, pairwise.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_lanes(v: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// Eight elements from `start` of a row of `k`, zeros beyond its end.
///
/// # Safety
/// `bytes` must hold `k` f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_f32(bytes: *const u8, start: usize, k: usize) -> __m256 {
    if start + 8 <= k {
        // SAFETY: all eight elements lie before `k`.
        return unsafe { _mm256_loadu_ps(bytes.add(start * 4).cast()) };
    }
    let mut eight = [0.0_f32; 8];
    // SAFETY: only the elements before `k` are copied, and there are fewer than eight.
    unsafe {
        core::ptr::copy_nonoverlapping(bytes.add(start * 4), eight.as_mut_ptr().cast(), (k - start) * 4);
        _mm256_loadu_ps(eight.as_ptr())
    }
}

/// Eight elements from `start` of a row of `k` f16, zeros beyond its end.
///
/// # Safety
/// `bytes` must hold `k` f16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_f16(bytes: *const u8, start: usize, k: usize) -> __m256 {
    if start + 8 <= k {
        // SAFETY: all eight elements lie before `k`.
        return unsafe { _mm256_cvtph_ps(_mm_loadu_si128(bytes.add(start * 2).cast())) };
    }
    let mut eight = [0_u16; 8];
    // SAFETY: only the elements before `k` are copied, and there are fewer than eight.
    unsafe {
        core::ptr::copy_nonoverlapping(bytes.add(start * 2), eight.as_mut_ptr().cast(), (k - start) * 2);
        _mm256_cvtph_ps(_mm_loadu_si128(eight.as_ptr().cast()))
    }
}

/// Dot products of plain rows: eight partial sums each.
///
/// # Safety
/// `load(row, start, k)` must be allowed for every row of `w`, and every row of `x` must hold `k` f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots_plain<const M: usize, const N: usize, const W_BYTES: usize>(
    k: usize,
    w: [&[u8]; M],
    x: [&[u8]; N],
) -> [[f32; N]; M] {
    let mut sums = [[_mm256_setzero_ps(); N]; M];
    for start in (0..k).step_by(8) {
        let mut eight = [_mm256_setzero_ps(); M];
        for (eight, w) in eight.iter_mut().zip(&w) {
            fetch_ahead::<N>(w.as_ptr().wrapping_add(start * W_BYTES));
            // SAFETY: the caller promises `k` elements a row, of `W_BYTES` bytes each.
            *eight =
                unsafe { if W_BYTES == 4 { load_f32(w.as_ptr(), start, k) } else { load_f16(w.as_ptr(), start, k) } };
        }
        for (j, x) in x.iter().enumerate() {
            // SAFETY: the caller promises `k` elements a row.
            let x = unsafe { load_f32(x.as_ptr(), start, k) };
            for i in 0..M {
                sums[i][j] = _mm256_fmadd_ps(eight[i], x, sums[i][j]);
            }
        }
    }
    add_up(&sums)
}

/// The low half is elements 0–15 (low nibbles), the high half elements 16–31 (high nibbles).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack_nibbles(packed: __m128i) -> __m256i {
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// The pairs of scales of a block for `N` rows: four at once, or one.
///
/// # Safety
/// `at` must point to `2 · N` f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_scales<const N: usize>(at: *const u8) -> __m256 {
    // SAFETY: the caller promises the floats.
    unsafe {
        if N == GROUP {
            _mm256_loadu_ps(at.cast())
        } else {
            _mm256_castsi256_ps(_mm256_castsi128_si256(_mm_loadl_epi64(at.cast())))
        }
    }
}

/// The sums of a block for `N` rows: four at once, or one.
///
/// # Safety
/// `at` must point to `N` f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_sums<const N: usize>(at: *const u8) -> __m128 {
    // SAFETY: the caller promises the floats.
    unsafe { if N == GROUP { _mm_loadu_ps(at.cast()) } else { _mm_load_ss(at.cast()) } }
}

/// How far ahead of a single row of activations weights are fetched: their stream is longer than any cache, and each
/// tile reads several rows at once, which the hardware's own prefetching takes for less of a stream than it is.
const FETCH_AHEAD_BYTES: usize = 4096;

/// Asks for the weights that come up, where a product is bound by reading them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fetch_ahead<const N: usize>(weights: *const u8) {
    if N == 1 {
        // Prefetching reads nothing: an address outside of memory is ignored.
        _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(FETCH_AHEAD_BYTES).cast());
    }
}

/// Four pairs of floats in memory, each as one f64: spreading a pair over all lanes is then a load, and loads are idle where
/// products are not.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn four_pairs(v: __m256) -> [f64; 4] {
    let mut four = [0.0; 4];
    // SAFETY: four pairs of floats.
    unsafe { _mm256_storeu_pd(four.as_mut_ptr(), _mm256_castps_pd(v)) };
    four
}

/// A pair of floats in every pair of lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn spread_pair(pair: &f64) -> __m256 {
    _mm256_castpd_ps(_mm256_broadcast_sd(pair))
}

/// # Safety
/// Every row of `w` must hold `k / 32` blocks of q4_1, `x` a group of rows of `k` activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots_q4_1<const M: usize, const N: usize>(k: usize, w: [&[u8]; M], x: Rounded<'_>) -> [[f32; N]; M] {
    const { assert!(N == 1 || N == GROUP) };
    let (layout, group) = (GroupLayout { k }, x.group.as_ptr());
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_ps(); N]; M];
    // Minima times sums, one lane a row of activations.
    let mut minima = [_mm_setzero_ps(); M];
    for b in 0..k / BLOCK {
        let mut quants = [_mm256_setzero_si256(); M];
        let mut scales = [[0.0; 4]; M];
        // SAFETY: the scales and sums of block `b` lie inside the group.
        let (x_scales, x_sums) = unsafe {
            (load_scales::<N>(group.add(layout.scales(x.first, b))), load_sums::<N>(group.add(layout.sum(x.first, b))))
        };
        for i in 0..M {
            fetch_ahead::<N>(w[i].as_ptr().wrapping_add(b * 20));
            // SAFETY: block `b` lies inside the row, and is 20 bytes long.
            let (scale_and_min, nibbles) = unsafe {
                let block = w[i].as_ptr().add(b * 20);
                (block.cast::<i32>().read_unaligned(), _mm_loadu_si128(block.add(4).cast()))
            };
            let pair = _mm_cvtph_ps(_mm_cvtsi32_si128(scale_and_min));
            quants[i] = unpack_nibbles(nibbles);
            scales[i] = four_pairs(_mm256_mul_ps(_mm256_broadcastss_ps(pair), x_scales));
            minima[i] = _mm_fmadd_ps(_mm_broadcastss_ps(_mm_movehdup_ps(pair)), x_sums, minima[i]);
        }
        for j in 0..N {
            // SAFETY: the quants of block `b` lie inside the group.
            let q = unsafe { _mm256_loadu_si256(group.add(layout.quants(x.first + j, b)).cast()) };
            for i in 0..M {
                // At most 2 · 15 · 127, so 16 bits are enough.
                let pairs = _mm256_maddubs_epi16(quants[i], q);
                let dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                sums[i][j] = _mm256_fmadd_ps(dot, spread_pair(&scales[i][j]), sums[i][j]);
            }
        }
    }
    let mut out = [[0.0; N]; M];
    for i in 0..M {
        let mut four = [0.0; 4];
        // SAFETY: four floats.
        unsafe { _mm_storeu_ps(four.as_mut_ptr(), minima[i]) };
        for j in 0..N {
            out[i][j] = sum_lanes(sums[i][j]) + four[j];
        }
    }
    out
}

/// # Safety
/// Every row of `w` must hold `k / 32` blocks of q8_0, `x` a group of rows of `k` activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots_q8_0<const M: usize, const N: usize>(k: usize, w: [&[u8]; M], x: Rounded<'_>) -> [[f32; N]; M] {
    const { assert!(N == 1 || N == GROUP) };
    let (layout, group) = (GroupLayout { k }, x.group.as_ptr());
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_ps(); N]; M];
    for b in 0..k / BLOCK {
        let mut quants = [_mm256_setzero_si256(); M];
        let mut magnitudes = [_mm256_setzero_si256(); M];
        let mut scales = [[0.0; 4]; M];
        // SAFETY: the scales of block `b` lie inside the group.
        let x_scales = unsafe { load_scales::<N>(group.add(layout.scales(x.first, b))) };
        for i in 0..M {
            fetch_ahead::<N>(w[i].as_ptr().wrapping_add(b * 34));
            // SAFETY: block `b` lies inside the row, and is 34 bytes long.
            let (scale, q) = unsafe {
                let block = w[i].as_ptr().add(b * 34);
                (block.cast::<u16>().read_unaligned(), _mm256_loadu_si256(block.add(2).cast()))
            };
            quants[i] = q;
            magnitudes[i] = _mm256_abs_epi8(q);
            let scale = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(scale)));
            scales[i] = four_pairs(_mm256_mul_ps(_mm256_broadcastss_ps(scale), x_scales));
        }
        for j in 0..N {
            // SAFETY: the quants of block `b` lie inside the group.
            let q = unsafe { _mm256_loadu_si256(group.add(layout.quants(x.first + j, b)).cast()) };
            for i in 0..M {
                // |w| · (x with the sign of w): at most 2 · 128 · 127, so 16 bits are enough.
                let pairs = _mm256_maddubs_epi16(magnitudes[i], _mm256_sign_epi8(q, quants[i]));
                let dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                sums[i][j] = _mm256_fmadd_ps(dot, spread_pair(&scales[i][j]), sums[i][j]);
            }
        }
    }
    add_up(&sums)
}

/// The sums of all partial sums. Loops instead of `map`: closures do not take the features along.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_up<const M: usize, const N: usize>(sums: &[[__m256; N]; M]) -> [[f32; N]; M] {
    let mut out = [[0.0; N]; M];
    for i in 0..M {
        for j in 0..N {
            out[i][j] = sum_lanes(sums[i][j]);
        }
    }
    out
}

/// # Safety
/// `group` must be a group of rows of `k` activations that has these blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantize(x: &[f32], k: usize, row: usize, first: usize, group: *mut u8) {
    let layout = GroupLayout { k };
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    for (b, block) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
        // SAFETY: a block is 32 elements.
        let v: [__m256; 4] = unsafe { std::array::from_fn(|i| _mm256_loadu_ps(block.as_ptr().add(8 * i))) };
        let bits = v.map(|v| _mm256_and_si256(_mm256_castps_si256(v), magnitude));
        // The low lanes of each vector are an even four, the high lanes an odd one: everything stays within halves.
        let most = _mm256_max_epi32(_mm256_max_epi32(bits[0], bits[1]), _mm256_max_epi32(bits[2], bits[3]));
        let most = _mm256_max_epi32(most, _mm256_shuffle_epi32::<0b01_00_11_10>(most));
        let most = _mm256_max_epi32(most, _mm256_shuffle_epi32::<0b10_11_00_01>(most));
        // NaN and infinity are the largest magnitudes of all when compared as integers; their half gets no quants.
        let infinity = _mm256_set1_epi32(f32::INFINITY.to_bits().cast_signed());
        let finite = _mm256_cmpgt_epi32(infinity, most);
        let scale = _mm256_div_ps(_mm256_castsi256_ps(most), _mm256_set1_ps(127.0));
        // A subnormal scale has no finite inverse; such a half is zero for all purposes of a product.
        let normal = _mm256_cmp_ps::<_CMP_GE_OQ>(scale, _mm256_set1_ps(f32::MIN_POSITIVE));
        let inverse = _mm256_and_ps(_mm256_div_ps(_mm256_set1_ps(1.0), scale), normal);
        let scale = _mm256_blendv_ps(_mm256_set1_ps(f32::NAN), scale, _mm256_castsi256_ps(finite));
        let q = v.map(|v| _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(v, inverse)), finite));
        // The sum of what the quants stand for, not of the values: rounding errors then cancel against weights of zero mean.
        let total = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
        let total = _mm256_add_epi32(total, _mm256_shuffle_epi32::<0b01_00_11_10>(total));
        let total = _mm256_add_epi32(total, _mm256_shuffle_epi32::<0b10_11_00_01>(total));
        let sums = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(total));
        let (even, odd) = (_mm256_castps256_ps128(scale), _mm256_extractf128_ps::<1>(scale));
        let sum = _mm_add_ss(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
        // Packing works within halves, so the eight groups of four come out as 0 2 4 6 1 3 5 7.
        let words = [_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])];
        let bytes = _mm256_packs_epi16(words[0], words[1]);
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        // SAFETY: the quants, scales and sum of a block that the caller promises.
        unsafe {
            let quants = group.add(layout.quants(row, first + b));
            _mm256_storeu_si256(quants.cast(), _mm256_permutevar8x32_epi32(bytes, order));
            _mm_storel_pd(group.add(layout.scales(row, first + b)).cast(), _mm_castps_pd(_mm_unpacklo_ps(even, odd)));
            group.add(layout.sum(row, first + b)).cast::<f32>().write_unaligned(_mm_cvtss_f32(sum));
        }
    }
}

fn check<const M: usize>(rows: [&[u8]; M], bytes: usize) {
    for row in rows {
        assert!(row.len() >= bytes);
    }
}

impl Level for Avx2 {
    #[inline(always)]
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        // SAFETY: `self` proves the features.
        unsafe { with_features(f) }
    }

    #[inline(always)]
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn decode_f16(self, bytes: &[u8], out: &mut [f32]) {
        assert!(bytes.len() >= out.len() * 2);
        let k = out.len();
        let mut start = 0;
        while start + 8 <= k {
            // SAFETY: `self` proves the features; eight elements lie before `k` on both sides.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(start), load_f16(bytes.as_ptr(), start, k)) };
            start += 8;
        }
        if start < k {
            let mut eight = [0.0; 8];
            // SAFETY: `self` proves the features; `bytes` holds `k` elements.
            unsafe { _mm256_storeu_ps(eight.as_mut_ptr(), load_f16(bytes.as_ptr(), start, k)) };
            out[start..].copy_from_slice(&eight[..k - start]);
        }
    }

    #[inline(always)]
    fn encode_f16(self, x: &[f32], bytes: &mut [u8]) {
        assert!(bytes.len() >= x.len() * 2);
        for start in (0..x.len()).step_by(8) {
            let eight = (x.len() - start).min(8);
            let mut encoded = [0_u8; 16];
            // SAFETY: `self` proves the features; `x` holds `x.len()` elements.
            unsafe {
                let v = load_f32(x.as_ptr().cast(), start, x.len());
                _mm_storeu_si128(encoded.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
            }
            bytes[start * 2..(start + eight) * 2].copy_from_slice(&encoded[..eight * 2]);
        }
    }

    #[inline(always)]
    fn quantize(self, x: &[f32], k: usize, row: usize, first: usize, group: &mut [u8]) {
        assert!(x.len().is_multiple_of(BLOCK) && first * BLOCK + x.len() <= k);
        assert!(row < GROUP && group.len() >= group_bytes(k));
        // SAFETY: `self` proves the features; the blocks were just checked.
        unsafe { quantize(x, k, row, first, group.as_mut_ptr()) }
    }

    #[inline(always)]
    fn dots_q8_0<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: Rounded<'_>) -> [[f32; N]; M] {
        check(w, k / BLOCK * 34);
        assert!(x.first + N <= GROUP && x.group.len() >= group_bytes(k));
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { dots_q8_0(k, w, x) }
    }

    #[inline(always)]
    fn dots_q4_1<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: Rounded<'_>) -> [[f32; N]; M] {
        check(w, k / BLOCK * 20);
        assert!(x.first + N <= GROUP && x.group.len() >= group_bytes(k));
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { dots_q4_1(k, w, x) }
    }

    #[inline(always)]
    fn dots_f32<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M] {
        check(w, k * 4);
        check(x, k * 4);
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { dots_plain::<M, N, 4>(k, w, x) }
    }

    #[inline(always)]
    fn dots_f16<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M] {
        check(w, k * 2);
        check(x, k * 4);
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { dots_plain::<M, N, 2>(k, w, x) }
    }
}
