//! Panels: weights decoded to f32, sixteen rows side by side, and their products.

use core::arch::{asm, x86_64::*};

use super::{
    super::{BLOCK, PANEL_DEPTH, PANEL_ROWS, Panel, PanelRows},
    blocks::{Head, Quants, Unpack},
};

/// # Safety
/// `row` must hold every block that is decoded: `out.len() / B::ELEMENTS` from block `first` on, each `step` blocks behind the last.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn decode_blocks<B: Unpack>(row: *const u8, step: usize, first: usize, out: &mut [f32]) {
    for (index, out) in out.chunks_exact_mut(B::ELEMENTS).enumerate() {
        let block = row.wrapping_add((first + index) * step * B::BYTES);
        // SAFETY: the caller promises the block.
        let head = unsafe { B::head(block) };
        for (part, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            // SAFETY: the caller promises the block, and it has the part.
            let (quants, scales) = unsafe { (B::quants(block, part), head.scales(part)) };
            let quants = if let Quants::Biased(bias) = B::QUANTS {
                _mm256_sub_epi8(quants, _mm256_set1_epi8(bias))
            } else {
                quants
            };
            let halves = [_mm256_castsi256_si128(quants), _mm256_extracti128_si256::<1>(quants)];
            let scales = both_halves(scales);
            let offsets = if B::OFFSETS {
                // SAFETY: this function has the features.
                both_halves(unsafe { head.offsets(part) })
            } else {
                [_mm256_setzero_ps(); 2]
            };
            for half in 0..2 {
                let eights = [halves[half], _mm_srli_si128::<8>(halves[half])];
                for (eight, bytes) in eights.into_iter().enumerate() {
                    let values = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
                    let values = if B::OFFSETS {
                        _mm256_fmadd_ps(values, scales[half], offsets[half])
                    } else {
                        _mm256_mul_ps(values, scales[half])
                    };
                    // SAFETY: eight of the part's 32 elements.
                    unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(half * 16 + eight * 8), values) };
                }
            }
        }
    }
}

/// The low lanes in both halves, and the high ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn both_halves(v: __m256) -> [__m256; 2] {
    let (low, high) = (_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    [_mm256_set_m128(low, low), _mm256_set_m128(high, high)]
}

/// Four elements of eight rows at a time: each half of a vector has four rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn interleave(rows: &PanelRows, depth: usize, panel: &mut Panel) {
    for start in (0..depth.min(PANEL_DEPTH)).step_by(4) {
        for eight in 0..PANEL_ROWS / 8 {
            let mut v = [_mm256_setzero_ps(); 4];
            for (i, v) in v.iter_mut().enumerate() {
                let (low, high) = (&rows[eight * 8 + i], &rows[eight * 8 + 4 + i]);
                // SAFETY: rows are a multiple of four long, and `start` is one below their length.
                *v = unsafe { _mm256_loadu2_m128(high.as_ptr().add(start), low.as_ptr().add(start)) };
            }
            let [a, b, c, d] = v;
            let pairs = [
                _mm256_unpacklo_ps(a, b),
                _mm256_unpacklo_ps(c, d),
                _mm256_unpackhi_ps(a, b),
                _mm256_unpackhi_ps(c, d),
            ];
            let columns = [
                _mm256_shuffle_ps::<0b01_00_01_00>(pairs[0], pairs[1]),
                _mm256_shuffle_ps::<0b11_10_11_10>(pairs[0], pairs[1]),
                _mm256_shuffle_ps::<0b01_00_01_00>(pairs[2], pairs[3]),
                _mm256_shuffle_ps::<0b11_10_11_10>(pairs[2], pairs[3]),
            ];
            for (column, panel) in columns.into_iter().zip(&mut panel[start..start + 4]) {
                // SAFETY: eight of sixteen elements.
                unsafe { _mm256_storeu_ps(panel.as_mut_ptr().add(eight * 8), column) };
            }
        }
    }
}

/// Rows of activations that meet a panel at once: as many sums as registers hold beside two vectors of weights.
const ROWS: usize = 6;

/// In assembly, since compilers load several elements of a row at once and then lack the registers to keep sums in.
///
/// # Safety
/// Every row of `x` must hold as many f32 as the panel is deep.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn panel_dots<const N: usize>(
    panel: &[[f32; PANEL_ROWS]],
    x: [&[u8]; N],
    sums: &mut [[f32; PANEL_ROWS]; N],
) {
    const { assert!(N > 0 && N <= ROWS) };
    if panel.is_empty() {
        return;
    }
    // Where there are fewer rows, the last one counts for those that are missing, and their sums are dropped.
    let x: [*const u8; ROWS] = std::array::from_fn(|row| x[row.min(N - 1)].as_ptr());
    let mut lanes = [[_mm256_setzero_ps(); 2]; ROWS];
    let [[a0, a1], [b0, b1], [c0, c1], [d0, d1], [e0, e1], [f0, f1]] = &mut lanes;
    // SAFETY: reads as many elements of each row as the panel has, as the caller promises.
    unsafe {
        asm!(
            "2:",
            "vmovups {w0}, [{panel}]",
            "vmovups {w1}, [{panel} + 32]",
            "vbroadcastss {v}, [{a} + 4*{i}]",
            "vfmadd231ps {a0}, {w0}, {v}",
            "vfmadd231ps {a1}, {w1}, {v}",
            "vbroadcastss {v}, [{b} + 4*{i}]",
            "vfmadd231ps {b0}, {w0}, {v}",
            "vfmadd231ps {b1}, {w1}, {v}",
            "vbroadcastss {v}, [{c} + 4*{i}]",
            "vfmadd231ps {c0}, {w0}, {v}",
            "vfmadd231ps {c1}, {w1}, {v}",
            "vbroadcastss {v}, [{d} + 4*{i}]",
            "vfmadd231ps {d0}, {w0}, {v}",
            "vfmadd231ps {d1}, {w1}, {v}",
            "vbroadcastss {v}, [{e} + 4*{i}]",
            "vfmadd231ps {e0}, {w0}, {v}",
            "vfmadd231ps {e1}, {w1}, {v}",
            "vbroadcastss {v}, [{f} + 4*{i}]",
            "vfmadd231ps {f0}, {w0}, {v}",
            "vfmadd231ps {f1}, {w1}, {v}",
            "add {panel}, 64",
            "add {i}, 1",
            "cmp {i}, {depth}",
            "jb 2b",
            panel = inout(reg) panel.as_ptr() => _,
            i = inout(reg) 0_usize => _,
            depth = in(reg) panel.len(),
            a = in(reg) x[0],
            b = in(reg) x[1],
            c = in(reg) x[2],
            d = in(reg) x[3],
            e = in(reg) x[4],
            f = in(reg) x[5],
            w0 = out(ymm_reg) _,
            w1 = out(ymm_reg) _,
            v = out(ymm_reg) _,
            a0 = inout(ymm_reg) *a0,
            a1 = inout(ymm_reg) *a1,
            b0 = inout(ymm_reg) *b0,
            b1 = inout(ymm_reg) *b1,
            c0 = inout(ymm_reg) *c0,
            c1 = inout(ymm_reg) *c1,
            d0 = inout(ymm_reg) *d0,
            d1 = inout(ymm_reg) *d1,
            e0 = inout(ymm_reg) *e0,
            e1 = inout(ymm_reg) *e1,
            f0 = inout(ymm_reg) *f0,
            f1 = inout(ymm_reg) *f1,
            options(nostack, readonly),
        );
    }
    for (sums, lanes) in sums.iter_mut().zip(lanes) {
        for (eight, lanes) in lanes.into_iter().enumerate() {
            // SAFETY: eight of sixteen elements.
            unsafe {
                let at = sums.as_mut_ptr().add(eight * 8);
                _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), lanes));
            }
        }
    }
}
