//! Dot products: rows of weights of one dtype with rows of activations.

use core::arch::x86_64::*;

use super::{
    super::{BLOCK, GROUP, GroupLayout, Rounded},
    blocks::{Head, Quants, Unpack, unpack_nibbles},
    load_bf16, load_f16, load_f32, sum_lanes,
};

/// f32 weights, in [`dots_plain`].
pub(super) const F32: u8 = 0;
/// f16 weights.
pub(super) const F16: u8 = 1;
/// bf16 weights.
pub(super) const BF16: u8 = 2;

/// Eight elements of every row from `start` on, into partial sums. Only what reads beyond the end of rows calls a copy, and
/// it stands outside the loop: a call there would move all sums to memory and back.
///
/// # Safety
/// As for [`dots_plain`]; and if `WHOLE`, all eight elements must lie before `k`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn eight_plain<const M: usize, const N: usize, const W: u8, const WHOLE: bool>(
    (start, k): (usize, usize),
    w: [&[u8]; M],
    x: [&[u8]; N],
    sums: &mut [[__m256; N]; M],
) {
    let end = if WHOLE { start + 8 } else { k };
    let mut eight = [_mm256_setzero_ps(); M];
    for (eight, w) in eight.iter_mut().zip(&w) {
        let row = w.as_ptr();
        fetch_ahead::<N>(row.wrapping_add(start * if W == F32 { 4 } else { 2 }));
        // SAFETY: the caller promises the elements before `end`.
        *eight = unsafe {
            match W {
                F32 => load_f32(row, start, end),
                F16 => load_f16(row, start, end),
                _ => load_bf16(row, start, end),
            }
        };
    }
    for (j, x) in x.iter().enumerate() {
        // SAFETY: the caller promises the elements before `end`.
        let x = unsafe { load_f32(x.as_ptr(), start, end) };
        for i in 0..M {
            sums[i][j] = _mm256_fmadd_ps(eight[i], x, sums[i][j]);
        }
    }
}

/// Dot products of plain rows: eight partial sums each.
///
/// # Safety
/// Every row of `w` must hold `k` elements of the dtype that `W` names, every row of `x` `k` f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dots_plain<const M: usize, const N: usize, const W: u8>(
    k: usize,
    w: [&[u8]; M],
    x: [&[u8]; N],
) -> [[f32; N]; M] {
    const { assert!(W == F32 || W == F16 || W == BF16) };
    let mut sums = [[_mm256_setzero_ps(); N]; M];
    let whole = k - k % 8;
    for start in (0..whole).step_by(8) {
        // SAFETY: the caller promises the rows, and `whole` is at most `k`.
        unsafe { eight_plain::<M, N, W, true>((start, k), w, x, &mut sums) };
    }
    if whole < k {
        // SAFETY: the caller promises the rows.
        unsafe { eight_plain::<M, N, W, false>((whole, k), w, x, &mut sums) };
    }
    add_up(&sums)
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
/// Every row of `w` must hold `k / 32` blocks of q4_1, each `S` blocks behind the last, `x` a group of rows of `k` activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dots_q4_1<const M: usize, const N: usize, const S: usize>(
    k: usize,
    w: [&[u8]; M],
    x: Rounded<'_>,
) -> [[f32; N]; M] {
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
            fetch_ahead::<N>(w[i].as_ptr().wrapping_add(b * S * 20));
            // SAFETY: block `b` lies inside the row, and is 20 bytes long.
            let (scale_and_min, nibbles) = unsafe {
                let block = w[i].as_ptr().add(b * S * 20);
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
/// Every row of `w` must hold `k / 32` blocks of q8_0, each `S` blocks behind the last, `x` a group of rows of `k` activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dots_q8_0<const M: usize, const N: usize, const S: usize>(
    k: usize,
    w: [&[u8]; M],
    x: Rounded<'_>,
) -> [[f32; N]; M] {
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
            fetch_ahead::<N>(w[i].as_ptr().wrapping_add(b * S * 34));
            // SAFETY: block `b` lies inside the row, and is 34 bytes long.
            let (scale, q) = unsafe {
                let block = w[i].as_ptr().add(b * S * 34);
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

/// Products of any block dtype: each part is unpacked to 32 bytes with the scales of its two halves. A vector of products
/// has one lane for four neighbours, so that the weights' scales are those of its low and high lanes, and those of the
/// activations alternate.
///
/// # Safety
/// `k` must be a whole number of blocks, every row of `w` must hold them, each `S` blocks behind the last, `x` a group of rows of `k` activations.
#[expect(clippy::needless_range_loop, reason = "both loops index the sums")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dots_blocks<B: Unpack, const M: usize, const N: usize, const S: usize>(
    k: usize,
    w: [&[u8]; M],
    x: Rounded<'_>,
) -> [[f32; N]; M] {
    const { assert!(N == 1 || N == GROUP) };
    let (layout, group) = (GroupLayout { k }, x.group.as_ptr());
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_ps(); N]; M];
    // Offsets times sums, one lane a row of activations.
    let mut offsets = [_mm_setzero_ps(); M];
    let parts = B::ELEMENTS / BLOCK;
    for block in 0..k / B::ELEMENTS {
        let mut heads = [B::Head::NONE; M];
        for i in 0..M {
            // SAFETY: the block lies inside the row.
            heads[i] = unsafe { B::head(w[i].as_ptr().add(block * S * B::BYTES)) };
        }
        for part in 0..parts {
            let b = block * parts + part;
            let mut quants = [_mm256_setzero_si256(); M];
            let mut magnitudes = [_mm256_setzero_si256(); M];
            let mut scales = [_mm256_setzero_ps(); M];
            // SAFETY: the sums of block `b` lie inside the group.
            let x_sums = unsafe { load_sums::<N>(group.add(layout.sum(x.first, b))) };
            for i in 0..M {
                let at = w[i].as_ptr().wrapping_add(block * S * B::BYTES);
                fetch_ahead::<N>(at.wrapping_add(part * (B::BYTES / parts)));
                // SAFETY: the block lies inside the row, and has the part.
                unsafe {
                    quants[i] = B::quants(at, part);
                    scales[i] = heads[i].scales(part);
                }
                magnitudes[i] = if B::QUANTS == Quants::Signed { _mm256_abs_epi8(quants[i]) } else { quants[i] };
                if B::OFFSETS && !B::HALF_OFFSETS {
                    // SAFETY: this function has the features.
                    let offset = _mm256_castps256_ps128(unsafe { heads[i].offsets(part) });
                    offsets[i] = _mm_fmadd_ps(offset, x_sums, offsets[i]);
                }
            }
            for j in 0..N {
                // SAFETY: the quants and scales of block `b` lie inside the group.
                let (q, x_scales) = unsafe {
                    let q = _mm256_loadu_si256(group.add(layout.quants(x.first + j, b)).cast());
                    // Both scales at once, as if they were one number.
                    let pair = group.add(layout.scales(x.first + j, b)).cast::<f64>().read_unaligned();
                    (q, _mm256_castpd_ps(_mm256_set1_pd(pair)))
                };
                let bias = if let Quants::Biased(bias) = B::QUANTS { bias } else { 0 };
                let bias = _mm256_maddubs_epi16(_mm256_set1_epi8(bias), q);
                let mut lane_sums = _mm256_setzero_ps();
                if B::HALF_OFFSETS {
                    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
                    lane_sums = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones)), x_scales);
                }
                for i in 0..M {
                    // 16 bits are enough: |w| · (x with the sign of w) is at most 2 · 128 · 127, biased products less.
                    let pairs = match B::QUANTS {
                        Quants::Unsigned => _mm256_maddubs_epi16(quants[i], q),
                        Quants::Biased(_) => _mm256_sub_epi16(_mm256_maddubs_epi16(quants[i], q), bias),
                        Quants::Signed => _mm256_maddubs_epi16(magnitudes[i], _mm256_sign_epi8(q, quants[i])),
                    };
                    let dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                    sums[i][j] = _mm256_fmadd_ps(dot, _mm256_mul_ps(scales[i], x_scales), sums[i][j]);
                    if B::HALF_OFFSETS {
                        // SAFETY: this function has the features.
                        sums[i][j] = _mm256_fmadd_ps(unsafe { heads[i].offsets(part) }, lane_sums, sums[i][j]);
                    }
                }
            }
        }
    }
    let mut out = add_up(&sums);
    if B::OFFSETS && !B::HALF_OFFSETS {
        for i in 0..M {
            let mut four = [0.0; 4];
            // SAFETY: four floats.
            unsafe { _mm_storeu_ps(four.as_mut_ptr(), offsets[i]) };
            for j in 0..N {
                out[i][j] += four[j];
            }
        }
    }
    out
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
