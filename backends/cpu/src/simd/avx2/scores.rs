//! From the scores of attention to weights. By hand: the compiler makes single comparisons of a loop that looks for the largest, and does not
//! add up what it has just computed.

use core::arch::x86_64::*;

use super::sum_lanes;
use crate::math::{EXP_BELOW_ZERO, EXP_LEAST, EXP_ROUND, LN_2_HIGH, LN_2_LOW};

/// See [`Level::mask_scores`](super::Level::mask_scores).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn mask_scores(scores: &mut [[f32; 8]], scale: f32, mask: Option<(&[[f32; 8]], f32)>, most: f32) -> f32 {
    let scale = _mm256_set1_ps(scale);
    let out = _mm256_set1_ps(f32::NEG_INFINITY);
    // By turns, so that no comparison waits for the one before.
    let mut largest = [_mm256_set1_ps(most); 4];
    if let Some((mask, slope)) = mask {
        let slope = _mm256_set1_ps(slope);
        for (i, (scores, mask)) in scores.iter_mut().zip(mask).enumerate() {
            // SAFETY: eight elements each.
            unsafe {
                let mask = _mm256_loadu_ps(mask.as_ptr());
                let scaled = _mm256_mul_ps(_mm256_loadu_ps(scores.as_ptr()), scale);
                let masked = _mm256_add_ps(scaled, _mm256_mul_ps(slope, mask));
                let masked = _mm256_blendv_ps(masked, out, _mm256_cmp_ps::<_CMP_EQ_OQ>(mask, out));
                _mm256_storeu_ps(scores.as_mut_ptr(), masked);
                // Of NaN and a number it is the second operand.
                largest[i % 4] = _mm256_max_ps(masked, largest[i % 4]);
            }
        }
    } else {
        for (i, scores) in scores.iter_mut().enumerate() {
            // SAFETY: eight elements.
            unsafe {
                let scaled = _mm256_mul_ps(_mm256_loadu_ps(scores.as_ptr()), scale);
                _mm256_storeu_ps(scores.as_mut_ptr(), scaled);
                largest[i % 4] = _mm256_max_ps(scaled, largest[i % 4]);
            }
        }
    }
    let eight = _mm256_max_ps(_mm256_max_ps(largest[0], largest[1]), _mm256_max_ps(largest[2], largest[3]));
    let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

/// See [`Level::weigh_scores`](super::Level::weigh_scores). Operation by operation as [`crate::math::exp_below_zero`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn weigh_scores(scores: &mut [[f32; 8]], reference: f32) -> f32 {
    let reference = _mm256_set1_ps(reference);
    let round = _mm256_set1_ps(EXP_ROUND);
    let mut sum = _mm256_setzero_ps();
    for scores in scores {
        // SAFETY: eight elements.
        let x = unsafe { _mm256_sub_ps(_mm256_loadu_ps(scores.as_ptr()), reference) };
        let bounded = _mm256_max_ps(_mm256_set1_ps(EXP_LEAST), x);
        let shifted = _mm256_fmadd_ps(bounded, _mm256_set1_ps(std::f32::consts::LOG2_E), round);
        let n = _mm256_sub_ps(shifted, round);
        let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN_2_HIGH), bounded);
        let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN_2_LOW), r);
        let mut p = _mm256_set1_ps(EXP_BELOW_ZERO[0]);
        for coefficient in &EXP_BELOW_ZERO[1..] {
            p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(*coefficient));
        }
        // The whole number in the low bits becomes the exponent; the bits above it are shifted out.
        let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
        let power = _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_castps_si256(_mm256_set1_ps(1.0))));
        let is_there = _mm256_cmp_ps::<_CMP_NEQ_UQ>(x, _mm256_set1_ps(f32::NEG_INFINITY));
        let weight = _mm256_and_ps(_mm256_mul_ps(p, power), is_there);
        // SAFETY: eight elements.
        unsafe { _mm256_storeu_ps(scores.as_mut_ptr(), weight) };
        sum = _mm256_add_ps(sum, weight);
    }
    sum_lanes(sum)
}
