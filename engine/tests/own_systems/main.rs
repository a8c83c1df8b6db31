//! Systems of the user's own between the passes, and in place of one: what they say counts, is never lost to the cache, and what
//! they cannot say is a typed error.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use bevy_ecs::{
    prelude::*,
    schedule::{LogLevel, ScheduleBuildSettings, ScheduleCleanupPolicy, ScheduleConfigs},
    system::ScheduleSystem,
};
use entensor::{
    BackendIndex, Cause, DType, Engine, EngineError, GraphBuilder, GraphId, Op, Pass, Plan, PlanError, PlanReason,
    PlanSalt, PlanSystems, Usage,
    components::{BackendId, Capabilities, GraphTensors, MemoryKind, OpKind, Pinned, TensorName},
    planning,
    systems::{
        Backends, GraphStatus, InvalidSchedule, NodeOrder, Nodes, PassResult, PlanSchedule, Recording,
        add_plan_systems, pass_system, verify,
    },
};
use entensor_null::{NullBackend, NullConfig};
use entensor_oracle::OracleBackend;

#[allow(dead_code, reason = "the example's own program")]
#[path = "../../examples/attention_on_host.rs"]
mod attention_on_host;
#[allow(dead_code, reason = "the example's own program")]
#[path = "../../examples/own_pass.rs"]
mod own_pass;

mod between;
mod orders;
mod replaced;

use attention_on_host::{AttentionOnHost, add_layers, run};

/// Where a node is, and why.
fn place(engine: &Engine, graph: GraphId, node: &str) -> (u32, Cause) {
    let plan = engine.plan_of(graph).expect("it is planned");
    let node = plan.node(plan.find(node).unwrap_or_else(|| panic!("no node {node}")));
    (node.backend, node.cause)
}

/// What stands in the components, for every tensor of the graph that the plan has.
fn assert_components_show_the_plan(engine: &mut Engine, graph: GraphId) {
    let plan = Arc::clone(engine.plan_of(graph).expect("it is planned"));
    let tensors = engine.world().get::<GraphTensors>(graph.0).expect("a graph").0.clone();
    let world = engine.world_mut();
    let mut answers = world.query::<(&TensorName, &BackendId, &Cause)>();
    for entity in tensors {
        let (name, id, cause) = answers.get(world, entity).expect("a tensor");
        let node = plan.node(plan.find(&name.0).expect("all of it is planned"));
        assert_eq!((id.0, *cause), (Some(BackendIndex(node.backend)), node.cause), "{}", name.0);
    }
}

/// Everything that a plan decides, comparable.
fn decisions(plan: &Plan) -> impl PartialEq + std::fmt::Debug + use<> {
    (
        (plan.placements.clone(), plan.causes.clone(), plan.splits.clone(), plan.split_inputs.clone()),
        (plan.copies.clone(), plan.buffers.clone(), plan.allocations.clone()),
        plan.programs.iter().map(|program| program.steps.clone()).collect::<Vec<_>>(),
    )
}

fn add_system<M>(engine: &mut Engine, system: impl IntoScheduleConfigs<ScheduleSystem, M>) {
    engine.world_mut().resource_mut::<Schedules>().add_systems(PlanSchedule, system);
}

/// Between which passes a system may stand while placements are decided.
fn in_gap<M>(gap: usize, system: impl IntoScheduleConfigs<ScheduleSystem, M>) -> ScheduleConfigs<ScheduleSystem> {
    let system = system.into_configs();
    match gap {
        0 => system.after(PlanSystems::Assign).before(PlanSystems::Expand),
        1 => system.after(PlanSystems::Expand).before(PlanSystems::Upgrade),
        _ => system.after(PlanSystems::Upgrade).before(PlanSystems::Split),
    }
}

/// A system that moves the nodes of these names.
fn moving(
    names: &'static [&'static str],
    to: Option<u32>,
    cause: Option<Cause>,
) -> impl Fn(Res<'_, NodeOrder>, Query<'_, '_, (&TensorName, &mut BackendId, &mut Cause)>) + Send + Sync + 'static {
    move |order: Res<'_, NodeOrder>, mut tensors: Query<'_, '_, (&TensorName, &mut BackendId, &mut Cause)>| {
        let mut tensors = tensors.iter_many_mut(order.entities.iter());
        while let Some(Ok((name, mut id, mut why))) = tensors.fetch_next() {
            if names.contains(&&*name.0) {
                *id = BackendId(to.map(BackendIndex));
                if let Some(cause) = cause {
                    *why = cause;
                }
            }
        }
    }
}

fn gpu_capabilities() -> Capabilities {
    let memory = MemoryKind("gpu memory".into());
    let reads = vec![memory.clone()];
    Capabilities { memory, reads, buffer_type: "gpu".into(), ..Capabilities::host() }
}

#[test]
fn the_examples_run() {
    attention_on_host::main().expect("it runs");
    own_pass::main().expect("it runs");
}
