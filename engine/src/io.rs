//! Writing inputs and reading results: bounds, dtypes and lifetimes are checked, never assumed.

use std::{borrow::BorrowMut, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{
    BufferMemory, DType, DeviceBuffer, RunLimit, Shape, StoredIn, Strides, TensorDesc, TensorFlags, TensorName,
    TensorRef, ViewSrc,
};
use entensor_systems::{GraphPlan, GraphRuns, Plan};

use crate::{
    builder::Tensor,
    engine::{Engine, GraphId, InputState, TensorId},
    error::EngineError,
    runs::RunId,
};

/// Values that tensors are read and written as.
pub trait Element: bytemuck::Pod {
    /// The dtype of such tensors; `None` for raw bytes, which fit every dtype.
    const DTYPE: Option<DType>;
    /// The type's name in messages.
    const NAME: &'static str;
}

impl Element for f32 {
    const DTYPE: Option<DType> = Some(DType::F32);
    const NAME: &'static str = "f32";
}

impl Element for i32 {
    const DTYPE: Option<DType> = Some(DType::I32);
    const NAME: &'static str = "i32";
}

impl Element for half::f16 {
    const DTYPE: Option<DType> = Some(DType::F16);
    const NAME: &'static str = "f16";
}

impl Element for half::bf16 {
    const DTYPE: Option<DType> = Some(DType::Bf16);
    const NAME: &'static str = "bf16";
}

impl Element for i8 {
    const DTYPE: Option<DType> = Some(DType::I8);
    const NAME: &'static str = "i8";
}

impl Element for i16 {
    const DTYPE: Option<DType> = Some(DType::I16);
    const NAME: &'static str = "i16";
}

impl Element for i64 {
    const DTYPE: Option<DType> = Some(DType::I64);
    const NAME: &'static str = "i64";
}

impl Element for u8 {
    const DTYPE: Option<DType> = None;
    const NAME: &'static str = "bytes";
}

/// A tensor entity with what reading and writing need.
pub(crate) struct Target {
    entity: Entity,
    pub(crate) name: Arc<str>,
    desc: TensorDesc,
}

impl Target {
    pub(crate) fn find(world: &World, entity: Entity) -> Result<Self, EngineError> {
        let name = world.get::<TensorName>(entity).ok_or(EngineError::UnknownTensor)?;
        let parts = (world.get::<DType>(entity), world.get::<Shape>(entity), world.get::<Strides>(entity));
        let (Some(&dtype), Some(&shape), Some(&strides)) = parts else { return Err(EngineError::UnknownTensor) };
        Ok(Self { entity, name: Arc::clone(&name.0), desc: TensorDesc { dtype, shape, strides } })
    }

    pub(crate) fn check<T: Element>(&self, given: usize) -> Result<(), EngineError> {
        let tensor = || Arc::clone(&self.name);
        if let Some(dtype) = T::DTYPE
            && dtype != self.desc.dtype
        {
            return Err(EngineError::WrongDType { tensor: tensor(), dtype: self.desc.dtype, given: T::NAME });
        }
        if !self.desc.is_packed() {
            return Err(EngineError::NotPacked { tensor: tensor() });
        }
        let expected = self.desc.size_bytes() / size_of::<T>() as u64;
        if expected != given as u64 {
            let (shape, given) = (self.desc.shape, given as u64);
            return Err(EngineError::WrongLength { tensor: tensor(), shape, expected, given });
        }
        Ok(())
    }

    /// The buffer and offset of memory that exists outside plans: the tensor's own or its root's.
    fn existing(&self, world: &World) -> Option<(Arc<DeviceBuffer>, u64)> {
        let view = world.get::<ViewSrc>(self.entity).copied().unwrap_or_default();
        let stored = world.get::<StoredIn>(view.root.unwrap_or(self.entity))?.0?;
        let buffer = world.get::<BufferMemory>(stored.buffer)?;
        Some((Arc::clone(&buffer.0), stored.offset_bytes.saturating_add(view.offset_bytes)))
    }
}

/// The memory of a planned tensor: which of the binding, and where.
fn located(plan: &GraphPlan, entity: Entity, slot: u32) -> Option<(usize, TensorRef)> {
    let node = plan.entities.iter().position(|&e| e == entity)?;
    Some((node, plan.plan.locate(node, slot)?))
}

/// The backend that planned memory belongs to.
fn owner(plan: &Plan, place: &TensorRef) -> Option<usize> {
    plan.buffers.get(place.memory.0 as usize).map(|buffer| buffer.backend as usize)
}

impl<W: BorrowMut<World>> Engine<W> {
    /// Writes an input, or a tensor with memory of its own, for the graph's next run.
    ///
    /// # Errors
    /// Wrong dtype or length, a computed tensor, planning errors, or what the backend reports.
    pub fn write<T: Element>(&mut self, graph: GraphId, tensor: Tensor, values: &[T]) -> Result<(), EngineError> {
        let target = Target::find(self.world(), self.entity(graph, tensor)?)?;
        target.check::<T>(values.len())?;
        let bytes = bytemuck::cast_slice(values);
        if let Some((buffer, offset)) = target.existing(self.world()) {
            return self.write_existing(&target.name, &buffer, offset, bytes);
        }
        if !self.world().get::<TensorFlags>(target.entity).is_some_and(|flags| flags.input) {
            return Err(EngineError::NotWritable { tensor: target.name });
        }
        self.abandon(graph);
        self.plan(graph)?;
        self.hold_arena(graph)?;
        self.settle_slot(graph);
        let plan = self.world().get::<GraphPlan>(graph.0).ok_or(EngineError::UnknownGraph)?;
        // An input that the run does not need has no place, and writing it changes nothing.
        let Some((node, place)) = located(plan, target.entity, plan.slot) else { return Ok(()) };
        if let Some(backend) = owner(&plan.plan, &place) {
            let memory = &plan.binding[place.memory.0 as usize];
            let written = plan.plan.backends[backend].handle.write(memory, place.offset_bytes, bytes);
            written.map_err(|source| EngineError::Backend { what: target.name, source })?;
        }
        // A consumed input gives its memory to others after its last reader: what outputs there were may lie in it.
        if plan.plan.flags[node].consumed
            && plan.plan.programs.len() == 1
            && let Some(runs) = self.world().get::<GraphRuns>(graph.0)
        {
            runs.forget_results();
        }
        if let Some(written) =
            self.world_mut().get_mut::<InputState>(graph.0).as_mut().and_then(|state| state.written.get_mut(node))
        {
            *written = true;
        }
        Ok(())
    }

    /// Reads an output of the graph's last run, an input, or a tensor with memory of its own. Blocks until it is there.
    ///
    /// # Errors
    /// Wrong dtype or length, a tensor whose memory others use, outputs that are gone, or what the backend reports.
    pub fn read<T: Element>(&self, graph: GraphId, tensor: Tensor, values: &mut [T]) -> Result<(), EngineError> {
        let number = self.world().get::<GraphRuns>(graph.0).map_or(0, GraphRuns::last);
        self.read_run(RunId { graph, number }, tensor, values)
    }

    /// Reads an output or input of one of the graph's runs, as long as no later run has taken its slot. Blocks until the run is
    /// over, and not for later ones.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_run<T: Element>(&self, run: RunId, tensor: Tensor, values: &mut [T]) -> Result<(), EngineError> {
        let graph = run.graph;
        let target = Target::find(self.world(), self.entity(graph, tensor)?)?;
        target.check::<T>(values.len())?;
        let bytes = bytemuck::cast_slice_mut(values);
        if let Some((buffer, offset)) = target.existing(self.world()) {
            self.settle_buffer(&buffer, true);
            return read_buffer(&target.name, &buffer, offset, bytes);
        }
        let (plan, runs) = (self.world().get::<GraphPlan>(graph.0), self.world().get::<GraphRuns>(graph.0));
        let gone = || EngineError::OutputGone { graph: self.graph_name(graph), tensor: Arc::clone(&target.name) };
        let (Some(plan), Some(runs)) = (plan, runs) else { return Err(gone()) };
        if self.is_paused(graph) && run.number == runs.last() {
            return Err(gone());
        }
        // What it failed with is for whoever asks for the run: it has no results.
        if runs.in_flight() > 0 {
            let _ = runs.wait(run.number, &RunLimit::NONE);
        }
        let arena = self.world().get::<entensor_systems::Arena>(plan.arena);
        let ours = arena.is_some_and(|a| a.holder == Some(graph.0) && a.epoch == plan.arena_epoch);
        let Some(slot) = runs.slot_of(run.number).filter(|_| ours) else { return Err(gone()) };
        let Some((node, place)) = located(plan, target.entity, slot) else {
            return Err(EngineError::NotReadable { tensor: target.name });
        };
        let flags = plan.plan.flags[node];
        let is_kept = flags.output || (flags.input && !flags.consumed);
        let Some(backend) = owner(&plan.plan, &place).filter(|_| is_kept) else {
            return Err(EngineError::NotReadable { tensor: target.name });
        };
        let memory = &plan.binding[place.memory.0 as usize];
        let read = plan.plan.backends[backend].handle.read(memory, place.offset_bytes, bytes);
        read.map_err(|source| EngineError::Backend { what: target.name, source })
    }

    fn write_existing(
        &self,
        name: &Arc<str>,
        buffer: &Arc<DeviceBuffer>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        self.settle_buffer(buffer, false);
        let fail = |source| EngineError::Backend { what: Arc::clone(name), source };
        buffer.backend().write(buffer.memory(), offset, bytes).map_err(fail)?;
        self.note_written(buffer, offset, bytes);
        Ok(())
    }

    /// Writes a tensor with memory of its own.
    ///
    /// # Errors
    /// Wrong dtype or length, or what the backend reports; imported memory is read-only.
    pub fn write_tensor<T: Element>(&mut self, tensor: &TensorId, values: &[T]) -> Result<(), EngineError> {
        let target = Target::find(self.world(), tensor.entity)?;
        target.check::<T>(values.len())?;
        let (buffer, offset) = target.existing(self.world()).ok_or(EngineError::UnknownBuffer)?;
        self.write_existing(&target.name, &buffer, offset, bytemuck::cast_slice(values))
    }

    /// Reads a tensor with memory of its own.
    ///
    /// # Errors
    /// Wrong dtype or length, or what the backend reports.
    pub fn read_tensor<T: Element>(&self, tensor: &TensorId, values: &mut [T]) -> Result<(), EngineError> {
        let target = Target::find(self.world(), tensor.entity)?;
        target.check::<T>(values.len())?;
        let (buffer, offset) = target.existing(self.world()).ok_or(EngineError::UnknownBuffer)?;
        self.settle_buffer(&buffer, true);
        read_buffer(&target.name, &buffer, offset, bytemuck::cast_slice_mut(values))
    }
}

fn read_buffer(name: &Arc<str>, buffer: &DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), EngineError> {
    let fail = |source| EngineError::Backend { what: Arc::clone(name), source };
    buffer.backend().read(buffer.memory(), offset, bytes).map_err(fail)
}
