//! Default cases of each op: shapes and parameters that the conformance suite crosses with dtypes and layouts.

use crate::{
    op::{Op, RopeMode},
    shape::{MAX_DIMS, Shape},
};

/// One operand of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleOperand {
    /// Its shape.
    pub shape: Shape,
}

/// One default case: an op with operand shapes. Dtypes and layouts are the suite's to choose.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The op and its parameters.
    pub op: Op,
    /// Its operands.
    pub operands: Vec<SampleOperand>,
}

fn sample(op: Op, shapes: &[[u64; MAX_DIMS]]) -> Sample {
    Sample { op, operands: shapes.iter().map(|&s| SampleOperand { shape: Shape(s) }).collect() }
}

/// Shapes that catch most faults: one, odd, empty, a block, several planes.
const SHAPES: [[u64; MAX_DIMS]; 6] =
    [[1, 1, 1, 1], [7, 5, 3, 2], [0, 3, 1, 1], [33, 1, 1, 1], [32, 3, 1, 1], [64, 5, 2, 3]];

pub(super) fn none() -> Vec<Sample> {
    Vec::new()
}

pub(super) fn unary(op: &Op) -> Vec<Sample> {
    SHAPES.iter().map(|&s| sample(op.clone(), &[s])).collect()
}

pub(super) fn binary(op: &Op) -> Vec<Sample> {
    let mut samples: Vec<_> = SHAPES.iter().map(|&s| sample(op.clone(), &[s, s])).collect();
    for small in [[7, 1, 1, 1], [1, 5, 1, 1], [1, 1, 1, 1], [7, 5, 1, 2], [7, 1, 3, 1]] {
        samples.push(sample(op.clone(), &[[7, 5, 3, 2], small]));
    }
    samples.push(sample(op.clone(), &[[64, 6, 2, 1], [32, 3, 1, 1]]));
    samples
}

pub(super) fn gated(op: &Op) -> Vec<Sample> {
    let mut samples: Vec<_> = SHAPES.iter().map(|&s| sample(op.clone(), &[s, s])).collect();
    for whole in [[2, 1, 1, 1], [14, 5, 3, 2], [64, 3, 1, 1]] {
        samples.push(sample(op.clone(), &[whole]));
    }
    samples
}

pub(super) fn soft_max() -> Vec<Sample> {
    let plain = Op::SoftMax { scale: 1.0 };
    let scaled = Op::SoftMax { scale: 0.125 };
    let mut samples = unary(&plain);
    samples.push(sample(scaled.clone(), &[[7, 5, 3, 2]]));
    samples.push(sample(scaled.clone(), &[[7, 5, 3, 2], [7, 5, 1, 1]]));
    samples.push(sample(scaled.clone(), &[[7, 5, 6, 2], [7, 8, 3, 2]]));
    samples.push(sample(scaled, &[[256, 3, 2, 1], [256, 3, 1, 1]]));
    samples
}

pub(super) fn mul_mat() -> Vec<Sample> {
    let op = Op::MulMat {};
    [
        [[1, 1, 1, 1], [1, 1, 1, 1]],
        [[7, 5, 1, 1], [7, 3, 1, 1]],
        [[7, 5, 2, 1], [7, 3, 4, 3]],
        [[32, 4, 1, 1], [32, 1, 1, 1]],
        [[64, 5, 1, 1], [64, 9, 1, 1]],
        [[96, 6, 2, 2], [96, 3, 4, 2]],
        [[64, 33, 1, 1], [64, 2, 1, 1]],
        [[64, 0, 1, 1], [64, 2, 1, 1]],
        [[0, 3, 1, 1], [0, 2, 1, 1]],
    ]
    .iter()
    .map(|s| sample(op.clone(), s))
    .collect()
}

pub(super) fn get_rows() -> Vec<Sample> {
    [
        [[1, 1, 1, 1], [1, 1, 1, 1]],
        [[7, 5, 1, 1], [9, 1, 1, 1]],
        [[7, 5, 3, 2], [4, 3, 2, 1]],
        [[64, 5, 1, 1], [3, 1, 1, 1]],
        [[32, 6, 2, 1], [5, 2, 1, 1]],
        [[7, 5, 1, 1], [0, 1, 1, 1]],
    ]
    .iter()
    .map(|s| sample(Op::GetRows {}, s))
    .collect()
}

pub(super) fn set_rows() -> Vec<Sample> {
    [
        [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]],
        [[7, 9, 1, 1], [7, 4, 1, 1], [4, 1, 1, 1]],
        [[7, 9, 4, 2], [7, 3, 4, 2], [3, 2, 1, 1]],
        [[64, 9, 1, 1], [64, 5, 1, 1], [5, 1, 1, 1]],
        [[32, 9, 2, 1], [32, 2, 2, 1], [2, 2, 1, 1]],
        [[7, 9, 1, 1], [7, 0, 1, 1], [0, 1, 1, 1]],
    ]
    .iter()
    .map(|s| sample(Op::SetRows {}, s))
    .collect()
}

pub(super) fn cpy() -> Vec<Sample> {
    let mut samples: Vec<_> = SHAPES.iter().map(|&s| sample(Op::Cpy {}, &[s, s])).collect();
    samples.push(sample(Op::Cpy {}, &[[6, 5, 2, 1], [15, 4, 1, 1]]));
    samples
}

pub(super) fn view() -> Vec<Sample> {
    vec![sample(Op::View { offset: 8, shape: Shape([3, 2, 1, 1]), strides: None }, &[[7, 5, 1, 1]])]
}

pub(super) fn reshape() -> Vec<Sample> {
    vec![sample(Op::Reshape { shape: Shape([5, 7, 1, 1]) }, &[[7, 5, 1, 1]])]
}

pub(super) fn permute() -> Vec<Sample> {
    vec![sample(Op::Permute { axes: [0, 2, 1, 3] }, &[[7, 5, 3, 1]])]
}

pub(super) fn transpose() -> Vec<Sample> {
    vec![sample(Op::Transpose {}, &[[7, 5, 3, 1]])]
}

pub(super) fn rope() -> Vec<Sample> {
    let mut samples = Vec::new();
    for mode in [RopeMode::Normal, RopeMode::Neox] {
        let whole = Op::Rope { mode, n_dims: 0, base: 10_000.0, freq_scale: 1.0 };
        let part = Op::Rope { mode, n_dims: 6, base: 500.0, freq_scale: 0.5 };
        samples.push(sample(whole.clone(), &[[2, 1, 1, 1], [1, 1, 1, 1]]));
        samples.push(sample(whole.clone(), &[[64, 3, 5, 1], [5, 1, 1, 1]]));
        samples.push(sample(whole, &[[8, 3, 0, 1], [0, 1, 1, 1]]));
        samples.push(sample(part.clone(), &[[10, 3, 5, 2], [5, 1, 1, 1]]));
        samples.push(sample(part, &[[10, 3, 5, 2], [5, 1, 1, 1], [3, 1, 1, 1]]));
    }
    samples
}

pub(super) fn repeat() -> Vec<Sample> {
    vec![
        sample(Op::Repeat { shape: Shape([7, 5, 3, 2]) }, &[[7, 5, 3, 2]]),
        sample(Op::Repeat { shape: Shape([14, 5, 6, 2]) }, &[[7, 1, 3, 1]]),
        sample(Op::Repeat { shape: Shape([5, 4, 1, 1]) }, &[[1, 1, 1, 1]]),
        sample(Op::Repeat { shape: Shape([64, 4, 1, 1]) }, &[[32, 2, 1, 1]]),
    ]
}
