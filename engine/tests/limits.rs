//! Runs in slices and runs that are cancelled: the same numbers, and an engine that goes on.

use std::{sync::Arc, time::Instant};

use entensor::{
    Backend, BackendIndex, CancelToken, DType, Engine, EngineError, GraphBuilder, GraphId, RunLimit, RunProgress,
    Tensor,
    components::{Capabilities, MemoryKind},
};
use entensor_oracle::OracleBackend;

/// A deadline that has passed: one piece a call.
fn no_time() -> RunLimit<'static> {
    RunLimit { deadline: Some(Instant::now()), cancel: None }
}

/// A device with memory of its own above a host: plans have copies.
fn two_backends() -> Engine {
    let memory = MemoryKind("device0".into());
    let capabilities =
        Capabilities { reads: vec![memory.clone()], memory, buffer_type: "device0".into(), ..Capabilities::host() };
    let device: Arc<dyn Backend> = Arc::new(OracleBackend::with_capabilities("device", capabilities));
    let host: Arc<dyn Backend> = Arc::new(OracleBackend::new("host"));
    let builder = Engine::builder().verify_plans(true).backend_instance(device).backend_instance(host);
    builder.build().expect("oracles start")
}

/// `((x * 2) * 3 + x) * 5` = 35 x, in turns on both backends.
fn chain(
    engine: &mut Engine,
    name: &str,
    count: u64,
    set: impl FnOnce(&mut GraphBuilder),
) -> (GraphId, Tensor, Tensor) {
    let mut g = GraphBuilder::new(name);
    set(&mut g);
    let x = g.input("x", DType::F32, &[count]).expect("a small input");
    let a = g.scale(x, 2.0).expect("shapes fit");
    g.pin(a, BackendIndex(0)).expect("own tensor");
    let b = g.scale(a, 3.0).expect("shapes fit");
    g.pin(b, BackendIndex(1)).expect("own tensor");
    let c = g.add(b, x).expect("shapes fit");
    let y = g.scale(c, 5.0).expect("shapes fit");
    g.pin(y, BackendIndex(0)).expect("own tensor");
    let y = g.output("y", y).expect("a free name");
    (engine.add_graph(g), x, y)
}

fn value(engine: &Engine, (graph, x, y): (GraphId, Tensor, Tensor)) -> Result<f32, EngineError> {
    let mut values = vec![0.0_f32; usize::try_from(x.shape()[0]).expect("small")];
    engine.read(graph, y, &mut values)?;
    assert!(values.iter().all(|v| *v == values[0]));
    Ok(values[0])
}

fn write(engine: &mut Engine, (graph, x, _): (GraphId, Tensor, Tensor), value: f32) {
    let values = vec![value; usize::try_from(x.shape()[0]).expect("small")];
    engine.write(graph, x, &values).expect("an input");
}

#[test]
fn a_run_in_slices_is_a_run() {
    let mut engine = two_backends();
    let graph = chain(&mut engine, "sliced", 4, |_| ());
    let mut slices = Vec::new();
    for round in 1..4_u8 {
        write(&mut engine, graph, f32::from(round));
        let mut pauses = 0;
        while engine.run_until(graph.0, &no_time()).expect("runs") == RunProgress::Paused {
            pauses += 1;
            assert!(engine.is_paused(graph.0));
            let gone = value(&engine, graph).expect_err("it is not done");
            assert_eq!(gone.kind(), "OutputGone");
        }
        assert!(!engine.is_paused(graph.0));
        assert_eq!(value(&engine, graph), Ok(35.0 * f32::from(round)));
        slices.push(pauses);
    }
    // Four nodes in three splits, and copies between them.
    assert!(slices[0] >= 5, "{slices:?}");
    assert_eq!(slices, [slices[0]; 3]);
    engine.run(graph.0).expect("inputs are still there");
    assert_eq!(value(&engine, graph), Ok(105.0));
    assert_eq!(engine.run_until(graph.0, &RunLimit::NONE), Ok(RunProgress::Done));
    assert_eq!(value(&engine, graph), Ok(105.0));
}

#[test]
fn graphs_that_are_alike_take_turns_in_slices() {
    let mut engine = two_backends();
    let graphs = ["a", "b", "c"].map(|_| chain(&mut engine, "alike", 4, |_| ()));
    graphs.iter().zip([1.0, 2.0, 3.0]).for_each(|(&graph, value)| write(&mut engine, graph, value));
    let mut open = graphs.to_vec();
    while !open.is_empty() {
        open.retain(|graph| engine.run_until(graph.0, &no_time()).expect("runs") == RunProgress::Paused);
    }
    let plans = graphs.map(|graph| Arc::as_ptr(engine.plan_of(graph.0).expect("planned")));
    assert!(plans[0] == plans[1] && plans[1] == plans[2], "they share a plan");
    assert_eq!(graphs.map(|graph| value(&engine, graph)), [Ok(35.0), Ok(70.0), Ok(105.0)]);
}

#[test]
fn a_cancelled_run_starts_over_with_the_same_inputs() {
    let mut engine = two_backends();
    let graph = chain(&mut engine, "stopped", 4, |_| ());
    write(&mut engine, graph, 2.0);
    for pauses in 0..4 {
        for _ in 0..pauses {
            assert_eq!(engine.run_until(graph.0, &no_time()), Ok(RunProgress::Paused));
        }
        let token = CancelToken::new();
        let limit = RunLimit { deadline: None, cancel: Some(&token) };
        token.cancel();
        let error = engine.run_until(graph.0, &limit).expect_err("it was cancelled");
        assert_eq!(error, EngineError::Cancelled { graph: "stopped".into() });
        assert_eq!(error.kind(), "Cancelled");
        assert!(!engine.is_paused(graph.0));
        assert_eq!(value(&engine, graph).expect_err("nothing was computed").kind(), "OutputGone");
        let fresh = CancelToken::new();
        let limit = RunLimit { deadline: None, cancel: Some(&fresh) };
        assert_eq!(engine.run_until(graph.0, &limit), Ok(RunProgress::Done));
        assert_eq!(value(&engine, graph), Ok(70.0));
        engine.run(graph.0).expect("and as a whole");
        assert_eq!(value(&engine, graph), Ok(70.0));
    }
}

#[test]
fn what_happens_to_a_paused_graph_is_noticed() {
    let mut engine = two_backends();
    let arena = engine.new_arena();
    let mut make = |name: &str, count| {
        chain(&mut engine, name, count, |g| {
            g.share_arena(arena);
        })
    };
    let (graph, other, larger) = (make("paused", 4), make("other", 4), make("larger", 4096));
    let pause = |engine: &mut Engine| {
        write(engine, graph, 1.0);
        for _ in 0..3 {
            assert_eq!(engine.run_until(graph.0, &no_time()), Ok(RunProgress::Paused));
        }
    };
    let cancelled = Err(EngineError::Cancelled { graph: "paused".into() });
    let not_written = |engine: &mut Engine| {
        assert_eq!(engine.run_until(graph.0, &RunLimit::NONE).expect_err("inputs are gone").kind(), "InputNotWritten");
    };

    // An input is written: the run starts over.
    pause(&mut engine);
    write(&mut engine, graph, 2.0);
    assert!(!engine.is_paused(graph.0));
    assert_eq!(engine.run_until(graph.0, &RunLimit::NONE), Ok(RunProgress::Done));
    assert_eq!(value(&engine, graph), Ok(70.0));

    // A whole run starts over too, and leaves nothing to go on with.
    pause(&mut engine);
    engine.run(graph.0).expect("runs");
    assert!(!engine.is_paused(graph.0));
    assert_eq!(value(&engine, graph), Ok(35.0));

    // It is abandoned: the next run starts over.
    pause(&mut engine);
    assert!(engine.abandon(graph.0) && !engine.abandon(graph.0));
    assert_eq!(engine.run_until(graph.0, &RunLimit::NONE), Ok(RunProgress::Done));
    assert_eq!(value(&engine, graph), Ok(35.0));

    // Another graph runs in the same arena; a larger one makes it grow.
    for taker in [other, larger] {
        pause(&mut engine);
        write(&mut engine, taker, 3.0);
        assert_eq!(engine.run_until(taker.0, &RunLimit::NONE), Ok(RunProgress::Done));
        assert_eq!(value(&engine, taker), Ok(105.0));
        assert_eq!(engine.run_until(graph.0, &RunLimit::NONE), cancelled);
        not_written(&mut engine);
    }

    // The plan is made again under another number.
    pause(&mut engine);
    engine.world_mut().resource_mut::<entensor::PlanSalt>().0 += 1;
    assert_eq!(engine.run_until(graph.0, &RunLimit::NONE), cancelled);
    not_written(&mut engine);
    pause(&mut engine);
    while engine.run_until(graph.0, &no_time()).expect("runs") == RunProgress::Paused {}
    assert_eq!(value(&engine, graph), Ok(35.0));

    // The graph is gone.
    pause(&mut engine);
    engine.remove_graph(graph.0);
    assert_eq!(engine.run_until(graph.0, &RunLimit::NONE), Err(EngineError::UnknownGraph));
}

#[test]
fn slices_of_pipelined_graphs_keep_their_slots_apart() {
    let mut engine = two_backends();
    let graph = chain(&mut engine, "slots", 4, |g| {
        g.pipeline_copies(3);
    });
    for round in 1..8_u8 {
        write(&mut engine, graph, f32::from(round));
        let token = CancelToken::new();
        assert_eq!(engine.run_until(graph.0, &no_time()), Ok(RunProgress::Paused));
        token.cancel();
        let limit = RunLimit { deadline: None, cancel: Some(&token) };
        assert_eq!(engine.run_until(graph.0, &limit).expect_err("it was cancelled").kind(), "Cancelled");
        while engine.run_until(graph.0, &no_time()).expect("x is still written") == RunProgress::Paused {}
        assert_eq!(value(&engine, graph), Ok(35.0 * f32::from(round)));
    }
    let error = engine.run_until(graph.0, &no_time()).expect_err("nothing was written for this slot");
    assert_eq!(error.kind(), "InputNotWritten");
}

#[test]
fn a_failure_in_a_slice_is_that_of_the_run() {
    let mut engine = two_backends();
    let table = engine.weights("table", DType::F32, &[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).expect("six values");
    let mut g = GraphBuilder::new("lookup");
    let table = g.shared(&table).expect("one tensor");
    let ids = g.input("ids", DType::I32, &[1]).expect("a small input");
    let row = g.get_rows(table, ids).expect("shapes fit");
    let row = g.output("row", row).expect("a free name");
    let graph = engine.add_graph(g);
    engine.write(graph, ids, &[3_i32]).expect("ids are checked when they are used");
    let error = loop {
        match engine.run_until(graph, &no_time()) {
            Ok(RunProgress::Paused) => {}
            Ok(RunProgress::Done) => panic!("there is no row 3"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), "Run");
    assert!(error.to_string().contains("id 3 at position 0"), "{error}");
    assert!(!engine.is_paused(graph));
    engine.write(graph, ids, &[1_i32]).expect("an input");
    while engine.run_until(graph, &no_time()).expect("row 1 exists") == RunProgress::Paused {}
    let mut result = [0.0_f32; 2];
    engine.read(graph, row, &mut result).expect("an output");
    assert_eq!(result, [2.0, 3.0]);
}

/// What a paused run has computed in place of its inputs is not computed again when it gets all the time that it needs.
#[test]
fn a_paused_run_goes_on_where_it_was_without_a_limit_too() {
    const LEN: usize = 64 * 1024;
    let mut engine = Engine::builder().backend("cpu:threads=1").verify_plans(true).build().expect("the host is there");
    let mut g = GraphBuilder::new("in place");
    let x = g.consumed_input("x", DType::F32, &[LEN as u64]).expect("a small input");
    let mut y = x;
    for _ in 0..6 {
        y = g.scale(y, 2.0).expect("shapes fit");
    }
    let y = g.output("y", y).expect("a free name");
    let graph = engine.add_graph(g);
    let mut paused = 0;
    for slices in 1..40 {
        engine.write(graph, x, &vec![1.0_f32; LEN]).expect("an input");
        let mut progress = RunProgress::Paused;
        for _ in 0..slices {
            if progress == RunProgress::Paused {
                progress = engine.run_until(graph, &no_time()).expect("nothing fails");
            }
        }
        if progress == RunProgress::Paused {
            paused += 1;
            assert_eq!(engine.run_until(graph, &RunLimit::NONE), Ok(RunProgress::Done));
        }
        let mut result = vec![0.0_f32; LEN];
        engine.read(graph, y, &mut result).expect("an output");
        assert!(result.iter().all(|&v| v == 64.0), "after {slices} slices: {:?}", result.iter().find(|&&v| v != 64.0));
    }
    assert!(paused > 5, "{paused} runs were paused");
    // The next input lies where the result may lie.
    engine.write(graph, x, &vec![1.0_f32; LEN]).expect("an input");
    let gone = engine.read(graph, y, &mut vec![0.0_f32; LEN]).expect_err("it was written over");
    assert_eq!(gone.kind(), "OutputGone");
}
