//! Devices that go away: the engine goes on without them, with the same entities and indices.
//!
//! A lost backend is replaced by one that refuses everything, so that indices and pins mean what they meant. Buffers
//! on it are made anew on the host, from what they were filled from or from their shadow; those that have neither are marked, and graphs
//! that use them fail until somebody restores them.

use std::{borrow::BorrowMut, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{
    Backend, BackendError, BackendHandle, BackendIndex, BackendName, BufferBundle, BufferKey, BufferMemory, BufferName,
    Capabilities, GraphTensors, MemoryHandle, MemoryKind, MemoryReport, OpDesc, PreparedSplit, Priority,
    SharedGeneration, SplitView, StoredIn, Support, TensorName, Usage,
};
use entensor_systems::{Arena, Backends, GraphPlan, GraphRuns, GraphStatus, PlanCache, PlanError};

use crate::{
    engine::{Engine, GraphId, InputState},
    error::EngineError,
};

/// On a backend entity: its device is lost, for good.
#[derive(Component, Clone, Debug, PartialEq, Eq)]
#[component(immutable)]
pub struct LostDevice {
    /// What the driver said.
    pub reason: Arc<str>,
}

/// On a buffer entity: its contents went with their device, and nobody kept a copy.
#[derive(Component, Clone, Debug, PartialEq, Eq)]
#[component(immutable)]
pub struct LostState {
    /// The backend that it was on.
    pub backend: Arc<str>,
}

/// A device was lost. Triggered once a device, after the engine has done what it can; observe it to tell the player, or to give
/// the engine another one.
#[derive(Event, Clone, Debug, PartialEq, Eq)]
pub struct DeviceLost {
    /// The backend.
    pub backend: Arc<str>,
    /// Its index, which stays its own.
    pub index: BackendIndex,
    /// What the driver said.
    pub reason: Arc<str>,
    /// Whether the engine goes on without it. It cannot without the last backend, the host.
    pub recovered: bool,
    /// Buffers whose contents are lost.
    pub lost_buffers: Vec<Arc<str>>,
}

/// In the place of a lost backend.
struct Gone {
    name: String,
    capabilities: Capabilities,
    reason: String,
}

impl Gone {
    fn new(name: &str, reason: &str) -> Self {
        let kind: Arc<str> = format!("lost:{name}").into();
        let memory = MemoryKind(Arc::clone(&kind));
        let reads = vec![memory.clone()];
        let capabilities = Capabilities { memory, reads, buffer_type: kind, ..Capabilities::host() };
        Self { name: name.into(), capabilities, reason: reason.into() }
    }

    fn error<T>(&self) -> Result<T, BackendError> {
        Err(BackendError::DeviceLost { reason: self.reason.clone() })
    }
}

impl Backend for Gone {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn support(&self, _op: &OpDesc<'_>) -> Support {
        Support::no("its device was lost")
    }

    fn create_buffer(&self, _size_bytes: u64, _usage: Usage) -> Result<BufferKey, BackendError> {
        self.error()
    }

    fn destroy_buffer(&self, _key: BufferKey) -> Result<(), BackendError> {
        self.error()
    }

    fn memory(&self, _key: BufferKey) -> Result<MemoryHandle, BackendError> {
        self.error()
    }

    fn write(&self, _memory: &MemoryHandle, _offset_bytes: u64, _bytes: &[u8]) -> Result<(), BackendError> {
        self.error()
    }

    fn read(&self, _memory: &MemoryHandle, _offset_bytes: u64, _bytes: &mut [u8]) -> Result<(), BackendError> {
        self.error()
    }

    fn prepare(&self, _split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        self.error()
    }

    fn memory_report(&self) -> MemoryReport {
        MemoryReport::default()
    }
}

/// An input's bytes, kept over a loss.
pub(crate) type KeptInputs = Vec<(Entity, Vec<u8>)>;

impl<W: BorrowMut<World>> Engine<W> {
    /// Asks every backend whether its device is still there, and goes on without those that are not. Waits for work that is under way.
    /// Runs find out by themselves; this is for programs that want to know before they run.
    ///
    /// # Errors
    /// The device of the last backend, the host, is lost: the engine cannot go on.
    pub fn check_devices(&mut self) -> Result<(), EngineError> {
        let lost = self.find_lost();
        for (index, reason) in lost {
            if !self.lose_backend(index, &reason) {
                let what = self.backends()[index].name().into();
                let source = BackendError::DeviceLost { reason: reason.to_string() };
                return Err(EngineError::Backend { what, source });
            }
        }
        Ok(())
    }

    fn find_lost(&self) -> Vec<(usize, Arc<str>)> {
        let mut lost = Vec::new();
        for (index, backend) in self.backends().iter().enumerate() {
            if let Err(BackendError::DeviceLost { reason }) = backend.synchronize() {
                lost.push((index, reason.into()));
            }
        }
        lost
    }

    /// A run or plan met a lost device: goes on without it.
    pub(crate) fn device_failed(&mut self, graph: GraphId, error: &PlanError, reason: Arc<str>) -> EngineError {
        let mut lost = self.find_lost();
        // Whoever reported it may not say so again.
        let named = error.backend().and_then(|name| self.backends().iter().position(|b| b.name() == name));
        if lost.is_empty() {
            lost.extend(named.map(|index| (index, Arc::clone(&reason))));
        }
        let mut recovered = !lost.is_empty();
        let first = lost.first().map(|(index, _)| *index).or(named);
        let backend = first.map_or_else(|| "?".into(), |index| self.backends()[index].name().into());
        for (index, reason) in lost {
            recovered &= self.lose_backend(index, &reason);
        }
        if let Some(mut status) = self.world_mut().get_mut::<GraphStatus>(graph.0) {
            *status = GraphStatus::DeviceLost { backend: Arc::clone(&backend), reason: Arc::clone(&reason) };
        }
        EngineError::DeviceLost { graph: self.graph_name(graph), backend, reason, recovered }
    }

    /// Whether the engine goes on without the backend of this name already.
    pub(crate) fn is_given_up(&mut self, name: &str) -> bool {
        let world = self.world_mut();
        let mut lost = world.query_filtered::<&BackendName, With<LostDevice>>();
        lost.iter(world).any(|lost| &*lost.0 == name)
    }

    /// Goes on without a backend; false for the last one, without which there is no going on.
    fn lose_backend(&mut self, index: usize, reason: &Arc<str>) -> bool {
        // Whatever is under way fails or ends; nothing may use memory that is given up below.
        self.settle_all();
        let recovered = index + 1 < self.backends().len();
        let Some(gone) = self.backends().get(index).cloned() else { return false };
        let name: Arc<str> = gone.name().into();
        let mut lost_buffers = Vec::new();
        let world = self.world_mut();
        if recovered {
            let stand_in: Arc<dyn Backend> = Arc::new(Gone::new(&name, reason));
            world.resource_mut::<Backends>().0[index] = Arc::clone(&stand_in);
            give_up_arenas(world, &gone);
            world.resource_mut::<PlanCache>().clear();
            mark_graphs(world, &gone, &name, reason);
            world.resource_mut::<SharedGeneration>().0 += 1;
            lost_buffers = self.restore_buffers(&gone, &name);
            self.mark_backend(index, reason, Some(stand_in));
        } else if !self.mark_backend(index, reason, None) {
            return false;
        }
        let index = BackendIndex(u32::try_from(index).unwrap_or(u32::MAX));
        let reason = Arc::clone(reason);
        self.world_mut().trigger(DeviceLost { backend: name, index, reason, recovered, lost_buffers });
        recovered
    }

    /// Notes on the backend's entity that it is lost; false if it was already.
    fn mark_backend(&mut self, index: usize, reason: &Arc<str>, stand_in: Option<Arc<dyn Backend>>) -> bool {
        let world = self.world_mut();
        let mut entities = world.query::<(Entity, &Priority, Has<LostDevice>)>();
        let found = entities.iter(world).find(|(_, priority, _)| priority.0.0 as usize == index);
        let Some((entity, _, false)) = found else { return false };
        let mut entity = world.entity_mut(entity);
        entity.insert(LostDevice { reason: Arc::clone(reason) });
        if let Some(stand_in) = stand_in {
            entity.insert(BackendHandle(stand_in));
        }
        true
    }

    /// Makes the buffers of a lost backend anew on the host; the names of those whose contents nobody has.
    fn restore_buffers(&mut self, gone: &Arc<dyn Backend>, backend: &Arc<str>) -> Vec<Arc<str>> {
        let world = self.world_mut();
        let mut buffers = world.query::<(Entity, &BufferName, &Usage, &BufferMemory)>();
        let on_it = |memory: &BufferMemory| Arc::ptr_eq(memory.0.backend(), gone);
        let found: Vec<(Entity, Arc<str>, Usage)> = buffers
            .iter(world)
            .filter(|(.., memory)| on_it(memory))
            .map(|(entity, name, &usage, _)| (entity, Arc::clone(&name.0), usage))
            .collect();
        let mut lost = Vec::new();
        for (entity, name, usage) in found {
            let restored = self.copy_of_contents(entity, usage);
            let mut buffer = self.world_mut().entity_mut(entity);
            match restored {
                Some(memory) => drop(buffer.insert(BufferBundle::new(name, usage, memory))),
                None => {
                    buffer.insert(LostState { backend: Arc::clone(backend) });
                    lost.push(name);
                }
            }
        }
        lost
    }

    /// Memory of the graph's whose contents are lost is an error before anybody computes with it.
    pub(crate) fn check_state(&mut self, graph: GraphId) -> Result<(), EngineError> {
        let world = self.world_mut();
        let mut lost = world.query::<&LostState>();
        if lost.iter(world).next().is_none() {
            return Ok(());
        }
        let world = self.world();
        let Some(tensors) = world.get::<GraphTensors>(graph.0) else { return Err(EngineError::UnknownGraph) };
        for &tensor in &tensors.0 {
            let Some(stored) = world.get::<StoredIn>(tensor).and_then(|stored| stored.0) else { continue };
            if let Some(lost) = world.get::<LostState>(stored.buffer) {
                let named = |name: Option<Arc<str>>| name.unwrap_or_else(|| "?".into());
                return Err(EngineError::StateLost {
                    graph: self.graph_name(graph),
                    tensor: named(world.get::<TensorName>(tensor).map(|name| Arc::clone(&name.0))),
                    buffer: named(world.get::<BufferName>(stored.buffer).map(|name| Arc::clone(&name.0))),
                    backend: Arc::clone(&lost.backend),
                });
            }
        }
        Ok(())
    }

    fn is_there(&self, backend: &Arc<dyn Backend>) -> bool {
        self.backends().iter().any(|other| Arc::ptr_eq(other, backend))
    }

    /// The inputs of the graph's last run, if it can be run again as if nothing had happened: they are still there, and the run was to
    /// write no memory that outlives the device.
    pub(crate) fn take_rerun(&mut self, graph: GraphId) -> Option<KeptInputs> {
        let current = self.world().get::<GraphPlan>(graph.0)?;
        let (plan, slot) = (&current.plan, self.world().get::<GraphRuns>(graph.0)?.last_slot());
        let changed = |(place, buffer): (usize, &Arc<entensor_components::DeviceBuffer>)| {
            plan.writes_existing(place) && self.is_there(buffer.backend())
        };
        if current.existing.iter().enumerate().any(changed) {
            return None;
        }
        let mut kept = KeptInputs::new();
        for node in (0..plan.leaves()).filter(|&i| plan.flags[i].input && plan.memory.place(i).is_none()) {
            let desc = plan.table.descs[node];
            if desc.shape.is_empty() {
                continue;
            }
            // What its run consumes is gone.
            if plan.flags[node].consumed && plan.programs.len() == 1 {
                return None;
            }
            let place = plan.locate(node, slot)?;
            let buffer = plan.buffers.get(place.memory.0 as usize)?;
            let backend = &plan.backends[buffer.backend as usize].handle;
            if !self.is_there(backend) {
                return None;
            }
            let mut bytes = vec![0; usize::try_from(desc.size_bytes()).ok()?];
            backend.read(current.binding.get(place.memory.0 as usize)?, place.offset_bytes, &mut bytes).ok()?;
            kept.push((*current.entities.get(node)?, bytes));
        }
        Some(kept)
    }

    /// Plans anew and writes what an earlier plan's inputs held.
    pub(crate) fn write_again(&mut self, graph: GraphId, inputs: &KeptInputs) -> Result<(), EngineError> {
        self.plan(graph)?;
        self.hold_arena(graph)?;
        let mut nodes = Vec::with_capacity(inputs.len());
        let plan = self.world().get::<GraphPlan>(graph.0).ok_or(EngineError::UnknownGraph)?;
        for (entity, bytes) in inputs {
            let Some(node) = plan.entities.iter().position(|e| e == entity) else { continue };
            let Some(place) = plan.plan.locate(node, plan.slot) else { continue };
            let Some(buffer) = plan.plan.buffers.get(place.memory.0 as usize) else { continue };
            let backend = &plan.plan.backends[buffer.backend as usize].handle;
            let written = backend.write(&plan.binding[place.memory.0 as usize], place.offset_bytes, bytes);
            let what = || Arc::clone(&plan.plan.table.names[node]);
            written.map_err(|source| EngineError::Backend { what: what(), source })?;
            nodes.push(node);
        }
        if let Some(mut state) = self.world_mut().get_mut::<InputState>(graph.0) {
            for node in nodes {
                if let Some(written) = state.written.get_mut(node) {
                    *written = true;
                }
            }
        }
        Ok(())
    }
}

/// No arena keeps buffers of the lost backend.
fn give_up_arenas(world: &mut World, gone: &Arc<dyn Backend>) {
    let mut arenas = world.query::<&mut Arena>();
    for mut arena in arenas.iter_mut(world) {
        let before = arena.buffers.len();
        arena.buffers.retain(|buffer| !Arc::ptr_eq(buffer.buffer.backend(), gone));
        if arena.buffers.len() < before {
            arena.epoch += 1;
            arena.holder = None;
        }
    }
}

/// The status of every graph whose plan uses the backend says so.
fn mark_graphs(world: &mut World, gone: &Arc<dyn Backend>, backend: &Arc<str>, reason: &Arc<str>) {
    let mut graphs = world.query::<(&GraphPlan, &mut GraphStatus)>();
    for (plan, mut status) in graphs.iter_mut(world) {
        let index = plan.plan.backends.iter().position(|b| Arc::ptr_eq(&b.handle, gone));
        let uses = index.is_some_and(|index| {
            plan.plan.splits.iter().any(|split| split.backend as usize == index)
                || plan.plan.backends[index].planned_bytes > 0
        });
        let existing = plan.existing.iter().any(|buffer| Arc::ptr_eq(buffer.backend(), gone));
        if uses || existing {
            *status = GraphStatus::DeviceLost { backend: Arc::clone(backend), reason: Arc::clone(reason) };
        }
    }
}
