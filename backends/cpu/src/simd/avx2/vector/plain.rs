//! Rows of floats.

use core::arch::x86_64::*;

use super::super::{
    load_bf16, load_f16, load_f32,
    products::{BF16, F16, F32},
};

/// Eight elements of a row from `start` on, zeros beyond its end.
///
/// # Safety
/// `w` must hold `k` elements of the dtype that `W` names.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load<const W: u8>(w: *const u8, start: usize, k: usize) -> __m256 {
    const { assert!(W == F32 || W == F16 || W == BF16) };
    // SAFETY: as the caller promises.
    unsafe {
        match W {
            F32 => load_f32(w, start, k),
            F16 => load_f16(w, start, k),
            _ => load_bf16(w, start, k),
        }
    }
}

/// How far ahead weights of two bytes are fetched into the second cache, and from there into the first. What is fetched into the first alone
/// waits in its few slots for as long as memory takes: on a Zen 4 server one thread decodes `f16` with 81 tokens/s like this, with 62 if all is
/// fetched into the first, with 69 without. Rows of f32 take so few instructions a line that the processor itself looks far enough ahead
/// (39 tokens/s without, 33–37 with), and those of blocks so many that lines which are only in the second cache come too late. All by
/// `entensor bench MODEL -t 1 -p 0 -n 64`.
const AHEAD_BYTES: [usize; 2] = [8192, 1024];

/// The product of a row of plain weights with f32 activations, in eight partial sums. Four vectors are summed side by side, so that no
/// addition waits for the one before.
///
/// # Safety
/// `w` must hold `k` elements of the dtype that `W` names, `x` `k` f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn row_plain<const W: u8>(w: *const u8, k: usize, x: *const u8) -> __m256 {
    let mut sums = [_mm256_setzero_ps(); 4];
    let whole = k - k % 32;
    for start in (0..whole).step_by(32) {
        if W != F32 {
            // Prefetching reads nothing: an address outside of memory is ignored.
            _mm_prefetch::<_MM_HINT_T1>(w.wrapping_add(start * 2 + AHEAD_BYTES[0]).cast());
            _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(start * 2 + AHEAD_BYTES[1]).cast());
        }
        for (i, sum) in sums.iter_mut().enumerate() {
            let at = start + 8 * i;
            // SAFETY: the eight elements lie before `whole`, which is at most `k`.
            *sum = unsafe { _mm256_fmadd_ps(load::<W>(w, at, at + 8), load_f32(x, at, at + 8), *sum) };
        }
    }
    let eights = k - k % 8;
    for at in (whole..eights).step_by(8) {
        // SAFETY: the eight elements lie before `eights`, which is at most `k`.
        sums[0] = unsafe { _mm256_fmadd_ps(load::<W>(w, at, at + 8), load_f32(x, at, at + 8), sums[0]) };
    }
    if eights < k {
        // SAFETY: the caller promises `k` elements.
        sums[1] = unsafe { _mm256_fmadd_ps(load::<W>(w, eights, k), load_f32(x, eights, k), sums[1]) };
    }
    _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]))
}
