//! What a buffer is used for decides where its readers go.

use entensor::{Cause, DType, GraphBuilder, PlanReason, Usage};

use crate::with_device;

#[test]
fn weights_draw_their_readers_and_a_change_is_planned_once() {
    let mut engine = with_device(|_| ());
    let device = engine.backend_index("device").expect("the device");
    let buffer = engine.create_buffer("memory", device, Usage::Any, 64).expect("small");
    let w = engine.tensor_in("w", DType::F32, &[4, 4], buffer, 0).expect("fits");
    let mut g = GraphBuilder::new("layer");
    let w = g.shared(&w).expect("one tensor");
    let x = g.input("x", DType::F32, &[4]).expect("small");
    let y = g.mul_mat(w, x).expect("shapes fit");
    g.output("y", y).expect("a free name");
    let graph = engine.add_graph(g);
    let cause = |engine: &mut entensor::Engine| {
        let nodes = engine.explain(graph).expect("a plan");
        nodes.iter().find(|node| &*node.node == "y").map(|node| (node.backend.to_string(), node.cause))
    };
    assert_eq!(cause(&mut engine), Some(("device".into(), Cause::Cache)));
    engine.set_usage(buffer, Usage::Weights).expect("live");
    assert_eq!(cause(&mut engine), Some(("device".into(), Cause::Weights)));
    let planned = |engine: &entensor::Engine| engine.counters().reasons.get(&PlanReason::Shared).copied().unwrap_or(0);
    let before = planned(&engine);
    engine.set_usage(buffer, Usage::Weights).expect("live");
    cause(&mut engine);
    assert_eq!(planned(&engine), before, "the same usage again is no reason to plan");
    engine.set_usage(buffer, Usage::Compute).expect("live");
    assert!(engine.plan(graph).expect("a plan"));
    assert_eq!(planned(&engine), before + 1);
}
