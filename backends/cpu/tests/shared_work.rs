//! What nodes leave in work memory for the next is used when it is still true, and only then.

mod common;

use common::{contents, cpu, memory, node, tensor};
use entensor_components::{Backend, BackendError, DType, NodeDesc, Op, OpKind, RopeMode, SplitDesc, TensorRef};
use entensor_oracle::OracleBackend;

const K: u64 = 64;
const TOKENS: u64 = 37;
const SLOTS: u64 = 3;
const EXPERTS: u64 = 5;

/// Tensors one after the other in slot 0.
#[derive(Default)]
struct Layout {
    bytes: Vec<u8>,
}

impl Layout {
    fn add(&mut self, dtype: DType, shape: &[u64], contents: impl Iterator<Item = u8>) -> TensorRef {
        self.bytes.resize(self.bytes.len().next_multiple_of(64), 0);
        let placed = tensor(0, self.bytes.len() as u64, dtype, shape);
        self.bytes.extend(contents);
        self.bytes.resize(usize::try_from(placed.offset_bytes + placed.desc.size_bytes()).expect("small"), 0);
        placed
    }

    /// Small whole numbers: products of them are exact in f32, whatever the order.
    fn floats(&mut self, shape: &[u64], seed: u64) -> TensorRef {
        let values = (0..shape.iter().product()).map(|i: u64| ((i * 31 + seed * 17) % 15) as f32 - 7.0);
        self.add(DType::F32, shape, values.flat_map(f32::to_le_bytes))
    }

    fn ids(&mut self, seed: u64) -> TensorRef {
        let ids = (0..SLOTS * TOKENS).map(|i| i32::try_from((i * i + seed * i) % EXPERTS).expect("small"));
        self.add(DType::I32, &[SLOTS, TOKENS], ids.flat_map(i32::to_le_bytes))
    }

    fn result(&mut self) -> TensorRef {
        self.add(DType::F32, &[K, SLOTS, TOKENS], std::iter::empty())
    }
}

fn run(backend: &dyn Backend, nodes: &[NodeDesc], bytes: &[u8]) -> Result<Vec<u8>, BackendError> {
    let memory = memory(backend, bytes);
    let split = SplitDesc { nodes: nodes.to_vec(), memory_slots: 1 };
    backend.prepare(&split)?.submit(std::slice::from_ref(&memory))?;
    Ok(contents(backend, &memory))
}

/// Products that share ids and activations, with other numbers of experts, with activations of their own; then ids that are
/// overwritten, and activations that are.
#[test]
fn products_with_the_same_ids_share_their_order() {
    let mut layout = Layout::default();
    let weights = [0, 1, 2].map(|i| layout.floats(&[K, K, EXPERTS + i], i));
    let (x, ids, other) = (layout.floats(&[K, 1, TOKENS], 7), layout.ids(1), layout.ids(2));
    let results: Vec<_> = (0..7).map(|_| layout.result()).collect();
    let product = |w: usize, x: TensorRef, out: usize| {
        node(&format!("product {out}"), Op::MulMatId {}, &[weights[w], x, ids], results[out])
    };
    let nodes = [
        product(0, x, 0),
        product(0, x, 1),
        product(1, x, 2),
        product(2, results[1], 3),
        node("new ids", Op::Cpy {}, &[other, ids], ids),
        product(2, results[1], 4),
        product(0, x, 5),
        node("new x", Op::Scale { by: -2.0 }, &[x], x),
        product(0, x, 6),
    ];
    let expected = run(&OracleBackend::new("oracle"), &nodes, &layout.bytes).expect("ids are in range");
    for threads in [1, 2, 4] {
        assert!(run(&cpu(threads), &nodes, &layout.bytes).as_ref() == Ok(&expected), "{threads} threads");
    }
    let result = |index: usize| {
        let at = usize::try_from(results[index].offset_bytes).expect("small");
        &expected[at..at + usize::try_from(results[index].desc.size_bytes()).expect("small")]
    };
    assert!(result(0) == result(1) && result(0) != result(5) && result(5) != result(6), "the test tells them apart");
}

/// Experts of block weights, rounded activations: a node of a split gives what it gives alone.
#[test]
fn rounded_activations_are_shared_likewise() {
    let mut layout = Layout::default();
    let values: Vec<f32> = (0..K * K * EXPERTS).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let mut blocks = vec![0; usize::try_from(K * K * EXPERTS / 32 * 34).expect("small")];
    (DType::Q8_0.row().quantize)(&values, &mut blocks);
    let quantized = layout.add(DType::Q8_0, &[K, K, EXPERTS], blocks.into_iter());
    let plain = layout.floats(&[K, K, EXPERTS], 3);
    let (x, ids) = (layout.floats(&[K, SLOTS, TOKENS], 7), layout.ids(1));
    let results: Vec<_> = (0..4).map(|_| layout.result()).collect();
    let nodes: Vec<_> = [quantized, plain, quantized, quantized]
        .iter()
        .zip(&results)
        .map(|(&weights, &out)| node("product", Op::MulMatId {}, &[weights, x, ids], out))
        .collect();
    let together = run(&cpu(2), &nodes, &layout.bytes).expect("ids are in range");
    for (index, (node, out)) in nodes.iter().zip(&results).enumerate() {
        let alone = run(&cpu(1), std::slice::from_ref(node), &layout.bytes).expect("ids are in range");
        let at = usize::try_from(out.offset_bytes).expect("small");
        let range = at..at + usize::try_from(out.desc.size_bytes()).expect("small");
        assert!(together[range.clone()] == alone[range], "product {index}");
    }
}

/// Ropes with the same positions share angles only where everything that makes them is the same.
#[test]
fn ropes_of_other_frequencies_have_angles_of_their_own() {
    let mut layout = Layout::default();
    let x = layout.floats(&[K, 2, TOKENS], 5);
    let positions = (0..4 * TOKENS).map(|i| i32::try_from(i * 7 % 400).expect("small"));
    let positions = layout.add(DType::I32, &[4 * TOKENS], positions.flat_map(i32::to_le_bytes));
    let sections = |mode: RopeMode, set: &[(&str, &str)]| {
        let mut op = OpKind::Rope.default_op();
        let Op::Rope { mode: slot, .. } = &mut op else { unreachable!("a rope") };
        *slot = mode;
        set.iter().for_each(|(name, text)| op.set_param(name, text).expect("parameters of `rope`"));
        op
    };
    let even = [("sections", "[8,8,8,8]")];
    let yarn = [("sections", "[8,8,8,8]"), ("ext_factor", "1"), ("n_ctx_orig", "128"), ("freq_scale", "0.5")];
    let louder = [("sections", "[8,8,8,8]"), ("attn_factor", "2")];
    let ops = [
        sections(RopeMode::Mrope, &even),
        sections(RopeMode::Imrope, &even),
        sections(RopeMode::Vision, &even),
        sections(RopeMode::Mrope, &[("sections", "[8,4,12,8]")]),
        sections(RopeMode::Mrope, &yarn),
        sections(RopeMode::Mrope, &louder),
        sections(RopeMode::Mrope, &even),
    ];
    let results: Vec<_> = ops.iter().map(|_| layout.add(DType::F32, &[K, 2, TOKENS], std::iter::empty())).collect();
    let nodes: Vec<_> =
        ops.iter().zip(&results).map(|(op, &out)| node(&op.to_string(), op.clone(), &[x, positions], out)).collect();
    let together = run(&cpu(1), &nodes, &layout.bytes).expect("runs");
    let mut seen = Vec::new();
    for (node, out) in nodes.iter().zip(&results) {
        let alone = run(&cpu(1), std::slice::from_ref(node), &layout.bytes).expect("runs");
        let at = usize::try_from(out.offset_bytes).expect("small");
        let range = at..at + usize::try_from(out.desc.size_bytes()).expect("small");
        assert!(together[range.clone()] == alone[range.clone()], "{}", node.name);
        seen.push(alone[range].to_vec());
    }
    assert!(seen[0] == seen[6]);
    seen.pop();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 6, "the ropes differ");
}

/// An id that is out of range stops its node and those behind it; nodes before it have run.
#[test]
fn a_bad_id_stops_the_split_where_it_is_used() {
    let mut layout = Layout::default();
    let weights = layout.floats(&[K, K, EXPERTS], 0);
    let few = layout.floats(&[K, K, 2], 0);
    let (x, ids) = (layout.floats(&[K, 1, TOKENS], 7), layout.ids(1));
    let results: Vec<_> = (0..3).map(|_| layout.result()).collect();
    let nodes = [
        node("fine", Op::MulMatId {}, &[weights, x, ids], results[0]),
        node("bad", Op::MulMatId {}, &[few, x, ids], results[1]),
        node("behind", Op::MulMatId {}, &[weights, x, ids], results[2]),
    ];
    for threads in [1, 3] {
        let backend = cpu(threads);
        let memory = memory(&backend, &layout.bytes);
        let split = SplitDesc { nodes: nodes.to_vec(), memory_slots: 1 };
        let prepared = backend.prepare(&split).expect("valid");
        let error = prepared.submit(std::slice::from_ref(&memory)).expect_err("there are two experts");
        // Ids are i² + i mod 5: 0, 2, …
        let expected = BackendError::IndexOutOfRange { node: "bad".into(), position: 1, value: 2, rows: 2 };
        assert_eq!(error, expected);
        let bytes = contents(&backend, &memory);
        let nonzero = |tensor: &TensorRef| {
            let at = usize::try_from(tensor.offset_bytes).expect("small");
            bytes[at..at + usize::try_from(tensor.desc.size_bytes()).expect("small")].iter().any(|&b| b != 0)
        };
        assert_eq!(results.iter().map(nonzero).collect::<Vec<_>>(), [true, false, false]);
    }
}
