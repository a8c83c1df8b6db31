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
    /// A buffer type that the backend does not make.
    #[error("`{backend}` makes no buffers of type `{buffer_type}`; it makes: {}", .known.join(", "))]
    UnknownBufferType {
        /// The backend.
        backend: Arc<str>,
        /// What was asked for.
        buffer_type: Arc<str>,
        /// What it makes, its default first.
        known: Vec<String>,
    },
    /// A buffer type that a backend makes, but not for planned memory.
    #[error("`{backend}` cannot plan memory of type `{buffer_type}`: {reason}; leave it to single buffers")]
    UnsuitedBufferType {
        /// The backend.
        backend: Arc<str>,
        /// The type that was asked for.
        buffer_type: Arc<str>,
        /// What stands against it.
        reason: &'static str,
    },
    /// Host memory that cannot be used in place.
    #[error(
        "host memory that starts {past_bytes} bytes behind a multiple of {align_bytes} cannot be used in place; import it from an aligned \
         address on and place its tensors at offsets, or copy it into a buffer"
    )]
    MisalignedImport {
        /// How far its start is behind an aligned address.
        past_bytes: u64,
        /// The alignment that is needed.
        align_bytes: u64,
    },
    /// Rows at distances that cannot be.
    #[error("{rows} rows of {row_bytes} bytes, {stride_bytes} bytes apart: {rule}")]
    BadRows {
        /// How many rows.
        rows: u64,
        /// Their length.
        row_bytes: u64,
        /// From the start of one to the start of the next.
        stride_bytes: u64,
        /// What must hold.
        rule: &'static str,
    },
    /// The caller's memory is smaller than what is read or written.
    #[error("the rows span {needed_bytes} bytes of the caller's memory, which has {given_bytes}")]
    HostTooSmall {
        /// What is needed.
        needed_bytes: u64,
        /// What was given.
        given_bytes: u64,
    },
    /// A library that is looked for when it is needed.
    #[error("`{library}` is not installed ({reason}); install the package {package}, or leave the option out")]
    MissingLibrary {
        /// The library.
        library: &'static str,
        /// Where it comes from.
        package: &'static str,
        /// What the system said.
        reason: String,
    },
    /// A tensor in a buffer of a private layout that is no tensor of that layout.
    #[error("the tensor at byte {offset_bytes} of a buffer with a private layout: {rule}")]
    LayoutConflict {
        /// Where it lies.
        offset_bytes: u64,
        /// What must hold.
        rule: &'static str,
    },
}
