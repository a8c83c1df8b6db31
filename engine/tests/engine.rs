//! The façade as its users meet it: a World of their own, plans that are kept, and misuse that is answered with a typed error.

use std::sync::Arc;

use bevy_ecs::prelude::*;
use entensor::{
    BackendIndex, DType, Engine, EngineError, GraphBuilder, GraphId, Pass, PlanReason, PlanSalt, Tensor, TensorId,
    Usage,
    components::{Backend, Capabilities, MemoryKind},
    systems::GraphStatus,
};
use entensor_oracle::OracleBackend;

fn oracle() -> Engine {
    Engine::builder().backend("oracle").verify_plans(true).build().expect("the oracle starts")
}

/// `relu(w · x)` with shared weights.
fn layer<W: std::borrow::BorrowMut<World>>(
    engine: &mut Engine<W>,
    weights: &TensorId,
    name: &str,
) -> (GraphId, Tensor, Tensor) {
    let mut g = GraphBuilder::new(name);
    let w = g.shared(weights).expect("one shared tensor");
    let x = g.input("x", DType::F32, &[2]).expect("a small input");
    let y = g.mul_mat(w, x).expect("shapes fit");
    let y = g.relu(y).expect("shapes fit");
    let y = g.output("y", y).expect("a free name");
    (engine.add_graph(g), x, y)
}

fn weights<W: std::borrow::BorrowMut<World>>(engine: &mut Engine<W>) -> TensorId {
    engine.weights("w", DType::F32, &[2, 3], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]).expect("six values")
}

fn run<W: std::borrow::BorrowMut<World>>(
    engine: &mut Engine<W>,
    (graph, x, y): (GraphId, Tensor, Tensor),
    values: [f32; 2],
) -> Result<[f32; 3], EngineError> {
    engine.write(graph, x, &values)?;
    engine.run(graph)?;
    let mut result = [0.0; 3];
    engine.read(graph, y, &mut result)?;
    Ok(result)
}

#[test]
fn a_world_of_the_callers_own_runs_graphs_from_a_system() {
    #[derive(Resource)]
    struct Policy((GraphId, Tensor, Tensor));
    #[derive(Resource, Default)]
    struct Answers(Vec<[f32; 3]>);

    let mut world = World::new();
    let mut engine = Engine::builder().backend("oracle").build_in(&mut world).expect("the oracle starts");
    let w = weights(&mut engine);
    let policy = layer(&mut engine, &w, "policy");
    world.insert_resource(Policy(policy));
    world.init_resource::<Answers>();
    let mut schedule = Schedule::default();
    schedule.add_systems(|world: &mut World| {
        let policy = world.resource::<Policy>().0;
        let answer = run(&mut Engine::over(world), policy, [3.0, -4.0]).expect("the policy runs");
        world.resource_mut::<Answers>().0.push(answer);
    });
    schedule.run(&mut world);
    schedule.run(&mut world);
    assert_eq!(world.resource::<Answers>().0, [[3.0, 0.0, 0.0]; 2]);
}

#[test]
fn a_world_without_an_engine_is_an_error() {
    let mut world = World::new();
    let graph = Engine::over(&mut world).add_graph(GraphBuilder::new("g"));
    let error = Engine::over(&mut world).run(graph).expect_err("nothing was installed");
    assert_eq!(error, EngineError::NotInstalled);
}

/// REPORTS 10, 31: a steady loop never plans again, and every look at a graph has a reason.
#[test]
fn plans_are_made_once_and_every_replan_has_a_reason() {
    let mut engine = oracle();
    let w = weights(&mut engine);
    let policy = layer(&mut engine, &w, "policy");
    for i in 0..10 {
        let value = [i as f32, 1.0];
        assert_eq!(run(&mut engine, policy, value), Ok([value[0], 1.0, value[0] + 1.0]));
    }
    let counters = engine.counters();
    assert_eq!((counters.planned, counters.unchanged), (1, 10));
    assert_eq!(counters.reasons.get(&PlanReason::First), Some(&1));

    engine.pin(policy.0, policy.2, Some(BackendIndex(0))).expect("the tensor exists");
    run(&mut engine, policy, [1.0, 2.0]).expect("still runs");
    assert_eq!(engine.counters().reasons.get(&PlanReason::Graph), Some(&1));
    engine.create_buffer("other", BackendIndex(0), Usage::Any, 64).expect("64 bytes");
    run(&mut engine, policy, [1.0, 2.0]).expect("still runs");
    assert_eq!(engine.counters().reasons.get(&PlanReason::Shared), Some(&1));
    engine.world_mut().insert_resource(PlanSalt(7));
    run(&mut engine, policy, [1.0, 2.0]).expect("still runs");
    assert_eq!(engine.counters().reasons.get(&PlanReason::Salt), Some(&1));
    // A pin and a salt are baked into plans; an unrelated buffer is not.
    assert_eq!((engine.counters().planned, engine.counters().cached), (3, 1));
}

/// REPORTS 32: alternating shapes are two plans, and nothing is allocated after the first round.
#[test]
fn graphs_that_are_alike_share_a_plan_and_shapes_alternate_freely() {
    let mut engine = oracle();
    let w = weights(&mut engine);
    let graphs = [layer(&mut engine, &w, "a"), layer(&mut engine, &w, "b")];
    for graph in graphs {
        assert_eq!(run(&mut engine, graph, [1.0, 2.0]), Ok([1.0, 2.0, 3.0]));
    }
    assert_eq!((engine.counters().planned, engine.counters().cached), (1, 1));
    let before = engine.counters();
    for i in 0..100 {
        run(&mut engine, graphs[i % 2], [1.0, 2.0]).expect("both run");
    }
    let after = engine.counters();
    assert_eq!((after.planned, after.cached), (before.planned, before.cached));
}

#[test]
fn graphs_that_share_an_arena_take_turns() {
    let mut engine = oracle();
    let w = weights(&mut engine);
    let arena = engine.new_arena();
    let mut make = |name: &str| {
        let mut g = GraphBuilder::new(name);
        g.share_arena(arena);
        let w = g.shared(&w).expect("one shared tensor");
        let x = g.input("x", DType::F32, &[2]).expect("a small input");
        let y = g.mul_mat(w, x).expect("shapes fit");
        let y = g.output("y", y).expect("a free name");
        (engine.add_graph(g), x, y)
    };
    let (a, b) = (make("a"), make("b"));
    assert_eq!(run(&mut engine, a, [1.0, 2.0]), Ok([1.0, 2.0, 3.0]));
    engine.write(b.0, b.1, &[5.0_f32, 6.0]).expect("an input");
    let mut result = [0.0_f32; 3];
    let gone = engine.read(a.0, a.2, &mut result).expect_err("b took the arena");
    assert!(matches!(gone, EngineError::OutputGone { .. }), "{gone}");
    let unwritten = engine.run(a.0).expect_err("a's input is gone too");
    assert!(matches!(unwritten, EngineError::InputNotWritten { .. }), "{unwritten}");
    assert_eq!(run(&mut engine, b, [5.0, 6.0]), Ok([5.0, 6.0, 11.0]));
}

#[test]
fn misuse_is_answered_with_what_to_do() {
    let mut engine = oracle();
    let w = weights(&mut engine);
    let (graph, x, y) = layer(&mut engine, &w, "policy");
    let unwritten = engine.run(graph).expect_err("x was not written");
    assert!(matches!(&unwritten, EngineError::InputNotWritten { tensor, .. } if **tensor == *"x"), "{unwritten}");
    let early = engine.read(graph, y, &mut [0.0_f32; 3]).expect_err("nothing ran");
    assert!(matches!(early, EngineError::OutputGone { .. }), "{early}");
    assert!(matches!(engine.write(graph, x, &[1_i32, 2]), Err(EngineError::WrongDType { .. })));
    assert!(matches!(engine.write(graph, x, &[1.0_f32]), Err(EngineError::WrongLength { expected: 2, given: 1, .. })));
    assert!(matches!(engine.write(graph, y, &[1.0_f32; 3]), Err(EngineError::NotWritable { .. })));
    engine.write(graph, x, &[1.0_f32, 2.0]).expect("an input");
    engine.run(graph).expect("runs");
    let hidden = engine.entity(graph, y).is_ok();
    assert!(hidden);

    let mut other = GraphBuilder::new("other");
    assert!(other.relu(x).is_err(), "a tensor of another builder");
    let z = other.input("z", DType::F32, &[2]).expect("a small input");
    assert!(other.input("z", DType::F32, &[2]).is_err(), "a name that is taken");
    assert!(other.input("huge", DType::F32, &[1 << 40, 1 << 40]).is_err(), "a size that overflows");
    assert!(other.input("deep", DType::F32, &[1; 5]).is_err(), "five axes");
    assert!(other.name("x", z).is_ok());
    assert!(engine.weights("w2", DType::Q4_1, &[33], &[0.0; 33]).is_err(), "no whole block");
    assert!(engine.weights("w3", DType::F32, &[4], &[0.0; 3]).is_err(), "too few values");
    assert!(engine.backend_index("gpu").is_err());
}

/// REPORTS 7, 35 in small: a graph that cannot be planned leaves the engine usable, and is planned when the cause is gone.
#[test]
fn a_failed_plan_leaves_everything_usable() {
    let mut engine = oracle();
    let w = weights(&mut engine);
    let (graph, x, y) = layer(&mut engine, &w, "policy");
    engine.pin(graph, y, Some(BackendIndex(9))).expect("wishes are checked when planning");
    let error = run(&mut engine, (graph, x, y), [1.0, 2.0]).expect_err("there is no backend 9");
    assert_eq!(error.kind(), "PinUnknown");
    let status = |engine: &Engine, graph: GraphId| engine.world().get::<GraphStatus>(graph.0).cloned();
    assert!(matches!(status(&engine, graph), Some(GraphStatus::Failed { pass: Pass::Assign, .. })));
    let other = layer(&mut engine, &w, "other");
    assert!(run(&mut engine, other, [1.0, 2.0]).is_ok());
    assert_eq!(status(&engine, other.0), Some(GraphStatus::Planned));
    engine.pin(graph, y, None).expect("the tensor exists");
    assert_eq!(run(&mut engine, (graph, x, y), [1.0, 2.0]), Ok([1.0, 2.0, 3.0]));
    assert_eq!(status(&engine, graph), Some(GraphStatus::Planned));
}

#[test]
fn despawned_tensors_and_graphs_are_errors() {
    let mut engine = oracle();
    let w = weights(&mut engine);
    let policy = layer(&mut engine, &w, "policy");
    run(&mut engine, policy, [1.0, 2.0]).expect("runs");
    let entity = engine.entity(policy.0, policy.2).expect("exists");
    engine.world_mut().despawn(entity);
    let error = engine.run(policy.0).expect_err("a tensor is gone");
    assert_eq!(error.kind(), "MissingTensor");
    let policy = layer(&mut engine, &w, "policy");
    run(&mut engine, policy, [1.0, 2.0]).expect("runs");
    engine.world_mut().despawn(w.entity);
    let error = engine.run(policy.0).expect_err("the weights are gone");
    assert!(matches!(error.kind(), "MissingSource" | "MissingTensor"), "{error}");
    engine.remove_graph(policy.0);
    engine.remove_graph(policy.0);
    assert_eq!(engine.run(policy.0), Err(EngineError::UnknownGraph));
}

/// Entities edited by hand are checked before a backend sees them.
#[test]
fn a_description_that_its_op_does_not_make_is_refused() {
    let mut engine = oracle();
    let w = weights(&mut engine);
    let policy = layer(&mut engine, &w, "policy");
    let entity = engine.entity(policy.0, policy.2).expect("exists");
    engine.world_mut().entity_mut(entity).insert(entensor::Shape([30, 1, 1, 1]));
    let error = run(&mut engine, policy, [1.0, 2.0]).expect_err("30 is not 3");
    assert_eq!(error.kind(), "Inconsistent");
}

fn device(name: &str) -> Arc<dyn Backend> {
    let memory = MemoryKind(name.into());
    let reads = vec![memory.clone()];
    let capabilities = Capabilities { memory, reads, buffer_type: name.into(), ..Capabilities::host() };
    Arc::new(OracleBackend::with_capabilities(name, capabilities))
}

#[test]
fn a_graph_over_two_memories_gives_the_same_result() {
    let build = |backends: Vec<Arc<dyn Backend>>, pin: Option<BackendIndex>, copies: u32| {
        let mut builder = Engine::builder().verify_plans(true);
        for backend in backends {
            builder = builder.backend_instance(backend);
        }
        let mut engine = builder.build().expect("oracles start");
        let w = weights(&mut engine);
        let mut g = GraphBuilder::new("two");
        g.pipeline_copies(copies);
        let w = g.shared(&w).expect("one shared tensor");
        let x = g.input("x", DType::F32, &[2]).expect("a small input");
        let y = g.mul_mat(w, x).expect("shapes fit");
        let z = g.silu(y).expect("shapes fit");
        if let Some(pin) = pin {
            g.pin(z, pin).expect("own tensor");
        }
        let z = g.add(z, y).expect("shapes fit");
        let z = g.output("z", z).expect("a free name");
        let graph = engine.add_graph(g);
        let mut results = Vec::new();
        for i in 0..5_u8 {
            results.push(run(&mut engine, (graph, x, z), [f32::from(i), 2.0]).expect("runs"));
        }
        (results, engine.plan_of(graph).expect("planned").splits.len())
    };
    let host = || -> Arc<dyn Backend> { Arc::new(OracleBackend::new("host")) };
    let (alone, splits) = build(vec![host()], None, 1);
    assert_eq!(splits, 1);
    for copies in [1, 2, 4] {
        let (both, splits) = build(vec![device("device0"), host()], Some(BackendIndex(0)), copies);
        assert!(splits > 1);
        assert_eq!(both, alone, "copies {copies}");
    }
}
