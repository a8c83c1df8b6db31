//! Graphs and machines that are wrong: whatever a text or a World holds, there is a plan, or an error that names the culprit and
//! the remedy, and never a panic. What the `.graph` text refuses by itself stands in `graph_text.rs`.

#[path = "../common/mod.rs"]
mod common;

mod despawns;
mod edits;
mod random_edits;
mod texts;

use std::sync::Arc;

use bevy_ecs::prelude::*;
use common::Planned;
use entensor::graph_text::GraphText;
use entensor_components::{GraphTensors, TensorName};
use entensor_systems::{GraphPlan, Plan, PlanError, PlanStatus, Recording, plan_schedule, verify};

/// A graph with weights, a cache, views, a write and two outputs, on two memories.
const BASE: &str = "backend gpu\nbackend cpu\nbuffer kv on gpu\ntensor cache f32 [8,8] in kv\nweight w f32 [8,8] on gpu\n\
                    input x f32 [8,4]\ninput rows i32 [4]\nh = mul_mat w x\nv = view h shape=[8,2]\nr = relu v\n\
                    set = set_rows cache h rows\ns = add h h\ny = add s h pin=cpu output\nrun y,r,set\n";

fn spawn(text: &str) -> Planned {
    let mut world = World::new();
    let graph = common::parse("base", text).spawn(&mut world).expect("it fits");
    Planned { world, graph, schedule: plan_schedule(Recording::On) }
}

/// A tensor of the graph, by name.
fn tensor(planned: &Planned, name: &str) -> Entity {
    let tensors = &planned.world.get::<GraphTensors>(planned.graph).expect("a graph").0;
    let named = |&&t: &&Entity| planned.world.get::<TensorName>(t).is_some_and(|n| *n.0 == *name);
    *tensors.iter().find(named).unwrap_or_else(|| panic!("no tensor {name}"))
}

/// Plans; a plan is proved, and an error is typed, has words, and is written on the graph if that is still there.
fn outcome(planned: &mut Planned) -> Result<Arc<Plan>, PlanError> {
    planned.plan();
    let status = planned.world.resource::<PlanStatus>().clone();
    match status {
        PlanStatus::Ready => {
            let plan = planned.world.get::<GraphPlan>(planned.graph).map(|graph| Arc::clone(&graph.plan));
            let plan = plan.expect("a graph that is ready has a plan");
            let text = || GraphText::from_plan("plan", &plan).map(|text| text.to_string());
            verify(&plan).unwrap_or_else(|violations| panic!("{violations:?}\n{:?}\n{}", text(), planned.text()));
            Ok(plan)
        }
        PlanStatus::Failed { error, .. } => {
            assert!(!error.kind().is_empty() && error.to_string().len() > 20, "{error}");
            Err(error)
        }
        status => panic!("planning ended as {status:?}"),
    }
}
