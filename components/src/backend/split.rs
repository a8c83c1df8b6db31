//! What a backend is given to run: a split, node by node, made ready once and submitted many times.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

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

    /// Whether anybody outside of the split may read the result of the node at this place: another split, a copy, or the user. What nobody
    /// but later nodes of the split reads, a backend need not write. True where it is not known.
    fn is_read_elsewhere(&self, _index: usize) -> bool {
        true
    }
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

/// A flag that ends runs early. Clones are the same flag; any thread, and a signal handler, may set it.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that nobody has cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels whatever runs under this token, now and later. Never blocks.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether somebody cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A place in a prepared split between two pieces of work: everything before it is done, nothing behind it was begun.
///
/// Steps, and the grid of rows of a step, are the backend's: fixed when the split is prepared, whatever the limits, the threads and
/// the machine's load. So where a run is cut never changes a bit. [`Cursor::default`] is the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cursor {
    /// The first step that is not done.
    pub step: u32,
    /// The first row of that step's grid that is not done.
    pub row: u32,
}

impl Cursor {
    /// Before the first step.
    pub const START: Self = Self { step: 0, row: 0 };

    /// Whether nothing is done yet.
    #[must_use]
    pub fn is_start(self) -> bool {
        self == Self::START
    }
}

/// How far a run may go. The default has no limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunLimit<'a> {
    /// The run pauses at the first place on its grid behind this time. A time that has passed lets every call do one piece.
    pub deadline: Option<Instant>,
    /// Ends the run.
    pub cancel: Option<&'a CancelToken>,
}

impl RunLimit<'_> {
    /// No limit.
    pub const NONE: RunLimit<'static> = RunLimit { deadline: None, cancel: None };

    /// Whether there is no limit at all.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.deadline.is_none() && self.cancel.is_none()
    }

    /// Whether somebody cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(CancelToken::is_cancelled)
    }

    /// Whether the deadline has passed. Asks the clock only if there is one.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// How far a run came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// To its end, as [`PreparedSplit::submit`] reports it.
    Done(Ticket),
    /// To this place, and nothing of it is under way any more.
    Paused(Cursor),
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

    /// Runs the nodes from a place on until they are done or the limit is reached. A call with a deadline that has passed does one piece
    /// of work all the same, so whoever calls again and again gets to the end. When it returns, nothing is under way, and no thread
    /// of the backend touches the memories.
    ///
    /// **Validation.** The cursor is `START` or what the last call on this split gave for the same memories; a backend refuses one outside its
    /// grid. Between two calls nobody may write what the split reads or writes, and the caller may do other runs of this split in between: what
    /// a backend keeps from one piece to the next, it makes anew where another run took its place.
    ///
    /// **Blocking.** As `submit`, at most until the limit is reached. May be called from any thread, by one at a time.
    ///
    /// By default nothing is cut: the start submits the whole split unless it is cancelled already, and there is no other place.
    ///
    /// # Errors
    /// [`BackendError::Cancelled`] when the limit's token was set: what the split writes holds anything from then on.
    /// [`BackendError::BadCursor`]; what [`Self::submit`] reports.
    fn run_from(&self, memory: &[MemoryHandle], from: Cursor, limit: &RunLimit<'_>) -> Result<Progress, BackendError> {
        if !from.is_start() {
            return Err(BackendError::BadCursor { step: from.step, row: from.row });
        }
        if limit.is_cancelled() {
            return Err(BackendError::Cancelled);
        }
        self.submit(memory).map(Progress::Done)
    }

    /// Binds and locks these memories, one per [`MemorySlot`], for as many runs as the caller likes. Nobody else gets at them meanwhile. `None`
    /// where the backend cannot keep them, or gains nothing by it: then the split is submitted run by run.
    ///
    /// **Blocking.** Until the memories are free. While the split is held, [`Self::submit`] on it waits.
    ///
    /// # Errors
    /// As [`Self::submit`], but for errors of nodes.
    fn hold<'a>(&'a self, _memory: &'a [MemoryHandle]) -> Result<Option<Box<dyn HeldSplit + 'a>>, BackendError> {
        Ok(None)
    }

    /// As [`Self::run_from`], and says how long nodes took: with the place of a node in the split, each time a step for it ends. A node may
    /// have several steps, and a step may compute several nodes, of which it names one. Steps that overlap are told apart as the calling thread
    /// comes to them, so that all times together are no more than the call's. For profiles: results are those of a run that is not timed.
    ///
    /// By default nothing is said of nodes.
    ///
    /// # Errors
    /// As [`Self::run_from`].
    fn run_timed(
        &self,
        memory: &[MemoryHandle],
        from: Cursor,
        limit: &RunLimit<'_>,
        took: &mut dyn FnMut(usize, Duration),
    ) -> Result<Progress, BackendError> {
        let _ = took;
        self.run_from(memory, from, limit)
    }
}

/// A split whose memories are bound and locked: [`PreparedSplit::hold`].
pub trait HeldSplit {
    /// Runs all nodes. Blocks, and allocates nothing.
    ///
    /// # Errors
    /// As [`PreparedSplit::submit`].
    fn run(&mut self) -> Result<(), BackendError>;

    /// The bytes of a memory; `None` for one that the split does not use.
    fn bytes(&self, slot: MemorySlot) -> Option<&[u8]>;

    /// The bytes of a memory, to write; `None` for one that the split does not write.
    fn bytes_mut(&mut self, slot: MemorySlot) -> Option<&mut [u8]>;
}
