//! What a plan shows in the world: entities of splits and copies, for whoever looks.

use std::sync::Arc;

use bevy_ecs::prelude::*;
use entensor::{
    BackendIndex, DType, Engine, GraphBuilder,
    components::{Backend, Capabilities, CopyOf, Generation, MemoryKind, SplitOf, TensorCopies},
};
use entensor_oracle::OracleBackend;

fn engine() -> Engine {
    let memory = MemoryKind("device0".into());
    let capabilities =
        Capabilities { reads: vec![memory.clone()], memory, buffer_type: "device0".into(), ..Capabilities::host() };
    let device: Arc<dyn Backend> = Arc::new(OracleBackend::with_capabilities("device", capabilities));
    let host: Arc<dyn Backend> = Arc::new(OracleBackend::new("host"));
    Engine::builder().backend_instance(device).backend_instance(host).build().expect("the host is always there")
}

/// Splits and copies in the world.
fn shown(engine: &mut Engine) -> (usize, usize) {
    let world = engine.world_mut();
    (world.query::<&SplitOf>().iter(world).count(), world.query::<&CopyOf>().iter(world).count())
}

#[test]
fn splits_and_copies_are_shown_when_a_plan_runs_or_somebody_asks() {
    let mut engine = engine();
    let w = engine.weights("w", DType::F32, &[4], &[1.0; 4]).expect("four values");
    let mut g = GraphBuilder::new("g");
    let shared = g.shared(&w).expect("one tensor");
    let h = g.scale(shared, 2.0).expect("fits");
    g.pin(h, BackendIndex(0)).expect("own tensor");
    let y = g.relu(h).expect("fits");
    g.pin(y, BackendIndex(1)).expect("own tensor");
    g.output("y", y).expect("a new name");
    let graph = engine.add_graph(g);
    engine.plan(graph).expect("legal");
    assert_eq!(shown(&mut engine), (0, 0), "planning spawns nothing");
    engine.show_plan(graph).expect("planned");
    assert_eq!(shown(&mut engine), (2, 2));
    assert_eq!(engine.world().get::<TensorCopies>(w.entity).map(|copies| copies.0.len()), Some(1));
    assert!(!engine.plan(graph).expect("legal"), "what was shown is no change of the graph");
    engine.run(graph).expect("runs");
    assert_eq!(shown(&mut engine), (2, 2), "a run shows what is not shown yet");

    // A plan that shows something else takes the old entities away at once, and shows its own when it runs.
    engine.pin(graph, h, Some(BackendIndex(1))).expect("own tensor");
    engine.plan(graph).expect("legal");
    assert_eq!(shown(&mut engine), (0, 0));
    assert_eq!(engine.world().get::<TensorCopies>(w.entity).map(|copies| copies.0.len()), Some(0));
    engine.run(graph).expect("runs");
    assert_eq!(shown(&mut engine), (1, 0));
    engine.remove_graph(graph);
    assert_eq!(shown(&mut engine), (0, 0));
}

/// Whoever hears of a split may edit the graph: that is a change of the graph, although the plan is just being shown.
#[test]
fn what_observers_change_while_a_plan_is_shown_is_a_change() {
    let mut engine = engine();
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, &[4]).expect("a small input");
    let h = g.scale(x, 2.0).expect("fits");
    g.pin(h, BackendIndex(0)).expect("own tensor");
    let y = g.relu(h).expect("fits");
    g.pin(y, BackendIndex(1)).expect("own tensor");
    let y = g.output("y", y).expect("a new name");
    let graph = engine.add_graph(g);
    engine.plan(graph).expect("legal");
    assert!(!engine.plan(graph).expect("legal"), "nothing has changed");
    engine.world_mut().add_observer(
        |added: On<'_, '_, Add<SplitOf>>, splits: Query<'_, '_, &SplitOf>, mut commands: Commands<'_, '_>| {
            let Ok(split) = splits.get(added.entity) else { return };
            let graph = split.graph;
            commands.queue(move |world: &mut World| {
                if let Some(mut generation) = world.get_mut::<Generation>(graph) {
                    generation.0 += 1;
                }
            });
        },
    );
    engine.show_plan(graph).expect("planned");
    assert!(shown(&mut engine) != (0, 0));
    assert!(engine.plan(graph).expect("legal"), "the observer's change is one");
    engine.write(graph, x, &[1.0_f32; 4]).expect("an input");
    engine.run(graph).expect("runs");
    let mut result = [0.0_f32; 4];
    engine.read(graph, y, &mut result).expect("an output");
    assert_eq!(result, [2.0; 4]);
}
