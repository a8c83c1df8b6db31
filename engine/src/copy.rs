//! Copying a graph with its data into another engine, whose backends may be others.

use std::{borrow::BorrowMut, collections::HashMap, sync::Arc};

use bevy_ecs::{entity::EntityHashMap, prelude::*};
use entensor_components::{
    BackendIndex, BufferBundle, BufferMemory, BufferName, DType, DeviceBuffer, GraphBundle, GraphTensors, InGraph, Op,
    Opaque, Pinned, PipelineCopies, Shape, Sources, Stored, StoredIn, Strides, TensorBundle, TensorDesc, TensorFlags,
    TensorName, Usage, ViewSrc, Wanted,
};
use entensor_systems::{GraphPlan, GraphStatus};

use crate::{
    engine::{BufferId, BuiltBy, Engine, GraphId, InputState},
    error::EngineError,
    walk::{Walk, zeroed},
};

/// Bytes that are on their way at once.
const PIECE_BYTES: u64 = 8 << 20;

/// A graph that was copied into another engine.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphCopy {
    /// The copy. [`crate::Tensor`]s of the original's builder name its tensors too.
    pub graph: GraphId,
    /// Copies of the buffers that hold weights, caches and state.
    pub buffers: Vec<BufferId>,
    /// Copies of leaves that the original shares with other graphs.
    shared: Vec<Entity>,
}

impl GraphCopy {
    /// Removes the graph with all that was copied for it.
    pub fn remove<W: BorrowMut<World>>(self, engine: &mut Engine<W>) {
        engine.remove_graph(self.graph);
        for entity in self.shared.into_iter().chain(self.buffers.into_iter().map(|buffer| buffer.0)) {
            engine.world_mut().try_despawn(entity).ok();
        }
    }
}

/// A tensor's components.
struct Parts {
    name: Arc<str>,
    desc: TensorDesc,
    op: Op,
    sources: Vec<Entity>,
    view: ViewSrc,
    flags: TensorFlags,
    stored: Option<Stored>,
    in_graph: bool,
}

impl Parts {
    fn of(world: &World, entity: Entity) -> Option<Self> {
        let tensor = world.get_entity(entity).ok()?;
        let desc = TensorDesc {
            dtype: *tensor.get::<DType>()?,
            shape: *tensor.get::<Shape>()?,
            strides: *tensor.get::<Strides>()?,
        };
        Some(Self {
            name: Arc::clone(&tensor.get::<TensorName>()?.0),
            desc,
            op: tensor.get::<Op>()?.clone(),
            sources: tensor.get::<Sources>()?.0.to_vec(),
            view: *tensor.get::<ViewSrc>()?,
            flags: *tensor.get::<TensorFlags>()?,
            stored: tensor.get::<StoredIn>()?.0,
            in_graph: tensor.get::<InGraph>()?.0.is_some(),
        })
    }
}

impl<W: BorrowMut<World>> Engine<W> {
    /// Copies a graph into another engine: its tensors, the buffers of those that have memory of their own with all their bytes, and
    /// the inputs that are written for the next run. Buffers are made on backend `memory` of the other engine, one for each of the
    /// original's. Pins are left out: they speak of this engine's backends.
    ///
    /// Blocks until the copy is there. The copy shares nothing with the original, which stays as it is.
    ///
    /// # Errors
    /// A graph or tensor that is gone, [`EngineError::PrivateLayout`] for a buffer that only its own backend can read, planning errors of the
    /// other engine, or what a backend reports; then nothing of the copy is left.
    pub fn copy_graph<V: BorrowMut<World>>(
        &self,
        graph: GraphId,
        to: &mut Engine<V>,
        memory: BackendIndex,
    ) -> Result<GraphCopy, EngineError> {
        let backend = to.backend(memory)?;
        let mut copy =
            Copying { from: self.world(), buffers: HashMap::new(), tensors: EntityHashMap::new(), made: Vec::new() };
        let copied = copy.spawn(graph, to, &backend);
        let made = std::mem::take(&mut copy.made);
        let inputs =
            copied.and_then(|copied| self.copy_inputs(graph, &copy.tensors, to, copied.graph).map(|()| copied));
        if inputs.is_err() {
            // With the plan that it may have by now.
            if let Some(&graph) = made.first() {
                to.remove_graph(GraphId(graph));
            }
            for entity in made {
                to.world_mut().try_despawn(entity).ok();
            }
        }
        inputs
    }

    /// Writes the inputs of a copied graph that are written in the original.
    fn copy_inputs<V: BorrowMut<World>>(
        &self,
        graph: GraphId,
        tensors: &EntityHashMap<Entity>,
        to: &mut Engine<V>,
        copy: GraphId,
    ) -> Result<(), EngineError> {
        let world = self.world();
        let (Some(planned), Some(state)) = (world.get::<GraphPlan>(graph.0), world.get::<InputState>(graph.0)) else {
            return Ok(());
        };
        let is_written = |node: &usize| state.written.get(*node).copied().unwrap_or(false);
        let written: Vec<usize> = (0..planned.plan.leaves()).filter(is_written).collect();
        if written.is_empty() {
            return Ok(());
        }
        let walk = Walk::new(world, graph)?;
        to.plan(copy)?;
        to.hold_arena(copy)?;
        for node in written {
            let Some(from) = planned.plan.locate(node, walk.slot) else { continue };
            let name = &planned.plan.table.names[node];
            let failed = |source| EngineError::Backend { what: Arc::clone(name), source };
            let bytes = walk.read(&from).map_err(failed)?;
            let Some(&entity) = tensors.get(&planned.entities[node]) else { continue };
            to.write_planned(copy, entity, &bytes)?;
        }
        Ok(())
    }

    /// Writes the bytes of an input with planned memory.
    pub(crate) fn write_planned(&mut self, graph: GraphId, entity: Entity, bytes: &[u8]) -> Result<(), EngineError> {
        let walk = Walk::new(self.world(), graph)?;
        let planned = self.world().get::<GraphPlan>(graph.0).ok_or(EngineError::UnknownGraph)?;
        let Some(node) = planned.entities.iter().position(|&e| e == entity) else { return Ok(()) };
        let Some(place) = walk.plan.locate(node, walk.slot) else { return Ok(()) };
        let what = &walk.plan.table.names[node];
        walk.write(&place, bytes).map_err(|source| EngineError::Backend { what: Arc::clone(what), source })?;
        if let Some(mut state) = self.world_mut().get_mut::<InputState>(graph.0)
            && let Some(written) = state.written.get_mut(node)
        {
            *written = true;
        }
        Ok(())
    }
}

/// What was copied so far.
struct Copying<'a> {
    from: &'a World,
    /// By buffer of the original.
    buffers: HashMap<Entity, Entity>,
    /// By tensor of the original.
    tensors: EntityHashMap<Entity>,
    /// Every entity that was spawned.
    made: Vec<Entity>,
}

impl Copying<'_> {
    fn spawn<V: BorrowMut<World>>(
        &mut self,
        graph: GraphId,
        to: &mut Engine<V>,
        backend: &Arc<dyn entensor_components::Backend>,
    ) -> Result<GraphCopy, EngineError> {
        let from = self.from;
        let listed = from.get::<GraphTensors>(graph.0).ok_or(EngineError::UnknownGraph)?.0.clone();
        let name = from.get::<entensor_components::GraphName>(graph.0).ok_or(EngineError::UnknownGraph)?;
        let world = to.world_mut();
        let copy =
            world.spawn((GraphBundle::new(Arc::clone(&name.0)), InputState::default(), GraphStatus::default())).id();
        self.made.push(copy);
        let mut shared = Vec::new();
        // Leaves that graphs share may be listed or only be operands; they come before their users either way.
        for &tensor in &listed {
            let parts = Parts::of(from, tensor).ok_or(EngineError::UnknownTensor)?;
            let leaves = parts.sources.iter().copied().chain([tensor]);
            for entity in leaves {
                if self.tensors.contains_key(&entity) {
                    continue;
                }
                let parts = Parts::of(from, entity).ok_or(EngineError::UnknownTensor)?;
                let in_graph = parts.in_graph;
                let entity_copy = self.tensor(entity, parts, copy, world, backend)?;
                if !in_graph {
                    shared.push(entity_copy);
                }
            }
        }
        let of = |entity: &Entity| self.tensors.get(entity).copied().ok_or(EngineError::UnknownTensor);
        let tensors = listed.iter().map(of).collect::<Result<Vec<_>, _>>()?;
        let wanted = from.get::<Wanted>(graph.0).map_or(&[][..], |wanted| &wanted.0);
        let wanted = wanted.iter().map(of).collect::<Result<Vec<_>, _>>()?;
        let copies = from.get::<PipelineCopies>(graph.0).copied().unwrap_or_default();
        let mut entity = world.entity_mut(copy);
        entity.insert((GraphTensors(tensors), Wanted(wanted), copies));
        if let Some(built) = from.get::<BuiltBy>(graph.0) {
            entity.insert(*built);
        }
        let buffers = self.buffers.values().copied().map(BufferId).collect();
        Ok(GraphCopy { graph: GraphId(copy), buffers, shared })
    }

    fn tensor(
        &mut self,
        entity: Entity,
        parts: Parts,
        graph: Entity,
        world: &mut World,
        backend: &Arc<dyn entensor_components::Backend>,
    ) -> Result<Entity, EngineError> {
        let known = |entity: &Entity| self.tensors.get(entity).copied().ok_or(EngineError::UnknownTensor);
        let sources = parts.sources.iter().map(known).collect::<Result<_, _>>()?;
        let root = parts.view.root.as_ref().map(known).transpose()?;
        let stored = match parts.stored {
            Some(stored) => Some(Stored { buffer: self.buffer(stored.buffer, world, backend)?, ..stored }),
            None => None,
        };
        let bundle = TensorBundle {
            in_graph: InGraph(parts.in_graph.then_some(graph)),
            op: parts.op,
            sources: Sources(sources),
            view_src: ViewSrc { root, ..parts.view },
            flags: parts.flags,
            pinned: Pinned(None),
            stored_in: StoredIn(stored),
            ..TensorBundle::leaf(parts.name, parts.desc)
        };
        let copy = world.spawn(bundle).id();
        self.made.push(copy);
        self.tensors.insert(entity, copy);
        Ok(copy)
    }

    /// The copy of a buffer, with its bytes.
    fn buffer(
        &mut self,
        buffer: Entity,
        world: &mut World,
        backend: &Arc<dyn entensor_components::Backend>,
    ) -> Result<Entity, EngineError> {
        if let Some(&copy) = self.buffers.get(&buffer) {
            return Ok(copy);
        }
        let from = self.from.get_entity(buffer).map_err(|_| EngineError::UnknownBuffer)?;
        let parts = (from.get::<BufferMemory>(), from.get::<BufferName>(), from.get::<Usage>());
        let (Some(memory), Some(name), Some(&usage)) = parts else { return Err(EngineError::UnknownBuffer) };
        if from.get::<Opaque>().is_some_and(|opaque| opaque.0) {
            return Err(EngineError::PrivateLayout { buffer: Arc::clone(&name.0) });
        }
        let failed = |source| EngineError::Backend { what: Arc::clone(&name.0), source };
        let source = &memory.0;
        let size_bytes = source.size_bytes();
        let target = DeviceBuffer::create(backend, size_bytes, usage).map_err(failed)?;
        let mut piece = zeroed(size_bytes.min(PIECE_BYTES)).map_err(failed)?;
        let mut offset_bytes = 0;
        while offset_bytes < size_bytes {
            let len = usize::try_from((size_bytes - offset_bytes).min(PIECE_BYTES)).unwrap_or(0);
            source.backend().read(source.memory(), offset_bytes, &mut piece[..len]).map_err(failed)?;
            target.backend().write(target.memory(), offset_bytes, &piece[..len]).map_err(failed)?;
            offset_bytes += len as u64;
        }
        let copy = world.spawn(BufferBundle::new(Arc::clone(&name.0), usage, target)).id();
        self.made.push(copy);
        self.buffers.insert(buffer, copy);
        Ok(copy)
    }
}
