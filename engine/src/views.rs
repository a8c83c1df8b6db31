//! Tensors at addresses of the user's choice: in a buffer that exists, or in the memory of another tensor.

use std::{borrow::BorrowMut, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{
    BackendError, Shape, ShapeError, Stored, StoredIn, Strides, TensorBundle, TensorDesc, TensorName,
};

use crate::{
    engine::{BufferId, Engine, TensorId},
    error::EngineError,
};

impl<W: BorrowMut<World>> Engine<W> {
    /// A tensor at an address: `offset_bytes` from the start of a buffer, in any layout. Several tensors may share bytes as long as no
    /// graph writes them; where a graph would, planning says so.
    ///
    /// Everything is checked here: strides are whole elements (blocks), rows of blocks are in one piece, the address is a multiple of an
    /// element's size (of 2 for block dtypes, as model files have them), and the last byte lies in the buffer. Costs an entity; never blocks.
    ///
    /// # Errors
    /// [`EngineError::UnknownBuffer`], [`EngineError::Shape`], [`EngineError::BadAddress`], and [`BackendError::OutOfBounds`] as
    /// [`EngineError::Backend`].
    ///
    /// ```
    /// use entensor::{DType, Engine, Shape, Strides, TensorDesc, Usage};
    ///
    /// let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    /// let buffer = engine.create_buffer("state", engine.host(), Usage::Any, 64)?;
    /// // Every second f32 of the buffer, from its second on.
    /// let odd = TensorDesc { dtype: DType::F32, shape: Shape([8, 1, 1, 1]), strides: Strides([8, 64, 64, 64]) };
    /// assert!(engine.place_tensor("odd", odd, buffer, 4).is_ok());
    /// assert!(engine.place_tensor("beyond", odd, buffer, 8).is_err());
    /// # Ok::<(), entensor::EngineError>(())
    /// ```
    pub fn place_tensor(
        &mut self,
        name: &str,
        desc: TensorDesc,
        buffer: BufferId,
        offset_bytes: u64,
    ) -> Result<TensorId, EngineError> {
        let name: Arc<str> = name.into();
        let memory = self.buffer(buffer)?;
        let size_bytes = memory.size_bytes();
        let len_bytes = checked_span(&name, &desc, offset_bytes)?;
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > size_bytes) {
            let source = BackendError::OutOfBounds { offset_bytes, len_bytes, size_bytes };
            return Err(EngineError::Backend { what: name, source });
        }
        // Whose bytes lie behind it is the caller's affair, so padding is not touched.
        let ready = memory.init_tensor(offset_bytes, &desc, len_bytes);
        ready.map_err(|source| EngineError::Backend { what: Arc::clone(&name), source })?;
        Ok(self.spawn_in(name, desc, buffer, offset_bytes))
    }

    /// The entity of a tensor whose place was checked and made ready.
    pub(crate) fn spawn_in(
        &mut self,
        name: Arc<str>,
        desc: TensorDesc,
        buffer: BufferId,
        offset_bytes: u64,
    ) -> TensorId {
        let stored_in = StoredIn(Some(Stored { buffer: buffer.0, offset_bytes }));
        let bundle = TensorBundle { stored_in, ..TensorBundle::leaf(Arc::clone(&name), desc) };
        let entity = self.world_mut().spawn(bundle).id();
        TensorId { entity, name, desc }
    }

    /// A tensor in the memory of another that has memory of its own: a slice of a cache, weights seen in another shape. `offset_bytes`
    /// counts from the first element of `of`, and the view may not reach beyond its last.
    ///
    /// # Errors
    /// [`EngineError::UnknownTensor`] for a tensor that is gone or has no memory of its own; else as [`Self::place_tensor`].
    pub fn view_tensor(
        &mut self,
        name: &str,
        of: &TensorId,
        shape: Shape,
        strides: Strides,
        offset_bytes: u64,
    ) -> Result<TensorId, EngineError> {
        let world = self.world();
        let stored = world.get::<StoredIn>(of.entity).and_then(|stored| stored.0).ok_or(EngineError::UnknownTensor)?;
        let parts =
            (world.get::<TensorName>(of.entity), world.get::<Shape>(of.entity), world.get::<Strides>(of.entity));
        // The handle is a copy; the entity may have changed.
        let (Some(_), Some(&root_shape), Some(&root_strides)) = parts else { return Err(EngineError::UnknownTensor) };
        let root = TensorDesc { dtype: of.desc.dtype, shape: root_shape, strides: root_strides };
        if world.get::<entensor_components::DType>(of.entity) != Some(&root.dtype) {
            return Err(EngineError::UnknownTensor);
        }
        let view = TensorDesc { dtype: root.dtype, shape, strides };
        let what: Arc<str> = name.into();
        // The address as a whole is checked where it is placed.
        let len_bytes = checked_span(&what, &view, offset_bytes)?;
        let size_bytes = root.span_bytes().unwrap_or(0);
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > size_bytes) {
            let source = BackendError::OutOfBounds { offset_bytes, len_bytes, size_bytes };
            return Err(EngineError::Backend { what, source });
        }
        self.place_tensor(name, view, BufferId(stored.buffer), stored.offset_bytes + offset_bytes)
    }
}

/// The bytes that a layout spans, if it is one that backends read.
fn checked_span(name: &Arc<str>, desc: &TensorDesc, offset_bytes: u64) -> Result<u64, EngineError> {
    let TensorDesc { dtype, shape, strides } = *desc;
    let of_shape = |source| EngineError::Shape { tensor: Arc::clone(name), source };
    // The packed form of the shape must exist: it says that blocks are whole and that everything can be counted.
    TensorDesc::packed(dtype, shape).map_err(of_shape)?;
    let span = desc.span_bytes().filter(|&span| i64::try_from(span).is_ok());
    let span = span.ok_or_else(|| of_shape(ShapeError::Overflow { dtype, shape }))?;
    let misplaced = |rule| EngineError::BadAddress { tensor: Arc::clone(name), offset_bytes, strides, rule };
    let unit = dtype.block_bytes();
    if dtype.is_block() && !desc.is_row_packed() && shape.0[0] > dtype.block_elements() {
        return Err(misplaced("the blocks of a row must lie next to each other"));
    }
    // Block dtypes begin with a 16-bit scale, or are read byte by byte.
    let align = if dtype.is_block() { 2_u64.min(1 << unit.trailing_zeros()) } else { unit };
    let taken = shape.0.iter().zip(strides.0).filter(|(length, _)| **length > 1).map(|(_, stride)| stride);
    if !shape.is_empty() && taken.into_iter().any(|stride| !stride.is_multiple_of(align)) {
        return Err(misplaced("strides must be multiples of an element's size"));
    }
    if !offset_bytes.is_multiple_of(align) {
        return Err(misplaced("the address must be a multiple of an element's size"));
    }
    Ok(span)
}
