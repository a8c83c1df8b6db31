//! The null backend: accepts what its declared capabilities say and computes nothing. With it any machine can be planned for
//! ("what if"), and planner tests need no hardware.
#![forbid(unsafe_code)]

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use entensor_components::{
    Backend, BackendError, BufferKey, Capabilities, Cursor, DTypeSet, ImportedBytes, MemoryHandle, MemoryReport,
    OpDesc, OpKind, PreparedSplit, Progress, RunLimit, Sameness, SplitView, Support, Ticket, Usage, check_import,
};
use slotmap::SlotMap;

/// What a null backend claims to be.
#[derive(Clone, Debug)]
pub struct NullConfig {
    /// Its name.
    pub name: String,
    /// Its memory, limits and policies.
    pub capabilities: Capabilities,
    /// Ops it refuses.
    pub refused_ops: HashSet<OpKind>,
    /// Dtypes it takes as operands and results.
    pub dtypes: DTypeSet,
    /// The smallest batch, as the offload policy counts it, that it takes: a library that pays off for prompts only.
    pub min_batch: u64,
}

impl NullConfig {
    /// A host backend that accepts everything.
    #[must_use]
    pub fn host(name: &str) -> Self {
        Self {
            name: name.into(),
            capabilities: Capabilities::host(),
            refused_ops: HashSet::new(),
            dtypes: DTypeSet::ALL,
            min_batch: 0,
        }
    }
}

/// See the crate's page.
pub struct NullBackend {
    config: NullConfig,
    refuses_nothing: bool,
    buffers: Mutex<SlotMap<BufferKey, Arc<NullMemory>>>,
    peak_bytes: AtomicU64,
    submits: Arc<AtomicU64>,
}

/// A buffer of any size that takes no memory.
struct NullMemory {
    size_bytes: u64,
    read_only: bool,
}

impl NullMemory {
    /// The memory behind a handle, if these bytes are in it.
    fn check(memory: &MemoryHandle, offset_bytes: u64, len: usize) -> Result<&Self, BackendError> {
        let null: &Self = memory.downcast_ref().ok_or(BackendError::ForeignMemory)?;
        let (size_bytes, len_bytes) = (null.size_bytes, len as u64);
        match offset_bytes.checked_add(len_bytes) {
            Some(end) if end <= size_bytes => Ok(null),
            _ => Err(BackendError::OutOfBounds { offset_bytes, len_bytes, size_bytes }),
        }
    }
}

impl NullBackend {
    /// A backend with these claims.
    #[must_use]
    pub fn new(config: NullConfig) -> Self {
        let refuses_nothing = config.refused_ops.is_empty() && config.dtypes == DTypeSet::ALL && config.min_batch == 0;
        Self {
            refuses_nothing,
            config,
            buffers: Mutex::default(),
            peak_bytes: AtomicU64::new(0),
            submits: Arc::default(),
        }
    }

    /// How many splits were run to their end.
    #[must_use]
    pub fn submits(&self) -> u64 {
        self.submits.load(Ordering::Relaxed)
    }

    fn buffers(&self) -> MutexGuard<'_, SlotMap<BufferKey, Arc<NullMemory>>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn adopt(&self, memory: NullMemory) -> BufferKey {
        let mut buffers = self.buffers();
        let key = buffers.insert(Arc::new(memory));
        self.peak_bytes.fetch_max(total_bytes(&buffers), Ordering::Relaxed);
        key
    }
}

fn total_bytes(buffers: &SlotMap<BufferKey, Arc<NullMemory>>) -> u64 {
    buffers.values().filter(|memory| !memory.read_only).fold(0, |sum, memory| sum.saturating_add(memory.size_bytes))
}

struct NullSplit {
    nodes: usize,
    submits: Arc<AtomicU64>,
}

impl PreparedSplit for NullSplit {
    fn submit(&self, _memory: &[MemoryHandle]) -> Result<Ticket, BackendError> {
        self.submits.fetch_add(1, Ordering::Relaxed);
        Ok(Ticket::Done)
    }

    /// Nodes take no time: a deadline that has passed lets each call do one.
    fn run_from(&self, memory: &[MemoryHandle], from: Cursor, limit: &RunLimit<'_>) -> Result<Progress, BackendError> {
        let start = from.step as usize;
        if from.row > 0 || !from.is_start() && start >= self.nodes {
            return Err(BackendError::BadCursor { step: from.step, row: from.row });
        }
        if limit.is_cancelled() {
            return Err(BackendError::Cancelled);
        }
        match from.step.checked_add(1) {
            Some(step) if start + 1 < self.nodes && limit.is_over() => Ok(Progress::Paused(Cursor { step, row: 0 })),
            _ => self.submit(memory).map(Progress::Done),
        }
    }
}

impl Backend for NullBackend {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.config.capabilities
    }

    fn support(&self, op: &OpDesc<'_>) -> Support {
        if self.refuses_nothing {
            return Support::Yes;
        }
        if self.config.refused_ops.contains(&op.op.kind()) {
            return Support::no(format!("the op {}", op.op.kind()));
        }
        let dtypes = op.operands.iter().map(|o| o.dtype).chain([op.output.dtype]);
        if let Some(dtype) = dtypes.into_iter().find(|&dtype| !self.config.dtypes.contains(dtype)) {
            return Support::no(format!("{dtype} tensors"));
        }
        match op.batch() {
            batch if batch < self.config.min_batch => {
                Support::no(format!("a batch of {batch}, below {}", self.config.min_batch))
            }
            _ => Support::Yes,
        }
    }

    /// It stands for a device that is not here, and promises no more than any device does.
    fn sameness(&self) -> Sameness {
        Sameness::Device
    }

    fn create_buffer(&self, size_bytes: u64, _usage: Usage) -> Result<BufferKey, BackendError> {
        let max_bytes = self.config.capabilities.max_buffer_bytes;
        if size_bytes > max_bytes {
            return Err(BackendError::BufferTooLarge { size_bytes, max_bytes });
        }
        Ok(self.adopt(NullMemory { size_bytes, read_only: false }))
    }

    fn import_host(&self, bytes: Arc<dyn ImportedBytes>) -> Result<BufferKey, BackendError> {
        check_import(&*bytes, self.config.capabilities.import_align_bytes)?;
        Ok(self.adopt(NullMemory { size_bytes: (*bytes).as_ref().len() as u64, read_only: true }))
    }

    fn destroy_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        self.buffers().remove(key).map(drop).ok_or(BackendError::StaleBuffer)
    }

    fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        let buffers = self.buffers();
        buffers.get(key).map(|memory| MemoryHandle::new(Arc::clone(memory))).ok_or(BackendError::StaleBuffer)
    }

    /// Checks what can be checked, and keeps nothing.
    fn write(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        let null = NullMemory::check(memory, offset_bytes, bytes.len())?;
        if null.read_only { Err(BackendError::ReadOnly) } else { Ok(()) }
    }

    /// Reads zeros.
    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        NullMemory::check(memory, offset_bytes, bytes.len())?;
        bytes.fill(0);
        Ok(())
    }

    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        Ok(Box::new(NullSplit { nodes: split.len(), submits: Arc::clone(&self.submits) }))
    }

    fn memory_report(&self) -> MemoryReport {
        MemoryReport {
            ours_bytes: total_bytes(&self.buffers()),
            peak_bytes: self.peak_bytes.load(Ordering::Relaxed),
            ..MemoryReport::default()
        }
    }
}
