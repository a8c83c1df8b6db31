//! The seam to devices: one narrow object-safe trait, plain data in, results out.
//!
//! **Who validates.** The planner checks shapes, dtypes, support and overlap, and aligns the memory that it plans, before a backend
//! sees a split; tensors in memory of the user's own may start at any multiple of their element size; the engine checks bounds of user reads and writes again through the memory type. A backend returns errors only
//! for what nobody could foresee: out of memory, a lost device, an index in the data that points outside its table.
//!
//! **Threads.** Every method takes `&self` and may be called from any thread. Blocking methods say so.

mod buffer;
mod capabilities;
mod error;
mod queue;
mod split;

use std::sync::Arc;

pub use buffer::{DeviceBuffer, MemoryReport};
pub use capabilities::{Capabilities, Support, dtype_refusal};
pub use error::BackendError;
pub use queue::Ticket;
pub use split::{
    CancelToken, Cursor, MemorySlot, NodeDesc, PreparedSplit, Progress, RunLimit, SplitDesc, SplitView, TensorRef,
};

use crate::{
    memory::{BufferKey, ImportedBytes, MemoryHandle, Usage},
    op::OpDesc,
    shape::TensorDesc,
};

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
