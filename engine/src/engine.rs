//! The engine: a façade over a World that holds graphs, buffers and backends as entities.

use std::{borrow::BorrowMut, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{
    Backend, BackendHandle, BackendId, BackendIndex, BufferBundle, BufferMemory, Cause, DType, DeviceBuffer,
    GraphBundle, GraphName, GraphTensors, ImportedBytes, InGraph, Op, Pinned, PipelineCopies, Priority, Shape, Sources,
    Stored, StoredIn, TensorBundle, TensorDesc, TensorFlags, TensorName, Usage, ViewSrc, Wanted,
};
use entensor_systems::{
    Arena, Backends, GraphPlan, PassTimings, Plan, PlanCounters, PlanReason, PlanSchedule, PlanStatus, Planning,
    Recording, UsesArena, init_resources, plan_schedule, publish, verify,
};

use crate::{
    builder::{GraphBuilder, Origin, Tensor},
    error::EngineError,
    registry::{Registry, RegistryError},
};

/// A graph in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphId(pub Entity);

/// Planned memory that several graphs use in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArenaId(pub Entity);

/// A buffer in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub Entity);

/// A tensor with memory of its own: weights, a cache, state.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorId {
    /// The entity.
    pub entity: Entity,
    /// Its name.
    pub name: Arc<str>,
    /// Dtype, shape and strides.
    pub desc: TensorDesc,
}

/// On a graph: which of its plan's nodes hold what the user wrote.
#[derive(Component, Default)]
pub(crate) struct InputState {
    /// Per plan node, whether it was written since its memory was last anybody else's.
    pub(crate) written: Vec<bool>,
    /// Whether outputs of the last run are still there.
    pub(crate) ran: bool,
}

/// Whether every new plan is verified; on in debug builds.
#[derive(Resource, Clone, Copy, Debug)]
struct VerifyPlans(bool);

/// Says how an engine is made.
pub struct EngineBuilder {
    specs: Vec<String>,
    instances: Vec<Arc<dyn Backend>>,
    registry: Registry,
    recording: Recording,
    verify: bool,
}

impl Default for EngineBuilder {
    fn default() -> Self {
        Self {
            specs: Vec::new(),
            instances: Vec::new(),
            registry: Registry::default(),
            recording: Recording::Off,
            verify: cfg!(debug_assertions),
        }
    }
}

impl EngineBuilder {
    /// Adds a backend by its text, below those added before. The last must be on host memory.
    #[must_use]
    pub fn backend(mut self, spec: impl Into<String>) -> Self {
        self.specs.push(spec.into());
        self
    }

    /// Adds a backend of the user's own, below those made from texts.
    #[must_use]
    pub fn backend_instance(mut self, backend: Arc<dyn Backend>) -> Self {
        self.instances.push(backend);
        self
    }

    /// Uses another registry to make backends from texts.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Records the canonical text of every pass into [`entensor_systems::text::PassTexts`].
    #[must_use]
    pub fn record_passes(mut self) -> Self {
        self.recording = Recording::On;
        self
    }

    /// Whether every new plan is verified. On in debug builds, off in release builds unless asked for.
    #[must_use]
    pub fn verify_plans(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// An engine with a World of its own.
    ///
    /// # Errors
    /// Backends that do not exist, do not start, or have one name.
    pub fn build(self) -> Result<Engine, EngineError> {
        self.install(World::new())
    }

    /// An engine over the caller's World: adds resources, backend entities and the plan schedule to it. Later
    /// calls use [`Engine::over`].
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn build_in(self, world: &mut World) -> Result<Engine<&mut World>, EngineError> {
        self.install(world)
    }

    fn install<W: BorrowMut<World>>(mut self, mut owned: W) -> Result<Engine<W>, EngineError> {
        if self.specs.is_empty() && self.instances.is_empty() {
            self.specs.push("cpu".into());
        }
        let mut backends = Vec::new();
        for spec in &self.specs {
            backends.push(self.registry.make(spec)?);
        }
        backends.append(&mut self.instances);
        for (i, backend) in backends.iter().enumerate() {
            if backends[..i].iter().any(|other| other.name().eq_ignore_ascii_case(backend.name())) {
                return Err(RegistryError::DuplicateName { name: backend.name().into() }.into());
            }
        }
        let world = owned.borrow_mut();
        init_resources(world);
        world.insert_resource(VerifyPlans(self.verify));
        for (index, backend) in (0..).zip(&backends) {
            let name = entensor_components::BufferName(backend.name().into());
            world.spawn((name, Priority(BackendIndex(index)), BackendHandle(Arc::clone(backend))));
        }
        world.insert_resource(Backends(backends));
        world.add_schedule(plan_schedule(self.recording));
        Ok(Engine { world: owned })
    }
}

/// Runs graphs. Owns its World, or works on the caller's.
///
/// ```
/// use entensor::{DType, Engine, GraphBuilder};
///
/// let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
/// let weights = engine.weights("w", DType::F32, &[2, 3], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0])?;
/// let mut g = GraphBuilder::new("layer");
/// let w = g.shared(&weights)?;
/// let x = g.input("x", DType::F32, &[2])?;
/// let y = g.mul_mat(w, x)?;
/// let y = g.output("y", y)?;
/// let graph = engine.add_graph(g);
///
/// engine.write(graph, x, &[3.0_f32, 4.0])?;
/// engine.run(graph)?;
/// let mut result = [0.0_f32; 3];
/// engine.read(graph, y, &mut result)?;
/// assert_eq!(result, [3.0, 4.0, 7.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine<W: BorrowMut<World> = World> {
    world: W,
}

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

impl Engine {
    /// An engine with the default backend: all cores of this machine.
    ///
    /// # Errors
    /// When the backend does not start.
    pub fn new() -> Result<Self, EngineError> {
        Self::builder().build()
    }

    /// Says how an engine is made.
    #[must_use]
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// Gives the World back.
    #[must_use]
    pub fn into_world(self) -> World {
        self.world
    }
}

impl<'w> Engine<&'w mut World> {
    /// The engine of a World that [`EngineBuilder::build_in`] has set up. Costs nothing: make it anew in every system.
    #[must_use]
    pub fn over(world: &'w mut World) -> Self {
        Self { world }
    }
}

impl<W: BorrowMut<World>> Engine<W> {
    /// The World.
    #[must_use]
    pub fn world(&self) -> &World {
        self.world.borrow()
    }

    /// The World, to add systems and components of the user's own.
    pub fn world_mut(&mut self) -> &mut World {
        self.world.borrow_mut()
    }

    /// The backends, by priority.
    #[must_use]
    pub fn backends(&self) -> &[Arc<dyn Backend>] {
        self.world().get_resource::<Backends>().map_or(&[], |b| &b.0)
    }

    /// The backend of a name.
    ///
    /// # Errors
    /// [`EngineError::UnknownBackend`] lists what exists.
    pub fn backend_index(&self, name: &str) -> Result<BackendIndex, EngineError> {
        let found = self.world().get_resource::<Backends>().and_then(|b| b.find(name));
        found.ok_or_else(|| self.unknown_backend(name.into()))
    }

    fn unknown_backend(&self, name: String) -> EngineError {
        EngineError::UnknownBackend { name, known: self.backends().iter().map(|b| b.name().into()).collect() }
    }

    /// The lowest backend, always on host memory.
    #[must_use]
    pub fn host(&self) -> BackendIndex {
        BackendIndex(u32::try_from(self.backends().len().saturating_sub(1)).unwrap_or(0))
    }

    fn backend(&self, index: BackendIndex) -> Result<Arc<dyn Backend>, EngineError> {
        let found = self.backends().get(index.0 as usize).cloned();
        found.ok_or_else(|| self.unknown_backend(index.0.to_string()))
    }

    /// Planned memory that graphs use one after the other, for graphs of which only one is in use at a time: prompt and
    /// decode graphs of one conversation.
    pub fn new_arena(&mut self) -> ArenaId {
        ArenaId(self.world_mut().spawn(Arena::default()).id())
    }

    /// Allocates a zeroed buffer.
    ///
    /// # Errors
    /// What the backend reports.
    pub fn create_buffer(
        &mut self,
        name: &str,
        backend: BackendIndex,
        usage: Usage,
        size_bytes: u64,
    ) -> Result<BufferId, EngineError> {
        let backend = self.backend(backend)?;
        let fail = |source| EngineError::Backend { what: name.into(), source };
        let buffer = DeviceBuffer::create(&backend, size_bytes, usage).map_err(fail)?;
        Ok(BufferId(self.world_mut().spawn(BufferBundle::new(name, usage, buffer)).id()))
    }

    /// Makes a read-only weights buffer of host memory in place, without a copy: a mapped file.
    ///
    /// # Errors
    /// What the host backend reports.
    pub fn import_buffer(&mut self, name: &str, bytes: Arc<dyn ImportedBytes>) -> Result<BufferId, EngineError> {
        let backend = self.backend(self.host())?;
        let fail = |source| EngineError::Backend { what: name.into(), source };
        let buffer = DeviceBuffer::import(&backend, bytes).map_err(fail)?;
        Ok(BufferId(self.world_mut().spawn(BufferBundle::new(name, Usage::Weights, buffer)).id()))
    }

    /// A tensor in a buffer.
    ///
    /// # Errors
    /// A shape that cannot exist, or one that does not fit into the buffer.
    pub fn tensor_in(
        &mut self,
        name: &str,
        dtype: DType,
        dims: &[u64],
        buffer: BufferId,
        offset_bytes: u64,
    ) -> Result<TensorId, EngineError> {
        let name: Arc<str> = name.into();
        let desc = packed(&name, dtype, dims)?;
        let size_bytes = self.buffer(buffer)?.size_bytes();
        let len_bytes = desc.size_bytes();
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > size_bytes) {
            let source = entensor_components::BackendError::OutOfBounds { offset_bytes, len_bytes, size_bytes };
            return Err(EngineError::Backend { what: name, source });
        }
        let stored_in = StoredIn(Some(Stored { buffer: buffer.0, offset_bytes }));
        let bundle = TensorBundle { stored_in, ..TensorBundle::leaf(Arc::clone(&name), desc) };
        let entity = self.world_mut().spawn(bundle).id();
        Ok(TensorId { entity, name, desc })
    }

    /// A zeroed tensor in a buffer of its own on the host: a cache, state that runs keep.
    ///
    /// # Errors
    /// A shape that cannot exist, or what the backend reports.
    pub fn state(&mut self, name: &str, dtype: DType, dims: &[u64]) -> Result<TensorId, EngineError> {
        let size_bytes = packed(&name.into(), dtype, dims)?.size_bytes();
        let buffer = self.create_buffer(name, self.host(), Usage::Any, size_bytes)?;
        self.tensor_in(name, dtype, dims, buffer, 0)
    }

    /// Weights in a buffer of their own on the host, encoded from f32 values.
    ///
    /// # Errors
    /// A shape that cannot exist, a wrong number of values, or what the backend reports.
    pub fn weights(&mut self, name: &str, dtype: DType, dims: &[u64], values: &[f32]) -> Result<TensorId, EngineError> {
        let name_text: Arc<str> = name.into();
        let desc = packed(&name_text, dtype, dims)?;
        let expected = desc.shape.elements().unwrap_or(u64::MAX);
        if expected != values.len() as u64 {
            let given = values.len() as u64;
            return Err(EngineError::WrongLength { tensor: name_text, shape: desc.shape, expected, given });
        }
        let mut bytes = vec![0; usize::try_from(desc.size_bytes()).unwrap_or(0)];
        (dtype.row().quantize)(values, &mut bytes);
        let buffer = self.create_buffer(name, self.host(), Usage::Weights, desc.size_bytes())?;
        let memory = Arc::clone(&self.buffer(buffer)?);
        let fail = |source| EngineError::Backend { what: name.into(), source };
        memory.backend().write(memory.memory(), 0, &bytes).map_err(fail)?;
        self.tensor_in(name, dtype, dims, buffer, 0)
    }

    pub(crate) fn buffer(&self, buffer: BufferId) -> Result<Arc<DeviceBuffer>, EngineError> {
        let memory = self.world().get::<BufferMemory>(buffer.0);
        memory.map(|m| Arc::clone(&m.0)).ok_or(EngineError::UnknownBuffer)
    }

    /// Adds a graph: its tensors become entities.
    pub fn add_graph(&mut self, graph: GraphBuilder) -> GraphId {
        let world = self.world_mut();
        let entity = world.spawn((GraphBundle::new(Arc::clone(&graph.name)), InputState::default())).id();
        let mut entities: Vec<Entity> = Vec::with_capacity(graph.nodes.len());
        for node in graph.nodes {
            let (op, sources, root, offset_bytes) = match node.origin {
                Origin::Shared(shared) => {
                    entities.push(shared);
                    continue;
                }
                Origin::Own { op, sources, root, offset_bytes } => (op, sources, root, offset_bytes),
            };
            let bundle = TensorBundle {
                in_graph: InGraph(Some(entity)),
                name: TensorName(node.name),
                dtype: node.desc.dtype,
                shape: node.desc.shape,
                strides: node.desc.strides,
                op,
                sources: Sources(sources.iter().map(|&s| entities[s as usize]).collect()),
                view_src: ViewSrc { root: root.map(|r| entities[r as usize]), offset_bytes },
                flags: node.flags,
                pinned: Pinned(node.pin),
                ..TensorBundle::leaf("".into(), node.desc)
            };
            entities.push(world.spawn(bundle).id());
        }
        let mut graph_entity = world.entity_mut(entity);
        graph_entity.insert((GraphTensors(entities), PipelineCopies(graph.copies)));
        if let Some(arena) = graph.arena {
            graph_entity.insert(UsesArena(arena));
        }
        GraphId(entity)
    }

    /// Removes a graph with its tensors and its plan. Shared tensors stay.
    pub fn remove_graph(&mut self, graph: GraphId) {
        let world = self.world_mut();
        let tensors = world.get::<GraphTensors>(graph.0).map(|t| t.0.clone()).unwrap_or_default();
        let own = tensors.into_iter().filter(|&t| world.get::<InGraph>(t) == Some(&InGraph(Some(graph.0))));
        let mut doomed: Vec<Entity> = own.collect();
        let Ok(mut entity) = world.get_entity_mut(graph.0) else { return };
        if let Some(plan) = entity.take::<GraphPlan>() {
            doomed.extend(plan.published);
        }
        for entity in doomed.into_iter().chain([graph.0]) {
            world.try_despawn(entity).ok();
        }
    }

    /// The entity of a graph's tensor.
    ///
    /// # Errors
    /// A graph or tensor that does not exist.
    pub fn entity(&self, graph: GraphId, tensor: Tensor) -> Result<Entity, EngineError> {
        let tensors = self.world().get::<GraphTensors>(graph.0).ok_or(EngineError::UnknownGraph)?;
        tensors.0.get(tensor.index as usize).copied().ok_or(EngineError::UnknownTensor)
    }

    /// Wishes a tensor onto a backend, or takes the wish back. The graph is planned again before its next run.
    ///
    /// # Errors
    /// A graph or tensor that does not exist.
    pub fn pin(&mut self, graph: GraphId, tensor: Tensor, backend: Option<BackendIndex>) -> Result<(), EngineError> {
        let entity = self.entity(graph, tensor)?;
        let mut entity = self.world_mut().get_entity_mut(entity).map_err(|_| EngineError::UnknownTensor)?;
        entity.insert(Pinned(backend));
        Ok(())
    }

    /// Says which tensors a run must produce; by default all outputs, else the last tensor.
    ///
    /// # Errors
    /// A graph or tensor that does not exist.
    pub fn want(&mut self, graph: GraphId, tensors: &[Tensor]) -> Result<(), EngineError> {
        let wanted = tensors.iter().map(|&t| self.entity(graph, t)).collect::<Result<_, _>>()?;
        let world = self.world_mut();
        world.get_entity_mut(graph.0).map_err(|_| EngineError::UnknownGraph)?.insert(Wanted(wanted));
        if let Some(mut generation) = world.get_mut::<entensor_components::Generation>(graph.0) {
            generation.0 += 1;
        }
        Ok(())
    }

    fn check_installed(&self) -> Result<(), EngineError> {
        let schedules = self.world().get_resource::<Schedules>();
        let installed =
            schedules.is_some_and(|s| s.contains(PlanSchedule)) && self.world().contains_resource::<PlanStatus>();
        if installed { Ok(()) } else { Err(EngineError::NotInstalled) }
    }

    fn graph_name(&self, graph: GraphId) -> Arc<str> {
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
            Some(plan) if plan.seen == now => return Ok(false),
            Some(plan) if plan.seen.generation != now.generation => PlanReason::Graph,
            Some(plan) if plan.seen.shared != now.shared => PlanReason::Shared,
            Some(_) => PlanReason::Salt,
        };
        let old = world.get::<GraphPlan>(graph.0).map(|g| (Arc::as_ptr(&g.plan), g.arena_epoch));
        *world.resource_mut::<PlanCounters>().reasons.entry(reason).or_default() += 1;
        world.insert_resource(Planning(graph.0));
        *world.resource_mut::<PlanStatus>() = PlanStatus::Planning;
        world.run_schedule(PlanSchedule);
        self.take_failure(graph)?;
        self.after_planning(graph, old)?;
        Ok(true)
    }

    fn after_planning(&mut self, graph: GraphId, old: Option<(*const Plan, u64)>) -> Result<(), EngineError> {
        let verify_plans = self.world().get_resource::<VerifyPlans>().is_some_and(|v| v.0);
        let Some(plan) = self.world().get::<GraphPlan>(graph.0) else { return Err(EngineError::UnknownGraph) };
        let (nodes, new) = (plan.plan.nodes.len(), (Arc::as_ptr(&plan.plan), plan.arena_epoch));
        if verify_plans && old.map(|o| o.0) != Some(new.0) {
            let checked = verify(&plan.plan);
            if let Err(violations) = checked {
                self.world_mut().entity_mut(graph.0).remove::<GraphPlan>();
                return Err(EngineError::Verify { graph: self.graph_name(graph), violations });
            }
        }
        // The same plan in the same memory keeps its inputs; anything else has moved them.
        if old != Some(new)
            && let Some(mut state) = self.world_mut().get_mut::<InputState>(graph.0)
        {
            state.written.clear();
            state.written.resize(nodes, false);
            state.ran = false;
        }
        Ok(())
    }

    fn take_failure(&mut self, graph: GraphId) -> Result<(), EngineError> {
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

    /// Makes the graph the user of its arena. Whoever used it before loses inputs and outputs.
    pub(crate) fn hold_arena(&mut self, graph: GraphId) -> Result<(), EngineError> {
        let world = self.world_mut();
        let (arena_entity, bound_epoch) =
            world.get::<GraphPlan>(graph.0).map(|g| (g.arena, g.arena_epoch)).ok_or(EngineError::UnknownGraph)?;
        let mut arena = world.get_mut::<Arena>(arena_entity).ok_or(EngineError::UnknownGraph)?;
        let (holder, epoch) = (arena.holder, arena.epoch);
        if holder == Some(graph.0) && epoch == bound_epoch {
            return Ok(());
        }
        arena.holder = Some(graph.0);
        if epoch != bound_epoch {
            publish::rebind(world, graph.0);
        }
        if let Some(mut state) = world.get_mut::<InputState>(graph.0) {
            state.written.fill(false);
            state.ran = false;
        }
        Ok(())
    }

    /// Runs a graph: plans it if it changed, then computes what it wants. Blocks until done. In a steady loop nothing is
    /// planned and nothing is allocated.
    ///
    /// # Errors
    /// Planning errors, an input that was not written, or what a backend reports.
    pub fn run(&mut self, graph: GraphId) -> Result<(), EngineError> {
        if !self.plan(graph)? {
            self.world_mut().resource_mut::<PlanCounters>().unchanged += 1;
        }
        self.hold_arena(graph)?;
        self.check_inputs(graph)?;
        let world = self.world_mut();
        world.insert_resource(Planning(graph.0));
        *world.resource_mut::<PlanStatus>() = PlanStatus::Computing;
        world.run_schedule(PlanSchedule);
        self.take_failure(graph)?;
        if let Some(mut state) = self.world_mut().get_mut::<InputState>(graph.0) {
            state.ran = true;
        }
        Ok(())
    }

    fn check_inputs(&self, graph: GraphId) -> Result<(), EngineError> {
        let (plan, state) = (self.world().get::<GraphPlan>(graph.0), self.world().get::<InputState>(graph.0));
        let (Some(plan), Some(state)) = (plan, state) else { return Err(EngineError::UnknownGraph) };
        let leaves = plan.plan.nodes[..plan.plan.leaves].iter().enumerate();
        for (i, node) in leaves.filter(|(_, n)| n.flags.input && n.existing.is_none()) {
            let empty = node.desc.shape.is_empty();
            if !empty && !state.written.get(i).copied().unwrap_or(false) {
                let (graph, tensor) = (self.graph_name(graph), Arc::clone(&node.name));
                return Err(EngineError::InputNotWritten { graph, tensor });
            }
        }
        Ok(())
    }

    /// The graph's plan, if it has one.
    #[must_use]
    pub fn plan_of(&self, graph: GraphId) -> Option<&Arc<Plan>> {
        self.world().get::<GraphPlan>(graph.0).map(|g| &g.plan)
    }

    /// Time and calls of every pass.
    #[must_use]
    pub fn timings(&self) -> PassTimings {
        self.world().get_resource::<PassTimings>().copied().unwrap_or_default()
    }

    /// Sets the figures of [`Self::timings`] to zero.
    pub fn reset_timings(&mut self) {
        self.world_mut().resource_mut::<PassTimings>().reset();
    }

    /// How often and why graphs were planned.
    #[must_use]
    pub fn counters(&self) -> PlanCounters {
        self.world().get_resource::<PlanCounters>().cloned().unwrap_or_default()
    }

    /// Why every node of a graph is where it is. Plans the graph if needed.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub fn explain(&mut self, graph: GraphId) -> Result<Vec<Explanation>, EngineError> {
        self.plan(graph)?;
        let plan = self.plan_of(graph).ok_or(EngineError::UnknownGraph)?;
        let explain = |(i, node): (usize, &entensor_systems::PlanNode)| Explanation {
            node: Arc::clone(&node.name),
            op: node.op.to_string(),
            shape: node.desc.shape,
            dtype: node.desc.dtype,
            backend: Arc::clone(&plan.backends[node.backend as usize].name),
            cause: node.cause,
            why: plan.why(i),
        };
        Ok(plan.nodes.iter().enumerate().map(explain).collect())
    }

    /// The op of a tensor entity, for tools.
    #[must_use]
    pub fn op_of(&self, entity: Entity) -> Option<&Op> {
        self.world().get::<Op>(entity)
    }

    /// Where a tensor entity was placed last.
    #[must_use]
    pub fn placement_of(&self, entity: Entity) -> Option<BackendIndex> {
        self.world().get::<BackendId>(entity).and_then(|id| id.0)
    }
}

pub(crate) fn packed(name: &Arc<str>, dtype: DType, dims: &[u64]) -> Result<TensorDesc, EngineError> {
    let too_many = entensor_components::ShapeError::TooManyAxes { rank: dims.len() };
    let desc = Shape::new(dims).ok_or(too_many).and_then(|shape| TensorDesc::packed(dtype, shape));
    desc.map_err(|source| EngineError::Shape { tensor: Arc::clone(name), source })
}

/// Flags of a tensor entity.
pub(crate) fn flags_of(world: &World, entity: Entity) -> TensorFlags {
    world.get::<TensorFlags>(entity).copied().unwrap_or_default()
}
