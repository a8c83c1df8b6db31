//! Runs in pieces: wherever they are cut, whoever helps, and whatever runs in between, the bits are those of one whole run.

mod common;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use common::{attention, block, contents, cpu, floats, memory, node, reductions, tensor};
use entensor_components::{
    Backend, BackendError, CancelToken, Cursor, DType, MemoryHandle, Op, PreparedSplit, Progress, RunLimit, SortOrder,
    SplitDesc,
};
use entensor_cpu::{CpuBackend, CpuConfig};

type Example = (SplitDesc, Vec<u8>, Vec<u8>);

fn memories(backend: &CpuBackend, (_, read, written): &Example) -> [MemoryHandle; 2] {
    [memory(backend, read), memory(backend, written)]
}

fn whole(backend: &CpuBackend, example: &Example) -> Vec<u8> {
    let memories = memories(backend, example);
    backend.prepare(&example.0).expect("valid").submit(&memories).expect("runs");
    contents(backend, &memories[1])
}

/// Goes on from a place; where it paused, if it did.
fn go_on(prepared: &dyn PreparedSplit, memories: &[MemoryHandle], from: Cursor, deadline: Instant) -> Option<Cursor> {
    let limit = RunLimit { deadline: Some(deadline), cancel: None };
    match prepared.run_from(memories, from, &limit).expect("runs") {
        Progress::Done(_) => None,
        Progress::Paused(at) => {
            assert!(at > from, "{at:?} is no progress from {from:?}");
            Some(at)
        }
    }
}

/// Steps of every kind that use work memory, beside each other and one after the other.
fn examples() -> [Example; 5] {
    let (few, many) = (attention(1, 3000, 2000), attention(40, 700, 600));
    [block(128, 40, 2), reductions(3000, 7), reductions(64, 300), few, many]
}

#[test]
fn cut_at_every_chunk() {
    for example in examples() {
        let expected = whole(&cpu(1), &example);
        let mut cursors = Vec::new();
        for threads in [1, 3] {
            let backend = cpu(threads);
            let prepared = backend.prepare(&example.0).expect("valid");
            let memories = memories(&backend, &example);
            let (mut at, mut pauses) = (Cursor::START, Vec::new());
            while let Some(next) = go_on(&*prepared, &memories, at, Instant::now()) {
                pauses.push(next);
                at = next;
            }
            assert!(contents(&backend, &memories[1]) == expected, "{threads} threads");
            cursors.push(pauses);
        }
        assert!(cursors[0].len() > example.0.nodes.len(), "steps have several chunks");
        assert_eq!(cursors[0], cursors[1], "the grid is the same for any number of threads");
    }
}

/// Graphs that are alike share a prepared split, and with it work memory.
#[test]
fn runs_that_take_turns_do_not_meddle() {
    for example in examples() {
        let other = (example.0.clone(), example.1.clone(), floats(example.2.len() / 4));
        let expected = [&example, &other].map(|example| whole(&cpu(1), example));
        let backend = cpu(2);
        let prepared = backend.prepare(&example.0).expect("valid");
        // Pieces of one and of the other, of as many chunks as the number says, and a whole third run now and then.
        for pieces in [[1, 1], [2, 3], [1, 7], [50, 1]] {
            let both = [&example, &other].map(|example| memories(&backend, example));
            let third = memories(&backend, &example);
            let mut at = [Some(Cursor::START); 2];
            let mut turns = 0;
            while at.iter().any(Option::is_some) {
                for which in 0..2 {
                    for _ in 0..pieces[which] {
                        at[which] = at[which].and_then(|at| go_on(&*prepared, &both[which], at, Instant::now()));
                    }
                }
                turns += 1;
                if turns % 16 == 0 {
                    prepared.submit(&third).expect("runs");
                }
            }
            for (memories, expected) in both.iter().zip(&expected) {
                assert!(contents(&backend, &memories[1]) == *expected, "{pieces:?}");
            }
        }
    }
}

/// A result over bytes of its operand: the operand is set aside first, and cannot be set aside again once the result is begun.
#[test]
fn what_cannot_be_done_over_is_not_cut() {
    let backend = cpu(1);
    let (from, to) = (tensor(0, 0, DType::F32, &[300_000]), tensor(0, 1000, DType::F32, &[300_000]));
    let end = tensor(0, to.offset_bytes + to.desc.size_bytes(), DType::F32, &[300_000]);
    let nodes = vec![node("move up", Op::Cpy {}, &[from, to], to), node("after", Op::Scale { by: 2.0 }, &[to], end)];
    let split = SplitDesc { nodes, memory_slots: 1 };
    let prepared = backend.prepare(&split).expect("valid");
    let bytes = floats(700_000);
    let whole = memory(&backend, &bytes);
    prepared.submit(std::slice::from_ref(&whole)).expect("runs");
    let expected = contents(&backend, &whole);
    let runs = [memory(&backend, &bytes), memory(&backend, &bytes)];
    let mut at = [Some(Cursor::START); 2];
    let mut steps = std::collections::BTreeMap::new();
    while at.iter().any(Option::is_some) {
        for (run, at) in runs.iter().zip(&mut at) {
            *at = at.and_then(|at| go_on(&*prepared, std::slice::from_ref(run), at, Instant::now()));
            if let Some(at) = at {
                *steps.entry(at.step).or_insert(0) += 1;
            }
        }
    }
    for run in &runs {
        assert!(contents(&backend, run) == expected);
    }
    assert!(steps[&0] > 10, "setting aside is cut");
    assert_eq!(steps[&1], 2, "the result is done in one go, once in each run");
    assert!(steps[&2] > 10, "what comes behind is cut");
    let error = prepared.run_from(&runs[..1], Cursor { step: 1, row: 3 }, &RunLimit::NONE);
    assert_eq!(error, Err(BackendError::BadCursor { step: 1, row: 3 }));
}

#[test]
fn deadlines_whenever_they_fall() {
    let example = block(256, 64, 3);
    let expected = whole(&cpu(1), &example);
    let shared = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads start"));
    let config = CpuConfig { pool: Some(shared), ..CpuConfig::default() };
    for backend in [cpu(1), cpu(2), cpu(4), CpuBackend::new(config).expect("the CPU is there")] {
        let prepared = backend.prepare(&example.0).expect("valid");
        for round in 0..30 {
            let memories = memories(&backend, &example);
            let (mut at, mut pauses) = (Some(Cursor::START), 0_u64);
            while let Some(from) = at {
                // Between nothing and half a millisecond, other numbers in every round.
                let time = Duration::from_micros((pauses * 37 + round * 101) % 500);
                at = go_on(&*prepared, &memories, from, Instant::now() + time);
                pauses += 1;
            }
            assert!(contents(&backend, &memories[1]) == expected, "{} threads, {pauses} pauses", backend.threads());
        }
    }
}

#[test]
fn cancelled_runs_leave_the_split_as_good_as_new() {
    let example = block(256, 64, 8);
    let expected = whole(&cpu(1), &example);
    for threads in [1, 3] {
        let backend = cpu(threads);
        let prepared = backend.prepare(&example.0).expect("valid");
        let mut cancelled = 0;
        for round in 0..40_u64 {
            let memories = memories(&backend, &example);
            let token = CancelToken::new();
            let limit = RunLimit { deadline: None, cancel: Some(&token) };
            let result = thread::scope(|scope| {
                let other = token.clone();
                scope.spawn(move || {
                    thread::sleep(Duration::from_micros(round * 60));
                    other.cancel();
                });
                prepared.run_from(&memories, Cursor::START, &limit)
            });
            match result {
                Ok(Progress::Done(_)) => assert!(contents(&backend, &memories[1]) == expected),
                Ok(Progress::Paused(at)) => panic!("a pause at {at:?} without a deadline"),
                Err(error) => {
                    assert_eq!(error, BackendError::Cancelled);
                    cancelled += 1;
                    // Whatever is there is overwritten, and nobody of the cancelled run writes any more.
                    backend.write(&memories[1], 0, &example.2).expect("in bounds");
                    prepared.submit(&memories).expect("runs");
                    assert!(contents(&backend, &memories[1]) == expected, "{threads} threads, round {round}");
                }
            }
            assert_eq!(
                prepared.run_from(&memories, Cursor::START, &limit),
                Err(BackendError::Cancelled),
                "a token stays cancelled"
            );
        }
        assert!(cancelled > 0, "no run was under way when it was cancelled");
    }
}

#[test]
fn a_failure_in_a_piece_is_that_of_the_run() {
    let backend = cpu(3);
    let (big, table) = (tensor(1, 0, DType::F32, &[256, 512]), tensor(0, 64, DType::F32, &[256, 8]));
    let (ids, rows) = (tensor(0, 0, DType::I32, &[4]), tensor(1, big.desc.size_bytes(), DType::F32, &[256, 4]));
    let nodes =
        vec![node("before", Op::Scale { by: 2.0 }, &[big], big), node("pick", Op::GetRows {}, &[table, ids], rows)];
    let prepared = backend.prepare(&SplitDesc { nodes, memory_slots: 2 }).expect("valid");
    let mut read: Vec<u8> = [0, 7, 8, -1_i32].into_iter().flat_map(i32::to_le_bytes).collect();
    read.extend(floats(12 + 256 * 8));
    let memories = [memory(&backend, &read), memory(&backend, &floats(256 * 512 + 256 * 4))];
    let mut at = Cursor::START;
    let error = loop {
        let limit = RunLimit { deadline: Some(Instant::now()), cancel: None };
        match prepared.run_from(&memories, at, &limit) {
            Ok(Progress::Paused(next)) => at = next,
            Ok(Progress::Done(_)) => panic!("8 is out of range"),
            Err(error) => break error,
        }
    };
    assert_eq!(error, BackendError::IndexOutOfRange { node: "pick".into(), position: 2, value: 8, rows: 8 });
    backend.write(&memories[0], 0, &[0; 16]).expect("in bounds");
    assert!(matches!(prepared.run_from(&memories, at, &RunLimit::NONE), Ok(Progress::Done(_))), "the same place again");
}

#[test]
fn places_that_a_split_does_not_have() {
    let backend = cpu(1);
    let x = tensor(0, 0, DType::F32, &[100_000]);
    let sorted = tensor(0, x.desc.size_bytes(), DType::I32, &[100_000]);
    let sort = Op::Argsort { order: SortOrder::Ascending };
    let nodes = vec![node("sort", sort, &[x], sorted), node("double", Op::Scale { by: 2.0 }, &[x], x)];
    let prepared = backend.prepare(&SplitDesc { nodes, memory_slots: 1 }).expect("valid");
    let memory = memory(&backend, &floats(200_000));
    let from = |step, row| prepared.run_from(std::slice::from_ref(&memory), Cursor { step, row }, &RunLimit::NONE);
    for (step, row) in [(0, 1), (1, 1000), (1, u32::MAX), (2, 0), (u32::MAX, u32::MAX)] {
        assert_eq!(from(step, row), Err(BackendError::BadCursor { step, row }));
    }
    assert!(matches!(from(1, 0), Ok(Progress::Done(_))));
    let empty = backend.prepare(&SplitDesc::default()).expect("valid");
    assert!(matches!(empty.run_from(&[], Cursor::START, &RunLimit::NONE), Ok(Progress::Done(_))));
}
