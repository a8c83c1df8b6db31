//! The oracle: every op of the table as naive f64 loops on host memory, without SIMD, threads or unsafe code.
//!
//! It is what other backends are tested against, so it prefers the obvious to the fast: a node's operands are decoded
//! to f64 in linear order, the op is evaluated on plain vectors, and the result is rounded once to the output's dtype.
//! Functions such as `exp` come from the `libm` crate and never from the C library, which has several and takes what suits the processor.
//! Nothing is written before a node is evaluated whole, so operands and output may share memory in any way.
//!
//! ```
//! use entensor_components::{Backend, Usage};
//! use entensor_oracle::OracleBackend;
//!
//! let oracle = OracleBackend::new("oracle");
//! let buffer = oracle.create_buffer(64, Usage::Any)?;
//! assert_eq!(oracle.memory_report().ours_bytes, 64);
//! oracle.destroy_buffer(buffer)?;
//! # Ok::<(), entensor_components::BackendError>(())
//! ```
#![forbid(unsafe_code)]

mod access;
mod eval;

use std::sync::Arc;

use entensor_components::{
    Backend, BackendError, BufferKey, ByteRows, Capabilities, Cursor, HostBuffers, HostLocks, ImportedBytes,
    MemoryHandle, MemoryReport, NodeDesc, OpDesc, PreparedSplit, Progress, RunLimit, Sameness, SlotUse, SplitView,
    Support, TensorDesc, TensorRef, Ticket, Usage, host_io,
};

/// The reference backend. Supports every op, dtype and layout that the op table's rules allow.
pub struct OracleBackend {
    name: String,
    capabilities: Capabilities,
    buffers: HostBuffers,
}

impl OracleBackend {
    /// An oracle on host memory that imports host memory in place.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self::with_capabilities(name, Capabilities { imports_host: true, ..Capabilities::host() })
    }

    /// An oracle that claims to be another kind of device: tests of the planner compute real numbers on any machine.
    #[must_use]
    pub fn with_capabilities(name: impl Into<String>, capabilities: Capabilities) -> Self {
        Self { name: name.into(), capabilities, buffers: HostBuffers::default() }
    }
}

impl Backend for OracleBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn support(&self, op: &OpDesc<'_>) -> Support {
        match check(op) {
            Ok(()) => Support::Yes,
            Err(reason) => Support::no(reason),
        }
    }

    /// f64 loops in one order, with functions that are the same code on every machine.
    fn sameness(&self) -> Sameness {
        Sameness::Strict
    }

    fn create_buffer(&self, size_bytes: u64, _usage: Usage) -> Result<BufferKey, BackendError> {
        let max_bytes = self.capabilities.max_buffer_bytes;
        if size_bytes > max_bytes {
            return Err(BackendError::BufferTooLarge { size_bytes, max_bytes });
        }
        self.buffers.create(size_bytes)
    }

    fn import_host(&self, bytes: Arc<dyn ImportedBytes>) -> Result<BufferKey, BackendError> {
        if self.capabilities.imports_host {
            self.buffers.import(bytes, self.capabilities.import_align_bytes)
        } else {
            Err(BackendError::Unsupported { ability: "use host memory in place" })
        }
    }

    fn destroy_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        self.buffers.destroy(key)
    }

    fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        self.buffers.memory(key)
    }

    fn write(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        host_io::write(memory, offset_bytes, bytes)
    }

    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        host_io::read(memory, offset_bytes, bytes)
    }

    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        let mut slots = Vec::new();
        let nodes: Vec<NodeDesc> = (0..split.len()).map(|index| split.node(index)).collect();
        for node in &nodes {
            let refused =
                |reason| BackendError::UnsupportedNode { node: Arc::clone(&node.name), op: node.op.row().name, reason };
            let operands: Vec<TensorDesc> = node.operands.iter().map(|o| o.desc).collect();
            check(&OpDesc { op: &node.op, output: node.output.desc, operands: &operands }).map_err(refused)?;
            if let Some(written) = node.op.row().writes
                && node.operands[written] != node.output
            {
                return Err(refused("the result of a writer must be its target".into()));
            }
            let mut uses = vec![(&node.output, true)];
            uses.extend(node.operands.iter().map(|operand| (operand, false)));
            for (tensor, written) in uses {
                let needed_bytes = access::end(tensor).ok_or_else(|| refused("a tensor's end overflows".into()))?;
                SlotUse::note(&mut slots, tensor.memory, written, needed_bytes);
            }
        }
        Ok(Box::new(OracleSplit { nodes, slots }))
    }

    fn memory_report(&self) -> MemoryReport {
        self.buffers.report()
    }

    fn fill(&self, memory: &MemoryHandle, offset_bytes: u64, len_bytes: u64, value: u8) -> Result<(), BackendError> {
        host_io::fill(memory, offset_bytes, len_bytes, value)
    }

    fn write_rows(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        host_io::write_rows(memory, offset_bytes, rows, bytes)
    }

    fn read_rows(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &mut [u8],
    ) -> Result<(), BackendError> {
        host_io::read_rows(memory, offset_bytes, rows, bytes)
    }
}

/// The op table's rules, and nothing else.
fn check(op: &OpDesc<'_>) -> Result<(), String> {
    if !op.op.row().computes() {
        return Err("leaves and view ops launch nothing".into());
    }
    let result = op.op.result(op.operands).map_err(|error| error.to_string())?;
    if (result.desc.dtype, result.desc.shape) != (op.output.dtype, op.output.shape) {
        return Err(format!("the result is {}, not {}", result.desc, op.output));
    }
    Ok(())
}

/// A split of checked nodes.
struct OracleSplit {
    nodes: Vec<NodeDesc>,
    slots: Vec<SlotUse>,
}

impl PreparedSplit for OracleSplit {
    fn submit(&self, memory: &[MemoryHandle]) -> Result<Ticket, BackendError> {
        match self.run_from(memory, Cursor::START, &RunLimit::NONE)? {
            Progress::Done(ticket) => Ok(ticket),
            Progress::Paused(_) => unreachable!("nothing pauses a run without a limit"),
        }
    }

    /// By whole nodes, which are the steps.
    fn run_from(&self, memory: &[MemoryHandle], from: Cursor, limit: &RunLimit<'_>) -> Result<Progress, BackendError> {
        let start = from.step as usize;
        if from.row > 0 || !from.is_start() && start >= self.nodes.len() {
            return Err(BackendError::BadCursor { step: from.step, row: from.row });
        }
        let mut locks = HostLocks::take(&self.slots, memory)?;
        for (index, node) in self.nodes.iter().enumerate().skip(start) {
            if limit.is_cancelled() {
                return Err(BackendError::Cancelled);
            }
            if index > start
                && limit.is_over()
                && let Ok(step) = u32::try_from(index)
            {
                return Ok(Progress::Paused(Cursor { step, row: 0 }));
            }
            let operands: Vec<access::Operand<'_>> = node.operands.iter().map(|o| operand(&locks, o)).collect();
            let result = eval::node(node, &operands)?;
            let target = locks.bytes_mut(node.output.memory);
            access::store(&result, &node.output.desc, target, access::start(&node.output));
        }
        Ok(Progress::Done(Ticket::Done))
    }
}

fn operand<'a>(locks: &'a HostLocks<'_>, tensor: &TensorRef) -> access::Operand<'a> {
    access::Operand { desc: tensor.desc, bytes: locks.bytes(tensor.memory), start: access::start(tensor) }
}
