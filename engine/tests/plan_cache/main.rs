//! The plan cache: what tells two plans apart, why graphs are planned again, what is kept under a budget, and memory that is
//! reserved once.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use bevy_ecs::prelude::*;
use entensor::{
    ArenaId, Backend, BackendError, BackendIndex, DType, Engine, GraphBuilder, GraphId, Op, Plan, PlanCounters,
    PlanReason, PlanSalt, Shape, Strides, Tensor, TensorDesc, Usage,
    components::{
        BackendHandle, BufferKey, Capabilities, GraphTensors, MemoryHandle, MemoryKind, MemoryReport, OpDesc, Opaque,
        PipelineCopies, PreparedSplit, SplitView, Support, TensorFlags, TensorName,
    },
    systems::{Backends, CopiesFallback, DEFAULT_PLAN_BYTES, GraphNodes, NodeFacts, NodeTableBuilder, PlanCache},
};
use entensor_null::{NullBackend, NullConfig};
use entensor_oracle::OracleBackend;

mod budget;
mod keys;
mod reserve;

fn oracle() -> Engine {
    Engine::builder().backend("oracle").verify_plans(true).build().expect("the oracle starts")
}

/// A chain of this many nodes, named after it.
fn chain(engine: &mut Engine, name: &str, nodes: usize) -> (GraphId, Tensor, Tensor) {
    let mut g = GraphBuilder::new(name);
    let x = g.input("x", DType::F32, &[4]).expect("a small input");
    let mut y = x;
    for _ in 0..nodes {
        y = g.relu(y).expect("shapes fit");
    }
    let y = g.output("y", y).expect("a free name");
    (engine.add_graph(g), x, y)
}

fn plan_of(engine: &Engine, graph: GraphId) -> Arc<Plan> {
    Arc::clone(engine.plan_of(graph).expect("it is planned"))
}

/// Plans a new graph of this length. Returns whether a plan was there already.
fn is_kept(engine: &mut Engine, nodes: usize) -> bool {
    let before = engine.counters();
    let graph = chain(engine, "again", nodes).0;
    engine.plan(graph).expect("it plans");
    engine.remove_graph(graph);
    let after = engine.counters();
    assert_eq!(after.planned + after.cached, before.planned + before.cached + 1);
    after.cached > before.cached
}

fn cache(engine: &Engine) -> &PlanCache {
    engine.world().resource::<PlanCache>()
}
