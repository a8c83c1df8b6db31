//! What can be wrong with a plan.

use std::sync::Arc;

/// One thing that is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A node is on a backend that refuses it.
    #[error("`{node}` is on `{backend}`, which refuses it")]
    Unsupported {
        /// The node.
        node: Arc<str>,
        /// The backend.
        backend: Arc<str>,
    },
    /// A pin was not followed.
    #[error("`{node}` is pinned to backend {wanted}, but is on {found}")]
    PinIgnored {
        /// The node.
        node: Arc<str>,
        /// The pin.
        wanted: u32,
        /// The answer.
        found: u32,
    },
    /// A tensor with memory is on a backend that cannot use that memory.
    #[error("`{node}` is on `{backend}`, which cannot use its memory")]
    ImmovableMoved {
        /// The node.
        node: Arc<str>,
        /// The backend.
        backend: Arc<str>,
    },
    /// A view is not where its root is, or a result is not on its split's backend.
    #[error("`{node}` is on backend {found}, but belongs on {wanted}")]
    WrongBackend {
        /// The node.
        node: Arc<str>,
        /// Where it is.
        found: u32,
        /// Where it should be.
        wanted: u32,
    },
    /// Splits do not hold every computing node once, in order.
    #[error("`{node}` is missing from the splits, there twice, or out of order")]
    SplitOrder {
        /// The node.
        node: Arc<str>,
    },
    /// A split makes more copies than its backend takes.
    #[error("split {split} makes {inputs} copies, above the limit {max}")]
    TooManyInputs {
        /// The split.
        split: usize,
        /// Copies made.
        inputs: usize,
        /// The limit.
        max: u64,
    },
    /// A split is not launched once, in order, after its copies.
    #[error("step {step}: split or copy out of order")]
    StepOrder {
        /// The step.
        step: usize,
    },
    /// What the backend is given is not the node.
    #[error("`{node}`: what the backend runs is not what the plan says")]
    WrongNode {
        /// The node.
        node: Arc<str>,
    },
    /// A node reads or writes memory that its backend cannot use.
    #[error("`{node}` on `{backend}` touches memory {memory}, which that backend cannot use")]
    UnusableMemory {
        /// The node.
        node: Arc<str>,
        /// The backend.
        backend: Arc<str>,
        /// The memory.
        memory: u32,
    },
    /// A read does not find the bytes that were last written.
    #[error("`{node}` reads `{operand}` and finds {found}")]
    WrongBytes {
        /// The reader, or `run` for outputs at the end.
        node: Arc<str>,
        /// What it reads.
        operand: Arc<str>,
        /// What is there.
        found: String,
    },
    /// Two allocations that are alive in one step share bytes.
    #[error("`{first}` and `{second}` share bytes while both are alive")]
    Overlap {
        /// One.
        first: Arc<str>,
        /// The other.
        second: Arc<str>,
    },
    /// An allocation or tensor ends outside its memory.
    #[error("`{name}` ends outside its memory")]
    OutOfBounds {
        /// Whose.
        name: Arc<str>,
    },
    /// An allocation is not aligned as its backend asks.
    #[error("`{name}` at offset {offset_bytes} is not aligned to {align_bytes}")]
    Misaligned {
        /// Whose.
        name: Arc<str>,
        /// Where.
        offset_bytes: u64,
        /// The alignment.
        align_bytes: u64,
    },
    /// A buffer is larger than a backend that uses it allows.
    #[error("buffer {buffer} of {size_bytes} bytes is above the largest of `{backend}`")]
    BufferTooLarge {
        /// The buffer.
        buffer: usize,
        /// Its size.
        size_bytes: u64,
        /// The backend.
        backend: Arc<str>,
    },
    /// An allocation is smaller than what its backend asks for the tensor, padding included.
    #[error("`{name}` has {size_bytes} bytes, but takes {needed_bytes}")]
    TooSmall {
        /// Whose.
        name: Arc<str>,
        /// What it has.
        size_bytes: u64,
        /// What it takes.
        needed_bytes: u64,
    },
    /// Inputs, outputs and copies exist once per pipelined slot, and this one does not.
    #[error("`{name}` has no memory of its own in slot {slot}")]
    MissingSlot {
        /// Whose.
        name: Arc<str>,
        /// The slot.
        slot: u32,
    },
    /// A step or a backend is given a tensor at another place than the one that was allocated for it.
    #[error("`{node}` is given `{tensor}` at byte {offset_bytes} of memory {memory}, which is not its place")]
    WrongPlace {
        /// Who is given it, or whose copy it is.
        node: Arc<str>,
        /// The tensor.
        tensor: Arc<str>,
        /// Which memory.
        memory: u32,
        /// Where in it.
        offset_bytes: u64,
    },
    /// A result lies on an operand's bytes, which its op must not overwrite while it reads them.
    #[error("`{node}` overwrites `{operand}` while it reads it")]
    OverwritesOperand {
        /// The node.
        node: Arc<str>,
        /// The operand.
        operand: Arc<str>,
    },
    /// A private layout is copied byte by byte to a backend that does not understand it.
    #[error("`{tensor}` is copied out of buffer `{buffer}`, whose layout only its own backend understands")]
    OpaqueCopied {
        /// The tensor.
        tensor: Arc<str>,
        /// Its buffer.
        buffer: Arc<str>,
    },
    /// An event that the run does not have, or that another queue records, or that nobody has recorded yet.
    #[error("step {step}: event {event} is not one that was recorded there before")]
    WrongEvent {
        /// The step.
        step: usize,
        /// The event.
        event: u32,
    },
    /// Memory passes from one queue to another without an event.
    #[error("step {step}: `{name}` touches bytes that the queue of `{other}` has not finished with")]
    Unordered {
        /// The step.
        step: usize,
        /// Who.
        name: Arc<str>,
        /// The other queue's backend.
        other: Arc<str>,
    },
}
