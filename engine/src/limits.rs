//! Running graphs up to a deadline, or until they are cancelled.

use std::{borrow::BorrowMut, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::RunLimit;
use entensor_systems::{Arena, GraphPlan, GraphRuns, Plan};

use crate::{
    engine::{Engine, GraphId, InputState},
    error::EngineError,
    runs::RunId,
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
    pub(crate) number: u64,
    /// Kept, so that no other plan can take its address.
    plan: Arc<Plan>,
    arena_epoch: u64,
}

impl<W: BorrowMut<World>> Engine<W> {
    /// Runs a graph until it is done or the limit is reached: a game gives it what is left of a frame. A paused run goes on with the next
    /// call, and where it was cut changes no bit. Every call does something, however short its time. What was submitted to devices goes on
    /// meanwhile.
    ///
    /// Until the run is done, its outputs cannot be read. While it is paused, other graphs may run, also of the same plan, but not
    /// in the same arena; and memory that the graph shares with others (a cache, state) is for the caller to leave alone.
    /// Writing an input of a paused graph, or [`Engine::run`], starts over.
    ///
    /// # Errors
    /// As [`Engine::run`]. [`EngineError::Cancelled`] when the limit's token was set, and once after something has
    /// changed the graph's plan or used its arena while it was paused. Then its outputs are gone; the graph, its arena and
    /// whatever was written for it, but for inputs that runs consume, are as good as before, and the next run starts over.
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
        let run = match self.go_on(graph)? {
            Some(number) => RunId { graph, number },
            None => {
                let run = self.submit(graph, limit)?;
                // The first piece is done; what there is no time for is for the next call.
                if limit.is_over() && self.in_flight(graph) > 0 {
                    self.pause(run);
                    return Ok(RunProgress::Paused);
                }
                run
            }
        };
        if self.finish(run, limit)? {
            self.forget_pause(graph);
            return Ok(RunProgress::Done);
        }
        self.pause(run);
        Ok(RunProgress::Paused)
    }

    /// The number of the paused run, if there is one and what it has computed is still there.
    fn go_on(&mut self, graph: GraphId) -> Result<Option<u64>, EngineError> {
        self.plan(graph)?;
        let Some(paused) = self.world().get::<InputState>(graph.0).and_then(|state| state.paused.as_ref()) else {
            return Ok(None);
        };
        let (number, can_go_on) = (paused.number, self.can_go_on(graph, paused));
        if !can_go_on {
            self.abandon(graph);
            return Err(EngineError::Cancelled { graph: self.graph_name(graph) });
        }
        Ok(Some(number))
    }

    /// Whether what a paused run has computed is still there.
    fn can_go_on(&self, graph: GraphId, paused: &PausedRun) -> bool {
        let world = self.world();
        let runs = world.get::<GraphRuns>(graph.0);
        world.get::<GraphPlan>(graph.0).is_some_and(|plan| {
            let arena = world.get::<Arena>(plan.arena);
            runs.is_some_and(|runs| runs.last() == paused.number && !runs.is_failed(paused.number))
                && Arc::ptr_eq(&plan.plan, &paused.plan)
                && plan.arena_epoch == paused.arena_epoch
                && arena.is_some_and(|arena| arena.holder == Some(graph.0) && arena.epoch == paused.arena_epoch)
        })
    }

    fn pause(&mut self, run: RunId) {
        let world = self.world_mut();
        let Some(plan) = world.get::<GraphPlan>(run.graph.0) else { return };
        let paused = PausedRun { number: run.number, plan: Arc::clone(&plan.plan), arena_epoch: plan.arena_epoch };
        if let Some(mut state) = world.get_mut::<InputState>(run.graph.0) {
            state.paused = Some(paused);
        }
    }

    pub(crate) fn forget_pause(&mut self, graph: GraphId) -> Option<u64> {
        let mut state = self.world_mut().get_mut::<InputState>(graph.0)?;
        state.paused.take().map(|paused| paused.number)
    }

    /// Whether a run of this graph is paused, and goes on with the next [`Engine::run_until`].
    #[must_use]
    pub fn is_paused(&self, graph: GraphId) -> bool {
        self.paused_number(graph).is_some()
    }

    /// The number of the run that is paused: the graph's last.
    pub(crate) fn paused_number(&self, graph: GraphId) -> Option<u64> {
        self.world().get::<InputState>(graph.0)?.paused.as_ref().map(|paused| paused.number)
    }

    /// Forgets a paused run: the next one starts over. Whether there was one.
    pub fn abandon(&mut self, graph: GraphId) -> bool {
        let Some(number) = self.forget_pause(graph) else { return false };
        if let Some(runs) = self.world().get::<GraphRuns>(graph.0) {
            runs.cancel(number);
        }
        self.take_slot_back(RunId { graph, number });
        true
    }

    /// The graph's last run came to nothing: its inputs are still there for the next one.
    pub(crate) fn take_slot_back(&mut self, run: RunId) {
        let world = self.world_mut();
        let Some(runs) = world.get::<GraphRuns>(run.graph.0).filter(|runs| runs.last() == run.number) else { return };
        let slot = runs.last_slot();
        let Some(mut plan) = world.get_mut::<GraphPlan>(run.graph.0).filter(|plan| plan.plan.programs.len() > 1) else {
            return;
        };
        // A plan that was made anew begins with its first slot, where nothing is written.
        if (slot + 1) as usize % plan.plan.programs.len() != plan.slot as usize {
            return;
        }
        plan.slot = slot;
        if let Some(mut state) = world.get_mut::<InputState>(run.graph.0) {
            state.written.fill(true);
        }
    }
}
