//! Random splits over one memory, with operands that overlap results in every way, against the oracle bit by bit.

mod common;

use std::time::Instant;

use common::{contents, cpu, floats, memory, node};
use entensor_components::{
    Backend, Cursor, DType, MemorySlot, NodeDesc, Op, Progress, RunLimit, Shape, SplitDesc, Strides, TensorDesc,
    TensorRef,
};
use entensor_oracle::OracleBackend;
use proptest::prelude::*;

const BYTES: u64 = 4096;

/// A tensor of f32 somewhere, packed or with a stride between rows.
fn place(width: u64, rows: u64, at: u64, gap: u64) -> TensorRef {
    let mut desc = TensorDesc::packed(DType::F32, Shape([width, rows, 1, 1])).expect("small");
    let stride = (width + gap) * 4;
    desc.strides = Strides([4, stride, stride * rows, stride * rows]);
    let room = BYTES - desc.size_bytes();
    TensorRef { desc, memory: MemorySlot(0), offset_bytes: at * 4 % (room + 4).next_multiple_of(4).max(4) / 4 * 4 }
}

fn packed(width: u64, rows: u64, at: u64) -> TensorRef {
    place(width, rows, at, 0)
}

/// Ops whose results are the same bits however they are computed.
fn any_node() -> impl Strategy<Value = NodeDesc> {
    (0..8_u8, 1..9_u64, 1..9_u64, 0..900_u64, 0..900_u64, 0..900_u64, 0..4_u64).prop_map(
        |(op, width, rows, a, b, c, gap)| match op {
            0 => node("add", Op::Add {}, &[place(width, rows, a, gap), packed(width, 1, b)], packed(width, rows, c)),
            1 => node("mul", Op::Mul {}, &[packed(width, rows, a), place(width, rows, b, gap)], packed(width, rows, c)),
            2 => node("scale", Op::Scale { by: 0.5 }, &[place(width, rows, a, gap)], packed(width, rows, c)),
            // In place, exactly.
            3 => node("relu", Op::Relu {}, &[packed(width, rows, a)], packed(width, rows, a)),
            4 => {
                let to = place(width, rows, c, gap);
                node("cpy", Op::Cpy {}, &[place(width, rows, a, gap / 2), to], to)
            }
            5 => node("cont", Op::Cont {}, &[place(width, rows, a, gap)], packed(width, rows, c)),
            6 => {
                let op = Op::Repeat { shape: Shape([width * 2, rows * 3, 1, 1]) };
                node("repeat", op, &[place(width, rows, a, gap)], packed(width * 2, rows * 3, c))
            }
            _ => {
                let to = packed(rows, width, c);
                node("reshaping cpy", Op::Cpy {}, &[place(width, rows, a, gap), to], to)
            }
        },
    )
}

fn run(backend: &dyn Backend, split: &SplitDesc) -> Vec<u8> {
    let memory = memory(backend, &floats(1024));
    backend.prepare(split).expect("valid").submit(std::slice::from_ref(&memory)).expect("runs");
    contents(backend, &memory)
}

/// Two runs of one prepared split, in pieces of a chunk, one after the other.
fn run_in_turns(backend: &dyn Backend, split: &SplitDesc) -> [Vec<u8>; 2] {
    let memories = [(); 2].map(|()| memory(backend, &floats(1024)));
    let prepared = backend.prepare(split).expect("valid");
    let mut at = [Some(Cursor::START); 2];
    while at.iter().any(Option::is_some) {
        for (memory, at) in memories.iter().zip(&mut at) {
            let Some(from) = *at else { continue };
            let limit = RunLimit { deadline: Some(Instant::now()), cancel: None };
            *at = match prepared.run_from(std::slice::from_ref(memory), from, &limit).expect("runs") {
                Progress::Done(_) => None,
                Progress::Paused(next) => Some(next),
            };
        }
    }
    memories.map(|memory| contents(backend, &memory))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn overlapping_operands_and_results_are_kept_apart(nodes in prop::collection::vec(any_node(), 1..40)) {
        let split = SplitDesc { nodes, memory_slots: 1 };
        let expected = run(&OracleBackend::new("oracle"), &split);
        prop_assert_eq!(&run(&cpu(1), &split), &expected);
        prop_assert_eq!(&run(&cpu(2), &split), &expected);
        for in_turns in run_in_turns(&cpu(1), &split) {
            prop_assert_eq!(&in_turns, &expected);
        }
    }
}

/// Long rows, so that helpers come.
#[test]
fn independent_and_dependent_steps_of_a_large_split() {
    let tensor = |index: u64| common::tensor(0, index * 80_000, DType::F32, &[100, 200]);
    let mut nodes = Vec::new();
    for i in 0..60 {
        let (a, b, c) = (i * 7 % 11, i * 5 % 11, i * 3 % 11);
        nodes.push(node("mul", Op::Mul {}, &[tensor(a), tensor(b)], tensor(c)));
        nodes.push(node("add", Op::Add {}, &[tensor(b), tensor(c)], tensor(a)));
        nodes.push(node("scale", Op::Scale { by: 0.5 }, &[tensor(c)], tensor(b)));
    }
    let split = SplitDesc { nodes, memory_slots: 1 };
    let result = |backend: &dyn Backend| {
        let memory = memory(backend, &floats(11 * 20_000));
        backend.prepare(&split).expect("valid").submit(std::slice::from_ref(&memory)).expect("runs");
        contents(backend, &memory)
    };
    let expected = result(&OracleBackend::new("oracle"));
    for threads in [1, 2, 4] {
        assert!(result(&cpu(threads)) == expected, "{threads} threads");
    }
}
