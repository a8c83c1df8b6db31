//! Planning, running and explaining graphs.

use std::{borrow::BorrowMut, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{BackendError, Cause, DType, GraphName, GraphTensors, RunLimit, Shape};
use entensor_systems::{
    Arena, GraphPlan, GraphRuns, Pass, Plan, PlanCache, PlanCounters, PlanError, PlanNode, PlanReason, PlanSchedule,
    PlanStatus, Planning, publish, run_plan_schedule, verify,
};

use crate::{
    engine::{Engine, GraphId, InputState},
    error::EngineError,
    figures,
    setup::VerifyPlans,
};

/// Why a node of a graph is where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The node.
    pub node: Arc<str>,
    /// Its op with parameters.
    pub op: String,
    /// Its shape.
    pub shape: Shape,
    /// Its dtype.
    pub dtype: DType,
    /// The backend it is on.
    pub backend: Arc<str>,
    /// The rule that placed it.
    pub cause: Cause,
    /// The same in a sentence.
    pub why: String,
}

impl<W: BorrowMut<World>> Engine<W> {
    fn check_installed(&self) -> Result<(), EngineError> {
        let schedules = self.world().get_resource::<Schedules>();
        let installed =
            schedules.is_some_and(|s| s.contains(PlanSchedule)) && self.world().contains_resource::<PlanStatus>();
        if installed { Ok(()) } else { Err(EngineError::NotInstalled) }
    }

    pub(crate) fn graph_name(&self, graph: GraphId) -> Arc<str> {
        self.world().get::<GraphName>(graph.0).map_or_else(|| "?".into(), |name| Arc::clone(&name.0))
    }

    /// Plans a graph if anything that its plan is made from has changed. Returns whether it was looked at again.
    ///
    /// # Errors
    /// [`EngineError::Plan`] with the pass; the graph and the engine stay usable.
    pub fn plan(&mut self, graph: GraphId) -> Result<bool, EngineError> {
        self.check_installed()?;
        let world = self.world_mut();
        if world.get::<GraphTensors>(graph.0).is_none() {
            return Err(EngineError::UnknownGraph);
        }
        let now = publish::seen(world, graph.0);
        let reason = match world.get::<GraphPlan>(graph.0) {
            None => PlanReason::First,
            // Somebody despawned the arena: another one is found or made.
            Some(plan) if world.get::<Arena>(plan.arena).is_none() => PlanReason::Shared,
            Some(plan) if plan.seen == now => return Ok(false),
            Some(plan) if plan.seen.generation != now.generation => PlanReason::Graph,
            Some(plan) if plan.seen.shared != now.shared => PlanReason::Shared,
            Some(_) => PlanReason::Salt,
        };
        self.check_state(graph)?;
        // Runs under way keep their memory until they are over; one that is paused may go on with the same plan.
        self.settle_arena(graph);
        let world = self.world_mut();
        let old = world.get::<GraphPlan>(graph.0).map(|g| (Arc::as_ptr(&g.plan), g.arena_epoch));
        *world.resource_mut::<PlanCounters>().reasons.entry(reason).or_default() += 1;
        world.insert_resource(Planning(graph.0));
        *world.resource_mut::<PlanStatus>() = PlanStatus::Planning;
        run_plan_schedule(world)?;
        if let Err(error) = self.take_failure(graph) {
            return Err(self.planning_failed(graph, error));
        }
        self.after_planning(graph, old)?;
        Ok(true)
    }

    /// Plans a graph and makes its memory without running it. Reserve for the largest graphs that will share an arena: smaller
    /// ones then run without another allocation, each planned once when it first runs. Where a backend's largest buffer makes
    /// several of the memory, all but the last are made as large as they may be. Never gives memory back, so it costs nothing to
    /// say again.
    ///
    /// # Errors
    /// As [`Self::plan`]; what was reserved before stays, unless the new memory was to take its place.
    ///
    /// ```
    /// use entensor::{DType, Engine, GraphBuilder};
    ///
    /// let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    /// let arena = engine.new_arena();
    /// let mut graph_of = |rows: u64| -> Result<_, Box<dyn std::error::Error>> {
    ///     let mut g = GraphBuilder::new(format!("{rows} rows"));
    ///     g.share_arena(arena);
    ///     let x = g.input("x", DType::F32, &[8, rows])?;
    ///     let y = g.silu(x)?;
    ///     g.output("y", y)?;
    ///     Ok(engine.add_graph(g))
    /// };
    /// let (large, small) = (graph_of(512)?, graph_of(3)?);
    /// engine.reserve(large)?;
    /// engine.plan(small)?; // finds its memory already there
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reserve(&mut self, graph: GraphId) -> Result<(), EngineError> {
        self.plan(graph)?;
        self.settle_arena(graph);
        let reserved = publish::reserve_for_smaller(self.world_mut(), graph.0);
        reserved.map_err(|error| self.publish_failed(graph, error))?;
        let rebound = self.world().get::<GraphPlan>(graph.0).is_some_and(|plan| {
            let arena = self.world().get::<Arena>(plan.arena);
            arena.is_some_and(|arena| arena.epoch != plan.arena_epoch)
        });
        // Another graph's growth may have taken the arena's buffers while it failed.
        if rebound { self.hold_arena(graph) } else { Ok(()) }
    }

    fn after_planning(&mut self, graph: GraphId, old: Option<(*const Plan, u64)>) -> Result<(), EngineError> {
        let verify_plans = self.world().get_resource::<VerifyPlans>().is_some_and(|v| v.0);
        let Some(plan) = self.world().get::<GraphPlan>(graph.0) else { return Err(EngineError::UnknownGraph) };
        let (nodes, new) = (plan.plan.node_count(), (Arc::as_ptr(&plan.plan), plan.arena_epoch));
        if verify_plans && old.map(|o| o.0) != Some(new.0) {
            let checked = verify(&plan.plan);
            if let Err(violations) = checked {
                let plan = Arc::clone(&plan.plan);
                self.world_mut().resource_mut::<PlanCache>().remove(&plan);
                publish::unpublish(self.world_mut(), graph.0);
                return Err(EngineError::Verify { graph: self.graph_name(graph), violations });
            }
        }
        if old.map(|o| o.0) != Some(new.0) {
            figures::explain_new_plan(&self.graph_name(graph), &plan.plan);
        }
        // The same plan in the same memory keeps its inputs; anything else has moved them.
        if old != Some(new)
            && let Some(mut state) = self.world_mut().get_mut::<InputState>(graph.0)
        {
            state.written.clear();
            state.written.resize(nodes, false);
        }
        if old != Some(new)
            && let Some(runs) = self.world().get::<GraphRuns>(graph.0)
        {
            runs.forget_results();
        }
        Ok(())
    }

    pub(crate) fn take_failure(&mut self, graph: GraphId) -> Result<(), EngineError> {
        let status = &mut *self.world_mut().resource_mut::<PlanStatus>();
        if !matches!(status, PlanStatus::Failed { .. }) {
            return Ok(());
        }
        match std::mem::take(status) {
            PlanStatus::Failed { pass, error } => {
                Err(EngineError::Plan { graph: self.graph_name(graph), pass, error: Box::new(error) })
            }
            _ => Ok(()),
        }
    }

    /// Goes on without a device that was lost while its memory was planned.
    fn planning_failed(&mut self, graph: GraphId, error: EngineError) -> EngineError {
        match error {
            EngineError::Plan { graph: name, pass, error } => match error.reported() {
                // A wish for what is gone stays an error.
                Some(BackendError::DeviceLost { .. })
                    if error.backend().is_some_and(|backend| self.is_given_up(backend)) =>
                {
                    EngineError::Plan { graph: name, pass, error }
                }
                Some(BackendError::DeviceLost { reason }) => {
                    let reason: Arc<str> = reason.as_str().into();
                    self.device_failed(graph, &error, reason)
                }
                _ => EngineError::Plan { graph: name, pass, error },
            },
            other => other,
        }
    }

    fn publish_failed(&self, graph: GraphId, error: PlanError) -> EngineError {
        EngineError::Plan { graph: self.graph_name(graph), pass: Pass::Publish, error: Box::new(error) }
    }

    /// Makes the graph the user of its arena. Whoever used it before loses inputs and outputs.
    pub(crate) fn hold_arena(&mut self, graph: GraphId) -> Result<(), EngineError> {
        let world = self.world_mut();
        let (arena_entity, bound_epoch) =
            world.get::<GraphPlan>(graph.0).map(|g| (g.arena, g.arena_epoch)).ok_or(EngineError::UnknownGraph)?;
        let arena = world.get::<Arena>(arena_entity).ok_or(EngineError::UnknownGraph)?;
        let rebind = arena.epoch != bound_epoch;
        if arena.holder == Some(graph.0) && !rebind {
            return Ok(());
        }
        self.settle_arena(graph);
        self.abandon_in_arena(graph);
        let world = self.world_mut();
        let bound = if rebind { publish::rebind(world, graph.0) } else { Ok(()) };
        if let Some(mut state) = world.get_mut::<InputState>(graph.0) {
            state.written.fill(false);
        }
        if let Some(runs) = world.get::<GraphRuns>(graph.0) {
            runs.forget_results();
        }
        bound.map_err(|error| self.publish_failed(graph, error))?;
        let world = self.world_mut();
        if let Some(mut arena) = world.get_mut::<Arena>(arena_entity) {
            arena.holder = Some(graph.0);
        }
        Ok(())
    }

    /// Runs a graph: plans it if it changed, then computes what it wants. Blocks until done. In a steady loop nothing is
    /// planned and nothing is allocated.
    ///
    /// When a device is lost meanwhile and another backend can do its work, the graph is planned without it and run again, if that
    /// cannot be seen: its inputs are still there, and it has changed no memory that outlives it.
    ///
    /// # Errors
    /// Planning errors, an input that was not written, or what a backend reports; [`EngineError::DeviceLost`].
    pub fn run(&mut self, graph: GraphId) -> Result<(), EngineError> {
        let count = |engine: &Self| engine.world().get::<GraphRuns>(graph.0).map_or(0, GraphRuns::last);
        self.abandon(graph);
        // Each round loses a device, so there are no more rounds than devices.
        loop {
            let before = count(self);
            let lost = match self.run_once(graph) {
                Err(error @ EngineError::DeviceLost { recovered: true, .. }) => error,
                other => return other.map(drop),
            };
            // Without a run there were no inputs yet.
            let inputs = if count(self) > before { self.take_rerun(graph) } else { None };
            self.write_again(graph, &inputs.ok_or(lost)?)?;
        }
    }

    fn run_once(&mut self, graph: GraphId) -> Result<bool, EngineError> {
        let run = self.submit(graph, &RunLimit::NONE)?;
        self.finish(run, &RunLimit::NONE)
    }

    pub(crate) fn check_runnable(&mut self, graph: GraphId) -> Result<(), EngineError> {
        if !self.plan(graph)? {
            self.world_mut().resource_mut::<PlanCounters>().unchanged += 1;
        }
        self.hold_arena(graph)?;
        self.check_inputs(graph)
    }

    pub(crate) fn check_inputs(&self, graph: GraphId) -> Result<(), EngineError> {
        let (plan, state) = (self.world().get::<GraphPlan>(graph.0), self.world().get::<InputState>(graph.0));
        let (Some(plan), Some(state)) = (plan, state) else { return Err(EngineError::UnknownGraph) };
        let plan = &plan.plan;
        let inputs = (0..plan.leaves()).filter(|&i| plan.flags[i].input && plan.memory.place(i).is_none());
        for i in inputs {
            let empty = plan.table.descs[i].shape.is_empty();
            if !empty && !state.written.get(i).copied().unwrap_or(false) {
                let (graph, tensor) = (self.graph_name(graph), Arc::clone(&plan.table.names[i]));
                return Err(EngineError::InputNotWritten { graph, tensor });
            }
        }
        Ok(())
    }

    /// Why every node of a graph is where it is. Plans the graph if needed.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub fn explain(&mut self, graph: GraphId) -> Result<Vec<Explanation>, EngineError> {
        self.plan(graph)?;
        let plan = self.plan_of(graph).ok_or(EngineError::UnknownGraph)?;
        let explain = |node: PlanNode<'_>| Explanation {
            node: Arc::clone(node.name),
            op: node.op.to_string(),
            shape: node.desc.shape,
            dtype: node.desc.dtype,
            backend: Arc::clone(&plan.backends[node.backend as usize].name),
            cause: node.cause,
            why: plan.why(node.index as usize),
        };
        Ok(plan.nodes().map(explain).collect())
    }
}
