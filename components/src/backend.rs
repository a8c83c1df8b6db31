//! The seam to devices: one narrow object-safe trait, plain data in, results out.
//!
//! **Who validates.** The planner checks shapes, dtypes, support and overlap, and aligns the memory that it plans, before a backend
//! sees a split; tensors in memory of the user's own may start at any multiple of their element size; the engine checks bounds of user reads and writes again through the memory type. A backend returns errors only
//! for what nobody could foresee: out of memory, a lost device, an index in the data that points outside its table.
//!
//! **Threads.** Every method takes `&self` and may be called from any thread. Blocking methods say so.

use std::sync::Arc;

use crate::{
    dtype::DType,
    memory::{BufferKey, ImportedBytes, MemoryHandle, MemoryKind, Usage},
    op::{Op, OpDesc},
    shape::TensorDesc,
};

/// What a backend is able to do, declared once. Abilities are data, not methods that panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The kind of its own memory.
    pub memory: MemoryKind,
    /// Every kind it can use without a copy, its own included.
    pub reads: Vec<MemoryKind>,
    /// Backends with one buffer type share arenas.
    pub buffer_type: Arc<str>,
    /// Its largest buffer.
    pub max_buffer_bytes: u64,
    /// Alignment of tensors in its buffers; a power of two.
    pub align_bytes: u64,
    /// Sizes of tensors are rounded up to a multiple of this.
    pub pad_bytes: u64,
    /// From which batch on it wants ops whose weights lie in host memory; `None` for never.
    pub offload_batch: Option<u64>,
    /// Most copies that one split of it may need at its start.
    pub max_inputs: Option<u64>,
    /// Whether it has events that other queues can wait for.
    pub events: bool,
    /// Whether `submit` returns before the work is done.
    pub asynchronous: bool,
    /// Whether `import_host` works.
    pub imports_host: bool,
}

impl Capabilities {
    /// A synchronous backend on host memory without limits.
    #[must_use]
    pub fn host() -> Self {
        Self {
            memory: MemoryKind::host(),
            reads: vec![MemoryKind::host()],
            buffer_type: MemoryKind::HOST.into(),
            max_buffer_bytes: u64::MAX,
            align_bytes: 32,
            pad_bytes: 1,
            offload_batch: None,
            max_inputs: None,
            events: false,
            asynchronous: false,
            imports_host: false,
        }
    }

    /// Whether the backend can use memory of this kind without a copy. Opaque memory is usable by its own buffer type only.
    #[must_use]
    pub fn can_use(&self, kind: &MemoryKind, opaque: bool, buffer_type: &str) -> bool {
        self.reads.contains(kind) && (!opaque || *self.buffer_type == *buffer_type)
    }
}

/// Whether a backend can run an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// It can.
    Yes,
    /// It cannot, and why, in words for a person: "f16 operands", "rows that are not packed".
    No(std::borrow::Cow<'static, str>),
}

impl Support {
    /// A refusal.
    pub fn no(reason: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        Self::No(reason.into())
    }

    /// Whether the answer is yes.
    #[must_use]
    pub fn is_yes(&self) -> bool {
        matches!(self, Self::Yes)
    }
}

/// Which of a run's memories a tensor lies in: an index into the list given to [`PreparedSplit::submit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemorySlot(pub u32);

/// A tensor of a split: what it looks like and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorRef {
    /// Dtype, shape and strides.
    pub desc: TensorDesc,
    /// Which memory.
    pub memory: MemorySlot,
    /// Bytes from the start of that memory to the first element.
    pub offset_bytes: u64,
}

/// One node to run.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeDesc {
    /// The node's name, for errors and profilers.
    pub name: Arc<str>,
    /// The op and its parameters; never a leaf or a view op.
    pub op: Op,
    /// The result. For writers, the target.
    pub output: TensorRef,
    /// The operands.
    pub operands: Vec<TensorRef>,
}

/// A run of nodes for one backend, in order, written out: for tests of backends, and for wrappers that change nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SplitDesc {
    /// The nodes.
    pub nodes: Vec<NodeDesc>,
    /// How many memories a run is given.
    pub memory_slots: u32,
}

/// A split as its backend reads it, node by node: a plan keeps columns, and makes a node's description when it is asked for.
pub trait SplitView {
    /// How many nodes there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The node at a place in the split.
    ///
    /// # Panics
    /// At or behind [`Self::len`].
    fn node(&self, index: usize) -> NodeDesc;

    /// How many memories a run is given.
    fn memory_slots(&self) -> u32;
}

impl SplitView for SplitDesc {
    fn len(&self) -> usize {
        self.nodes.len()
    }

    fn node(&self, index: usize) -> NodeDesc {
        self.nodes[index].clone()
    }

    fn memory_slots(&self) -> u32 {
        self.memory_slots
    }
}

/// The result of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ticket {
    /// The work is done.
    Done,
    /// The work is queued; [`Backend::synchronize`] waits for it.
    Pending(u64),
}

/// A split that its backend has made ready: created once, submitted many times, from one run at a time.
pub trait PreparedSplit: Send + Sync {
    /// Runs the nodes on these memories, one per [`MemorySlot`]. Blocks unless the backend is asynchronous.
    /// Allocates nothing after its first call. Every memory keeps alive until the work is done.
    ///
    /// # Errors
    /// [`BackendError::IndexOutOfRange`] before memory is touched by that node; [`BackendError::ForeignMemory`]
    /// when a memory is none that the backend can use; [`BackendError::DeviceLost`].
    fn submit(&self, memory: &[MemoryHandle]) -> Result<Ticket, BackendError>;
}

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

/// What nobody could foresee. The engine adds which graph, node and split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The allocation failed.
    #[error(
        "{size_bytes} bytes could not be allocated; free memory, use a smaller batch or context, or another backend"
    )]
    OutOfMemory {
        /// Bytes asked for.
        size_bytes: u64,
    },
    /// The backend's buffers are never that large.
    #[error("a buffer of {size_bytes} bytes is above this backend's largest, {max_bytes}")]
    BufferTooLarge {
        /// Bytes asked for.
        size_bytes: u64,
        /// The largest.
        max_bytes: u64,
    },
    /// The buffer behind a key was destroyed.
    #[error("the buffer was destroyed")]
    StaleBuffer,
    /// A write to memory that can only be read.
    #[error("the memory is read-only (imported weights); write to a buffer of your own")]
    ReadOnly,
    /// A read or write outside a buffer.
    #[error("{len_bytes} bytes at offset {offset_bytes} are outside the buffer of {size_bytes} bytes")]
    OutOfBounds {
        /// Where.
        offset_bytes: u64,
        /// How many.
        len_bytes: u64,
        /// The buffer's size.
        size_bytes: u64,
    },
    /// A memory of a kind that this backend does not know.
    #[error("the memory belongs to a backend that this one cannot read")]
    ForeignMemory,
    /// The same memory was bound twice to one split.
    #[error("one buffer is bound to two places of a split; bind it once")]
    AliasedMemory,
    /// An ability that the capabilities do not have.
    #[error("this backend cannot {ability}")]
    Unsupported {
        /// The ability.
        ability: &'static str,
    },
    /// An index in the data points outside its table.
    #[error(
        "node `{node}`: id {value} at position {position} is outside 0..{rows}; check the ids that are written before the run"
    )]
    IndexOutOfRange {
        /// The node.
        node: Arc<str>,
        /// Linear position in the ids.
        position: u64,
        /// The id.
        value: i64,
        /// How many rows there are.
        rows: u64,
    },
    /// A node that the backend refused at planning time reached it all the same.
    #[error("node `{node}`: {op} is not supported here: {reason}")]
    UnsupportedNode {
        /// The node.
        node: Arc<str>,
        /// Its op.
        op: &'static str,
        /// Why not.
        reason: String,
    },
    /// The device is gone; sticky.
    #[error("the device was lost: {reason}; make the backend again")]
    DeviceLost {
        /// What the driver said.
        reason: String,
    },
}

/// A device or library that holds buffers and runs splits. See the module's page for who validates.
pub trait Backend: Send + Sync {
    /// The name it was registered under, unique in an engine.
    fn name(&self) -> &str;

    /// What it is able to do.
    fn capabilities(&self) -> &Capabilities;

    /// Whether it can run this op on these layouts. Pure and cheap: asked once per node when a graph is planned. Never asked
    /// about leaves and view ops, which every backend supports.
    fn support(&self, op: &OpDesc<'_>) -> Support;

    /// Whether uploading the host weights of this op is worth it. By default compares the op's batch with
    /// [`Capabilities::offload_batch`].
    fn wants_offload(&self, op: &OpDesc<'_>) -> bool {
        self.capabilities().offload_batch.is_some_and(|threshold| op.batch() >= threshold)
    }

    /// Bytes that a tensor takes in its buffers, padding included.
    fn allocation_bytes(&self, desc: &TensorDesc) -> u64 {
        let (size_bytes, pad_bytes) = (desc.size_bytes(), self.capabilities().pad_bytes);
        if pad_bytes <= 1 {
            return size_bytes;
        }
        // What no buffer can hold is refused where buffers are planned.
        size_bytes.checked_next_multiple_of(pad_bytes).unwrap_or(u64::MAX)
    }

    /// Allocates a zeroed buffer. May block.
    ///
    /// # Errors
    /// Out of memory, or larger than [`Capabilities::max_buffer_bytes`].
    fn create_buffer(&self, size_bytes: u64, usage: Usage) -> Result<BufferKey, BackendError>;

    /// Makes a read-only buffer of host memory in place, without a copy.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] unless [`Capabilities::imports_host`].
    fn import_host(&self, bytes: Arc<dyn ImportedBytes>) -> Result<BufferKey, BackendError> {
        drop(bytes);
        Err(BackendError::Unsupported { ability: "use host memory in place" })
    }

    /// Forgets a buffer; its memory goes when the last handle does.
    ///
    /// # Errors
    /// A stale key.
    fn destroy_buffer(&self, key: BufferKey) -> Result<(), BackendError>;

    /// The memory of a buffer.
    ///
    /// # Errors
    /// A stale key.
    fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError>;

    /// Writes bytes. Blocks until they are on the device, or safely staged.
    ///
    /// # Errors
    /// Foreign or read-only memory, out of bounds, device lost.
    fn write(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError>;

    /// Reads bytes. Blocks until all submitted work is done.
    ///
    /// # Errors
    /// Foreign memory, out of bounds, device lost.
    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError>;

    /// Makes a split ready to run: pipelines, kernels, work memory. May block and allocate.
    ///
    /// # Errors
    /// Out of memory, device lost, or a node that it does not support.
    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError>;

    /// Marks this point of the queue; 0 for backends without events.
    ///
    /// # Errors
    /// Device lost.
    fn record(&self) -> Result<u64, BackendError> {
        Ok(0)
    }

    /// Makes the queue wait for another backend's event; synchronous backends block on it.
    ///
    /// # Errors
    /// Device lost, of either side.
    fn wait(&self, of: &dyn Backend, event: u64) -> Result<(), BackendError> {
        let _ = event;
        of.synchronize()
    }

    /// Blocks until everything submitted is done.
    ///
    /// # Errors
    /// Device lost.
    fn synchronize(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Memory figures.
    fn memory_report(&self) -> MemoryReport;
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
        let memory = backend.memory(key)?;
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

/// A refusal because of a dtype that is not in a set; shared wording for all backends.
#[must_use]
pub fn dtype_refusal(dtype: DType) -> Support {
    Support::no(format!("{dtype} operands"))
}
