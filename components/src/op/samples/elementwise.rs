//! Functions of elements.

use super::{SHAPES, Sample, sample};
use crate::op::{Op, OpKind};

pub(crate) fn unary(op: &Op) -> Vec<Sample> {
    SHAPES.iter().map(|&s| sample(op.clone(), &[s])).collect()
}

pub(crate) fn clamp() -> Vec<Sample> {
    let mut samples = unary(&Op::Clamp { min: -0.5, max: 1.25 });
    for (min, max) in [(0.0, 0.0), (f32::MIN, f32::MAX), (f32::NEG_INFINITY, -1.0), (0.1, f32::INFINITY)] {
        samples.push(sample(Op::Clamp { min, max }, &[[37, 3, 1, 1]]));
    }
    samples
}

pub(crate) fn leaky_relu() -> Vec<Sample> {
    let mut samples = unary(&OpKind::LeakyRelu.default_op());
    for negative_slope in [0.0, 1.5, -0.25] {
        samples.push(sample(Op::LeakyRelu { negative_slope }, &[[37, 3, 1, 1]]));
    }
    samples
}

pub(crate) fn binary(op: &Op) -> Vec<Sample> {
    let mut samples: Vec<_> = SHAPES.iter().map(|&s| sample(op.clone(), &[s, s])).collect();
    for small in [[7, 1, 1, 1], [1, 5, 1, 1], [1, 1, 1, 1], [7, 5, 1, 2], [7, 1, 3, 1]] {
        samples.push(sample(op.clone(), &[[7, 5, 3, 2], small]));
    }
    samples.push(sample(op.clone(), &[[64, 6, 2, 1], [32, 3, 1, 1]]));
    samples
}

pub(crate) fn gated(op: &Op) -> Vec<Sample> {
    let mut samples: Vec<_> = SHAPES.iter().map(|&s| sample(op.clone(), &[s, s])).collect();
    for whole in [[2, 1, 1, 1], [14, 5, 3, 2], [64, 3, 1, 1]] {
        samples.push(sample(op.clone(), &[whole]));
    }
    samples
}

/// A few MiB: more than the caches near a core.
pub(crate) fn bench_unary(op: &Op) -> Vec<Sample> {
    vec![sample(op.clone(), &[[4096, 512, 1, 1]])]
}

/// As [`bench_unary`], with an operand that repeats and one that does not.
pub(crate) fn bench_binary(op: &Op) -> Vec<Sample> {
    vec![sample(op.clone(), &[[4096, 512, 1, 1], [4096, 512, 1, 1]])]
}
