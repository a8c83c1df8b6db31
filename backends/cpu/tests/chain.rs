//! Small products that go through all layers tile by tile: the values of the oracle, whoever looks at what lies between, whatever shares
//! memory, however many rows, threads and cuts there are.

mod common;

use std::time::Instant;

use common::{Inner, contents, cpu, floats, memory, node, portable, run, tensor, values};
use entensor_components::{
    Backend, Cursor, DType, MemoryHandle, MemorySlot, Op, Progress, RunLimit, SplitDesc, TensorRef,
};
use entensor_oracle::OracleBackend;

/// Layers of these widths for so many rows. Slot 0 holds weights, biases and the input, slot 1 everything else, one result behind the other
/// unless they are computed in place.
fn layers(widths: &[u64], rows: u64, in_place: bool) -> (SplitDesc, Vec<u8>, Vec<u8>) {
    let (mut read, mut written) = (0, 0);
    let mut place = |slot, shape: &[u64]| {
        let end = if slot == 0 { &mut read } else { &mut written };
        let out = tensor(slot, *end, DType::F32, shape);
        *end += out.desc.size_bytes().next_multiple_of(64);
        out
    };
    let mut x = place(0, &[widths[0], rows]);
    let mut nodes = Vec::new();
    for (layer, width) in widths.windows(2).enumerate() {
        let (weights, bias) = (place(0, &[width[0], width[1]]), place(0, &[width[1]]));
        let shape = [width[1], rows];
        let product = place(1, &shape);
        let mut next = |last| if in_place { last } else { place(1, &shape) };
        let sum = next(product);
        let end = next(sum);
        nodes.push(node(&format!("product {layer}"), Op::MulMat {}, &[weights, x], product));
        nodes.push(node(&format!("sum {layer}"), Op::Add {}, &[product, bias], sum));
        let then = if layer % 2 == 0 { Op::Relu {} } else { Op::Tanh {} };
        nodes.push(node(&format!("end {layer}"), then, &[sum], end));
        x = end;
    }
    let bytes = |len: u64| floats(usize::try_from(len / 4).expect("small"));
    (SplitDesc { nodes, memory_slots: 2 }, bytes(read), bytes(written))
}

fn assert_close(ours: &[u8], theirs: &[u8], at: &TensorRef, what: &str) {
    for (index, (a, b)) in values(ours, at).into_iter().zip(values(theirs, at)).enumerate() {
        assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()) * 64.0, "{what}, element {index}: {a} is not {b}");
    }
}

const SHAPES: [&[u64]; 5] = [&[24, 64, 64, 8], &[7, 5, 3], &[1, 1, 1], &[33, 17, 129, 40, 9], &[200, 255, 256, 12]];

#[test]
fn results_are_those_of_the_oracle() {
    for widths in SHAPES {
        for rows in [1, 2, 6, 7, 8, 9, 15, 16, 17, 110] {
            for in_place in [false, true] {
                let (split, read, written) = layers(widths, rows, in_place);
                let end = split.nodes.last().expect("a node").output;
                let expected = run(&OracleBackend::new("oracle"), &split, (&read, &written));
                let inner = Inner { split, read_elsewhere: Vec::new() };
                for backend in [cpu(1), cpu(2), portable()] {
                    let what = format!("{widths:?}, {rows} rows, in place: {in_place}, {}", backend.simd_level());
                    assert_close(&run(&backend, &inner, (&read, &written)), &expected, &end, &what);
                }
            }
        }
    }
}

/// What is not written shows that the nodes were taken together, and what somebody wants is there all the same.
#[test]
fn what_lies_between_is_written_for_whoever_reads_it() {
    for rows in [3, 50] {
        let (split, read, written) = layers(&[24, 64, 64, 8], rows, false);
        let outs: Vec<TensorRef> = split.nodes.iter().map(|node| node.output).collect();
        let expected = run(&OracleBackend::new("oracle"), &split, (&read, &written));
        let nobody = Inner { split: split.clone(), read_elsewhere: Vec::new() };
        let result = run(&cpu(1), &nobody, (&read, &written));
        for out in &outs[..outs.len() - 1] {
            assert_eq!(values(&result, out), values(&written, out), "nobody reads it, and it was written");
        }
        // Where nothing is known, everything is written.
        let result = run(&cpu(1), &split, (&read, &written));
        outs.iter().for_each(|out| assert_close(&result, &expected, out, "all are read"));
        for wanted in 0..outs.len() {
            let one = Inner { split: split.clone(), read_elsewhere: vec![wanted] };
            let result = run(&cpu(1), &one, (&read, &written));
            assert_close(&result, &expected, &outs[wanted], &format!("node {wanted} is read"));
            assert_close(&result, &expected, &outs[outs.len() - 1], "the last");
        }
        // A later node of the split reads one of them.
        let mut later = split.clone();
        let target = tensor(1, written.len() as u64, DType::F32, &[64, rows]);
        later.nodes.push(node("later", Op::Neg {}, &[outs[2]], target));
        let mut longer = written.clone();
        longer.resize(written.len() + usize::try_from(target.desc.size_bytes()).expect("small"), 0);
        let expected = run(&OracleBackend::new("oracle"), &later, (&read, &longer));
        let later = Inner { split: later, read_elsewhere: vec![outs.len()] };
        assert_close(&run(&cpu(1), &later, (&read, &longer)), &expected, &target, "a later node");
    }
}

/// Results over the input, over weights, over each other: in one order of nodes this is well defined, and tiles must not change it.
#[test]
fn memory_that_is_shared_changes_nothing() {
    for (rows, at) in [(5_u64, 0_u64), (5, 32), (40, 0), (40, 64), (40, 4096)] {
        // Both layers' results lie in the input's slot and memory.
        let x = tensor(0, 0, DType::F32, &[16, rows]);
        let weights = [tensor(1, 0, DType::F32, &[16, 32]), tensor(1, 2048, DType::F32, &[32, 16])];
        let between = tensor(0, 8192, DType::F32, &[32, rows]);
        let end = tensor(0, at, DType::F32, &[16, rows]);
        for order in [[weights[0], weights[1]], [weights[0], tensor(0, at, DType::F32, &[32, 16])]] {
            let nodes = vec![
                node("first", Op::MulMat {}, &[order[0], x], between),
                node("relu", Op::Relu {}, &[between], between),
                node("second", Op::MulMat {}, &[order[1], between], end),
            ];
            let split = SplitDesc { nodes, memory_slots: 2 };
            let (all, weights) = (floats(1 << 13), floats(1024));
            let result = |backend: &dyn Backend| {
                let memories = [memory(backend, &all), memory(backend, &weights)];
                backend.prepare(&split).expect("valid").submit(&memories).expect("runs");
                contents(backend, &memories[0])
            };
            let (ours, theirs) = (result(&cpu(1)), result(&OracleBackend::new("oracle")));
            assert_close(&ours, &theirs, &end, &format!("{rows} rows, the result at {at}"));
        }
    }
}

/// A residual sum and shared rows keep what they read.
#[test]
fn what_is_read_twice_is_there() {
    let (weights, row) = (tensor(0, 0, DType::F32, &[16, 16]), tensor(0, 1024, DType::F32, &[16]));
    let at = |index: u64| tensor(1, index * 64, DType::F32, &[16, 1]);
    let nodes = vec![
        node("first", Op::MulMat {}, &[weights, at(0)], at(1)),
        node("scaled", Op::Mul {}, &[at(1), row], at(2)),
        node("second", Op::MulMat {}, &[weights, at(2)], at(3)),
        node("residual", Op::Add {}, &[at(3), at(1)], at(4)),
        node("third", Op::MulMat {}, &[weights, at(4)], at(5)),
        node("less", Op::Sub {}, &[at(5), row], at(6)),
        node("fourth", Op::MulMat {}, &[weights, at(6)], at(7)),
        node("ratio", Op::Div {}, &[at(7), row], at(8)),
    ];
    let split = SplitDesc { nodes, memory_slots: 2 };
    let (read, written) = (floats(16 * 17), floats(16 * 9));
    let expected = run(&OracleBackend::new("oracle"), &split, (&read, &written));
    let inner = Inner { split, read_elsewhere: Vec::new() };
    assert_close(&run(&cpu(1), &inner, (&read, &written)), &expected, &at(8), "the last");
}

#[test]
fn threads_and_cuts_change_no_bit() {
    for rows in [7, 40, 300, 1024] {
        let (split, read, written) = layers(&[24, 64, 64, 8], rows, true);
        let expected = run(&cpu(1), &split, (&read, &written));
        for threads in [2, 3, 5] {
            assert_eq!(run(&cpu(threads), &split, (&read, &written)), expected, "{rows} rows, {threads} threads");
        }
        let backend = cpu(2);
        let memories = [memory(&backend, &read), memory(&backend, &written)];
        let prepared = backend.prepare(&split).expect("valid");
        let (mut at, mut pieces) = (Cursor::START, 1);
        let limit = || RunLimit { deadline: Some(Instant::now()), cancel: None };
        while let Progress::Paused(next) = prepared.run_from(&memories, at, &limit()).expect("runs") {
            at = next;
            pieces += 1;
            // Another run in between takes the work memory.
            if pieces == 3 {
                let others = [memory(&backend, &floats(read.len() / 4)), memory(&backend, &written)];
                prepared.submit(&others).expect("runs");
            }
        }
        assert!(pieces > 1 || rows < 100, "{rows} rows in one piece");
        assert_eq!(contents(&backend, &memories[1]), expected, "{rows} rows in {pieces} pieces");
    }
}

/// While memory is held, and after other weights were written.
#[test]
fn held_runs_are_runs() {
    for (rows, threads) in [(1, 1), (40, 1), (40, 2), (2000, 2)] {
        let (split, read, written) = layers(&[24, 64, 64, 8], rows, false);
        let backend = cpu(threads);
        let memories = [memory(&backend, &read), memory(&backend, &written)];
        let expected = run(&backend, &split, (&read, &written));
        let prepared = backend.prepare(&split).expect("valid");
        let mut held = prepared.hold(&memories).expect("fits").expect("this backend holds");
        for _ in 0..3 {
            held.run().expect("runs");
            for node in &split.nodes {
                let result = values(held.bytes(MemorySlot(1)).expect("used"), &node.output);
                assert_eq!(result, values(&expected, &node.output), "{}, {rows} rows", node.name);
            }
            held.bytes_mut(MemorySlot(1)).expect("written").fill(0);
        }
        assert!(held.bytes_mut(MemorySlot(0)).is_none(), "it is read");
        assert!(held.bytes(MemorySlot(2)).is_none(), "there is none");
        drop(held);
        let other: Vec<u8> = read.iter().rev().copied().map(|byte| byte & 0x3f).collect();
        backend.write(&memories[0], 0, &other).expect("nobody holds it");
        prepared.submit(&memories).expect("runs");
        let expected = run(&backend, &split, (&other, &written));
        let end = split.nodes.last().expect("a node").output;
        assert_eq!(values(&contents(&backend, &memories[1]), &end), values(&expected, &end));
        let none: [MemoryHandle; 0] = [];
        assert!(prepared.hold(&none).is_err());
    }
}
