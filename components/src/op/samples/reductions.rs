//! Functions of rows.

use super::{SHAPES, Sample, sample, unary};
use crate::op::{Op, SortOrder};

pub(crate) fn group_norm() -> Vec<Sample> {
    let norm = |n_groups| Op::GroupNorm { n_groups, eps: 1e-6 };
    let mut samples = vec![
        sample(norm(1), &[[1, 1, 1, 1]]),
        sample(norm(2), &[[0, 3, 2, 1]]),
        sample(norm(32), &[[16, 4, 32, 1]]),
        sample(norm(2), &[[33, 3, 5, 2]]),
        sample(norm(4), &[[257, 2, 8, 1]]),
    ];
    // Groups of 6, 3, 2 and 2 channels (for 4 groups, only 3 have any), and each channel by itself.
    samples.extend([1, 2, 3, 4, 6].map(|n_groups| sample(norm(n_groups), &[[7, 5, 6, 2]])));
    samples
}

/// The last layers of an image decoder.
pub(crate) fn bench_group_norm() -> Vec<Sample> {
    vec![sample(Op::GroupNorm { n_groups: 32, eps: 1e-6 }, &[[128, 128, 128, 1]])]
}

pub(crate) fn soft_max() -> Vec<Sample> {
    let plain = Op::SoftMax { scale: 1.0, max_bias: 0.0 };
    let scaled = Op::SoftMax { scale: 0.125, max_bias: 0.0 };
    let sloped = Op::SoftMax { scale: 0.125, max_bias: 8.0 };
    let mut samples = unary(&plain);
    samples.push(sample(scaled.clone(), &[[7, 5, 3, 2]]));
    samples.push(sample(scaled.clone(), &[[7, 5, 3, 2], [7, 5, 1, 1]]));
    samples.push(sample(scaled.clone(), &[[7, 5, 6, 2], [7, 8, 3, 2]]));
    samples.push(sample(scaled, &[[256, 3, 2, 1], [256, 3, 1, 1]]));
    // Heads that are a power of two, and heads that are none.
    samples.push(sample(sloped.clone(), &[[33, 3, 4, 1], [33, 3, 1, 1]]));
    samples.push(sample(sloped.clone(), &[[7, 5, 6, 2], [7, 5, 2, 2]]));
    samples.push(sample(plain, &[[7, 5, 3, 2], [7, 5, 1, 1], [3, 1, 1, 1]]));
    samples.push(sample(sloped, &[[256, 2, 6, 1], [256, 2, 1, 1], [6, 1, 1, 1]]));
    samples
}

pub(crate) fn diag_mask_inf() -> Vec<Sample> {
    let mask = |n_past| Op::DiagMaskInf { n_past };
    let mut samples = unary(&mask(0));
    samples.extend([3, 5, 9].map(|n_past| sample(mask(n_past), &[[9, 5, 3, 2]])));
    samples.push(sample(mask(250), &[[300, 20, 1, 1]]));
    samples
}

/// The scores of a prompt.
pub(crate) fn bench_diag_mask_inf() -> Vec<Sample> {
    vec![sample(Op::DiagMaskInf { n_past: 0 }, &[[512, 512, 9, 1]])]
}

pub(crate) fn argsort() -> Vec<Sample> {
    let orders = [SortOrder::Ascending, SortOrder::Descending];
    orders.iter().flat_map(|&order| unary(&Op::Argsort { order })).collect()
}

pub(crate) fn top_k() -> Vec<Sample> {
    let mut samples: Vec<_> =
        SHAPES.iter().filter(|shape| shape[0] > 0).map(|&shape| sample(Op::TopK { k: 1 }, &[shape])).collect();
    for (k, shape) in [
        (7, [7, 5, 3, 2]),
        (3, [7, 5, 3, 2]),
        (4, [7, 0, 3, 1]),
        (2, [33, 4, 1, 1]),
        (8, [64, 5, 2, 1]),
        (100, [257, 2, 1, 1]),
        (257, [257, 2, 1, 1]),
        (5, [600, 3, 1, 1]),
    ] {
        samples.push(sample(Op::TopK { k }, &[shape]));
    }
    samples
}

/// Rows as long as a small vocabulary.
pub(crate) fn bench_sorting(op: &Op) -> Vec<Sample> {
    vec![sample(op.clone(), &[[32_000, 8, 1, 1]])]
}

/// The candidates of a sampler, and the experts of a prompt.
pub(crate) fn bench_top_k() -> Vec<Sample> {
    vec![sample(Op::TopK { k: 40 }, &[[128_000, 1, 1, 1]]), sample(Op::TopK { k: 8 }, &[[128, 512, 1, 1]])]
}
