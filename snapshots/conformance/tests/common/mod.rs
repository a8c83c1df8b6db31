//! Backends to test, and backends that lie, in one way each.

#![allow(dead_code, reason = "each test uses its part")]

use std::sync::Arc;

use entensor_components::{
    Backend, BackendError, BufferKey, Capabilities, MemoryHandle, MemoryReport, OpDesc, OpKind, PreparedSplit,
    SplitDesc, SplitView, Support, TensorDesc, TensorRef, Ticket, Usage,
};
use entensor_conformance::{Case, Gap, run_cases};
use entensor_cpu::{CpuBackend, CpuConfig, Simd};
use entensor_oracle::OracleBackend;

pub(crate) fn cpu(threads: usize, simd: Simd) -> CpuBackend {
    CpuBackend::new(CpuConfig { threads: Some(threads), simd, ..CpuConfig::default() }).expect("the CPU is there")
}

pub(crate) fn backends() -> (OracleBackend, CpuBackend) {
    (OracleBackend::new("oracle"), cpu(1, Simd::Detect))
}

/// Runs cases on the CPU backend, on two threads.
pub(crate) fn assert_cpu_conforms(cases: &[Case]) {
    run_cases(cases, &[(&cpu(2, Simd::Detect), &[] as &[Gap])])[0].assert_passed();
}

/// A backend that computes like the oracle and then does something wrong.
pub(crate) struct Liar {
    pub(crate) inner: Arc<OracleBackend>,
    pub(crate) lie: Lie,
}

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Lie {
    None,
    /// One bit of every result is wrong.
    Result,
    /// One byte before the first tensor is written.
    Guard,
    /// Says no to one op.
    Refusal,
    /// Passes over bad ids.
    NoError,
    /// Computes nothing.
    Idle,
    /// Writes a byte between the rows of its result.
    Holes,
    /// Reads operands as if they were packed, so that it sees what lies between their rows.
    Padding,
}

struct LyingSplit {
    inner: Box<dyn PreparedSplit>,
    lie: Lie,
    outputs: Vec<TensorRef>,
}

impl PreparedSplit for LyingSplit {
    fn submit(&self, memory: &[MemoryHandle]) -> Result<Ticket, BackendError> {
        if self.lie == Lie::Idle {
            return Ok(Ticket::Done);
        }
        let result = self.inner.submit(memory);
        let host = memory[0].as_host().expect("host memory");
        let mut bytes = host.write()?;
        let mut spoil = |at: u64| bytes[usize::try_from(at).expect("small")] ^= 1;
        match self.lie {
            Lie::None | Lie::Refusal | Lie::Idle | Lie::Padding => {}
            Lie::Result => {
                for output in self.outputs.iter().filter(|output| !output.desc.shape.is_empty()) {
                    spoil(output.offset_bytes + output.desc.size_bytes() - 1);
                }
            }
            Lie::Guard => spoil(40),
            Lie::Holes => {
                for output in &self.outputs {
                    first_hole(&output.desc).into_iter().for_each(|hole| spoil(output.offset_bytes + hole));
                }
            }
            Lie::NoError => return result.or(Ok(Ticket::Done)),
        }
        result
    }
}

impl Backend for Liar {
    fn name(&self) -> &str {
        "liar"
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn support(&self, op: &OpDesc<'_>) -> Support {
        if self.lie == Lie::Refusal && op.op.kind() == OpKind::Scale {
            return Support::no("scale is hard");
        }
        self.inner.support(op)
    }

    fn create_buffer(&self, size_bytes: u64, usage: Usage) -> Result<BufferKey, BackendError> {
        self.inner.create_buffer(size_bytes, usage)
    }

    fn destroy_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        self.inner.destroy_buffer(key)
    }

    fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        self.inner.memory(key)
    }

    fn write(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        self.inner.write(memory, offset_bytes, bytes)
    }

    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.inner.read(memory, offset_bytes, bytes)
    }

    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        let nodes = (0..split.len()).map(|index| split.node(index)).collect();
        let mut split = SplitDesc { nodes, memory_slots: split.memory_slots() };
        if self.lie == Lie::Padding {
            for node in &mut split.nodes {
                let written = node.op.row().writes;
                let read = node.operands.iter_mut().enumerate().filter(|(index, _)| written != Some(*index));
                for (_, operand) in read {
                    operand.desc = TensorDesc::packed(operand.desc.dtype, operand.desc.shape).expect("it was valid");
                }
            }
        }
        let outputs = split.nodes.iter().map(|node| node.output).collect();
        Ok(Box::new(LyingSplit { inner: self.inner.prepare(&split)?, lie: self.lie, outputs }))
    }

    fn memory_report(&self) -> MemoryReport {
        self.inner.memory_report()
    }
}

/// The first byte of a tensor's first hole, if it has holes behind its rows.
pub(crate) fn first_hole(desc: &TensorDesc) -> Option<u64> {
    let row = desc.dtype.row_bytes(desc.shape.0[0])?;
    let elements = desc.dtype.row_bytes(desc.shape.elements()?)?;
    (!desc.shape.is_empty() && desc.is_row_packed() && desc.span_bytes()? > elements).then_some(row)
}
