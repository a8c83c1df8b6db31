//! The CPU backend against the oracle, what its suite reaches, and the suite against backends that lie.

mod common;

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
};

use common::{Liar, Lie, cpu, first_hole};
use entensor_components::{Backend, DType, OpKind, TensorDesc};
use entensor_conformance::{
    Case, Fill, Gap, Layout, SuiteReport, cases, coverage, map_cases, run_case, run_cases, run_cuts, run_suite_on,
};
use entensor_cpu::{CpuBackend, Simd};
use entensor_oracle::OracleBackend;

#[test]
fn cpu_conforms_at_every_level_and_thread_count() {
    // Where there is more than AVX2, `Detect` is more, and the level below still runs on other machines.
    let levels = [Simd::Portable, Simd::Avx2, Simd::Detect];
    let backends = levels.map(|simd| [(simd, 1), (simd, 2)]).concat();
    let backends: Vec<CpuBackend> = backends.into_iter().map(|(simd, threads)| cpu(threads, simd)).collect();
    let without_gaps: Vec<(&dyn Backend, &[Gap])> = backends.iter().map(|b| (b as &dyn Backend, &[][..])).collect();
    let reports = run_suite_on(&without_gaps);
    for (backend, report) in backends.iter().zip(&reports) {
        println!("cpu {} threads={}: {report}", backend.simd_level(), backend.threads());
    }
    for report in reports {
        report.assert_passed();
    }
}

/// Every op has a bench case that is cut between its rows, whatever the number of threads: who has no time is not helped.
#[test]
fn every_op_cut_at_every_row_of_its_grid_gives_the_same_bits() {
    let report = run_cuts(&cpu(2, Simd::Detect));
    println!("{report}");
    report.assert_passed();
    let whole: Vec<_> = report.pauses.iter().filter(|(_, pauses)| **pauses < 2).map(|(name, _)| *name).collect();
    assert!(whole.is_empty(), "never cut: {whole:?}");
}

#[test]
fn thread_counts_never_change_bits() {
    for simd in [Simd::Portable, Simd::Avx2, Simd::Detect] {
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
    // A failure is the case's line, which has no blank behind a colon, and what happened.
    let lines = |report: &SuiteReport| -> HashSet<String> {
        report.failures.iter().filter_map(|failure| Some(failure.split_once(": ")?.0.to_owned())).collect()
    };
    let (wrong_lines, idle_lines, no_error_lines) = (lines(wrong), lines(idle), lines(no_error));
    let caught = |lines: &HashSet<String>, case: &Case| lines.contains(&case.to_string());
    // The last byte of a result decides over its sign and exponent (of the last element, for all dtypes but integers and
    // blocks, which are compared exactly).
    let filled: Vec<&Case> = sample.iter().filter(|case| !case.output().shape.is_empty()).collect();
    let missed = filled.iter().filter(|case| !caught(&wrong_lines, case)).count();
    assert!(missed * 20 < filled.len(), "{missed} of {} wrong results went unnoticed: {wrong}", filled.len());
    for kind in &kinds {
        assert!(
            filled.iter().any(|case| case.op.kind() == *kind && caught(&wrong_lines, case)),
            "{kind}: nothing was noticed"
        );
        assert!(
            filled.iter().any(|case| case.op.kind() == *kind && caught(&idle_lines, case)),
            "{kind}: idleness went unnoticed"
        );
    }
    assert_eq!(guard.failures.len(), guard.cases, "{guard}");
    let strided = sample.iter().filter(|case| first_hole(&result_desc(case)).is_some()).count();
    assert!(strided > 10 && holes.failures.len() == strided, "{strided} results have holes: {holes}");
    let is_bad = |case: &&Case| matches!(case.fill, Fill::IdTooLarge | Fill::IdNegative);
    let bad_ids: Vec<&Case> = sample.iter().filter(is_bad).collect();
    assert!(bad_ids.len() > 5 && bad_ids.iter().all(|case| caught(&no_error_lines, case)), "{no_error}");

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
