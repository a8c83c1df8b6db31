//! Turns the columns into a [`Plan`]: the data part of `publish`.

use std::sync::{Arc, Mutex};

use bevy_ecs::prelude::*;
use entensor_components::{BackendId, Cause};

use crate::{
    allocate::Allocated,
    columns::{
        Backends, NodeDescs, NodeFlags, NodeMemory, NodeNames, NodeOps, NodeOrder, NodePins, NodeRoots, NodeSources,
        Refusals, SupportMasks, index_u32,
    },
    error::PlanError,
    liveness::{Holds, Live},
    plan::{
        Allocation, Held, Locator, Plan, PlanBackend, PlanBuffer, PlanCopy, PlanExisting, PlanNode, PlanSplit, Program,
        Step,
    },
    split::{Copies, Splits},
};

/// The plan of the graph whose columns stand in the world.
pub(crate) fn build_plan(world: &World) -> Result<Plan, PlanError> {
    let live = world.resource::<Live>();
    let allocated = world.resource::<Allocated>();
    let mut backends: Vec<PlanBackend> = world
        .resource::<Backends>()
        .0
        .iter()
        .map(|b| PlanBackend { name: b.name().into(), handle: Arc::clone(b), planned_bytes: 0 })
        .collect();
    let buffers: Vec<PlanBuffer> = allocated
        .buffers
        .iter()
        .map(|buffer| {
            let arena = &live.arenas[buffer.arena as usize];
            let planned_bytes = &mut backends[arena.owner as usize].planned_bytes;
            *planned_bytes = planned_bytes.saturating_add(buffer.size_bytes);
            PlanBuffer {
                backend: arena.owner,
                buffer_type: Arc::clone(&arena.buffer_type),
                ordinal: buffer.ordinal,
                size_bytes: buffer.size_bytes,
            }
        })
        .collect();
    let existing = world.resource::<NodeMemory>().buffers.iter().map(|b| PlanExisting {
        name: Arc::clone(&b.name),
        kind: b.kind.clone(),
        buffer_type: Arc::clone(&b.buffer_type),
        opaque: b.opaque,
        usage: b.usage,
        size_bytes: b.memory.size_bytes(),
    });
    let splits = world.resource::<Splits>().0.iter();
    let copies = world.resource::<Copies>().0.iter();
    let mut plan = Plan {
        nodes: plan_nodes(world, backends.len())?,
        leaves: world.resource::<NodeOrder>().leaves,
        splits: splits
            .map(|s| PlanSplit { backend: s.backend, nodes: s.nodes.clone(), inputs: s.inputs.clone() })
            .collect(),
        copies: copies.map(|c| PlanCopy { source: c.source, backend: c.backend }).collect(),
        existing: existing.collect(),
        allocations: Vec::new(),
        lower_bound_bytes: allocated.lower_bound_bytes,
        programs: Vec::new(),
        staging: Mutex::default(),
        events: Mutex::default(),
        backends,
        buffers,
    };
    plan.allocations = allocations(&plan, live, allocated);
    plan.programs = (0..live.slots.max(1)).map(|slot| program(&plan, slot)).collect::<Result<_, _>>()?;
    let events = plan.programs.iter().map(|p| p.events as usize).max().unwrap_or(0);
    plan.events = Mutex::new(vec![0; events]);
    Ok(plan)
}

fn plan_nodes(world: &World, backends: usize) -> Result<Vec<PlanNode>, PlanError> {
    let order = world.resource::<NodeOrder>();
    let names = &world.resource::<NodeNames>().0;
    let (descs, ops) = (&world.resource::<NodeDescs>().0, &world.resource::<NodeOps>().0);
    let (sources, roots) = (world.resource::<NodeSources>(), world.resource::<NodeRoots>());
    let (flags, pins) = (&world.resource::<NodeFlags>().0, &world.resource::<NodePins>().0);
    let (memory, support) = (world.resource::<NodeMemory>(), &world.resource::<SupportMasks>().0);
    let refusals = world.resource::<Refusals>();
    let mut split_of = vec![None; names.len()];
    for (index, split) in world.resource::<Splits>().0.iter().enumerate() {
        for &node in &split.nodes {
            split_of[node as usize] = Some(index_u32(index));
        }
    }
    let node = |i: usize| {
        let entity = order.entities[i];
        let unplaced = || PlanError::Unplaced { node: Arc::clone(&names[i]) };
        let backend = world.get::<BackendId>(entity).and_then(|id| id.0).ok_or_else(unplaced)?;
        let refused = (0..backends).filter(|&b| !support.get(i, b));
        Ok(PlanNode {
            name: Arc::clone(&names[i]),
            op: ops[i].clone(),
            desc: descs[i],
            sources: sources.of(i).to_vec(),
            root: roots.root[i],
            offset_bytes: roots.offset_bytes[i],
            flags: flags[i],
            pin: pins[i].map(|b| b.0),
            existing: memory.place[i].map(|place| (place.buffer, place.offset_bytes)),
            backend: backend.0,
            cause: world.get::<Cause>(entity).copied().unwrap_or_default(),
            split: split_of[i],
            supported: (0..backends).map(|b| support.get(i, b)).collect(),
            refusals: refused.map(|b| (index_u32(b), refusals.reason(i, b).into_owned())).collect(),
        })
    };
    (0..names.len()).map(node).collect()
}

fn allocations(plan: &Plan, live: &Live, allocated: &Allocated) -> Vec<Allocation> {
    let allocation = |item: &crate::liveness::LiveItem| {
        let (held, node, backend, copied) = match item.holds {
            Holds::Node(node) => (Held::Node(node), node, plan.nodes[node as usize].backend, false),
            Holds::Copy(copy) => {
                let record = plan.copies[copy as usize];
                (Held::Copy(copy), record.source, record.backend, true)
            }
        };
        let name = &plan.nodes[node as usize].name;
        let name = if copied || item.slot > 0 {
            format!("{}#{name}#{}", plan.backends[backend as usize].name, item.slot).into()
        } else {
            Arc::clone(name)
        };
        let place = allocated.places[item.block as usize];
        Allocation {
            held,
            slot: item.slot,
            name,
            backend,
            buffer: place.buffer,
            offset_bytes: place.offset_bytes,
            size_bytes: item.size_bytes,
            first: item.first,
            last: item.last,
            in_place_of: item.in_place_of,
        }
    };
    live.items.iter().map(allocation).collect()
}

/// The steps of one slot's run, and its splits made ready.
fn program(plan: &Plan, slot: u32) -> Result<Program, PlanError> {
    let locator = Locator::new(plan);
    let homes = (0..index_u32(plan.nodes.len())).map(|node| locator.home(node, slot)).collect();
    let mut program = Program { steps: Vec::new(), splits: Vec::new(), prepared: Vec::new(), events: 0, homes };
    let mut queue: Option<u32> = None;
    for (index, split) in plan.splits.iter().enumerate() {
        let index = index_u32(index);
        order_queues(plan, &mut program, queue, split.backend);
        for &copy in &split.inputs {
            let source = plan.copies[copy as usize].source;
            let ends = locator.home(source, slot).zip(locator.copy(copy, slot));
            let (from, to) = ends.ok_or_else(|| unallocated(plan, source))?;
            let from_backend = plan.nodes[plan.nodes[source as usize].root as usize].backend;
            program.steps.push(Step::Copy { copy, split: index, from, from_backend, to });
        }
        let desc = locator.split(split, slot).ok_or_else(|| unallocated(plan, split.nodes[0]))?;
        let backend = &plan.backends[split.backend as usize];
        let prepared = backend.handle.prepare(desc.clone()).map_err(|source| PlanError::Prepare {
            split: index as usize,
            backend: Arc::clone(&backend.name),
            source,
        })?;
        program.splits.push(desc);
        program.prepared.push(prepared);
        program.steps.push(Step::Launch { split: index });
        queue = Some(split.backend);
    }
    Ok(program)
}

/// An event edge from the last queue to the next, where work may still be under way. Chained through every change of queue,
/// the edges order all memory that passes from one queue to another.
fn order_queues(plan: &Plan, program: &mut Program, from: Option<u32>, to: u32) {
    let Some(from) = from.filter(|&from| from != to) else { return };
    if plan.backends[from as usize].handle.capabilities().asynchronous {
        let event = program.events;
        program.events += 1;
        program.steps.push(Step::Record { backend: from, event });
        program.steps.push(Step::Wait { backend: to, event, of: from });
    }
}

fn unallocated(plan: &Plan, node: u32) -> PlanError {
    PlanError::Unplaced { node: Arc::clone(&plan.nodes[node as usize].name) }
}
