//! A buffer with its backend, and figures of memory.

use std::sync::Arc;

use super::{Backend, BackendError};
use crate::memory::{BufferKey, ImportedBytes, MemoryHandle, Usage};

/// Memory figures of a backend, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// The device's memory, if known.
    pub total_bytes: Option<u64>,
    /// Free memory, if known.
    pub free_bytes: Option<u64>,
    /// What our buffers take.
    pub ours_bytes: u64,
}

/// A buffer with its backend: destroyed when the last user lets go of it.
pub struct DeviceBuffer {
    backend: Arc<dyn Backend>,
    key: BufferKey,
    memory: MemoryHandle,
    size_bytes: u64,
}

impl DeviceBuffer {
    /// Allocates a buffer.
    ///
    /// # Errors
    /// What the backend reports.
    pub fn create(backend: &Arc<dyn Backend>, size_bytes: u64, usage: Usage) -> Result<Arc<Self>, BackendError> {
        let max_bytes = backend.capabilities().max_buffer_bytes;
        if size_bytes > max_bytes {
            return Err(BackendError::BufferTooLarge { size_bytes, max_bytes });
        }
        let key = backend.create_buffer(size_bytes, usage)?;
        Self::adopt(backend, key, size_bytes)
    }

    /// Makes a buffer of host memory in place.
    ///
    /// # Errors
    /// What the backend reports.
    pub fn import(backend: &Arc<dyn Backend>, bytes: Arc<dyn ImportedBytes>) -> Result<Arc<Self>, BackendError> {
        let size_bytes = (*bytes).as_ref().len() as u64;
        let key = backend.import_host(bytes)?;
        Self::adopt(backend, key, size_bytes)
    }

    fn adopt(backend: &Arc<dyn Backend>, key: BufferKey, size_bytes: u64) -> Result<Arc<Self>, BackendError> {
        let memory = backend.memory(key).inspect_err(|_| {
            // Nobody else knows the key. There is nobody to tell of a second failure.
            let _ = backend.destroy_buffer(key);
        })?;
        Ok(Arc::new(Self { backend: Arc::clone(backend), key, memory, size_bytes }))
    }

    /// Whose buffer it is.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Its key at the backend.
    #[must_use]
    pub fn key(&self) -> BufferKey {
        self.key
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> &MemoryHandle {
        &self.memory
    }

    /// Its size.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Whether it can only be read.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.memory.as_host().is_some_and(crate::memory::HostMemory::is_read_only)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // The backend may be lost already; there is nobody to tell.
        let _ = self.backend.destroy_buffer(self.key);
    }
}

impl std::fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceBuffer({}, {} bytes)", self.backend.name(), self.size_bytes)
    }
}
