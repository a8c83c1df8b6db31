//! What a backend is able to do, as data.

use std::{borrow::Cow, sync::Arc};

use crate::{dtype::DType, memory::MemoryKind, shape::TensorDesc};

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
    /// What imported host memory must be aligned to; a power of two.
    pub import_align_bytes: u64,
    /// Private layouts, by buffer type, that some of its ops read beside those of `buffer_type`. Which ones
    /// [`Backend::reads_opaque`](super::Backend::reads_opaque) says.
    pub opaque_types: Vec<Arc<str>>,
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
            import_align_bytes: IMPORT_ALIGN_BYTES,
            opaque_types: Vec::new(),
        }
    }

    /// Whether the backend can use memory of this kind without a copy. Opaque memory is usable by its own buffer type, and by backends
    /// that name it among their [`Self::opaque_types`].
    #[must_use]
    pub fn can_use(&self, kind: &MemoryKind, opaque: bool, buffer_type: &str) -> bool {
        let knows =
            || *self.buffer_type == *buffer_type || self.opaque_types.iter().any(|known| **known == *buffer_type);
        self.reads.contains(kind) && (!opaque || knows())
    }
}

/// What host memory must be aligned to where nothing else is said: the largest element of any dtype.
pub const IMPORT_ALIGN_BYTES: u64 = 8;

/// A kind of buffer that a backend makes. The first of [`Backend::buffer_types`](super::Backend::buffer_types) is what it makes
/// unless another one is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferTypeInfo {
    /// Its name. Backends with one default type share arenas.
    pub name: Arc<str>,
    /// What it is, in a line, for people.
    pub description: Cow<'static, str>,
    /// The kind of memory.
    pub memory: MemoryKind,
    /// Alignment of tensors in it; a power of two.
    pub align_bytes: u64,
    /// Sizes of tensors are rounded up to a multiple of this.
    pub pad_bytes: u64,
    /// The largest buffer.
    pub max_buffer_bytes: u64,
    /// Whether tensors in it have a layout of their own. What is written is converted and what is read is converted back, so
    /// reads and writes see the bytes that every other buffer would have.
    pub opaque: bool,
}

impl BufferTypeInfo {
    /// The type of the buffers that a backend with these capabilities makes.
    #[must_use]
    pub fn of(capabilities: &Capabilities) -> Self {
        let memory = capabilities.memory.clone();
        let description = if memory.is_host() {
            Cow::Borrowed("ordinary host memory")
        } else {
            Cow::Owned(format!("memory of the kind `{memory}`"))
        };
        Self {
            name: Arc::clone(&capabilities.buffer_type),
            description,
            memory,
            align_bytes: capabilities.align_bytes,
            pad_bytes: capabilities.pad_bytes,
            max_buffer_bytes: capabilities.max_buffer_bytes,
            opaque: false,
        }
    }

    /// Whether every host backend can use it in place.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.memory.is_host() && !self.opaque
    }

    /// Bytes that a tensor takes in it, padding included; `u64::MAX` for what no buffer can hold.
    #[must_use]
    pub fn allocation_bytes(&self, desc: &TensorDesc) -> u64 {
        desc.size_bytes().checked_next_multiple_of(self.pad_bytes.max(1)).unwrap_or(u64::MAX)
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

/// A refusal because of a dtype that is not in a set; shared wording for all backends.
#[must_use]
pub fn dtype_refusal(dtype: DType) -> Support {
    Support::no(format!("{dtype} operands"))
}
