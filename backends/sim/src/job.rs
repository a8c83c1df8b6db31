//! Work in a queue, and how it is done once its time has come.

use std::sync::Arc;

use entensor_components::{Backend, BackendError, MemoryHandle, Readback};

use crate::{memory::inner_handle, split::SplitNodes, timeline::Access};

/// What is to be done.
pub(crate) enum Task {
    /// Nothing: a point of the queue.
    Marker,
    /// Nodes of a split, from one to another.
    Nodes {
        split: Arc<SplitNodes>,
        first: usize,
        end: usize,
        memory: Arc<Vec<MemoryHandle>>,
    },
    Write {
        memory: MemoryHandle,
        offset_bytes: u64,
        bytes: Vec<u8>,
    },
    Read {
        memory: MemoryHandle,
        offset_bytes: u64,
        into: Readback,
    },
    Copy {
        to: MemoryHandle,
        to_offset_bytes: u64,
        from: MemoryHandle,
        from_offset_bytes: u64,
        len_bytes: u64,
    },
}

impl Task {
    /// Does it, on the backend that computes.
    pub(crate) fn run(&self, inner: &Arc<dyn Backend>) -> Result<(), BackendError> {
        match self {
            Self::Marker => Ok(()),
            Self::Nodes { split, first, end, memory } => split.run(*first..*end, memory),
            Self::Write { memory, offset_bytes, bytes } => inner.write(inner_handle(memory), *offset_bytes, bytes),
            Self::Read { memory, offset_bytes, into } => {
                into.with(|bytes| inner.read(inner_handle(memory), *offset_bytes, bytes))
            }
            Self::Copy { to, to_offset_bytes, from, from_offset_bytes, len_bytes } => {
                let (to, from) = (inner_handle(to), inner_handle(from));
                inner.copy_from(to, *to_offset_bytes, &**inner, from, *from_offset_bytes, *len_bytes).map(drop)
            }
        }
    }

    /// How many nodes it runs.
    pub(crate) fn nodes(&self) -> usize {
        match self {
            Self::Nodes { first, end, .. } => end - first,
            _ => 0,
        }
    }
}

/// A task with what its queue has to know.
pub(crate) struct Job {
    pub(crate) ticket: u64,
    pub(crate) task: Task,
    pub(crate) accesses: Vec<Access>,
    pub(crate) waits: Vec<u64>,
    /// The piece before it of the same split: if that failed, so does this.
    pub(crate) after: Option<u64>,
    pub(crate) submitted_ns: u64,
    pub(crate) cost_ns: u64,
    /// Its place in the log, counted from the first entry ever.
    pub(crate) entry: Option<usize>,
}

/// What is known of every ticket that was given out.
pub(crate) struct TicketState {
    pub(crate) device: u32,
    pub(crate) after: Option<u64>,
    pub(crate) end_ns: u64,
    pub(crate) cancelled: bool,
    /// `None` while it is queued.
    pub(crate) result: Option<Result<(), BackendError>>,
}
