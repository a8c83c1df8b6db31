//! Byte panels: quants of weights, sixteen rows side by side, and their products with rounded activations.
//!
//! A vector holds four neighbouring elements of eight rows, and meets four elements of a row of activations in all its lanes. So sums
//! stay in 16 bits for as long as activations share a scale, and are widened once for sixteen elements.

use core::arch::{asm, x86_64::*};

use super::{
    super::{BLOCK, BUNDLE_SCALES, BUNDLE_STEPS, BUNDLE_SUMS, BytePart, GROUP, PANEL_ROWS, STEPS_MOST, bundle_block},
    blocks::{Head, Quants, Unpack},
};

/// Whether a dtype has byte panels: one scale for 32 elements, and quants whose products with sixteen activations fit 16 bits; four
/// times 2 · 32 · 127 do.
pub(super) const fn has_panels<B: Unpack>() -> bool {
    let small = match B::QUANTS {
        Quants::Unsigned => true,
        Quants::Biased(bias) => bias <= 16,
        Quants::Signed => false,
    };
    small && !B::HALF_SCALES
}

/// Rounds a row of activations. See [`super::super::Level::round_bundle`].
///
/// # Safety
/// `bundle` must have these blocks.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn round_bundle(x: &[f32], row: usize, first: usize, bundle: *mut u8) {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    let infinity = _mm256_set1_epi32(f32::INFINITY.to_bits().cast_signed());
    for (b, block) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
        // SAFETY: a block is 32 elements.
        let v: [__m256; 4] = unsafe { std::array::from_fn(|i| _mm256_loadu_ps(block.as_ptr().add(8 * i))) };
        let bits = v.map(|v| _mm256_and_si256(_mm256_castps_si256(v), magnitude));
        // The low lanes of each vector are an even four, the high lanes an odd one.
        let most = _mm256_max_epi32(_mm256_max_epi32(bits[0], bits[1]), _mm256_max_epi32(bits[2], bits[3]));
        let most = _mm256_max_epi32(most, _mm256_shuffle_epi32::<0b01_00_11_10>(most));
        let most = _mm256_max_epi32(most, _mm256_shuffle_epi32::<0b10_11_00_01>(most));
        let finite = _mm256_cmpgt_epi32(infinity, most);
        let all_finite = _mm256_movemask_epi8(finite) == -1;
        let most = _mm256_castsi256_ps(_mm256_and_si256(most, finite));
        let scale = _mm256_div_ps(most, _mm256_set1_ps(127.0));
        let other = _mm256_set_m128(_mm256_castps256_ps128(scale), _mm256_extractf128_ps::<1>(scale));
        let unit = _mm256_mul_ps(_mm256_max_ps(scale, other), _mm256_set1_ps(1.0 / STEPS_MOST));
        // A subnormal scale has no finite inverse; such a block is zero for all purposes of a product.
        let normal = _mm256_cmp_ps::<_CMP_GE_OQ>(unit, _mm256_set1_ps(f32::MIN_POSITIVE));
        let steps = _mm256_and_ps(_mm256_ceil_ps(_mm256_div_ps(scale, unit)), normal);
        let step = _mm256_mul_ps(steps, unit);
        let nonzero = _mm256_cmp_ps::<_CMP_GT_OQ>(steps, _mm256_setzero_ps());
        let inverse = _mm256_and_ps(_mm256_div_ps(_mm256_set1_ps(1.0), step), nonzero);
        let q = v.map(|v| _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(v, inverse)), finite));
        let steps = _mm256_cvtps_epi32(steps);
        let total = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
        let total = _mm256_add_epi32(total, _mm256_shuffle_epi32::<0b01_00_11_10>(total));
        let total = _mm256_add_epi32(total, _mm256_shuffle_epi32::<0b10_11_00_01>(total));
        let total = _mm256_mullo_epi32(total, steps);
        let total = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256::<1>(total));
        let unit = _mm_and_ps(_mm256_castps256_ps128(unit), _mm256_castps256_ps128(normal));
        let unit = if all_finite { unit } else { _mm_set1_ps(f32::NAN) };
        let sum = _mm_mul_ss(unit, _mm_cvtepi32_ps(total));
        // Each number of steps twice, for products of pairs.
        let pairs = _mm256_or_si256(steps, _mm256_slli_epi32::<16>(steps));
        let pairs = _mm_unpacklo_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
        let words = [_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])];
        let bytes = _mm256_packs_epi16(words[0], words[1]);
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        // SAFETY: the quants, steps, scale and sum of a block that the caller promises.
        unsafe {
            let block = bundle.add(bundle_block(first + b));
            _mm256_storeu_si256(block.add(row * BLOCK).cast(), _mm256_permutevar8x32_epi32(bytes, order));
            _mm_storel_epi64(block.add(BUNDLE_STEPS + row * 8).cast(), pairs);
            block.add(BUNDLE_SCALES + row * 4).cast::<f32>().write_unaligned(_mm_cvtss_f32(unit));
            block.add(BUNDLE_SUMS + row * 4).cast::<f32>().write_unaligned(_mm_cvtss_f32(sum));
        }
    }
}

/// Packs parts of rows from part `first` on.
///
/// # Safety
/// Every row must hold the parts, in blocks that lie so many blocks behind each other as it says.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn pack<B: Unpack>(rows: &[(&[u8], usize)], first: usize, panel: &mut [BytePart]) {
    let parts = B::ELEMENTS / BLOCK;
    let mut quants = [[0_u8; BLOCK]; PANEL_ROWS];
    for (index, panel) in panel.iter_mut().enumerate() {
        let (block, part) = ((first + index) / parts, (first + index) % parts);
        for (row, &(bytes, step)) in rows.iter().enumerate().take(PANEL_ROWS) {
            let at = bytes.as_ptr().wrapping_add(block * step * B::BYTES);
            // SAFETY: the caller promises the block, and it has the part.
            unsafe {
                let head = B::head(at);
                _mm256_storeu_si256(quants[row].as_mut_ptr().cast(), B::quants(at, part));
                let scale = _mm256_cvtss_f32(head.scales(part));
                panel.scales[row] = scale;
                panel.offsets[row] = match B::QUANTS {
                    Quants::Biased(bias) => -scale * f32::from(bias),
                    Quants::Unsigned | Quants::Signed => _mm256_cvtss_f32(head.offsets(part)),
                };
            }
        }
        interleave(&quants, &mut panel.quants);
    }
}

/// Fours of all rows side by side, those with an even index first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn interleave(rows: &[[u8; BLOCK]; PANEL_ROWS], out: &mut [[u8; BLOCK]; PANEL_ROWS]) {
    for eight in 0..PANEL_ROWS / 8 {
        for half in 0..2 {
            let mut v = [_mm256_setzero_si256(); 4];
            for (i, v) in v.iter_mut().enumerate() {
                let (low, high) = (&rows[eight * 8 + i], &rows[eight * 8 + 4 + i]);
                // SAFETY: halves of 32 bytes.
                *v = unsafe {
                    _mm256_loadu2_m128i(high.as_ptr().add(half * 16).cast(), low.as_ptr().add(half * 16).cast())
                };
            }
            let [a, b, c, d] = v;
            let low = [_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d)];
            let high = [_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d)];
            let fours = [
                _mm256_unpacklo_epi64(low[0], low[1]),
                _mm256_unpackhi_epi64(low[0], low[1]),
                _mm256_unpacklo_epi64(high[0], high[1]),
                _mm256_unpackhi_epi64(high[0], high[1]),
            ];
            for (four, v) in fours.into_iter().enumerate() {
                let place = four % 2 * 4 + half * 2 + four / 2;
                // SAFETY: 32 bytes.
                unsafe { _mm256_storeu_si256(out[place * 2 + eight].as_mut_ptr().cast(), v) };
            }
        }
    }
}

/// Adds the products of a panel with the rows of a bundle to the sums of each.
///
/// # Safety
/// `bundle` must hold as many blocks as the panel has parts.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dots(panel: &[BytePart], bundle: *const u8, sums: &mut [[f32; PANEL_ROWS]; GROUP]) {
    for (index, part) in panel.iter().enumerate() {
        // SAFETY: the caller promises the block.
        unsafe {
            let block = bundle.add(bundle_block(index));
            row::<0>(part, block, sums);
            row::<1>(part, block, sums);
            row::<2>(part, block, sums);
            row::<3>(part, block, sums);
        }
    }
}

/// A part of a panel with row `R` of a block. In assembly for the order of instructions: compilers put those that wait for each other side
/// by side, which costs a fifth on CPUs that look less far ahead.
///
/// # Safety
/// `block` must point to a block of a bundle.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn row<const R: usize>(part: &BytePart, block: *const u8, sums: &mut [[f32; PANEL_ROWS]; GROUP]) {
    macro_rules! fours {
        ($x:literal, $w0:literal, $w1:literal, $s0:literal, $s1:literal) => {
            concat!(
                "vpbroadcastd {x}, [{block} + {quants} + ",
                $x,
                "]\n",
                "vmovdqa {w}, [{part} + ",
                $w0,
                "]\n",
                "vpmaddubsw {t}, {w}, {x}\n",
                "vpaddw ",
                $s0,
                ", ",
                $s0,
                ", {t}\n",
                "vmovdqa {w}, [{part} + ",
                $w1,
                "]\n",
                "vpmaddubsw {t}, {w}, {x}\n",
                "vpaddw ",
                $s1,
                ", ",
                $s1,
                ", {t}\n",
            )
        };
    }
    // SAFETY: the caller promises the block; everything else lies inside the part and the sums, which are aligned to 32 bytes or
    // loaded as if they were not.
    unsafe {
        asm!(
            "vpbroadcastd {x}, [{block} + {quants}]",
            "vmovdqa {w}, [{part}]",
            "vpmaddubsw {e0}, {w}, {x}",
            "vmovdqa {w}, [{part} + 32]",
            "vpmaddubsw {e1}, {w}, {x}",
            fours!(8, 64, 96, "{e0}", "{e1}"),
            fours!(16, 128, 160, "{e0}", "{e1}"),
            fours!(24, 192, 224, "{e0}", "{e1}"),
            "vpbroadcastd {x}, [{block} + {quants} + 4]",
            "vmovdqa {w}, [{part} + 256]",
            "vpmaddubsw {o0}, {w}, {x}",
            "vmovdqa {w}, [{part} + 288]",
            "vpmaddubsw {o1}, {w}, {x}",
            fours!(12, 320, 352, "{o0}", "{o1}"),
            fours!(20, 384, 416, "{o0}", "{o1}"),
            fours!(28, 448, 480, "{o0}", "{o1}"),
            "vpbroadcastd {x}, [{block} + {steps}]",
            "vpmaddwd {e0}, {e0}, {x}",
            "vpmaddwd {e1}, {e1}, {x}",
            "vpbroadcastd {x}, [{block} + {steps} + 4]",
            "vpmaddwd {o0}, {o0}, {x}",
            "vpmaddwd {o1}, {o1}, {x}",
            "vpaddd {e0}, {e0}, {o0}",
            "vpaddd {e1}, {e1}, {o1}",
            "vcvtdq2ps {e0}, {e0}",
            "vcvtdq2ps {e1}, {e1}",
            "vbroadcastss {x}, [{block} + {scale}]",
            "vmulps {e0}, {e0}, {x}",
            "vmulps {e1}, {e1}, {x}",
            "vbroadcastss {x}, [{block} + {sum}]",
            "vmovups {o0}, [{sums} + {at}]",
            "vfmadd231ps {o0}, {x}, [{part} + 576]",
            "vfmadd231ps {o0}, {e0}, [{part} + 512]",
            "vmovups [{sums} + {at}], {o0}",
            "vmovups {o1}, [{sums} + {at} + 32]",
            "vfmadd231ps {o1}, {x}, [{part} + 608]",
            "vfmadd231ps {o1}, {e1}, [{part} + 544]",
            "vmovups [{sums} + {at} + 32], {o1}",
            part = in(reg) part,
            block = in(reg) block,
            sums = in(reg) sums,
            quants = const R * BLOCK,
            steps = const BUNDLE_STEPS + R * 8,
            scale = const BUNDLE_SCALES + R * 4,
            sum = const BUNDLE_SUMS + R * 4,
            at = const R * PANEL_ROWS * 4,
            x = out(ymm_reg) _,
            w = out(ymm_reg) _,
            t = out(ymm_reg) _,
            e0 = out(ymm_reg) _,
            e1 = out(ymm_reg) _,
            o0 = out(ymm_reg) _,
            o1 = out(ymm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}
