//! A buffer with its backend, and figures of memory.

use std::sync::Arc;

use super::{Backend, BackendError, BufferTypeInfo};
use crate::{
    memory::{BufferKey, HostMemory, ImportedBytes, MemoryHandle, Usage},
    shape::TensorDesc,
};

/// Memory figures of a backend, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// The device's memory, if known.
    pub total_bytes: Option<u64>,
    /// Free memory, if known.
    pub free_bytes: Option<u64>,
    /// What our buffers take.
    pub ours_bytes: u64,
    /// The most that they ever took together; 0 where nobody counts.
    pub peak_bytes: u64,
    /// How much of ours lies in high-bandwidth memory.
    pub high_bandwidth_bytes: u64,
    /// How much of ours lies on pages of 2 MiB or more, as the system counts them; memory that nobody has touched is not there yet.
    pub huge_page_bytes: u64,
}

/// A buffer with its backend: destroyed when the last user lets go of it.
///
/// Reads and writes go through the backend with [`Self::memory`]: it checks their bounds.
pub struct DeviceBuffer {
    backend: Arc<dyn Backend>,
    key: BufferKey,
    memory: MemoryHandle,
    size_bytes: u64,
    buffer_type: BufferTypeInfo,
    read_only: bool,
}

impl DeviceBuffer {
    /// Allocates a buffer of the backend's default type. Zero bytes are a buffer too.
    ///
    /// # Errors
    /// What the backend reports.
    pub fn create(backend: &Arc<dyn Backend>, size_bytes: u64, usage: Usage) -> Result<Arc<Self>, BackendError> {
        let buffer_type = default_type(&**backend);
        check_size(size_bytes, &buffer_type)?;
        let key = backend.create_buffer(size_bytes, usage)?;
        Self::adopt(backend, key, size_bytes, buffer_type, false)
    }

    /// Allocates a buffer of one of the backend's types.
    ///
    /// # Errors
    /// [`BackendError::UnknownBufferType`]; what the backend reports.
    pub fn create_of(
        backend: &Arc<dyn Backend>,
        buffer_type: &str,
        size_bytes: u64,
        usage: Usage,
    ) -> Result<Arc<Self>, BackendError> {
        let info = find_type(&**backend, buffer_type)?;
        check_size(size_bytes, &info)?;
        let key = backend.create_buffer_of(buffer_type, size_bytes, usage)?;
        Self::adopt(backend, key, size_bytes, info, false)
    }

    /// Makes a buffer of host memory in place.
    ///
    /// # Errors
    /// [`BackendError::MisalignedImport`]; what the backend reports.
    pub fn import(backend: &Arc<dyn Backend>, bytes: Arc<dyn ImportedBytes>) -> Result<Arc<Self>, BackendError> {
        let size_bytes = (*bytes).as_ref().len() as u64;
        let key = backend.import_host(bytes)?;
        Self::adopt(backend, key, size_bytes, default_type(&**backend), true)
    }

    fn adopt(
        backend: &Arc<dyn Backend>,
        key: BufferKey,
        size_bytes: u64,
        buffer_type: BufferTypeInfo,
        imported: bool,
    ) -> Result<Arc<Self>, BackendError> {
        let memory = backend.memory(key).inspect_err(|_| {
            // Nobody else knows the key. There is nobody to tell of a second failure.
            let _ = backend.destroy_buffer(key);
        })?;
        let read_only = imported || memory.as_host().is_some_and(HostMemory::is_read_only);
        Ok(Arc::new(Self { backend: Arc::clone(backend), key, memory, size_bytes, buffer_type, read_only }))
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

    /// What kind of buffer it is.
    #[must_use]
    pub fn buffer_type(&self) -> &BufferTypeInfo {
        &self.buffer_type
    }

    /// Whether it can only be read.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Sets a range of bytes to one value. Blocks.
    ///
    /// # Errors
    /// Out of bounds, read-only; what the backend reports.
    pub fn fill(&self, offset_bytes: u64, len_bytes: u64, value: u8) -> Result<(), BackendError> {
        self.check(offset_bytes, len_bytes)?;
        self.backend.fill(&self.memory, offset_bytes, len_bytes, value)
    }

    /// Sets all bytes to one value. Blocks.
    ///
    /// # Errors
    /// Read-only; what the backend reports.
    pub fn clear(&self, value: u8) -> Result<(), BackendError> {
        self.fill(0, self.size_bytes, value)
    }

    /// Makes the memory ready for a tensor, of which `allocated_bytes` are its own. Nothing is done to memory that can only be read: what lies
    /// there is what was meant.
    ///
    /// # Errors
    /// Out of bounds; what the backend reports.
    pub fn init_tensor(&self, offset_bytes: u64, desc: &TensorDesc, allocated_bytes: u64) -> Result<(), BackendError> {
        self.check(offset_bytes, allocated_bytes)?;
        if self.read_only {
            return Ok(());
        }
        self.backend.init_tensor(&self.memory, offset_bytes, desc, allocated_bytes)
    }

    /// Forgets which tensors the memory was made ready for; the bytes stay.
    ///
    /// # Errors
    /// What the backend reports.
    pub fn reset(&self) -> Result<(), BackendError> {
        self.backend.reset_buffer(self.key)
    }

    fn check(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), BackendError> {
        let size_bytes = self.size_bytes;
        match offset_bytes.checked_add(len_bytes) {
            Some(end) if end <= size_bytes => Ok(()),
            _ => Err(BackendError::OutOfBounds { offset_bytes, len_bytes, size_bytes }),
        }
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

fn check_size(size_bytes: u64, buffer_type: &BufferTypeInfo) -> Result<(), BackendError> {
    match buffer_type.max_buffer_bytes {
        max_bytes if size_bytes > max_bytes => Err(BackendError::BufferTooLarge { size_bytes, max_bytes }),
        _ => Ok(()),
    }
}

/// What a backend makes unless another type is asked for.
pub(crate) fn default_type(backend: &dyn Backend) -> BufferTypeInfo {
    let first = backend.buffer_types().into_iter().next();
    // A list without a default would be a fault of the backend, and no reason to panic.
    first.unwrap_or_else(|| BufferTypeInfo::of(backend.capabilities()))
}

/// One of a backend's buffer types.
///
/// # Errors
/// [`BackendError::UnknownBufferType`].
pub(crate) fn find_type(backend: &dyn Backend, buffer_type: &str) -> Result<BufferTypeInfo, BackendError> {
    let types = backend.buffer_types();
    match types.iter().find(|info| *info.name == *buffer_type) {
        Some(info) => Ok(info.clone()),
        None => Err(unknown_type(backend.name(), buffer_type, &types)),
    }
}

pub(super) fn unknown_type(backend: &str, buffer_type: &str, types: &[BufferTypeInfo]) -> BackendError {
    BackendError::UnknownBufferType {
        backend: backend.into(),
        buffer_type: buffer_type.into(),
        known: types.iter().map(|info| info.name.to_string()).collect(),
    }
}

/// Whether a memory has these bytes: an access of none at their end is in bounds only then. Memories do not tell their sizes.
pub(super) fn room(
    touch: &dyn Fn(u64) -> Result<(), BackendError>,
    offset_bytes: u64,
    len_bytes: u64,
) -> Result<(), BackendError> {
    let outside = |size_bytes| BackendError::OutOfBounds { offset_bytes, len_bytes, size_bytes };
    match offset_bytes.checked_add(len_bytes) {
        Some(end) => touch(end).map_err(|error| match error {
            BackendError::OutOfBounds { size_bytes, .. } => outside(size_bytes),
            other => other,
        }),
        None => Err(outside(u64::MAX)),
    }
}

/// Bytes that are filled at a time.
const PIECE_BYTES: u64 = 64 << 10;

pub(super) fn fill_in_pieces(
    write: &dyn Fn(u64, &[u8]) -> Result<(), BackendError>,
    offset_bytes: u64,
    len_bytes: u64,
    value: u8,
) -> Result<(), BackendError> {
    room(&|at| write(at, &[]), offset_bytes, len_bytes)?;
    let piece = vec![value; len_bytes.min(PIECE_BYTES) as usize];
    let mut done = 0;
    while done < len_bytes {
        let len = (len_bytes - done).min(PIECE_BYTES);
        write(offset_bytes + done, &piece[..len as usize])?;
        done += len;
    }
    Ok(())
}
