//! Figures and text about plans and memory, for tools, overlays and whoever asks why.

use std::{borrow::BorrowMut, fmt::Write as _, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{BufferMemory, DeviceBuffer, MemoryReport, Usage};
use entensor_systems::{Arena, GraphPlan, Plan};

use crate::{
    engine::{Engine, GraphId},
    error::EngineError,
};

/// The environment variable that makes an engine print: `plan` prints each new plan on standard error.
pub const EXPLAIN_VARIABLE: &str = "ENTENSOR_EXPLAIN";

/// What a plan does on one backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendFigures {
    /// The backend.
    pub backend: Arc<str>,
    /// Nodes that it computes.
    pub nodes: usize,
    /// Runs of nodes that are submitted to it.
    pub splits: usize,
    /// Copies that one run makes into its memory.
    pub copies: usize,
    /// Bytes of these.
    pub copied_bytes: u64,
    /// Bytes that the plan allocates there; of backends that share a buffer type, with the first of them.
    pub planned_bytes: u64,
}

/// What a plan does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphFigures {
    /// Nodes that compute.
    pub nodes: usize,
    /// Runs of nodes on one backend.
    pub splits: usize,
    /// Copies that one run makes between backends.
    pub copies: usize,
    /// Bytes of these.
    pub copied_bytes: u64,
    /// Bytes that the plan allocates.
    pub planned_bytes: u64,
    /// The least that any plan with these lifetimes needs.
    pub lower_bound_bytes: u64,
    /// How many runs may be under way at once.
    pub slots: usize,
    /// The same by backend, in their order.
    pub backends: Vec<BackendFigures>,
}

impl GraphFigures {
    /// The figures of a plan.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let figures = |b: &entensor_systems::PlanBackend| BackendFigures {
            backend: Arc::clone(&b.name),
            planned_bytes: b.planned_bytes,
            ..BackendFigures::default()
        };
        let mut backends: Vec<BackendFigures> = plan.backends.iter().map(figures).collect();
        for split in &plan.splits {
            let backend = &mut backends[split.backend as usize];
            backend.splits += 1;
            backend.nodes += plan.split_nodes(split).len();
            for &copy in plan.split_inputs(split) {
                backend.copies += 1;
                let source = plan.copies[copy as usize].source as usize;
                backend.copied_bytes = backend.copied_bytes.saturating_add(plan.table.descs[source].size_bytes());
            }
        }
        Self {
            nodes: plan.launches.len(),
            splits: plan.splits.len(),
            copies: plan.copies_made(),
            copied_bytes: plan.copied_bytes(),
            planned_bytes: plan.planned_bytes(),
            lower_bound_bytes: plan.lower_bound_bytes,
            slots: plan.programs.len(),
            backends,
        }
    }
}

/// What an engine's buffers take on one backend, by what they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendMemory {
    /// The backend.
    pub backend: Arc<str>,
    /// Weights, those in imported memory included.
    pub weights_bytes: u64,
    /// Caches, state and other memory of the user's own.
    pub any_bytes: u64,
    /// Planned memory of graphs.
    pub compute_bytes: u64,
    /// What the backend itself reports.
    pub report: MemoryReport,
}

/// A piece of a graph's planned memory.
#[derive(Clone, Debug)]
pub struct ComputeBuffer {
    /// The backend that made it.
    pub backend: Arc<str>,
    /// Backends of this type share it.
    pub buffer_type: Arc<str>,
    /// Its place among the buffers of its type.
    pub ordinal: u32,
    /// The buffer. Its bytes belong to whatever runs in the arena: read them between runs, and write none that an input does not have.
    pub buffer: Arc<DeviceBuffer>,
}

impl<W: BorrowMut<World>> Engine<W> {
    /// How many splits and copies a graph's plan has, and what it allocates, in all and by backend. Plans the graph if needed.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub fn figures(&mut self, graph: GraphId) -> Result<GraphFigures, EngineError> {
        self.plan(graph)?;
        self.plan_of(graph).map(|plan| GraphFigures::of(plan)).ok_or(EngineError::UnknownGraph)
    }

    /// What buffers take on each backend, in the order of backends.
    #[must_use]
    pub fn memory(&mut self) -> Vec<BackendMemory> {
        let backends = self.backends().to_vec();
        let memory = |backend: &Arc<dyn entensor_components::Backend>| BackendMemory {
            backend: backend.name().into(),
            report: backend.memory_report(),
            ..BackendMemory::default()
        };
        let mut figures: Vec<BackendMemory> = backends.iter().map(memory).collect();
        let mut add = |buffer: &DeviceBuffer, usage: Usage| {
            // A backend that was replaced may still have buffers; they are nobody's here.
            let Some(owner) = backends.iter().position(|backend| Arc::ptr_eq(backend, buffer.backend())) else {
                return;
            };
            let figure = match usage {
                Usage::Weights => &mut figures[owner].weights_bytes,
                Usage::Any => &mut figures[owner].any_bytes,
                Usage::Compute => &mut figures[owner].compute_bytes,
            };
            *figure = figure.saturating_add(buffer.size_bytes());
        };
        let world = self.world_mut();
        for (buffer, usage) in world.query::<(&BufferMemory, &Usage)>().iter(world) {
            add(&buffer.0, *usage);
        }
        for arena in world.query::<&Arena>().iter(world) {
            arena.buffers.iter().for_each(|buffer| add(&buffer.buffer, Usage::Compute));
        }
        figures
    }

    /// The buffers that a graph's planned memory lies in, in the order of its plan. Plans the graph if needed.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub fn compute_buffers(&mut self, graph: GraphId) -> Result<Vec<ComputeBuffer>, EngineError> {
        self.plan(graph)?;
        self.hold_arena(graph)?;
        let planned = self.world().get::<GraphPlan>(graph.0).ok_or(EngineError::UnknownGraph)?;
        let arena = self.world().get::<Arena>(planned.arena).ok_or(EngineError::UnknownGraph)?;
        let found = planned.plan.buffers.iter().filter_map(|wanted| {
            let handle = &planned.plan.backends[wanted.backend as usize].handle;
            let is_it = |b: &&entensor_systems::ArenaBuffer| {
                b.ordinal == wanted.ordinal
                    && b.buffer_type == wanted.buffer_type
                    && Arc::ptr_eq(b.buffer.backend(), handle)
            };
            arena.buffers.iter().find(is_it).map(|b| ComputeBuffer {
                backend: handle.name().into(),
                buffer_type: Arc::clone(&b.buffer_type),
                ordinal: b.ordinal,
                buffer: Arc::clone(&b.buffer),
            })
        });
        Ok(found.collect())
    }

    /// A graph's plan in words: every split with its copies and nodes, and why each node is where it is. Plans the graph if
    /// needed. For people: its form may change.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub fn debug_text(&mut self, graph: GraphId) -> Result<String, EngineError> {
        self.plan(graph)?;
        let name = self.graph_name(graph);
        self.plan_of(graph).map(|plan| plan_text(&name, plan)).ok_or(EngineError::UnknownGraph)
    }
}

/// A plan in words.
pub(crate) fn plan_text(name: &str, plan: &Plan) -> String {
    let figures = GraphFigures::of(plan);
    let GraphFigures { nodes, splits, copies, copied_bytes, planned_bytes, lower_bound_bytes, slots, .. } = &figures;
    let mut text = format!(
        "graph `{name}`: {nodes} nodes, {splits} splits, {copies} copies of {copied_bytes} bytes, {planned_bytes} bytes planned \
         (at least {lower_bound_bytes}), {slots} slots\n"
    );
    for backend in &figures.backends {
        let BackendFigures { backend, nodes, splits, copies, planned_bytes, .. } = backend;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  {backend}: {nodes} nodes in {splits} splits, {copies} copies, {planned_bytes} bytes planned"
        );
    }
    for (index, split) in plan.splits.iter().enumerate() {
        let _ = writeln!(text, "split {index} on {}", plan.backends[split.backend as usize].name);
        for &copy in plan.split_inputs(split) {
            let source = plan.node(plan.copies[copy as usize].source as usize);
            let from = &plan.backends[plan.placements[source.root as usize] as usize].name;
            let _ = writeln!(text, "  copy {} from {from}", source.name);
        }
        for &node in plan.split_nodes(split) {
            let node = plan.node(node as usize);
            let _ = write!(text, "  {} = {}", node.name, node.op);
            for &source in node.sources {
                let _ = write!(text, " {}", plan.table.names[source as usize]);
            }
            let _ = writeln!(text, " : {} [{}] {}", node.desc, node.cause, plan.why(node.index as usize));
        }
    }
    text
}

/// Prints a new plan if the environment asks for it.
pub(crate) fn explain_new_plan(name: &str, plan: &Plan) {
    if std::env::var_os(EXPLAIN_VARIABLE).is_some_and(|what| what == "plan") {
        use std::io::Write as _;
        // That nobody can read it is no reason to stop.
        let _ = std::io::stderr().lock().write_all(plan_text(name, plan).as_bytes());
    }
}
