//! Matrix products.

use super::{Sample, sample};
use crate::op::Op;

pub(crate) fn mul_mat() -> Vec<Sample> {
    let op = Op::MulMat {};
    [
        [[1, 1, 1, 1], [1, 1, 1, 1]],
        [[7, 5, 1, 1], [7, 3, 1, 1]],
        [[7, 5, 2, 1], [7, 3, 4, 3]],
        [[32, 4, 1, 1], [32, 1, 1, 1]],
        [[64, 5, 1, 1], [64, 9, 1, 1]],
        [[96, 6, 2, 2], [96, 3, 4, 2]],
        [[64, 33, 1, 1], [64, 2, 1, 1]],
        [[256, 5, 2, 1], [256, 3, 2, 1]],
        [[512, 3, 1, 1], [512, 5, 1, 1]],
        [[64, 0, 1, 1], [64, 2, 1, 1]],
        [[0, 3, 1, 1], [0, 2, 1, 1]],
    ]
    .iter()
    .map(|s| sample(op.clone(), s))
    .collect()
}

/// Decode and prompt of a small language model.
pub(crate) fn bench_mul_mat() -> Vec<Sample> {
    [1, 64].iter().map(|&n| sample(Op::MulMat {}, &[[1536, 576, 1, 1], [1536, n, 1, 1]])).collect()
}

pub(crate) fn mul_mat_id() -> Vec<Sample> {
    [
        [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]],
        [[7, 5, 3, 1], [7, 2, 4, 1], [2, 4, 1, 1]],
        [[7, 5, 9, 1], [7, 1, 1, 1], [3, 1, 1, 1]],
        // Several groups of one expert.
        [[64, 6, 2, 1], [64, 1, 13, 1], [2, 13, 1, 1]],
        [[256, 3, 4, 1], [256, 2, 5, 1], [4, 5, 1, 1]],
        [[7, 5, 3, 1], [7, 1, 0, 1], [2, 0, 1, 1]],
        [[0, 5, 3, 1], [0, 1, 2, 1], [2, 2, 1, 1]],
        [[64, 0, 3, 1], [64, 1, 2, 1], [2, 2, 1, 1]],
    ]
    .iter()
    .map(|s| sample(Op::MulMatId {}, s))
    .collect()
}

/// Decode and prompt of a mixture of 32 experts, 4 a token.
pub(crate) fn bench_mul_mat_id() -> Vec<Sample> {
    [1, 64].iter().map(|&t| sample(Op::MulMatId {}, &[[512, 256, 32, 1], [512, 1, t, 1], [4, t, 1, 1]])).collect()
}
