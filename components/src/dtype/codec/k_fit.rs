//! The search for scales of the K types: each run of 16 or 32 elements is fitted by itself, then the scales found are
//! rounded to small multiples of one f16, and the quants are chosen once more for what the scales have become.

use super::{extreme, inverse, nearest, write_f16};

/// Elements of a block.
const BLOCK: usize = 256;

/// Lanes of a sum: a fixed order that compilers can vectorize.
const LANES: usize = 8;

/// Sums `f` over the `N` elements of a run.
fn sum<const S: usize, const N: usize>(f: impl Fn(usize) -> [f32; S]) -> [f32; S] {
    let mut lanes = [[0.0; LANES]; S];
    for start in (0..N).step_by(LANES) {
        for lane in 0..LANES {
            for (sums, v) in lanes.iter_mut().zip(f(start + lane)) {
                sums[lane] += v;
            }
        }
    }
    lanes.map(|lanes| lanes.iter().sum())
}

/// How much an element counts: the large ones more than the small, since products see them, but the small ones too.
fn weights<const N: usize>(unit: &[f32; N]) -> [f32; N] {
    let [squares] = sum::<1, N>(|i| [unit[i] * unit[i]]);
    let typical = (squares / N as f32).sqrt();
    unit.map(|v| typical + v.abs())
}

/// A block of a type without minima: quants from `−half` to `half − 1`, stored with `half` added.
pub(super) struct Signed {
    pub(super) scales: [i8; 16],
    pub(super) quants: [u8; BLOCK],
}

/// The scale for a run: of some around the one that turns the largest magnitude into `−half`, each improved by least
/// squares, the one that leaves the least error.
fn fit_scale(x: &[f32; 16], half: f32) -> f32 {
    let extreme = extreme(x);
    // No f16 is that small.
    if extreme.abs() < f32::MIN_POSITIVE {
        return 0.0;
    }
    let unit = x.map(|v| v / extreme);
    let weights = weights(&unit);
    let (mut best_gain, mut best) = (0.0, 0.0);
    for step in -9_i8..=9 {
        let inverse = -half + 0.1 * f32::from(step);
        let quants = unit.map(|v| nearest(v * inverse).clamp(-half, half - 1.0));
        let [with_x, with_self] = sum::<2, 16>(|i| {
            let weighted = weights[i] * quants[i];
            [weighted * unit[i], weighted * quants[i]]
        });
        // The squares that the best multiple of the quants takes off.
        let gain = with_x * with_x / with_self;
        if gain > best_gain {
            (best_gain, best) = (gain, with_x / with_self);
        }
    }
    best * extreme
}

impl Signed {
    /// Fits a block whose scales are integers from `−top` to `top − 1`, and writes what a step of them is worth.
    pub(super) fn fit(x: &[f32], half: i8, top: u8, d: &mut [u8]) -> Self {
        let (half, top) = (f32::from(half), f32::from(top));
        let runs = x[..BLOCK].as_chunks::<16>().0;
        let mut fitted = [0.0; 16];
        for (scale, run) in fitted.iter_mut().zip(runs) {
            *scale = fit_scale(run, half);
        }
        // The largest scale becomes the lowest integer, whatever its sign.
        let d = write_f16(d, 0, extreme(&fitted) / -top);
        let to_steps = inverse(d);
        let scales = fitted.map(|s| nearest((s * to_steps).clamp(-top, top - 1.0)));
        let mut quants = [0; BLOCK];
        for (j, (quants, run)) in quants.as_chunks_mut::<16>().0.iter_mut().zip(runs).enumerate() {
            let inverse = inverse(d * scales[j]);
            for (q, v) in quants.iter_mut().zip(run) {
                *q = (nearest((v * inverse).clamp(-half, half - 1.0)) + half) as u8;
            }
        }
        Self { scales: scales.map(|s| s as i8), quants }
    }
}

/// A block of a type with minima: element = `scale · quant − minimum`.
pub(super) struct Affine<const RUNS: usize> {
    pub(super) scales: [u8; RUNS],
    pub(super) minima: [u8; RUNS],
    pub(super) quants: [u8; BLOCK],
}

/// Scale and minimum for a run, neither negative. Candidates for the scale lie around an equal division of the range,
/// and each is improved by least squares of both numbers.
fn fit_line<const N: usize>(x: &[f32; N], top: f32) -> (f32, f32) {
    let magnitude = extreme(x).abs();
    // No f16 is that small.
    if magnitude < f32::MIN_POSITIVE {
        return (0.0, 0.0);
    }
    let unit = x.map(|v| v / magnitude);
    // A minimum cannot lift elements, so the range begins at zero at the latest.
    let low = unit.iter().copied().fold(0.0, f32::min);
    let high = unit.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if high == low {
        return (0.0, -low * magnitude);
    }
    let weights = weights(&unit);
    let [w, wx] = sum::<2, N>(|i| [weights[i], weights[i] * unit[i]]);
    let (mut least, mut best) = (f32::INFINITY, (0.0, -low));
    for step in -5_i8..=10 {
        let inverse = (top + 0.1 * f32::from(step)) / (high - low);
        let quants = unit.map(|v| nearest(((v - low) * inverse).clamp(0.0, top)));
        let [wq, wqq, wqx] = sum::<3, N>(|i| {
            let weighted = weights[i] * quants[i];
            [weighted, weighted * quants[i], weighted * unit[i]]
        });
        let determinant = w * wqq - wq * wq;
        let mut line = ((w * wqx - wq * wx) / determinant, (wqq * wx - wq * wqx) / determinant);
        // A minimum below zero there is none, and equal quants leave the choice of a line to rounding errors.
        if determinant < 1e-6 * w * wqq || line.1 > 0.0 {
            line = (wqx / wqq, 0.0);
        }
        let (scale, offset) = line;
        // The squares that are left, but for a constant.
        let error = scale * scale * wqq + offset * offset * w + 2.0 * (scale * offset * wq - scale * wqx - offset * wx);
        if scale > 0.0 && error < least {
            (least, best) = (error, (scale, -offset));
        }
    }
    (best.0 * magnitude, best.1 * magnitude)
}

impl<const RUNS: usize> Affine<RUNS> {
    /// Fits a block in runs of `N` whose quants go up to `top` and whose scales and minima up to `steps`, and writes what a
    /// step of a scale and of a minimum is worth.
    pub(super) fn fit<const N: usize>(x: &[f32], top: u8, steps: u8, worth: &mut [u8]) -> Self {
        const { assert!(RUNS * N == BLOCK && N.is_multiple_of(LANES)) };
        let (top, steps) = (f32::from(top), f32::from(steps));
        let runs = x[..BLOCK].as_chunks::<N>().0;
        let mut lines = [(0.0, 0.0); RUNS];
        for (line, run) in lines.iter_mut().zip(runs) {
            *line = fit_line(run, top);
        }
        let largest = |v: [f32; RUNS]| v.iter().copied().fold(0.0, f32::max);
        let d = write_f16(worth, 0, largest(lines.map(|l| l.0)) / steps);
        let dmin = write_f16(worth, 2, largest(lines.map(|l| l.1)) / steps);
        let to_steps = [inverse(d), inverse(dmin)];
        let scales = lines.map(|l| nearest((l.0 * to_steps[0]).clamp(0.0, steps)));
        let minima = lines.map(|l| nearest((l.1 * to_steps[1]).clamp(0.0, steps)));
        let mut quants = [0; BLOCK];
        for (j, (quants, run)) in quants.as_chunks_mut::<N>().0.iter_mut().zip(runs).enumerate() {
            let (inverse, min) = (inverse(d * scales[j]), dmin * minima[j]);
            for (q, v) in quants.iter_mut().zip(run) {
                *q = nearest(((v + min) * inverse).clamp(0.0, top)) as u8;
            }
        }
        Self { scales: scales.map(|s| s as u8), minima: minima.map(|m| m as u8), quants }
    }
}
