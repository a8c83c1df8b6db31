//! What a backend is given to run: a split, node by node, made ready once and submitted many times.

use std::sync::Arc;

use super::{BackendError, Ticket};
use crate::{memory::MemoryHandle, op::Op, shape::TensorDesc};

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
