//! Running graphs up to a deadline, or until they are cancelled.

use std::{borrow::BorrowMut, sync::Arc, time::Instant};

use bevy_ecs::prelude::*;
use entensor_components::{BackendError, RunLimit};
use entensor_systems::{
    Arena, GraphPlan, GraphStatus, Pass, PassTimings, Plan, PlanCounters, PlanCursor, PlanError, PlanProgress,
    PlanStatus, Planning, run_plan_from,
};

use crate::{
    engine::{Engine, GraphId, InputState},
    error::EngineError,
};

/// Whether a run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunProgress {
    /// Its outputs can be read.
    Done,
    /// The deadline came first; the next call goes on.
    Paused,
}

/// A run that goes on with the next call.
pub(crate) struct PausedRun {
    /// Kept, so that no other plan can take its address.
    plan: Arc<Plan>,
    arena_epoch: u64,
    slot: u32,
    at: PlanCursor,
}

impl<W: BorrowMut<World>> Engine<W> {
    /// Runs a graph until it is done or the limit is reached: a game gives it what is left of a frame. A paused run goes on with the next
    /// call, and where it was cut changes no bit. Every call does something, however short its time.
    ///
    /// Until the run is done, its outputs cannot be read. While it is paused, other graphs may run, also of the same plan, but not
    /// in the same arena; and memory that the graph shares with others (a cache, state) is for the caller to leave alone.
    /// Writing an input of a paused graph, or [`Engine::run`], starts over. The steps are walked right here, not by the
    /// [`compute`](Pass::Compute) pass.
    ///
    /// # Errors
    /// As [`Engine::run`]. [`EngineError::Cancelled`] when the limit's token was set, and once after something has
    /// changed the graph's plan or used its arena while it was paused. Then its outputs are gone; the graph, its arena and
    /// whatever was written for it are as good as before, and the next run starts over.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// use entensor::{DType, Engine, GraphBuilder, RunLimit, RunProgress};
    ///
    /// let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    /// let mut g = GraphBuilder::new("large");
    /// let x = g.input("x", DType::F32, &[256, 256])?;
    /// let y = g.mul_mat(x, x)?;
    /// let y = g.output("y", y)?;
    /// let graph = engine.add_graph(g);
    /// engine.write(graph, x, &[1.0_f32; 256 * 256])?;
    /// let mut frames = 1;
    /// loop {
    ///     let limit = RunLimit { deadline: Some(Instant::now() + Duration::from_micros(50)), cancel: None };
    ///     if engine.run_until(graph, &limit)? == RunProgress::Done {
    ///         break;
    ///     }
    ///     frames += 1; // draw, simulate …
    /// }
    /// let mut result = vec![0.0_f32; 256 * 256];
    /// engine.read(graph, y, &mut result)?;
    /// assert_eq!(result[0], 256.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_until(&mut self, graph: GraphId, limit: &RunLimit<'_>) -> Result<RunProgress, EngineError> {
        let paused = self.input_state(graph).and_then(|mut state| state.paused.take());
        if !self.plan(graph)? {
            self.world_mut().resource_mut::<PlanCounters>().unchanged += 1;
        }
        let PausedRun { slot, mut at, .. } = match paused {
            Some(paused) if self.can_go_on(graph, &paused) => paused,
            // What it has computed so far is gone.
            Some(_) => return Err(EngineError::Cancelled { graph: self.graph_name(graph) }),
            None => {
                self.hold_arena(graph)?;
                self.check_inputs(graph)?;
                self.begin(graph)?
            }
        };
        let world = self.world_mut();
        world.insert_resource(Planning(graph.0));
        *world.resource_mut::<PlanStatus>() = PlanStatus::Computing;
        let Some(plan) = world.get::<GraphPlan>(graph.0) else { return Err(EngineError::UnknownGraph) };
        let start = Instant::now();
        let result = run_plan_from(&plan.plan, &plan.binding, slot, &mut at, limit);
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let (slots, splits) = (plan.plan.programs.len(), plan.plan.splits.len() as u64);
        let (arena_epoch, plan) = (plan.arena_epoch, Arc::clone(&plan.plan));
        *world.resource_mut::<PlanStatus>() = PlanStatus::Ready;
        world.resource_mut::<PassTimings>().record(Pass::Compute, ns, splits);
        match result {
            Ok(PlanProgress::Paused) => {
                if let Some(mut state) = self.input_state(graph) {
                    state.paused = Some(PausedRun { plan, arena_epoch, slot, at });
                }
                Ok(RunProgress::Paused)
            }
            Ok(PlanProgress::Done) => {
                if let Some(mut status) = self.world_mut().get_mut::<GraphStatus>(graph.0) {
                    status.set_if_neq(GraphStatus::Planned);
                }
                if let Some(mut plan) = self.world_mut().get_mut::<GraphPlan>(graph.0) {
                    plan.slot = (slot + 1) % u32::try_from(slots).unwrap_or(u32::MAX).max(1);
                }
                if let Some(mut state) = self.input_state(graph) {
                    state.ran_slot = Some(slot);
                    // The next run has another slot, where nothing was written for it yet.
                    if slots > 1 {
                        state.written.fill(false);
                    }
                }
                Ok(RunProgress::Done)
            }
            Err(PlanError::Run { source: BackendError::Cancelled, .. }) => {
                Err(EngineError::Cancelled { graph: self.graph_name(graph) })
            }
            Err(error) => {
                let pass = Pass::Compute;
                if let Some(mut status) = self.world_mut().get_mut::<GraphStatus>(graph.0) {
                    *status = GraphStatus::Failed { pass, error: error.clone() };
                }
                Err(EngineError::Plan { graph: self.graph_name(graph), pass, error: Box::new(error) })
            }
        }
    }

    /// Whether a run of this graph is paused, and goes on with the next [`Engine::run_until`].
    #[must_use]
    pub fn is_paused(&self, graph: GraphId) -> bool {
        self.world().get::<InputState>(graph.0).is_some_and(|state| state.paused.is_some())
    }

    /// Forgets a paused run: the next one starts over. Whether there was one.
    pub fn abandon(&mut self, graph: GraphId) -> bool {
        self.input_state(graph).is_some_and(|mut state| state.paused.take().is_some())
    }

    fn input_state(&mut self, graph: GraphId) -> Option<Mut<'_, InputState>> {
        self.world_mut().get_mut::<InputState>(graph.0)
    }

    /// Whether what a paused run has computed is still there.
    fn can_go_on(&self, graph: GraphId, paused: &PausedRun) -> bool {
        self.world().get::<GraphPlan>(graph.0).is_some_and(|plan| {
            let arena = self.world().get::<Arena>(plan.arena);
            Arc::ptr_eq(&plan.plan, &paused.plan)
                && plan.arena_epoch == paused.arena_epoch
                && arena.is_some_and(|arena| arena.holder == Some(graph.0) && arena.epoch == paused.arena_epoch)
        })
    }

    /// Starts a run: until it is over its outputs are neither the old ones nor the new ones.
    fn begin(&mut self, graph: GraphId) -> Result<PausedRun, EngineError> {
        if let Some(mut state) = self.input_state(graph) {
            state.ran_slot = None;
        }
        let plan = self.world().get::<GraphPlan>(graph.0).ok_or(EngineError::UnknownGraph)?;
        let (slot, arena_epoch) = (plan.slot, plan.arena_epoch);
        Ok(PausedRun { plan: Arc::clone(&plan.plan), arena_epoch, slot, at: PlanCursor::default() })
    }
}
