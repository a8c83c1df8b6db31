//! Convolutions and pooling.

use super::{Sample, sample};
use crate::{
    dtype::DType,
    op::{Op, PoolOp},
};

/// Parameters of both axes: strides, paddings, dilations.
type Steps = [[u32; 2]; 3];

const UNIT: Steps = [[1, 1], [0, 0], [1, 1]];

fn conv_2d_op([[s0, s1], [p0, p1], [d0, d1]]: Steps) -> Op {
    Op::Conv2d { s0, s1, p0, p1, d0, d1 }
}

fn conv_2d_dw_op([[s0, s1], [p0, p1], [d0, d1]]: Steps) -> Op {
    Op::Conv2dDw { s0, s1, p0, p1, d0, d1 }
}

fn im2col_op([[s0, s1], [p0, p1], [d0, d1]]: Steps, is_2d: bool, dtype: DType) -> Op {
    Op::Im2col { s0, s1, p0, p1, d0, d1, is_2d, dtype }
}

pub(crate) fn im2col() -> Vec<Sample> {
    let both = [[2, 1], [1, 2], [1, 2]];
    let wide = [[1, 3], [4, 0], [2, 1]];
    vec![
        sample(im2col_op(UNIT, true, DType::F32), &[[1, 1, 1, 1], [1, 1, 1, 1]]),
        sample(im2col_op(UNIT, true, DType::F32), &[[3, 2, 2, 4], [7, 5, 2, 2]]),
        sample(im2col_op(both, true, DType::F16), &[[3, 2, 3, 1], [8, 5, 3, 2]]),
        sample(im2col_op(wide, true, DType::F32), &[[3, 3, 2, 1], [2, 7, 2, 1]]),
        sample(im2col_op(UNIT, true, DType::F32), &[[3, 3, 31, 2], [19, 4, 31, 1]]),
        sample(im2col_op(UNIT, true, DType::F32), &[[3, 2, 2, 1], [7, 5, 2, 0]]),
        sample(im2col_op(UNIT, true, DType::F16), &[[3, 2, 0, 1], [7, 5, 0, 2]]),
        sample(im2col_op(both, false, DType::F32), &[[3, 4, 5, 1], [33, 4, 2, 1]]),
        sample(im2col_op([[1, 0], [2, 0], [3, 0]], false, DType::F16), &[[2, 3, 1, 1], [5, 3, 1, 1]]),
    ]
}

pub(crate) fn conv_1d() -> Vec<Sample> {
    let plain = Op::Conv1d { s0: 1, p0: 0, d0: 1 };
    vec![
        sample(plain.clone(), &[[1, 1, 1, 1], [1, 1, 1, 1]]),
        sample(plain.clone(), &[[3, 5, 7, 1], [31, 5, 2, 1]]),
        sample(Op::Conv1d { s0: 2, p0: 1, d0: 1 }, &[[3, 4, 9, 1], [16, 4, 1, 1]]),
        sample(Op::Conv1d { s0: 1, p0: 4, d0: 3 }, &[[4, 3, 17, 1], [5, 3, 2, 1]]),
        sample(Op::Conv1d { s0: 5, p0: 0, d0: 1 }, &[[2, 33, 2, 1], [23, 33, 1, 1]]),
        sample(Op::Conv1d { s0: 1, p0: 1, d0: 1 }, &[[3, 2, 4, 1], [257, 2, 1, 1]]),
        sample(plain.clone(), &[[3, 5, 7, 1], [31, 5, 0, 1]]),
        sample(plain.clone(), &[[3, 0, 7, 1], [9, 0, 2, 1]]),
        sample(Op::Conv1d { s0: 1, p0: 2, d0: 1 }, &[[3, 2, 7, 1], [0, 2, 2, 1]]),
    ]
}

pub(crate) fn conv_2d() -> Vec<Sample> {
    vec![
        sample(conv_2d_op(UNIT), &[[1, 1, 1, 1], [1, 1, 1, 1]]),
        sample(conv_2d_op([[1, 1], [1, 1], [1, 1]]), &[[3, 3, 4, 8], [9, 7, 4, 2]]),
        sample(conv_2d_op([[2, 3], [1, 2], [1, 2]]), &[[3, 2, 3, 17], [8, 11, 3, 2]]),
        sample(conv_2d_op([[1, 2], [0, 0], [2, 1]]), &[[2, 3, 5, 3], [12, 5, 5, 1]]),
        sample(conv_2d_op([[3, 1], [4, 5], [1, 1]]), &[[2, 3, 1, 9], [3, 2, 1, 2]]),
        sample(conv_2d_op(UNIT), &[[1, 1, 33, 16], [6, 5, 33, 1]]),
        sample(conv_2d_op([[1, 1], [2, 2], [1, 1]]), &[[5, 5, 7, 2], [5, 5, 7, 1]]),
        sample(conv_2d_op(UNIT), &[[3, 3, 2, 4], [7, 5, 2, 0]]),
        sample(conv_2d_op(UNIT), &[[3, 3, 2, 0], [7, 5, 2, 2]]),
        sample(conv_2d_op(UNIT), &[[3, 3, 0, 4], [7, 5, 0, 2]]),
    ]
}

pub(crate) fn conv_2d_dw() -> Vec<Sample> {
    vec![
        sample(conv_2d_dw_op(UNIT), &[[1, 1, 1, 1], [1, 1, 1, 1]]),
        sample(conv_2d_dw_op([[1, 1], [1, 1], [1, 1]]), &[[3, 3, 1, 5], [9, 7, 5, 2]]),
        sample(conv_2d_dw_op([[2, 3], [1, 2], [1, 2]]), &[[3, 2, 1, 3], [8, 11, 3, 2]]),
        sample(conv_2d_dw_op([[5, 1], [4, 3], [2, 1]]), &[[2, 3, 1, 2], [9, 2, 2, 1]]),
        sample(conv_2d_dw_op([[1, 1], [1, 0], [1, 1]]), &[[3, 1, 1, 2], [300, 2, 2, 1]]),
        sample(conv_2d_dw_op([[1, 1], [6, 6], [1, 1]]), &[[13, 13, 1, 1], [6, 5, 1, 1]]),
        sample(conv_2d_dw_op(UNIT), &[[3, 3, 1, 0], [7, 5, 0, 2]]),
        sample(conv_2d_dw_op([[1, 1], [1, 1], [1, 1]]), &[[2, 2, 1, 3], [0, 4, 3, 1]]),
    ]
}

pub(crate) fn conv_transpose_1d() -> Vec<Sample> {
    let plain = Op::ConvTranspose1d { s0: 1, p0: 0, d0: 1 };
    vec![
        sample(plain.clone(), &[[1, 1, 1, 1], [1, 1, 1, 1]]),
        sample(plain.clone(), &[[3, 7, 5, 1], [11, 5, 2, 1]]),
        sample(Op::ConvTranspose1d { s0: 2, p0: 1, d0: 1 }, &[[4, 9, 3, 1], [8, 3, 1, 1]]),
        sample(Op::ConvTranspose1d { s0: 3, p0: 2, d0: 2 }, &[[3, 2, 4, 1], [7, 4, 2, 1]]),
        sample(Op::ConvTranspose1d { s0: 5, p0: 0, d0: 1 }, &[[2, 17, 2, 1], [4, 2, 1, 1]]),
        sample(Op::ConvTranspose1d { s0: 70, p0: 9, d0: 4 }, &[[3, 1, 2, 1], [3, 2, 1, 1]]),
        sample(plain.clone(), &[[3, 7, 5, 1], [11, 5, 0, 1]]),
        sample(plain.clone(), &[[3, 7, 0, 1], [11, 0, 2, 1]]),
    ]
}

pub(crate) fn conv_transpose_2d() -> Vec<Sample> {
    vec![
        sample(Op::ConvTranspose2d { stride: 1 }, &[[1, 1, 1, 1], [1, 1, 1, 1]]),
        sample(Op::ConvTranspose2d { stride: 1 }, &[[3, 2, 7, 5], [6, 4, 5, 2]]),
        sample(Op::ConvTranspose2d { stride: 2 }, &[[2, 3, 9, 3], [5, 3, 3, 2]]),
        sample(Op::ConvTranspose2d { stride: 2 }, &[[4, 4, 2, 17], [6, 5, 17, 1]]),
        sample(Op::ConvTranspose2d { stride: 3 }, &[[2, 1, 17, 2], [4, 3, 2, 1]]),
        sample(Op::ConvTranspose2d { stride: 2 }, &[[2, 2, 0, 3], [4, 3, 3, 1]]),
        sample(Op::ConvTranspose2d { stride: 2 }, &[[2, 2, 4, 0], [4, 3, 0, 2]]),
    ]
}

pub(crate) fn pool_1d() -> Vec<Sample> {
    let mut samples = Vec::new();
    for op in [PoolOp::Max, PoolOp::Avg] {
        samples.push(sample(Op::Pool1d { op, k0: 1, s0: 1, p0: 0 }, &[[1, 1, 1, 1]]));
        samples.push(sample(Op::Pool1d { op, k0: 3, s0: 2, p0: 1 }, &[[16, 3, 2, 2]]));
        samples.push(sample(Op::Pool1d { op, k0: 2, s0: 3, p0: 0 }, &[[600, 2, 1, 1]]));
        samples.push(sample(Op::Pool1d { op, k0: 33, s0: 1, p0: 2 }, &[[31, 5, 1, 1]]));
        samples.push(sample(Op::Pool1d { op, k0: 257, s0: 9, p0: 0 }, &[[300, 2, 1, 1]]));
        samples.push(sample(Op::Pool1d { op, k0: 2, s0: 2, p0: 0 }, &[[8, 0, 3, 1]]));
    }
    samples
}

pub(crate) fn pool_2d() -> Vec<Sample> {
    let mut samples = Vec::new();
    for op in [PoolOp::Max, PoolOp::Avg] {
        let pool =
            |[k0, k1]: [u32; 2], [s0, s1]: [u32; 2], [p0, p1]: [u32; 2]| Op::Pool2d { op, k0, k1, s0, s1, p0, p1 };
        samples.push(sample(pool([1, 1], [1, 1], [0, 0]), &[[1, 1, 1, 1]]));
        samples.push(sample(pool([2, 2], [2, 2], [0, 0]), &[[9, 7, 3, 2]]));
        samples.push(sample(pool([3, 2], [2, 1], [1, 1]), &[[8, 5, 2, 1]]));
        samples.push(sample(pool([5, 1], [1, 4], [4, 0]), &[[3, 6, 2, 1]]));
        samples.push(sample(pool([7, 5], [1, 1], [0, 0]), &[[7, 5, 4, 2]]));
        samples.push(sample(pool([2, 2], [2, 2], [0, 0]), &[[8, 6, 0, 2]]));
    }
    samples
}

/// A layer in the middle of an image network.
const BENCH: [[u64; 4]; 2] = [[3, 3, 64, 64], [56, 56, 64, 1]];
const SAME: Steps = [[1, 1], [1, 1], [1, 1]];

pub(crate) fn bench_im2col() -> Vec<Sample> {
    vec![sample(im2col_op(SAME, true, DType::F32), &BENCH)]
}

/// A layer of a speech encoder.
pub(crate) fn bench_conv_1d() -> Vec<Sample> {
    vec![sample(Op::Conv1d { s0: 2, p0: 1, d0: 1 }, &[[3, 384, 384, 1], [1500, 384, 1, 1]])]
}

/// The first, a middle and a late layer of an image network, and one that only mixes channels.
pub(crate) fn bench_conv_2d() -> Vec<Sample> {
    vec![
        sample(conv_2d_op([[2, 2], [3, 3], [1, 1]]), &[[7, 7, 3, 64], [224, 224, 3, 1]]),
        sample(conv_2d_op(SAME), &BENCH),
        sample(conv_2d_op(SAME), &[[3, 3, 256, 256], [14, 14, 256, 1]]),
        sample(conv_2d_op(UNIT), &[[1, 1, 256, 64], [56, 56, 256, 1]]),
    ]
}

pub(crate) fn bench_conv_2d_dw() -> Vec<Sample> {
    vec![sample(conv_2d_dw_op(SAME), &[[3, 3, 1, 96], [112, 112, 96, 1]])]
}

/// A layer of a vocoder.
pub(crate) fn bench_conv_transpose_1d() -> Vec<Sample> {
    vec![sample(Op::ConvTranspose1d { s0: 8, p0: 4, d0: 1 }, &[[16, 128, 256, 1], [400, 256, 1, 1]])]
}

/// A layer of an image decoder.
pub(crate) fn bench_conv_transpose_2d() -> Vec<Sample> {
    vec![sample(Op::ConvTranspose2d { stride: 2 }, &[[2, 2, 64, 128], [56, 56, 128, 1]])]
}

pub(crate) fn bench_pool_1d() -> Vec<Sample> {
    vec![sample(Op::Pool1d { op: PoolOp::Avg, k0: 4, s0: 4, p0: 0 }, &[[4096, 512, 1, 1]])]
}

/// A pool between layers, and the one over whole images at the end of a network.
pub(crate) fn bench_pool_2d() -> Vec<Sample> {
    let between = Op::Pool2d { op: PoolOp::Max, k0: 3, k1: 3, s0: 2, s1: 2, p0: 1, p1: 1 };
    let whole = Op::Pool2d { op: PoolOp::Avg, k0: 56, k1: 56, s0: 1, s1: 1, p0: 0, p1: 0 };
    vec![sample(between, &[[112, 112, 64, 1]]), sample(whole, &[[56, 56, 256, 1]])]
}
