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

/// Takes away a graph's last plan with the entities it shows, unless the new one shows the same: a graph that is planned again
/// mostly gets the same splits. Returns those that stay.
pub(super) fn keep_or_hide(world: &mut World, graph: Entity, plan: &Plan, entities: &[Entity]) -> Option<Vec<Entity>> {
    let mut old = world.get_entity_mut(graph).ok()?.take::<GraphPlan>()?;
    let shown = old.shown.as_deref()?;
    if shows_the_same(&old, plan, entities) && shown.iter().all(|&entity| world.get_entity(entity).is_ok()) {
        return old.shown.take();
    }
    hide(world, graph, old);
    None
}

/// Spawns split and copy entities, and notes copies on their sources.
pub(super) fn show(world: &mut World, graph: Entity, plan: &Plan, entities: &[Entity]) -> Vec<Entity> {
    let mut shown = Vec::with_capacity(plan.splits.len() + plan.copies.len());
    show_copies(world, graph, plan, entities, &mut shown);
    show_splits(world, graph, plan, entities, &mut shown);
    shown
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
    let Some(shown) = old.shown else { return };
    for copy in &old.plan.copies {
        let entity = old.entities[copy.source as usize];
        if let Some(mut copies) = world.get_mut::<TensorCopies>(entity)
            && !copies.0.is_empty()
        {
            copies.0.retain(|copy| copy.graph != graph);
        }
    }
    for entity in shown {
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

fn show_copies(world: &mut World, graph: Entity, plan: &Plan, entities: &[Entity], shown: &mut Vec<Entity>) {
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
    shown.extend(world.spawn_batch(bundles));
    for ((copy, slot, _), &entity) in copies.iter().zip(&*shown) {
        if let Some(mut noted) = world.get_mut::<TensorCopies>(entities[copy.source as usize]) {
            noted.0.push(TensorCopy { graph, backend: BackendIndex(copy.backend), slot: *slot, copy: entity });
        }
    }
}

fn show_splits(world: &mut World, graph: Entity, plan: &Plan, entities: &[Entity], shown: &mut Vec<Entity>) {
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
    shown.extend(world.spawn_batch(splits));
}
