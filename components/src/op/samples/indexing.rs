//! Rows by index.

use super::{Sample, sample};
use crate::op::Op;

pub(crate) fn get_rows() -> Vec<Sample> {
    [
        [[1, 1, 1, 1], [1, 1, 1, 1]],
        [[7, 5, 1, 1], [9, 1, 1, 1]],
        [[7, 5, 3, 2], [4, 3, 2, 1]],
        [[64, 5, 1, 1], [3, 1, 1, 1]],
        [[32, 6, 2, 1], [5, 2, 1, 1]],
        [[256, 5, 1, 1], [3, 1, 1, 1]],
        [[7, 5, 1, 1], [0, 1, 1, 1]],
    ]
    .iter()
    .map(|s| sample(Op::GetRows {}, s))
    .collect()
}

pub(crate) fn set_rows() -> Vec<Sample> {
    [
        [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]],
        [[7, 9, 1, 1], [7, 4, 1, 1], [4, 1, 1, 1]],
        [[7, 9, 4, 2], [7, 3, 4, 2], [3, 2, 1, 1]],
        [[64, 9, 1, 1], [64, 5, 1, 1], [5, 1, 1, 1]],
        [[32, 9, 2, 1], [32, 2, 2, 1], [2, 2, 1, 1]],
        [[512, 9, 1, 1], [512, 5, 1, 1], [5, 1, 1, 1]],
        [[7, 9, 1, 1], [7, 0, 1, 1], [0, 1, 1, 1]],
    ]
    .iter()
    .map(|s| sample(Op::SetRows {}, s))
    .collect()
}

pub(crate) fn add_id() -> Vec<Sample> {
    [
        [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]],
        [[7, 2, 5, 1], [7, 3, 1, 1], [2, 5, 1, 1]],
        [[257, 3, 2, 1], [257, 4, 1, 1], [3, 2, 1, 1]],
        [[0, 2, 3, 1], [0, 3, 1, 1], [2, 3, 1, 1]],
        [[7, 2, 0, 1], [7, 3, 1, 1], [2, 0, 1, 1]],
    ]
    .iter()
    .map(|s| sample(Op::AddId {}, s))
    .collect()
}

/// The embedding of a prompt.
pub(crate) fn bench_get_rows() -> Vec<Sample> {
    vec![sample(Op::GetRows {}, &[[512, 4096, 1, 1], [512, 1, 1, 1]])]
}

/// A cache update of a prompt.
pub(crate) fn bench_set_rows() -> Vec<Sample> {
    vec![sample(Op::SetRows {}, &[[512, 4096, 1, 1], [512, 512, 1, 1], [512, 1, 1, 1]])]
}

/// The biases of a prompt's experts.
pub(crate) fn bench_add_id() -> Vec<Sample> {
    vec![sample(Op::AddId {}, &[[512, 4, 512, 1], [512, 32, 1, 1], [4, 512, 1, 1]])]
}
