//! What a backend may report.

use std::sync::Arc;

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
    /// Somebody cancelled the run.
    #[error("the run was cancelled; its results are incomplete, run it again")]
    Cancelled,
    /// A place that the prepared split does not have.
    #[error(
        "step {step}, row {row} is no place of this split; go on from the cursor of its last pause, or from the start"
    )]
    BadCursor {
        /// The step.
        step: u32,
        /// The row.
        row: u32,
    },
    /// A ticket or event that this backend never gave out.
    #[error("`{backend}` has no event {event}; wait for events at the backend that recorded them")]
    UnknownEvent {
        /// The backend that was asked.
        backend: Arc<str>,
        /// The number.
        event: u64,
    },
}
