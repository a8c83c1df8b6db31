//! Running one small graph many times: everything about a run that does not change is done once.
//!
//! [`Engine::run`] finds out each time whether anything has changed, and locks the memory of each run. While a runner lives nothing can change:
//! it borrows the engine. So its runs walk the steps and do nothing else.

use std::{
    borrow::BorrowMut,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
};

use bevy_ecs::{entity::EntityHashMap, prelude::*};
use entensor_components::{BackendError, GraphTensors, HeldSplit, MemoryHandle, TensorRef};
use entensor_systems::{GraphPlan, GraphRuns, Pass, Plan, PlanError, Step, run_plan};

use crate::{
    builder::Tensor,
    engine::{BuiltBy, Engine, GraphId, InputState},
    error::EngineError,
    io::{Element, Target},
};

/// A tensor of the graph, as the runner reads and writes it.
struct Port {
    node: usize,
    target: Target,
    place: TensorRef,
    is_input: bool,
    is_readable: bool,
}

/// Runs one graph on memory that it holds: [`Engine::with_runner`].
pub struct Runner<'a> {
    graph: Arc<str>,
    built_by: Option<BuiltBy>,
    plan: &'a Plan,
    memory: &'a [MemoryHandle],
    slot: u32,
    /// The graph's only split with its memories, where the plan is no more than that and the backend can hold them.
    held: Option<Box<dyn HeldSplit + 'a>>,
    /// By the builder's index.
    ports: Vec<Option<Port>>,
    /// Per node of the plan: inputs that hold what the user wrote.
    written: Vec<bool>,
    /// Inputs that a run needs.
    needed: Vec<usize>,
    /// How many of those are not written.
    missing: usize,
    /// Whether runs consume some of them.
    consumes: bool,
    /// Whether the last run ended well; `None` before the first.
    ended_well: Option<bool>,
    /// Whether an input was written since whose memory outputs may lie in.
    overwritten: bool,
}

impl Runner<'_> {
    /// Runs the graph on what its inputs hold. Blocks until done. Allocates nothing after the first runs.
    ///
    /// # Errors
    /// [`EngineError::InputNotWritten`]; what a backend reports. The runner can be used again then.
    pub fn run(&mut self) -> Result<(), EngineError> {
        if self.missing > 0 {
            return Err(self.missing_input());
        }
        if self.consumes {
            self.consume();
        }
        self.overwritten = false;
        let done = match &mut self.held {
            Some(held) => held.run().map_err(|source| self.split_failed(source)),
            None => run_plan(self.plan, self.memory, self.slot),
        };
        self.ended_well = Some(done.is_ok());
        done.map_err(|error| EngineError::Plan {
            graph: Arc::clone(&self.graph),
            pass: Pass::Compute,
            error: Box::new(error),
        })
    }

    /// Whether runs keep locks and bindings from one to the next: where the whole graph is one split of a backend that can.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Writes an input for the next runs.
    ///
    /// # Errors
    /// Wrong dtype or length; a tensor of another graph, or that is no input; what the backend reports.
    pub fn write<T: Element>(&mut self, tensor: Tensor, values: &[T]) -> Result<(), EngineError> {
        let index = self.index(tensor)?;
        // An input that the run does not need has no place, and writing it changes nothing.
        let Some(port) = &self.ports[index] else { return Ok(()) };
        port.target.check::<T>(values.len())?;
        if !port.is_input {
            return Err(EngineError::NotWritable { tensor: Arc::clone(&port.target.name) });
        }
        let (bytes, place) = (bytemuck::cast_slice(values), &port.place);
        let failed = |source| EngineError::Backend { what: Arc::clone(&port.target.name), source };
        match self.held.as_mut().and_then(|held| held.bytes_mut(place.memory)) {
            Some(held) => {
                held.get_mut(range(place, bytes.len())).ok_or_else(|| failed(outside(place)))?.copy_from_slice(bytes);
            }
            None => {
                let memory = &self.memory[place.memory.0 as usize];
                owner(self.plan, place).write(memory, place.offset_bytes, bytes).map_err(failed)?;
            }
        }
        // A consumed input gives its memory to others after its last reader, outputs among them.
        self.overwritten |= self.plan.flags[port.node].consumed && self.plan.programs.len() == 1;
        if !std::mem::replace(&mut self.written[port.node], true) && self.needed.contains(&port.node) {
            self.missing -= 1;
        }
        Ok(())
    }

    /// Reads an output of the last run, or an input.
    ///
    /// # Errors
    /// Wrong dtype or length; a tensor of another graph, or whose memory others use; [`EngineError::OutputGone`] before the first run, after
    /// one that failed, and once an input that runs consume was written for the next, and for inputs that were not written; what the
    /// backend reports.
    pub fn read<T: Element>(&self, tensor: Tensor, values: &mut [T]) -> Result<(), EngineError> {
        let index = self.index(tensor)?;
        let port = self.ports[index].as_ref().ok_or(EngineError::UnknownTensor)?;
        port.target.check::<T>(values.len())?;
        let name = || Arc::clone(&port.target.name);
        if !port.is_readable {
            return Err(EngineError::NotReadable { tensor: name() });
        }
        let is_there =
            if port.is_input { self.written[port.node] } else { self.ended_well == Some(true) && !self.overwritten };
        if !is_there {
            return Err(EngineError::OutputGone { graph: Arc::clone(&self.graph), tensor: name() });
        }
        let (bytes, place) = (bytemuck::cast_slice_mut::<T, u8>(values), &port.place);
        let failed = |source| EngineError::Backend { what: name(), source };
        match self.held.as_ref().and_then(|held| held.bytes(place.memory)) {
            Some(held) => {
                bytes.copy_from_slice(held.get(range(place, bytes.len())).ok_or_else(|| failed(outside(place)))?);
            }
            None => {
                let memory = &self.memory[place.memory.0 as usize];
                owner(self.plan, place).read(memory, place.offset_bytes, bytes).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn index(&self, tensor: Tensor) -> Result<usize, EngineError> {
        let index = tensor.index as usize;
        let ours = self.built_by == Some(BuiltBy(tensor.builder)) && index < self.ports.len();
        if ours { Ok(index) } else { Err(EngineError::UnknownTensor) }
    }

    #[cold]
    fn missing_input(&self) -> EngineError {
        let missing = self.needed.iter().copied().find(|&node| !self.written[node]);
        let tensor = missing.map_or_else(|| "?".into(), |node| Arc::clone(&self.plan.table.names[node]));
        EngineError::InputNotWritten { graph: Arc::clone(&self.graph), tensor }
    }

    /// What a run consumes is gone whatever becomes of it.
    fn consume(&mut self) {
        for &node in self.needed.iter().filter(|&&node| self.plan.flags[node].consumed) {
            self.missing += usize::from(std::mem::replace(&mut self.written[node], false));
        }
    }

    #[cold]
    fn split_failed(&self, source: BackendError) -> PlanError {
        let backend = self.plan.splits.first().map_or(0, |split| split.backend);
        let backend = Arc::clone(&self.plan.backends[backend as usize].name);
        PlanError::Run { step: 0, what: "split 0".into(), backend, source }
    }
}

fn range(place: &TensorRef, len: usize) -> std::ops::Range<usize> {
    let start = usize::try_from(place.offset_bytes).unwrap_or(usize::MAX);
    start..start.saturating_add(len)
}

fn outside(place: &TensorRef) -> BackendError {
    let (offset_bytes, len_bytes) = (place.offset_bytes, place.desc.size_bytes());
    BackendError::OutOfBounds { offset_bytes, len_bytes, size_bytes: 0 }
}

/// The backend of planned memory.
fn owner<'a>(plan: &'a Plan, place: &TensorRef) -> &'a dyn entensor_components::Backend {
    &*plan.backends[plan.buffers[place.memory.0 as usize].backend as usize].handle
}

/// The split that is all there is of a slot's run.
fn only_split(plan: &Plan, slot: u32) -> Option<usize> {
    match plan.programs[slot as usize % plan.programs.len()].steps.as_slice() {
        [Step::Launch { split }] => Some(*split as usize),
        _ => None,
    }
}

impl<W: BorrowMut<World>> Engine<W> {
    /// Gives a closure a runner of one graph: for graphs so small that finding out each time that nothing has changed would take longer than
    /// the run itself. Plans the graph and binds its memory if needed, and waits for runs that use the same memory.
    ///
    /// While the closure runs, the graph's memory is the runner's: inputs are written and outputs are read through it. Inputs that are written
    /// already stay so. Afterwards the outputs of the last run can be read as those of any other. Systems of the user's own that stand around
    /// `compute` see nothing of these runs, and a device that is lost in one is an error, not gone on without.
    ///
    /// # Errors
    /// Planning errors, and what the closure gives.
    ///
    /// ```
    /// use entensor::{DType, Engine, GraphBuilder};
    ///
    /// let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    /// let mut g = GraphBuilder::new("halved");
    /// let x = g.input("x", DType::F32, &[2])?;
    /// let y = g.scale(x, 0.5)?;
    /// let y = g.output("y", y)?;
    /// let graph = engine.add_graph(g);
    ///
    /// let halvings = engine.with_runner(graph, |runner| {
    ///     let (mut values, mut halvings) = ([96.0_f32, 5.0], 0);
    ///     while values[0] > 1.0 {
    ///         runner.write(x, &values)?;
    ///         runner.run()?;
    ///         runner.read(y, &mut values)?;
    ///         halvings += 1;
    ///     }
    ///     Ok(halvings)
    /// })?;
    /// assert_eq!(halvings, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_runner<R>(
        &mut self,
        graph: GraphId,
        work: impl FnOnce(&mut Runner<'_>) -> Result<R, EngineError>,
    ) -> Result<R, EngineError> {
        self.abandon(graph);
        self.plan(graph)?;
        self.hold_arena(graph)?;
        self.settle_arena(graph);
        self.settle_shared(graph);
        let world = self.world();
        let planned = world.get::<GraphPlan>(graph.0).ok_or(EngineError::UnknownGraph)?;
        let (plan, memory, slot) = (Arc::clone(&planned.plan), planned.binding.clone(), planned.slot);
        // Keeps what runs use alive, as a run does.
        let _existing = planned.existing.clone();
        let written = world.get::<InputState>(graph.0).map(|state| state.written.clone()).unwrap_or_default();
        let mut runner = self.runner_of(graph, &plan, &memory, slot, written)?;
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut runner)));
        let (mut written, mut ended_well) = (std::mem::take(&mut runner.written), runner.ended_well);
        if runner.overwritten {
            ended_well = Some(false);
        }
        drop(runner);
        if done.is_err() {
            // Nobody knows how far it came.
            written.fill(false);
            ended_well = Some(false);
        }
        let world = self.world_mut();
        if let Some(mut state) = world.get_mut::<InputState>(graph.0) {
            state.written = written;
        }
        if let Some(runs) = world.get::<GraphRuns>(graph.0) {
            match ended_well {
                None => {}
                Some(true) => runs.note_finished(slot),
                Some(false) => runs.forget_results(),
            }
        }
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn runner_of<'a>(
        &self,
        graph: GraphId,
        plan: &'a Plan,
        memory: &'a [MemoryHandle],
        slot: u32,
        mut written: Vec<bool>,
    ) -> Result<Runner<'a>, EngineError> {
        let world = self.world();
        let planned = world.get::<GraphPlan>(graph.0).ok_or(EngineError::UnknownGraph)?;
        let tensors = world.get::<GraphTensors>(graph.0).ok_or(EngineError::UnknownGraph)?;
        let name = self.graph_name(graph);
        let failed =
            |error| EngineError::Plan { graph: Arc::clone(&name), pass: Pass::Compute, error: Box::new(error) };
        if memory.len() < plan.memory_count() {
            return Err(failed(PlanError::Unbound { needed: plan.memory_count(), bound: memory.len() }));
        }
        written.resize(plan.node_count(), false);
        let nodes: EntityHashMap<usize> = planned.entities.iter().copied().zip(0..).collect();
        let port = |entity: &Entity| {
            let node = *nodes.get(entity)?;
            let place = plan.locate(node, slot)?;
            let flags = plan.flags[node];
            let is_planned = (place.memory.0 as usize) < plan.buffers.len();
            let is_input = flags.input && is_planned;
            let is_readable = is_planned && (flags.output || flags.input && !flags.consumed);
            Some(Port { node, target: Target::find(world, *entity).ok()?, place, is_input, is_readable })
        };
        let ports: Vec<Option<Port>> = tensors.0.iter().map(port).collect();
        let is_needed = |node: &usize| {
            plan.flags[*node].input && plan.memory.place(*node).is_none() && !plan.table.descs[*node].shape.is_empty()
        };
        let needed: Vec<usize> = (0..plan.leaves()).filter(is_needed).collect();
        let missing = needed.iter().filter(|&&node| !written[node]).count();
        let consumes = needed.iter().any(|&node| plan.flags[node].consumed);
        let mut runner = Runner {
            graph: Arc::clone(&name),
            built_by: world.get::<BuiltBy>(graph.0).copied(),
            plan,
            memory,
            slot,
            held: None,
            ports,
            written,
            needed,
            missing,
            consumes,
            ended_well: None,
            overwritten: false,
        };
        if let Some(split) = only_split(plan, slot) {
            let held = plan.programs[slot as usize % plan.programs.len()].prepared[split].hold(memory);
            let mut held = held.map_err(|source| failed(runner.split_failed(source)))?;
            // Inputs in memory that the split holds and does not write could not be written.
            let is_out_of_reach = |held: &mut Box<dyn HeldSplit + 'a>| {
                let inputs = runner.ports.iter().flatten().filter(|port| port.is_input).map(|port| port.place.memory);
                inputs.into_iter().any(|memory| held.bytes(memory).is_some() && held.bytes_mut(memory).is_none())
            };
            if held.as_mut().is_some_and(is_out_of_reach) {
                held = None;
            }
            runner.held = held;
        }
        Ok(runner)
    }
}
