//! Entities that go away: before a graph is planned, between two passes, and between the steps of a session.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use bevy_ecs::{prelude::*, schedule::ScheduleConfigs, system::ScheduleSystem};
use entensor::{DType, Engine, EngineError, GraphBuilder, GraphId, Tensor};
use entensor_components::{BackendHandle, BufferMemory, GraphTensors, SplitOf, TensorName};
use entensor_systems::{
    Arena, GraphPlan, PlanSchedule, PlanStatus, PlanSystems, Recording, add_plan_systems, plan_schedule, run_plan,
};

use super::{BASE, Planned, outcome, spawn, tensor};

/// Who is despawned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Leaf,
    Weight,
    Source,
    View,
    Output,
    Graph,
    Buffers,
    Backends,
    Tensors,
    Arenas,
    Published,
    Everything,
}

const VICTIMS: [Victim; 12] = [
    Victim::Leaf,
    Victim::Weight,
    Victim::Source,
    Victim::View,
    Victim::Output,
    Victim::Graph,
    Victim::Buffers,
    Victim::Backends,
    Victim::Tensors,
    Victim::Arenas,
    Victim::Published,
    Victim::Everything,
];

fn all<F: bevy_ecs::query::QueryFilter>(world: &mut World) -> Vec<Entity> {
    world.query_filtered::<Entity, F>().iter(world).collect()
}

fn named(world: &mut World, name: &str) -> Vec<Entity> {
    let mut query = world.query::<(Entity, &TensorName)>();
    query.iter(world).filter(|(_, n)| &*n.0 == name).map(|(entity, _)| entity).collect()
}

fn despawn(world: &mut World, victim: Victim) {
    let doomed = match victim {
        Victim::Leaf => named(world, "x"),
        Victim::Weight => named(world, "w"),
        Victim::Source => named(world, "h"),
        Victim::View => named(world, "v"),
        Victim::Output => named(world, "y"),
        Victim::Graph => all::<With<GraphTensors>>(world),
        Victim::Buffers => all::<With<BufferMemory>>(world),
        Victim::Backends => all::<With<BackendHandle>>(world),
        Victim::Tensors => all::<With<TensorName>>(world),
        Victim::Arenas => all::<With<Arena>>(world),
        Victim::Published => all::<With<SplitOf>>(world),
        Victim::Everything => all::<
            Or<(
                With<TensorName>,
                With<GraphTensors>,
                With<BufferMemory>,
                With<BackendHandle>,
                With<Arena>,
                With<SplitOf>,
            )>,
        >(world),
    };
    for entity in doomed {
        world.despawn(entity);
    }
}

/// What is despawned before a graph is planned is named, or was not needed; a plan is proved.
#[test]
fn despawned_before_planning() {
    for planned_before in [false, true] {
        for victim in VICTIMS {
            let mut planned = spawn(BASE);
            if planned_before {
                outcome(&mut planned).expect("it is good");
            }
            despawn(&mut planned.world, victim);
            let result = outcome(&mut planned);
            let (kind, words): (&str, &[&str]) = match victim {
                Victim::Leaf => ("MissingTensor", &["tensor 2", "build the graph again"]),
                Victim::Weight => ("MissingTensor", &["tensor 1"]),
                Victim::Source => ("MissingTensor", &["tensor 4"]),
                Victim::View => ("MissingTensor", &["tensor 5"]),
                Victim::Output => ("MissingTensor", &["tensor 9"]),
                Victim::Tensors => ("MissingTensor", &["tensor 0"]),
                Victim::Graph | Victim::Everything => ("UnknownGraph", &["does not exist", "add it again"]),
                Victim::Buffers => ("MissingBuffer", &["`cache`", "load it again"]),
                // Backends are a resource, arenas are made anew, and splits are only shown.
                Victim::Backends | Victim::Arenas | Victim::Published => {
                    assert!(result.is_ok(), "{victim:?}");
                    continue;
                }
            };
            let error = result.expect_err("something is missing");
            assert_eq!(error.kind(), kind, "{victim:?}: {error}");
            assert!(words.iter().all(|word| error.to_string().contains(word)), "{victim:?}: {error}");
        }
    }
    // What a graph does not need may go, unless it stands in the graph's own list.
    let mut planned = spawn(&format!("{}\n", BASE.replace("run y,r,set", "run y")));
    let view = tensor(&planned, "r");
    planned.world.despawn(view);
    let error = outcome(&mut planned).expect_err("the list names it");
    assert_eq!(error.kind(), "MissingTensor");
    let mut tensors = planned.world.get::<GraphTensors>(planned.graph).expect("a graph").clone();
    tensors.0.retain(|&t| t != view);
    planned.world.entity_mut(planned.graph).insert(tensors);
    outcome(&mut planned).expect("the list is right again");
}

/// Places between the passes where a user's system may stand.
const GAPS: usize = 7;

fn in_gap(gap: usize, system: impl Fn(&mut World) + Send + Sync + 'static) -> ScheduleConfigs<ScheduleSystem> {
    let system = move |world: &mut World| system(world);
    match gap {
        0 => system.before(PlanSystems::Assign),
        1 => system.after(PlanSystems::Assign).before(PlanSystems::Expand),
        2 => system.after(PlanSystems::Expand).before(PlanSystems::Upgrade),
        3 => system.after(PlanSystems::Upgrade).before(PlanSystems::Split),
        4 => system.after(PlanSystems::Split).before(PlanSystems::Allocate),
        5 => system.after(PlanSystems::Allocate).before(PlanSystems::Compute),
        _ => system.after(PlanSystems::Compute),
    }
}

/// A user's system despawns between two passes: an error or a plan, and the next graph of the world plans.
#[test]
fn despawned_between_two_passes() {
    let mut failed = 0;
    for gap in 0..GAPS {
        for victim in VICTIMS {
            for recording in [Recording::Off, Recording::On] {
                let mut planned = spawn(BASE);
                let armed = Arc::new(AtomicBool::new(true));
                let trigger = Arc::clone(&armed);
                let mut schedule = plan_schedule(recording);
                schedule.add_systems(in_gap(gap, move |world| {
                    if trigger.swap(false, Ordering::Relaxed) {
                        despawn(world, victim);
                    }
                }));
                planned.schedule = schedule;
                planned.plan();
                assert!(!armed.load(Ordering::Relaxed), "the system ran");
                match planned.world.resource::<PlanStatus>().clone() {
                    PlanStatus::Ready => {
                        // Gone after the plan was made, or nothing that a plan needs.
                        let harmless = matches!(victim, Victim::Backends | Victim::Arenas | Victim::Published);
                        let late = gap >= 5;
                        let kept = matches!(victim, Victim::Buffers) && gap > 0;
                        assert!(harmless || late || kept, "gap {gap}, {victim:?}: a plan of what is gone");
                    }
                    PlanStatus::Failed { error, .. } => {
                        assert!(error.to_string().len() > 20, "{error}");
                        failed += 1;
                    }
                    status => panic!("gap {gap}, {victim:?}: {status:?}"),
                }
                // Another graph of the same world is none the worse.
                let graph = super::common::parse("next", BASE).spawn(&mut planned.world).expect("it fits");
                let mut next = Planned { world: planned.world, graph, schedule: planned.schedule };
                outcome(&mut next).unwrap_or_else(|error| panic!("gap {gap}, {victim:?}: {error}"));
            }
        }
    }
    assert!(failed >= 60, "{failed} failures");
}

/// The graph of a session, made with the engine.
fn session(engine: &mut Engine) -> (GraphId, Tensor, Tensor) {
    let w = engine.weights("w", DType::F32, &[2, 2], &[1.0, 0.0, 0.0, 1.0]).expect("four values");
    let mut g = GraphBuilder::new("session");
    let w = g.shared(&w).expect("one tensor");
    let x = g.input("x", DType::F32, &[2, 2]).expect("a small input");
    let h = g.mul_mat(w, x).expect("shapes fit");
    let h = g.name("h", h).expect("a free name");
    let v = g.transpose(h).expect("shapes fit");
    let v = g.name("v", v).expect("a free name");
    let c = g.cont(v).expect("shapes fit");
    let y = g.add(c, h).expect("shapes fit");
    let y = g.output("y", y).expect("a free name");
    (engine.add_graph(g), x, y)
}

/// The steps of a session, each with its result.
fn step(engine: &mut Engine, (graph, x, y): (GraphId, Tensor, Tensor), step: usize) -> Result<(), EngineError> {
    match step {
        0 => engine.plan(graph).map(drop),
        1 => engine.write(graph, x, &[1.0_f32, 2.0, 3.0, 4.0]),
        2 => engine.run(graph),
        3 => engine.explain(graph).map(drop),
        _ => {
            let mut result = [0.0_f32; 4];
            engine.read(graph, y, &mut result)?;
            assert_eq!(result, [2.0, 5.0, 5.0, 8.0], "results are right or there is an error");
            Ok(())
        }
    }
}

fn engine() -> Engine {
    Engine::builder().backend("oracle").verify_plans(true).build().expect("the oracle starts")
}

/// Entities go between the steps of a session: every later step is right or an error with words, and a new session works.
#[test]
fn despawned_between_the_steps_of_a_session() {
    let mut errors = std::collections::BTreeMap::<&str, u32>::new();
    for victim in VICTIMS {
        for at in 0..=5 {
            let mut engine = engine();
            let graph = session(&mut engine);
            for i in 0..10 {
                if i == at {
                    despawn(engine.world_mut(), victim);
                }
                let result = step(&mut engine, graph, i % 5);
                if i < at {
                    assert_eq!(result, Ok(()), "{victim:?} has not happened yet");
                } else if let Err(error) = result {
                    assert!(error.to_string().len() > 20, "{error}");
                    *errors.entry(error.kind()).or_default() += 1;
                }
            }
            engine.remove_graph(graph.0);
            let next = session(&mut engine);
            for i in 0..5 {
                step(&mut engine, next, i)
                    .unwrap_or_else(|error| panic!("{victim:?} at {at}, step {i} of the next: {error}"));
            }
        }
    }
    println!("{errors:?}");
    assert!(errors.len() >= 5, "{errors:?}");
}

/// A user's system in the engine's own schedule despawns in the n-th run of it, between the passes and before `compute`.
#[test]
fn despawned_by_a_system_in_the_engines_schedule() {
    for victim in VICTIMS {
        for gap in 0..GAPS {
            for nth in 1..=4 {
                let mut engine = engine();
                let count = Arc::new(AtomicUsize::new(0));
                let mut schedule = Schedule::new(PlanSchedule);
                schedule.set_executor(bevy_ecs::schedule::SingleThreadedExecutor::new());
                add_plan_systems(&mut schedule, Recording::Off);
                schedule.add_systems(in_gap(gap, move |world| {
                    if count.fetch_add(1, Ordering::Relaxed) + 1 == nth {
                        despawn(world, victim);
                    }
                }));
                engine.world_mut().add_schedule(schedule);
                let graph = session(&mut engine);
                for i in 0..15 {
                    if let Err(error) = step(&mut engine, graph, i % 5) {
                        assert!(error.to_string().len() > 20, "{error}");
                    }
                }
                engine.remove_graph(graph.0);
                let next = session(&mut engine);
                for i in 0..5 {
                    step(&mut engine, next, i).unwrap_or_else(|error| {
                        panic!("{victim:?}, gap {gap}, run {nth}, step {i} of the next: {error}")
                    });
                }
            }
        }
    }
}

/// A plan outlives the World's entities: what holds it keeps its backends and memory.
#[test]
fn a_plan_that_somebody_holds_survives_everything() {
    let mut engine = engine();
    let (graph, x, _) = session(&mut engine);
    engine.write(graph, x, &[1.0_f32, 2.0, 3.0, 4.0]).expect("an input");
    let planned = engine.world().get::<GraphPlan>(graph.0).expect("it is planned");
    let (plan, binding) = (Arc::clone(&planned.plan), planned.binding.clone());
    despawn(engine.world_mut(), Victim::Everything);
    run_plan(&plan, &binding, 0).expect("it holds what it needs");
    drop(engine);
    run_plan(&plan, &binding, 0).expect("without a World too");
    let error = run_plan(&plan, &binding[..1], 0).expect_err("too few memories");
    assert_eq!(error.kind(), "Unbound");
}
