//! Convolutions and pooling: borders, numbers that are not finite, and sizes at which backends change their ways.

use entensor_components::{DType, Op, PoolOp};

use super::{operand, packed};
use crate::{Case, Fill, Layout};

pub(super) fn cases(cases: &mut Vec<Case>) {
    numbers(cases);
    channels(cases);
    lengths(cases);
    far_padding(cases);
    large(cases);
}

fn conv_2d(s: [u32; 2], p: [u32; 2], d: [u32; 2]) -> Op {
    Op::Conv2d { s0: s[0], s1: s[1], p0: p[0], p1: p[1], d0: d[0], d1: d[1] }
}

fn depthwise(s: [u32; 2], p: [u32; 2], d: [u32; 2]) -> Op {
    Op::Conv2dDw { s0: s[0], s1: s[1], p0: p[0], p1: p[1], d0: d[0], d1: d[1] }
}

fn im2col(s: [u32; 2], p: [u32; 2], d: [u32; 2], dtype: DType) -> Op {
    Op::Im2col { s0: s[0], s1: s[1], p0: p[0], p1: p[1], d0: d[0], d1: d[1], is_2d: true, dtype }
}

fn pool_2d(op: PoolOp, k: [u32; 2], s: [u32; 2], p: [u32; 2]) -> Op {
    Op::Pool2d { op, k0: k[0], k1: k[1], s0: s[0], s1: s[1], p0: p[0], p1: p[1] }
}

/// NaN and infinities in kernel and input, with padding that must not turn them into NaN; magnitudes of thousands.
fn numbers(cases: &mut Vec<Case>) {
    let f32s = |shape| packed(DType::F32, shape);
    for fill in [Fill::Nan, Fill::Infinity, Fill::AllMasked, Fill::Large] {
        for (op, kernel, x) in [
            (conv_2d([1, 1], [2, 2], [1, 1]), [3, 3, 2, 9], [7, 5, 2, 2]),
            (conv_2d([2, 1], [1, 2], [1, 2]), [3, 3, 2, 3], [7, 6, 2, 1]),
            (depthwise([1, 1], [2, 2], [1, 1]), [3, 3, 1, 2], [7, 5, 2, 2]),
            (Op::Conv1d { s0: 1, p0: 2, d0: 1 }, [3, 2, 9, 1], [7, 2, 2, 1]),
            (Op::ConvTranspose1d { s0: 2, p0: 1, d0: 1 }, [3, 9, 2, 1], [7, 2, 2, 1]),
            (Op::ConvTranspose2d { stride: 2 }, [3, 3, 9, 2], [5, 4, 2, 1]),
            (im2col([1, 1], [2, 2], [1, 1], DType::F16), [3, 3, 2, 1], [7, 5, 2, 1]),
        ] {
            cases.push(Case { fill, ..Case::new(op, vec![f32s(kernel), f32s(x)]) });
        }
        for op in [PoolOp::Max, PoolOp::Avg] {
            for dtype in [DType::F32, DType::F16] {
                let x = packed(dtype, [7, 5, 3, 1]);
                cases.push(Case { fill, ..Case::new(pool_2d(op, [3, 2], [2, 1], [1, 1]), vec![x]) });
                cases.push(Case { fill, ..Case::new(pool_2d(op, [7, 5], [1, 1], [0, 0]), vec![x]) });
                cases.push(Case { fill, ..Case::new(Op::Pool1d { op, k0: 3, s0: 1, p0: 2 }, vec![x]) });
            }
        }
    }
}

/// Channel counts around the widths of registers, and sums that are too long for f32.
fn channels(cases: &mut Vec<Case>) {
    for outputs in [1, 2, 7, 8, 9, 15, 16, 17, 33] {
        for inputs in [1, 3, 16] {
            let x = packed(DType::F32, [6, 5, inputs, 1]);
            cases
                .push(Case::new(conv_2d([1, 1], [1, 1], [1, 1]), vec![packed(DType::F32, [3, 3, inputs, outputs]), x]));
            let kernel = packed(DType::F16, [2, 3, outputs, inputs]);
            cases.push(Case::new(Op::ConvTranspose2d { stride: 2 }, vec![kernel, x]));
        }
    }
    for inputs in [127, 128, 129, 300, 1000] {
        let (kernel, x) = ([2, 2, inputs, 9], [6, 3, inputs, 1]);
        cases.push(Case::new(
            conv_2d([1, 1], [1, 1], [1, 1]),
            vec![packed(DType::F32, kernel), operand(DType::F32, x, Layout::Transposed)],
        ));
        let kernel = packed(DType::F32, [2, 9, inputs, 1]);
        let x = packed(DType::F16, [6, inputs, 1, 1]);
        cases.push(Case::new(Op::ConvTranspose1d { s0: 1, p0: 1, d0: 2 }, vec![kernel, x]));
    }
    // More taps than are summed in f32.
    let kernel = packed(DType::F32, [13, 11, 1, 2]);
    cases.push(Case::new(depthwise([1, 1], [3, 2], [1, 1]), vec![kernel, packed(DType::F32, [20, 12, 2, 1])]));
}

/// Lengths around the runs of outputs that backends compute together, for strides, dilations and windows of any kind.
fn lengths(cases: &mut Vec<Case>) {
    for length in [1, 2, 3, 4, 5, 7, 8, 9, 31, 63, 64, 65, 66, 130, 257] {
        for layout in [Layout::Contiguous, Layout::Transposed] {
            let x = operand(DType::F32, [length, 2, 1, 1], layout);
            for (s0, p0, d0) in [(1, 1, 1), (2, 1, 1), (3, 2, 2), (1, 6, 5)] {
                let kernel = packed(DType::F32, [3, 2, 9, 1]);
                cases.extend(valid(Case::new(Op::Conv1d { s0, p0, d0 }, vec![kernel, x])));
                let kernel = packed(DType::F32, [3, 9, 2, 1]);
                cases.extend(valid(Case::new(Op::ConvTranspose1d { s0, p0, d0 }, vec![kernel, x])));
                let kernel = packed(DType::F32, [3, 1, 1, 1]);
                let planes = operand(DType::F16, [length, 2, 1, 1], layout);
                cases.extend(valid(Case::new(depthwise([s0, 1], [p0, 0], [d0, 1]), vec![kernel, planes])));
                cases.extend(valid(Case::new(im2col([s0, 1], [p0, 0], [d0, 1], DType::F32), vec![kernel, planes])));
            }
            for (k0, s0, p0) in [(2, 2, 0), (3, 2, 1), (5, 1, 4), (64, 3, 2)] {
                for op in [PoolOp::Max, PoolOp::Avg] {
                    cases.extend(valid(Case::new(Op::Pool1d { op, k0, s0, p0 }, vec![x])));
                }
            }
        }
    }
}

fn valid(case: Case) -> Option<Case> {
    case.is_valid().then_some(case)
}

/// Paddings, strides and dilations far beyond the input: nothing may loop over them or allocate for them.
fn far_padding(cases: &mut Vec<Case>) {
    const FAR: u32 = 1 << 31;
    let x = packed(DType::F32, [5, 4, 2, 1]);
    let far = [FAR - 1, FAR - 1];
    let kernel = packed(DType::F32, [3, 2, 2, 3]);
    let (strides, dilations) = ([FAR, FAR], [FAR - 2, FAR + 1]);
    cases.push(Case::new(conv_2d(strides, far, [1, 1]), vec![kernel, x]));
    cases.push(Case::new(conv_2d(strides, far, dilations), vec![kernel, x]));
    cases.push(Case::new(im2col(strides, far, dilations, DType::F32), vec![kernel, x]));
    let kernel = packed(DType::F32, [3, 2, 1, 2]);
    cases.push(Case::new(depthwise(strides, far, [1, 1]), vec![kernel, x]));
    cases.push(Case::new(depthwise(strides, far, dilations), vec![kernel, x]));
    // 4·(2^31−1) + 1 − 2·(2^32−4): five elements are left of billions.
    let transposed = Op::ConvTranspose1d { s0: FAR - 1, p0: u32::MAX - 3, d0: FAR - 1 };
    let kernel = packed(DType::F32, [3, 9, 2, 1]);
    cases.push(Case::new(transposed, vec![kernel, packed(DType::F32, [3, 2, 1, 1])]));
    for op in [PoolOp::Max, PoolOp::Avg] {
        cases.push(Case::new(pool_2d(op, [FAR, FAR], strides, far), vec![x]));
        cases.push(Case::new(Op::Pool1d { op, k0: FAR, s0: FAR - 1, p0: FAR - 1 }, vec![x]));
    }
}

/// Sizes at which backends share the work between threads.
fn large(cases: &mut Vec<Case>) {
    let x = packed(DType::F32, [40, 30, 24, 1]);
    cases.push(Case::new(conv_2d([1, 1], [1, 1], [1, 1]), vec![packed(DType::F16, [3, 3, 24, 40]), x]));
    cases.push(Case::new(conv_2d([2, 2], [0, 0], [1, 1]), vec![packed(DType::F32, [1, 1, 24, 20]), x]));
    cases.push(Case::new(Op::ConvTranspose2d { stride: 2 }, vec![packed(DType::F32, [4, 4, 18, 24]), x]));
    cases.push(Case::new(depthwise([1, 1], [1, 1], [1, 1]), vec![packed(DType::F32, [3, 3, 1, 24]), x]));
    cases.push(Case::new(im2col([1, 1], [1, 1], [1, 1], DType::F16), vec![packed(DType::F32, [3, 3, 24, 1]), x]));
    let long = packed(DType::F32, [3000, 8, 1, 1]);
    cases.push(Case::new(Op::Conv1d { s0: 1, p0: 1, d0: 1 }, vec![packed(DType::F32, [3, 8, 20, 1]), long]));
    let kernel = packed(DType::F32, [16, 9, 8, 1]);
    cases
        .push(Case::new(Op::ConvTranspose1d { s0: 8, p0: 4, d0: 1 }, vec![kernel, packed(DType::F32, [300, 8, 2, 1])]));
    for op in [PoolOp::Max, PoolOp::Avg] {
        cases.push(Case::new(pool_2d(op, [3, 3], [2, 2], [1, 1]), vec![x]));
        cases.push(Case::new(pool_2d(op, [40, 30], [1, 1], [0, 0]), vec![x]));
        cases.push(Case::new(Op::Pool1d { op, k0: 4, s0: 4, p0: 0 }, vec![packed(DType::F16, [9000, 5, 1, 1])]));
    }
}
