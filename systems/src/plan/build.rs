//! Turns the columns into a [`Plan`]: the data part of `publish`.

use std::sync::{Arc, Mutex};

use bevy_ecs::prelude::*;
use entensor_components::PreparedSplit;

use super::{Allocation, Held, Plan, PlanBackend, PlanBuffer, PlanCopy, PlanExisting, PlanSplit, Program, Step, edges};
use crate::{
    allocate::Allocated,
    columns::{Backends, NodeFlags, NodeMemory, NodePlacements, Nodes, PlanSalt, Refusals, SupportMasks},
    error::PlanError,
    fallback::PlannedCopies,
    liveness::{Holds, Live},
    split::{Copies, Splits},
};

/// The plan of the graph whose columns stand in the world.
pub(crate) fn build_plan(world: &mut World) -> Result<Plan, PlanError> {
    // Reasons are text: they move, and the next planning makes its own.
    let refusals = std::mem::take(&mut *world.resource_mut::<Refusals>());
    let world = &*world;
    let (live, allocated) = (world.resource::<Live>(), world.resource::<Allocated>());
    let (mut backends, buffers) = memories(world.resource::<Backends>(), live, allocated);
    backends.shrink_to_fit();
    let nodes = world.resource::<Nodes>();
    let placements = world.resource::<NodePlacements>();
    let splits = world.resource::<Splits>();
    let memory = world.resource::<NodeMemory>();
    let mut plan = Plan {
        table: Arc::clone(&nodes.0),
        flags: world.resource::<NodeFlags>().0.clone(),
        placements: placements.backends.clone(),
        causes: placements.causes.clone(),
        supported: world.resource::<SupportMasks>().0.clone(),
        refusals,
        launches: nodes.computing.clone(),
        splits: (splits.runs.iter())
            .map(|run| PlanSplit { backend: run.backend, nodes: run.nodes.clone(), inputs: run.inputs.clone() })
            .collect(),
        split_inputs: splits.inputs.clone(),
        copies: (world.resource::<Copies>().0.iter())
            .map(|copy| PlanCopy { source: copy.source, backend: copy.backend })
            .collect(),
        existing: memory.buffers.iter().map(PlanExisting::of).collect(),
        memory: memory.without_buffers(),
        allocations: Vec::with_capacity(live.items.len()),
        lower_bound_bytes: allocated.lower_bound_bytes,
        programs: Vec::new(),
        allocation_of: Vec::new(),
        allocation_of_copy: Vec::new(),
        copy_of: Vec::new(),
        salt: world.resource::<PlanSalt>().0,
        asked_copies: world.resource::<PlannedCopies>().0,
        spare: Mutex::default(),
        backends,
        buffers,
    };
    plan.copy_of = plan.copies.iter().zip(0..).map(|(copy, index)| (copy.source, copy.backend, index)).collect();
    plan.copy_of.sort_unstable();
    add_allocations(&mut plan, live, allocated)?;
    plan.programs = programs(&plan, live.slots.max(1))?;
    Ok(plan)
}

/// The backends with what the plan allocates on each, and the buffers.
fn memories(backends: &Backends, live: &Live, allocated: &Allocated) -> (Vec<PlanBackend>, Vec<PlanBuffer>) {
    let mut backends: Vec<PlanBackend> = (backends.0.iter())
        .map(|b| PlanBackend { name: b.name().into(), handle: Arc::clone(b), planned_bytes: 0 })
        .collect();
    let buffer = |buffer: &crate::allocate::PlannedBuffer| {
        let arena = &live.arenas[buffer.arena as usize];
        let planned_bytes = &mut backends[arena.owner as usize].planned_bytes;
        *planned_bytes = planned_bytes.saturating_add(buffer.size_bytes);
        PlanBuffer {
            backend: arena.owner,
            buffer_type: Arc::clone(&arena.buffer_type),
            ordinal: buffer.ordinal,
            size_bytes: buffer.size_bytes,
        }
    };
    let buffers = allocated.buffers.iter().map(buffer).collect();
    (backends, buffers)
}

/// Notes every planned tensor, and checks that what needs memory has some.
fn add_allocations(plan: &mut Plan, live: &Live, allocated: &Allocated) -> Result<(), PlanError> {
    for item in &live.items {
        let (held, backend) = match item.holds {
            Holds::Node(node) => (Held::Node(node), plan.placements[node as usize]),
            Holds::Copy(copy) => (Held::Copy(copy), plan.copies[copy as usize].backend),
        };
        let place = allocated.places[item.block as usize];
        plan.allocations.push(Allocation {
            held,
            slot: item.slot,
            backend,
            buffer: place.buffer,
            offset_bytes: place.offset_bytes,
            size_bytes: item.size_bytes,
            first: item.first,
            last: item.last,
            in_place_of: item.in_place_of,
        });
    }
    plan.index_allocations();
    let roots = &plan.table.roots;
    let homeless =
        |&node: &usize| roots.is_root(node) && plan.allocation_of[node] == 0 && plan.memory.place(node).is_none();
    let copied = plan.allocation_of_copy.iter().position(|&first| first == u32::MAX);
    let copied = copied.map(|copy| plan.copies[copy].source as usize);
    match (0..plan.node_count()).find(homeless).or(copied) {
        Some(node) => Err(PlanError::Unplaced { node: Arc::clone(&plan.table.names[node]) }),
        None => Ok(()),
    }
}

/// What each slot runs.
fn programs(plan: &Plan, slots: u32) -> Result<Vec<Program>, PlanError> {
    let steps: Vec<Vec<Step>> = (0..slots).map(|slot| steps(plan, slot)).collect::<Result<_, _>>()?;
    let under_way = plan.backends.iter().any(|backend| backend.handle.capabilities().asynchronous);
    let found = if under_way { edges::find(plan, &steps[0], steps.get(1).map(|s| &**s)) } else { Vec::new() };
    let with_events = steps.into_iter().map(|steps| with_edges(plan, steps, &found));
    let with_events: Vec<(Vec<Step>, u32)> = with_events.collect();
    let behind = match &with_events[..] {
        [(first, _), (second, _), ..] if under_way => edges::behind(plan, first, second),
        _ => Vec::new(),
    };
    let programs = with_events.into_iter().zip(0..).map(|((steps, events), slot)| {
        Ok(Program { prepared: prepare(plan, slot)?, steps, events, behind: behind.clone() })
    });
    programs.collect()
}

/// Copies and launches of a slot's run, in order.
fn steps(plan: &Plan, slot: u32) -> Result<Vec<Step>, PlanError> {
    let mut steps = Vec::with_capacity(plan.splits.len() + plan.split_inputs.len());
    for (split, index) in plan.splits.iter().zip(0..) {
        for &copy in plan.split_inputs(split) {
            let source = plan.copies[copy as usize].source as usize;
            let ends = plan.locate(source, slot).zip(plan.locate_copy(copy, slot));
            let unplaced = || PlanError::Unplaced { node: Arc::clone(&plan.table.names[source]) };
            let (from, to) = ends.ok_or_else(unplaced)?;
            let from_backend = plan.placements[plan.table.roots.of(source)];
            steps.push(Step::Copy { copy, split: index, from, from_backend, to });
        }
        steps.push(Step::Launch { split: index });
    }
    Ok(steps)
}

/// Every split made ready for a slot.
fn prepare(plan: &Plan, slot: u32) -> Result<Vec<Box<dyn PreparedSplit>>, PlanError> {
    let prepared = plan.splits.iter().enumerate().map(|(index, split)| {
        let backend = &plan.backends[split.backend as usize];
        let prepared = backend.handle.prepare(&plan.split_view(split, slot));
        let (split, backend) = (index, &backend.name);
        prepared.map_err(|source| PlanError::Prepare { split, backend: Arc::clone(backend), source })
    });
    prepared.collect()
}

/// Puts events into the steps: recorded behind what is waited for, waited for before what waits.
fn with_edges(plan: &Plan, steps: Vec<Step>, edges: &[edges::Edge]) -> (Vec<Step>, u32) {
    const NONE: u32 = u32::MAX;
    if edges.is_empty() {
        return (steps, 0);
    }
    let mut event_of = vec![NONE; steps.len()];
    for edge in edges {
        event_of[edge.from as usize] = 0;
    }
    let mut events = 0;
    for event in event_of.iter_mut().filter(|event| **event != NONE) {
        *event = events;
        events += 1;
    }
    let queues: Vec<_> = steps.iter().map(|step| edges::queue_of(plan, step)).collect();
    let mut all = Vec::with_capacity(steps.len() + edges.len() + events as usize);
    let mut edges = edges.iter().peekable();
    for (index, step) in steps.into_iter().enumerate() {
        let (backend, queue) = queues[index];
        while let Some(edge) = edges.next_if(|edge| edge.to as usize == index) {
            let (event, of) = (event_of[edge.from as usize], queues[edge.from as usize].0);
            all.push(Step::Wait { backend, event, of, queue, previous: edge.previous });
        }
        all.push(step);
        if event_of[index] != NONE {
            all.push(Step::Record { backend, event: event_of[index], queue });
        }
    }
    (all, events)
}
