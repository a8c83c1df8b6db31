//! Worst-case graphs that are reserved for, and the fallback to one copy where several do not fit.
//!
//! `Engine::reserve` plans a graph and makes its planned memory, without running it.

use std::sync::Arc;

use bevy_ecs::prelude::*;
use entensor::{ArenaId, DType, Engine, GraphBuilder, GraphId, Tensor};
use entensor_components::BackendError;
use entensor_systems::CopiesFallback;

use crate::devices::{Call, Log, machine_of};

fn engine_on(lines: &str) -> (Engine, Arc<Log>) {
    let log = Arc::new(Log::default());
    let mut builder = Engine::builder().verify_plans(true);
    for backend in machine_of(lines, &log) {
        builder = builder.backend_instance(backend);
    }
    (builder.build().expect("oracles start"), log)
}

const MACHINES: [&str; 4] = [
    "backend cpu",
    "backend gpu\nbackend cpu",
    "backend cpu max_buffer=4K",
    "backend gpu max_buffer=3000 align=256\nbackend cpu",
];

/// `x + silu(x)·silu(x)` of this many rows.
fn rows(engine: &mut Engine, name: &str, count: u64, arena: ArenaId, copies: u32) -> (GraphId, Tensor, Tensor) {
    let mut g = GraphBuilder::new(name);
    g.share_arena(arena).pipeline_copies(copies);
    let x = g.input("x", DType::F32, &[8, count]).expect("a small input");
    let a = g.silu(x).expect("shapes fit");
    let b = g.mul(a, a).expect("shapes fit");
    let y = g.add(x, b).expect("shapes fit");
    let y = g.output("y", y).expect("a free name");
    (engine.add_graph(g), x, y)
}

fn run(engine: &mut Engine, (graph, x, y): (GraphId, Tensor, Tensor)) -> Vec<f32> {
    let count = usize::try_from(x.shape().iter().product::<u64>()).expect("small");
    let values: Vec<f32> = (0..count).map(|i| (i % 9) as f32 - 4.0).collect();
    engine.write(graph, x, &values).expect("an input");
    engine.run(graph).expect("it runs");
    let mut result = vec![0.0; count];
    engine.read(graph, y, &mut result).expect("an output");
    result
}

/// lc#17232: a reserve before the runs changes no placement and costs no further plan.
#[test]
fn report_10_a_reserve_and_ten_runs_plan_once() {
    for machine in MACHINES {
        let (mut engine, log) = engine_on(machine);
        let arena = engine.new_arena();
        let graph = rows(&mut engine, "g", 20, arena, 1);
        engine.reserve(graph.0).expect("it fits");
        let (allocated, prepared) = (log.count(Call::Allocate), log.count(Call::Prepare));
        for _ in 0..10 {
            run(&mut engine, graph);
        }
        assert_eq!(engine.counters().planned, 1);
        assert_eq!((log.count(Call::Allocate), log.count(Call::Prepare)), (allocated, prepared));
    }
}

/// ollama#13244: what was reserved for once is reserved.
#[test]
fn report_21_the_third_reserve_allocates_nothing() {
    for machine in MACHINES {
        for (vision, text) in [(60, 3), (3, 60), (20, 21)] {
            let (mut engine, log) = engine_on(machine);
            let arena = engine.new_arena();
            let (vision, text) =
                (rows(&mut engine, "vision", vision, arena, 1), rows(&mut engine, "text", text, arena, 1));
            engine.reserve(vision.0).expect("it fits");
            engine.reserve(text.0).expect("it fits");
            let allocated = log.count(Call::Allocate);
            engine.reserve(vision.0).expect("it fits");
            assert_eq!(log.count(Call::Allocate), allocated, "{machine}");
            run(&mut engine, text);
            run(&mut engine, vision);
            assert_eq!(log.count(Call::Allocate), allocated, "{machine}");
        }
    }
}

/// ik#1560: more rows than were reserved for are planned anew with a reason, and cost their own bytes.
#[test]
fn report_23_more_than_was_reserved_says_why() {
    let (mut engine, log) = engine_on("backend cpu");
    let arena = engine.new_arena();
    let small = rows(&mut engine, "small", 8, arena, 1);
    engine.reserve(small.0).expect("it fits");
    let large = rows(&mut engine, "large", 64, arena, 1);
    run(&mut engine, large);
    assert_eq!(engine.counters().planned, 2);
    assert_eq!(engine.counters().reasons.values().sum::<u64>(), 2);
    let planned = engine.plan_of(large.0).expect("it ran").planned_bytes();
    assert_eq!(log.all_alive_bytes(), planned, "what was asked for, and no more to be safe");
}

/// lc#16748: where memory for several copies is refused, the graph runs with one, a warning says so, and nothing is left over.
#[test]
fn report_25_several_copies_fall_back_to_one() {
    for copies in [2, 3, 4] {
        for machine in MACHINES {
            let (mut engine, log) = engine_on(machine);
            let arena = engine.new_arena();
            let probe = rows(&mut engine, "probe", 20, arena, copies);
            engine.plan(probe.0).expect("it fits");
            let calls = log.count(Call::Allocate);
            for n in 0..calls {
                let (mut engine, log) = engine_on(machine);
                let arena = engine.new_arena();
                let graph = rows(&mut engine, "g", 20, arena, copies);
                let out_of_memory = BackendError::OutOfMemory { size_bytes: 1 };
                log.fail_once(Call::Allocate, n, out_of_memory.clone());
                let result = run(&mut engine, graph);
                let messages = engine.world().resource::<Messages<CopiesFallback>>();
                let told: Vec<_> = messages.iter_current_update_messages().collect();
                assert_eq!(told.len(), 1, "{machine}, call {n}");
                assert_eq!((told[0].graph, told[0].asked), (graph.0.0, copies));
                assert!(told[0].error.to_string().contains(&out_of_memory.to_string()));
                let plan = engine.plan_of(graph.0).expect("it ran");
                assert_eq!(plan.programs.len(), 1);
                assert_eq!(log.all_alive_bytes(), plan.planned_bytes(), "nothing of the first try is left");
                assert_eq!(run(&mut engine, graph), result);
                assert_eq!(engine.counters().planned, 2, "it is tried once, not at every run");
            }
        }
    }
    // Where one copy does not fit either, that is the error.
    let (mut engine, log) = engine_on("backend cpu");
    let arena = engine.new_arena();
    let graph = rows(&mut engine, "g", 20, arena, 4);
    log.fail(Call::Allocate, 0, BackendError::OutOfMemory { size_bytes: 1 });
    assert_eq!(engine.plan(graph.0).expect_err("there is no memory at all").kind(), "Allocation");
    log.heal();
    run(&mut engine, graph);
}

/// lc#5096: whatever is smaller than what was reserved for fits, in buffers of any largest size.
#[test]
fn report_27_everything_smaller_than_reserved_fits() {
    for machine in MACHINES {
        let (mut engine, log) = engine_on(machine);
        let arena = engine.new_arena();
        let large = rows(&mut engine, "large", 90, arena, 1);
        engine.reserve(large.0).expect("it fits");
        let allocated = log.count(Call::Allocate);
        for count in (1..=90).rev().step_by(4).chain([1, 2, 89, 90]) {
            let small = rows(&mut engine, &format!("g{count}"), count, arena, 1);
            run(&mut engine, small);
            engine.remove_graph(small.0);
            assert_eq!(log.count(Call::Allocate), allocated, "{machine}: {count} rows");
        }
    }
}

/// lc#28872: a reserve on a live engine only grows, and the first run after it pays for nothing.
#[test]
fn report_33_a_reserve_only_grows_and_is_paid_once() {
    for machine in MACHINES {
        let (mut engine, log) = engine_on(machine);
        let arena = engine.new_arena();
        let decode = rows(&mut engine, "decode", 1, arena, 1);
        let expected = run(&mut engine, decode);
        let mut most = log.all_alive_bytes();
        for count in [30, 5, 60, 10] {
            let prompt = rows(&mut engine, &format!("prompt{count}"), count, arena, 1);
            engine.reserve(prompt.0).expect("it fits");
            assert!(log.all_alive_bytes() >= most, "{machine}: a reserve gave memory back");
            most = log.all_alive_bytes();
            let calls = (log.count(Call::Allocate), log.count(Call::Prepare));
            run(&mut engine, prompt);
            assert_eq!(run(&mut engine, decode), expected);
            assert_eq!((log.count(Call::Allocate), log.count(Call::Prepare)), calls, "{machine}: {count} rows");
        }
    }
}

/// lc#23422: the n-th allocation of a reserve fails, for every n: an error, and the next reserve is whole.
#[test]
fn report_35_a_reserve_that_fails_can_be_tried_again() {
    for machine in MACHINES {
        for n in 0..6 {
            let (mut engine, log) = engine_on(machine);
            let arena = engine.new_arena();
            let small = rows(&mut engine, "small", 2, arena, 1);
            let expected = run(&mut engine, small);
            let large = rows(&mut engine, "large", 90, arena, 1);
            log.fail(Call::Allocate, n, BackendError::OutOfMemory { size_bytes: 1 });
            if let Err(error) = engine.reserve(large.0) {
                assert_eq!(error.kind(), "Allocation", "{machine}: {error}");
            }
            log.heal();
            engine.reserve(large.0).expect("there is memory now");
            let allocated = log.count(Call::Allocate);
            run(&mut engine, large);
            assert_eq!(run(&mut engine, small), expected);
            assert_eq!(log.count(Call::Allocate), allocated);
        }
    }
}
