//! Products of weights in the cpu backend's private layout against the oracle, on every case of the suite that has such weights.

mod common;

use std::sync::Arc;

use common::cpu;
use entensor_components::{
    Backend, BackendError, BufferKey, Capabilities, Cursor, DType, MemoryHandle, MemoryReport, OpDesc, OpKind,
    PreparedSplit, Progress, RunLimit, SplitView, Support, TensorDesc, Ticket, Usage,
};
use entensor_conformance::{Case, Gap, cases, run_cases};
use entensor_cpu::{CpuBackend, REPACKED, Simd};

/// The cpu backend with all memory of the private type: weights are made ready where a split has them.
struct Repacked(Arc<CpuBackend>);

struct RepackedSplit {
    cpu: Arc<CpuBackend>,
    inner: Box<dyn PreparedSplit>,
    weights: Vec<(u64, TensorDesc)>,
}

impl RepackedSplit {
    fn convert(&self, memory: &[MemoryHandle]) -> Result<(), BackendError> {
        let each =
            |(offset, desc): &(u64, TensorDesc)| self.cpu.init_tensor(&memory[0], *offset, desc, desc.size_bytes());
        self.weights.iter().try_for_each(each)
    }
}

impl PreparedSplit for RepackedSplit {
    fn submit(&self, memory: &[MemoryHandle]) -> Result<Ticket, BackendError> {
        self.convert(memory)?;
        self.inner.submit(memory)
    }

    fn run_from(&self, memory: &[MemoryHandle], from: Cursor, limit: &RunLimit<'_>) -> Result<Progress, BackendError> {
        self.convert(memory)?;
        self.inner.run_from(memory, from, limit)
    }
}

impl Backend for Repacked {
    fn name(&self) -> &str {
        "repacked"
    }

    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    fn support(&self, op: &OpDesc<'_>) -> Support {
        self.0.support(op)
    }

    fn create_buffer(&self, size_bytes: u64, usage: Usage) -> Result<BufferKey, BackendError> {
        self.0.create_buffer_of(REPACKED, size_bytes, usage)
    }

    fn destroy_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        self.0.destroy_buffer(key)
    }

    fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        self.0.memory(key)
    }

    fn write(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        self.0.write(memory, offset_bytes, bytes)
    }

    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.0.read(memory, offset_bytes, bytes)
    }

    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        let weights = (0..split.len()).map(|index| split.node(index).operands[0]);
        let weights = weights.map(|tensor| (tensor.offset_bytes, tensor.desc)).collect();
        Ok(Box::new(RepackedSplit { cpu: Arc::clone(&self.0), inner: self.0.prepare(split)?, weights }))
    }

    fn memory_report(&self) -> MemoryReport {
        self.0.memory_report()
    }
}

/// Whether a case multiplies with weights that have a private layout.
fn has_such_weights(case: &Case) -> bool {
    let Some(weights) = case.operands.first().map(|operand| operand.desc) else { return false };
    matches!(case.op.kind(), OpKind::MulMat | OpKind::MulMatId)
        && matches!(weights.dtype, DType::Q4_0 | DType::Q4_1 | DType::Q8_0)
        && weights.is_packed()
}

#[test]
fn repacked_weights_conform() {
    let mut cases = cases();
    cases.retain(has_such_weights);
    let tall = cases.iter().filter(|case| case.operands[0].desc.shape.0[1] >= 8).count();
    assert!(tall >= 6, "{tall} of {} cases have rows side by side", cases.len());
    for (simd, threads) in [(Simd::Portable, 1), (Simd::Detect, 2)] {
        let backend = Repacked(Arc::new(cpu(threads, simd)));
        let report = run_cases(&cases, &[(&backend, &[] as &[Gap])]).pop().expect("one backend");
        println!("{simd:?}: {report}, {tall} with rows side by side");
        report.assert_passed();
    }
}
