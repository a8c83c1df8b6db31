//! **compute**: walks a plan. It needs no World: the same walk runs as a system, on another thread, or by hand.
//!
//! Reads: the graph's plan and binding. Writes: memory, through the backends.
//! Invariants: allocates nothing after the first run; steps run in order; the first error ends the run.
//! Cost: steps, plus the work. Source: DESIGN "compute"; ggml's `ggml_backend_sched_compute_splits`.

use std::sync::{Arc, PoisonError};

use bevy_ecs::prelude::*;
use entensor_components::{BackendError, MemoryHandle, TensorRef};

use crate::{
    columns::Planning,
    error::PlanError,
    plan::{Plan, Step},
    publish::GraphPlan,
    status::{PassResult, PlanStatus},
};

/// The pass.
pub fn compute(
    planning: Res<'_, Planning>,
    mut graphs: Query<'_, '_, &mut GraphPlan>,
    mut status: ResMut<'_, PlanStatus>,
) -> PassResult {
    let mut graph = graphs.get_mut(planning.0).map_err(|_| PlanError::UnknownGraph)?;
    let slot = graph.slot;
    run_plan(&graph.plan, &graph.binding, slot)?;
    let slots = crate::columns::index_u32(graph.plan.programs.len());
    graph.slot = (slot + 1) % slots.max(1);
    *status = PlanStatus::Ready;
    Ok(graph.plan.splits.len())
}

/// Runs one slot of a plan on these memories: the plan's buffers, then its existing buffers. Blocks until the work is done,
/// or submitted on asynchronous backends.
///
/// # Errors
/// [`PlanError::Run`] names the step and the backend.
pub fn run_plan(plan: &Plan, memory: &[MemoryHandle], slot: u32) -> Result<(), PlanError> {
    if memory.len() < plan.memory_count() {
        return Err(PlanError::Unbound { needed: plan.memory_count(), bound: memory.len() });
    }
    let program = &plan.programs[slot as usize % plan.programs.len()];
    let mut events = plan.events.lock().unwrap_or_else(PoisonError::into_inner);
    for (index, step) in program.steps.iter().enumerate() {
        let result = match step {
            Step::Copy { split, from, from_backend, to, .. } => {
                let to_backend = plan.splits[*split as usize].backend;
                copy(plan, memory, *from_backend, to_backend, from, to)
            }
            Step::Launch { split } => program.prepared[*split as usize].submit(memory).map(drop),
            Step::Record { backend, event } => {
                let recorded = plan.backends[*backend as usize].handle.record();
                recorded.map(|id| events[*event as usize] = id)
            }
            Step::Wait { backend, event, of } => {
                let of = &plan.backends[*of as usize].handle;
                plan.backends[*backend as usize].handle.wait(&**of, events[*event as usize])
            }
        };
        result.map_err(|source| failed(plan, index, step, source))?;
    }
    Ok(())
}

pub(crate) fn failed(plan: &Plan, step: usize, what: &Step, source: BackendError) -> PlanError {
    let name = |b: u32| Arc::clone(&plan.backends[b as usize].name);
    let (what, backend) = match what {
        Step::Copy { copy, split, .. } => {
            let node = &plan.table.names[plan.copies[*copy as usize].source as usize];
            (format!("copy of `{node}`"), plan.splits[*split as usize].backend)
        }
        Step::Launch { split } => (format!("split {split}"), plan.splits[*split as usize].backend),
        Step::Record { backend, .. } => ("record an event".into(), *backend),
        Step::Wait { backend, .. } => ("wait for an event".into(), *backend),
    };
    PlanError::Run { step, what, backend: name(backend), source }
}

/// Makes the bounce memory as large as the plan's largest copy.
fn grow(plan: &Plan, staging: &mut Vec<u8>) -> Result<(), BackendError> {
    let size_bytes = plan.copies.iter().map(|&copy| plan.copy_bytes(copy)).max().unwrap_or(0);
    let out_of_memory = || BackendError::OutOfMemory { size_bytes };
    let size = usize::try_from(size_bytes).map_err(|_| out_of_memory())?;
    staging.try_reserve_exact(size.saturating_sub(staging.len())).map_err(|_| out_of_memory())?;
    staging.resize(size, 0);
    Ok(())
}

/// Copies a tensor's span from one backend's memory to another's.
pub(crate) fn copy(
    plan: &Plan,
    memory: &[MemoryHandle],
    from_backend: u32,
    to_backend: u32,
    from: &TensorRef,
    to: &TensorRef,
) -> Result<(), BackendError> {
    let (source, target) = (&memory[from.memory.0 as usize], &memory[to.memory.0 as usize]);
    let bytes = from.desc.size_bytes();
    let mut staging = plan.staging.lock().unwrap_or_else(PoisonError::into_inner);
    let len = usize::try_from(bytes).map_err(|_| BackendError::OutOfMemory { size_bytes: bytes })?;
    if staging.len() < len {
        grow(plan, &mut staging)?;
    }
    let staging = staging.get_mut(..len).ok_or(BackendError::OutOfMemory { size_bytes: bytes })?;
    let (from_handle, to_handle) =
        (&plan.backends[from_backend as usize].handle, &plan.backends[to_backend as usize].handle);
    // The backend that holds the bytes reads them, after its work; the one that needs them writes them.
    if let Some(host) = source.as_host() {
        let start = usize::try_from(from.offset_bytes).unwrap_or(usize::MAX);
        let guard = host.read();
        let range = start.checked_add(len).and_then(|end| guard.get(start..end));
        staging.copy_from_slice(range.ok_or(BackendError::OutOfBounds {
            offset_bytes: from.offset_bytes,
            len_bytes: bytes,
            size_bytes: host.size_bytes(),
        })?);
    } else {
        from_handle.read(source, from.offset_bytes, staging)?;
    }
    to_handle.write(target, to.offset_bytes, staging)
}
