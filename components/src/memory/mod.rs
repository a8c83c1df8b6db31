//! Memory vocabulary: kinds, usages, host memory that host backends share, and opaque handles to any memory.
//!
//! Host memory is safe code from end to end: bytes sit behind a lock, so a run that writes an arena and a user who
//! reads it can never race. Locks are taken once per submitted split, not per node.

mod locks;
mod rows;
mod sets;

pub use locks::{HostLocks, SlotUse};
pub use rows::{ByteRows, RowsReadback};
pub use sets::SetLayout;

use std::{
    any::Any,
    ops::{Deref, DerefMut},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use bevy_ecs::prelude::*;
use slotmap::{SlotMap, new_key_type};

use crate::{
    backend::{BackendError, MemoryReport},
    generation::bump_generation,
};

/// The kind of memory a buffer lies in: `host`, `device0`, … Backends say which kinds they can use.
#[derive(Component, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
pub struct MemoryKind(pub Arc<str>);

impl MemoryKind {
    /// Ordinary host memory.
    pub const HOST: &'static str = "host";

    /// The host kind.
    #[must_use]
    pub fn host() -> Self {
        Self(Self::HOST.into())
    }

    /// Whether this is ordinary host memory.
    #[must_use]
    pub fn is_host(&self) -> bool {
        &*self.0 == Self::HOST
    }
}

impl std::fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a buffer is used for.
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
pub enum Usage {
    /// Anything: a KV cache, state.
    #[default]
    Any,
    /// Weights: read-only while graphs run, and what anchors placement.
    Weights,
    /// Planned memory of a graph.
    Compute,
}

impl Usage {
    /// The word in `.graph` text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Weights => "weights",
            Self::Compute => "compute",
        }
    }
}

new_key_type! {
    /// A key into a backend's buffers. A stale key is an error, never a wild pointer.
    #[derive(Component)]
    pub struct BufferKey;
}

/// Memory of any backend, opaque to all but the backends that know its type. Cloning is an `Arc` clone, and keeps the
/// memory alive.
#[derive(Clone)]
pub struct MemoryHandle(Arc<dyn Any + Send + Sync>);

impl MemoryHandle {
    /// Wraps a backend's own memory type.
    pub fn new<T: Any + Send + Sync>(memory: Arc<T>) -> Self {
        Self(memory)
    }

    /// The memory, if it is of type `T`.
    #[must_use]
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }

    /// The memory, if it is host memory.
    #[must_use]
    pub fn as_host(&self) -> Option<&HostMemory> {
        self.downcast_ref()
    }
}

impl std::fmt::Debug for MemoryHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.as_host() {
            Some(host) => host.fmt(f),
            None => f.write_str("MemoryHandle"),
        }
    }
}

/// Bytes that somebody else owns and that do not change: a mapped file, a static table.
pub trait ImportedBytes: AsRef<[u8]> + Send + Sync {}

impl<T: AsRef<[u8]> + Send + Sync> ImportedBytes for T {}

/// Bytes from an allocator of a backend's own, that can be written.
pub trait HostAllocation: AsRef<[u8]> + AsMut<[u8]> + Send + Sync {}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Send + Sync> HostAllocation for T {}

/// How host memory is aligned, at least.
pub const HOST_ALIGN_BYTES: u64 = 64;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; HOST_ALIGN_BYTES as usize]);

enum HostBytes {
    Owned(Vec<CacheLine>),
    Allocated(Box<dyn HostAllocation>),
    Imported(Arc<dyn ImportedBytes>),
}

/// Host memory: zeroed at birth and aligned to 64 bytes, from an allocator of a backend's own, or imported and read-only.
pub struct HostMemory {
    bytes: RwLock<HostBytes>,
    size_bytes: usize,
    read_only: bool,
}

impl HostMemory {
    /// Zeroed memory.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] when the host has not that much; never aborts.
    pub fn zeroed(size_bytes: u64) -> Result<Self, BackendError> {
        let out_of_memory = BackendError::OutOfMemory { size_bytes };
        let size = usize::try_from(size_bytes).map_err(|_| out_of_memory.clone())?;
        let lines = size.div_ceil(HOST_ALIGN_BYTES as usize);
        // `try_zeroed_vec` takes pages lazily from the system, and reports failure instead of aborting.
        let limit = isize::MAX as usize / HOST_ALIGN_BYTES as usize;
        let bytes = if lines > limit { None } else { bytemuck::allocation::try_zeroed_vec(lines).ok() };
        let bytes = bytes.ok_or(out_of_memory)?;
        Ok(Self { bytes: RwLock::new(HostBytes::Owned(bytes)), size_bytes: size, read_only: false })
    }

    /// Memory from an allocator of a backend's own, which sees to alignment and zeroes.
    #[must_use]
    pub fn allocated(bytes: Box<dyn HostAllocation>) -> Self {
        let size_bytes = (*bytes).as_ref().len();
        Self { bytes: RwLock::new(HostBytes::Allocated(bytes)), size_bytes, read_only: false }
    }

    /// Memory that lies elsewhere, used in place and never written.
    #[must_use]
    pub fn imported(bytes: Arc<dyn ImportedBytes>) -> Self {
        let size_bytes = (*bytes).as_ref().len();
        Self { bytes: RwLock::new(HostBytes::Imported(bytes)), size_bytes, read_only: true }
    }

    /// The bytes as something that does not change any more: memory that was filled before there was a backend, to be imported by one.
    #[must_use]
    pub fn freeze(self) -> Arc<dyn ImportedBytes> {
        let bytes = self.bytes.into_inner().unwrap_or_else(PoisonError::into_inner);
        Arc::new(Frozen { bytes, size_bytes: self.size_bytes })
    }

    /// Size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes as u64
    }

    /// Whether the memory can only be read.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Shared access; waits for a writer. Never allocates.
    pub fn read(&self) -> HostRead<'_> {
        // A panic elsewhere cannot leave bytes half-typed, so poisoning carries no meaning here.
        HostRead { guard: self.bytes.read().unwrap_or_else(PoisonError::into_inner), size_bytes: self.size_bytes }
    }

    /// Exclusive access; waits for readers. Never allocates.
    ///
    /// # Errors
    /// [`BackendError::ReadOnly`] for imported memory.
    pub fn write(&self) -> Result<HostWrite<'_>, BackendError> {
        if self.read_only {
            return Err(BackendError::ReadOnly);
        }
        let guard = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        Ok(HostWrite { guard, size_bytes: self.size_bytes })
    }
}

impl std::fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostMemory").field("size_bytes", &self.size_bytes).field("read_only", &self.read_only).finish()
    }
}

/// Host memory that nobody writes any more.
struct Frozen {
    bytes: HostBytes,
    size_bytes: usize,
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(self.size_bytes)
    }
}

impl HostBytes {
    fn get(&self, size_bytes: usize) -> &[u8] {
        match self {
            Self::Owned(lines) => &bytemuck::cast_slice(lines)[..size_bytes],
            Self::Allocated(bytes) => (**bytes).as_ref(),
            Self::Imported(bytes) => (**bytes).as_ref(),
        }
    }
}

/// Shared access to host memory.
pub struct HostRead<'a> {
    guard: RwLockReadGuard<'a, HostBytes>,
    size_bytes: usize,
}

impl Deref for HostRead<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.guard.get(self.size_bytes)
    }
}

/// Exclusive access to host memory.
pub struct HostWrite<'a> {
    guard: RwLockWriteGuard<'a, HostBytes>,
    size_bytes: usize,
}

impl Deref for HostWrite<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.guard.get(self.size_bytes)
    }
}

impl DerefMut for HostWrite<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut *self.guard {
            HostBytes::Owned(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.size_bytes],
            HostBytes::Allocated(bytes) => (**bytes).as_mut(),
            HostBytes::Imported(_) => &mut [],
        }
    }
}

/// Refuses host memory that does not begin at a multiple of `align_bytes`; memory of no bytes begins anywhere.
///
/// # Errors
/// [`BackendError::MisalignedImport`].
pub fn check_import(bytes: &dyn ImportedBytes, align_bytes: u64) -> Result<(), BackendError> {
    let bytes = bytes.as_ref();
    let past_bytes = bytes.as_ptr().addr() as u64 % align_bytes.max(1);
    if bytes.is_empty() || past_bytes == 0 {
        Ok(())
    } else {
        Err(BackendError::MisalignedImport { past_bytes, align_bytes })
    }
}

/// The buffers of a host backend: what `create_buffer`, `import_host`, `memory` and `destroy_buffer` need.
#[derive(Default)]
pub struct HostBuffers {
    buffers: RwLock<Live>,
}

#[derive(Default)]
struct Live {
    buffers: SlotMap<BufferKey, Arc<HostMemory>>,
    allocated_bytes: u64,
    peak_bytes: u64,
}

impl HostBuffers {
    /// A buffer of zeroed memory.
    ///
    /// # Errors
    /// When the host has not that much memory.
    pub fn create(&self, size_bytes: u64) -> Result<BufferKey, BackendError> {
        Ok(self.adopt(HostMemory::zeroed(size_bytes)?))
    }

    /// A buffer of memory that lies elsewhere, at a multiple of `align_bytes`.
    ///
    /// # Errors
    /// [`BackendError::MisalignedImport`].
    pub fn import(&self, bytes: Arc<dyn ImportedBytes>, align_bytes: u64) -> Result<BufferKey, BackendError> {
        check_import(&*bytes, align_bytes)?;
        Ok(self.adopt(HostMemory::imported(bytes)))
    }

    /// A buffer of this memory.
    pub fn adopt(&self, memory: HostMemory) -> BufferKey {
        let mut live = self.buffers.write().unwrap_or_else(PoisonError::into_inner);
        if !memory.is_read_only() {
            live.allocated_bytes = live.allocated_bytes.saturating_add(memory.size_bytes());
            live.peak_bytes = live.peak_bytes.max(live.allocated_bytes);
        }
        live.buffers.insert(Arc::new(memory))
    }

    /// The memory of a buffer.
    ///
    /// # Errors
    /// [`BackendError::StaleBuffer`] when the key's buffer is gone.
    pub fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        let live = self.buffers.read().unwrap_or_else(PoisonError::into_inner);
        live.buffers.get(key).map(|m| MemoryHandle::new(Arc::clone(m))).ok_or(BackendError::StaleBuffer)
    }

    /// Forgets a buffer; its memory goes when the last handle does.
    ///
    /// # Errors
    /// [`BackendError::StaleBuffer`] when the key's buffer is gone.
    pub fn destroy(&self, key: BufferKey) -> Result<(), BackendError> {
        let mut live = self.buffers.write().unwrap_or_else(PoisonError::into_inner);
        let removed = live.buffers.remove(key).ok_or(BackendError::StaleBuffer)?;
        if !removed.is_read_only() {
            live.allocated_bytes = live.allocated_bytes.saturating_sub(removed.size_bytes());
        }
        Ok(())
    }

    /// Bytes of all buffers that were allocated (imported ones left out).
    pub fn allocated_bytes(&self) -> u64 {
        self.buffers.read().unwrap_or_else(PoisonError::into_inner).allocated_bytes
    }

    /// What the buffers take, and took at most.
    pub fn report(&self) -> MemoryReport {
        let live = self.buffers.read().unwrap_or_else(PoisonError::into_inner);
        MemoryReport { ours_bytes: live.allocated_bytes, peak_bytes: live.peak_bytes, ..MemoryReport::default() }
    }
}

/// Copies between a handle to host memory and bytes, bounds-checked: what host backends' `read` and `write` are.
pub mod host_io {
    use super::{BackendError, ByteRows, HostMemory, MemoryHandle};

    fn host(memory: &MemoryHandle) -> Result<&HostMemory, BackendError> {
        memory.as_host().ok_or(BackendError::ForeignMemory)
    }

    fn range(size: u64, offset_bytes: u64, len_bytes: u64) -> Result<std::ops::Range<usize>, BackendError> {
        let out_of_bounds = BackendError::OutOfBounds { offset_bytes, len_bytes, size_bytes: size };
        let end = offset_bytes.checked_add(len_bytes).filter(|&end| end <= size).ok_or(out_of_bounds.clone())?;
        let start = usize::try_from(offset_bytes).map_err(|_| out_of_bounds.clone())?;
        Ok(start..usize::try_from(end).map_err(|_| out_of_bounds)?)
    }

    /// Writes `bytes` at an offset.
    ///
    /// # Errors
    /// When the handle is no host memory, the range is out of bounds, or the memory is read-only.
    pub fn write(memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        let host = host(memory)?;
        let range = range(host.size_bytes(), offset_bytes, bytes.len() as u64)?;
        host.write()?[range].copy_from_slice(bytes);
        Ok(())
    }

    /// Reads into `bytes` from an offset.
    ///
    /// # Errors
    /// When the handle is no host memory, or the range is out of bounds.
    pub fn read(memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        let host = host(memory)?;
        let range = range(host.size_bytes(), offset_bytes, bytes.len() as u64)?;
        bytes.copy_from_slice(&host.read()[range]);
        Ok(())
    }

    /// Sets a range of bytes to one value.
    ///
    /// # Errors
    /// As [`write()`].
    pub fn fill(memory: &MemoryHandle, offset_bytes: u64, len_bytes: u64, value: u8) -> Result<(), BackendError> {
        let host = host(memory)?;
        let range = range(host.size_bytes(), offset_bytes, len_bytes)?;
        host.write()?[range].fill(value);
        Ok(())
    }

    /// Writes rows under one lock.
    ///
    /// # Errors
    /// As [`write()`], and as [`ByteRows::check_write`].
    pub fn write_rows(
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        rows.check_write(bytes.len())?;
        let host = host(memory)?;
        let range = range(host.size_bytes(), offset_bytes, rows.buffer_span_bytes()?)?;
        let target = &mut host.write()?[range];
        for (at, host) in rows.pieces(0) {
            let at = at as usize;
            target[at..at + host.len()].copy_from_slice(&bytes[host]);
        }
        Ok(())
    }

    /// Reads rows under one lock.
    ///
    /// # Errors
    /// As [`read`], and as [`ByteRows::check_read`].
    pub fn read_rows(
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &mut [u8],
    ) -> Result<(), BackendError> {
        rows.check_read(bytes.len())?;
        let host = host(memory)?;
        let range = range(host.size_bytes(), offset_bytes, rows.buffer_span_bytes()?)?;
        let source = &host.read()[range];
        for (at, host) in rows.pieces(0) {
            let at = at as usize;
            bytes[host.clone()].copy_from_slice(&source[at..at + host.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_is_zeroed_aligned_and_bounds_checked() {
        let buffers = HostBuffers::default();
        let key = buffers.create(100).expect("100 bytes");
        let memory = buffers.memory(key).expect("just made");
        let host = memory.as_host().expect("host memory");
        assert_eq!(host.read().len(), 100);
        assert_eq!(host.read().as_ptr() as usize % 64, 0);
        host_io::write(&memory, 96, &[1, 2, 3, 4]).expect("in bounds");
        assert!(matches!(host_io::write(&memory, 97, &[0; 4]), Err(BackendError::OutOfBounds { .. })));
        assert!(matches!(host_io::read(&memory, u64::MAX, &mut [0; 4]), Err(BackendError::OutOfBounds { .. })));
        let mut back = [0; 4];
        host_io::read(&memory, 96, &mut back).expect("in bounds");
        assert_eq!(back, [1, 2, 3, 4]);
    }

    #[test]
    fn stale_keys_and_impossible_sizes_are_errors() {
        let buffers = HostBuffers::default();
        let key = buffers.create(1).expect("one byte");
        buffers.destroy(key).expect("live");
        assert!(matches!(buffers.memory(key), Err(BackendError::StaleBuffer)));
        assert!(matches!(buffers.destroy(key), Err(BackendError::StaleBuffer)));
        assert!(matches!(buffers.create(u64::MAX), Err(BackendError::OutOfMemory { .. })));
        assert!(matches!(buffers.create(1 << 60), Err(BackendError::OutOfMemory { .. })));
    }

    #[test]
    fn imported_memory_is_used_in_place_and_read_only() {
        let bytes: Arc<dyn ImportedBytes> = Arc::new(vec![7_u8; 10]);
        let address = (*bytes).as_ref().as_ptr();
        let memory = HostMemory::imported(Arc::clone(&bytes));
        assert_eq!(memory.read().as_ptr(), address);
        let own = HostMemory::zeroed(5).expect("small");
        own.write().expect("writable")[4] = 9;
        assert_eq!((*own.freeze()).as_ref(), [0, 0, 0, 0, 9]);
        assert_eq!((*HostMemory::imported(bytes).freeze()).as_ref().as_ptr(), address);
        assert!(matches!(memory.write(), Err(BackendError::ReadOnly)));
    }

    #[test]
    fn imported_memory_begins_where_elements_may() {
        let bytes = Arc::new([0_u64; 4]);
        struct From(Arc<[u64; 4]>, usize);
        impl AsRef<[u8]> for From {
            fn as_ref(&self) -> &[u8] {
                &bytemuck::cast_slice(&*self.0)[self.1..]
            }
        }
        let buffers = HostBuffers::default();
        for past_bytes in 1..8 {
            let error = buffers.import(Arc::new(From(Arc::clone(&bytes), past_bytes)), 8);
            assert_eq!(error, Err(BackendError::MisalignedImport { past_bytes: past_bytes as u64, align_bytes: 8 }));
        }
        assert!(buffers.import(Arc::new(From(Arc::clone(&bytes), 8)), 8).is_ok());
        assert!(buffers.import(Arc::new(From(bytes, 32)), 4096).is_ok(), "nothing lies anywhere");
        assert_eq!(buffers.report(), MemoryReport::default(), "imported memory is not ours");
    }

    #[test]
    fn figures_say_what_buffers_take_and_took() {
        let buffers = HostBuffers::default();
        let (a, b) = (buffers.create(100).expect("small"), buffers.create(50).expect("small"));
        buffers.destroy(a).expect("live");
        let c = buffers.create(10).expect("small");
        assert_eq!(buffers.report(), MemoryReport { ours_bytes: 60, peak_bytes: 150, ..MemoryReport::default() });
        buffers.destroy(b).expect("live");
        buffers.destroy(c).expect("live");
        assert_eq!((buffers.allocated_bytes(), buffers.report().peak_bytes), (0, 150));
    }

    #[test]
    fn rows_and_ranges_are_written_whole_or_not_at_all() {
        let memory = MemoryHandle::new(Arc::new(HostMemory::allocated(Box::new(vec![0_u8; 12]))));
        let rows = ByteRows::new(3, 2, 5);
        host_io::write_rows(&memory, 0, &rows, &[1, 2, 3, 4, 5, 6]).expect("fits exactly");
        let mut all = [0; 12];
        host_io::read(&memory, 0, &mut all).expect("fits");
        assert_eq!(all, [1, 2, 0, 0, 0, 3, 4, 0, 0, 0, 5, 6]);
        let mut back = [0; 6];
        host_io::read_rows(&memory, 0, &rows, &mut back).expect("fits");
        assert_eq!(back, [1, 2, 3, 4, 5, 6]);
        let beyond = host_io::write_rows(&memory, 1, &rows, &[9; 6]);
        assert_eq!(beyond, Err(BackendError::OutOfBounds { offset_bytes: 1, len_bytes: 12, size_bytes: 12 }));
        assert!(matches!(host_io::fill(&memory, 1, 12, 9), Err(BackendError::OutOfBounds { .. })));
        assert!(matches!(host_io::fill(&memory, u64::MAX, 2, 9), Err(BackendError::OutOfBounds { .. })));
        host_io::fill(&memory, 12, 0, 9).expect("nothing at the end");
        host_io::read(&memory, 0, &mut all).expect("fits");
        assert!(!all.contains(&9), "nothing was written where something was wrong");
        host_io::fill(&memory, 4, 3, 9).expect("in bounds");
        host_io::read(&memory, 0, &mut all).expect("fits");
        assert_eq!(all, [1, 2, 0, 0, 9, 9, 9, 0, 0, 0, 5, 6]);
    }
}
