//! Gated recurrent steps.

use super::{Sample, sample};
use crate::op::Op;

/// State and batch: one, odd, empty, around a tile.
const STATES: [[u64; 2]; 8] = [[1, 1], [7, 5], [33, 2], [0, 3], [5, 0], [255, 2], [256, 1], [300, 3]];

pub(crate) fn lstm() -> Vec<Sample> {
    STATES.iter().map(|&[h, n]| sample(Op::Lstm {}, &[[4 * h, n, 1, 1], [h, n, 1, 1]])).collect()
}

pub(crate) fn gru() -> Vec<Sample> {
    let shapes = |&[h, n]: &[u64; 2]| sample(Op::Gru {}, &[[3 * h, n, 1, 1], [3 * h, n, 1, 1], [h, n, 1, 1]]);
    STATES.iter().map(shapes).collect()
}

/// A policy net for a crowd.
pub(crate) fn bench_lstm() -> Vec<Sample> {
    vec![sample(Op::Lstm {}, &[[1024, 512, 1, 1], [256, 512, 1, 1]])]
}

/// As [`bench_lstm`].
pub(crate) fn bench_gru() -> Vec<Sample> {
    vec![sample(Op::Gru {}, &[[768, 512, 1, 1], [768, 512, 1, 1], [256, 512, 1, 1]])]
}
