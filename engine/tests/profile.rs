//! Times as data: what is counted, when, and that nothing else changes.
#![cfg(feature = "cpu")]

use std::time::{Duration, Instant};

use entensor::{DType, Engine, GraphBuilder, GraphId, Pass, PlanSalt, ProfileConfig, RunLimit, RunProgress, Tensor};

/// Everything is timed in every run.
fn in_parts() -> ProfileConfig {
    ProfileConfig { short_run: Duration::ZERO, ..ProfileConfig::default() }
}

fn engine(backend: &str) -> Engine {
    Engine::builder().backend(backend).build().expect("the backend starts")
}

/// Two products of one shape and one of another, with something between them.
fn layers(engine: &mut Engine, name: &str, rows: u64) -> (GraphId, Tensor, Tensor) {
    let (graph, inputs, y) = unwritten(engine, name, rows);
    write(engine, graph, inputs, rows);
    (graph, inputs[0], y)
}

/// The same without values, and its inputs.
fn unwritten(engine: &mut Engine, name: &str, rows: u64) -> (GraphId, [Tensor; 3], Tensor) {
    let mut g = GraphBuilder::new(name);
    let x = g.input("x", DType::F32, &[64, rows]).expect("an input");
    // Of f32 they would be one step.
    let w = g.input("w", DType::F16, &[64, 64]).expect("an input");
    let v = g.input("v", DType::F16, &[64, 8]).expect("an input");
    let a = g.mul_mat(w, x).expect("shapes fit");
    let b = g.silu(a).expect("shapes fit");
    let c = g.mul_mat(w, b).expect("shapes fit");
    let d = g.mul_mat(v, c).expect("shapes fit");
    let y = g.output("y", d).expect("a node");
    (engine.add_graph(g), [x, w, v], y)
}

fn write(engine: &mut Engine, graph: GraphId, [x, w, v]: [Tensor; 3], rows: u64) {
    let values = |n: u64| (0..n).map(|i| (i % 7) as f32 / 7.0 - 0.4).collect::<Vec<f32>>();
    engine.write(graph, x, &values(64 * rows)).expect("it fits");
    for (tensor, count) in [(w, 64 * 64), (v, 64 * 8)] {
        let halves: Vec<half::f16> = values(count).into_iter().map(half::f16::from_f32).collect();
        engine.write(graph, tensor, &halves).expect("it fits");
    }
}

fn result(engine: &Engine, graph: GraphId, y: Tensor, rows: u64) -> Vec<u32> {
    let mut values = vec![0.0_f32; usize::try_from(8 * rows).expect("small")];
    engine.read(graph, y, &mut values).expect("it ran");
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn every_part_is_counted_and_results_stay_the_same() {
    // Alone, so that no helper takes all of a step before the caller comes to it.
    let mut engine = engine("cpu:threads=1");
    let (graph, _, y) = layers(&mut engine, "layers", 300);
    engine.run(graph).expect("it runs");
    let plain = result(&engine, graph, y, 300);
    assert!(engine.profile_of(graph).is_none(), "nobody asked");

    engine.set_profile(Some(in_parts()));
    for _ in 0..5 {
        engine.run(graph).expect("it runs");
        assert_eq!(result(&engine, graph, y, 300), plain);
    }
    let profile = engine.profile_of(graph).expect("it ran");
    assert_eq!((&*profile.name, profile.runs.count, profile.splits.len()), ("layers", 5, 1));
    let split = &profile.splits[0];
    assert_eq!((&*split.backend, split.nodes, split.figures.count), ("cpu", 4, 5));
    let nodes: u64 = profile.ops.iter().map(|op| op.nodes).sum();
    assert_eq!((nodes, profile.nodes.len()), (4, 4));
    let products = profile.ops.iter().find(|op| op.text.contains("f32 [64,300] of f16 [64,64], f32 [64,300]"));
    let products = products.unwrap_or_else(|| panic!("{:?}", profile.ops));
    assert_eq!(products.nodes, 2, "two nodes compute the same");
    // Parts are parts: all steps together are no longer than their split, and that no longer than the run.
    let of_ops: u64 = profile.ops.iter().map(|op| op.figures.total_ns).sum();
    let of_nodes: u64 = profile.nodes.iter().map(|node| node.total_ns).sum();
    assert_eq!(of_ops, of_nodes);
    assert!(of_ops > 0 && of_ops <= split.figures.total_ns && split.figures.total_ns <= profile.runs.total_ns);
    assert!(products.figures.count == 10 && products.figures.p50_ns <= products.figures.p99_ns);
    assert!(products.figures.p99_ns <= products.figures.max_ns);
    let resource = engine.profile().expect("it is on");
    assert_eq!(resource.pass(Pass::Compute).count, 5);
    assert_eq!(resource.pass(Pass::Split).count, 0, "nothing was planned since");
    assert_eq!(resource.graphs().len(), 1);

    engine.reset_profile();
    let profile = engine.profile_of(graph).expect("it is kept");
    assert_eq!((profile.runs.count, profile.splits[0].figures.count, profile.nodes[0].count), (0, 0, 0));
    assert_eq!(engine.profile().expect("it is on").pass(Pass::Compute).count, 0);
    engine.run(graph).expect("it runs");
    assert_eq!(engine.profile_of(graph).expect("it ran").runs.count, 1);

    engine.set_profile(None);
    engine.run(graph).expect("it runs");
    assert!(engine.profile().is_none() && engine.profile_of(graph).is_none());
    assert_eq!(result(&engine, graph, y, 300), plain);
}

#[test]
fn short_graphs_are_timed_in_parts_every_nth_run() {
    let mut engine = engine("cpu:threads=2");
    let (graph, ..) = layers(&mut engine, "layers", 1);
    // Whatever this machine is busy with, no run is long.
    let config = ProfileConfig { short_run: Duration::from_secs(3600), every: 10, ..ProfileConfig::default() };
    engine.set_profile(Some(config));
    for _ in 0..41 {
        engine.run(graph).expect("it runs");
    }
    let profile = engine.profile_of(graph).expect("it ran");
    assert_eq!((profile.runs.count, profile.splits[0].figures.count), (41, 5));
    assert_eq!(engine.profile().expect("it is on").config(), config);
    // No number of runs is no reason to divide by it.
    engine.set_profile(Some(ProfileConfig { every: 0, graphs: 0, ..config }));
    engine.run(graph).expect("it runs");
    assert_eq!(engine.profile_of(graph).expect("it ran").splits[0].figures.count, 1);
}

#[test]
fn a_run_in_slices_is_one_run_and_its_split_the_sum_of_its_pieces() {
    let mut engine = engine("cpu:threads=2");
    let (graph, _, y) = layers(&mut engine, "layers", 700);
    engine.run(graph).expect("it runs");
    let plain = result(&engine, graph, y, 700);
    engine.set_profile(Some(in_parts()));
    let mut calls = 1;
    loop {
        let limit = RunLimit { deadline: Some(Instant::now()), cancel: None };
        if engine.run_until(graph, &limit).expect("it runs") == RunProgress::Done {
            break;
        }
        calls += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(result(&engine, graph, y, 700), plain);
    assert!(calls > 2, "a call without time does one chunk");
    let profile = engine.profile_of(graph).expect("it ran");
    assert_eq!((profile.runs.count, profile.splits[0].figures.count), (1, 1));
    let slept = Duration::from_millis(calls - 1).as_nanos();
    assert!(u128::from(profile.runs.max_ns) >= slept, "pauses count for the run");
    assert!(profile.splits[0].figures.max_ns + u64::try_from(slept).expect("short") <= profile.runs.max_ns);
}

#[test]
fn graphs_that_ran_longest_ago_go_first_and_another_plan_begins_anew() {
    let mut engine = engine("cpu:threads=2");
    engine.set_profile(Some(ProfileConfig { graphs: 2, ..in_parts() }));
    let (first, inputs, _) = unwritten(&mut engine, "1", 1);
    write(&mut engine, first, inputs, 1);
    let others = (2..=3).map(|rows| layers(&mut engine, &format!("{rows}"), rows).0);
    let graphs: Vec<GraphId> = [first].into_iter().chain(others.collect::<Vec<_>>()).collect();
    for at in [0, 1, 0, 2] {
        engine.run(graphs[at]).expect("it runs");
    }
    let kept: Vec<String> =
        engine.profile().expect("it is on").graphs().iter().map(|graph| graph.name.to_string()).collect();
    assert_eq!(kept, ["1", "3"]);
    assert_eq!(engine.profile_of(graphs[0]).expect("kept").runs.count, 2);

    engine.world_mut().insert_resource(PlanSalt(7));
    engine.plan(graphs[0]).expect("it can be planned");
    assert_eq!(engine.profile_of(graphs[0]).expect("kept").runs.count, 2, "the new plan has not run yet");
    write(&mut engine, first, inputs, 1);
    engine.run(graphs[0]).expect("it runs");
    assert_eq!(engine.profile_of(graphs[0]).expect("kept").runs.count, 1);
}

#[test]
fn runs_that_fail_are_not_counted() {
    let mut engine = engine("cpu:threads=2");
    let mut g = GraphBuilder::new("rows");
    let table = g.input("table", DType::F32, &[4, 3]).expect("an input");
    let ids = g.input("ids", DType::I32, &[2]).expect("an input");
    let rows = g.get_rows(table, ids).expect("shapes fit");
    g.output("rows", rows).expect("a node");
    let graph = engine.add_graph(g);
    engine.set_profile(Some(in_parts()));
    engine.write(graph, table, &[0.0_f32; 12]).expect("it fits");
    engine.write(graph, ids, &[0_i32, 7]).expect("it fits");
    engine.run(graph).expect_err("there is no row 7");
    assert_eq!(engine.profile_of(graph).expect("it began").runs.count, 0);
    engine.write(graph, ids, &[0_i32, 2]).expect("it fits");
    engine.run(graph).expect("rows exist");
    let profile = engine.profile_of(graph).expect("it ran");
    assert_eq!((profile.runs.count, profile.splits[0].figures.count), (1, 1));
}
