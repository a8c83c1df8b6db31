//! Runs that are under way while the caller goes on: submitted, polled, waited for, cancelled.
//!
//! A graph has as many runs under way as it has pipelined slots; its inputs and outputs exist once per slot. What several
//! graphs share is waited for: two unfinished runs never use one arena, and none writes memory of the user's own that another uses.

use std::{borrow::BorrowMut, sync::Arc, time::Duration};

use bevy_ecs::prelude::*;
use entensor_components::{BackendError, DeviceBuffer, RunLimit};
use entensor_systems::{
    GraphPlan, GraphRuns, GraphStatus, Pass, PlanError, PlanStatus, Planning, RunLimits, UsesArena, publish,
    run_plan_schedule,
};

use crate::{
    engine::{Engine, GraphId, InputState},
    error::EngineError,
};

/// A run of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunId {
    /// The graph.
    pub graph: GraphId,
    /// Its number: a graph's runs count from 1.
    pub number: u64,
}

/// Graphs with runs that may be under way.
#[derive(Resource, Default)]
pub(crate) struct InFlight(Vec<Entity>);

/// Notes a graph, and forgets those whose runs are over and whose last one has no error that somebody may want to hear of.
fn note_in_flight(world: &mut World, graph: Entity) {
    world.init_resource::<InFlight>();
    world.resource_scope(|world, mut flight: Mut<'_, InFlight>| {
        let is_wanted = |&other: &Entity| {
            let runs = world.get::<GraphRuns>(other).filter(|_| other != graph);
            runs.is_some_and(|runs| runs.in_flight() > 0 || runs.is_failed(runs.last()))
        };
        flight.0.retain(is_wanted);
        flight.0.push(graph);
    });
}

impl<W: BorrowMut<World>> Engine<W> {
    /// Submits a run and returns before devices are done with it. Work of synchronous backends is done by the caller: here as far as it waits
    /// for no device, and else in [`Self::poll`] and [`Self::wait`].
    ///
    /// Waits for the run before the last few, if all of the graph's slots are in use, and for runs of other graphs that share memory with
    /// it. Inputs are written before each run, for that run alone, if the graph has several slots.
    ///
    /// # Errors
    /// As [`Self::run`].
    ///
    /// ```
    /// use entensor::{DType, Engine, GraphBuilder};
    ///
    /// let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    /// let mut g = GraphBuilder::new("doubled");
    /// g.pipeline_copies(2);
    /// let x = g.input("x", DType::F32, &[2])?;
    /// let y = g.scale(x, 2.0)?;
    /// let y = g.output("y", y)?;
    /// let graph = engine.add_graph(g);
    ///
    /// engine.write(graph, x, &[1.0_f32, 2.0])?;
    /// let first = engine.run_async(graph)?;
    /// engine.write(graph, x, &[3.0_f32, 4.0])?;
    /// let second = engine.run_async(graph)?;
    /// let mut result = [0.0_f32; 2];
    /// engine.wait(first)?;
    /// engine.read_run(first, y, &mut result)?;
    /// assert_eq!(result, [2.0, 4.0]);
    /// engine.read_run(second, y, &mut result)?;
    /// assert_eq!(result, [6.0, 8.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_async(&mut self, graph: GraphId) -> Result<RunId, EngineError> {
        self.abandon(graph);
        self.submit(graph, &RunLimit::NONE)
    }

    pub(crate) fn submit(&mut self, graph: GraphId, limit: &RunLimit<'_>) -> Result<RunId, EngineError> {
        self.check_runnable(graph)?;
        self.settle_shared(graph);
        let world = self.world_mut();
        publish::show_plan(world, graph.0);
        let plan = world.get::<GraphPlan>(graph.0).map(|plan| Arc::clone(&plan.plan));
        let plan = plan.ok_or(EngineError::UnknownGraph)?;
        let slots = plan.programs.len();
        if let Some(mut state) = world.get_mut::<InputState>(graph.0) {
            state.start(&plan);
        }
        world.insert_resource(Planning(graph.0));
        *world.resource_mut::<PlanStatus>() = PlanStatus::Computing;
        if !limit.is_none() {
            world.insert_resource(RunLimits { cancel: limit.cancel.cloned(), deadline: limit.deadline });
        }
        let ran = run_plan_schedule(world);
        if !limit.is_none() {
            world.remove_resource::<RunLimits>();
        }
        ran?;
        if let Err(error) = self.take_failure(graph) {
            return Err(match error {
                EngineError::Plan { error, .. } => {
                    let number = self.world().get::<GraphRuns>(graph.0).map_or(0, GraphRuns::last);
                    self.run_failed(RunId { graph, number }, *error)
                }
                other => other,
            });
        }
        let world = self.world_mut();
        let runs = world.get::<GraphRuns>(graph.0).ok_or(EngineError::UnknownGraph)?;
        let (number, under_way) = (runs.last(), runs.in_flight() > 0);
        if under_way {
            note_in_flight(world, graph.0);
        }
        // The next run has another slot, where nothing was written for it yet.
        if slots > 1
            && let Some(mut state) = world.get_mut::<InputState>(graph.0)
        {
            state.written.fill(false);
        }
        Ok(RunId { graph, number })
    }

    /// Whether a run is over; goes on with what the host has to do for it, and waits for no device.
    ///
    /// # Errors
    /// What the run failed with; [`EngineError::UnknownRun`].
    pub fn poll(&mut self, run: RunId) -> Result<bool, EngineError> {
        let polled = self.runs_of(run)?.poll(run.number, &RunLimit::NONE);
        polled.map_err(|error| self.run_failed(run, error))
    }

    /// Blocks until a run and all runs of its graph before it are over.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn wait(&mut self, run: RunId) -> Result<(), EngineError> {
        self.finish(run, &RunLimit::NONE).map(drop)
    }

    /// Blocks until a run is over, or for so long; says which. The host's own work is not begun piece by piece: backends notice at
    /// the next place on their grid that the time is over.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn wait_for(&mut self, run: RunId, timeout: Duration) -> Result<bool, EngineError> {
        let deadline = std::time::Instant::now().checked_add(timeout);
        self.finish(run, &RunLimit { deadline, ..RunLimit::NONE })
    }

    pub(crate) fn finish(&mut self, run: RunId, limit: &RunLimit<'_>) -> Result<bool, EngineError> {
        let waited = self.runs_of(run)?.wait(run.number, limit);
        waited.map_err(|error| self.run_failed(run, error))
    }

    /// Ends a run: what has not begun is taken back, what has begun is waited for. It has no results, and asking for it
    /// gives [`EngineError::Cancelled`]; other runs go on. Memory of the user's own that the run was to write may be written in part.
    /// False if it was over already.
    ///
    /// # Errors
    /// [`EngineError::UnknownRun`].
    pub fn cancel(&mut self, run: RunId) -> Result<bool, EngineError> {
        Ok(self.runs_of(run)?.cancel(run.number))
    }

    /// Blocks until no run is under way.
    ///
    /// # Errors
    /// What the last run of a graph failed with; all the others are over too then.
    pub fn synchronize(&mut self) -> Result<(), EngineError> {
        let graphs = self.world_mut().get_resource_mut::<InFlight>().map(|mut flight| std::mem::take(&mut flight.0));
        let mut result = Ok(());
        for graph in graphs.unwrap_or_default().into_iter().map(GraphId) {
            let Some(runs) = self.world().get::<GraphRuns>(graph.0) else { continue };
            runs.wait_all();
            let (number, last) = (runs.last(), runs.poll(runs.last(), &RunLimit::NONE));
            if let Err(error) = last.map_err(|error| self.run_failed(RunId { graph, number }, error)) {
                result = result.and(Err(error));
            }
        }
        result
    }

    /// Forgets a graph's plan and results, as if it had just been added; its pins and what it wants stay. Waits for runs that
    /// are under way.
    ///
    /// # Errors
    /// [`EngineError::UnknownGraph`].
    pub fn reset(&mut self, graph: GraphId) -> Result<(), EngineError> {
        self.abandon(graph);
        if let Some(runs) = self.world().get::<GraphRuns>(graph.0) {
            runs.wait_all();
        }
        let world = self.world_mut();
        let mut state = world.get_mut::<InputState>(graph.0).ok_or(EngineError::UnknownGraph)?;
        state.written.clear();
        publish::unpublish(world, graph.0);
        if let Some(mut status) = world.get_mut::<GraphStatus>(graph.0) {
            *status = GraphStatus::Unplanned;
        }
        Ok(())
    }

    /// How many runs of a graph are under way.
    #[must_use]
    pub fn in_flight(&self, graph: GraphId) -> usize {
        self.world().get::<GraphRuns>(graph.0).map_or(0, GraphRuns::in_flight)
    }

    fn runs_of(&self, run: RunId) -> Result<&GraphRuns, EngineError> {
        let runs = self.world().get::<GraphRuns>(run.graph.0);
        let known = runs.filter(|runs| (1..=runs.last()).contains(&run.number));
        known.ok_or_else(|| EngineError::UnknownRun { graph: self.graph_name(run.graph) })
    }

    /// Notes why a run failed, and goes on without devices that are lost.
    pub(crate) fn run_failed(&mut self, run: RunId, error: PlanError) -> EngineError {
        let (graph, name) = (run.graph, self.graph_name(run.graph));
        let paused = self.world().get::<InputState>(graph.0).and_then(|state| state.paused.as_ref());
        // An older run's failure is not the paused one's.
        if paused.is_some_and(|paused| paused.number == run.number) {
            self.forget_pause(graph);
            self.take_slot_back(run);
        }
        match error.reported() {
            Some(BackendError::Cancelled) => {
                if let Some(mut status) = self.world_mut().get_mut::<GraphStatus>(graph.0) {
                    status.set_if_neq(GraphStatus::Planned);
                }
                return EngineError::Cancelled { graph: name };
            }
            Some(BackendError::DeviceLost { reason }) => {
                let reason: Arc<str> = reason.as_str().into();
                return self.device_failed(graph, &error, reason);
            }
            _ => {}
        }
        if let Some(mut status) = self.world_mut().get_mut::<GraphStatus>(graph.0) {
            *status = GraphStatus::Failed { pass: Pass::Compute, error: error.clone() };
        }
        EngineError::Plan { graph: name, pass: Pass::Compute, error: Box::new(error) }
    }

    /// Graphs whose runs may be under way, without those that are over.
    fn flight(&self) -> impl Iterator<Item = (Entity, &GraphRuns)> {
        let flight = self.world().get_resource::<InFlight>().into_iter().flat_map(|flight| &flight.0);
        let runs = |&graph: &Entity| self.world().get::<GraphRuns>(graph).map(|runs| (graph, runs));
        flight.filter_map(runs).filter(|(_, runs)| runs.in_flight() > 0)
    }

    /// Waits for all runs.
    pub(crate) fn settle_all(&self) {
        self.flight().for_each(|(_, runs)| runs.wait_all());
    }

    /// Whether a graph with runs under way uses the same arena as this one, or is this one.
    fn shares_arena(&self, graph: GraphId, other: Entity) -> bool {
        let world = self.world();
        let planned = world.get::<GraphPlan>(graph.0).map(|plan| plan.arena);
        let arena = planned.or_else(|| world.get::<UsesArena>(graph.0).map(|uses| uses.0));
        other == graph.0 || world.get::<GraphPlan>(other).is_some_and(|plan| Some(plan.arena) == arena)
    }

    /// Waits for runs in the graph's arena: its own, and those of graphs that share it. Those that are paused stay so.
    pub(crate) fn settle_arena(&self, graph: GraphId) {
        for (other, runs) in self.flight().filter(|(other, _)| self.shares_arena(graph, *other)) {
            match self.paused_number(GraphId(other)) {
                None => runs.wait_all(),
                // What an older run failed with stays to be asked for.
                Some(paused) => drop(runs.wait(paused - 1, &RunLimit::NONE)),
            }
        }
    }

    /// Ends paused runs in the graph's arena: another one gets its memory.
    pub(crate) fn abandon_in_arena(&mut self, graph: GraphId) {
        let is_theirs = |other: &Entity| self.shares_arena(graph, *other) && self.is_paused(GraphId(*other));
        let paused: Vec<Entity> = self.flight().map(|(other, _)| other).filter(is_theirs).collect();
        for other in paused {
            // Its graph learns of it when it goes on.
            let number = self.paused_number(GraphId(other));
            if let Some((runs, number)) = self.world().get::<GraphRuns>(other).zip(number) {
                runs.cancel(number);
            }
        }
    }

    /// Waits for runs of other graphs that write what this one reads, or use what it writes.
    pub(crate) fn settle_shared(&self, graph: GraphId) {
        let Some(plan) = self.world().get::<GraphPlan>(graph.0) else { return };
        for (_, runs) in self.flight().filter(|(other, _)| *other != graph.0) {
            let meets = |(place, buffer): (usize, &Arc<DeviceBuffer>)| {
                runs.uses(buffer, true) || (runs.uses(buffer, false) && plan.plan.writes_existing(place))
            };
            if plan.existing.iter().enumerate().any(meets) {
                runs.wait_all();
            }
        }
    }

    /// Waits for runs that use a buffer; for a read only those that may write it.
    pub(crate) fn settle_buffer(&self, buffer: &Arc<DeviceBuffer>, written: bool) {
        for (_, runs) in self.flight().filter(|(_, runs)| runs.uses(buffer, written)) {
            runs.wait_all();
        }
    }

    /// Waits for the run that uses the memory of the graph's next run.
    pub(crate) fn settle_slot(&self, graph: GraphId) {
        let plan = self.world().get::<GraphPlan>(graph.0);
        if let Some((plan, runs)) = plan.zip(self.world().get::<GraphRuns>(graph.0)) {
            runs.wait_slot(plan.slot);
        }
    }
}
