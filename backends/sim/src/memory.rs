//! Memory of simulated devices: a handle of its own, so that nobody reaches the bytes but through a queue.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use entensor_components::{Backend, BackendError, BufferKey, MemoryHandle, MemoryKind};

/// What a device's memories take, destroyed ones that are still in use included.
#[derive(Debug, Default)]
pub(crate) struct Used {
    pub(crate) now_bytes: AtomicU64,
    pub(crate) peak_bytes: AtomicU64,
}

/// A buffer of a simulated device.
pub(crate) struct SimMemory {
    /// Numbered for the world.
    pub(crate) id: u64,
    /// Which device made it.
    pub(crate) device: u32,
    /// Which world that device is of: devices of others know nothing of it.
    pub(crate) world: usize,
    pub(crate) kind: MemoryKind,
    pub(crate) size_bytes: u64,
    pub(crate) read_only: bool,
    /// The bytes, at the backend that computes.
    pub(crate) bytes: MemoryHandle,
    inner: Arc<dyn Backend>,
    key: BufferKey,
    used: Arc<Used>,
}

impl SimMemory {
    #[expect(clippy::too_many_arguments, reason = "the fields, once")]
    pub(crate) fn adopt(
        id: u64,
        device: u32,
        world: usize,
        kind: MemoryKind,
        size_bytes: u64,
        read_only: bool,
        (inner, key): (Arc<dyn Backend>, BufferKey),
        used: &Arc<Used>,
    ) -> Result<Self, BackendError> {
        let bytes = inner.memory(key)?;
        if !read_only {
            let before = used.now_bytes.fetch_add(size_bytes, Ordering::Relaxed);
            used.peak_bytes.fetch_max(before.saturating_add(size_bytes), Ordering::Relaxed);
        }
        Ok(Self { id, device, world, kind, size_bytes, read_only, bytes, inner, key, used: Arc::clone(used) })
    }
}

impl Drop for SimMemory {
    fn drop(&mut self) {
        if !self.read_only {
            self.used.now_bytes.fetch_sub(self.size_bytes, Ordering::Relaxed);
        }
        // There is nobody to tell.
        let _ = self.inner.destroy_buffer(self.key);
    }
}

/// The number of a memory in timelines: its own, or for host memory that the world did not make, its address.
pub(crate) fn memory_id(memory: &MemoryHandle) -> Option<u64> {
    match memory.downcast_ref::<SimMemory>() {
        Some(sim) => Some(sim.id),
        // Numbers of the world's own memories count up from zero and never get there.
        None => memory.as_host().map(|host| std::ptr::from_ref(host).addr() as u64 | 1 << 63),
    }
}

pub(crate) fn size_bytes(memory: &MemoryHandle) -> u64 {
    match memory.downcast_ref::<SimMemory>() {
        Some(sim) => sim.size_bytes,
        None => memory.as_host().map_or(0, entensor_components::HostMemory::size_bytes),
    }
}

pub(crate) fn is_read_only(memory: &MemoryHandle) -> bool {
    match memory.downcast_ref::<SimMemory>() {
        Some(sim) => sim.read_only,
        None => memory.as_host().is_some_and(entensor_components::HostMemory::is_read_only),
    }
}

/// The bytes as the computing backend knows them.
pub(crate) fn inner_handle(memory: &MemoryHandle) -> &MemoryHandle {
    memory.downcast_ref::<SimMemory>().map_or(memory, |sim| &sim.bytes)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
