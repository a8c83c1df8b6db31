//! Products of a few rows with weights that stay in the caches.

use core::arch::x86_64::*;

use super::load_f32;

/// `R` rows of `k` elements, `x.1` apart, with a panel of `V` vectors of columns, which begins with where sums begin. The results lie `out.1`
/// apart.
///
/// # Safety
/// The rows, the panel (`k + 1` lines) and the results must lie in memory that may be read and written.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn add_columns<const R: usize, const V: usize>(
    k: usize,
    x: (*const f32, usize),
    panel: *const f32,
    out: (*mut f32, usize),
) {
    // SAFETY: the caller promises all that is read and written.
    unsafe {
        let start: [__m256; V] = std::array::from_fn(|v| _mm256_loadu_ps(panel.add(8 * v)));
        let mut sums = [start; R];
        for kk in 0..k {
            let line = panel.add((kk + 1) * V * 8);
            let w: [__m256; V] = std::array::from_fn(|v| _mm256_loadu_ps(line.add(8 * v)));
            for (row, sums) in sums.iter_mut().enumerate() {
                let a = _mm256_broadcast_ss(&*x.0.add(row * x.1 + kk));
                for v in 0..V {
                    sums[v] = _mm256_fmadd_ps(a, w[v], sums[v]);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                _mm256_storeu_ps(out.0.add(row * out.1 + 8 * v), *sum);
            }
        }
    }
}

/// The products of eight rows with one.
///
/// # Safety
/// All rows must hold `k` f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn eight_dots(k: usize, w: [&[u8]; 8], x: &[f32]) -> [f32; 8] {
    let mut sums = [_mm256_setzero_ps(); 8];
    for start in (0..k).step_by(8) {
        // SAFETY: the caller promises the elements before `k`, and no others are read.
        unsafe {
            let x = load_f32(x.as_ptr().cast(), start, k);
            for (sum, w) in sums.iter_mut().zip(&w) {
                *sum = _mm256_fmadd_ps(load_f32(w.as_ptr(), start, k), x, *sum);
            }
        }
    }
    // Neighbours are added up three times; each half of a vector then holds half of every sum.
    let pairs: [__m256; 4] = std::array::from_fn(|i| _mm256_hadd_ps(sums[2 * i], sums[2 * i + 1]));
    let fours: [__m256; 2] = std::array::from_fn(|i| _mm256_hadd_ps(pairs[2 * i], pairs[2 * i + 1]));
    let low = _mm256_permute2f128_ps::<0x20>(fours[0], fours[1]);
    let high = _mm256_permute2f128_ps::<0x31>(fours[0], fours[1]);
    let mut out = [0.0; 8];
    // SAFETY: eight elements.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_add_ps(low, high)) };
    out
}
