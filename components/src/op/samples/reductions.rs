//! Functions of rows.

use super::{Sample, sample, unary};
use crate::op::Op;

pub(crate) fn soft_max() -> Vec<Sample> {
    let plain = Op::SoftMax { scale: 1.0 };
    let scaled = Op::SoftMax { scale: 0.125 };
    let mut samples = unary(&plain);
    samples.push(sample(scaled.clone(), &[[7, 5, 3, 2]]));
    samples.push(sample(scaled.clone(), &[[7, 5, 3, 2], [7, 5, 1, 1]]));
    samples.push(sample(scaled.clone(), &[[7, 5, 6, 2], [7, 8, 3, 2]]));
    samples.push(sample(scaled, &[[256, 3, 2, 1], [256, 3, 1, 1]]));
    samples
}
