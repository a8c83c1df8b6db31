//! Several pipelined slots where memory suffices, one where it does not.

use bevy_ecs::{message::MessageRegistry, prelude::*};
use entensor_components::{Generation, PipelineCopies};

use crate::{
    error::PlanError,
    status::{PlanCounters, PlanStatus},
};

/// More messages than anybody reads: where nobody drops old ones, the passes do.
const MOST_MESSAGES: usize = 1024;

/// A warning: a graph that asked for several pipelined slots was planned with one, since there was no memory for more.
#[derive(Message, Clone, Debug, PartialEq)]
pub struct CopiesFallback {
    /// The graph.
    pub graph: Entity,
    /// How many slots it asked for.
    pub asked: u32,
    /// What could not be allocated.
    pub error: PlanError,
}

/// On a graph: it is planned with one slot, whatever it asks for, until something in it changes. To have it tried again, insert
/// its `PipelineCopies` again.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq)]
pub struct FellBack {
    /// The graph's generation when memory did not suffice.
    pub generation: u64,
}

impl FellBack {
    /// How many slots a graph gets.
    pub(crate) fn copies(fell: Option<&Self>, generation: Generation, asked: PipelineCopies) -> u32 {
        if fell.is_some_and(|fell| fell.generation == generation.0) { 1 } else { asked.0 }
    }
}

/// How many pipelined slots the graph being planned gets.
#[derive(Resource, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannedCopies(pub u32);

/// Registers the warning, so that an app drops old ones.
pub(crate) fn init(world: &mut World) {
    if !world.contains_resource::<Messages<CopiesFallback>>() {
        MessageRegistry::register_message::<CopiesFallback>(world);
    }
    world.init_resource::<PlannedCopies>();
}

/// Notes that several slots did not fit, and has the graph planned again.
pub(crate) fn fall_back(world: &mut World, graph: Entity, error: PlanError) {
    let generation = world.get::<Generation>(graph).map_or(0, |generation| generation.0);
    let asked = world.resource::<PlannedCopies>().0;
    world.entity_mut(graph).insert(FellBack { generation });
    world.resource_mut::<PlanCounters>().fallbacks += 1;
    if let Some(mut messages) = world.get_resource_mut::<Messages<CopiesFallback>>() {
        if messages.len() >= MOST_MESSAGES {
            messages.update();
        }
        messages.write(CopiesFallback { graph, asked, error });
    }
    *world.resource_mut::<PlanStatus>() = PlanStatus::Retry;
}
