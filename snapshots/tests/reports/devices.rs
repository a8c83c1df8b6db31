//! Backends that watch what is asked of them, fail when told to, and run late: machines for reports that need results.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::RangeInclusive,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use entensor::graph_text::{BackendText, GraphText};
use entensor_components::{
    Backend, BackendError, BufferKey, Capabilities, ImportedBytes, MemoryHandle, MemoryKind, MemoryReport, OpDesc,
    PreparedSplit, SplitView, Support, TensorDesc, Ticket, Usage,
};
use entensor_null::NullBackend;
use entensor_oracle::OracleBackend;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls that can be counted and made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    /// A buffer for planned memory.
    Allocate,
    Prepare,
    Submit,
    Support,
}

/// What a machine's backends were asked, all together.
#[derive(Default)]
pub(crate) struct Log {
    counts: Mutex<BTreeMap<Call, u64>>,
    /// Calls of this kind fail, if their number is one of these.
    fault: Mutex<Option<(Call, RangeInclusive<u64>, BackendError)>>,
    /// Planned memory that is alive, by backend: sum, most, and buffers made.
    memory: Mutex<BTreeMap<String, (u64, u64, u64)>>,
    sizes: Mutex<BTreeMap<(String, BufferKey), u64>>,
    /// Names of the nodes of every submission, by backend.
    ran: Mutex<Vec<(String, Vec<Arc<str>>)>>,
}

impl Log {
    pub(crate) fn count(&self, call: Call) -> u64 {
        lock(&self.counts).get(&call).copied().unwrap_or(0)
    }

    /// Lets `allowed` more calls of this kind succeed; all later ones fail.
    pub(crate) fn fail(&self, call: Call, allowed: u64, error: BackendError) {
        *lock(&self.fault) = Some((call, self.count(call) + allowed + 1..=u64::MAX, error));
    }

    /// Lets `allowed` more calls of this kind succeed; the next one fails, and those after it succeed again.
    pub(crate) fn fail_once(&self, call: Call, allowed: u64, error: BackendError) {
        let first = self.count(call) + allowed + 1;
        *lock(&self.fault) = Some((call, first..=first, error));
    }

    pub(crate) fn heal(&self) {
        *lock(&self.fault) = None;
    }

    /// Forgets what was asked so far: memory that stands before anything is planned is not the planner's.
    pub(crate) fn start(&self) {
        lock(&self.counts).clear();
        lock(&self.memory).clear();
        lock(&self.sizes).clear();
    }

    fn note(&self, call: Call) -> Result<(), BackendError> {
        let mut counts = lock(&self.counts);
        let count = counts.entry(call).or_default();
        *count += 1;
        match &*lock(&self.fault) {
            Some((kind, which, error)) if *kind == call && which.contains(count) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Bytes of planned memory that are alive on a backend.
    pub(crate) fn alive_bytes(&self, backend: &str) -> u64 {
        lock(&self.memory).get(backend).map_or(0, |memory| memory.0)
    }

    /// The same on all backends.
    pub(crate) fn all_alive_bytes(&self) -> u64 {
        lock(&self.memory).values().map(|memory| memory.0).sum()
    }

    fn created(&self, backend: &str, key: BufferKey, size_bytes: u64) {
        lock(&self.sizes).insert((backend.into(), key), size_bytes);
        let mut memory = lock(&self.memory);
        let (alive, most, made) = memory.entry(backend.into()).or_default();
        *alive += size_bytes;
        *most = (*most).max(*alive);
        *made += 1;
    }

    fn destroyed(&self, backend: &str, key: BufferKey) {
        if let Some(size_bytes) = lock(&self.sizes).remove(&(backend.into(), key)) {
            lock(&self.memory).entry(backend.into()).or_default().0 -= size_bytes;
        }
    }

    /// Backend and nodes of each submission since the last call.
    pub(crate) fn take_ran(&self) -> Vec<(String, Vec<Arc<str>>)> {
        std::mem::take(&mut lock(&self.ran))
    }
}

/// A backend that claims what a machine's line says, computes as the oracle does (or nothing), and logs what it is asked.
pub(crate) struct Watched {
    claims: NullBackend,
    inner: Arc<dyn Backend>,
    log: Arc<Log>,
}

impl Watched {
    pub(crate) fn oracle(line: &BackendText, log: &Arc<Log>) -> Arc<dyn Backend> {
        let inner = OracleBackend::with_capabilities(line.name.to_string(), line.capabilities.clone());
        let claims = NullBackend::new(line.null_config());
        Arc::new(Self { claims, inner: Arc::new(inner), log: Arc::clone(log) })
    }

    pub(crate) fn null(line: &BackendText, log: &Arc<Log>) -> Arc<dyn Backend> {
        let claims = NullBackend::new(line.null_config());
        let inner = Arc::new(NullBackend::new(line.null_config()));
        Arc::new(Self { claims, inner, log: Arc::clone(log) })
    }
}

struct WatchedSplit {
    inner: Box<dyn PreparedSplit>,
    log: Arc<Log>,
    backend: String,
    nodes: Vec<Arc<str>>,
}

impl PreparedSplit for WatchedSplit {
    fn submit(&self, memory: &[MemoryHandle]) -> Result<Ticket, BackendError> {
        self.log.note(Call::Submit)?;
        lock(&self.log.ran).push((self.backend.clone(), self.nodes.clone()));
        self.inner.submit(memory)
    }
}

impl Backend for Watched {
    fn name(&self) -> &str {
        self.claims.name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.claims.capabilities()
    }

    fn support(&self, op: &OpDesc<'_>) -> Support {
        // Counted only: a question cannot fail.
        let _ = self.log.note(Call::Support);
        match self.claims.support(op) {
            Support::Yes => self.inner.support(op),
            no => no,
        }
    }

    fn create_buffer(&self, size_bytes: u64, usage: Usage) -> Result<BufferKey, BackendError> {
        if usage != Usage::Compute {
            return self.inner.create_buffer(size_bytes, usage);
        }
        self.log.note(Call::Allocate)?;
        let key = self.inner.create_buffer(size_bytes, usage)?;
        self.log.created(self.name(), key, size_bytes);
        Ok(key)
    }

    fn import_host(&self, bytes: Arc<dyn ImportedBytes>) -> Result<BufferKey, BackendError> {
        self.inner.import_host(bytes)
    }

    fn destroy_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        self.log.destroyed(self.name(), key);
        self.inner.destroy_buffer(key)
    }

    fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        self.inner.memory(key)
    }

    fn write(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        self.inner.write(memory, offset_bytes, bytes)
    }

    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.inner.read(memory, offset_bytes, bytes)
    }

    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        self.log.note(Call::Prepare)?;
        let nodes = (0..split.len()).map(|node| split.node(node).name).collect();
        let inner = self.inner.prepare(split)?;
        Ok(Box::new(WatchedSplit { inner, log: Arc::clone(&self.log), backend: self.name().into(), nodes }))
    }

    fn memory_report(&self) -> MemoryReport {
        self.inner.memory_report()
    }
}

/// A watched oracle for each line of a text's machine.
pub(crate) fn oracles(text: &GraphText, log: &Arc<Log>) -> Vec<Arc<dyn Backend>> {
    text.machine().iter().map(|line| Watched::oracle(line, log)).collect()
}

/// The machine of a text of `backend` lines.
pub(crate) fn machine_of(lines: &str, log: &Arc<Log>) -> Vec<Arc<dyn Backend>> {
    oracles(&crate::common::parse("machine", lines), log)
}

struct Pending {
    split: Arc<dyn PreparedSplit>,
    memory: Vec<MemoryHandle>,
}

/// A device whose queue stands still until somebody waits for it: whatever may run late, does.
pub(crate) struct Late {
    name: String,
    capabilities: Capabilities,
    oracle: OracleBackend,
    queue: Arc<Mutex<VecDeque<Pending>>>,
    keys: Mutex<BTreeMap<BufferKey, MemoryHandle>>,
    /// Buffers that were destroyed while work on them was waiting.
    pub(crate) destroyed_in_use: AtomicU64,
}

impl Late {
    pub(crate) fn new(name: &str) -> Arc<Self> {
        let memory = MemoryKind(name.into());
        let capabilities = Capabilities {
            reads: vec![memory.clone()],
            buffer_type: name.into(),
            memory,
            events: true,
            asynchronous: true,
            ..Capabilities::host()
        };
        Arc::new(Self {
            name: name.into(),
            oracle: OracleBackend::with_capabilities(name, capabilities.clone()),
            capabilities,
            queue: Arc::default(),
            keys: Mutex::default(),
            destroyed_in_use: AtomicU64::new(0),
        })
    }

    pub(crate) fn pending(&self) -> usize {
        lock(&self.queue).len()
    }

    fn drain(&self) -> Result<(), BackendError> {
        while let Some(next) = { lock(&self.queue).pop_front() } {
            next.split.submit(&next.memory)?;
        }
        Ok(())
    }
}

struct LateSplit {
    inner: Arc<dyn PreparedSplit>,
    queue: Arc<Mutex<VecDeque<Pending>>>,
}

impl PreparedSplit for LateSplit {
    fn submit(&self, memory: &[MemoryHandle]) -> Result<Ticket, BackendError> {
        let mut queue = lock(&self.queue);
        queue.push_back(Pending { split: Arc::clone(&self.inner), memory: memory.to_vec() });
        Ok(Ticket::Pending(queue.len() as u64))
    }
}

fn same(a: &MemoryHandle, b: &MemoryHandle) -> bool {
    match (a.as_host(), b.as_host()) {
        (Some(a), Some(b)) => std::ptr::eq(a, b),
        _ => false,
    }
}

impl Backend for Late {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn support(&self, op: &OpDesc<'_>) -> Support {
        self.oracle.support(op)
    }

    fn create_buffer(&self, size_bytes: u64, usage: Usage) -> Result<BufferKey, BackendError> {
        let key = self.oracle.create_buffer(size_bytes, usage)?;
        lock(&self.keys).insert(key, self.oracle.memory(key)?);
        Ok(key)
    }

    fn destroy_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        if let Some(memory) = lock(&self.keys).remove(&key)
            && lock(&self.queue).iter().any(|pending| pending.memory.iter().any(|used| same(used, &memory)))
        {
            self.destroyed_in_use.fetch_add(1, Ordering::Relaxed);
        }
        self.oracle.destroy_buffer(key)
    }

    fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        self.oracle.memory(key)
    }

    fn write(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        self.drain()?;
        self.oracle.write(memory, offset_bytes, bytes)
    }

    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.drain()?;
        self.oracle.read(memory, offset_bytes, bytes)
    }

    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        let inner = self.oracle.prepare(split)?.into();
        Ok(Box::new(LateSplit { inner, queue: Arc::clone(&self.queue) }))
    }

    fn allocation_bytes(&self, desc: &TensorDesc) -> u64 {
        self.oracle.allocation_bytes(desc)
    }

    fn synchronize(&self) -> Result<(), BackendError> {
        self.drain()
    }

    fn memory_report(&self) -> MemoryReport {
        self.oracle.memory_report()
    }
}
