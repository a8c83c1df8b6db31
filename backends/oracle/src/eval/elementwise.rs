//! Functions of elements.

use std::f64::consts::{PI, SQRT_2};

use super::{by_row, repeated};
use crate::access::{Evaluated, Operand, rows};

pub(super) fn unary(x: &Operand<'_>, f: impl Fn(f64) -> f64) -> Evaluated {
    Evaluated::Values(x.values().into_iter().map(f).collect())
}

pub(super) fn binary(operands: &[Operand<'_>], f: impl Fn(f64, f64) -> f64) -> Evaluated {
    let (a, b) = (&operands[0], &operands[1]);
    let mut out = Vec::new();
    if !a.desc.shape.is_empty() {
        for at in rows(a.desc.shape) {
            let second = b.row(repeated(at, b.desc.shape));
            out.extend(a.row(at).iter().zip(second.iter().cycle()).map(|(&a, &b)| f(a, b)));
        }
    }
    Evaluated::Values(out)
}

pub(super) fn sgn(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else if x == 0.0 {
        0.0
    } else {
        x
    }
}

pub(super) fn relu(x: f64) -> f64 {
    if x > 0.0 { x } else { 0.0 }
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// `x · sigmoid(y)` with its limit where `x` is minus infinity.
fn times_sigmoid(x: f64, y: f64) -> f64 {
    if x == f64::NEG_INFINITY { 0.0 } else { x / (1.0 + libm::exp(-y)) }
}

pub(super) fn silu(x: f64) -> f64 {
    times_sigmoid(x, x)
}

/// `(1 + tanh(u)) / 2` is `sigmoid(2u)`, which keeps its digits where `tanh` is near -1.
pub(super) fn gelu(x: f64) -> f64 {
    let u = (2.0 / PI).sqrt() * (x + 0.044_715 * x * x * x);
    times_sigmoid(x, 2.0 * u)
}

pub(super) fn gelu_quick(x: f64) -> f64 {
    times_sigmoid(x, 1.702 * x)
}

pub(super) fn gelu_erf(x: f64) -> f64 {
    if x == f64::NEG_INFINITY {
        return 0.0;
    }
    let tail = 0.5 * erfc(x.abs() / SQRT_2);
    x * if x < 0.0 { tail } else { 1.0 - tail }
}

/// `1 - erf(z)` for z from 0: the series of `erf` whose terms are all positive, and beyond it Laplace's continued fraction,
/// which converges the faster the larger z is.
fn erfc(z: f64) -> f64 {
    let bell = libm::exp(-z * z);
    if z < 2.0 {
        let (mut term, mut sum) = (z, 0.0);
        for n in 1..100 {
            sum += term;
            term *= 2.0 * z * z / f64::from(2 * n + 1);
        }
        1.0 - 2.0 / PI.sqrt() * bell * sum
    } else {
        let fraction = (1..200).rev().fold(z, |below, n| z + 0.5 * f64::from(n) / below);
        bell / PI.sqrt() / fraction
    }
}

pub(super) fn hardsigmoid(x: f64) -> f64 {
    ((x + 3.0) / 6.0).clamp(0.0, 1.0)
}

pub(super) fn hardswish(x: f64) -> f64 {
    if x <= -3.0 { 0.0 } else { x * hardsigmoid(x) }
}

/// A function of the gate, times the value.
pub(super) fn gated(operands: &[Operand<'_>], f: impl Fn(f64) -> f64) -> Evaluated {
    let gated = |gate: &[f64], value: &[f64]| -> Vec<f64> {
        gate.iter().zip(value).map(|(&gate, &value)| f(gate) * value).collect()
    };
    match operands.get(1) {
        Some(value) => Evaluated::Values(
            rows(value.desc.shape).flat_map(|at| gated(&operands[0].row(at), &value.row(at))).collect(),
        ),
        None => by_row(&operands[0], |row| {
            let (gate, value) = row.split_at(row.len() / 2);
            gated(gate, value)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_is_that_of_the_c_library() {
        // CPython's `math.erfc`.
        for (z, expected) in [
            (0.0, 1.0),
            (0.25, 0.7236736098317631),
            (0.7, 0.32219880616258156),
            (1.0, 0.15729920705028513),
            (1.5, 0.033894853524689274),
            (1.99, 0.004888586800383003),
            (2.0, 0.004677734981047265),
            (2.5, 0.0004069520174449589),
            (3.0, 2.2090496998585438e-05),
            (5.0, 1.5374597944280351e-12),
            (9.0, 4.13703174651381e-37),
        ] {
            let error = (erfc(z) / expected - 1.0_f64).abs();
            assert!(error < 1e-12, "erfc({z}) is {}, not {expected}", erfc(z));
        }
    }

    #[test]
    fn functions_have_their_limits() {
        for f in [silu, gelu, gelu_quick, gelu_erf, hardswish] {
            assert_eq!((f(f64::NEG_INFINITY), f(f64::INFINITY)), (0.0, f64::INFINITY));
            assert_eq!((f(-1e30), f(1e30)), (0.0, 1e30));
            assert!(f(f64::NAN).is_nan());
        }
        assert_eq!((sgn(-0.0).to_bits(), sgn(-3.0), sgn(f64::INFINITY)), (0, -1.0, 1.0));
        assert!(sgn(f64::NAN).is_nan());
    }
}
