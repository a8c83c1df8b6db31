//! "Unchanged" as one integer compare: hooks on what is baked into plans bump counters.
//!
//! Every component whose value is baked into a plan is immutable, so the only ways to change it are to insert it again and
//! to remove it, which run [`bump_generation`] (on tensors, buffers and backends) or [`bump_own_generation`] (on graphs).

use bevy_ecs::{lifecycle::HookContext, prelude::*, world::DeferredWorld};

use crate::tensor::CopyOf;

/// The graph that a tensor was made for; `None` for leaves that several graphs share.
///
/// A tensor that leaves its graph counts as a change of the graph that it leaves.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq)]
#[component(immutable, on_discard = bump_generation)]
pub struct InGraph(#[entities] pub Option<Entity>);

/// On a graph: counts the changes of anything that its plan is made from.
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generation(pub u64);

/// Counts the changes of shared leaves, buffers and backends, which may concern every graph.
#[derive(Resource, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedGeneration(pub u64);

/// The hook of baked components: bumps the graph's [`Generation`], or [`SharedGeneration`] for shared entities. Copies that come and
/// go are the plan's own, and no change.
pub fn bump_generation(mut world: DeferredWorld<'_>, context: HookContext) {
    if world.get::<CopyOf>(context.entity).is_some() {
        return;
    }
    let graph = world.get::<InGraph>(context.entity).and_then(|in_graph| in_graph.0);
    if let Some(graph) = graph {
        if let Some(mut generation) = world.get_mut::<Generation>(graph) {
            generation.0 += 1;
        }
    } else if let Some(mut generation) = world.get_resource_mut::<SharedGeneration>() {
        generation.0 += 1;
    }
}

/// The hook of a graph's own baked components: bumps its [`Generation`].
pub fn bump_own_generation(mut world: DeferredWorld<'_>, context: HookContext) {
    if let Some(mut generation) = world.get_mut::<Generation>(context.entity) {
        generation.0 += 1;
    }
}
