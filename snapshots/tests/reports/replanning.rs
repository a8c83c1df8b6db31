//! When a graph is planned again, why, and that an old plan is never taken for a new graph's.

use std::sync::{Arc, atomic::Ordering};

use bevy_ecs::prelude::*;
use entensor::{
    ArenaId, BackendIndex, DType, Engine, GraphBuilder, GraphId, PlanSalt, Tensor, Usage, graph_text::GraphText,
};
use entensor_components::{Backend, BackendError, DType as ElementType, GraphTensors, Shape, Sources, Strides};
use entensor_oracle::OracleBackend;
use entensor_snapshots::generate::{Limits, Random, case};
use entensor_systems::PlanError;

use crate::{
    common::{self, fixtures},
    devices::{Call, Late, Log, machine_of},
    runs::Run,
    tools::buffer_sizes,
};

fn engine_on(lines: &str) -> (Engine, Arc<Log>) {
    let log = Arc::new(Log::default());
    let mut builder = Engine::builder().verify_plans(true);
    for backend in machine_of(lines, &log) {
        builder = builder.backend_instance(backend);
    }
    (builder.build().expect("oracles start"), log)
}

/// `2x + x` of this many values, with a part on the first backend.
fn triple(engine: &mut Engine, name: &str, count: u64, arena: Option<ArenaId>) -> (GraphId, Tensor, Tensor) {
    let mut g = GraphBuilder::new(name);
    if let Some(arena) = arena {
        g.share_arena(arena);
    }
    let x = g.input("x", DType::F32, &[count]).expect("a small input");
    let a = g.scale(x, 2.0).expect("shapes fit");
    g.pin(a, BackendIndex(0)).expect("own tensor");
    let y = g.add(a, x).expect("shapes fit");
    let y = g.output("y", y).expect("a free name");
    (engine.add_graph(g), x, y)
}

fn run_triple(engine: &mut Engine, (graph, x, y): (GraphId, Tensor, Tensor), value: f32) {
    let len = usize::try_from(x.shape()[0]).expect("small");
    engine.write(graph, x, &vec![value; len]).expect("an input");
    engine.run(graph).expect("it runs");
    let mut result = vec![0.0_f32; len];
    engine.read(graph, y, &mut result).expect("an output");
    assert!(result.iter().all(|&r| r == value * 3.0), "{} of {value}", result[0]);
}

/// lc#17143, lc#29083: a loop in which nothing changes plans nothing; whatever does change is counted with its reason, and
/// every look at a graph is one reason.
#[test]
fn report_31_a_steady_loop_plans_nothing_and_every_look_has_a_reason() {
    for backends in ["backend cpu", "backend gpu\nbackend cpu", "backend a\nbackend b events async\nbackend cpu"] {
        for seed in 0..20 {
            let (mut engine, log) = engine_on(backends);
            let graph = triple(&mut engine, "g", 8, None);
            let host = Some(engine.host());
            engine.pin(graph.0, graph.2, host).expect("it exists");
            run_triple(&mut engine, graph, 1.0);
            let mut random = Random::new(seed);
            let mut expected: std::collections::BTreeMap<&str, u64> = [("first", 1)].into();
            for i in 0..40 {
                let before = engine.counters();
                let mut changed = true;
                match random.below(8) {
                    0 => {
                        // The same wish once more is a change that the planner looks at.
                        engine.pin(graph.0, graph.2, host).expect("it exists");
                        *expected.entry("graph changed").or_default() += 1;
                    }
                    1 => {
                        engine.create_buffer(&format!("b{i}"), BackendIndex(0), Usage::Any, 64).expect("64 bytes");
                        *expected.entry("shared leaf, buffer or backend changed").or_default() += 1;
                    }
                    2 => {
                        engine.world_mut().resource_mut::<PlanSalt>().0 += 1;
                        *expected.entry("salt changed").or_default() += 1;
                    }
                    _ => changed = false,
                }
                let (allocated, prepared) = (log.count(Call::Allocate), log.count(Call::Prepare));
                run_triple(&mut engine, graph, i as f32);
                let after = engine.counters();
                let looked = (after.planned + after.cached) - (before.planned + before.cached);
                assert_eq!(looked, u64::from(changed), "seed {seed}, step {i}");
                assert_eq!(log.count(Call::Allocate), allocated, "the memory was large enough");
                if !changed || after.cached > before.cached {
                    assert_eq!(log.count(Call::Prepare), prepared, "nothing is prepared again");
                }
                let reasons = after.reasons.iter().filter(|(_, count)| **count > 0);
                let reasons: std::collections::BTreeMap<&str, u64> =
                    reasons.map(|(reason, count)| (reason.name(), *count)).collect();
                assert_eq!(reasons, expected, "seed {seed}, step {i}");
                assert_eq!(after.planned + after.cached, expected.values().sum::<u64>());
            }
        }
    }
}

/// lc#26873, sd#1473: shapes that take turns a hundred times are planned once each, and nothing is allocated after every shape
/// was there once; with memory of their own, or with one for all.
#[test]
fn report_32_alternating_shapes_are_planned_once_each() {
    for lines in ["backend cpu", "backend gpu\nbackend cpu", "backend a\nbackend b\nbackend cpu max_buffer=4K"] {
        for shared in [false, true] {
            for sizes in [&[8, 100][..], &[100, 8], &[1, 2, 3], &[300, 30, 300, 3, 77]] {
                let (mut engine, log) = engine_on(lines);
                let arena = shared.then(|| engine.new_arena());
                let graphs: Vec<_> = sizes
                    .iter()
                    .enumerate()
                    .map(|(i, &size)| triple(&mut engine, &format!("g{i}"), size, arena))
                    .collect();
                for &graph in &graphs {
                    run_triple(&mut engine, graph, 1.0);
                }
                let (counters, allocated) = (engine.counters(), log.count(Call::Allocate));
                let distinct: std::collections::BTreeSet<_> = sizes.iter().collect();
                assert_eq!(counters.planned, distinct.len() as u64, "graphs of one shape share a plan");
                for i in 0..100 {
                    run_triple(&mut engine, graphs[i % graphs.len()], i as f32);
                }
                assert_eq!(engine.counters().planned, counters.planned);
                assert_eq!(engine.counters().cached, counters.cached);
                assert_eq!(log.count(Call::Allocate), allocated, "{lines}, {sizes:?}, shared {shared}");
            }
        }
    }
    // The same when each turn is a graph of its own: the plan is found, though the graph is new.
    let (mut engine, log) = engine_on("backend gpu\nbackend cpu");
    let arena = engine.new_arena();
    let mut allocated = 0;
    for i in 0..100 {
        let graph = triple(&mut engine, "turn", [8, 100][i % 2], Some(arena));
        run_triple(&mut engine, graph, 2.0);
        engine.remove_graph(graph.0);
        if i == 1 {
            allocated = log.count(Call::Allocate);
        }
    }
    assert_eq!((engine.counters().planned, engine.counters().cached), (2, 98));
    assert_eq!(log.count(Call::Allocate), allocated);
}

/// Changes one operand of one node to another earlier tensor of the same description and kind, in the World itself.
fn rewire(run: &mut Run, random: &mut Random) -> bool {
    let world = &run.world;
    let tensors = world.get::<GraphTensors>(run.graph).expect("a graph").0.clone();
    let desc = |t: Entity| {
        (
            *world.get::<ElementType>(t).expect("it has"),
            *world.get::<Shape>(t).expect("it has"),
            *world.get::<Strides>(t).expect("it has"),
        )
    };
    let mut choices = Vec::new();
    for (i, &node) in tensors.iter().enumerate() {
        let op = world.get::<entensor_components::Op>(node).expect("it has");
        // Views and writers are bound to their operand's memory.
        if op.row().view || op.row().writes.is_some() {
            continue;
        }
        for (o, &operand) in world.get::<Sources>(node).expect("it has").0.iter().enumerate() {
            let others = tensors[..i].iter().filter(|&&other| other != operand && desc(other) == desc(operand));
            choices.extend(others.map(|&other| (node, o, other)));
        }
    }
    if choices.is_empty() {
        return false;
    }
    let (node, o, other) = *random.pick(&choices);
    let mut sources = run.world.get::<Sources>(node).expect("it has").clone();
    sources.0[o] = other;
    run.world.entity_mut(node).insert(sources);
    true
}

/// lc#28448: a graph whose edges changed, while all counts, sizes and names stayed, is never run by its old plan: it computes what
/// a fresh world computes of it, and its memory is that of a fresh plan.
#[test]
fn report_34_other_edges_of_the_same_sizes_are_another_plan() {
    let (mut edited, mut differ) = (0, 0);
    for seed in 0..200 {
        let source = case(seed, Limits { scratch: false, nodes: 16 });
        let Ok(mut run) = Run::new(&common::parse("case", &source)) else { continue };
        let Ok(mut last) = run.plan() else { continue };
        let mut random = Random::new(seed);
        for _ in 0..4 {
            if !rewire(&mut run, &mut random) {
                break;
            }
            let outcome = run.plan();
            let captured = GraphText::from_graph(&run.world, run.graph).expect("text made it");
            let text = captured.with_machine(&common::parse("case", &source)).expect("the same names");
            let mut fresh = Run::new(&text).expect("it fitted before");
            match (outcome, fresh.plan()) {
                (Ok(plan), Ok(fresh_plan)) => {
                    assert_eq!(buffer_sizes(&plan), buffer_sizes(&fresh_plan), "seed {seed}\n{text}");
                    assert_eq!(run.results(), fresh.results(), "seed {seed}\n{text}");
                    differ += u32::from(!Arc::ptr_eq(&plan, &last));
                    last = plan;
                }
                (Err(error), Err(fresh)) => {
                    assert_eq!(error, fresh, "seed {seed}\n{text}");
                    break;
                }
                (plan, fresh) => panic!("seed {seed}: {plan:?}, freshly {fresh:?}\n{text}"),
            }
            edited += 1;
        }
    }
    assert!(edited >= 150 && differ >= 100, "{edited} edits, {differ} other plans");
}

/// lc#23422: the n-th call that a plan makes of its backends fails, for every n and every kind of call: an error each time, and
/// a whole plan on the next try.
#[test]
fn report_35_the_nth_call_fails_for_every_n() {
    let mut failed = 0;
    for (name, text) in fixtures() {
        let text = common::parse(&name, &text);
        // Two slots or more fall back to one, which is another report's.
        if text.copies() > 1 || text.tensors().iter().any(|t| t.desc.size_bytes() > 1 << 20) {
            continue;
        }
        let Ok(mut fresh) = Run::new(&text) else { continue };
        let Ok(plan) = fresh.plan() else { continue };
        let expected = fresh.results();
        for call in [Call::Allocate, Call::Prepare] {
            let calls = if call == Call::Allocate { buffer_sizes(&plan).len() as u64 } else { fresh.log.count(call) };
            for n in 0..calls {
                let mut run = Run::new(&text).expect("it fitted before");
                run.log.fail(call, n, BackendError::OutOfMemory { size_bytes: 1 });
                let error = run.plan().expect_err("a call fails");
                match (&error, call) {
                    (PlanError::Allocation { .. }, Call::Allocate) | (PlanError::Prepare { .. }, Call::Prepare) => {}
                    _ => panic!("{name}: {call:?} {n} is reported as {}", error.kind()),
                }
                // Again and again: a failure leaves nothing behind that adds up.
                let (before, again) = (run.log.all_alive_bytes(), run.plan());
                assert_eq!(again.expect_err("it still fails").kind(), error.kind(), "{name}");
                assert!(run.log.all_alive_bytes() <= before.max(plan.planned_bytes()), "{name}");
                run.log.heal();
                let plan = run.plan().unwrap_or_else(|error| panic!("{name}, {call:?} {n}: {error}"));
                assert_eq!(run.log.all_alive_bytes(), plan.planned_bytes(), "{name}");
                assert_eq!(run.results(), expected, "{name}, {call:?} {n}");
                failed += 1;
            }
        }
    }
    assert!(failed >= 60, "{failed} calls failed");
}

/// The same in the midst of a session: memory grows for another graph and fails; whoever had planned memory before still runs, and
/// memory of the user's own is untouched.
#[test]
fn report_35_a_failure_in_the_midst_of_a_session() {
    let mut failed = 0;
    for call in [Call::Allocate, Call::Prepare, Call::Submit] {
        for lines in ["backend cpu", "backend gpu\nbackend cpu", "backend a\nbackend b\nbackend cpu max_buffer=2K"] {
            for n in 0..8 {
                let (mut engine, log) = engine_on(lines);
                let state = engine.state("state", DType::F32, &[4]).expect("16 bytes");
                engine.write_tensor(&state, &[7.0_f32; 4]).expect("own memory");
                let arena = engine.new_arena();
                let graphs = [4, 400, 40].map(|count| triple(&mut engine, &format!("g{count}"), count, Some(arena)));
                run_triple(&mut engine, graphs[0], 1.0);
                log.fail(call, n, BackendError::OutOfMemory { size_bytes: 3 });
                let mut errors = 0;
                for &(graph, x, _) in graphs.iter().cycle().take(9) {
                    let values = vec![1.0_f32; usize::try_from(x.shape()[0]).expect("small")];
                    let outcome = engine.write(graph, x, &values).and_then(|()| engine.run(graph));
                    if let Err(error) = outcome {
                        let kinds = ["Allocation", "Prepare", "Run"];
                        assert!(kinds.contains(&error.kind()), "{call:?} {n}: {error}");
                        errors += 1;
                    }
                }
                assert!(errors > 0 || n > 0, "{call:?} {n} never failed");
                failed += errors;
                log.heal();
                for (i, &graph) in graphs.iter().enumerate() {
                    run_triple(&mut engine, graph, i as f32 + 2.0);
                }
                let mut kept = [0.0_f32; 4];
                engine.read_tensor(&state, &mut kept).expect("own memory");
                assert_eq!(kept, [7.0; 4]);
                for (graph, ..) in graphs {
                    engine.remove_graph(graph);
                }
                engine.world_mut().despawn(arena.0);
                engine.world_mut().resource_mut::<entensor::systems::PlanCache>().clear();
                assert_eq!(log.all_alive_bytes(), 0, "{call:?} {n}: all planned memory came back");
            }
        }
    }
    assert!(failed >= 150, "{failed} calls failed");
}

/// lc#9930: planned memory grows, or goes, while a device still has work on the old: what was submitted finishes on the memory it
/// was given, and its results arrive.
#[test]
fn report_36_memory_grows_while_the_device_still_runs() {
    for grow in [1, 4, 64] {
        for remove in [false, true] {
            for runs in [1, 3] {
                let device = Late::new("late");
                let host: Arc<dyn Backend> = Arc::new(OracleBackend::new("host"));
                let mut engine = Engine::builder()
                    .verify_plans(true)
                    .backend_instance(Arc::clone(&device) as Arc<dyn Backend>)
                    .backend_instance(host)
                    .build()
                    .expect("they start");
                let buffer = engine.create_buffer("kept", BackendIndex(0), Usage::Any, 16).expect("16 bytes");
                let kept = engine.tensor_in("kept", DType::F32, &[4], buffer, 0).expect("it fits");
                let arena = engine.new_arena();
                let mut g = GraphBuilder::new("small");
                g.share_arena(arena);
                let target = g.shared(&kept).expect("one tensor");
                let x = g.input("x", DType::F32, &[4]).expect("a small input");
                g.pin(x, BackendIndex(0)).expect("own tensor");
                let (mut y, mut expected) = (x, 1.0);
                for _ in 0..5 {
                    y = g.scale(y, 3.0).expect("shapes fit");
                    expected *= 3.0;
                }
                let done = g.cpy(y, target).expect("shapes fit");
                g.output("done", done).expect("a free name");
                let small = engine.add_graph(g);
                for run in 1..=runs {
                    engine.write(small, x, &[run as f32; 4]).expect("an input");
                    engine.run_async(small).expect("it is submitted");
                }
                assert!(device.pending() > 0, "the device has not begun");
                // Another graph needs more of the same memory, before anything of the first has run.
                let mut g = GraphBuilder::new("large");
                g.share_arena(arena);
                let big = g.input("big", DType::F32, &[4 * grow]).expect("an input");
                g.pin(big, BackendIndex(0)).expect("own tensor");
                let z = g.scale(big, 2.0).expect("shapes fit");
                let z = g.output("z", z).expect("a free name");
                let large = engine.add_graph(g);
                engine.plan(large).expect("it is planned");
                if remove {
                    engine.remove_graph(small);
                }
                let mut result = [0.0_f32; 4];
                engine.read_tensor(&kept, &mut result).expect("own memory");
                assert_eq!(result, [expected * runs as f32; 4], "grown {grow} times, removed {remove}");
                let values = vec![1.5_f32; usize::try_from(4 * grow).expect("small")];
                engine.write(large, big, &values).expect("an input");
                engine.run(large).expect("it is submitted");
                let mut doubled = vec![0.0_f32; values.len()];
                engine.read(large, z, &mut doubled).expect("an output");
                assert!(doubled.iter().all(|&d| d == 3.0));
                // Handles keep memory alive; nothing was taken from a device that still counts on it.
                println!("buffers given back while in use: {}", device.destroyed_in_use.load(Ordering::Relaxed));
            }
        }
    }
}
