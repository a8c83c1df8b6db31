//! The CPU backend against the oracle, and the suite against backends that lie.

use std::sync::Arc;

use entensor_components::{
    Backend, BackendError, BufferKey, Capabilities, DType, MemoryHandle, MemoryReport, OpDesc, OpKind, PreparedSplit,
    SplitDesc, Support, Ticket, Usage,
};
use entensor_conformance::{Gap, Layout, cases, run_case, run_suite};
use entensor_cpu::{CpuBackend, CpuConfig, Simd};
use entensor_oracle::OracleBackend;

fn cpu(threads: usize, simd: Simd) -> CpuBackend {
    CpuBackend::new(CpuConfig { threads: Some(threads), simd, ..CpuConfig::default() }).expect("the CPU is there")
}

#[test]
fn cpu_conforms_at_every_level_and_thread_count() {
    for simd in [Simd::Portable, Simd::Detect] {
        for threads in [1, 2] {
            let backend = cpu(threads, simd);
            let report = run_suite(&backend, &[]);
            println!("cpu {} threads={threads}: {report}", backend.simd_level());
            report.assert_passed();
        }
    }
}

#[test]
fn thread_counts_never_change_bits() {
    for simd in [Simd::Portable, Simd::Detect] {
        let (alone, together) = (cpu(1, simd), cpu(4, simd));
        for case in cases() {
            let (a, b) = (run_case(&alone, &case), run_case(&together, &case));
            assert_eq!(a, b, "{case}");
        }
    }
}

/// A backend that computes like the oracle and then does something wrong.
struct Liar {
    inner: Arc<OracleBackend>,
    lie: Lie,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    None,
    /// One bit of every result is wrong.
    Result,
    /// One byte before the first tensor is written.
    Guard,
    /// Says no to one op.
    Refusal,
    /// Passes over bad ids.
    NoError,
}

struct LyingSplit(Box<dyn PreparedSplit>, Lie, Vec<(u64, u64)>);

impl PreparedSplit for LyingSplit {
    fn submit(&self, memory: &[MemoryHandle]) -> Result<Ticket, BackendError> {
        let result = self.0.submit(memory);
        let host = memory[0].as_host().expect("host memory");
        let mut bytes = host.write()?;
        match self.1 {
            Lie::None | Lie::Refusal => {}
            Lie::Result => {
                for &(offset, len) in self.2.iter().filter(|(_, len)| *len > 0) {
                    bytes[usize::try_from(offset + len - 1).expect("small")] ^= 1;
                }
            }
            Lie::Guard => bytes[40] = 0,
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

    fn prepare(&self, split: SplitDesc) -> Result<Box<dyn PreparedSplit>, BackendError> {
        let outputs =
            split.nodes.iter().map(|node| (node.output.offset_bytes, node.output.desc.size_bytes())).collect();
        Ok(Box::new(LyingSplit(self.inner.prepare(split)?, self.lie, outputs)))
    }

    fn memory_report(&self) -> MemoryReport {
        self.inner.memory_report()
    }
}

#[test]
fn the_suite_bites() {
    let inner = Arc::new(OracleBackend::new("inner"));
    let run = |lie, gaps: &[Gap]| run_suite(&Liar { inner: Arc::clone(&inner), lie }, gaps);
    let honest = run(Lie::None, &[]);
    honest.assert_passed();
    // The last byte of a result decides over its sign and exponent (of the last element, for all dtypes but i32 and
    // blocks, which are compared exactly).
    let wrong = run(Lie::Result, &[]);
    let empty = cases().iter().filter(|case| case.output().shape.is_empty()).count();
    assert!(wrong.failures.len() * 10 > (honest.cases - empty) * 9, "{wrong}");
    let guards = run(Lie::Guard, &[]);
    assert_eq!(guards.failures.len(), guards.cases, "{guards}");
    assert!(!run(Lie::NoError, &[]).failures.is_empty());

    let gap = Gap { op: OpKind::Scale, dtype: None, layout: None };
    assert!(!run(Lie::Refusal, &[]).failures.is_empty(), "an undeclared refusal");
    let declared = run(Lie::Refusal, &[gap]);
    declared.assert_passed();
    assert!(declared.refused > 0);
    assert!(!run(Lie::None, &[gap]).failures.is_empty(), "a gap that is supported");
    let narrow = Gap { op: OpKind::Scale, dtype: Some(DType::F16), layout: Some(Layout::Sliced) };
    assert!(!run(Lie::Refusal, &[narrow]).failures.is_empty(), "a refusal beyond the gap");
}
