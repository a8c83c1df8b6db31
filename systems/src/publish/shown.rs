//! Splits and copies as entities, for tools and games to query.

use std::sync::Arc;

use bevy_ecs::prelude::*;
use entensor_components::{
    BackendId, BackendIndex, CopyBundle, CopyOf, InGraph, SplitInputs, SplitNodes, SplitOf, TensorCopies, TensorCopy,
    TensorName,
};

use super::GraphPlan;
use crate::{
    columns::index_u32,
    compute::GraphRuns,
    plan::{Allocation, Held, Plan},
};

/// Replaces what a graph's last plan shows by what the new one does. What both show stays as it is: a graph that is planned again
/// mostly gets the same splits.
pub(super) fn show(world: &mut World, graph: Entity, plan: &Plan, entities: &[Entity]) -> Vec<Entity> {
    let old = world.get_entity_mut(graph).ok().and_then(|mut graph| graph.take::<GraphPlan>());
    if let Some(old) = old {
        if shows_the_same(&old, plan, entities) && old.published.iter().all(|&e| world.get_entity(e).is_ok()) {
            return old.published;
        }
        hide(world, graph, old);
    }
    let mut published = Vec::with_capacity(plan.splits.len() + plan.copies.len());
    show_copies(world, graph, plan, entities, &mut published);
    show_splits(world, graph, plan, entities, &mut published);
    published
}

/// Removes a graph's plan and what it shows: split and copy entities, and the notes of copies on their sources.
///
/// Runs that are under way are taken back, or waited for.
pub fn unpublish(world: &mut World, graph: Entity) {
    if let Ok(mut graph) = world.get_entity_mut(graph) {
        drop(graph.take::<GraphRuns>());
    }
    let Some(old) = world.get_entity_mut(graph).ok().and_then(|mut graph| graph.take::<GraphPlan>()) else { return };
    hide(world, graph, old);
}

fn hide(world: &mut World, graph: Entity, old: GraphPlan) {
    for copy in &old.plan.copies {
        let entity = old.entities[copy.source as usize];
        if let Some(mut copies) = world.get_mut::<TensorCopies>(entity)
            && !copies.0.is_empty()
        {
            copies.0.retain(|copy| copy.graph != graph);
        }
    }
    for entity in old.published {
        // A user may have despawned it already.
        world.try_despawn(entity).ok();
    }
}

fn shows_the_same(old: &GraphPlan, plan: &Plan, entities: &[Entity]) -> bool {
    let before = &*old.plan;
    std::ptr::eq(before, plan)
        || (before.programs.len() == plan.programs.len()
            && before.splits == plan.splits
            && before.split_inputs == plan.split_inputs
            && before.copies == plan.copies
            && before.launches == plan.launches
            && before.backends.len() == plan.backends.len()
            && before.backends.iter().zip(&plan.backends).all(|(a, b)| a.name == b.name)
            && (Arc::ptr_eq(&before.table, &plan.table)
                || (before.table.names == plan.table.names && before.table.descs == plan.table.descs))
            && *old.entities == entities)
}

fn show_copies(world: &mut World, graph: Entity, plan: &Plan, entities: &[Entity], published: &mut Vec<Entity>) {
    let copies = |allocation: &Allocation| match allocation.held {
        Held::Copy(copy) => Some((plan.copies[copy as usize], allocation.slot, plan.allocation_name(allocation))),
        Held::Node(_) => None,
    };
    // Copies stand behind everything else.
    let first = plan.allocations.partition_point(|allocation| matches!(allocation.held, Held::Node(_)));
    let copies: Vec<_> = plan.allocations[first..].iter().filter_map(copies).collect();
    let bundle = |(copy, _, name): &(crate::plan::PlanCopy, u32, Arc<str>)| {
        let desc = plan.table.descs[copy.source as usize];
        CopyBundle {
            in_graph: InGraph(Some(graph)),
            copy_of: CopyOf(entities[copy.source as usize]),
            name: TensorName(Arc::clone(name)),
            dtype: desc.dtype,
            shape: desc.shape,
            strides: desc.strides,
            backend_id: BackendId(Some(BackendIndex(copy.backend))),
        }
    };
    let bundles: Vec<CopyBundle> = copies.iter().map(bundle).collect();
    published.extend(world.spawn_batch(bundles));
    for ((copy, slot, _), &entity) in copies.iter().zip(&*published) {
        if let Some(mut noted) = world.get_mut::<TensorCopies>(entities[copy.source as usize]) {
            noted.0.push(TensorCopy { graph, backend: BackendIndex(copy.backend), slot: *slot, copy: entity });
        }
    }
}

fn show_splits(world: &mut World, graph: Entity, plan: &Plan, entities: &[Entity], published: &mut Vec<Entity>) {
    let splits: Vec<_> = (plan.splits.iter().enumerate())
        .map(|(index, split)| {
            let nodes = plan.split_nodes(split).iter().map(|&n| entities[n as usize]).collect();
            let inputs = plan.split_inputs(split).iter();
            let inputs = inputs.map(|&c| entities[plan.copies[c as usize].source as usize]).collect();
            (
                SplitOf { graph, index: index_u32(index) },
                BackendId(Some(BackendIndex(split.backend))),
                SplitNodes(nodes),
                SplitInputs(inputs),
            )
        })
        .collect();
    published.extend(world.spawn_batch(splits));
}
