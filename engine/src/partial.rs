//! Parts of tensors with memory of their own: ranges of bytes, rows at a distance, and copies from tensor to tensor.
//!
//! Offsets are bytes from a tensor's first element, and everything is checked against the tensor before anything happens: no access reaches
//! another tensor of the same buffer. All calls block until they are done, and wait for runs that use the memory.

use std::{borrow::BorrowMut, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{BackendError, ByteRows, DType, DeviceBuffer, Shape, Strides, TensorDesc};

use crate::{
    engine::{BufferId, Engine, TensorId},
    error::EngineError,
};

/// Memory of a tensor, or a part of it.
struct Part {
    name: Arc<str>,
    buffer: Arc<DeviceBuffer>,
    /// In the buffer.
    offset_bytes: u64,
    len_bytes: u64,
}

impl Part {
    fn failed(&self) -> impl Fn(BackendError) -> EngineError + use<> {
        let name = Arc::clone(&self.name);
        move |source| EngineError::Backend { what: Arc::clone(&name), source }
    }
}

impl<W: BorrowMut<World>> Engine<W> {
    /// The memory of a buffer that is about to be written from outside of runs.
    pub(crate) fn for_write(&self, buffer: BufferId) -> Result<Arc<DeviceBuffer>, EngineError> {
        let memory = self.buffer(buffer)?;
        self.settle_buffer(&memory, false);
        Ok(memory)
    }

    /// The part of a tensor, whose memory is about to be read or written: after runs that use it.
    fn part(&self, tensor: &TensorId, offset_bytes: u64, len_bytes: u64, write: bool) -> Result<Part, EngineError> {
        let (name, desc, buffer, at) = self.existing(tensor)?;
        let size_bytes = desc.span_bytes().unwrap_or(0);
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > size_bytes) {
            let source = BackendError::OutOfBounds { offset_bytes, len_bytes, size_bytes };
            return Err(EngineError::Backend { what: name, source });
        }
        self.settle_buffer(&buffer, !write);
        Ok(Part { name, buffer, offset_bytes: at + offset_bytes, len_bytes })
    }

    fn rows(&self, tensor: &TensorId, offset_bytes: u64, rows: &ByteRows, write: bool) -> Result<Part, EngineError> {
        let failed = |source| EngineError::Backend { what: Arc::clone(&tensor.name), source };
        self.part(tensor, offset_bytes, rows.buffer_span_bytes().map_err(failed)?, write)
    }

    /// What was written is in the buffer's shadow too, if it has one.
    fn wrote(&self, part: &Part) -> Result<(), EngineError> {
        self.update_shadow_of(&part.buffer, part.offset_bytes..part.offset_bytes + part.len_bytes)
    }

    /// Writes bytes of a tensor.
    ///
    /// # Errors
    /// Bytes outside the tensor, a tensor without memory of its own, read-only memory, what the backend reports.
    pub fn write_bytes(&mut self, tensor: &TensorId, offset_bytes: u64, bytes: &[u8]) -> Result<(), EngineError> {
        let part = self.part(tensor, offset_bytes, bytes.len() as u64, true)?;
        let written = part.buffer.backend().write(part.buffer.memory(), part.offset_bytes, bytes);
        written.map_err(part.failed())?;
        self.note_written(&part.buffer, part.offset_bytes, bytes);
        Ok(())
    }

    /// Reads bytes of a tensor.
    ///
    /// # Errors
    /// As [`Self::write_bytes`].
    pub fn read_bytes(&self, tensor: &TensorId, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), EngineError> {
        let part = self.part(tensor, offset_bytes, bytes.len() as u64, false)?;
        let read = part.buffer.backend().read(part.buffer.memory(), part.offset_bytes, bytes);
        read.map_err(part.failed())
    }

    /// Sets bytes of a tensor to one value.
    ///
    /// # Errors
    /// As [`Self::write_bytes`].
    pub fn fill_bytes(
        &mut self,
        tensor: &TensorId,
        offset_bytes: u64,
        len_bytes: u64,
        value: u8,
    ) -> Result<(), EngineError> {
        let part = self.part(tensor, offset_bytes, len_bytes, true)?;
        part.buffer.fill(part.offset_bytes, len_bytes, value).map_err(part.failed())?;
        self.wrote(&part)
    }

    /// Writes rows of bytes, each a part of a row of a tensor, say.
    ///
    /// # Errors
    /// Rows outside the tensor, or that overlap; fewer bytes than the rows span; as [`Self::write_bytes`].
    ///
    /// ```
    /// use entensor::{ByteRows, DType, Engine};
    ///
    /// let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    /// let table = engine.state("table", DType::I8, &[4, 3])?;
    /// // The middle two columns of every row.
    /// engine.write_rows(&table, 1, &ByteRows::new(3, 2, 4), &[1, 2, 3, 4, 5, 6])?;
    /// let mut all = [0_i8; 12];
    /// engine.read_tensor(&table, &mut all)?;
    /// assert_eq!(all, [0, 1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0]);
    /// # Ok::<(), entensor::EngineError>(())
    /// ```
    pub fn write_rows(
        &mut self,
        tensor: &TensorId,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let part = self.rows(tensor, offset_bytes, rows, true)?;
        let written = part.buffer.backend().write_rows(part.buffer.memory(), part.offset_bytes, rows, bytes);
        written.map_err(part.failed())?;
        // Not what lies between them: that is as old as the rest of the shadow.
        rows.pieces(part.offset_bytes).for_each(|(at, host)| self.note_written(&part.buffer, at, &bytes[host]));
        Ok(())
    }

    /// Reads rows of bytes as [`Self::write_rows`] writes them.
    ///
    /// # Errors
    /// As [`Self::write_rows`].
    pub fn read_rows(
        &self,
        tensor: &TensorId,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &mut [u8],
    ) -> Result<(), EngineError> {
        let part = self.rows(tensor, offset_bytes, rows, false)?;
        let read = part.buffer.backend().read_rows(part.buffer.memory(), part.offset_bytes, rows, bytes);
        read.map_err(part.failed())
    }

    /// Copies a tensor's contents to another of the same dtype, shape and strides, from backend to backend if need be: never more than once
    /// through host memory.
    ///
    /// # Errors
    /// [`EngineError::DifferentLayouts`]; tensors without memory of their own; what a backend reports.
    pub fn copy_tensor(&mut self, from: &TensorId, to: &TensorId) -> Result<(), EngineError> {
        let (source, target) = (self.existing(from)?, self.existing(to)?);
        if source.1 != target.1 {
            let (from, to) = (source.0, target.0);
            return Err(EngineError::DifferentLayouts {
                from,
                from_desc: Box::new(source.1),
                to,
                to_desc: Box::new(target.1),
            });
        }
        let len_bytes = source.1.span_bytes().unwrap_or(0);
        let (from, to) = (self.part(from, 0, len_bytes, false)?, self.part(to, 0, len_bytes, true)?);
        let (of, backend) = (from.buffer.backend(), to.buffer.backend());
        let copied = backend.copy_from(
            to.buffer.memory(),
            to.offset_bytes,
            &**of,
            from.buffer.memory(),
            from.offset_bytes,
            len_bytes,
        );
        let done = copied.and_then(|ticket| backend.wait_for(ticket, None));
        done.map_err(to.failed())?;
        self.wrote(&to)
    }

    /// Sets bytes of a buffer to one value, whichever tensors have them.
    ///
    /// # Errors
    /// [`EngineError::UnknownBuffer`]; bytes outside the buffer; read-only memory; what the backend reports.
    pub fn fill_buffer(
        &mut self,
        buffer: BufferId,
        offset_bytes: u64,
        len_bytes: u64,
        value: u8,
    ) -> Result<(), EngineError> {
        let memory = self.for_write(buffer)?;
        memory.fill(offset_bytes, len_bytes, value).map_err(|source| self.buffer_failed(buffer, source))?;
        self.update_shadow(buffer, offset_bytes..offset_bytes + len_bytes)
    }

    /// Sets all bytes of a buffer to one value.
    ///
    /// # Errors
    /// As [`Self::fill_buffer`].
    pub fn clear_buffer(&mut self, buffer: BufferId, value: u8) -> Result<(), EngineError> {
        let size_bytes = self.buffer(buffer)?.size_bytes();
        self.fill_buffer(buffer, 0, size_bytes, value)
    }
}

/// A tensor's name and layout, with its buffer and its place there.
pub(crate) type Existing = (Arc<str>, TensorDesc, Arc<DeviceBuffer>, u64);

impl<W: BorrowMut<World>> Engine<W> {
    /// A tensor with memory of its own, as it is now: the handle is a copy, the entity may have changed.
    fn existing(&self, tensor: &TensorId) -> Result<Existing, EngineError> {
        let world = self.world();
        let parts =
            (world.get::<DType>(tensor.entity), world.get::<Shape>(tensor.entity), world.get::<Strides>(tensor.entity));
        let (Some(&dtype), Some(&shape), Some(&strides)) = parts else { return Err(EngineError::UnknownTensor) };
        let stored = world.get::<entensor_components::StoredIn>(tensor.entity).and_then(|stored| stored.0);
        let stored = stored.ok_or(EngineError::UnknownBuffer)?;
        let buffer = self.buffer(BufferId(stored.buffer))?;
        Ok((Arc::clone(&tensor.name), TensorDesc { dtype, shape, strides }, buffer, stored.offset_bytes))
    }
}
