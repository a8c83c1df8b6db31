//! Splits for the tests of this folder.
#![allow(dead_code, reason = "every test file uses some of it")]

use std::sync::Arc;

use entensor_components::{
    Backend, DType, MemoryHandle, MemorySlot, NodeDesc, Op, Shape, SortOrder, SplitDesc, SplitView, TensorDesc,
    TensorRef, Usage,
};
use entensor_cpu::{CpuBackend, CpuConfig, Simd};

pub(crate) fn cpu(threads: usize) -> CpuBackend {
    CpuBackend::new(CpuConfig { threads: Some(threads), ..CpuConfig::default() }).expect("the CPU is there")
}

pub(crate) fn portable() -> CpuBackend {
    CpuBackend::new(CpuConfig { simd: Simd::Portable, threads: Some(1), ..CpuConfig::default() }).expect("it is there")
}

/// A split of which nobody but its own nodes reads anything, except for some results.
pub(crate) struct Inner {
    pub(crate) split: SplitDesc,
    pub(crate) read_elsewhere: Vec<usize>,
}

impl SplitView for Inner {
    fn len(&self) -> usize {
        self.split.nodes.len()
    }

    fn node(&self, index: usize) -> NodeDesc {
        self.split.nodes[index].clone()
    }

    fn memory_slots(&self) -> u32 {
        self.split.memory_slots
    }

    fn is_read_elsewhere(&self, index: usize) -> bool {
        self.read_elsewhere.contains(&index)
    }
}

pub(crate) fn run(backend: &dyn Backend, split: &dyn SplitView, (read, written): (&[u8], &[u8])) -> Vec<u8> {
    let memories = [memory(backend, read), memory(backend, written)];
    backend.prepare(split).expect("valid").submit(&memories).expect("runs");
    contents(backend, &memories[1])
}

pub(crate) fn values(bytes: &[u8], at: &TensorRef) -> Vec<f32> {
    let start = usize::try_from(at.offset_bytes).expect("small");
    let bytes = &bytes[start..start + usize::try_from(at.desc.size_bytes()).expect("small")];
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

pub(crate) fn tensor(slot: u32, offset_bytes: u64, dtype: DType, shape: &[u64]) -> TensorRef {
    let desc = TensorDesc::packed(dtype, Shape::new(shape).expect("few axes")).expect("valid");
    TensorRef { desc, memory: MemorySlot(slot), offset_bytes }
}

pub(crate) fn node(name: &str, op: Op, operands: &[TensorRef], output: TensorRef) -> NodeDesc {
    NodeDesc { name: Arc::from(name), op, output, operands: operands.to_vec() }
}

pub(crate) fn memory(backend: &dyn Backend, bytes: &[u8]) -> MemoryHandle {
    let key = backend.create_buffer(bytes.len() as u64, Usage::Compute).expect("small");
    let memory = backend.memory(key).expect("just made");
    backend.write(&memory, 0, bytes).expect("in bounds");
    memory
}

pub(crate) fn contents(backend: &dyn Backend, memory: &MemoryHandle) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(memory.as_host().expect("host").size_bytes()).expect("small")];
    backend.read(memory, 0, &mut bytes).expect("in bounds");
    bytes
}

pub(crate) fn floats(len: usize) -> Vec<u8> {
    (0..len).flat_map(|i| ((i * 37 % 101) as f32 / 50.0 - 1.0).to_le_bytes()).collect()
}

/// A block of a network, in `width` columns and `tokens` rows: every kind of step, some independent of each other.
/// Slot 0 is only read, slot 1 is written.
pub(crate) fn block(width: u64, tokens: u64, repeats: usize) -> (SplitDesc, Vec<u8>, Vec<u8>) {
    let x_bytes = width * tokens * 4;
    let at = |index: u64| tensor(1, index * x_bytes, DType::F32, &[width, tokens]);
    let weights = tensor(0, 0, DType::Q8_0, &[width, width]);
    let plain = tensor(0, weights.desc.size_bytes(), DType::F32, &[width, width]);
    let positions = tensor(0, plain.offset_bytes + plain.desc.size_bytes(), DType::I32, &[tokens]);
    let heads = |index: u64| tensor(1, index * x_bytes, DType::F32, &[width, 1, tokens]);
    let rope = Op::rope(entensor_components::RopeMode::Neox, 0, 1e4, 1.0);
    let mut nodes = Vec::new();
    for _ in 0..repeats {
        nodes.push(node("norm", Op::RmsNorm { eps: 1e-5 }, &[at(0)], at(1)));
        nodes.push(node("q", Op::MulMat {}, &[weights, at(1)], at(2)));
        nodes.push(node("k", Op::MulMat {}, &[plain, at(1)], at(3)));
        nodes.push(node("q_rope", rope.clone(), &[heads(2), positions], heads(2)));
        nodes.push(node("k_rope", rope.clone(), &[heads(3), positions], heads(3)));
        nodes.push(node("gate", Op::Swiglu {}, &[at(2), at(3)], at(4)));
        nodes.push(node("soft", Op::SoftMax { scale: 0.1, max_bias: 0.0 }, &[at(4)], at(4)));
        nodes.push(node("cache", Op::SetRows {}, &[at(5), at(4), positions], at(5)));
        nodes.push(node("sum", Op::Add {}, &[at(5), at(1)], at(0)));
    }
    let mut read = vec![0; usize::try_from(positions.offset_bytes).expect("small")];
    let values: Vec<f32> = (0..width * width).map(|i| (i * 31 % 97) as f32 / 97.0 - 0.5).collect();
    let (blocks, rest) = read.split_at_mut(usize::try_from(plain.offset_bytes).expect("small"));
    (DType::Q8_0.row().quantize)(&values, blocks);
    (DType::F32.row().quantize)(&values, rest);
    // Rows are written in an order of their own, the first of them twice.
    let order = (0..i32::try_from(tokens).expect("small")).rev().map(|i| i.max(1) - 1);
    read.extend(order.flat_map(i32::to_le_bytes));
    let written = floats(usize::try_from(6 * width * tokens).expect("small"));
    (SplitDesc { nodes, memory_slots: 2 }, read, written)
}

/// Norms, sorts and sums of `rows` rows: some share work memory, and none depends on another. Slots as in [`block`].
pub(crate) fn reductions(width: u64, rows: u64) -> (SplitDesc, Vec<u8>, Vec<u8>) {
    let x = tensor(0, 0, DType::F32, &[width, rows]);
    let mut end = 0;
    let mut result = |dtype: DType, shape: &[u64]| {
        let out = tensor(1, end, dtype, shape);
        end = (end + out.desc.size_bytes()).next_multiple_of(64);
        out
    };
    let ascending = SortOrder::Ascending;
    let nodes = vec![
        node("sum", Op::Sum {}, &[x], result(DType::F32, &[1])),
        node("sort", Op::Argsort { order: ascending }, &[x], result(DType::I32, &[width, rows])),
        node("sum again", Op::Sum {}, &[x], result(DType::F32, &[1])),
        node("top", Op::TopK { k: 5 }, &[x], result(DType::I32, &[5, rows])),
        node("sort again", Op::Argsort { order: SortOrder::Descending }, &[x], result(DType::I32, &[width, rows])),
        node("largest", Op::Argmax {}, &[x], result(DType::I32, &[rows])),
        node("mean", Op::Mean {}, &[x], result(DType::F32, &[1, rows])),
        node("running", Op::Cumsum {}, &[x], result(DType::F32, &[width, rows])),
        node("norm", Op::Norm { eps: 1e-5 }, &[x], result(DType::F32, &[width, rows])),
        node("groups", Op::GroupNorm { n_groups: 1, eps: 1e-5 }, &[x], result(DType::F32, &[width, rows])),
        node("length", Op::L2Norm { eps: 1e-5 }, &[x], result(DType::F32, &[width, rows])),
        node("causal", Op::DiagMaskInf { n_past: 3 }, &[x], result(DType::F32, &[width, rows])),
    ];
    let read = floats(usize::try_from(width * rows).expect("small"));
    let written = vec![0; usize::try_from(end).expect("small")];
    (SplitDesc { nodes, memory_slots: 2 }, read, written)
}

/// Attention of three heads that share one of keys and values, `tokens` queries over `rows` rows of a cache, `used` of which the last
/// query sees. Rows that nobody sees are no numbers. Slots as in [`block`].
pub(crate) fn attention(tokens: u64, rows: u64, used: u64) -> (SplitDesc, Vec<u8>, Vec<u8>) {
    let (q, cache) = (tensor(0, 0, DType::F32, &[32, tokens, 6]), |at| tensor(0, at, DType::F16, &[32, rows, 2]));
    let k = cache(q.desc.size_bytes());
    let v = cache(k.offset_bytes + k.desc.size_bytes());
    let mask = tensor(0, v.offset_bytes + v.desc.size_bytes(), DType::F16, &[rows, tokens]);
    let out = tensor(1, 0, DType::F32, &[32, 6, tokens]);
    let op = Op::FlashAttnExt { scale: 0.2, max_bias: 0.0, logit_softcap: 0.0 };
    let nodes = vec![
        node("attention", op, &[q, k, v, mask], out),
        node("double", Op::Scale { by: 2.0 }, &[out], tensor(1, out.desc.size_bytes(), DType::F32, &[32, 6, tokens])),
    ];
    let half = |v: f32| {
        let mut bytes = [0; 2];
        (DType::F16.row().quantize)(&[v], &mut bytes);
        bytes
    };
    let mut read = floats(usize::try_from(32 * tokens * 6).expect("small"));
    for plane in 0..4 {
        for row in 0..rows {
            let value = |i: u64| ((plane * 7 + row * 13 + i * 5) % 29) as f32 / 15.0 - 1.0;
            read.extend((0..32).flat_map(|i| half(if row < used { value(i) } else { f32::NAN })));
        }
    }
    for token in 0..tokens {
        let seen = used + token + 1 - tokens;
        read.extend((0..rows).flat_map(|row| half(if row < seen { 0.0 } else { f32::NEG_INFINITY })));
    }
    (SplitDesc { nodes, memory_slots: 2 }, read, vec![0; usize::try_from(2 * out.desc.size_bytes()).expect("small")])
}
