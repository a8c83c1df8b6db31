//! A backend as its caller wants it: which of its buffer types planned memory has, and which work it takes from the host.

use std::{any::Any, sync::Arc, time::Duration};

use super::{
    Backend, BackendError, BufferTypeInfo, Capabilities, MemoryReport, PreparedSplit, QueueKind, Readback, Sameness,
    SplitView, Support, Ticket, buffer::find_type,
};
use crate::{
    memory::{BufferKey, ByteRows, ImportedBytes, MemoryHandle, RowsReadback, Usage},
    op::{OpDesc, OpKind},
    shape::TensorDesc,
};

/// From which batch on ops whose weights lie in host memory are worth an upload: one threshold, and others for single ops.
///
/// ```
/// use entensor_components::{OffloadPolicy, OpKind};
///
/// let policy = OffloadPolicy::from_batch(32).with_op(OpKind::MulMatId, Some(8)).with_op(OpKind::Rope, None);
/// assert_eq!(policy.batch_of(OpKind::MulMat), Some(32));
/// assert_eq!(policy.batch_of(OpKind::MulMatId), Some(8));
/// assert_eq!(policy.batch_of(OpKind::Rope), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadPolicy {
    batch: Option<u64>,
    ops: Vec<(OpKind, Option<u64>)>,
}

impl OffloadPolicy {
    /// No work is taken from the host.
    #[must_use]
    pub fn never() -> Self {
        Self::default()
    }

    /// Every op is, from this batch on ([`OpDesc::batch`]).
    #[must_use]
    pub fn from_batch(batch: u64) -> Self {
        Self { batch: Some(batch), ops: Vec::new() }
    }

    /// Another threshold for one op; `None` for never.
    #[must_use]
    pub fn with_op(mut self, op: OpKind, batch: Option<u64>) -> Self {
        self.ops.retain(|(other, _)| *other != op);
        self.ops.push((op, batch));
        self
    }

    /// The threshold of an op; `None` for never.
    #[must_use]
    pub fn batch_of(&self, op: OpKind) -> Option<u64> {
        self.ops.iter().find(|(other, _)| *other == op).map_or(self.batch, |(_, batch)| *batch)
    }
}

/// What a caller may choose of a backend; what is `None` stays as the backend has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendConfig {
    /// Which of its [`Backend::buffer_types`] planned memory has, and every buffer for which no other type is asked.
    pub buffer_type: Option<Arc<str>>,
    /// Which work it takes from the host.
    pub offload: Option<OffloadPolicy>,
}

/// A backend with a [`BackendConfig`]. Alignment, padding and the largest buffer are those of the chosen type, and backends with one
/// type share arenas.
pub struct Configured {
    backend: Arc<dyn Backend>,
    capabilities: Capabilities,
    info: BufferTypeInfo,
    offload: Option<OffloadPolicy>,
}

impl Configured {
    /// The backend as the caller wants it.
    ///
    /// # Errors
    /// [`BackendError::UnknownBufferType`] lists what there is. [`BackendError::UnsuitedBufferType`] for private layouts, which hold no
    /// results, and for memory that the backend does not compute on.
    pub fn new(backend: Arc<dyn Backend>, config: &BackendConfig) -> Result<Self, BackendError> {
        let own = backend.capabilities();
        let info = find_type(&*backend, config.buffer_type.as_deref().unwrap_or(&own.buffer_type))?;
        let reason = match () {
            () if info.opaque && info.name != own.buffer_type => {
                Some("its layout is private, and results need an ordinary one")
            }
            () if !own.reads.contains(&info.memory) => Some("the backend does not compute on that memory"),
            // Copies to and from devices end on the host.
            () if own.memory.is_host() && !info.memory.is_host() => Some("other backends expect this one on the host"),
            () => None,
        };
        if let Some(reason) = reason {
            let (backend, buffer_type) = (backend.name().into(), Arc::clone(&info.name));
            return Err(BackendError::UnsuitedBufferType { backend, buffer_type, reason });
        }
        let capabilities = Capabilities {
            memory: info.memory.clone(),
            buffer_type: Arc::clone(&info.name),
            max_buffer_bytes: info.max_buffer_bytes,
            align_bytes: info.align_bytes,
            pad_bytes: info.pad_bytes,
            offload_batch: config.offload.as_ref().map_or(own.offload_batch, |policy| policy.batch),
            ..own.clone()
        };
        Ok(Self { backend, capabilities, info, offload: config.offload.clone() })
    }
}

impl Backend for Configured {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocation_bytes(&self, desc: &TensorDesc) -> u64 {
        self.backend.allocation_bytes_of(&self.info, desc)
    }

    fn create_buffer(&self, size_bytes: u64, usage: Usage) -> Result<BufferKey, BackendError> {
        self.backend.create_buffer_of(&self.info.name, size_bytes, usage)
    }

    fn buffer_types(&self) -> Vec<BufferTypeInfo> {
        let others = self.backend.buffer_types().into_iter().filter(|other| other.name != self.info.name);
        std::iter::once(self.info.clone()).chain(others).collect()
    }

    fn reads_opaque(&self, op: &OpDesc<'_>, operand: usize, is_whole: bool, buffer_type: &str) -> Support {
        self.backend.reads_opaque(op, operand, is_whole, buffer_type)
    }

    fn offload_batch(&self, op: OpKind) -> Option<u64> {
        self.offload.as_ref().map_or_else(|| self.backend.offload_batch(op), |policy| policy.batch_of(op))
    }

    fn wants_offload(&self, op: &OpDesc<'_>) -> bool {
        match &self.offload {
            Some(policy) => policy.batch_of(op.op.kind()).is_some_and(|threshold| op.batch() >= threshold),
            None => self.backend.wants_offload(op),
        }
    }

    // Everything below is the backend's own.

    fn name(&self) -> &str {
        self.backend.name()
    }

    fn support(&self, op: &OpDesc<'_>) -> Support {
        self.backend.support(op)
    }

    fn sameness(&self) -> Sameness {
        self.backend.sameness()
    }

    fn import_host(&self, bytes: Arc<dyn ImportedBytes>) -> Result<BufferKey, BackendError> {
        self.backend.import_host(bytes)
    }

    fn destroy_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        self.backend.destroy_buffer(key)
    }

    fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        self.backend.memory(key)
    }

    fn write(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        self.backend.write(memory, offset_bytes, bytes)
    }

    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.backend.read(memory, offset_bytes, bytes)
    }

    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        self.backend.prepare(split)
    }

    fn record(&self) -> Result<u64, BackendError> {
        self.backend.record()
    }

    fn wait(&self, of: &dyn Backend, event: u64) -> Result<(), BackendError> {
        self.backend.wait(of, event)
    }

    fn synchronize(&self) -> Result<(), BackendError> {
        self.backend.synchronize()
    }

    fn memory_report(&self) -> MemoryReport {
        self.backend.memory_report()
    }

    fn poll(&self, ticket: Ticket) -> Result<bool, BackendError> {
        self.backend.poll(ticket)
    }

    fn wait_for(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool, BackendError> {
        self.backend.wait_for(ticket, timeout)
    }

    fn cancel(&self, ticket: Ticket) -> Result<(), BackendError> {
        self.backend.cancel(ticket)
    }

    fn query(&self, event: u64) -> Result<bool, BackendError> {
        self.backend.query(event)
    }

    fn elapsed(&self, from: u64, to: u64) -> Result<Option<Duration>, BackendError> {
        self.backend.elapsed(from, to)
    }

    fn has_copy_queue(&self) -> bool {
        self.backend.has_copy_queue()
    }

    fn record_on(&self, queue: QueueKind) -> Result<u64, BackendError> {
        self.backend.record_on(queue)
    }

    fn wait_on(&self, queue: QueueKind, of: &dyn Backend, event: u64) -> Result<(), BackendError> {
        self.backend.wait_on(queue, of, event)
    }

    fn write_async(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<Ticket, BackendError> {
        self.backend.write_async(memory, offset_bytes, bytes)
    }

    fn read_async(&self, memory: &MemoryHandle, offset_bytes: u64, into: &Readback) -> Result<Ticket, BackendError> {
        self.backend.read_async(memory, offset_bytes, into)
    }

    fn copy_from(
        &self,
        to: &MemoryHandle,
        to_offset_bytes: u64,
        of: &dyn Backend,
        from: &MemoryHandle,
        from_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<Ticket, BackendError> {
        self.backend.copy_from(to, to_offset_bytes, of, from, from_offset_bytes, len_bytes)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.backend.as_any()
    }

    fn create_buffer_of(&self, buffer_type: &str, size_bytes: u64, usage: Usage) -> Result<BufferKey, BackendError> {
        self.backend.create_buffer_of(buffer_type, size_bytes, usage)
    }

    fn allocation_bytes_of(&self, buffer_type: &BufferTypeInfo, desc: &TensorDesc) -> u64 {
        self.backend.allocation_bytes_of(buffer_type, desc)
    }

    fn init_tensor(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        desc: &TensorDesc,
        allocated_bytes: u64,
    ) -> Result<(), BackendError> {
        self.backend.init_tensor(memory, offset_bytes, desc, allocated_bytes)
    }

    fn fill(&self, memory: &MemoryHandle, offset_bytes: u64, len_bytes: u64, value: u8) -> Result<(), BackendError> {
        self.backend.fill(memory, offset_bytes, len_bytes, value)
    }

    fn reset_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        self.backend.reset_buffer(key)
    }

    fn write_rows(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        self.backend.write_rows(memory, offset_bytes, rows, bytes)
    }

    fn read_rows(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &mut [u8],
    ) -> Result<(), BackendError> {
        self.backend.read_rows(memory, offset_bytes, rows, bytes)
    }

    fn write_rows_async(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &[u8],
    ) -> Result<Ticket, BackendError> {
        self.backend.write_rows_async(memory, offset_bytes, rows, bytes)
    }

    fn read_rows_async(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
    ) -> Result<(Ticket, RowsReadback), BackendError> {
        self.backend.read_rows_async(memory, offset_bytes, rows)
    }
}

#[cfg(test)]
mod tests {
    /// A default that stood in for a backend's own method would be a wrong answer without an error.
    #[test]
    fn every_method_is_handed_on() {
        let (seam, own) = (include_str!("mod.rs"), include_str!("configured.rs"));
        let seam =
            seam.split_once("pub trait Backend").and_then(|(_, rest)| rest.split_once("\n}")).expect("the trait").0;
        let own = own.split_once("impl Backend for").expect("the implementation").1;
        let names: Vec<&str> = (seam.lines())
            .filter_map(|line| line.strip_prefix("    fn ")?.split_once('(').map(|(name, _)| name))
            .collect();
        assert!(names.len() >= 36, "{names:?}");
        for name in names {
            assert!(own.contains(&format!("    fn {name}(")), "`{name}` is not handed on");
        }
    }
}
