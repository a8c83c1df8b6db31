//! Walking a plan in slices: up to a deadline, or until it is cancelled.
//!
//! Reads: the plan and its memories, and how far the run has come. Writes: memory, through the backends.
//! Invariants: where a run is cut changes no bit; every call does something; after a cancelled run nobody is at work on its memories.
//! Cost: as [`compute`](crate::compute). Source: DESIGN "compute".

use std::sync::PoisonError;

use entensor_components::{BackendError, Cursor, MemoryHandle, Progress, RunLimit};

use crate::{
    columns::index_u32,
    compute::{copy, failed},
    error::PlanError,
    plan::{Plan, Step},
};

/// How far a run of a plan has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanCursor {
    /// The first of the program's steps that is not done.
    pub step: u32,
    /// Where that step goes on, if it is a split.
    pub within: Cursor,
}

/// Whether a run of a plan is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanProgress {
    /// Everything is done, or submitted on asynchronous backends.
    Done,
    /// The deadline came first; the cursor says where to go on.
    Paused,
}

/// Runs one slot of a plan from a place on until it is done or the limit is reached, and moves the place on. The first place is
/// [`PlanCursor::default`]; the others are those that the last call left, for the same plan, slot and memories. In between, nobody may write
/// what the run reads or writes; other runs of the plan on other memories may come in between.
///
/// Blocks until the limit is reached. A deadline that has passed lets every call do one copy or one piece of a split. What was submitted to
/// asynchronous backends before a pause may still be under way.
///
/// # Errors
/// [`PlanError::Run`] names the step and the backend; its source is [`BackendError::Cancelled`] when the limit's token was set. Then
/// everything that was submitted has ended, and the run's outputs hold anything.
pub fn run_plan_from(
    plan: &Plan,
    memory: &[MemoryHandle],
    slot: u32,
    at: &mut PlanCursor,
    limit: &RunLimit<'_>,
) -> Result<PlanProgress, PlanError> {
    if memory.len() < plan.memory_count() {
        return Err(PlanError::Unbound { needed: plan.memory_count(), bound: memory.len() });
    }
    let program = &plan.programs[slot as usize % plan.programs.len()];
    let mut events = plan.events.lock().unwrap_or_else(PoisonError::into_inner);
    // A copy was made, or a piece of a split.
    let mut worked = false;
    for (index, step) in program.steps.iter().enumerate().skip(at.step as usize) {
        *at = PlanCursor {
            step: index_u32(index),
            within: if index == at.step as usize { at.within } else { Cursor::START },
        };
        let backend = |b: u32| &plan.backends[b as usize].handle;
        let result = if limit.is_cancelled() {
            Err(BackendError::Cancelled)
        } else if worked && limit.is_over() {
            return Ok(PlanProgress::Paused);
        } else {
            match step {
                Step::Copy { split, from, from_backend, to, .. } => {
                    worked = true;
                    copy(plan, memory, *from_backend, plan.splits[*split as usize].backend, from, to)
                }
                Step::Launch { split } => {
                    worked = true;
                    match program.prepared[*split as usize].run_from(memory, at.within, limit) {
                        Ok(Progress::Done(_)) => Ok(()),
                        Ok(Progress::Paused(within)) => {
                            at.within = within;
                            return Ok(PlanProgress::Paused);
                        }
                        Err(error) => Err(error),
                    }
                }
                Step::Record { backend: of, event } => {
                    backend(*of).record().map(|recorded| events[*event as usize] = recorded)
                }
                Step::Wait { backend: waiting, event, of } => {
                    backend(*waiting).wait(&**backend(*of), events[*event as usize])
                }
            }
        };
        if let Err(source) = result {
            if source == BackendError::Cancelled {
                for backend in &plan.backends {
                    // A lost device does nothing any more either.
                    let _ = backend.handle.synchronize();
                }
            }
            return Err(failed(plan, index, step, source));
        }
    }
    *at = PlanCursor { step: index_u32(program.steps.len()), within: Cursor::START };
    Ok(PlanProgress::Done)
}
