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
