//! Copies, repetition, and what else moves elements or makes them from nothing.

use super::{SHAPES, Sample, sample};
use crate::{
    dtype::{DTYPES, DType, DTypeClass},
    op::{Op, UpscaleMode},
    shape::Shape,
};

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

pub(crate) fn concat() -> Vec<Sample> {
    [
        (0, [1, 1, 1, 1], [1, 1, 1, 1]),
        (0, [7, 5, 3, 2], [4, 5, 3, 2]),
        (1, [7, 5, 3, 2], [7, 2, 3, 2]),
        (2, [7, 5, 3, 2], [7, 5, 1, 2]),
        (3, [7, 5, 3, 2], [7, 5, 3, 3]),
        (0, [0, 3, 1, 1], [5, 3, 1, 1]),
        (1, [33, 3, 1, 1], [33, 0, 1, 1]),
        (2, [0, 3, 1, 1], [0, 3, 2, 1]),
        (0, [32, 3, 1, 1], [64, 3, 1, 1]),
        (1, [64, 5, 2, 3], [64, 1, 2, 3]),
        (0, [256, 3, 1, 1], [256, 3, 1, 1]),
        (0, [255, 2, 1, 1], [257, 2, 1, 1]),
    ]
    .into_iter()
    .map(|(dim, a, b)| sample(Op::Concat { dim }, &[a, b]))
    .collect()
}

pub(crate) fn pad() -> Vec<Sample> {
    [
        ([0; 4], [0; 4], [7, 5, 3, 2]),
        ([1, 0, 0, 0], [0; 4], [1, 1, 1, 1]),
        ([2, 1, 3, 1], [0; 4], [7, 5, 3, 2]),
        ([0; 4], [3, 1, 0, 2], [7, 5, 3, 2]),
        ([1, 2, 1, 0], [5, 0, 2, 1], [33, 2, 3, 1]),
        ([2, 0, 0, 0], [1, 0, 0, 0], [0, 3, 1, 1]),
        ([0, 2, 0, 0], [0, 1, 0, 0], [5, 0, 1, 1]),
        ([1, 0, 0, 0], [0, 1, 0, 0], [5, 0, 0, 1]),
        ([300, 1, 0, 0], [255, 0, 0, 0], [257, 2, 1, 1]),
    ]
    .into_iter()
    .map(|(right, left, x)| sample(Op::Pad { right, left }, &[x]))
    .collect()
}

pub(crate) fn roll() -> Vec<Sample> {
    [
        ([0; 4], [7, 5, 3, 2]),
        ([1, 0, 0, 0], [1, 1, 1, 1]),
        ([2, 0, 0, 0], [7, 5, 3, 2]),
        ([0, -1, 0, 0], [7, 5, 3, 2]),
        ([-3, 2, 1, 1], [7, 5, 3, 2]),
        ([7, -5, 30, -100], [7, 5, 3, 2]),
        ([i32::MIN, i32::MAX, i32::MIN, i32::MAX], [33, 5, 3, 2]),
        ([100, 1, 0, 0], [257, 3, 1, 1]),
        ([1, 1, 1, 1], [0, 3, 1, 1]),
    ]
    .into_iter()
    .map(|(shifts, x)| sample(Op::Roll { shifts }, &[x]))
    .collect()
}

pub(crate) fn upscale() -> Vec<Sample> {
    let mut samples = Vec::new();
    for mode in [UpscaleMode::Nearest, UpscaleMode::Bilinear] {
        for align_corners in [false, true] {
            for (x, ne) in [
                ([1, 1, 1, 1], [4, 3, 1, 1]),
                ([7, 5, 3, 2], [14, 10, 3, 2]),
                ([7, 5, 3, 2], [7, 5, 6, 4]),
                ([5, 4, 2, 1], [13, 7, 3, 1]),
                ([33, 9, 1, 2], [10, 4, 1, 1]),
                ([5, 3, 1, 1], [1, 1, 1, 1]),
                ([2, 2, 1, 1], [600, 3, 1, 1]),
                ([1000, 3, 1, 1], [3, 2, 1, 1]),
                ([257, 2, 1, 1], [300, 5, 1, 1]),
                ([0, 3, 1, 1], [0, 6, 1, 1]),
            ] {
                samples.push(sample(Op::Upscale { ne: Shape(ne), mode, align_corners }, &[x]));
            }
        }
    }
    samples
}

pub(crate) fn cast() -> Vec<Sample> {
    let real = DTYPES.iter().filter(|row| row.class != DTypeClass::Integer);
    let shapes = [[1, 1, 1, 1], [7, 5, 3, 2], [0, 3, 1, 1], [64, 5, 2, 3], [256, 3, 1, 1], [257, 1, 2, 1]];
    real.flat_map(|row| shapes.map(|x| sample(Op::Cast { dtype: row.dtype }, &[x]))).collect()
}

pub(crate) fn arange() -> Vec<Sample> {
    [
        (0.0, 1.0, 1.0),
        (0.0, 5.0, 1.0),
        (-1.0, 1.0, 0.1),
        (3.0, -3.5, -0.5),
        (2.0, 2.0, 1.0),
        (2.0, 5.0, -1.0),
        (10.0, 1000.0, 1.0),
        (1e6, 2e6, 3999.5),
    ]
    .into_iter()
    .map(|(start, stop, step)| sample(Op::Arange { start, stop, step }, &[]))
    .collect()
}

pub(crate) fn timestep_embedding() -> Vec<Sample> {
    [(2, 10_000, 1), (1, 10_000, 3), (7, 100, 5), (64, 10_000, 3), (320, 1000, 2), (513, 1, 2), (6, 10_000, 0)]
        .into_iter()
        .map(|(dim, max_period, n)| sample(Op::TimestepEmbedding { dim, max_period }, &[[n, 1, 1, 1]]))
        .collect()
}

/// A cache and what comes new, of a few MiB.
pub(crate) fn bench_concat() -> Vec<Sample> {
    vec![
        sample(Op::Concat { dim: 1 }, &[[4096, 448, 1, 1], [4096, 64, 1, 1]]),
        sample(Op::Concat { dim: 0 }, &[[512, 2048, 1, 1], [512, 2048, 1, 1]]),
    ]
}

/// An image with a border.
pub(crate) fn bench_pad() -> Vec<Sample> {
    vec![sample(Op::Pad { right: [1, 1, 0, 0], left: [1, 1, 0, 0] }, &[[510, 510, 8, 1]])]
}

/// Windows of an image moved by half a window.
pub(crate) fn bench_roll() -> Vec<Sample> {
    vec![sample(Op::Roll { shifts: [0, -4, -4, 0] }, &[[96, 128, 128, 1]])]
}

/// The features of an image, twice as wide and high.
pub(crate) fn bench_upscale() -> Vec<Sample> {
    let double = |mode| {
        let op = Op::Upscale { ne: Shape([512, 512, 8, 1]), mode, align_corners: false };
        sample(op, &[[256, 256, 8, 1]])
    };
    vec![double(UpscaleMode::Nearest), double(UpscaleMode::Bilinear)]
}

/// A few MiB to half the bytes.
pub(crate) fn bench_cast() -> Vec<Sample> {
    vec![sample(Op::Cast { dtype: DType::F16 }, &[[4096, 512, 1, 1]])]
}

pub(crate) fn bench_arange() -> Vec<Sample> {
    vec![sample(Op::Arange { start: 0.0, stop: 2_097_152.0, step: 1.0 }, &[])]
}

/// The steps of a batch.
pub(crate) fn bench_timestep_embedding() -> Vec<Sample> {
    vec![sample(Op::TimestepEmbedding { dim: 320, max_period: 10_000 }, &[[64, 1, 1, 1]])]
}
