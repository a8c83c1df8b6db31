//! Products of rows, sixteen side by side or one alone, with weights that stay in the caches.

use core::arch::x86_64::*;

use super::{super::PANEL, load_f32};
use crate::kernels::LayerProduct;

/// Where a layer's weights lie, and what is added to the sums.
#[derive(Clone, Copy)]
struct Weights {
    first: *const u8,
    stride_bytes: usize,
    k: usize,
    bias: *const f32,
    relu: bool,
}

impl Weights {
    fn of(layer: &LayerProduct<'_>) -> Self {
        let LayerProduct { k, rows, bias, relu } = *layer;
        Self { first: rows.bytes.as_ptr(), stride_bytes: rows.stride_bytes, k, bias: bias.as_ptr().cast(), relu }
    }

    fn row(self, j: usize) -> *const u8 {
        self.first.wrapping_add(j * self.stride_bytes)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn finish(self, sum: __m256) -> __m256 {
        // The maximum of NaN and zero is the second operand.
        if self.relu { _mm256_max_ps(sum, _mm256_setzero_ps()) } else { sum }
    }
}

/// `R` rows of weights from `j` on with `V` vectors of rows of activations.
///
/// # Safety
/// The rows of weights and their biases must be there, as many lines of `x` as they have elements, and `R` lines of `out`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn some_rows<const R: usize, const V: usize>(w: Weights, j: usize, x: *const f32, out: *mut f32) {
    // SAFETY: the caller promises all that is read and written.
    unsafe {
        let rows: [*const u8; R] = std::array::from_fn(|r| w.row(j + r));
        let mut sums: [[__m256; V]; R] =
            std::array::from_fn(|r| [_mm256_set1_ps(w.bias.add(j + r).read_unaligned()); V]);
        for i in 0..w.k {
            let line: [__m256; V] = std::array::from_fn(|v| _mm256_loadu_ps(x.add(i * PANEL + 8 * v)));
            for (sums, row) in sums.iter_mut().zip(&rows) {
                let weight = _mm256_set1_ps(row.add(4 * i).cast::<f32>().read_unaligned());
                for (sum, line) in sums.iter_mut().zip(&line) {
                    *sum = _mm256_fmadd_ps(*line, weight, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                _mm256_storeu_ps(out.add(r * PANEL + 8 * v), w.finish(*sum));
            }
        }
    }
}

/// All rows of weights, `R` at a time: as many sums as registers hold beside a line and a weight.
///
/// # Safety
/// As for [`lines_product`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn all_rows<const R: usize, const V: usize>(w: Weights, x: *const f32, out: &mut [[f32; PANEL]]) {
    let m = out.len();
    let out = out.as_mut_ptr().cast::<f32>();
    let mut j = 0;
    // SAFETY: rows, biases and lines before `m` are there.
    unsafe {
        // Twice four are faster than six and two, which wait for their own sums.
        while j + R <= m && m - j != 8 {
            some_rows::<R, V>(w, j, x, out.add(j * PANEL));
            j += R;
        }
        while j + 4 <= m {
            some_rows::<4, V>(w, j, x, out.add(j * PANEL));
            j += 4;
        }
        while j + 2 <= m {
            some_rows::<2, V>(w, j, x, out.add(j * PANEL));
            j += 2;
        }
        if j < m {
            some_rows::<1, V>(w, j, x, out.add(j * PANEL));
        }
    }
}

/// See [`Level::lines_product`](super::Level::lines_product).
///
/// # Safety
/// The layer must have `out.len()` rows of weights and biases, and `x` a line for each of their elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn lines_product(
    layer: &LayerProduct<'_>,
    rows: usize,
    x: &[[f32; PANEL]],
    out: &mut [[f32; PANEL]],
) {
    let (w, x) = (Weights::of(layer), x.as_ptr().cast());
    // SAFETY: the caller promises them.
    unsafe { if rows <= PANEL / 2 { all_rows::<12, 1>(w, x, out) } else { all_rows::<6, 2>(w, x, out) } }
}

/// The sums of the lanes of eight vectors: neighbours are added up three times.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_eight(v: [__m256; 8]) -> __m256 {
    let pair = |a, b| _mm256_add_ps(_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b));
    let low = pair(pair(v[0], v[1]), pair(v[2], v[3]));
    let high = pair(pair(v[4], v[5]), pair(v[6], v[7]));
    // Each half of a vector holds half of every sum.
    _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
}

/// The products of eight rows of weights with one row, of `B` vectors if that is not 0: addresses are then known beforehand.
///
/// # Safety
/// All rows must hold `w.k` f32, which are `B` whole vectors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn eight_dots<const B: usize>(w: Weights, rows: [*const u8; 8], x: *const u8) -> __m256 {
    let k = if B > 0 { 8 * B } else { w.k };
    let mut sums = [_mm256_setzero_ps(); 8];
    for start in (0..k).step_by(8) {
        // SAFETY: the caller promises the elements before `k`, and no others are read.
        unsafe {
            let x = load_f32(x, start, k);
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum = _mm256_fmadd_ps(load_f32(row, start, k), x, *sum);
            }
        }
    }
    sum_eight(sums)
}

/// # Safety
/// As for [`row_product`], for rows of `B` vectors, or of any length if that is 0.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn row_of<const B: usize>(w: Weights, x: *const u8, out: &mut [f32]) {
    let m = out.len();
    if m < 8 {
        if m > 0 {
            let mut eight = [0.0; 8];
            // SAFETY: the caller promises rows and biases before `m`; the last row is computed several times.
            unsafe {
                let sums = eight_dots::<B>(w, std::array::from_fn(|r| w.row(r.min(m - 1))), x);
                let sums = w.finish(_mm256_add_ps(sums, load_f32(w.bias.cast(), 0, m)));
                _mm256_storeu_ps(eight.as_mut_ptr(), sums);
            }
            out.copy_from_slice(&eight[..m]);
        }
        return;
    }
    for first in (0..m).step_by(8) {
        // The last eight may be some that were computed already.
        let at = first.min(m - 8);
        // SAFETY: the caller promises rows and biases before `m`.
        unsafe {
            let sums = eight_dots::<B>(w, std::array::from_fn(|r| w.row(at + r)), x);
            let sums = w.finish(_mm256_add_ps(sums, _mm256_loadu_ps(w.bias.add(at))));
            _mm256_storeu_ps(out.as_mut_ptr().add(at), sums);
        }
    }
}

/// See [`Level::row_product`](super::Level::row_product).
///
/// # Safety
/// The layer must have `out.len()` rows of weights and biases, and `x` an f32 for each of their elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn row_product(layer: &LayerProduct<'_>, x: &[u8], out: &mut [f32]) {
    let (w, x) = (Weights::of(layer), x.as_ptr());
    // SAFETY: the caller promises them.
    unsafe {
        match layer.k {
            8 => row_of::<1>(w, x, out),
            16 => row_of::<2>(w, x, out),
            24 => row_of::<3>(w, x, out),
            32 => row_of::<4>(w, x, out),
            48 => row_of::<6>(w, x, out),
            64 => row_of::<8>(w, x, out),
            _ => row_of::<0>(w, x, out),
        }
    }
}
