//! The null backend: accepts what its declared capabilities say and computes nothing. With it any machine can be planned for
//! ("what if"), and planner tests need no hardware.
#![forbid(unsafe_code)]

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use entensor_components::{
    Backend, BackendError, BufferKey, Capabilities, Cursor, DTypeSet, HostBuffers, ImportedBytes, MemoryHandle,
    MemoryReport, OpDesc, OpKind, PreparedSplit, Progress, RunLimit, SplitView, Support, Ticket, Usage,
};

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
    // Keys and sizes only: buffers of zero bytes, whatever size was asked for.
    buffers: HostBuffers,
    sizes: Mutex<std::collections::HashMap<BufferKey, u64>>,
    submits: Arc<AtomicU64>,
}

impl NullBackend {
    /// A backend with these claims.
    #[must_use]
    pub fn new(config: NullConfig) -> Self {
        let refuses_nothing = config.refused_ops.is_empty() && config.dtypes == DTypeSet::ALL && config.min_batch == 0;
        Self {
            refuses_nothing,
            config,
            buffers: HostBuffers::default(),
            sizes: Mutex::default(),
            submits: Arc::default(),
        }
    }

    /// How many splits were run to their end.
    #[must_use]
    pub fn submits(&self) -> u64 {
        self.submits.load(Ordering::Relaxed)
    }

    fn track(&self, key: BufferKey, size_bytes: u64) -> BufferKey {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner).insert(key, size_bytes);
        key
    }
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

    fn create_buffer(&self, size_bytes: u64, _usage: Usage) -> Result<BufferKey, BackendError> {
        let max_bytes = self.config.capabilities.max_buffer_bytes;
        if size_bytes > max_bytes {
            return Err(BackendError::BufferTooLarge { size_bytes, max_bytes });
        }
        Ok(self.track(self.buffers.create(0)?, size_bytes))
    }

    fn import_host(&self, bytes: Arc<dyn ImportedBytes>) -> Result<BufferKey, BackendError> {
        let size_bytes = (*bytes).as_ref().len() as u64;
        Ok(self.track(self.buffers.import(bytes), size_bytes))
    }

    fn destroy_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        self.buffers.destroy(key)
    }

    fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        self.buffers.memory(key)
    }

    fn write(&self, _memory: &MemoryHandle, _offset_bytes: u64, _bytes: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }

    /// Reads zeros.
    fn read(&self, _memory: &MemoryHandle, _offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        bytes.fill(0);
        Ok(())
    }

    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        Ok(Box::new(NullSplit { nodes: split.len(), submits: Arc::clone(&self.submits) }))
    }

    fn memory_report(&self) -> MemoryReport {
        let sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        MemoryReport {
            ours_bytes: sizes.values().fold(0, |sum, size| sum.saturating_add(*size)),
            ..MemoryReport::default()
        }
    }
}
