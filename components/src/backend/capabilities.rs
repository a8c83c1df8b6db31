//! What a backend is able to do, as data.

use std::sync::Arc;

use crate::{dtype::DType, memory::MemoryKind};

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

/// A refusal because of a dtype that is not in a set; shared wording for all backends.
#[must_use]
pub fn dtype_refusal(dtype: DType) -> Support {
    Support::no(format!("{dtype} operands"))
}
