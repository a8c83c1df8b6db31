//! The CPU backend against the oracle, what its suite reaches, and the suite against backends that lie.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
};

use entensor_components::{
    Backend, BackendError, BufferKey, Capabilities, DType, MemoryHandle, MemoryReport, OpDesc, OpKind, PreparedSplit,
    SplitDesc, Support, TensorDesc, TensorRef, Ticket, Usage,
};
use entensor_conformance::{
    Case, Fill, Gap, Layout, SuiteReport, cases, coverage, map_cases, run_case, run_cases, run_suite_on,
};
use entensor_cpu::{CpuBackend, CpuConfig, Simd};
use entensor_oracle::OracleBackend;

fn cpu(threads: usize, simd: Simd) -> CpuBackend {
    CpuBackend::new(CpuConfig { threads: Some(threads), simd, ..CpuConfig::default() }).expect("the CPU is there")
}

#[test]
fn cpu_conforms_at_every_level_and_thread_count() {
    let backends = [(Simd::Portable, 1), (Simd::Portable, 2), (Simd::Detect, 1), (Simd::Detect, 2)];
    let backends = backends.map(|(simd, threads)| cpu(threads, simd));
    let without_gaps: Vec<(&dyn Backend, &[Gap])> = backends.iter().map(|b| (b as &dyn Backend, &[][..])).collect();
    let reports = run_suite_on(&without_gaps);
    for (backend, report) in backends.iter().zip(&reports) {
        println!("cpu {} threads={}: {report}", backend.simd_level(), backend.threads());
    }
    for report in reports {
        report.assert_passed();
    }
}

#[test]
fn thread_counts_never_change_bits() {
    for simd in [Simd::Portable, Simd::Detect] {
        let (alone, together) = (cpu(1, simd), cpu(4, simd));
        map_cases(&cases(), |case| assert_eq!(run_case(&alone, case), run_case(&together, case), "{case}"));
    }
}

#[test]
fn what_runs_where_is_as_the_golden_says() {
    let oracle = OracleBackend::new("oracle");
    let text = coverage(&[&oracle, &cpu(1, Simd::Detect)]).to_string();
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("golden"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("coverage", text));
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
    /// Computes nothing.
    Idle,
    /// Writes a byte between the rows of its result.
    Holes,
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
            Lie::None | Lie::Refusal | Lie::Idle => {}
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

    fn prepare(&self, split: SplitDesc) -> Result<Box<dyn PreparedSplit>, BackendError> {
        let outputs = split.nodes.iter().map(|node| node.output).collect();
        Ok(Box::new(LyingSplit { inner: self.inner.prepare(split)?, lie: self.lie, outputs }))
    }

    fn memory_report(&self) -> MemoryReport {
        self.inner.memory_report()
    }
}

/// Cases of every op, result dtype, fill and in-place form, a few of each: enough for a lie to meet everything once.
fn sample() -> Vec<Case> {
    let mut taken: HashMap<_, usize> = HashMap::new();
    let mut sample = cases();
    sample.retain(|case| {
        let kind = (case.op.kind(), case.output().dtype, case.operands.len(), case.fill as u32, case.in_place);
        let count = taken.entry(kind).or_default();
        *count += 1;
        *count <= 12
    });
    sample
}

#[test]
fn the_suite_bites() {
    let inner = Arc::new(OracleBackend::new("inner"));
    let sample = sample();
    let kinds: HashSet<OpKind> = sample.iter().map(|case| case.op.kind()).collect();
    let run = |lies: &[(Lie, &[Gap])]| -> Vec<SuiteReport> {
        let liars: Vec<Liar> = lies.iter().map(|(lie, _)| Liar { inner: Arc::clone(&inner), lie: *lie }).collect();
        let backends: Vec<_> = liars.iter().zip(lies).map(|(liar, (_, gaps))| (liar as &dyn Backend, *gaps)).collect();
        run_cases(&sample, &backends)
    };
    let gap = [Gap { op: OpKind::Scale, dtype: None, layout: None }];
    let narrow = [Gap { op: OpKind::Scale, dtype: Some(DType::F16), layout: Some(Layout::Sliced) }];
    let reports = run(&[
        (Lie::None, &[]),
        (Lie::Result, &[]),
        (Lie::Guard, &[]),
        (Lie::Idle, &[]),
        (Lie::Holes, &[]),
        (Lie::NoError, &[]),
        (Lie::Refusal, &[]),
        (Lie::Refusal, &gap),
        (Lie::None, &gap),
        (Lie::Refusal, &narrow),
    ]);
    let [honest, wrong, guard, idle, holes, no_error, refusal, declared, passing, beyond] = &reports[..] else {
        panic!("a report for each liar")
    };
    honest.assert_passed();
    let caught = |report: &SuiteReport, case: &Case| {
        let line = format!("{case}: ");
        report.failures.iter().any(|failure| failure.starts_with(&line))
    };
    // The last byte of a result decides over its sign and exponent (of the last element, for all dtypes but integers and
    // blocks, which are compared exactly).
    let filled: Vec<&Case> = sample.iter().filter(|case| !case.output().shape.is_empty()).collect();
    let missed = filled.iter().filter(|case| !caught(wrong, case)).count();
    assert!(missed * 20 < filled.len(), "{missed} of {} wrong results went unnoticed: {wrong}", filled.len());
    for kind in &kinds {
        assert!(
            filled.iter().any(|case| case.op.kind() == *kind && caught(wrong, case)),
            "{kind}: nothing was noticed"
        );
        assert!(
            filled.iter().any(|case| case.op.kind() == *kind && caught(idle, case)),
            "{kind}: idleness went unnoticed"
        );
    }
    assert_eq!(guard.failures.len(), guard.cases, "{guard}");
    let strided = sample.iter().filter(|case| first_hole(&result_desc(case)).is_some()).count();
    assert!(strided > 10 && holes.failures.len() == strided, "{strided} results have holes: {holes}");
    let is_bad = |case: &&Case| matches!(case.fill, Fill::IdTooLarge | Fill::IdNegative);
    let bad_ids: Vec<&Case> = sample.iter().filter(is_bad).collect();
    assert!(bad_ids.len() > 5 && bad_ids.iter().all(|case| caught(no_error, case)), "{no_error}");

    assert!(!refusal.failures.is_empty(), "an undeclared refusal");
    declared.assert_passed();
    assert!(declared.refused > 0);
    assert!(!passing.failures.is_empty(), "a gap that is supported");
    assert!(!beyond.failures.is_empty(), "a refusal beyond the gap");
}

/// Where the result of a case lies: in a target that is written, or in packed memory of its own.
fn result_desc(case: &Case) -> TensorDesc {
    case.op.row().writes.map_or_else(|| case.output(), |written| case.operands[written].desc)
}

/// The first byte of a tensor's first hole, if it has holes behind its rows.
fn first_hole(desc: &TensorDesc) -> Option<u64> {
    let row = desc.dtype.row_bytes(desc.shape.0[0])?;
    let elements = desc.dtype.row_bytes(desc.shape.elements()?)?;
    (!desc.shape.is_empty() && desc.is_row_packed() && desc.span_bytes()? > elements).then_some(row)
}
