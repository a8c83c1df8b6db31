//! Functions that the compiler can vectorize: no branches, no calls.

/// `e^x`, within 2 units in the last place; infinities and NaN as in IEEE, results below the smallest float are 0.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let (e, power) = exp_parts(x);
    (e + 1.0) * power[0] * power[1]
}

/// `e^x - 1` for x up to 0, within 4 units in the last place, near 0 as well.
#[inline(always)]
fn exp_minus_one(x: f32) -> f32 {
    let (e, power) = exp_parts(x);
    let power = power[0] * power[1];
    // Without an exponent left this is `e` alone, which loses nothing to the 1.
    e * power + (power - 1.0)
}

/// The hyperbolic tangent, within 4 units in the last place; ±1 at infinity.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let e = exp_minus_one(-2.0 * x.abs());
    (-e / (e + 2.0)).copysign(x)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `e^x = (e + 1) · power · power`.
///
/// `x = n·ln 2 + r` with |r| ≤ ln 2 / 2; a Taylor polynomial for `e^r`, whose first left-out term is below 1e-8; then 2^n
/// in two factors, since n reaches beyond the exponents of normal floats on both sides.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, [f32; 2]) {
    // Adding 1.5 · 2^23 leaves the nearest integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts; the first has few enough bits that n times it is exact.
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Comparing this way round keeps NaN.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -105.0 { -105.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        p = p * r + coefficient;
    }
    let e = p * r * r + r;
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = n >> 1;
    (e, [power_of_two(half), power_of_two(n.wrapping_sub(half))])
}

/// 2^n for exponents of normal floats; anything for others.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(n.wrapping_add(127).cast_unsigned() << 23)
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0_f64;
        for i in 0..400_000 {
            let x = -87.0 + (i as f32) * (175.7 / 400_000.0);
            let exact = f64::from(x).exp();
            let unit = f64::from(f32::from_bits((exact as f32).to_bits() + 1)) - f64::from(exact as f32);
            worst = worst.max((f64::from(exp(x)) - exact).abs() / unit);
        }
        assert!(worst <= 2.0, "{worst} units");
    }

    #[test]
    fn tanh_is_within_four_units_in_the_last_place() {
        let mut worst = 0.0_f64;
        let magnitudes = (0..400_000).map(|i| (i as f32) * (12.0 / 400_000.0)).chain([1e-30, 1e-8, 3e-4, 0.34, 0.35]);
        for x in magnitudes.flat_map(|x| [x, -x]) {
            let exact = f64::from(x).tanh();
            let next = f32::from_bits((exact as f32).to_bits() + 1);
            let unit = (f64::from(next) - f64::from(exact as f32)).abs();
            worst = worst.max((f64::from(tanh(x)) - exact).abs() / unit);
        }
        assert!(worst <= 4.0, "{worst} units");
    }

    #[test]
    fn gates_at_the_edges() {
        assert!(tanh(0.0).to_bits() == 0 && tanh(-0.0).to_bits() == (-0.0_f32).to_bits());
        assert!(tanh(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
        for x in [20.0, 100.0, 1e30, f32::INFINITY] {
            assert_eq!((tanh(x), tanh(-x)), (1.0, -1.0));
        }
        assert_eq!((sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY), sigmoid(0.0)), (1.0, 0.0, 0.5));
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
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
