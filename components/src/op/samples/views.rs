//! Other looks at the same memory.

use super::{Sample, sample};
use crate::{op::Op, shape::Shape};

pub(crate) fn view() -> Vec<Sample> {
    vec![sample(Op::View { offset: 8, shape: Shape([3, 2, 1, 1]), strides: None }, &[[7, 5, 1, 1]])]
}

pub(crate) fn reshape() -> Vec<Sample> {
    vec![sample(Op::Reshape { shape: Shape([5, 7, 1, 1]) }, &[[7, 5, 1, 1]])]
}

pub(crate) fn permute() -> Vec<Sample> {
    vec![sample(Op::Permute { axes: [0, 2, 1, 3] }, &[[7, 5, 3, 1]])]
}

pub(crate) fn transpose() -> Vec<Sample> {
    vec![sample(Op::Transpose {}, &[[7, 5, 3, 1]])]
}
