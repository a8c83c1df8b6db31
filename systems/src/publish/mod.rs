//! **publish**: makes the plan from the columns, allocates and binds its memory, and writes split and copy entities, at once
//! where systems of the user's stand between the passes, else when the plan first runs or somebody asks ([`show_plan`]).
//!
//! Reads: everything before it. Writes: `GraphPlan`, arenas, split and copy entities, `TensorCopies`, the plan cache.
//! Invariants: the only structural change of all passes; on an error nothing of the graph's old plan is left half replaced.
//! Cost: linear, plus the backends' allocation and preparation. Source: DESIGN "publish".

mod shown;

use std::sync::Arc;

use bevy_ecs::prelude::*;
use entensor_components::{
    BackendId, BackendIndex, Cause, DeviceBuffer, Generation, GraphTensors, SharedGeneration, Usage,
};

pub use shown::unpublish;

use crate::{
    cache::PlanCache,
    columns::{NodeMemory, NodeOrder, PlacementSync, PlanSalt, Planning},
    compute::GraphRuns,
    error::{LiveTensor, PlanError},
    fallback::{PlannedCopies, fall_back},
    index::Gathered,
    plan::{Binding, Plan, PlanBuffer, build_plan},
    status::{GraphStatus, PassResult, PlanCounters, PlanStatus},
};

/// What a graph's plan was made from: as long as it is the same, nothing has to be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The graph's own generation.
    pub generation: u64,
    /// That of shared leaves, buffers and backends.
    pub shared: u64,
    /// The users' salt.
    pub salt: u64,
}

/// On a graph: its plan, bound to memory.
#[derive(Component)]
pub struct GraphPlan {
    /// The plan.
    pub plan: Arc<Plan>,
    /// What it was made from.
    pub seen: Seen,
    /// The memories of a run.
    pub binding: Binding,
    /// The existing buffers of the binding, kept alive.
    pub existing: Vec<Arc<DeviceBuffer>>,
    /// Entity of each node of the plan, by index.
    pub entities: Arc<Vec<Entity>>,
    /// The arena that its planned memory lies in.
    pub arena: Entity,
    /// The arena's epoch when it was bound.
    pub arena_epoch: u64,
    /// Split and copy entities, which go with the plan; none before they are shown.
    pub shown: Option<Vec<Entity>>,
    /// The slot of the next run.
    pub slot: u32,
}

/// On a graph: the arena it uses. Graphs that share one take turns: writing one graph's inputs ends the validity of the
/// other's outputs. Without it, a graph gets an arena of its own.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsesArena(pub Entity);

/// On a graph that was given no arena: the one that was made for it alone, and goes with it.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnArena(pub Entity);

/// One buffer of an arena.
#[derive(Clone, Debug)]
pub struct ArenaBuffer {
    /// Its buffer type.
    pub buffer_type: Arc<str>,
    /// Its place among the buffers of its type.
    pub ordinal: u32,
    /// The memory.
    pub buffer: Arc<DeviceBuffer>,
}

/// Planned memory that graphs use one after the other. It only grows.
#[derive(Component, Clone, Debug, Default)]
pub struct Arena {
    /// The buffers.
    pub buffers: Vec<ArenaBuffer>,
    /// The graph whose inputs and outputs it holds.
    pub holder: Option<Entity>,
    /// Counts replaced buffers: a binding made in another epoch must be made again.
    pub epoch: u64,
}

/// The pass.
pub fn publish(world: &mut World) -> PassResult {
    let graph = world.resource::<Planning>().0;
    if world.get_entity(graph).is_err() {
        return Err(PlanError::UnknownGraph);
    }
    check_tensors(world, graph)?;
    let made_from = seen(world, graph);
    let cached = match world.resource::<PlanStatus>() {
        PlanStatus::Cached(plan) => Some(Arc::clone(plan)),
        _ => None,
    };
    let plan = match cached {
        Some(plan) => {
            restore_placements(world, &plan);
            plan
        }
        None => {
            let several = world.resource::<PlannedCopies>().0 > 1;
            let plan = match build_plan(world) {
                Ok(plan) => Arc::new(plan),
                Err(error) if several && error.is_out_of_memory() => {
                    fall_back(world, graph, error);
                    return Ok(0);
                }
                Err(error) => return Err(error),
            };
            world.resource_mut::<PlanCounters>().planned += 1;
            world.resource_mut::<PlanCache>().insert(&plan);
            plan
        }
    };
    let arena = arena_of(world, graph);
    if let Err(error) = reserve(world, arena, &plan, planned_bytes) {
        if plan.programs.len() > 1 && error.is_out_of_memory() {
            world.resource_mut::<PlanCache>().remove(&plan);
            fall_back(world, graph, error);
            return Ok(0);
        }
        return Err(error);
    }
    let old = world.get::<GraphPlan>(graph).map(|g| (Arc::clone(&g.plan), g.arena_epoch, g.slot));
    let existing: Vec<Arc<DeviceBuffer>> =
        world.resource::<NodeMemory>().buffers.iter().map(|b| Arc::clone(&b.memory)).collect();
    let entities = Arc::clone(&world.resource::<NodeOrder>().entities);
    let shown = shown::keep_or_hide(world, graph, &plan, &entities);
    let (binding, arena_epoch) = bind(world, arena, &plan, &existing);
    // The same plan in the same memory goes on where it was: what was written for the next slot stays valid.
    let slot = old.filter(|(p, epoch, _)| Arc::ptr_eq(p, &plan) && *epoch == arena_epoch).map_or(0, |(.., slot)| slot);
    let changed = plan.splits.len();
    let plan = GraphPlan { plan, seen: made_from, binding, existing, entities, arena, arena_epoch, shown, slot };
    let gathered = std::mem::take(&mut world.resource_mut::<Gathered>().0);
    let mut planned = world.entity_mut(graph);
    planned.insert((plan, gathered, GraphStatus::Planned));
    planned.insert_if_new(GraphRuns::default());
    if world.resource::<PlacementSync>().0 {
        show_plan(world, graph);
    }
    *world.resource_mut::<PlanStatus>() = PlanStatus::Ready;
    Ok(changed)
}

/// Makes entities of a planned graph's splits and copies, unless they are there: for tools and games to query. A run does so, too.
pub fn show_plan(world: &mut World, graph: Entity) {
    let Some(current) = world.get::<GraphPlan>(graph).filter(|current| current.shown.is_none()) else { return };
    let (plan, entities) = (Arc::clone(&current.plan), Arc::clone(&current.entities));
    let shown = shown::show(world, graph, &plan, &entities);
    if let Some(mut current) = world.get_mut::<GraphPlan>(graph) {
        current.shown = Some(shown);
    }
}

/// Systems between the passes may have despawned what is planned.
fn check_tensors(world: &World, graph: Entity) -> Result<(), PlanError> {
    if !world.resource::<PlacementSync>().0 {
        return Ok(());
    }
    let entities = &world.resource::<NodeOrder>().entities;
    let Some((node, gone)) = entities.iter().enumerate().find(|(_, entity)| world.get_entity(**entity).is_err()) else {
        return Ok(());
    };
    let listed =
        world.get::<GraphTensors>(graph).and_then(|tensors| tensors.0.iter().position(|tensor| tensor == gone));
    Err(PlanError::MissingTensor { position: listed.unwrap_or(node) })
}

/// What a plan of this graph would be made from now.
#[must_use]
pub fn seen(world: &World, graph: Entity) -> Seen {
    Seen {
        generation: world.get::<Generation>(graph).map_or(0, |g| g.0),
        shared: world.get_resource::<SharedGeneration>().map_or(0, |g| g.0),
        salt: world.get_resource::<PlanSalt>().map_or(0, |s| s.0),
    }
}

/// A cached plan decides placements without its passes having run.
fn restore_placements(world: &mut World, plan: &Plan) {
    let entities = Arc::clone(&world.resource::<NodeOrder>().entities);
    let mut answers = world.query::<(&mut BackendId, &mut Cause)>();
    for (node, &entity) in entities.iter().enumerate() {
        let Ok((mut id, mut cause)) = answers.get_mut(world, entity) else { continue };
        id.set_if_neq(BackendId(Some(BackendIndex(plan.placements[node]))));
        cause.set_if_neq(plan.causes[node]);
    }
}

fn arena_of(world: &mut World, graph: Entity) -> Entity {
    if let Some(uses) = world.get::<UsesArena>(graph).copied()
        && world.get::<Arena>(uses.0).is_some()
    {
        return uses.0;
    }
    let arena = world.spawn(Arena::default()).id();
    world.entity_mut(graph).insert((UsesArena(arena), OwnArena(arena)));
    arena
}

/// Makes the arena large enough. The old buffer goes before the new one is asked for, so that the peak is the larger of both; for
/// that, graphs bound to the arena let go of it and are bound again before they run.
fn reserve(
    world: &mut World,
    arena: Entity,
    plan: &Plan,
    size_bytes: fn(&PlanBuffer, &Plan) -> u64,
) -> Result<(), PlanError> {
    let Some(current) = world.get::<Arena>(arena) else { return Ok(()) };
    let serves = |planned: &PlanBuffer| {
        let found = current.buffers.iter().find(|b| is_for(b, planned, plan));
        found.is_some_and(|b| b.buffer.size_bytes() >= size_bytes(planned, plan))
    };
    if plan.buffers.iter().all(serves) {
        return Ok(());
    }
    let mut bound = world.query::<&mut GraphPlan>();
    for mut graph in bound.iter_mut(world).filter(|graph| graph.arena == arena) {
        graph.binding.clear();
    }
    let Some(mut arena) = world.get_mut::<Arena>(arena) else { return Ok(()) };
    let mut made = Vec::new();
    for planned in &plan.buffers {
        let size_bytes = size_bytes(planned, plan);
        let found = arena.buffers.iter().position(|b| is_for(b, planned, plan));
        if let Some(found) = found {
            if arena.buffers[found].buffer.size_bytes() >= size_bytes {
                continue;
            }
            arena.buffers.swap_remove(found);
        }
        arena.epoch += 1;
        arena.holder = None;
        let backend = &plan.backends[planned.backend as usize];
        // What was made before a failure goes again: an error keeps no memory.
        let buffer = DeviceBuffer::create(&backend.handle, size_bytes, Usage::Compute).map_err(|source| {
            let (backend, largest) = (Arc::clone(&backend.name), largest_at_peak(plan, 8));
            PlanError::Allocation { backend, size_bytes, largest, source }
        })?;
        made.push(ArenaBuffer { buffer_type: Arc::clone(&planned.buffer_type), ordinal: planned.ordinal, buffer });
    }
    arena.buffers.append(&mut made);
    Ok(())
}

fn planned_bytes(planned: &PlanBuffer, _: &Plan) -> u64 {
    planned.size_bytes
}

/// What a smaller graph may need of a buffer: of several all but the last end where one tensor more did not fit, and more of its
/// tensors may.
fn most_bytes(planned: &PlanBuffer, plan: &Plan) -> u64 {
    if !plan.buffers.iter().any(|other| other.backend == planned.backend && other.ordinal > planned.ordinal) {
        return planned.size_bytes;
    }
    let owner = plan.backends[planned.backend as usize].handle.capabilities();
    let sharers = plan.backends.iter().map(|backend| backend.handle.capabilities());
    let sharers = sharers.filter(|c| c.buffer_type == owner.buffer_type && c.memory == owner.memory);
    let most_bytes = sharers.map(|capabilities| capabilities.max_buffer_bytes).min();
    most_bytes.unwrap_or(0).max(planned.size_bytes)
}

/// Makes the arena of a planned graph large enough for smaller graphs too. It may have to be bound again then.
///
/// # Errors
/// [`PlanError::Allocation`].
pub fn reserve_for_smaller(world: &mut World, graph: Entity) -> Result<(), PlanError> {
    let Some(current) = world.get::<GraphPlan>(graph) else { return Ok(()) };
    let (arena, plan) = (current.arena, Arc::clone(&current.plan));
    reserve(world, arena, &plan, most_bytes)
}

/// Whether a buffer of an arena serves as a planned one. A backend that replaced another has no use for its buffers.
fn is_for(buffer: &ArenaBuffer, planned: &PlanBuffer, plan: &Plan) -> bool {
    buffer.ordinal == planned.ordinal
        && buffer.buffer_type == planned.buffer_type
        && Arc::ptr_eq(buffer.buffer.backend(), &plan.backends[planned.backend as usize].handle)
}

/// The memories of a run, in the plan's order.
fn bind(world: &World, arena: Entity, plan: &Plan, existing: &[Arc<DeviceBuffer>]) -> (Binding, u64) {
    let Some(arena) = world.get::<Arena>(arena) else { return (Vec::new(), 0) };
    let planned = plan.buffers.iter().filter_map(|planned| {
        arena.buffers.iter().find(|b| is_for(b, planned, plan)).map(|b| b.buffer.memory().clone())
    });
    let binding = planned.chain(existing.iter().map(|b| b.memory().clone())).collect();
    (binding, arena.epoch)
}

/// Binds a planned graph again after its arena's buffers were replaced for another graph, or could not be.
///
/// # Errors
/// [`PlanError::Allocation`], when the arena lacks a buffer and it cannot be made.
pub fn rebind(world: &mut World, graph: Entity) -> Result<(), PlanError> {
    let Some(current) = world.get::<GraphPlan>(graph) else { return Ok(()) };
    let (arena, plan, existing) = (current.arena, Arc::clone(&current.plan), current.existing.clone());
    reserve(world, arena, &plan, planned_bytes)?;
    let (binding, epoch) = bind(world, arena, &plan, &existing);
    if let Some(mut current) = world.get_mut::<GraphPlan>(graph) {
        current.binding = binding;
        current.arena_epoch = epoch;
    }
    Ok(())
}

/// The largest tensors alive at the step where memory peaks.
fn largest_at_peak(plan: &Plan, most: usize) -> Vec<LiveTensor> {
    // What begins and ends at each step; at the step of a hand-over in place, old and new are one piece of memory.
    let mut changes: Vec<(u32, i128)> = Vec::with_capacity(plan.allocations.len() * 2);
    for a in &plan.allocations {
        changes.push((a.first + u32::from(a.in_place_of.is_some()), i128::from(a.size_bytes)));
        changes.push((a.last + 1, -i128::from(a.size_bytes)));
    }
    changes.sort_unstable();
    let (mut sum, mut most_bytes, mut peak) = (0_i128, 0_i128, 0);
    for (step, change) in changes {
        sum += change;
        if sum > most_bytes {
            (most_bytes, peak) = (sum, step);
        }
    }
    let alive = plan.allocations.iter().filter(|a| a.first <= peak && peak <= a.last);
    let mut largest: Vec<LiveTensor> =
        alive.map(|a| LiveTensor { name: plan.allocation_name(a), size_bytes: a.size_bytes }).collect();
    largest.sort_by(|a, b| b.size_bytes.cmp(&a.size_bytes).then_with(|| a.name.cmp(&b.name)));
    largest.truncate(most);
    largest
}
