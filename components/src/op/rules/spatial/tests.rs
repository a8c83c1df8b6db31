//! Every length and every refusal of convolutions and pools.

use super::*;
use crate::op::PoolOp;

fn shape_of(op: &Op, shapes: &[[u64; 4]]) -> Result<[u64; 4], OpError> {
    let desc = |&shape: &[u64; 4]| TensorDesc::packed(DType::F32, Shape(shape)).expect("a possible operand");
    let operands: Vec<_> = shapes.iter().map(desc).collect();
    op.result(&operands).map(|result| result.desc.shape.0)
}

fn assert_refused(op: &Op, shapes: &[[u64; 4]], words: &str) {
    let error = shape_of(op, shapes).expect_err("must be refused").to_string();
    assert!(error.contains(words), "{op}: `{error}` does not say `{words}`");
}

fn conv_2d(s: [u32; 2], p: [u32; 2], d: [u32; 2]) -> Op {
    Op::Conv2d { s0: s[0], s1: s[1], p0: p[0], p1: p[1], d0: d[0], d1: d[1] }
}

fn depthwise(s: [u32; 2], p: [u32; 2], d: [u32; 2]) -> Op {
    Op::Conv2dDw { s0: s[0], s1: s[1], p0: p[0], p1: p[1], d0: d[0], d1: d[1] }
}

fn im2col(s: [u32; 2], p: [u32; 2], d: [u32; 2], is_2d: bool) -> Op {
    Op::Im2col { s0: s[0], s1: s[1], p0: p[0], p1: p[1], d0: d[0], d1: d[1], is_2d, dtype: DType::F16 }
}

fn pool_2d(k: [u32; 2], s: [u32; 2], p: [u32; 2]) -> Op {
    Op::Pool2d { op: PoolOp::Avg, k0: k[0], k1: k[1], s0: s[0], s1: s[1], p0: p[0], p1: p[1] }
}

/// A kernel `[3,2,…]` over `[W,H,…]`: ops that slide a window, with their operands.
fn sliding(s: [u32; 2], p: [u32; 2], d: [u32; 2], w: u64, h: u64) -> Vec<(Op, Vec<[u64; 4]>)> {
    vec![
        (conv_2d(s, p, d), vec![[3, 2, 5, 7], [w, h, 5, 4]]),
        (depthwise(s, p, d), vec![[3, 2, 1, 5], [w, h, 5, 4]]),
        (im2col(s, p, d, true), vec![[3, 2, 5, 7], [w, h, 5, 4]]),
        (im2col(s, p, d, false), vec![[3, 5, 7, 1], [w, 5, 4, 1]]),
        (Op::Conv1d { s0: s[0], p0: p[0], d0: d[0] }, vec![[3, 5, 7, 1], [w, 5, 4, 1]]),
    ]
}

#[test]
fn lengths_follow_the_formula() {
    let (s, p, d) = ([2, 3], [1, 2], [2, 1]);
    // (9 + 2 − 4 − 1)/2 + 1 = 4; (10 + 4 − 1 − 1)/3 + 1 = 5.
    let expected = [[4, 5, 7, 4], [4, 5, 5, 4], [30, 4, 5, 4], [15, 4, 4, 1], [4, 7, 4, 1]];
    for ((op, shapes), expected) in sliding(s, p, d, 9, 10).iter().zip(expected) {
        assert_eq!(shape_of(op, shapes).expect("fits"), expected, "{op}");
    }
    let op = Op::ConvTranspose1d { s0: 3, p0: 2, d0: 2 };
    // (6 − 1)·3 + 2·3 + 1 − 4 = 18.
    assert_eq!(shape_of(&op, &[[4, 7, 5, 1], [6, 5, 2, 1]]).expect("fits"), [18, 7, 2, 1]);
    let op = Op::ConvTranspose2d { stride: 3 };
    assert_eq!(shape_of(&op, &[[4, 2, 7, 5], [6, 1, 5, 2]]).expect("fits"), [19, 2, 7, 2]);
    let op = Op::Pool1d { op: PoolOp::Max, k0: 3, s0: 2, p0: 1 };
    assert_eq!(shape_of(&op, &[[8, 3, 2, 5]]).expect("fits"), [4, 3, 2, 5]);
    assert_eq!(shape_of(&pool_2d([3, 2], [2, 1], [0, 1]), &[[8, 3, 2, 5]]).expect("fits"), [3, 4, 2, 5]);
}

#[test]
fn strides_and_dilations_of_zero_are_refused() {
    for (op, shapes) in sliding([0, 1], [0, 0], [1, 1], 9, 9) {
        assert_refused(&op, &shapes, "parameter `s0`: must be at least 1");
    }
    for (op, shapes) in sliding([1, 1], [0, 0], [0, 1], 9, 9) {
        assert_refused(&op, &shapes, "parameter `d0`: must be at least 1");
    }
    for (op, shapes) in &sliding([1, 0], [0, 0], [1, 1], 9, 9)[..3] {
        assert_refused(op, shapes, "parameter `s1`: must be at least 1");
    }
    for (op, shapes) in &sliding([1, 1], [0, 0], [1, 0], 9, 9)[..3] {
        assert_refused(op, shapes, "parameter `d1`: must be at least 1");
    }
    // One axis does not look at the other's parameters.
    assert!(shape_of(&im2col([1, 0], [0, 0], [1, 0], false), &[[3, 5, 7, 1], [9, 5, 4, 1]]).is_ok());
    let transposed = [[3, 7, 5, 1], [9, 5, 4, 1]];
    assert_refused(&Op::ConvTranspose1d { s0: 0, p0: 0, d0: 1 }, &transposed, "parameter `s0`");
    assert_refused(&Op::ConvTranspose1d { s0: 1, p0: 0, d0: 0 }, &transposed, "parameter `d0`");
    assert_refused(&Op::ConvTranspose2d { stride: 0 }, &[[3, 3, 7, 5], [9, 9, 5, 1]], "parameter `stride`");
    assert_refused(&Op::Pool1d { op: PoolOp::Max, k0: 2, s0: 0, p0: 0 }, &[[8, 1, 1, 1]], "parameter `s0`");
    assert_refused(&pool_2d([2, 2], [1, 0], [0, 0]), &[[8, 8, 1, 1]], "parameter `s1`");
}

#[test]
fn kernels_that_do_not_fit_are_refused() {
    for (op, shapes) in sliding([1, 1], [0, 0], [1, 1], 2, 9) {
        assert_refused(&op, &shapes, "must fit into the input");
    }
    for (op, shapes) in sliding([1, 1], [0, 0], [5, 1], 10, 9) {
        assert_refused(&op, &shapes, "must fit into the input");
    }
    for (op, shapes) in &sliding([1, 1], [0, 0], [1, 9], 9, 9)[..3] {
        assert_refused(op, shapes, "must fit into the input");
    }
    // Padding makes room, even around nothing.
    for (op, shapes) in sliding([1, 1], [2, 1], [1, 1], 0, 0) {
        assert!(shape_of(&op, &shapes).is_ok(), "{op}");
    }
    assert_refused(&pool_2d([9, 2], [1, 1], [0, 0]), &[[8, 8, 1, 1]], "must fit into the input");
    assert_refused(&Op::Pool1d { op: PoolOp::Avg, k0: 9, s0: 1, p0: 0 }, &[[8, 1, 1, 1]], "must fit into the input");
}

#[test]
fn kernels_without_taps_are_refused() {
    assert_refused(&conv_2d([1, 1], [0, 0], [1, 1]), &[[0, 3, 5, 7], [9, 9, 5, 1]], "must not be empty");
    assert_refused(&conv_2d([1, 1], [0, 0], [1, 1]), &[[3, 0, 5, 7], [9, 9, 5, 1]], "must not be empty");
    assert_refused(&depthwise([1, 1], [0, 0], [1, 1]), &[[0, 3, 1, 5], [9, 9, 5, 1]], "must not be empty");
    assert_refused(&im2col([1, 1], [0, 0], [1, 1], true), &[[0, 3, 5, 7], [9, 9, 5, 1]], "must not be empty");
    assert_refused(&im2col([1, 1], [0, 0], [1, 1], false), &[[0, 5, 7, 1], [9, 5, 1, 1]], "must not be empty");
    assert_refused(&Op::Conv1d { s0: 1, p0: 0, d0: 1 }, &[[0, 5, 7, 1], [9, 5, 1, 1]], "must not be empty");
    assert_refused(&Op::ConvTranspose1d { s0: 1, p0: 0, d0: 1 }, &[[0, 7, 5, 1], [9, 5, 1, 1]], "must not be empty");
    assert_refused(&Op::ConvTranspose2d { stride: 1 }, &[[3, 0, 7, 5], [9, 9, 5, 1]], "must not be empty");
    assert_refused(&pool_2d([2, 0], [1, 1], [0, 0]), &[[8, 8, 1, 1]], "parameter `k1`: must be at least 1");
    assert_refused(&Op::Pool1d { op: PoolOp::Max, k0: 0, s0: 1, p0: 0 }, &[[8, 1, 1, 1]], "parameter `k0`");
}

#[test]
fn channels_and_ranks_must_agree() {
    assert_refused(&conv_2d([1, 1], [0, 0], [1, 1]), &[[3, 3, 5, 7], [9, 9, 4, 1]], "the channels");
    assert_refused(&im2col([1, 1], [0, 0], [1, 1], true), &[[3, 3, 5, 7], [9, 9, 4, 1]], "the channels");
    assert_refused(&depthwise([1, 1], [0, 0], [1, 1]), &[[3, 3, 1, 5], [9, 9, 4, 1]], "as channels");
    assert_refused(&depthwise([1, 1], [0, 0], [1, 1]), &[[3, 3, 2, 4], [9, 9, 4, 1]], "axis 2 of 1");
    assert_refused(&Op::ConvTranspose2d { stride: 1 }, &[[3, 3, 5, 7], [9, 9, 5, 1]], "the channels");
    for (op, kernel) in [
        (Op::Conv1d { s0: 1, p0: 0, d0: 1 }, [3, 5, 7, 1]),
        (im2col([1, 1], [0, 0], [1, 1], false), [3, 5, 7, 1]),
        (Op::ConvTranspose1d { s0: 1, p0: 0, d0: 1 }, [3, 7, 5, 1]),
    ] {
        assert_refused(&op, &[kernel, [9, 4, 1, 1]], "as many input channels");
        assert_refused(&op, &[kernel, [9, 5, 1, 2]], "at most 3 axes");
        assert_refused(&op, &[[kernel[0], kernel[1], kernel[2], 2], [9, 5, 1, 1]], "at most 3 axes");
    }
}

#[test]
fn empty_batches_and_channels_are_allowed() {
    for (batch, channels, outputs) in [(0, 5, 7), (2, 0, 7), (2, 5, 0), (0, 0, 0)] {
        let (k, x) = ([3, 2, channels, outputs], [9, 8, channels, batch]);
        let op = conv_2d([1, 1], [0, 0], [1, 1]);
        assert_eq!(shape_of(&op, &[k, x]).expect("fits"), [7, 7, outputs, batch]);
        let op = im2col([1, 1], [0, 0], [1, 1], true);
        assert_eq!(shape_of(&op, &[k, x]).expect("fits"), [channels * 6, 7, 7, batch]);
        let op = depthwise([1, 1], [0, 0], [1, 1]);
        assert_eq!(shape_of(&op, &[[3, 2, 1, channels], x]).expect("fits"), [7, 7, channels, batch]);
        let op = Op::Conv1d { s0: 1, p0: 0, d0: 1 };
        let x = [9, channels, batch, 1];
        assert_eq!(shape_of(&op, &[[3, channels, outputs, 1], x]).expect("fits"), [7, outputs, batch, 1]);
        let op = Op::ConvTranspose1d { s0: 1, p0: 0, d0: 1 };
        assert_eq!(shape_of(&op, &[[3, outputs, channels, 1], x]).expect("fits"), [11, outputs, batch, 1]);
        let op = Op::ConvTranspose2d { stride: 1 };
        let operands = [[3, 2, outputs, channels], [9, 8, channels, batch]];
        assert_eq!(shape_of(&op, &operands).expect("fits"), [11, 9, outputs, batch]);
        let op = pool_2d([2, 2], [1, 1], [0, 0]);
        assert_eq!(shape_of(&op, &[[9, 8, channels, batch]]).expect("fits"), [8, 7, channels, batch]);
    }
    let transposed = Op::ConvTranspose1d { s0: 1, p0: 0, d0: 1 };
    assert_refused(&transposed, &[[3, 7, 5, 1], [0, 5, 1, 1]], "the input must not be empty");
    assert_refused(&Op::ConvTranspose2d { stride: 2 }, &[[3, 3, 7, 5], [4, 0, 5, 1]], "the input must not be empty");
    assert_refused(&pool_2d([2, 2], [1, 1], [1, 1]), &[[8, 0, 1, 1]], "the input must not be empty");
    let pool = Op::Pool1d { op: PoolOp::Max, k0: 2, s0: 1, p0: 1 };
    assert_refused(&pool, &[[0, 3, 1, 1]], "the input must not be empty");
}

#[test]
fn padding_must_leave_something() {
    // 5·2 + 2 + 1 = 13.
    let shapes = [[3, 7, 5, 1], [6, 5, 1, 1]];
    assert_eq!(shape_of(&Op::ConvTranspose1d { s0: 2, p0: 6, d0: 1 }, &shapes).expect("one is left"), [1, 7, 1, 1]);
    for p0 in [7, u32::MAX] {
        assert_refused(&Op::ConvTranspose1d { s0: 2, p0, d0: 1 }, &shapes, "parameter `p0`: cuts off");
    }
    for (p0, p1, name) in [(2, 0, "p0"), (0, 3, "p1"), (u32::MAX, 0, "p0")] {
        assert_refused(&pool_2d([2, 3], [1, 1], [p0, p1]), &[[8, 8, 1, 1]], &format!("parameter `{name}`"));
    }
    let pool = Op::Pool1d { op: PoolOp::Avg, k0: 3, s0: 1, p0: 3 };
    assert_refused(&pool, &[[8, 1, 1, 1]], "parameter `p0`: must be less than the window");
}

#[test]
fn huge_parameters_give_errors_or_tensors_that_exist() {
    const MOST: u32 = u32::MAX;
    // Wide padding and a wide stride are sizes like others.
    assert_eq!(
        shape_of(&conv_2d([MOST, MOST], [MOST, MOST], [1, 1]), &[[3, 2, 5, 7], [9, 8, 5, 1]]).expect("fits"),
        [3, 3, 7, 1]
    );
    // Results that no memory holds.
    for (op, shapes) in sliding([1, 1], [MOST, MOST], [1, 1], 9, 8).iter().take(3) {
        assert!(matches!(shape_of(op, shapes), Err(OpError::Result { .. })), "{op}");
    }
    let huge = 1 << 60;
    // A broadcast view can have any number of elements.
    let wide = TensorDesc {
        strides: crate::Strides([0, 0, 0, 0]),
        ..TensorDesc::packed(DType::F32, Shape([1; 4])).expect("one")
    };
    let of = |shape: [u64; 4]| TensorDesc { shape: Shape(shape), ..wide };
    let conv = conv_2d([1, 1], [0, 0], [MOST, MOST]);
    assert!(conv.result(&[of([huge, 1, 1, 1]), of([9, 9, 1, 1])]).expect_err("overflows").to_string().contains("2^63"));
    let padded = conv_2d([1, 1], [MOST, 0], [1, 1]);
    let error = padded.result(&[of([1, 1, 1, 1]), of([u64::MAX, 1, 1, 1])]).expect_err("overflows");
    assert!(error.to_string().contains("2^63"), "{error}");
    let spread = Op::ConvTranspose1d { s0: MOST, p0: 0, d0: 1 };
    assert!(
        spread.result(&[of([1, 1, 1, 1]), of([huge, 1, 1, 1])]).expect_err("overflows").to_string().contains("2^63")
    );
    let spread = Op::ConvTranspose2d { stride: MOST };
    assert!(
        spread.result(&[of([1, 1, 1, 1]), of([1, huge, 1, 1])]).expect_err("overflows").to_string().contains("2^63")
    );
    let patches = im2col([1, 1], [0, 0], [1, 1], true);
    let operands = [of([1 << 30, 1 << 30, 1 << 30, 1]), of([1 << 30, 1 << 30, 1 << 30, 1])];
    assert!(patches.result(&operands).expect_err("overflows").to_string().contains("2^63"));
    assert!(matches!(
        conv_2d([1, 1], [0, 0], [1, 1]).result(&[of([1, 1, 1, huge]), of([9, 9, 1, huge])]),
        Err(OpError::Result { .. })
    ));
}

#[test]
fn patches_are_plain_floats() {
    for dtype in [DType::I32, DType::Q8_0] {
        let mut op = im2col([1, 1], [0, 0], [1, 1], true);
        op.set_param("dtype", dtype.name()).expect("a dtype");
        assert_refused(&op, &[[3, 3, 5, 7], [9, 9, 5, 1]], "parameter `dtype`: must be a plain float type");
    }
}

#[test]
fn flops_saturate() {
    let desc = |shape| TensorDesc::packed(DType::F32, Shape(shape)).expect("possible");
    let (kernel, x, out) = (desc([3, 2, 5, 7]), desc([9, 8, 5, 2]), desc([7, 7, 7, 2]));
    assert_eq!(conv_flops(&[kernel, x], &out, 3), 2 * 30 * 7 * 7 * 7 * 2);
    assert_eq!(conv_transpose_flops(&[desc([3, 2, 7, 5]), x], 3), 2 * 42 * 9 * 8 * 5 * 2);
    let large = desc([1 << 30, 1 << 30, 1, 1]);
    assert_eq!(conv_flops(&[large, x], &large, 3), u64::MAX);
}
