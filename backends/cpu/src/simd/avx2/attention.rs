//! What attention is made of: scores of queries, weighted sums of values, and panels of both for many queries.

use core::arch::x86_64::*;

use super::{
    super::{BLOCK, PANEL, PlainRows},
    load_f16, load_f32,
};

/// Rows of f32, in [`scores`] and [`weighted`].
pub(super) const F32: u8 = 0;
/// Rows of f16.
pub(super) const F16: u8 = 1;

/// Keys whose scores are computed together.
const KEYS: usize = 4;

/// How far ahead rows are fetched into the second cache: so many bytes, or so many rows where these are long. Rows of a head lie between
/// those of others, too far apart for the hardware's own prefetching. On a Zen 4 server one thread, 2048 tokens into a conversation, writes a
/// token of SmolLM2-135M (`q4_1`) in 12.1 ms instead of the 15.4 ms that it takes if all is fetched into the first cache, 32 rows ahead
/// (the bench `llm_vs_llamacpp` with the words `q4_1 tg64@2048 1t`).
const FAR_BYTES: usize = 8192;
const FAR_ROWS: usize = 16;

/// How many rows ahead they are fetched from there into the first.
const NEAR_ROWS: usize = 4;

/// From a row to those behind it that are asked for now.
#[derive(Clone, Copy)]
struct Ahead {
    far: usize,
    near: usize,
}

impl Ahead {
    fn of(rows: PlainRows<'_>) -> Self {
        let far_rows = (FAR_BYTES / rows.stride_bytes.max(1)).max(FAR_ROWS);
        Self { far: far_rows.saturating_mul(rows.stride_bytes), near: NEAR_ROWS.saturating_mul(rows.stride_bytes) }
    }

    /// Asks for as many bytes of these rows as are read of this one.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn fetch(self, row: *const u8, bytes: usize) {
        let line = |line: usize| {
            // Prefetching reads nothing: an address outside of memory is ignored.
            _mm_prefetch::<_MM_HINT_T1>(row.wrapping_add(self.far).wrapping_add(line * 64).cast());
            _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(self.near).wrapping_add(line * 64).cast());
        };
        // The most common heads without a loop, which would take as long as the arithmetic that is to hide behind this.
        if bytes == 128 {
            line(0);
            line(1);
        } else {
            (0..bytes.div_ceil(64)).for_each(line);
        }
    }
}

/// Eight elements of a row.
///
/// # Safety
/// `row` must hold `k` elements of the dtype that `W` names.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn eight<const W: u8>(row: *const u8, start: usize, k: usize) -> __m256 {
    // SAFETY: the caller promises the row.
    unsafe { if W == F16 { load_f16(row, start, k) } else { load_f32(row, start, k) } }
}

/// The sums of the lanes of four vectors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_four(v: [__m256; KEYS]) -> __m128 {
    let (ab, cd) = (_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    let abcd = _mm256_hadd_ps(ab, cd);
    _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps::<1>(abcd))
}

/// Partial sums of the products of two keys and all queries: as many as registers hold beside what is multiplied.
///
/// # Safety
/// As for [`scores`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn two_keys<const N: usize, const W: u8>(
    k: usize,
    rows: [*const u8; 2],
    queries: [*const f32; N],
) -> [[__m256; 2]; N] {
    let mut sums = [[_mm256_setzero_ps(); 2]; N];
    let whole = k - k % 8;
    for start in (0..whole).step_by(8) {
        // SAFETY: the caller promises the rows, and `whole` is at most `k`.
        let keys = unsafe { [eight::<W>(rows[0], start, start + 8), eight::<W>(rows[1], start, start + 8)] };
        for n in 0..N {
            // SAFETY: the caller promises the queries, and `whole` is at most `k`.
            let query = unsafe { _mm256_loadu_ps(queries[n].add(start)) };
            sums[n][0] = _mm256_fmadd_ps(keys[0], query, sums[n][0]);
            sums[n][1] = _mm256_fmadd_ps(keys[1], query, sums[n][1]);
        }
    }
    if whole < k {
        // SAFETY: the caller promises the rows.
        let keys = unsafe { [eight::<W>(rows[0], whole, k), eight::<W>(rows[1], whole, k)] };
        for n in 0..N {
            // SAFETY: the caller promises the queries.
            let query = unsafe { load_f32(queries[n].cast(), whole, k) };
            sums[n][0] = _mm256_fmadd_ps(keys[0], query, sums[n][0]);
            sums[n][1] = _mm256_fmadd_ps(keys[1], query, sums[n][1]);
        }
    }
    sums
}

/// See [`Level::add_scores`](super::Level::add_scores).
///
/// # Safety
/// Every row must hold `k` elements of the dtype that `W` names, every query `k`, and scores as many elements as there are rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn scores<const N: usize, const W: u8>(
    k: usize,
    of: PlainRows<'_>,
    queries: [*const f32; N],
    scores: [*mut f32; N],
) {
    let (count, ahead) = (of.count, Ahead::of(of));
    for first in (0..count).step_by(KEYS) {
        let mut rows = [core::ptr::null(); KEYS];
        for (offset, pointer) in rows.iter_mut().enumerate() {
            // Beyond the last row its scores are computed again.
            *pointer = of.bytes.as_ptr().wrapping_add((first + offset).min(count - 1) * of.stride_bytes);
            if W == F16 {
                ahead.fetch(*pointer, 2 * k);
            }
        }
        let mut sums = [[_mm256_setzero_ps(); KEYS]; N];
        for pair in 0..KEYS / 2 {
            // SAFETY: the caller promises rows and queries.
            let of_pair = unsafe { two_keys::<N, W>(k, [rows[2 * pair], rows[2 * pair + 1]], queries) };
            for n in 0..N {
                sums[n][2 * pair] = of_pair[n][0];
                sums[n][2 * pair + 1] = of_pair[n][1];
            }
        }
        for n in 0..N {
            let four = sum_four(sums[n]);
            if first + KEYS <= count {
                // SAFETY: four scores lie before `count`.
                unsafe {
                    let at = scores[n].add(first);
                    _mm_storeu_ps(at, _mm_add_ps(_mm_loadu_ps(at), four));
                }
            } else {
                let mut each = [0.0_f32; KEYS];
                // SAFETY: four floats.
                unsafe { _mm_storeu_ps(each.as_mut_ptr(), four) };
                for (offset, score) in each.iter().take(count - first).enumerate() {
                    // SAFETY: the score lies before `count`.
                    unsafe { *scores[n].add(first + offset) += score };
                }
            }
        }
    }
}

/// Columns `start..start + 8 · C` of [`weighted`], of `width` altogether.
///
/// # Safety
/// As for [`weighted`], and the columns must exist.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn weighted_columns<const N: usize, const C: usize, const W: u8>(
    (start, width): (usize, usize),
    of: PlainRows<'_>,
    weights: [*const f32; N],
    rescale: [f32; N],
    sums: [*mut f32; N],
) {
    let ahead = Ahead::of(of);
    // By columns: those of a value meet all weights.
    let mut added = [[_mm256_setzero_ps(); N]; C];
    for j in 0..of.count {
        let row = of.bytes.as_ptr().wrapping_add(j * of.stride_bytes);
        // All at once: asking for a part with every part of the columns is slower by a fifth (47 MB of a cache, this loop and that of the
        // scores by themselves, one thread of a Zen 4 server: 4.5 ms instead of 3.6).
        if W == F16 && start == 0 {
            ahead.fetch(row, 2 * width);
        }
        let mut weight = [_mm256_setzero_ps(); N];
        for n in 0..N {
            // SAFETY: the caller promises a weight for every row.
            weight[n] = unsafe { _mm256_broadcast_ss(&*weights[n].add(j)) };
        }
        for (c, added) in added.iter_mut().enumerate() {
            let at = start + 8 * c;
            // SAFETY: the caller promises the columns.
            let value = unsafe { eight::<W>(row, at, at + 8) };
            for n in 0..N {
                added[n] = _mm256_fmadd_ps(weight[n], value, added[n]);
            }
        }
    }
    for n in 0..N {
        let rescale = _mm256_set1_ps(rescale[n]);
        for (c, added) in added.iter().enumerate() {
            // SAFETY: the caller promises the columns.
            unsafe {
                let at = sums[n].add(start + 8 * c);
                _mm256_storeu_ps(at, _mm256_fmadd_ps(_mm256_loadu_ps(at), rescale, added[n]));
            }
        }
    }
}

/// See [`Level::add_weighted`](super::Level::add_weighted), for the columns before `width`, a multiple of eight.
///
/// # Safety
/// Every row must hold `width` elements of the dtype that `W` names; there must be a weight for each, and `width` sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn weighted<const N: usize, const W: u8>(
    width: usize,
    of: PlainRows<'_>,
    weights: [*const f32; N],
    rescale: [f32; N],
    sums: [*mut f32; N],
) {
    let mut start = 0;
    // As many sums as registers hold beside weights and values.
    while start + 24 <= width && N == 3 {
        // SAFETY: the caller promises the columns.
        unsafe { weighted_columns::<N, 3, W>((start, width), of, weights, rescale, sums) };
        start += 24;
    }
    while start + 32 <= width && N < 3 {
        // SAFETY: the caller promises the columns.
        unsafe { weighted_columns::<N, 4, W>((start, width), of, weights, rescale, sums) };
        start += 32;
    }
    while start + 16 <= width {
        // SAFETY: as above.
        unsafe { weighted_columns::<N, 2, W>((start, width), of, weights, rescale, sums) };
        start += 16;
    }
    while start < width {
        // SAFETY: as above.
        unsafe { weighted_columns::<N, 1, W>((start, width), of, weights, rescale, sums) };
        start += 8;
    }
}

/// See [`Level::add_panel`](super::Level::add_panel).
///
/// # Safety
/// `a` must hold `M` rows of `k` elements, `sums` `M` rows of [`PANEL`], as far apart as `strides` say, and `panel` `k` rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn panel<const M: usize>(
    k: usize,
    a: *const f32,
    panel: *const f32,
    sums: *mut f32,
    strides: [usize; 2],
) {
    let mut added = [[_mm256_setzero_ps(); 2]; M];
    for d in 0..k {
        // SAFETY: the caller promises `k` rows of the panel.
        let b = unsafe { [_mm256_loadu_ps(panel.add(d * PANEL)), _mm256_loadu_ps(panel.add(d * PANEL + 8))] };
        for (m, added) in added.iter_mut().enumerate() {
            // SAFETY: the caller promises `M` rows of `k` elements.
            let x = unsafe { _mm256_broadcast_ss(&*a.add(m * strides[0] + d)) };
            added[0] = _mm256_fmadd_ps(x, b[0], added[0]);
            added[1] = _mm256_fmadd_ps(x, b[1], added[1]);
        }
    }
    for (m, added) in added.iter().enumerate() {
        // SAFETY: the caller promises `M` rows of sums.
        unsafe {
            let at = sums.add(m * strides[1]);
            _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), added[0]));
            _mm256_storeu_ps(at.add(8), _mm256_add_ps(_mm256_loadu_ps(at.add(8)), added[1]));
        }
    }
}

/// Turns eight rows of eight elements into columns.
///
/// # Safety
/// `rows` must point to eight elements each, `to` to eight rows of a panel.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn turn(rows: [*const f32; 8], to: *mut f32) {
    let mut r = [_mm256_setzero_ps(); 8];
    for (r, row) in r.iter_mut().zip(rows) {
        // SAFETY: the caller promises eight elements.
        *r = unsafe { _mm256_loadu_ps(row) };
    }
    let mut pairs = [_mm256_setzero_ps(); 8];
    for i in 0..4 {
        pairs[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    let mut fours = [_mm256_setzero_ps(); 8];
    for half in 0..2 {
        let p = 4 * half;
        fours[p] = _mm256_shuffle_ps::<0b01_00_01_00>(pairs[p], pairs[p + 2]);
        fours[p + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(pairs[p], pairs[p + 2]);
        fours[p + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(pairs[p + 1], pairs[p + 3]);
        fours[p + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(pairs[p + 1], pairs[p + 3]);
    }
    for i in 0..4 {
        let low = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
        let high = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
        // SAFETY: the caller promises eight rows of a panel.
        unsafe {
            _mm256_storeu_ps(to.add(i * PANEL), low);
            _mm256_storeu_ps(to.add((i + 4) * PANEL), high);
        }
    }
}

/// # Safety
/// `bytes` must hold `blocks` blocks of `q8_0`, `out` their elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn decode_q8_0(blocks: usize, bytes: *const u8, out: *mut f32) {
    for b in 0..blocks {
        // SAFETY: the caller promises the block: a scale of two bytes, 32 quants, 32 elements.
        unsafe {
            let block = bytes.add(b * 34);
            let scale =
                _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(block.cast::<u16>().read_unaligned()))));
            for part in 0..BLOCK / 8 {
                let quants = _mm256_cvtepi8_epi32(_mm_loadl_epi64(block.add(2 + 8 * part).cast()));
                _mm256_storeu_ps(out.add(b * BLOCK + 8 * part), _mm256_mul_ps(_mm256_cvtepi32_ps(quants), scale));
            }
        }
    }
}
