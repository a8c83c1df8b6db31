//! Copies and repetition.

use super::{SHAPES, Sample, sample};
use crate::{op::Op, shape::Shape};

pub(crate) fn cpy() -> Vec<Sample> {
    let mut samples: Vec<_> = SHAPES.iter().map(|&s| sample(Op::Cpy {}, &[s, s])).collect();
    samples.push(sample(Op::Cpy {}, &[[6, 5, 2, 1], [15, 4, 1, 1]]));
    samples
}

pub(crate) fn repeat() -> Vec<Sample> {
    vec![
        sample(Op::Repeat { shape: Shape([7, 5, 3, 2]) }, &[[7, 5, 3, 2]]),
        sample(Op::Repeat { shape: Shape([14, 5, 6, 2]) }, &[[7, 1, 3, 1]]),
        sample(Op::Repeat { shape: Shape([5, 4, 1, 1]) }, &[[1, 1, 1, 1]]),
        sample(Op::Repeat { shape: Shape([64, 4, 1, 1]) }, &[[32, 2, 1, 1]]),
    ]
}

/// A row repeated to a few MiB.
pub(crate) fn bench_repeat() -> Vec<Sample> {
    vec![sample(Op::Repeat { shape: Shape([4096, 512, 1, 1]) }, &[[4096, 1, 1, 1]])]
}
