//! Functions that the compiler can vectorize: no branches, no calls.
//!
//! What is needed once a row or more rarely comes from the `libm` crate. The C library's functions are called nowhere: it has several of
//! each and takes the one that suits the processor, so their last bits change from machine to machine.

use crate::simd::Level;

// ln 2 in two parts; the first has few enough bits that a small integer times it is exact.
pub(crate) const LN_2_HIGH: f32 = 355.0 / 512.0;
pub(crate) const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `x = n·ln 2 + r` with |r| ≤ ln 2 / 2; gives n and `e^r - 1`, by a Taylor polynomial whose first left-out term is below
/// 1e-8. For |x| up to a few hundred.
#[inline(always)]
fn reduced_exp_m1(x: f32) -> (i32, f32) {
    let shifted = x * std::f32::consts::LOG2_E + EXP_ROUND;
    let n = shifted - EXP_ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        p = p * r + coefficient;
    }
    (shifted.to_bits().wrapping_sub(EXP_ROUND.to_bits()).cast_signed(), p * r * r + r)
}

/// 2^n for exponents of normal floats; anything for others.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(n.wrapping_add(127).cast_unsigned() << 23)
}

/// `e^x`, within 2 units in the last place; infinities and NaN as in IEEE, results below the smallest float are 0.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Comparing this way round keeps NaN.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -105.0 { -105.0 } else { x };
    let (n, m1) = reduced_exp_m1(x);
    // In two factors, since n reaches beyond the exponents of normal floats on both sides.
    let half = n >> 1;
    (m1 + 1.0) * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// Adding it leaves the nearest integer in the low bits of the mantissa: 1.5 · 2^23.
pub(crate) const EXP_ROUND: f32 = 12_582_912.0;

/// Below, exponentials of numbers up to 0 are all alike.
pub(crate) const EXP_LEAST: f32 = -87.0;

/// The Taylor polynomial of `e^r`, the highest power first.
pub(crate) const EXP_BELOW_ZERO: [f32; 8] =
    [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

/// `e^x` for x up to 0, within 2 units in the last place down to -87; below, something under 2e-38, and 0 for minus infinity.
#[inline(always)]
pub(crate) fn exp_below_zero<L: Level>(level: L, x: f32) -> f32 {
    // Comparing this way round keeps NaN.
    let bounded = if x < EXP_LEAST { EXP_LEAST } else { x };
    let shifted = level.mul_add(bounded, std::f32::consts::LOG2_E, EXP_ROUND);
    let n = shifted - EXP_ROUND;
    let r = level.mul_add(n, -LN_2_LOW, level.mul_add(n, -LN_2_HIGH, bounded));
    let mut p = EXP_BELOW_ZERO[0];
    for coefficient in &EXP_BELOW_ZERO[1..] {
        p = level.mul_add(p, r, *coefficient);
    }
    let power = power_of_two(shifted.to_bits().wrapping_sub(EXP_ROUND.to_bits()).cast_signed());
    if x == f32::NEG_INFINITY { 0.0 } else { p * power }
}

/// `e^x - 1` for x up to 0, within a unit in the last place.
#[inline(always)]
fn exp_m1_below_zero(x: f32) -> f32 {
    // Below, the result is -1 to the last place.
    let x = if x < -20.0 { -20.0 } else { x };
    let (n, m1) = reduced_exp_m1(x);
    let power = power_of_two(n);
    m1 * power + (power - 1.0)
}

/// The natural logarithm, within 2 units in the last place, subnormals included.
///
/// `x = m·2^n` with m between √½ and √2; `ln m = 2·artanh(s)` with `s = (m-1)/(m+1)`, by a Taylor polynomial whose first
/// left-out term is below 1e-8 of it.
#[inline(always)]
pub(crate) fn log(x: f32) -> f32 {
    const ROOT_HALF: u32 = std::f32::consts::FRAC_1_SQRT_2.to_bits();
    let small = x < f32::MIN_POSITIVE;
    let bits = (if small { x * 8_388_608.0 } else { x }).to_bits().wrapping_sub(ROOT_HALF);
    let n = (bits.cast_signed() >> 23) as f32 - if small { 23.0 } else { 0.0 };
    let m = f32::from_bits((bits & 0x007f_ffff).wrapping_add(ROOT_HALF));
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut p = 2.0 / 9.0;
    for coefficient in [2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0] {
        p = p * square + coefficient;
    }
    let result = (p * square * s + n * LN_2_LOW) + 2.0 * s + n * LN_2_HIGH;
    let result = if x < f32::INFINITY { result } else { x };
    let result = if x > 0.0 { result } else { f32::NAN };
    if x == 0.0 { f32::NEG_INFINITY } else { result }
}

/// `ln(1 + e^x)`, within 4 units in the last place.
///
/// It is `x` above zero and nothing below, plus `ln(1 + e)` with `e = e^-|x|`; that is `2·artanh(s)` with `s = e/(2+e)`, up to ⅓, by a
/// Taylor polynomial whose first left-out term is below 1e-8 of it, so that it keeps its digits where `e` is small.
#[inline(always)]
pub(crate) fn log_1p_exp(x: f32) -> f32 {
    let e = exp(-x.abs());
    let s = e / (2.0 + e);
    let square = s * s;
    let mut p = 2.0 / 15.0;
    for coefficient in [2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0] {
        p = p * square + coefficient;
    }
    (if x > 0.0 { x } else { 0.0 }) + (p * square * s + 2.0 * s)
}

/// `1 / (1 + e^-x)`, within 3 units in the last place.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    // The exponential of a negative number cannot overflow, and is the result where that is small.
    let e = exp(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// The hyperbolic tangent, within 3 units in the last place.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let m1 = exp_m1_below_zero(-2.0 * x.abs());
    (-m1 / (m1 + 2.0)).copysign(x)
}

/// `x` above zero, `e^x - 1` elsewhere, within a unit in the last place.
#[inline(always)]
pub(crate) fn elu(x: f32) -> f32 {
    let m1 = exp_m1_below_zero(x);
    if x > 0.0 { x } else { m1 }
}

/// `x · sigmoid(y)`, with its limit 0 where `x` is minus infinity.
///
/// The relative error is that of `e^-y`, so it grows with y: half a unit in the last place of y, and whatever y is off.
#[inline(always)]
fn times_sigmoid(x: f32, y: f32) -> f32 {
    let divisor = 1.0 + exp(-y);
    if divisor == f32::INFINITY { 0.0 } else { x / divisor }
}

/// `x · sigmoid(x)`, within 3 units in the last place.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    times_sigmoid(x, x)
}

/// The tanh form of gelu, within 1e-5 of itself from x = -7 on; below, less than 3e-15 is left of it.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    // `(1 + tanh(u)) / 2` is `sigmoid(2u)`; the factors are 2·√(2/π) and 0.044715 times that.
    times_sigmoid(x, x * (1.595_769 + 0.071_354_814 * (x * x)))
}

/// `x · sigmoid(1.702 · x)`, within 1e-5 of itself.
#[inline(always)]
pub(crate) fn gelu_quick(x: f32) -> f32 {
    times_sigmoid(x, 1.702 * x)
}

/// `x` times the normal distribution function, within 1e-5 of itself.
///
/// What the distribution leaves above |x| is `e^(-x²/2)` times a function that falls slowly; that one is a polynomial of
/// `1 / (1 + 0.3·|x|)`, fitted (least squares, weighted anew until all errors are alike) for |x| up to 14.5, where the
/// product leaves the range of floats. Its error is 6e-8, of which f32 makes 5e-7.
#[inline(always)]
pub(crate) fn gelu_erf(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.3 * x.abs());
    let mut p = 0.038_407_57;
    for coefficient in [
        -0.169_308_3,
        0.228_953_42,
        -0.076_841_444,
        0.142_766_43,
        0.094_585_404,
        0.121_945_37,
        0.119_484_19,
        7.373_145e-6,
    ] {
        p = p * t + coefficient;
    }
    let tail = p * exp(-0.5 * (x * x));
    let below = if tail == 0.0 { 0.0 } else { x * tail };
    if x > 0.0 { x * (1.0 - tail) } else { below }
}

/// `(x + 3) / 6` between 0 and 1, within a unit in the last place; NaN stays.
#[inline(always)]
pub(crate) fn hardsigmoid(x: f32) -> f32 {
    clamp((x + 3.0) / 6.0, 0.0, 1.0)
}

/// `x · hardsigmoid(x)`, within 2 units in the last place; 0 where `x` is minus infinity.
#[inline(always)]
pub(crate) fn hardswish(x: f32) -> f32 {
    let product = x * hardsigmoid(x);
    if x <= -3.0 { 0.0 } else { product }
}

/// The sign as -1, 0 or 1; NaN stays.
#[inline(always)]
pub(crate) fn sgn(x: f32) -> f32 {
    let positive = if x > 0.0 { 1.0 } else { 0.0 };
    let sign = if x < 0.0 { -1.0 } else { positive };
    if x.is_nan() { x } else { sign }
}

/// `x` between two numbers; NaN stays.
#[inline(always)]
pub(crate) fn clamp(x: f32, min: f32, max: f32) -> f32 {
    let x = if x < min { min } else { x };
    if x > max { max } else { x }
}

/// `x` above zero, 0 elsewhere, for NaN too.
#[inline(always)]
pub(crate) fn relu(x: f32) -> f32 {
    if x > 0.0 { x } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;

    /// The worst error of a function on a grid, in units in the last place of the exact result.
    fn worst_units(f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64, from: f32, to: f32) -> f64 {
        let mut worst = 0.0_f64;
        for i in 0..=400_000 {
            let x = from + (i as f32) * ((to - from) / 400_000.0);
            let exact = exact(f64::from(x));
            let unit = f64::from(f32::from_bits((exact.abs() as f32).to_bits() + 1)) - f64::from(exact.abs() as f32);
            worst = worst.max((f64::from(f(x)) - exact).abs() / unit);
        }
        worst
    }

    /// As [`worst_units`], as part of the exact result.
    fn worst_relative(f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64, from: f32, to: f32) -> f64 {
        let error = |i: i32| {
            let x = from + (i as f32) * ((to - from) / 400_000.0);
            let exact = exact(f64::from(x));
            if exact == 0.0 { 0.0 } else { (f64::from(f(x)) / exact - 1.0).abs() }
        };
        (0..=400_000).map(error).fold(0.0, f64::max)
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let worst = worst_units(exp, f64::exp, -87.0, 88.7);
        assert!(worst <= 2.0, "{worst} units");
    }

    #[test]
    fn functions_keep_the_units_that_they_state() {
        let sigmoid_64 = |x: f64| 1.0 / (1.0 + (-x).exp());
        let silu_64 = |x: f64| x / (1.0 + (-x).exp());
        let elu_64 = |x: f64| if x > 0.0 { x } else { x.exp_m1() };
        let log_1p_exp_64 = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        for (name, found, stated) in [
            ("exp below 0", worst_units(|x| exp_below_zero(Portable, x), f64::exp, -87.0, 0.0), 2.0),
            ("exp_m1", worst_units(exp_m1_below_zero, f64::exp_m1, -25.0, 0.0), 1.0),
            ("exp_m1 near 0", worst_units(exp_m1_below_zero, f64::exp_m1, -1e-3, 0.0), 1.0),
            ("log", worst_units(log, f64::ln, 1e-6, 3.0), 2.0),
            ("log near 1", worst_units(log, f64::ln, 0.99, 1.01), 2.0),
            ("log of large", worst_units(log, f64::ln, 1e30, 3e38), 2.0),
            ("log of subnormals", worst_units(log, f64::ln, 1e-44, 1e-37), 2.0),
            ("sigmoid", worst_units(sigmoid, sigmoid_64, -87.0, 30.0), 3.0),
            ("tanh", worst_units(tanh, f64::tanh, -12.0, 12.0), 3.0),
            ("tanh near 0", worst_units(tanh, f64::tanh, -1e-3, 1e-3), 3.0),
            ("elu", worst_units(elu, elu_64, -25.0, 5.0), 1.0),
            ("log_1p_exp", worst_units(log_1p_exp, log_1p_exp_64, -85.0, 30.0), 4.0),
            ("silu", worst_units(silu, silu_64, -85.0, 30.0), 3.0),
        ] {
            println!("{name}: {found:.2} units");
            assert!(found <= stated, "{name}: {found} units");
        }
    }

    #[test]
    fn gelus_keep_the_error_that_they_state() {
        let sigmoid = |y: f64| 1.0 / (1.0 + (-y).exp());
        let gelu_64 = |x: f64| x * sigmoid((8.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x));
        let quick_64 = |x: f64| x * sigmoid(1.702 * x);
        let mut worst = [worst_relative(gelu, gelu_64, -7.0, 10.0), worst_relative(gelu_quick, quick_64, -50.0, 30.0)];
        println!("gelu {:.1e}, gelu_quick {:.1e}", worst[0], worst[1]);
        assert!(worst.iter().all(|&error| error <= 1e-5), "{worst:?}");
        // Below, only small numbers are left.
        worst[0] = (0..40_000).map(|i| gelu(-7.0 - i as f32 / 1000.0).abs()).fold(0.0, f32::max).into();
        assert!(worst[0] < 3e-15, "{}", worst[0]);
    }

    #[test]
    fn gelu_erf_keeps_the_error_that_it_states() {
        // x and the result, as CPython computes x · math.erfc(-x / √2) / 2.
        for (x, expected) in [
            (-12.5, -4.6657053735972626e-35),
            (-10.0, -7.619853024160593e-23),
            (-7.0, -8.958687807200846e-12),
            (-5.0, -1.4332578593959731e-06),
            (-3.0, -0.004049694094890287),
            (-2.0, -0.04550026389635844),
            (-1.0, -0.15865525393145707),
            (-0.5, -0.15426876936299344),
            (-0.125, -0.056282721896235885),
            (-0.001, -0.0004996010814969171),
            (0.001, 0.0005003989660005341),
            (0.125, 0.06871727810376412),
            (0.5, 0.34573123063700656),
            (1.0, 0.8413447460685429),
            (2.0, 1.9544997361036416),
            (3.0, 2.99595030590511),
            (5.0, 4.99999856674214),
            (9.0, 9.0),
        ] {
            let error = (f64::from(gelu_erf(x)) / expected - 1.0_f64).abs();
            assert!(error < 1e-5, "gelu_erf({x}) is {}, not {expected}", gelu_erf(x));
        }
        // Smooth and rising between.
        let rises = (0..100_000).all(|i| gelu_erf(i as f32 / 10_000.0) <= gelu_erf((i + 1) as f32 / 10_000.0));
        assert!(rises);
    }

    #[test]
    fn functions_have_their_limits() {
        const INF: f32 = f32::INFINITY;
        for (f, below, above) in [
            (silu as fn(f32) -> f32, 0.0, INF),
            (gelu, 0.0, INF),
            (gelu_quick, 0.0, INF),
            (gelu_erf, 0.0, INF),
            (hardswish, 0.0, INF),
            (hardsigmoid, 0.0, 1.0),
            (sigmoid, 0.0, 1.0),
            (tanh, -1.0, 1.0),
            (elu, -1.0, INF),
            (log_1p_exp, 0.0, INF),
            (sgn, -1.0, 1.0),
        ] {
            assert_eq!((f(-INF), f(INF)), (below, above));
            assert_eq!(f(f32::MIN), below);
            assert_eq!(f(f32::MAX), if above == INF { f32::MAX } else { above });
            assert!(f(f32::NAN).is_nan());
        }
        for (x, expected) in [(0.0, -INF), (-0.0, -INF), (INF, INF), (1.0, 0.0)] {
            assert_eq!(log(x), expected);
        }
        assert!([-1.0, -1e-40, -INF, f32::NAN].into_iter().all(|x| log(x).is_nan()));
        for f in [sgn as fn(f32) -> f32, relu] {
            assert_eq!(f(-0.0).to_bits(), 0);
        }
        assert_eq!(tanh(-0.0).to_bits(), (-0.0_f32).to_bits());
        assert_eq!((relu(f32::NAN), relu(-INF), relu(INF)), (0.0, 0.0, INF));
        assert!(clamp(f32::NAN, 0.0, 1.0).is_nan());
        assert_eq!((clamp(-INF, -1.0, 1.0), clamp(INF, -1.0, 1.0), clamp(0.5, -1.0, 1.0)), (-1.0, 1.0, 0.5));
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_below_zero(Portable, f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_below_zero(Portable, 0.0), 1.0);
        assert!((0.0..2e-38).contains(&exp_below_zero(Portable, -1e30)));
        assert!(exp_below_zero(Portable, f32::NAN).is_nan());
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(88.8), f32::INFINITY);
        assert!(exp(88.7).is_finite());
        assert!(exp(f32::NAN).is_nan());
        // Subnormal results lose precision, not magnitude.
        assert!((f64::from(exp(-100.0)) / (-100.0_f64).exp() - 1.0).abs() < 0.03);
        assert!(silu(f32::NAN).is_nan());
        assert_eq!(silu(f32::INFINITY), f32::INFINITY);
        assert_eq!(silu(0.0), 0.0);
    }
}
