//! What a plan shows in the world: entities of splits and copies, for whoever looks.

use std::sync::Arc;

use entensor::{
    BackendIndex, DType, Engine, GraphBuilder,
    components::{Backend, Capabilities, CopyOf, MemoryKind, SplitOf, TensorCopies},
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
