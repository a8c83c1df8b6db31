//! Buffers, and tensors with memory of their own: weights, caches, state.

use std::{borrow::BorrowMut, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{
    BackendError, BackendIndex, BufferBundle, BufferMemory, DType, DeviceBuffer, ImportedBytes, Shape, ShapeError,
    Stored, StoredIn, TensorBundle, TensorDesc, Usage,
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
            let source = BackendError::OutOfBounds { offset_bytes, len_bytes, size_bytes };
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

fn packed(name: &Arc<str>, dtype: DType, dims: &[u64]) -> Result<TensorDesc, EngineError> {
    let too_many = ShapeError::TooManyAxes { rank: dims.len() };
    let desc = Shape::new(dims).ok_or(too_many).and_then(|shape| TensorDesc::packed(dtype, shape));
    desc.map_err(|source| EngineError::Shape { tensor: Arc::clone(name), source })
}
