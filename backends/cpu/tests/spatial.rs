//! What the conformance suite cannot see of convolutions and pools: long sums, neighbours in a split, results over their
//! operands, and work that no memory holds.

mod common;

use common::{contents, cpu, floats, memory, node, tensor};
use entensor_components::{Backend, BackendError, DType, NodeDesc, Op, PoolOp, SplitDesc, Strides, TensorRef};
use entensor_oracle::OracleBackend;

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn run(backend: &dyn Backend, nodes: &[NodeDesc], bytes: &[u8]) -> Vec<u8> {
    let memory = memory(backend, bytes);
    let split = SplitDesc { nodes: nodes.to_vec(), memory_slots: 1 };
    backend.prepare(&split).expect("valid").submit(std::slice::from_ref(&memory)).expect("runs");
    contents(backend, &memory)
}

/// A quarter of a million times 0.1: added up in f32 alone that is off by far more than the tolerance.
#[test]
fn long_sums_keep_their_precision() {
    const SIDE: u64 = 512;
    const COUNT: u64 = SIDE * SIDE;
    let tenths: Vec<u8> = (0..COUNT).flat_map(|_| 0.1_f32.to_le_bytes()).collect();
    let ones: Vec<u8> = (0..COUNT).flat_map(|_| 1.0_f32.to_le_bytes()).collect();
    let bytes = [tenths, ones, vec![0; 4]].concat();
    let at = |index: u64, shape: &[u64]| tensor(0, index * COUNT * 4, DType::F32, shape);
    let naive = (0..COUNT).fold(0.0_f32, |sum, _| sum + 0.1);
    let exact = f64::from(0.1_f32) * COUNT as f64;
    assert!((f64::from(naive) / exact - 1.0).abs() > 1e-4, "{naive} would pass");
    let (channels, plane) = ([1, COUNT, 1, 1], [SIDE, SIDE, 1, 1]);
    let still = Op::Conv1d { s0: 1, p0: 0, d0: 1 };
    let conv_2d = Op::Conv2d { s0: 1, s1: 1, p0: 0, p1: 0, d0: 1, d1: 1 };
    let depthwise = Op::Conv2dDw { s0: 1, s1: 1, p0: 0, p1: 0, d0: 1, d1: 1 };
    let size = u32::try_from(SIDE).expect("small");
    let pool = Op::Pool2d { op: PoolOp::Avg, k0: size, k1: size, s0: 1, s1: 1, p0: 0, p1: 0 };
    for (op, shapes, expected) in [
        (still, vec![channels, channels], exact),
        (conv_2d, vec![plane, plane], exact),
        (depthwise, vec![plane, plane], exact),
        (Op::ConvTranspose1d { s0: 1, p0: 0, d0: 1 }, vec![[1, 1, COUNT, 1], channels], exact),
        (pool, vec![plane], f64::from(0.1_f32)),
    ] {
        let operands: Vec<TensorRef> = (0..).zip(&shapes).map(|(index, shape)| at(index, shape)).collect();
        let nodes = [node("sum", op.clone(), &operands, at(2, &[1]))];
        let found = f32s(&run(&cpu(1), &nodes, &bytes)).pop().expect("the result is last");
        assert!((f64::from(found) / expected - 1.0).abs() < 1e-5, "{op}: {found}, not {expected}");
    }
}

/// A convolution uses the memory in which products keep what they made of their activations.
#[test]
fn products_around_a_convolution_see_their_own_activations() {
    let weights = tensor(0, 0, DType::Q8_0, &[64, 8]);
    let x = tensor(0, 1024, DType::F32, &[64, 6]);
    let (first, second) = (tensor(0, 4096, DType::F32, &[8, 6]), tensor(0, 5120, DType::F32, &[8, 6]));
    let kernel = tensor(0, 6144, DType::F32, &[3, 2, 1, 5]);
    let spread = tensor(0, 7168, DType::F32, &[62, 5, 5]);
    let conv = Op::Conv2d { s0: 1, s1: 1, p0: 0, p1: 0, d0: 1, d1: 1 };
    let nodes = [
        node("first", Op::MulMat {}, &[weights, x], first),
        node("conv", conv, &[kernel, x], spread),
        node("second", Op::MulMat {}, &[weights, x], second),
    ];
    let mut bytes = floats(4096);
    let values: Vec<f32> = (0..512).map(|i| (i * 31 % 97) as f32 / 97.0 - 0.5).collect();
    (DType::Q8_0.row().quantize)(&values, &mut bytes[..544]);
    let bytes = run(&cpu(2), &nodes, &bytes);
    let result = |tensor: TensorRef| {
        let start = usize::try_from(tensor.offset_bytes).expect("small");
        bytes[start..start + usize::try_from(tensor.desc.size_bytes()).expect("small")].to_vec()
    };
    assert_eq!(result(first), result(second));
}

/// Whole numbers, whose sums are exact, with results that lie over kernels and inputs in every way.
#[test]
fn results_may_lie_over_operands() {
    let conv_2d = Op::Conv2d { s0: 2, s1: 1, p0: 1, p1: 1, d0: 1, d1: 1 };
    let depthwise = Op::Conv2dDw { s0: 1, s1: 2, p0: 1, p1: 1, d0: 1, d1: 1 };
    let im2col = Op::Im2col { s0: 1, s1: 1, p0: 1, p1: 0, d0: 1, d1: 1, is_2d: true, dtype: DType::F32 };
    let pool = Op::Pool2d { op: PoolOp::Max, k0: 2, k1: 2, s0: 1, s1: 1, p0: 1, p1: 0 };
    let ops: [(Op, Vec<[u64; 4]>); 6] = [
        (conv_2d, vec![[3, 3, 2, 3], [7, 5, 2, 1]]),
        (depthwise, vec![[3, 3, 1, 2], [7, 5, 2, 1]]),
        (im2col, vec![[3, 2, 2, 1], [7, 5, 2, 1]]),
        (Op::ConvTranspose1d { s0: 2, p0: 0, d0: 1 }, vec![[3, 4, 2, 1], [7, 2, 1, 1]]),
        (Op::ConvTranspose2d { stride: 2 }, vec![[2, 2, 4, 2], [7, 5, 2, 1]]),
        (pool, vec![[7, 5, 2, 1]]),
    ];
    let bytes: Vec<u8> = (0..2048_u32).flat_map(|i| ((i * 37 % 101 % 9) as f32 - 4.0).to_le_bytes()).collect();
    let oracle = OracleBackend::new("oracle");
    for (op, shapes) in ops {
        for offset in [0, 4, 100, 396, 400, 600, 1000] {
            let operands: Vec<TensorRef> =
                [0, 400].iter().zip(&shapes).map(|(&at, shape)| tensor(0, at, DType::F32, shape)).collect();
            let descs: Vec<_> = operands.iter().map(|o| o.desc).collect();
            let mut out = operands[0];
            out.desc = op.result(&descs).expect("shapes fit").desc;
            out.offset_bytes = offset;
            let nodes = [node("over", op.clone(), &operands, out)];
            assert_eq!(run(&cpu(2), &nodes, &bytes), run(&oracle, &nodes, &bytes), "{op} at {offset}");
        }
    }
}

/// A view can repeat one element for ever; packing it cannot.
#[test]
fn work_that_no_memory_holds_is_an_error() {
    let mut x = tensor(0, 0, DType::F32, &[1]);
    x.desc.shape.0 = [1 << 30, 1 << 29, 1, 1];
    x.desc.strides = Strides([0, 0, 0, 0]);
    let op = Op::Conv2d { s0: 1 << 29, s1: 1 << 28, p0: 0, p1: 0, d0: 1, d1: 1 };
    let kernel = tensor(0, 64, DType::F32, &[1]);
    let mut out = kernel;
    out.desc = op.result(&[kernel.desc, x.desc]).expect("a small result").desc;
    out.offset_bytes = 128;
    let split = SplitDesc { nodes: vec![node("huge", op, &[kernel, x], out)], memory_slots: 1 };
    let error = cpu(1).prepare(&split).err().expect("no memory holds the input packed");
    assert!(matches!(error, BackendError::OutOfMemory { .. }), "{error}");
}
