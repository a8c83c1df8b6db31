//! AVX2 with FMA and F16C, by hand where it matters: conversions, rounding of activations, dot products.
#![expect(unsafe_code, reason = "instructions beyond the target's baseline, and unaligned loads from checked slices")]

mod attention;
mod blocks;
mod bytes;
mod chain;
mod panels;
mod products;
mod scores;
mod vector;

use core::arch::x86_64::*;

pub(super) use blocks::{Head, Quants, Unpack};
pub(super) use bytes::interleave as interleave_fours;
pub(super) use vector::Stream;

use crate::kernels::{Activations, LayerProduct, Map, Zip};

use super::{
    BLOCK, Blocks, BytePart, Fetch, GROUP, GroupLayout, Level, PANEL, PANEL_ROWS, Panel, PanelRows, Panels, PlainRows,
    Rounded, Streams, bundle_block, check_parts, group_bytes,
    portable::add_weighted_columns,
    spread_bytes,
    vector::{Pairing, WeightRows, vector_bytes},
};
use products::{BF16, F16, F32, dots_blocks, dots_plain, dots_q4_1, dots_q8_0};

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

/// Eight elements of two bytes from `start` of a row of `k`, zeros beyond its end.
///
/// # Safety
/// `bytes` must hold `k` elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_halves(bytes: *const u8, start: usize, k: usize) -> __m128i {
    if start + 8 <= k {
        // SAFETY: all eight elements lie before `k`.
        return unsafe { _mm_loadu_si128(bytes.add(start * 2).cast()) };
    }
    let mut eight = [0_u16; 8];
    // SAFETY: only the elements before `k` are copied, and there are fewer than eight.
    unsafe {
        core::ptr::copy_nonoverlapping(bytes.add(start * 2), eight.as_mut_ptr().cast(), (k - start) * 2);
        _mm_loadu_si128(eight.as_ptr().cast())
    }
}

/// Eight elements from `start` of a row of `k` f16, zeros beyond its end.
///
/// # Safety
/// `bytes` must hold `k` f16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_f16(bytes: *const u8, start: usize, k: usize) -> __m256 {
    // SAFETY: the caller promises the row.
    unsafe { _mm256_cvtph_ps(load_halves(bytes, start, k)) }
}

/// Eight elements from `start` of a row of `k` bf16, zeros beyond its end.
///
/// # Safety
/// `bytes` must hold `k` bf16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_bf16(bytes: *const u8, start: usize, k: usize) -> __m256 {
    // SAFETY: the caller promises the row.
    let halves = unsafe { load_halves(bytes, start, k) };
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
}

/// A block of activations in 8 bits.
struct RoundedBlock {
    quants: __m256i,
    /// The scale of the even fours, in all lanes, and that of the odd ones.
    even: __m128,
    odd: __m128,
    /// The sum of what the quants stand for, in the first lane.
    sum: __m128,
}

/// Rounds a block, with a NaN as the scale of what is not finite.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn round_block(block: &[f32; BLOCK]) -> RoundedBlock {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
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
    // Packing works within halves, so the eight groups of four come out as 0 2 4 6 1 3 5 7.
    let words = [_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])];
    let bytes = _mm256_packs_epi16(words[0], words[1]);
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    RoundedBlock {
        quants: _mm256_permutevar8x32_epi32(bytes, order),
        even: _mm256_castps256_ps128(scale),
        odd: _mm256_extractf128_ps::<1>(scale),
        sum: _mm_add_ss(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums)),
    }
}

/// # Safety
/// `group` must be a group of rows of `k` activations that has these blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantize(x: &[f32], k: usize, row: usize, first: usize, group: *mut u8) {
    let layout = GroupLayout { k };
    for (b, block) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
        let RoundedBlock { quants, even, odd, sum } = round_block(block);
        // SAFETY: the quants, scales and sum of a block that the caller promises.
        unsafe {
            _mm256_storeu_si256(group.add(layout.quants(row, first + b)).cast(), quants);
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

    #[inline]
    fn map(self, f: &dyn Map, from: &[f32], to: &mut [f32]) {
        f.avx2(self, from, to);
    }

    #[inline]
    fn zip(self, f: &dyn Zip, a: &mut [f32], b: &[f32]) {
        f.avx2(self, a, b);
    }

    #[inline(always)]
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn lines_product(self, layer: &LayerProduct<'_>, rows: usize, x: &[[f32; PANEL]], out: &mut [[f32; PANEL]]) {
        layer.check(out.len());
        assert!(x.len() >= layer.k && rows <= PANEL);
        // SAFETY: `self` proves the features, and the lengths were just checked.
        unsafe { chain::lines_product(layer, rows, x, out) }
    }

    #[inline(always)]
    fn row_product(self, layer: &LayerProduct<'_>, x: &[u8], out: &mut [f32]) {
        layer.check(out.len());
        assert!(x.len() >= layer.k * 4);
        // SAFETY: `self` proves the features, and the lengths were just checked.
        unsafe { chain::row_product(layer, x, out) }
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
    fn dots_q8_0<const M: usize, const N: usize, const S: usize>(
        self,
        k: usize,
        w: [&[u8]; M],
        x: Rounded<'_>,
    ) -> [[f32; N]; M] {
        check(w, spread_bytes(k / BLOCK, S, 34));
        assert!(x.first + N <= GROUP && x.group.len() >= group_bytes(k));
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { dots_q8_0::<M, N, S>(k, w, x) }
    }

    #[inline(always)]
    fn dots_q4_1<const M: usize, const N: usize, const S: usize>(
        self,
        k: usize,
        w: [&[u8]; M],
        x: Rounded<'_>,
    ) -> [[f32; N]; M] {
        check(w, spread_bytes(k / BLOCK, S, 20));
        assert!(x.first + N <= GROUP && x.group.len() >= group_bytes(k));
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { dots_q4_1::<M, N, S>(k, w, x) }
    }

    #[inline(always)]
    fn decode_blocks<B: Blocks>(self, row: &[u8], step: usize, first: usize, out: &mut [f32]) {
        assert!(out.len().is_multiple_of(B::ELEMENTS));
        assert!(row.len() >= spread_bytes(first + out.len() / B::ELEMENTS, step, B::BYTES));
        // SAFETY: `self` proves the features; the length was just checked.
        unsafe { panels::decode_blocks::<B>(row.as_ptr(), step, first, out) }
    }

    #[inline(always)]
    fn interleave(self, rows: &PanelRows, depth: usize, panel: &mut Panel) {
        // SAFETY: `self` proves the features.
        unsafe { panels::interleave(rows, depth, panel) }
    }

    #[inline(always)]
    fn round_bundle(self, x: &[f32], row: usize, first: usize, bundle: &mut [u8]) {
        assert!(x.len().is_multiple_of(BLOCK) && row < GROUP);
        assert!(bundle.len() >= bundle_block(first + x.len() / BLOCK));
        // SAFETY: `self` proves the features; the blocks were just checked.
        unsafe { bytes::round_bundle(x, row, first, bundle.as_mut_ptr()) }
    }

    #[inline(always)]
    fn dots_f32<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M] {
        check(w, k * 4);
        check(x, k * 4);
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { dots_plain::<M, N, F32>(k, w, x) }
    }

    #[inline(always)]
    fn dots_f16<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M] {
        check(w, k * 2);
        check(x, k * 4);
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { dots_plain::<M, N, F16>(k, w, x) }
    }

    #[inline(always)]
    fn dots_bf16<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M] {
        check(w, k * 2);
        check(x, k * 4);
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { dots_plain::<M, N, BF16>(k, w, x) }
    }

    #[inline(always)]
    fn dots_blocks<B: Blocks, const M: usize, const N: usize, const S: usize>(
        self,
        k: usize,
        w: [&[u8]; M],
        x: Rounded<'_>,
    ) -> [[f32; N]; M] {
        check(w, spread_bytes(k / B::ELEMENTS, S, B::BYTES));
        assert!(k.is_multiple_of(B::ELEMENTS) && x.first + N <= GROUP && x.group.len() >= group_bytes(k));
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { dots_blocks::<B, M, N, S>(k, w, x) }
    }

    #[inline(always)]
    fn quantize_vector(self, x: &[f32], first: usize, pairing: Pairing, out: &mut [u8]) {
        assert!(x.len().is_multiple_of(BLOCK) && out.len() >= pairing.bytes_up_to(first + x.len() / BLOCK));
        // SAFETY: `self` proves the features; the blocks were just checked.
        unsafe { vector::quantize_vector(x, first, pairing, out.as_mut_ptr()) }
    }

    #[inline(always)]
    fn vector_blocks<B: Streams, const S: usize>(
        self,
        k: usize,
        w: WeightRows<'_>,
        x: &[u8],
        fetch: Fetch,
        out: &mut [f32],
    ) {
        w.check::<S>(out.len(), k / B::ELEMENTS, B::BYTES);
        assert!(k.is_multiple_of(B::ELEMENTS) && x.len() >= vector_bytes(k));
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe {
            match fetch {
                Fetch::Keep => vector::blocks::<B, S, false>(k, w, x.as_ptr(), out),
                Fetch::Pass => vector::blocks::<B, S, true>(k, w, x.as_ptr(), out),
            }
        }
    }

    #[inline(always)]
    fn vector_f32(self, k: usize, w: WeightRows<'_>, x: &[u8], out: &mut [f32]) {
        w.check::<1>(out.len(), k, 4);
        check([x], k * 4);
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { vector::plain::<F32>(k, w, x.as_ptr(), out) }
    }

    #[inline(always)]
    fn vector_f16(self, k: usize, w: WeightRows<'_>, x: &[u8], out: &mut [f32]) {
        w.check::<1>(out.len(), k, 2);
        check([x], k * 4);
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { vector::plain::<F16>(k, w, x.as_ptr(), out) }
    }

    #[inline(always)]
    fn vector_bf16(self, k: usize, w: WeightRows<'_>, x: &[u8], out: &mut [f32]) {
        w.check::<1>(out.len(), k, 2);
        check([x], k * 4);
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { vector::plain::<BF16>(k, w, x.as_ptr(), out) }
    }

    #[inline(always)]
    fn decode_q8_0(self, bytes: &[u8], out: &mut [f32]) {
        let blocks = out.len() / BLOCK;
        assert!(out.len().is_multiple_of(BLOCK) && bytes.len() >= blocks * 34);
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { attention::decode_q8_0(blocks, bytes.as_ptr(), out.as_mut_ptr()) }
    }

    #[inline(always)]
    fn add_scores<const N: usize>(self, k: usize, rows: PlainRows<'_>, queries: [&[f32]; N], scores: [&mut [f32]; N]) {
        rows.check(k);
        let count = rows.count;
        assert!(queries.iter().all(|query| query.len() >= k) && scores.iter().all(|scores| scores.len() >= count));
        let (queries, scores) = (queries.map(<[f32]>::as_ptr), scores.map(<[f32]>::as_mut_ptr));
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe {
            if rows.halves {
                attention::scores::<N, { attention::F16 }>(k, rows, queries, scores);
            } else {
                attention::scores::<N, { attention::F32 }>(k, rows, queries, scores);
            }
        }
    }

    #[inline(always)]
    fn mask_scores(self, scores: &mut [f32], scale: f32, mask: Option<(&[f32], f32)>, most: f32) -> f32 {
        let (scores, rest) = scores.as_chunks_mut();
        let mask = mask.map(|(mask, slope)| (mask.as_chunks().0, slope));
        assert!(rest.is_empty() && mask.is_none_or(|(mask, _)| mask.len() == scores.len()));
        // SAFETY: `self` proves the features.
        unsafe { scores::mask_scores(scores, scale, mask, most) }
    }

    #[inline(always)]
    fn weigh_scores(self, scores: &mut [f32], reference: f32) -> f32 {
        let (scores, rest) = scores.as_chunks_mut();
        assert!(rest.is_empty());
        // SAFETY: `self` proves the features.
        unsafe { scores::weigh_scores(scores, reference) }
    }

    #[inline(always)]
    fn add_weighted<const N: usize>(
        self,
        rows: PlainRows<'_>,
        weights: [&[f32]; N],
        rescale: [f32; N],
        sums: [&mut [f32]; N],
    ) {
        let width = sums.iter().map(|sums| sums.len()).max().unwrap_or(0);
        rows.check(width);
        assert!(
            weights.iter().all(|weights| weights.len() >= rows.count) && sums.iter().all(|sums| sums.len() == width)
        );
        let (mut sums, whole) = (sums, width - width % 8);
        if whole < width {
            for ((weights, &rescale), sums) in weights.iter().zip(&rescale).zip(&mut sums) {
                add_weighted_columns(rows, whole, weights, rescale, sums);
            }
        }
        let (weights, sums) = (weights.map(<[f32]>::as_ptr), sums.map(<[f32]>::as_mut_ptr));
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe {
            if rows.halves {
                attention::weighted::<N, { attention::F16 }>(whole, rows, weights, rescale, sums);
            } else {
                attention::weighted::<N, { attention::F32 }>(whole, rows, weights, rescale, sums);
            }
        }
    }

    #[inline(always)]
    fn add_panel<const M: usize>(self, a: &[f32], panel: &[[f32; PANEL]], sums: &mut [f32], strides: [usize; 2]) {
        assert!(a.len() >= (M - 1) * strides[0] + panel.len() && sums.len() >= (M - 1) * strides[1] + PANEL);
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { attention::panel::<M>(panel.len(), a.as_ptr(), panel.as_ptr().cast(), sums.as_mut_ptr(), strides) }
    }

    #[inline(always)]
    fn turn_into_panel(self, rows: &[f32], stride: usize, panel: &mut [[f32; PANEL]]) {
        let width = panel.len();
        if rows.len() < (PANEL - 1) * stride + width || !width.is_multiple_of(8) {
            return super::Portable.turn_into_panel(rows, stride, panel);
        }
        for first in [0, 8] {
            for start in (0..width).step_by(8) {
                let at = |row: usize| rows[(first + row) * stride + start..][..8].as_ptr();
                // SAFETY: `self` proves the features; eight elements of eight rows were just checked, and there are eight rows of the
                // panel from `start` on.
                unsafe {
                    attention::turn(
                        std::array::from_fn(at),
                        panel.as_mut_ptr().cast::<f32>().add(start * PANEL + first),
                    );
                }
            }
        }
    }
}

impl Panels for Avx2 {
    type Base = Self;
    type Part = BytePart;

    const NO_ROWS: BytePart = BytePart::ZERO;
    const ROUNDED: Activations = Activations::Bundles;

    #[inline(always)]
    fn base(self) -> Self {
        self
    }

    #[inline(always)]
    fn panel_dots<const N: usize>(self, panel: &[[f32; PANEL_ROWS]], x: [&[u8]; N], sums: &mut [[f32; PANEL_ROWS]; N]) {
        check(x, panel.len() * 4);
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { panels::panel_dots(panel, x, sums) }
    }

    fn has_byte_panels<B: Blocks>() -> bool {
        bytes::has_panels::<B>()
    }

    #[inline(always)]
    fn pack_bytes<B: Blocks>(self, rows: &[(&[u8], usize)], first: usize, panel: &mut [BytePart]) {
        assert!(bytes::has_panels::<B>());
        check_parts::<B>(rows, first, panel.len());
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { bytes::pack::<B>(rows, first, panel) }
    }

    #[inline(always)]
    fn byte_dots<B: Blocks>(
        self,
        panel: &[BytePart],
        _k: usize,
        x: &[u8],
        first: usize,
        sums: &mut [[f32; PANEL_ROWS]; GROUP],
    ) {
        let bundle = &x[bundle_block(first)..];
        assert!(bundle.len() >= bundle_block(panel.len()));
        // SAFETY: `self` proves the features; the length was just checked.
        unsafe { bytes::dots(panel, bundle.as_ptr(), sums) }
    }
}
