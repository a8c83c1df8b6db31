//! Byte panels for instructions that multiply bytes and add to 32 bits at once: quants of weights, sixteen rows side by side.
//!
//! A vector holds four neighbouring elements of all sixteen rows, as signed bytes, and meets four elements of a row of activations in all
//! its lanes. The instruction wants the other side unsigned, so activations come with 128 added ([`Activations::Shifted`]), and sums
//! begin with what takes that off again, which depends on the weights alone. So quants may have any sign and all eight bits.
//!
//! [`Activations::Shifted`]: crate::kernels::Activations::Shifted

use core::arch::x86_64::*;

use super::super::{
    BLOCK, GROUP, GroupLayout, PANEL_ROWS,
    avx2::{Head, Quants, Unpack, interleave_fours},
};

/// 32 elements of sixteen rows of weights, as signed bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Part {
    /// Fours of elements of all rows, those with an even index first.
    quants: [[u8; BLOCK]; PANEL_ROWS],
    /// What a step of each row is worth, in the first and the second half of the elements.
    scales: [[f32; PANEL_ROWS]; 2],
    /// What is added to every element of each row.
    offsets: [f32; PANEL_ROWS],
    /// What sums begin with: the even fours and the odd fours; where halves have scales of their own, those of the first half, then those
    /// of the second.
    starts: [[i32; PANEL_ROWS]; 4],
}

impl Part {
    pub(super) const NO_ROWS: Self = Self {
        quants: [[0; BLOCK]; PANEL_ROWS],
        scales: [[0.0; PANEL_ROWS]; 2],
        offsets: [0.0; PANEL_ROWS],
        starts: [[0; PANEL_ROWS]; 4],
    };
}

/// Whether a dtype has byte panels: offsets of halves would need sums of halves of activations, which nobody makes.
pub(super) const fn has_panels<B: Unpack>() -> bool {
    !B::HALF_OFFSETS
}

/// Vectors of each parity: fours with an even index are vectors 0 to 3, those with an odd one 4 to 7, in the order of elements.
const PARITY: usize = 4;

/// Packs parts of rows from part `first` on.
///
/// # Safety
/// Every row must hold the parts, in blocks that lie so many blocks behind each other as it says.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn pack<B: Unpack>(rows: &[(&[u8], usize)], first: usize, panel: &mut [Part]) {
    let parts = B::ELEMENTS / BLOCK;
    let mut quants = [[0_u8; BLOCK]; PANEL_ROWS];
    for (index, panel) in panel.iter_mut().enumerate() {
        let (block, part) = ((first + index) / parts, (first + index) % parts);
        for (row, &(bytes, step)) in rows.iter().enumerate().take(PANEL_ROWS) {
            let at = bytes.as_ptr().wrapping_add(block * step * B::BYTES);
            // SAFETY: the caller promises the block, and it has the part.
            unsafe {
                let head = B::head(at);
                let signed = match B::QUANTS {
                    Quants::Biased(bias) => _mm256_sub_epi8(B::quants(at, part), _mm256_set1_epi8(bias)),
                    Quants::Unsigned | Quants::Signed => B::quants(at, part),
                };
                _mm256_storeu_si256(quants[row].as_mut_ptr().cast(), signed);
                let scales = head.scales(part);
                panel.scales[0][row] = _mm256_cvtss_f32(scales);
                if B::HALF_SCALES {
                    panel.scales[1][row] = _mm_cvtss_f32(_mm256_extractf128_ps::<1>(scales));
                }
                if B::OFFSETS {
                    panel.offsets[row] = _mm256_cvtss_f32(head.offsets(part));
                }
            }
        }
        interleave_fours(&quants, &mut panel.quants);
        let fours = vectors(&panel.quants);
        // What 128 times the weights is, to be taken off.
        let minus = |fours: &[__m512i]| {
            let sum = fours
                .iter()
                .fold(_mm512_setzero_si512(), |sum, four| _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), *four));
            _mm512_sub_epi32(_mm512_setzero_si512(), sum)
        };
        let starts = if B::HALF_SCALES {
            [
                minus(&fours[..2]),
                minus(&fours[PARITY..PARITY + 2]),
                minus(&fours[2..PARITY]),
                minus(&fours[PARITY + 2..]),
            ]
        } else {
            [minus(&fours[..PARITY]), minus(&fours[PARITY..]), _mm512_setzero_si512(), _mm512_setzero_si512()]
        };
        for (start, v) in panel.starts.iter_mut().zip(starts) {
            // SAFETY: sixteen words.
            unsafe { _mm512_storeu_si512(start.as_mut_ptr().cast(), v) };
        }
    }
}

/// The fours of a part.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn vectors(quants: &[[u8; BLOCK]; PANEL_ROWS]) -> [__m512i; 8] {
    // SAFETY: eight vectors of 64 bytes.
    std::array::from_fn(|i| unsafe { _mm512_loadu_si512(quants.as_ptr().cast::<u8>().add(i * 64).cast()) })
}

/// Adds the products of a panel with the rows of a group, from block `first` on, to the sums of each.
///
/// # Safety
/// `group` must be a group of rows of `k` shifted activations that has as many blocks from `first` on as the panel has parts.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn dots<const HALVES: bool, const OFFSETS: bool>(
    panel: &[Part],
    k: usize,
    group: *const u8,
    first: usize,
    sums: &mut [[f32; PANEL_ROWS]; GROUP],
) {
    let layout = GroupLayout { k };
    // SAFETY: sixteen floats each.
    let mut lanes: [__m512; GROUP] = std::array::from_fn(|row| unsafe { _mm512_loadu_ps(sums[row].as_ptr()) });
    for (index, part) in panel.iter().enumerate() {
        let block = first + index;
        let w = vectors(&part.quants);
        // SAFETY: sixteen lanes each.
        let (starts, scales, offsets) = unsafe {
            (
                part.starts.each_ref().map(|start| _mm512_loadu_si512(start.as_ptr().cast())),
                part.scales.each_ref().map(|scales| _mm512_loadu_ps(scales.as_ptr())),
                _mm512_loadu_ps(part.offsets.as_ptr()),
            )
        };
        for (row, lanes) in lanes.iter_mut().enumerate() {
            // SAFETY: the caller promises the block.
            unsafe {
                let fours = group.add(layout.quants(row, block)).cast::<i32>();
                let scale = group.add(layout.scales(row, block)).cast::<f32>();
                let four = |i: usize| _mm512_set1_epi32(fours.add(i).read_unaligned());
                let add = |sum, i: usize| _mm512_dpbusd_epi32(sum, four(i % PARITY * 2 + i / PARITY), w[i]);
                let [even, odd] = [0, 1].map(|i| _mm512_set1_ps(scale.add(i).read_unaligned()));
                let both = |dots: [__m512i; 2]| {
                    let [e, o] = dots.map(|dots| _mm512_cvtepi32_ps(dots));
                    _mm512_fmadd_ps(o, odd, _mm512_mul_ps(e, even))
                };
                if HALVES {
                    let first = [add(add(starts[0], 0), 1), add(add(starts[1], 4), 5)];
                    let second = [add(add(starts[2], 2), 3), add(add(starts[3], 6), 7)];
                    *lanes = _mm512_fmadd_ps(both(first), scales[0], *lanes);
                    *lanes = _mm512_fmadd_ps(both(second), scales[1], *lanes);
                } else {
                    let dots = [add(add(add(add(starts[0], 0), 1), 2), 3), add(add(add(add(starts[1], 4), 5), 6), 7)];
                    *lanes = _mm512_fmadd_ps(both(dots), scales[0], *lanes);
                }
                if OFFSETS {
                    let sum = group.add(layout.sum(row, block)).cast::<f32>().read_unaligned();
                    *lanes = _mm512_fmadd_ps(offsets, _mm512_set1_ps(sum), *lanes);
                }
            }
        }
    }
    for (sums, lanes) in sums.iter_mut().zip(lanes) {
        // SAFETY: sixteen floats.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), lanes) };
    }
}
