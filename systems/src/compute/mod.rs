//! **compute**: walks a plan. It needs no World: the same walk runs as a system, on another thread, or by hand.
//!
//! Reads: the graph's plan and binding. Writes: memory, through the backends; `GraphRuns`.
//! Invariants: allocates nothing after the first runs; steps run in order; the first error ends the run; a run stays behind the one
//! before it in every queue. Submitting waits for no device: where the host's own work needs a device's, the run goes on when somebody
//! polls it or waits for it.
//! Cost: steps, plus the work. Source: DESIGN "compute"; ggml's `ggml_backend_sched_compute_splits`.

mod runs;
mod walk;

use std::time::Instant;

use bevy_ecs::prelude::*;
use entensor_components::{CancelToken, GraphName, MemoryHandle, RunLimit};

pub use runs::GraphRuns;
pub use walk::{Mode, RunState};

use crate::{
    columns::Planning,
    error::PlanError,
    plan::Plan,
    profile::Profile,
    publish::GraphPlan,
    status::{PassResult, PlanStatus},
};

/// Limits of the run that is being submitted; for callers of the schedule, which take them away again.
#[derive(Resource, Clone, Debug, Default)]
pub struct RunLimits {
    /// Ends the run.
    pub cancel: Option<CancelToken>,
    /// When the host's own work pauses.
    pub deadline: Option<Instant>,
}

/// The pass: submits a run. It may still be under way afterwards: [`GraphRuns`] says.
pub fn compute(
    planning: Res<'_, Planning>,
    limits: Option<Res<'_, RunLimits>>,
    profile: Option<ResMut<'_, Profile>>,
    mut graphs: Query<'_, '_, (&mut GraphPlan, &GraphRuns, &GraphName)>,
    mut status: ResMut<'_, PlanStatus>,
) -> PassResult {
    let (mut graph, runs, name) = graphs.get_mut(planning.0).map_err(|_| PlanError::UnknownGraph)?;
    let slot = graph.slot;
    let limit = limits
        .as_ref()
        .map_or(RunLimit::NONE, |limits| RunLimit { deadline: limits.deadline, cancel: limits.cancel.as_ref() });
    if let Some(mut profile) = profile {
        runs.record(profile.recorder(planning.0, &name.0, &graph.plan));
    }
    runs.submit(&graph.plan, &graph.binding, &graph.existing, slot, &limit)?;
    let slots = crate::columns::index_u32(graph.plan.programs.len());
    graph.slot = (slot + 1) % slots.max(1);
    *status = PlanStatus::Ready;
    Ok(graph.plan.splits.len())
}

/// Runs one slot of a plan on these memories: the plan's buffers, then its existing buffers. Blocks until the work is done. No other
/// run may be under way on these memories.
///
/// # Errors
/// [`PlanError::Run`] names the step and the backend; nothing is under way then.
pub fn run_plan(plan: &Plan, memory: &[MemoryHandle], slot: u32) -> Result<(), PlanError> {
    if memory.len() < plan.memory_count() {
        return Err(PlanError::Unbound { needed: plan.memory_count(), bound: memory.len() });
    }
    let mut state = RunState::start(plan, slot, None);
    let submitted = state.advance(plan, memory, slot, None, Mode::Wait, &RunLimit::NONE);
    let done = submitted.and_then(|_| state.settle(plan, slot, Mode::Wait, &RunLimit::NONE));
    if done.is_err() {
        state.abandon(plan);
    }
    state.end(plan);
    done.map(drop)
}
