//! Copies on the host of what lies on a device, for the day when the device goes away.

use std::{
    borrow::BorrowMut,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bevy_ecs::prelude::*;
use entensor_components::{
    BackendError, BackendIndex, BufferBundle, BufferMemory, BufferName, DeviceBuffer, ImportedBytes, Usage,
};

use crate::{
    engine::{BufferId, Engine},
    error::EngineError,
    lost::LostState,
};

/// On a buffer entity: what it was filled from, for weights that nobody changes.
#[derive(Component, Clone)]
#[component(immutable)]
struct BufferSource(Arc<dyn ImportedBytes>);

/// On a buffer entity: its contents as they were when the shadow was last brought up to date.
#[derive(Component)]
struct BufferShadow(Mutex<Vec<u8>>);

impl BufferShadow {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Buffers with a shadow.
#[derive(Resource, Default)]
struct Shadows(Vec<Entity>);

impl<W: BorrowMut<World>> Engine<W> {
    /// A buffer on any backend, filled from these bytes, which stay: should the device be lost, the buffer is made again
    /// from them, in place on the host where that can be. For weights; what is written into the buffer later is not in them.
    ///
    /// # Errors
    /// What the backend reports.
    pub fn upload_buffer(
        &mut self,
        name: &str,
        backend: BackendIndex,
        bytes: Arc<dyn ImportedBytes>,
    ) -> Result<BufferId, EngineError> {
        let buffer = self.create_buffer(name, backend, Usage::Weights, (*bytes).as_ref().len() as u64)?;
        self.fill_from(name, buffer, bytes)
    }

    /// The same in a buffer of one of the backend's types ([`Backend::buffer_types`](entensor_components::Backend::buffer_types)):
    /// weights on large pages (`cpu-huge`), for instance. Blocks.
    ///
    /// # Errors
    /// [`BackendError::UnknownBufferType`] lists what the backend makes; what the backend reports.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use entensor::{DType, Engine};
    ///
    /// let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    /// let bytes: Arc<[u8]> = vec![0; 34 * 576].into();
    /// let buffer = engine.upload_buffer_of("weights", engine.host(), "cpu-huge", Arc::new(bytes))?;
    /// let weights = engine.tensor_in("w", DType::Q8_0, &[32, 576], buffer, 0)?;
    /// # let _ = weights;
    /// # Ok::<(), entensor::EngineError>(())
    /// ```
    pub fn upload_buffer_of(
        &mut self,
        name: &str,
        backend: BackendIndex,
        buffer_type: &str,
        bytes: Arc<dyn ImportedBytes>,
    ) -> Result<BufferId, EngineError> {
        let size_bytes = (*bytes).as_ref().len() as u64;
        let buffer = self.create_buffer_of(name, backend, buffer_type, Usage::Weights, size_bytes)?;
        self.fill_from(name, buffer, bytes)
    }

    /// Fills a new buffer, or removes it.
    fn fill_from(
        &mut self,
        name: &str,
        buffer: BufferId,
        bytes: Arc<dyn ImportedBytes>,
    ) -> Result<BufferId, EngineError> {
        let memory = self.buffer(buffer)?;
        if let Err(source) = memory.backend().write(memory.memory(), 0, (*bytes).as_ref()) {
            self.world_mut().despawn(buffer.0);
            return Err(EngineError::Backend { what: name.into(), source });
        }
        self.world_mut().entity_mut(buffer.0).insert(BufferSource(bytes));
        Ok(buffer)
    }

    /// Keeps a copy of a buffer on the host from now on: what the buffer is made from should its device be lost. The engine's own
    /// writes keep it up to date; what runs write is copied by [`Self::update_shadow`].
    ///
    /// # Errors
    /// What the backend reports, or no memory for the copy.
    pub fn keep_shadow(&mut self, buffer: BufferId) -> Result<(), EngineError> {
        let memory = self.buffer(buffer)?;
        let what = self.buffer_name(buffer);
        let fail = |source| EngineError::Backend { what: Arc::clone(&what), source };
        let size_bytes = memory.size_bytes();
        let out_of_memory = || BackendError::OutOfMemory { size_bytes };
        let len = usize::try_from(size_bytes).map_err(|_| fail(out_of_memory()))?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| fail(out_of_memory()))?;
        bytes.resize(len, 0);
        self.settle_buffer(&memory, true);
        memory.backend().read(memory.memory(), 0, &mut bytes).map_err(fail)?;
        let world = self.world_mut();
        world.entity_mut(buffer.0).insert(BufferShadow(Mutex::new(bytes)));
        let mut shadows = world.get_resource_or_init::<Shadows>();
        if !shadows.0.contains(&buffer.0) {
            shadows.0.push(buffer.0);
        }
        Ok(())
    }

    /// Copies bytes of a buffer into its shadow, after the runs that are under way on it. Does nothing without a shadow.
    ///
    /// # Errors
    /// Bytes outside the buffer, or what the backend reports; the shadow is as it was then.
    pub fn update_shadow(&self, buffer: BufferId, bytes: Range<u64>) -> Result<(), EngineError> {
        let Some(shadow) = self.world().get::<BufferShadow>(buffer.0) else { return Ok(()) };
        let memory = self.buffer(buffer)?;
        let (offset_bytes, len_bytes) = (bytes.start, bytes.end.saturating_sub(bytes.start));
        let size_bytes = memory.size_bytes();
        let fail = |source| EngineError::Backend { what: self.buffer_name(buffer), source };
        let out_of_bounds = || fail(BackendError::OutOfBounds { offset_bytes, len_bytes, size_bytes });
        let range = usize::try_from(bytes.start).ok().zip(usize::try_from(bytes.end).ok());
        let (start, end) = range.filter(|(start, end)| start <= end).ok_or_else(out_of_bounds)?;
        self.settle_buffer(&memory, true);
        let mut shadow = shadow.lock();
        let kept = shadow.get_mut(start..end).ok_or_else(out_of_bounds)?;
        // Read aside first: a read that fails half-way must not spoil what is kept.
        let mut read = vec![0; kept.len()];
        memory.backend().read(memory.memory(), offset_bytes, &mut read).map_err(fail)?;
        kept.copy_from_slice(&read);
        Ok(())
    }

    /// As [`Self::update_shadow`], for whoever has the memory only.
    pub(crate) fn update_shadow_of(&self, buffer: &Arc<DeviceBuffer>, bytes: Range<u64>) -> Result<(), EngineError> {
        let shadows = self.world().get_resource::<Shadows>().into_iter().flat_map(|shadows| &shadows.0);
        for &entity in shadows {
            if self.world().get::<BufferMemory>(entity).is_some_and(|memory| Arc::ptr_eq(&memory.0, buffer)) {
                self.update_shadow(BufferId(entity), bytes.clone())?;
            }
        }
        Ok(())
    }

    /// Makes a buffer whose contents were lost anew, zeroed, on the host. Nothing for other buffers.
    ///
    /// # Errors
    /// What the host backend reports.
    pub fn restore_buffer(&mut self, buffer: BufferId) -> Result<(), EngineError> {
        if self.world().get::<LostState>(buffer.0).is_none() {
            return self.buffer(buffer).map(drop);
        }
        let (name, size_bytes) = (self.buffer_name(buffer), self.buffer(buffer)?.size_bytes());
        let usage = self.world().get::<Usage>(buffer.0).copied().unwrap_or_default();
        let host = self.backend(self.host())?;
        let fail = |source| EngineError::Backend { what: Arc::clone(&name), source };
        let memory = DeviceBuffer::create(&host, size_bytes, usage).map_err(fail)?;
        let mut entity = self.world_mut().entity_mut(buffer.0);
        entity.remove::<LostState>();
        entity.insert(BufferBundle::new(name, usage, memory));
        Ok(())
    }

    /// The shadow of a buffer holds what was just written.
    pub(crate) fn note_written(&self, buffer: &Arc<DeviceBuffer>, offset_bytes: u64, bytes: &[u8]) {
        let Some(shadows) = self.world().get_resource::<Shadows>() else { return };
        for &entity in &shadows.0 {
            let is_it = self.world().get::<BufferMemory>(entity).is_some_and(|memory| Arc::ptr_eq(&memory.0, buffer));
            let shadow = self.world().get::<BufferShadow>(entity).filter(|_| is_it);
            let Some((shadow, start)) = shadow.zip(usize::try_from(offset_bytes).ok()) else { continue };
            if let Some(kept) = shadow.lock().get_mut(start..).and_then(|rest| rest.get_mut(..bytes.len())) {
                kept.copy_from_slice(bytes);
            }
        }
    }

    /// A buffer on the host with what a lost one held, as far as anybody knows.
    pub(crate) fn copy_of_contents(&mut self, entity: Entity, usage: Usage) -> Option<Arc<DeviceBuffer>> {
        let host = self.backend(self.host()).ok()?;
        let world = self.world();
        let filled = |bytes: &[u8]| {
            let memory = DeviceBuffer::create(&host, bytes.len() as u64, usage).ok()?;
            host.write(memory.memory(), 0, bytes).ok()?;
            Some(memory)
        };
        if let Some(shadow) = world.get::<BufferShadow>(entity) {
            return filled(&shadow.lock());
        }
        let source = world.get::<BufferSource>(entity)?;
        if host.capabilities().imports_host {
            return DeviceBuffer::import(&host, Arc::clone(&source.0)).ok();
        }
        filled((*source.0).as_ref())
    }

    fn buffer_name(&self, buffer: BufferId) -> Arc<str> {
        self.world().get::<BufferName>(buffer.0).map_or_else(|| "?".into(), |name| Arc::clone(&name.0))
    }
}
