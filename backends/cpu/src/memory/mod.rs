//! The backend's buffers: ordinary memory, high-bandwidth memory, large pages, and weights in a private layout.

mod hbm;
mod huge;
pub(crate) mod layout;
mod repacked;
mod system;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use entensor_components::{
    BackendError, BufferKey, BufferTypeInfo, ByteRows, Capabilities, HOST_ALIGN_BYTES, HostMemory, ImportedBytes,
    MemoryHandle, MemoryKind, MemoryReport, TensorDesc, check_import, host_io,
};
use slotmap::SlotMap;

use hbm::HighBandwidth;
pub(crate) use repacked::Repacked;
pub use system::host_memory;

/// The type of buffers in a private layout.
pub const REPACKED: &str = "cpu-repacked";

/// The type of buffers in high-bandwidth memory.
pub const HIGH_BANDWIDTH: &str = "cpu-hbm";

/// The type of buffers on pages of 2 MiB, for weights that are read in streams. Where the system has no such pages the buffers lie on ordinary
/// ones; the type's description says so, and [`MemoryReport::huge_page_bytes`] how much of them does not.
pub const HUGE: &str = "cpu-huge";

/// Where the backend's ordinary buffers lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuMemory {
    /// Ordinary memory.
    #[default]
    Ordinary,
    /// High-bandwidth memory through `libmemkind`, which must be installed. On a machine without such memory the buffers lie in ordinary
    /// memory; their type's description and the memory report say so.
    HighBandwidth,
}

impl CpuMemory {
    /// Zeroed memory of this kind, without a backend. Loads the library that it needs.
    ///
    /// # Errors
    /// [`BackendError::MissingLibrary`]; out of memory.
    pub fn zeroed(self, size_bytes: u64) -> Result<HostMemory, BackendError> {
        match self {
            Self::Ordinary => HostMemory::zeroed(size_bytes),
            Self::HighBandwidth => HighBandwidth::load()?.zeroed(size_bytes),
        }
    }

    /// The types of a backend's buffers, without a backend. Loads the library that it needs.
    ///
    /// # Errors
    /// [`BackendError::MissingLibrary`].
    pub fn buffer_types(self) -> Result<Vec<BufferTypeInfo>, BackendError> {
        let buffers = Buffers::new(self)?;
        Ok(buffers.types(&buffers.capabilities()))
    }
}

/// A buffer, whichever type it has.
enum Buffer {
    Host(Arc<HostMemory>),
    /// On large pages: where, if the system was asked for them.
    Huge(Arc<HostMemory>, Option<huge::Span>),
    Repacked(Arc<Repacked>),
}

#[derive(Default)]
struct Live {
    buffers: SlotMap<BufferKey, Buffer>,
    now_bytes: u64,
    peak_bytes: u64,
}

/// The backend's buffers.
pub(crate) struct Buffers {
    live: Mutex<Live>,
    high_bandwidth: Option<Arc<HighBandwidth>>,
}

impl Buffer {
    /// What it takes; nothing for memory that lies elsewhere.
    fn size_bytes(&self) -> u64 {
        let host = match self {
            Self::Host(host) | Self::Huge(host, _) => host,
            Self::Repacked(repacked) => &repacked.host,
        };
        if host.is_read_only() { 0 } else { host.size_bytes() }
    }
}

/// The host memory behind a handle, whichever type its buffer has.
pub(crate) fn host_of(memory: &MemoryHandle) -> Option<&HostMemory> {
    memory.as_host().or_else(|| memory.downcast_ref::<Repacked>().map(|repacked| &repacked.host))
}

impl Buffers {
    pub(crate) fn new(memory: CpuMemory) -> Result<Self, BackendError> {
        let high_bandwidth = match memory {
            CpuMemory::Ordinary => None,
            CpuMemory::HighBandwidth => Some(HighBandwidth::load()?),
        };
        Ok(Self { live: Mutex::default(), high_bandwidth })
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        let buffer_type = if self.high_bandwidth.is_some() { HIGH_BANDWIDTH } else { MemoryKind::HOST };
        Capabilities {
            buffer_type: buffer_type.into(),
            align_bytes: HOST_ALIGN_BYTES,
            imports_host: true,
            opaque_types: vec![REPACKED.into()],
            ..Capabilities::host()
        }
    }

    pub(crate) fn types(&self, capabilities: &Capabilities) -> Vec<BufferTypeInfo> {
        let mut default = BufferTypeInfo::of(capabilities);
        if let Some(high_bandwidth) = &self.high_bandwidth {
            let description = if high_bandwidth.is_there() {
                "high-bandwidth memory, through libmemkind"
            } else {
                "ordinary host memory: libmemkind finds no high-bandwidth memory on this machine"
            };
            default.description = description.into();
        }
        let description = "weights for mul_mat and mul_mat_id: q4_0, q4_1 and q8_0 rows, eight side by side";
        let repacked = BufferTypeInfo {
            name: REPACKED.into(),
            description: description.into(),
            opaque: true,
            ..BufferTypeInfo::of(capabilities)
        };
        let huge = BufferTypeInfo {
            name: HUGE.into(),
            description: match huge::refusal() {
                None => "host memory on pages of 2 MiB".into(),
                Some(why) => format!("ordinary host memory: {why}").into(),
            },
            memory: MemoryKind::host(),
            ..BufferTypeInfo::of(capabilities)
        };
        vec![default, repacked, huge]
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn adopt(&self, buffer: Buffer) -> BufferKey {
        let mut live = self.live();
        live.now_bytes = live.now_bytes.saturating_add(buffer.size_bytes());
        live.peak_bytes = live.peak_bytes.max(live.now_bytes);
        live.buffers.insert(buffer)
    }

    /// Zeroed memory of the default type.
    pub(crate) fn create(&self, size_bytes: u64) -> Result<BufferKey, BackendError> {
        Ok(self.adopt(Buffer::Host(Arc::new(self.zeroed(size_bytes)?))))
    }

    /// Zeroed memory for weights in the private layout.
    pub(crate) fn create_repacked(&self, size_bytes: u64) -> Result<BufferKey, BackendError> {
        Ok(self.adopt(Buffer::Repacked(Arc::new(Repacked::new(self.zeroed(size_bytes)?)))))
    }

    /// Zeroed memory on large pages.
    pub(crate) fn create_huge(&self, size_bytes: u64) -> Result<BufferKey, BackendError> {
        let (host, span) = huge::zeroed(size_bytes)?;
        Ok(self.adopt(Buffer::Huge(Arc::new(host), span)))
    }

    fn zeroed(&self, size_bytes: u64) -> Result<HostMemory, BackendError> {
        match &self.high_bandwidth {
            Some(high_bandwidth) => high_bandwidth.zeroed(size_bytes),
            None => HostMemory::zeroed(size_bytes),
        }
    }

    pub(crate) fn import(&self, bytes: Arc<dyn ImportedBytes>, align_bytes: u64) -> Result<BufferKey, BackendError> {
        check_import(&*bytes, align_bytes)?;
        Ok(self.adopt(Buffer::Host(Arc::new(HostMemory::imported(bytes)))))
    }

    pub(crate) fn destroy(&self, key: BufferKey) -> Result<(), BackendError> {
        let mut live = self.live();
        let buffer = live.buffers.remove(key).ok_or(BackendError::StaleBuffer)?;
        live.now_bytes = live.now_bytes.saturating_sub(buffer.size_bytes());
        Ok(())
    }

    pub(crate) fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        match self.live().buffers.get(key).ok_or(BackendError::StaleBuffer)? {
            Buffer::Host(host) | Buffer::Huge(host, _) => Ok(MemoryHandle::new(Arc::clone(host))),
            Buffer::Repacked(repacked) => Ok(MemoryHandle::new(Arc::clone(repacked))),
        }
    }

    pub(crate) fn reset(&self, key: BufferKey) -> Result<(), BackendError> {
        match self.memory(key)?.downcast_ref::<Repacked>() {
            Some(repacked) => repacked.reset(),
            None => Ok(()),
        }
    }

    pub(crate) fn report(&self) -> MemoryReport {
        let (total_bytes, free_bytes) = host_memory();
        let live = self.live();
        let (ours_bytes, peak_bytes) = (live.now_bytes, live.peak_bytes);
        let is_there = self.high_bandwidth.as_ref().is_some_and(|memory| memory.is_there());
        let high_bandwidth_bytes = if is_there { ours_bytes } else { 0 };
        let spans = live.buffers.values().filter_map(|buffer| match buffer {
            Buffer::Huge(_, span) => span.as_ref(),
            Buffer::Host(_) | Buffer::Repacked(_) => None,
        });
        let huge_page_bytes = huge::bytes_on_large_pages(spans);
        MemoryReport { total_bytes, free_bytes, ours_bytes, peak_bytes, high_bandwidth_bytes, huge_page_bytes }
    }
}

/// Reads and writes of either kind of memory.
pub(crate) mod io {
    use super::{BackendError, ByteRows, MemoryHandle, Repacked, TensorDesc, host_io};

    pub(crate) fn write(memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        match memory.downcast_ref::<Repacked>() {
            Some(repacked) => repacked.write(offset_bytes, bytes),
            None => host_io::write(memory, offset_bytes, bytes),
        }
    }

    pub(crate) fn read(memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        match memory.downcast_ref::<Repacked>() {
            Some(repacked) => repacked.read(offset_bytes, bytes),
            None => host_io::read(memory, offset_bytes, bytes),
        }
    }

    pub(crate) fn fill(
        memory: &MemoryHandle,
        offset_bytes: u64,
        len_bytes: u64,
        value: u8,
    ) -> Result<(), BackendError> {
        match memory.downcast_ref::<Repacked>() {
            Some(repacked) => repacked.fill(offset_bytes, len_bytes, value),
            None => host_io::fill(memory, offset_bytes, len_bytes, value),
        }
    }

    pub(crate) fn write_rows(
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        let Some(repacked) = memory.downcast_ref::<Repacked>() else {
            return host_io::write_rows(memory, offset_bytes, rows, bytes);
        };
        rows.check_write(bytes.len())?;
        repacked.check_span(offset_bytes, rows.buffer_span_bytes()?)?;
        rows.pieces(offset_bytes).try_for_each(|(at, host)| repacked.write(at, &bytes[host]))
    }

    pub(crate) fn read_rows(
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &mut [u8],
    ) -> Result<(), BackendError> {
        let Some(repacked) = memory.downcast_ref::<Repacked>() else {
            return host_io::read_rows(memory, offset_bytes, rows, bytes);
        };
        rows.check_read(bytes.len())?;
        repacked.check_span(offset_bytes, rows.buffer_span_bytes()?)?;
        rows.pieces(offset_bytes).try_for_each(|(at, host)| repacked.read(at, &mut bytes[host]))
    }

    pub(crate) fn init_tensor(
        memory: &MemoryHandle,
        offset_bytes: u64,
        desc: &TensorDesc,
        allocated_bytes: u64,
    ) -> Result<(), BackendError> {
        let size_bytes = desc.size_bytes();
        let padding_bytes = allocated_bytes.saturating_sub(size_bytes);
        if padding_bytes > 0 {
            fill(memory, offset_bytes.saturating_add(size_bytes), padding_bytes, 0)?;
        }
        match memory.downcast_ref::<Repacked>() {
            Some(repacked) => repacked.init_tensor(offset_bytes, desc),
            None if memory.as_host().is_some() => Ok(()),
            None => Err(BackendError::ForeignMemory),
        }
    }
}
