//! Buffers, and tensors with memory of their own: weights, caches, state.

use std::{borrow::BorrowMut, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{
    BackendError, BackendIndex, BufferBundle, BufferMemory, BufferName, DType, DeviceBuffer, ImportedBytes, Shape,
    ShapeError, TensorDesc, Usage,
};
use entensor_systems::Arena;

use crate::{
    engine::{ArenaId, BufferId, Engine, TensorId},
    error::EngineError,
};

impl<W: BorrowMut<World>> Engine<W> {
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

    /// Allocates a zeroed buffer of one of the backend's types ([`Backend::buffer_types`](entensor_components::Backend::buffer_types)):
    /// weights in a private layout, memory that is faster or can be copied from faster. Zero bytes are a buffer too. Blocks.
    ///
    /// # Errors
    /// [`BackendError::UnknownBufferType`] lists what the backend makes; what the backend reports.
    ///
    /// ```
    /// use entensor::{DType, Engine, GraphBuilder, Usage};
    ///
    /// let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    /// let buffer = engine.create_buffer_of("weights", engine.host(), "cpu-repacked", Usage::Weights, 8 * 34)?;
    /// let weights = engine.tensor_in("w", DType::Q8_0, &[32, 8], buffer, 0)?;
    /// // What is written is converted, and what is read is converted back.
    /// engine.write_tensor(&weights, &[1_u8; 8 * 34])?;
    /// assert!(engine.create_buffer_of("other", engine.host(), "no-such-type", Usage::Any, 1).is_err());
    /// # Ok::<(), entensor::EngineError>(())
    /// ```
    pub fn create_buffer_of(
        &mut self,
        name: &str,
        backend: BackendIndex,
        buffer_type: &str,
        usage: Usage,
        size_bytes: u64,
    ) -> Result<BufferId, EngineError> {
        let backend = self.backend(backend)?;
        let fail = |source| EngineError::Backend { what: name.into(), source };
        let buffer = DeviceBuffer::create_of(&backend, buffer_type, size_bytes, usage).map_err(fail)?;
        Ok(BufferId(self.world_mut().spawn(BufferBundle::new(name, usage, buffer)).id()))
    }

    /// Removes a buffer. Graphs with tensors in it report that when they are planned or run next; the memory itself goes when the last run
    /// that uses it is over.
    ///
    /// # Errors
    /// [`EngineError::UnknownBuffer`], also for one that was removed already.
    pub fn remove_buffer(&mut self, buffer: BufferId) -> Result<(), EngineError> {
        self.buffer(buffer)?;
        self.world_mut().despawn(buffer.0);
        Ok(())
    }

    /// Says what a buffer is used for from now on. Graphs that use it are planned again when they run next: weights draw the ops that read them
    /// to their memory.
    ///
    /// # Errors
    /// [`EngineError::UnknownBuffer`].
    pub fn set_usage(&mut self, buffer: BufferId, usage: Usage) -> Result<(), EngineError> {
        self.buffer(buffer)?;
        let mut entity = self.world_mut().entity_mut(buffer.0);
        // The same usage again is no reason to plan.
        if entity.get::<Usage>() != Some(&usage) {
            entity.insert(usage);
        }
        Ok(())
    }

    /// What a buffer is used for.
    ///
    /// # Errors
    /// [`EngineError::UnknownBuffer`].
    pub fn usage_of(&self, buffer: BufferId) -> Result<Usage, EngineError> {
        self.buffer(buffer)?;
        Ok(self.world().get::<Usage>(buffer.0).copied().unwrap_or_default())
    }

    /// Forgets which tensors a buffer was made ready for: its memory can be used anew. Its bytes stay; only private layouts know more.
    /// Tensors that are still in it keep their places, and must be placed again before they are used.
    ///
    /// # Errors
    /// [`EngineError::UnknownBuffer`]; what the backend reports.
    pub fn reset_buffer(&mut self, buffer: BufferId) -> Result<(), EngineError> {
        let memory = self.for_write(buffer)?;
        memory.reset().map_err(|source| self.buffer_failed(buffer, source))
    }

    pub(crate) fn buffer_failed(&self, buffer: BufferId, source: BackendError) -> EngineError {
        let name = self.world().get::<BufferName>(buffer.0).map_or_else(|| "?".into(), |name| Arc::clone(&name.0));
        EngineError::Backend { what: name, source }
    }

    /// Makes a read-only weights buffer of host memory in place, without a copy: a mapped file. It must begin at a multiple of the host
    /// backend's `import_align_bytes`.
    ///
    /// # Errors
    /// [`BackendError::MisalignedImport`]; what the host backend reports.
    pub fn import_buffer(&mut self, name: &str, bytes: Arc<dyn ImportedBytes>) -> Result<BufferId, EngineError> {
        let backend = self.backend(self.host())?;
        let fail = |source| EngineError::Backend { what: name.into(), source };
        let buffer = DeviceBuffer::import(&backend, bytes).map_err(fail)?;
        Ok(BufferId(self.world_mut().spawn(BufferBundle::new(name, Usage::Weights, buffer)).id()))
    }

    /// A tensor in a buffer.
    ///
    /// # Errors
    /// A shape that cannot exist, one that does not fit into the buffer, an offset that its elements cannot have; as [`Self::place_tensor`].
    pub fn tensor_in(
        &mut self,
        name: &str,
        dtype: DType,
        dims: &[u64],
        buffer: BufferId,
        offset_bytes: u64,
    ) -> Result<TensorId, EngineError> {
        let desc = packed(&name.into(), dtype, dims)?;
        self.place_tensor(name, desc, buffer, offset_bytes)
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
        if let Err(source) = memory.backend().write(memory.memory(), 0, &bytes) {
            self.world_mut().despawn(buffer.0);
            return Err(fail(source));
        }
        self.tensor_in(name, dtype, dims, buffer, 0)
    }

    pub(crate) fn buffer(&self, buffer: BufferId) -> Result<Arc<DeviceBuffer>, EngineError> {
        let memory = self.world().get::<BufferMemory>(buffer.0);
        memory.map(|m| Arc::clone(&m.0)).ok_or(EngineError::UnknownBuffer)
    }
}

pub(crate) fn packed(name: &Arc<str>, dtype: DType, dims: &[u64]) -> Result<TensorDesc, EngineError> {
    let too_many = ShapeError::TooManyAxes { rank: dims.len() };
    let desc = Shape::new(dims).ok_or(too_many).and_then(|shape| TensorDesc::packed(dtype, shape));
    desc.map_err(|source| EngineError::Shape { tensor: Arc::clone(name), source })
}
