//! Neighbouring nodes that are computed as one step: the same bits as one by one, whoever reads what lies between, whatever shares memory,
//! however many threads and cuts there are.

mod common;

use std::time::Instant;

use common::{Inner, contents, cpu, floats, memory, node, portable, run, tensor, values};
use entensor_components::{Cursor, DType, NodeDesc, Op, Progress, RunLimit, SplitDesc, TensorRef};

const WIDTH: u64 = 96;

/// A residual sum, its norm, two products of it and their gate, and a product of that, for so many rows. Slot 0 holds what is only read.
struct Block {
    split: SplitDesc,
    read: Vec<u8>,
    written: Vec<u8>,
}

/// Where results lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// One behind the other.
    Apart,
    /// Sums, products and gates over their first operand.
    InPlace,
    /// Sums over their first operand, norms over the second, gates over the value: all of which nobody reads any more.
    OverSecond,
}

const LAYOUTS: [Layout; 3] = [Layout::Apart, Layout::InPlace, Layout::OverSecond];

impl Block {
    fn new(rows: u64, dtype: DType, gate: Op, layout: Layout) -> Self {
        let (mut read, mut written) = (0, 0);
        let mut place = |slot, dtype, shape: &[u64]| {
            let end = if slot == 0 { &mut read } else { &mut written };
            let out = tensor(slot, *end, dtype, shape);
            *end += out.desc.size_bytes().next_multiple_of(64);
            out
        };
        let shape = [WIDTH, rows];
        let wide = [256, rows];
        let by = place(0, DType::F32, &[WIDTH]);
        let plain = [(); 2].map(|()| place(0, DType::F32, &[WIDTH, 256]));
        let down = place(0, dtype, &[256, WIDTH]);
        let [x, branch] = [(); 2].map(|()| place(1, DType::F32, &shape));
        let mut or = |shared: Option<TensorRef>, shape: &[u64]| shared.unwrap_or_else(|| place(1, DType::F32, shape));
        let is = |wanted: Layout, shared: TensorRef| (layout == wanted).then_some(shared);
        let sum = or((layout != Layout::Apart).then_some(x), &shape);
        let normed = or(is(Layout::OverSecond, branch), &shape);
        let scaled = or((layout != Layout::Apart).then_some(normed), &shape);
        let products = [(); 2].map(|()| or(None, &wide));
        let over = [is(Layout::InPlace, products[0]), is(Layout::OverSecond, products[1])];
        let gated = or(over[0].or(over[1]), &wide);
        let end = or(None, &shape);
        let nodes = vec![
            node("sum", Op::Add {}, &[x, branch], sum),
            node("norm", Op::RmsNorm { eps: 1e-5 }, &[sum], normed),
            node("scaled", Op::Mul {}, &[normed, by], scaled),
            node("gate", Op::MulMat {}, &[plain[0], scaled], products[0]),
            node("value", Op::MulMat {}, &[plain[1], scaled], products[1]),
            node("gated", gate, &products, gated),
            node("down", Op::MulMat {}, &[down, gated], end),
            // The residual stream goes on.
            node("next", Op::Add {}, &[sum, end], end),
        ];
        let mut bytes = floats(usize::try_from(down.offset_bytes / 4).expect("small"));
        let values: Vec<f32> = (0..256 * WIDTH).map(|i| (i * 31 % 97) as f32 / 97.0 - 0.5).collect();
        let mut encoded = vec![0; usize::try_from(down.desc.size_bytes()).expect("small")];
        (dtype.row().quantize)(&values, &mut encoded);
        bytes.extend(encoded);
        let written = floats(usize::try_from(written / 4).expect("small"));
        Self { split: SplitDesc { nodes, memory_slots: 2 }, read: bytes, written }
    }

    fn bytes(&self) -> (&[u8], &[u8]) {
        (&self.read, &self.written)
    }

    fn out(&self, name: &str) -> TensorRef {
        self.split.nodes.iter().find(|node| &*node.name == name).expect("a node").output
    }

    fn inner(&self, wanted: &[&str]) -> Inner {
        let at = |name: &&str| self.split.nodes.iter().position(|node| &*node.name == *name).expect("a node");
        Inner { split: self.split.clone(), read_elsewhere: wanted.iter().map(at).collect() }
    }
}

/// Where nothing is known of who reads what, every node is a step of its own.
#[test]
fn bits_are_those_of_single_nodes() {
    for dtype in [DType::Q8_0, DType::Q4_1, DType::Q4K, DType::F16] {
        for gate in [Op::Swiglu {}, Op::Geglu {}, Op::Reglu {}, Op::Mul {}] {
            for (rows, layout) in [1, 2, 15, 16, 70].into_iter().flat_map(|rows| LAYOUTS.map(|layout| (rows, layout))) {
                let block = Block::new(rows, dtype, gate.clone(), layout);
                let end = block.out("next");
                for backend in [cpu(1), cpu(2), portable()] {
                    let (alone, together) = (
                        run(&backend, &block.split, block.bytes()),
                        run(&backend, &block.inner(&["next"]), block.bytes()),
                    );
                    assert_eq!(
                        values(&together, &end),
                        values(&alone, &end),
                        "{dtype:?}, {gate:?}, {rows} rows, {layout:?}"
                    );
                    assert!(values(&alone, &end).iter().all(|v| v.is_finite() && *v != 0.0));
                }
            }
        }
    }
}

/// What is not written shows that nodes were taken together, and what somebody wants is there all the same.
#[test]
fn what_lies_between_is_written_for_whoever_reads_it() {
    let block = Block::new(40, DType::Q8_0, Op::Swiglu {}, Layout::Apart);
    let expected = run(&cpu(1), &block.split, block.bytes());
    let result = run(&cpu(1), &block.inner(&["next"]), block.bytes());
    for name in ["norm", "gated"] {
        let out = block.out(name);
        assert_eq!(values(&result, &out), values(&block.written, &out), "nobody reads {name}, and it was written");
    }
    for name in ["sum", "norm", "scaled", "gate", "value", "gated", "down"] {
        let result = run(&cpu(1), &block.inner(&["next", name]), block.bytes());
        for out in [block.out(name), block.out("next")] {
            assert_eq!(values(&result, &out), values(&expected, &out), "{name} is read");
        }
    }
    // A later node reads them, or part of them.
    for name in ["norm", "gated"] {
        let mut later = Block::new(40, DType::Q8_0, Op::Swiglu {}, Layout::Apart);
        let mut part = later.out(name);
        part.desc = tensor(1, 0, DType::F32, &[7]).desc;
        part.offset_bytes += 64;
        let target = tensor(1, later.written.len() as u64, DType::F32, &[7]);
        later.split.nodes.push(node("later", Op::Neg {}, &[part], target));
        later.written.resize(later.written.len() + 64, 0);
        let expected = run(&cpu(1), &later.split, later.bytes());
        let result = run(&cpu(1), &later.inner(&["later"]), later.bytes());
        assert_eq!(values(&result, &target), values(&expected, &target), "a later node reads a part of {name}");
    }
}

/// Operands that the results overlap without being them, rows that are repeated, norms of something else than the sum.
#[test]
fn what_cannot_be_taken_together_is_not() {
    let at = |offset: u64| tensor(1, offset, DType::F32, &[32, 4]);
    let by = tensor(0, 0, DType::F32, &[32]);
    let norm = |x, out| node("norm", Op::RmsNorm { eps: 1e-5 }, &[x], out);
    let mul = |x, by, out| node("scaled", Op::Mul {}, &[x, by], out);
    let cases: Vec<Vec<NodeDesc>> = vec![
        vec![node("sum", Op::Add {}, &[at(0), at(512)], at(1024)), norm(at(1024), at(64))],
        vec![node("sum", Op::Add {}, &[at(0), at(512)], at(1024)), norm(at(1024), at(1024))],
        vec![
            node("sum", Op::Add {}, &[at(0), at(512)], at(1024)),
            norm(at(1024), at(1152)),
            mul(at(1152), by, at(1152)),
        ],
        vec![node("sum", Op::Add {}, &[at(0), by], at(1024)), norm(at(1024), at(2048))],
        vec![node("sum", Op::Add {}, &[at(0), at(512)], at(1024)), norm(at(0), at(2048))],
        vec![norm(at(0), at(1024)), mul(at(1024), tensor(1, 2048, DType::F32, &[32]), at(2048))],
        vec![norm(at(0), at(1024)), mul(at(1024), tensor(1, 1024, DType::F32, &[32]), at(2048))],
        vec![norm(at(0), at(1024)), mul(at(1024), at(1024), at(2048))],
        vec![norm(at(0), at(64)), mul(at(64), by, at(64))],
        vec![norm(at(0), at(1024)), mul(at(1024), by, at(64))],
    ];
    let (read, written) = (floats(32), floats(1024));
    for (index, nodes) in cases.into_iter().enumerate() {
        let last = nodes.len() - 1;
        let split = SplitDesc { nodes, memory_slots: 2 };
        for read_elsewhere in [vec![last], (0..=last).collect()] {
            let inner = Inner { split: split.clone(), read_elsewhere };
            let (alone, together) = (run(&cpu(1), &split, (&read, &written)), run(&cpu(1), &inner, (&read, &written)));
            let out = split.nodes[last].output;
            assert_eq!(values(&together, &out), values(&alone, &out), "case {index}");
        }
    }
}

/// A gate's result in the place of activations that were rounded just before.
#[test]
fn what_was_rounded_before_is_not_taken_for_the_gate() {
    let at = |index: u64| tensor(1, index * 32 * 64 * 4, DType::F32, &[64, 32]);
    let weights = tensor(0, 0, DType::Q8_0, &[64, 64]);
    let nodes = vec![
        node("gate", Op::MulMat {}, &[weights, at(0)], at(1)),
        node("value", Op::MulMat {}, &[weights, at(0)], at(2)),
        node("gated", Op::Swiglu {}, &[at(1), at(2)], at(0)),
        node("down", Op::MulMat {}, &[weights, at(0)], at(3)),
    ];
    let split = SplitDesc { nodes, memory_slots: 2 };
    let mut read = vec![0; usize::try_from(weights.desc.size_bytes()).expect("small")];
    let values_of: Vec<f32> = (0..64 * 64).map(|i| (i * 31 % 97) as f32 / 97.0 - 0.5).collect();
    (DType::Q8_0.row().quantize)(&values_of, &mut read);
    let written = floats(4 * 32 * 64);
    let inner = Inner { split: split.clone(), read_elsewhere: vec![3] };
    for backend in [cpu(1), portable()] {
        let (alone, together) = (run(&backend, &split, (&read, &written)), run(&backend, &inner, (&read, &written)));
        assert_eq!(values(&together, &at(3)), values(&alone, &at(3)));
    }
}

#[test]
fn threads_and_cuts_change_no_bit() {
    for layout in LAYOUTS {
        let block = Block::new(300, DType::Q8_0, Op::Swiglu {}, layout);
        let inner = block.inner(&["next"]);
        let end = block.out("next");
        let expected = run(&cpu(1), &inner, block.bytes());
        for threads in [2, 3] {
            assert_eq!(values(&run(&cpu(threads), &inner, block.bytes()), &end), values(&expected, &end));
        }
        let backend = cpu(2);
        let memories = [memory(&backend, &block.read), memory(&backend, &block.written)];
        let prepared = entensor_components::Backend::prepare(&backend, &inner).expect("valid");
        let (mut at, mut pieces) = (Cursor::START, 1);
        let limit = || RunLimit { deadline: Some(Instant::now()), cancel: None };
        while let Progress::Paused(next) = prepared.run_from(&memories, at, &limit()).expect("runs") {
            at = next;
            pieces += 1;
            // Another run in between takes the work memory.
            let others = [memory(&backend, &block.read), memory(&backend, &floats(block.written.len() / 4))];
            prepared.submit(&others).expect("runs");
        }
        assert!(pieces > 1, "in one piece");
        assert_eq!(values(&contents(&backend, &memories[1]), &end), values(&expected, &end), "in {pieces} pieces");
    }
}
