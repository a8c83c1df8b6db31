//! Runs that are ended early.

use entensor::{CancelToken, DType, EngineError, GraphBuilder, RunProgress};
use entensor_components::{
    Backend, BackendError, Cursor, MemorySlot, NodeDesc, Op, Progress, RunLimit, Shape, SplitDesc, TensorDesc,
    TensorRef, Ticket, Usage,
};
use entensor_sim::SimConfig;

use crate::machine::{Chain, ChainShape, Expected, Machine, SEEDS, oracle};

/// A run is cancelled after any number of pieces of its work: it has no results, the others have theirs, and the next one is right.
#[test]
fn report_43_a_cancelled_run_leaves_nothing_behind() {
    let (mut cancelled, mut late) = (0, 0);
    for seed in 0..SEEDS {
        let copies = 1 + u32::try_from(seed % 3).expect("few");
        let shape = ChainShape { seed: seed % 50, nodes: 9, copies };
        let (machine, mut expected) = (Machine::of(seed, 2), Expected::new(shape));
        let mut engine = machine.engine();
        let chain = Chain::on(&mut engine, shape, |_| ());
        assert_eq!(chain.compute(&mut engine, 0), Ok(expected.of(0)));
        let bytes = machine.devices.iter().map(|d| d.memory_report().ours_bytes).collect::<Vec<_>>();
        chain.write(&mut engine, 1).expect("inputs");
        let run = engine.run_async(chain.graph).expect("submitted");
        let other = (copies > 1).then(|| {
            chain.write(&mut engine, 2).expect("inputs");
            engine.run_async(chain.graph).expect("submitted")
        });
        machine.let_happen(seed % 13);
        let _ = engine.poll(run);
        if engine.cancel(run).expect("a run of its own") {
            cancelled += 1;
            let error = engine.wait(run).expect_err("it was cancelled");
            assert!(matches!(error, EngineError::Cancelled { .. }), "{error}");
            assert_eq!(error.kind(), "Cancelled");
            let error = chain.read(&engine, run).expect_err("there are no results");
            assert!(matches!(error, EngineError::OutputGone { .. }), "{error}");
            assert_eq!(engine.cancel(run), Ok(false), "it is over");
        } else {
            late += 1;
            assert_eq!(chain.read(&engine, run), Ok(expected.of(1)), "seed {seed}");
        }
        if let Some(other) = other {
            assert_eq!(chain.read(&engine, other), Ok(expected.of(2)), "seed {seed}: the run behind it goes on");
        }
        assert_eq!(chain.compute(&mut engine, 3), Ok(expected.of(3)), "seed {seed}");
        let after = machine.devices.iter().map(|d| d.memory_report().ours_bytes).collect::<Vec<_>>();
        assert_eq!(bytes, after, "seed {seed}");
        machine.assert_no_race(seed);
    }
    assert!(cancelled > 300 && late > 10, "{cancelled} in time, {late} late");
}

/// State that runs write: a cancelled run did a step of it or did not, and the next run does it right.
#[test]
fn report_43_state_is_whole_after_a_cancelled_run() {
    for seed in 0..SEEDS {
        let machine = Machine::of(seed, 1);
        let mut engine = machine.engine();
        let place = entensor::BackendIndex(u32::try_from(seed % 2).expect("few"));
        let buffer = engine.create_buffer("rows", place, Usage::Any, 4 * 4 * 8).expect("small");
        let rows = engine.tensor_in("rows", DType::F32, &[4, 8], buffer, 0).expect("it fits");
        let mut g = GraphBuilder::new("rows");
        let table = g.shared(&rows).expect("one tensor");
        let x = g.input("x", DType::F32, &[4, 1]).expect("a small input");
        let at = g.input("at", DType::I32, &[1]).expect("a small input");
        let written = g.set_rows(table, x, at).expect("shapes fit");
        g.output("written", written).expect("a free name");
        let graph = engine.add_graph(g);
        let mut model = [[0.0_f32; 4]; 8];
        for round in 0..6_u8 {
            let row = usize::from(round % 8);
            engine.write(graph, x, &[f32::from(round); 4]).expect("an input");
            engine.write(graph, at, &[i32::from(round % 8)]).expect("an input");
            let run = engine.run_async(graph).expect("submitted");
            machine.let_happen((seed + u64::from(round)) % 5);
            let is_cancelled = round % 2 == 0 && engine.cancel(run).expect("a run of its own");
            let mut seen = [0.0_f32; 32];
            engine.read_tensor(&rows, &mut seen).expect("memory of its own");
            let before = model;
            model[row] = [f32::from(round); 4];
            let is_new = seen == model.as_flattened();
            assert!(is_new || (is_cancelled && seen == before.as_flattened()), "seed {seed}: {seen:?}");
            if !is_new {
                // Position is the caller's: it does the row again.
                engine.write(graph, x, &[f32::from(round); 4]).expect("an input");
                engine.write(graph, at, &[i32::from(round % 8)]).expect("an input");
                engine.run(graph).expect("it runs");
            }
        }
        machine.assert_no_race(seed);
    }
}

/// A token that is set before or between submissions ends the run; a fresh one lets the next through.
#[test]
fn a_token_ends_a_run() {
    let shape = ChainShape { seed: 3, nodes: 9, copies: 1 };
    let (machine, mut expected) = (Machine::of(1, 2), Expected::new(shape));
    let mut engine = machine.engine();
    let chain = Chain::on(&mut engine, shape, |_| ());
    let token = CancelToken::new();
    token.cancel();
    chain.write(&mut engine, 0).expect("inputs");
    let error = engine.run_until(chain.graph, &RunLimit { cancel: Some(&token), deadline: None });
    assert!(matches!(error, Err(EngineError::Cancelled { .. })), "{error:?}");
    let token = CancelToken::new();
    chain.write(&mut engine, 1).expect("inputs");
    assert_eq!(
        engine.run_until(chain.graph, &RunLimit { cancel: Some(&token), deadline: None }),
        Ok(RunProgress::Done)
    );
    assert_eq!(chain.compute(&mut engine, 2), Ok(expected.of(2)));
    machine.assert_no_race(1);
}

/// A split of four nodes in a row.
fn four_nodes() -> SplitDesc {
    let desc = TensorDesc::packed(DType::F32, Shape([2, 1, 1, 1])).expect("small");
    let at = |index: u64| TensorRef { desc, memory: MemorySlot(0), offset_bytes: 8 * index };
    let node = |index: u64| NodeDesc {
        name: format!("n{index}").into(),
        op: Op::Scale { by: 2.0 },
        output: at(index + 1),
        operands: vec![at(index)],
    };
    SplitDesc { nodes: (0..4).map(node).collect(), memory_slots: 1 }
}

/// A split is run in slices, cancelled behind any node, and run again: the bytes are those of one piece.
#[test]
fn report_43_a_split_is_cancelled_at_every_node() {
    for seed in 0..SEEDS {
        let machine = Machine::new(seed, [SimConfig::device("device0", oracle())]);
        let backend: &dyn Backend = if seed % 2 == 0 { &*machine.devices[0] } else { &*machine.host };
        let key = backend.create_buffer(40, Usage::Any).expect("small");
        let memory = [backend.memory(key).expect("just made")];
        backend.write(&memory[0], 0, bytemuck_bytes(&[1.0, 3.0])).expect("it fits");
        let split = backend.prepare(&four_nodes()).expect("scale is supported");
        let (past, token) = (std::time::Instant::now(), CancelToken::new());
        let slice = RunLimit { deadline: Some(past), cancel: Some(&token) };
        let mut cursor = Cursor::START;
        for node in 0..seed % 4 {
            let step = u32::try_from(node + 1).expect("few");
            let progress = split.run_from(&memory, cursor, &slice).expect("a slice");
            assert_eq!(progress, Progress::Paused(Cursor { step, row: 0 }));
            cursor = Cursor { step, row: 0 };
        }
        token.cancel();
        assert_eq!(split.run_from(&memory, cursor, &slice), Err(BackendError::Cancelled));
        for bad in [Cursor { step: 4, row: 0 }, Cursor { step: 0, row: 1 }, Cursor { step: u32::MAX, row: 0 }] {
            let refused = split.run_from(&memory, bad, &RunLimit::NONE);
            assert_eq!(refused, Err(BackendError::BadCursor { step: bad.step, row: bad.row }));
        }
        let ticket = match split.run_from(&memory, Cursor::START, &RunLimit::NONE) {
            Ok(Progress::Done(ticket)) => ticket,
            other => panic!("{other:?}"),
        };
        assert_eq!(ticket == Ticket::Done, seed % 2 == 1, "devices are asynchronous, the host is not");
        let mut result = [0; 8];
        backend.read(&memory[0], 32, &mut result).expect("it waits");
        assert_eq!(result, *bytemuck_bytes(&[16.0, 48.0]));
        machine.assert_no_race(seed);
    }
}

/// Two floats as bytes.
fn bytemuck_bytes(values: &[f32; 2]) -> &'static [u8] {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    bytes.leak()
}
