//! AVX-512 with VNNI, where measurements show a gain: products with many rows of activations. Everything else is as fast or nearly so with
//! the vectors of AVX2, decoding too: there memory is the limit.
#![expect(unsafe_code, reason = "instructions beyond the target's baseline, and unaligned loads from checked slices")]

mod bytes;

use core::arch::x86_64::*;

use super::{Avx2, BLOCK, Blocks, GROUP, PANEL_ROWS, Panels, check_parts, group_bytes};
use crate::kernels::Activations;

pub(crate) use bytes::Part;

/// Proof that this CPU has AVX-512 F, BW and VNNI beside all of AVX2: only [`Avx512::detect`] makes one.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(Avx2);

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni");
        Avx2::detect().filter(|_| has).map(Self)
    }
}

impl Panels for Avx512 {
    type Base = Avx2;
    type Part = Part;

    const NO_ROWS: Part = Part::NO_ROWS;
    const ROUNDED: Activations = Activations::Shifted;

    #[inline(always)]
    fn base(self) -> Avx2 {
        self.0
    }

    #[inline(always)]
    fn panel_dots<const N: usize>(self, panel: &[[f32; PANEL_ROWS]], x: [&[u8]; N], sums: &mut [[f32; PANEL_ROWS]; N]) {
        assert!(x.iter().all(|x| x.len() >= panel.len() * 4));
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { panel_dots(panel, x.map(|x| x.as_ptr().cast()), sums) }
    }

    fn has_byte_panels<B: Blocks>() -> bool {
        bytes::has_panels::<B>()
    }

    #[inline(always)]
    fn pack_bytes<B: Blocks>(self, rows: &[(&[u8], usize)], first: usize, panel: &mut [Part]) {
        assert!(bytes::has_panels::<B>());
        check_parts::<B>(rows, first, panel.len());
        // SAFETY: `self` proves the features; the lengths were just checked.
        unsafe { bytes::pack::<B>(rows, first, panel) }
    }

    #[inline(always)]
    fn byte_dots<B: Blocks>(
        self,
        panel: &[Part],
        k: usize,
        x: &[u8],
        first: usize,
        sums: &mut [[f32; PANEL_ROWS]; GROUP],
    ) {
        assert!(x.len() >= group_bytes(k) && (first + panel.len()) * BLOCK <= k);
        // SAFETY: `self` proves the features; the blocks were just checked.
        unsafe {
            match (B::HALF_SCALES, B::OFFSETS) {
                (false, false) => bytes::dots::<false, false>(panel, k, x.as_ptr(), first, sums),
                (false, true) => bytes::dots::<false, true>(panel, k, x.as_ptr(), first, sums),
                (true, false) => bytes::dots::<true, false>(panel, k, x.as_ptr(), first, sums),
                (true, true) => bytes::dots::<true, true>(panel, k, x.as_ptr(), first, sums),
            }
        }
    }
}

/// A panel fills one vector at a time, and the element of each row of activations is spread by the instruction that multiplies.
///
/// # Safety
/// Every row of `x` must hold as many f32 as the panel is deep.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
unsafe fn panel_dots<const N: usize>(
    panel: &[[f32; PANEL_ROWS]],
    x: [*const f32; N],
    sums: &mut [[f32; PANEL_ROWS]; N],
) {
    let mut lanes = [_mm512_setzero_ps(); N];
    for (i, weights) in panel.iter().enumerate() {
        // SAFETY: sixteen elements, and one of each row, as the caller promises.
        unsafe {
            let weights = _mm512_loadu_ps(weights.as_ptr());
            for (lanes, x) in lanes.iter_mut().zip(x) {
                *lanes = _mm512_fmadd_ps(weights, _mm512_set1_ps(x.add(i).read_unaligned()), *lanes);
            }
        }
    }
    for (sums, lanes) in sums.iter_mut().zip(lanes) {
        // SAFETY: sixteen elements.
        unsafe {
            let at = sums.as_mut_ptr();
            _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), lanes));
        }
    }
}
