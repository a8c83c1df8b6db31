//! Nodes that are lowered together give what they give one by one, whatever memory they share: random graphs in a small arena.

mod common;

use common::{Inner, contents, cpu, floats, memory, node, portable, run, tensor};
use entensor_components::{Backend, DType, NodeDesc, Op, SplitDesc, TensorRef};
use proptest::prelude::*;

/// Columns of everything.
const WIDTH: u64 = 32;

/// A node, and where it reads and writes in the arena.
#[derive(Clone, Debug)]
struct Drawn {
    op: usize,
    /// Reads what the node before it wrote.
    follows: bool,
    places: [u64; 3],
    /// Whether somebody else reads it.
    is_wanted: bool,
}

/// Places that are mostly whole results apart, sometimes rows or single elements.
fn place(rows: u64) -> impl Strategy<Value = u64> {
    let result = WIDTH * rows * 4;
    prop_oneof![8 => (0..5_u64).prop_map(move |i| i * result), 1 => (0..5 * rows).prop_map(|row| row * WIDTH * 4),
        1 => (0..5 * result / 4).prop_map(|element| element * 4)]
}

fn drawn(rows: u64) -> impl Strategy<Value = Drawn> {
    (0..12_usize, prop::bool::weighted(0.7), [place(rows), place(rows), place(rows)], prop::bool::weighted(0.15))
        .prop_map(|(op, follows, places, is_wanted)| Drawn { op, follows, places, is_wanted })
}

fn graphs() -> impl Strategy<Value = (u64, usize, Vec<Drawn>)> {
    let rows = prop::sample::select(vec![1_u64, 2, 3, 17]);
    rows.prop_flat_map(|rows| (Just(rows), 0..3_usize, prop::collection::vec(drawn(rows), 2..9)))
}

const WEIGHTS: [DType; 3] = [DType::F32, DType::Q8_0, DType::Q4_1];

/// The nodes, and what they read: weights, a row that all rows share, weights without rows.
fn build(rows: u64, dtype: DType, drawn: &[Drawn]) -> (Vec<NodeDesc>, Vec<u8>) {
    let weights = [0, 8192].map(|at| tensor(0, at, dtype, &[WIDTH, WIDTH]));
    let (by, none) = (tensor(0, 16384, DType::F32, &[WIDTH]), tensor(0, 0, dtype, &[WIDTH, 0]));
    let at = |offset| tensor(1, offset, DType::F32, &[WIDTH, rows]);
    let mut nodes: Vec<NodeDesc> = Vec::new();
    for (index, drawn) in drawn.iter().enumerate() {
        let [a, b, out] = drawn.places.map(at);
        let last = nodes.last().map(|node| node.output).filter(|out| drawn.follows && !out.desc.shape.is_empty());
        let a = last.unwrap_or(a);
        let (op, operands, out) = match drawn.op {
            0 => (Op::Add {}, vec![a, b], out),
            1 => (Op::Add {}, vec![a, by], out),
            2 => (Op::RmsNorm { eps: 1e-5 }, vec![a], out),
            3 => (Op::Mul {}, vec![a, by], out),
            4 => (Op::Mul {}, vec![a, tensor(1, drawn.places[1], DType::F32, &[WIDTH])], out),
            5 => (Op::Swiglu {}, vec![a, b], out),
            6 => (Op::Mul {}, vec![a, b], a),
            7 => (Op::Relu {}, vec![a], out),
            8 => (Op::Tanh {}, vec![a], a),
            9 => (Op::MulMat {}, vec![none, a], tensor(1, 0, DType::F32, &[0, rows])),
            other => (Op::MulMat {}, vec![weights[other % 2], a], out),
        };
        nodes.push(node(&format!("{index}"), op, &operands, out));
    }
    let mut read = vec![0; 16384];
    for weights in weights {
        let start = usize::try_from(weights.offset_bytes).expect("small");
        let values: Vec<f32> =
            (0..WIDTH * WIDTH).map(|i| ((i * 31 + weights.offset_bytes) % 97) as f32 / 97.0 - 0.5).collect();
        let bytes = usize::try_from(weights.desc.size_bytes()).expect("small");
        (dtype.row().quantize)(&values, &mut read[start..start + bytes]);
    }
    read.extend(floats(64));
    (nodes, read)
}

/// What every node leaves, run by itself after those before it.
fn one_by_one(backend: &dyn Backend, nodes: &[NodeDesc], read: &[u8], written: &[u8]) -> Vec<u8> {
    let memories = [memory(backend, read), memory(backend, written)];
    for node in nodes {
        let split = SplitDesc { nodes: vec![node.clone()], memory_slots: 2 };
        backend.prepare(&split).expect("valid").submit(&memories).expect("runs");
    }
    contents(backend, &memories[1])
}

fn bytes_of(out: &TensorRef) -> std::ops::Range<usize> {
    let start = usize::try_from(out.offset_bytes).expect("small");
    start..start + usize::try_from(out.desc.size_bytes()).expect("small")
}

/// Who wrote each byte last.
fn writers(nodes: &[NodeDesc], len: usize) -> Vec<Option<usize>> {
    let mut writers = vec![None; len];
    for (index, node) in nodes.iter().enumerate() {
        writers[bytes_of(&node.output)].fill(Some(index));
    }
    writers
}

fn check(rows: u64, dtype: DType, drawn: &[Drawn], backend: &dyn Backend) -> Result<(), TestCaseError> {
    let (nodes, read) = build(rows, dtype, drawn);
    let written = floats(usize::try_from(6 * WIDTH * rows).expect("small"));
    let expected = one_by_one(backend, &nodes, &read, &written);
    let last = nodes.len() - 1;
    let read_elsewhere: Vec<usize> = (0..nodes.len()).filter(|&i| i == last || drawn[i].is_wanted).collect();
    let writers = writers(&nodes, expected.len());
    let inner = Inner { split: SplitDesc { nodes, memory_slots: 2 }, read_elsewhere };
    let found = run(backend, &inner, (&read, &written));
    for (index, (found, expected)) in found.as_chunks::<4>().0.iter().zip(expected.as_chunks::<4>().0).enumerate() {
        // Elements that several nodes wrote parts of do not occur: all places are whole elements.
        let Some(writer) = writers[index * 4].filter(|writer| inner.read_elsewhere.contains(writer)) else { continue };
        let (found, expected) = (f32::from_le_bytes(*found), f32::from_le_bytes(*expected));
        // Chains add up in another order than products by themselves.
        let most = if dtype == DType::F32 { 2e-3 * (1.0 + expected.abs()) } else { 0.0 };
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        prop_assert!(same || (found - expected).abs() <= most, "node {writer}: {found}, not {expected}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nodes_taken_together_give_what_they_give_one_by_one((rows, dtype, drawn) in graphs(), is_portable: bool) {
        let backend = if is_portable { portable() } else { cpu(1) };
        check(rows, WEIGHTS[dtype], &drawn, &backend)?;
    }
}

/// What went wrong once.
#[test]
fn results_over_what_is_not_written_are_right() {
    let [zero, one, two, three] = [0, 1, 2, 3].map(|index| index * WIDTH * 3 * 4);
    let draw = |op, follows, places| Drawn { op, follows, places, is_wanted: false };
    for (dtype, drawn) in [
        // The gate lies where activations lay that were rounded before.
        (
            DType::Q8_0,
            vec![draw(10, false, [zero, zero, one]), draw(6, false, [zero, one, zero]), draw(10, true, [two; 3])],
        ),
        // The product overwrites the gate.
        (DType::Q4_1, vec![draw(5, false, [zero, one, two]), draw(10, true, [zero, zero, two])]),
        // The product has no rows.
        (
            DType::Q8_0,
            vec![draw(5, false, [zero, one, two]), draw(9, true, [zero; 3]), draw(11, false, [two, two, three])],
        ),
        // A later node of a chain overwrites a part of what is read behind it.
        (
            DType::F32,
            vec![
                draw(10, false, [zero, zero, one]),
                draw(11, true, [zero, zero, three]),
                draw(7, true, [zero, zero, one - WIDTH * 4]),
                draw(2, false, [one, one, two]),
            ],
        ),
    ] {
        check(3, dtype, &drawn, &cpu(1)).expect("the same");
    }
}
