//! The seam to devices: one narrow object-safe trait, plain data in, results out.
//!
//! **Who validates.** The planner checks shapes, dtypes, support and overlap, and aligns the memory that it plans, before a backend
//! sees a split; tensors in memory of the user's own may start at any multiple of their element size; the engine checks bounds of user reads and writes again through the memory type. A backend returns errors only
//! for what nobody could foresee: out of memory, a lost device, an index in the data that points outside its table.
//!
//! **Threads.** Every method takes `&self` and may be called from any thread. Blocking methods say so.

mod buffer;
mod capabilities;
mod configured;
mod error;
mod queue;
mod sameness;
mod split;

use std::{any::Any, sync::Arc, time::Duration};

pub use buffer::{DeviceBuffer, MemoryReport};
pub use capabilities::{BufferTypeInfo, Capabilities, IMPORT_ALIGN_BYTES, Support, dtype_refusal};
pub use configured::{BackendConfig, Configured, OffloadPolicy};
pub use error::BackendError;
pub use queue::{QueueKind, Readback, Ticket};
pub use sameness::Sameness;
pub use split::{
    CancelToken, Cursor, HeldSplit, MemorySlot, NodeDesc, PreparedSplit, Progress, RunLimit, SplitDesc, SplitView,
    TensorRef,
};

use crate::{
    memory::{BufferKey, ByteRows, ImportedBytes, MemoryHandle, RowsReadback, Usage},
    op::{OpDesc, OpKind},
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

    /// Under which conditions its results are the same bits. By default the least that there is to promise. Never changes.
    fn sameness(&self) -> Sameness {
        Sameness::Device
    }

    /// From which batch on uploading the host weights of an op is worth it; `None` for never. By default
    /// [`Capabilities::offload_batch`], whatever the op. Pure and cheap.
    fn offload_batch(&self, op: OpKind) -> Option<u64> {
        let _ = op;
        self.capabilities().offload_batch
    }

    /// Whether uploading the host weights of this op is worth it. By default compares its batch with [`Self::offload_batch`].
    fn wants_offload(&self, op: &OpDesc<'_>) -> bool {
        self.offload_batch(op.op.kind()).is_some_and(|threshold| op.batch() >= threshold)
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

    /// Writes bytes. Blocks until the work on that memory that was submitted before is done, and the bytes are on the device or
    /// safely staged: a host write never overtakes work in flight, and later work sees it.
    ///
    /// # Errors
    /// Foreign or read-only memory, out of bounds, device lost.
    fn write(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError>;

    /// Reads bytes. Blocks until the work on that memory that was submitted before is done.
    ///
    /// # Errors
    /// Foreign memory, out of bounds, device lost.
    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError>;

    /// Makes a split ready to run: pipelines, kernels, work memory. May block and allocate.
    ///
    /// # Errors
    /// Out of memory, device lost, or a node that it does not support.
    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError>;

    /// Marks this point of the compute queue: the event is reached when everything submitted to it so far is done. 0 for backends
    /// without events. Never blocks.
    ///
    /// # Errors
    /// Device lost.
    fn record(&self) -> Result<u64, BackendError> {
        Ok(0)
    }

    /// Makes the compute queue wait for an event of any backend, its own included: what is submitted from now on runs after it.
    /// Synchronous backends, and those that do not know the other's events, block the caller until it is reached.
    ///
    /// # Errors
    /// Device lost, of either side; [`BackendError::UnknownEvent`] for a number that the other backend never gave out.
    fn wait(&self, of: &dyn Backend, event: u64) -> Result<(), BackendError> {
        of.wait_for(Ticket::Pending(event), None).map(drop)
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

    /// Whether submitted work is done. Never blocks, but on backends that cannot tell, which wait for all of their work.
    ///
    /// # Errors
    /// What the work failed with, as often as it is asked; device lost; [`BackendError::UnknownEvent`].
    fn poll(&self, ticket: Ticket) -> Result<bool, BackendError> {
        self.wait_for(ticket, None)
    }

    /// Blocks until submitted work is done, or the time is over; says whether it is done. Backends that cannot tell wait for all
    /// of their work, however long it takes.
    ///
    /// # Errors
    /// As [`Self::poll`].
    fn wait_for(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool, BackendError> {
        let _ = timeout;
        let capabilities = self.capabilities();
        match ticket {
            Ticket::Done => Ok(true),
            // Whoever has no queue gives out no other number.
            Ticket::Pending(event) if event != 0 && !capabilities.asynchronous && !capabilities.events => {
                Err(BackendError::UnknownEvent { backend: self.name().into(), event })
            }
            Ticket::Pending(_) => self.synchronize().map(|()| true),
        }
    }

    /// Takes work back that has not begun: it touches no memory, and its ticket reports [`BackendError::Cancelled`] from then on.
    /// Work that has begun is waited for. Either way nothing of it is under way when this returns. Work submitted behind it in
    /// its queue still runs: whoever cancels a run cancels all of its tickets.
    ///
    /// # Errors
    /// Device lost, [`BackendError::UnknownEvent`]; not what the work itself failed with.
    fn cancel(&self, ticket: Ticket) -> Result<(), BackendError> {
        self.wait_for(ticket, None).map(drop)
    }

    /// Whether an event was reached. As [`Self::poll`].
    ///
    /// # Errors
    /// Device lost; [`BackendError::UnknownEvent`].
    fn query(&self, event: u64) -> Result<bool, BackendError> {
        self.poll(Ticket::Pending(event))
    }

    /// Time between two events of this backend that were reached; `None` where it is not measured, or one was not reached yet.
    ///
    /// # Errors
    /// Device lost; [`BackendError::UnknownEvent`].
    fn elapsed(&self, from: u64, to: u64) -> Result<Option<Duration>, BackendError> {
        let _ = (from, to);
        Ok(None)
    }

    /// Whether asynchronous copies run beside splits, in a queue of their own. Then nothing but events orders the two queues.
    fn has_copy_queue(&self) -> bool {
        false
    }

    /// [`Self::record`] on either queue.
    ///
    /// # Errors
    /// Device lost.
    fn record_on(&self, queue: QueueKind) -> Result<u64, BackendError> {
        let _ = queue;
        self.record()
    }

    /// [`Self::wait`] on either queue.
    ///
    /// # Errors
    /// As [`Self::wait`].
    fn wait_on(&self, queue: QueueKind, of: &dyn Backend, event: u64) -> Result<(), BackendError> {
        let _ = queue;
        self.wait(of, event)
    }

    /// Writes bytes in the copy queue (the compute queue without one). The bytes are taken before this returns; it does not wait
    /// for the device. Ordered by events only: the caller sees to it that nobody else uses that memory meanwhile.
    ///
    /// # Errors
    /// Foreign or read-only memory, out of bounds, device lost.
    fn write_async(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<Ticket, BackendError> {
        self.write(memory, offset_bytes, bytes).map(|()| Ticket::Done)
    }

    /// Reads bytes in the copy queue (the compute queue without one), without waiting for the device. The memory is kept alive
    /// until then. Ordered by events only.
    ///
    /// # Errors
    /// Foreign memory, out of bounds, device lost.
    fn read_async(&self, memory: &MemoryHandle, offset_bytes: u64, into: &Readback) -> Result<Ticket, BackendError> {
        into.with(|bytes| self.read(memory, offset_bytes, bytes)).map(|()| Ticket::Done)
    }

    /// Copies bytes from another backend's memory to this one's, in this one's copy queue (the compute queue without one).
    /// Ordered by events only, on both sides. Backends that know the other's memory need not wait and go no way round; by default
    /// it waits for both and makes one pass through host memory, none if both are on it. Both memories are kept alive.
    ///
    /// # Errors
    /// Foreign or read-only memory, out of bounds, out of memory, device lost on either side.
    fn copy_from(
        &self,
        to: &MemoryHandle,
        to_offset_bytes: u64,
        of: &dyn Backend,
        from: &MemoryHandle,
        from_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<Ticket, BackendError> {
        // What either queue was told to wait for, it has waited for then.
        if of.capabilities().asynchronous {
            of.synchronize()?;
        }
        if self.capabilities().asynchronous {
            self.synchronize()?;
        }
        if !queue::copy_on_host((to, to_offset_bytes), (from, from_offset_bytes), len_bytes)? {
            let staging = Readback::new(len_bytes)?;
            staging.with(|bytes| {
                of.read(from, from_offset_bytes, bytes)?;
                self.write(to, to_offset_bytes, bytes)
            })?;
        }
        Ok(Ticket::Done)
    }

    /// The backend itself, for others that want to know whether it is one of theirs: to wait for its events in their queues and
    /// to copy without the host. `None` for those that nobody has to know.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// The kinds of buffers that it makes, the default first. Cheap; never blocks, and opens nothing.
    fn buffer_types(&self) -> Vec<BufferTypeInfo> {
        vec![BufferTypeInfo::of(self.capabilities())]
    }

    /// Allocates a zeroed buffer of one of its types. May block.
    ///
    /// # Errors
    /// [`BackendError::UnknownBufferType`] lists what it makes; as [`Self::create_buffer`].
    fn create_buffer_of(&self, buffer_type: &str, size_bytes: u64, usage: Usage) -> Result<BufferKey, BackendError> {
        let types = self.buffer_types();
        if types.first().is_some_and(|default| *default.name == *buffer_type) {
            return self.create_buffer(size_bytes, usage);
        }
        Err(buffer::unknown_type(self.name(), buffer_type, &types))
    }

    /// Bytes that a tensor takes in a buffer of one of its types, padding included.
    fn allocation_bytes_of(&self, buffer_type: &BufferTypeInfo, desc: &TensorDesc) -> u64 {
        if buffer_type.name == self.capabilities().buffer_type {
            self.allocation_bytes(desc)
        } else {
            buffer_type.allocation_bytes(desc)
        }
    }

    /// Makes memory ready for a tensor: padding is zeroed, and a private layout begins. `allocated_bytes` are the tensor's, padding
    /// included; the caller sees to it that nobody else's bytes are among them. Before the tensor is written, and once; the engine
    /// calls it for every tensor that gets memory. Blocks as [`Self::write`].
    ///
    /// # Errors
    /// As [`Self::write`]; [`BackendError::LayoutConflict`].
    fn init_tensor(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        desc: &TensorDesc,
        allocated_bytes: u64,
    ) -> Result<(), BackendError> {
        let size_bytes = desc.size_bytes();
        match allocated_bytes.checked_sub(size_bytes) {
            None | Some(0) => Ok(()),
            Some(padding) => self.fill(memory, offset_bytes.saturating_add(size_bytes), padding, 0),
        }
    }

    /// Sets a range of bytes to one value; an empty range is checked like any other. Blocks as [`Self::write`], with which it shares who
    /// validates. By default it writes pieces from the host.
    ///
    /// # Errors
    /// Before anything is written: foreign or read-only memory, out of bounds. Device lost.
    fn fill(&self, memory: &MemoryHandle, offset_bytes: u64, len_bytes: u64, value: u8) -> Result<(), BackendError> {
        buffer::fill_in_pieces(&|at, bytes| self.write(memory, at, bytes), offset_bytes, len_bytes, value)
    }

    /// Forgets which tensors a buffer was made ready for: its memory is used anew. Its bytes stay. Nothing by default.
    ///
    /// # Errors
    /// A stale key.
    fn reset_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        self.memory(key).map(drop)
    }

    /// Writes rows at a distance of their own on either side: a part of each row of a tensor. Blocks as [`Self::write`]. By default row by
    /// row.
    ///
    /// # Errors
    /// Before anything is written: [`BackendError::BadRows`], [`BackendError::HostTooSmall`], and as [`Self::write`].
    fn write_rows(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        rows.check_write(bytes.len())?;
        buffer::room(&|at| self.write(memory, at, &[]), offset_bytes, rows.buffer_span_bytes()?)?;
        rows.pieces(offset_bytes).try_for_each(|(at, host)| self.write(memory, at, &bytes[host]))
    }

    /// Reads rows as [`Self::write_rows`] writes them; bytes between the caller's rows stay as they are.
    ///
    /// # Errors
    /// As [`Self::write_rows`].
    fn read_rows(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &mut [u8],
    ) -> Result<(), BackendError> {
        rows.check_read(bytes.len())?;
        buffer::room(&|at| self.read(memory, at, &mut []), offset_bytes, rows.buffer_span_bytes()?)?;
        rows.pieces(offset_bytes).try_for_each(|(at, host)| self.read(memory, at, &mut bytes[host]))
    }

    /// [`Self::write_rows`] in the copy queue, as [`Self::write_async`]: the ticket is that of the last row, and work of one queue
    /// runs in order. The bytes are taken before this returns.
    ///
    /// # Errors
    /// As [`Self::write_rows`].
    fn write_rows_async(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &[u8],
    ) -> Result<Ticket, BackendError> {
        rows.check_write(bytes.len())?;
        let span_bytes = rows.buffer_span_bytes()?;
        buffer::room(&|at| self.write_async(memory, at, &[]).map(drop), offset_bytes, span_bytes)?;
        let mut last = Ticket::Done;
        for (at, host) in rows.pieces(offset_bytes) {
            if let pending @ Ticket::Pending(_) = self.write_async(memory, at, &bytes[host])? {
                last = pending;
            }
        }
        Ok(last)
    }

    /// [`Self::read_rows`] in the copy queue, as [`Self::read_async`]. By default the whole span is read, holes included, and the rows are
    /// picked out of it when they are taken.
    ///
    /// # Errors
    /// As [`Self::read_rows`], and out of memory.
    fn read_rows_async(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
    ) -> Result<(Ticket, RowsReadback), BackendError> {
        let span = Readback::new(rows.buffer_span_bytes()?)?;
        let ticket = self.read_async(memory, offset_bytes, &span)?;
        Ok((ticket, RowsReadback::of_span(span, *rows)))
    }

    /// Whether an op can read an operand where it lies in opaque memory of this buffer type. Asked when a graph is planned, where
    /// [`Capabilities::can_use`] says yes, as purely and cheaply as [`Self::support`]. `is_whole` is false for views into a tensor of that
    /// memory. By default its own buffer type, and no other, is read by every op that it supports.
    fn reads_opaque(&self, op: &OpDesc<'_>, operand: usize, is_whole: bool, buffer_type: &str) -> Support {
        let _ = (op, operand, is_whole);
        if *self.capabilities().buffer_type == *buffer_type {
            Support::Yes
        } else {
            Support::no("a private layout that the op does not read")
        }
    }
}
