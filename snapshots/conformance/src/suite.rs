//! Running cases on backends and judging what they did.

use std::{
    cell::OnceCell,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicUsize, Ordering},
};

use entensor_components::{Backend, BackendError, DType, OpDesc, OpKind, Support};
use entensor_oracle::OracleBackend;

use crate::{
    Case, Layout, Selection, compare, coverage, cuts,
    image::{Image, Outcome},
};

/// Something that a backend does not run, and says so.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// The op.
    pub op: OpKind,
    /// The dtype of some operand; any, if none is named.
    pub dtype: Option<DType>,
    /// The layout of some operand; any, if none is named.
    pub layout: Option<Layout>,
}

impl Gap {
    /// Whether a case falls into the gap.
    #[must_use]
    pub fn covers(&self, case: &Case) -> bool {
        self.op == case.op.kind()
            && self.dtype.is_none_or(|dtype| case.operands.iter().any(|o| o.desc.dtype == dtype))
            && self.layout.is_none_or(|layout| case.operands.iter().any(|o| o.layout == layout))
    }
}

/// What a run of the suite found.
#[derive(Debug, Default)]
pub struct SuiteReport {
    /// Cases that were looked at.
    pub cases: usize,
    /// Cases that the backend ran like the oracle.
    pub passed: usize,
    /// Cases in declared gaps that the backend refused.
    pub refused: usize,
    /// What went wrong: the case's line, and how.
    pub failures: Vec<String>,
}

impl SuiteReport {
    /// # Panics
    /// Panics with the first failures if there are any.
    #[track_caller]
    pub fn assert_passed(&self) {
        let shown = self.failures.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
        assert!(self.failures.is_empty(), "{self}\n{shown}");
    }
}

impl fmt::Display for SuiteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cases, passed, refused, failures } = self;
        write!(f, "{cases} cases: {passed} passed, {refused} in declared gaps, {} failures", failures.len())
    }
}

/// Whether the backend takes the case.
pub(super) fn support(backend: &dyn Backend, case: &Case) -> Support {
    backend.support(&OpDesc { op: &case.op, output: case.output(), operands: &case.descs() })
}

/// Runs every case that `CONFORMANCE_CASE` asks for (all, without it) on a backend that uses host memory.
#[must_use]
pub fn run_suite(backend: &dyn Backend, gaps: &[Gap]) -> SuiteReport {
    run_suite_on(&[(backend, gaps)]).pop().expect("one report a backend")
}

/// As [`run_suite`] on several backends: the oracle runs each case once for all of them.
#[must_use]
pub fn run_suite_on(backends: &[(&dyn Backend, &[Gap])]) -> Vec<SuiteReport> {
    let selection = Selection::from_env();
    let cases = match selection.cases() {
        Ok(cases) => cases,
        Err(error) => {
            let failed = || SuiteReport { failures: vec![error.to_string()], ..SuiteReport::default() };
            return backends.iter().map(|_| failed()).collect();
        }
    };
    let mut reports = run_cases(&cases, backends);
    if matches!(selection, Selection::All) {
        for (report, (backend, _)) in reports.iter_mut().zip(backends) {
            report.failures.extend(coverage::missing(*backend, &cases));
        }
    }
    reports
}

/// How one case ended on one backend.
enum Verdict {
    Passed,
    Refused,
    Failed(String),
}

/// Calls `f` with each case, several at the same time; the answers are in the order of the cases.
///
/// # Panics
/// Panics with the line of a case in which `f` panics.
pub fn map_cases<T: Send>(cases: &[Case], f: impl Fn(&Case) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut answers = Vec::new();
        while let Some((at, case)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, cases.get(at)?)))
        {
            answers.push((at, catch_unwind(AssertUnwindSafe(|| f(case)))));
        }
        answers
    };
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut answers = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("panics are caught")).collect::<Vec<_>>()
    });
    answers.sort_by_key(|(at, _)| *at);
    let answer = |(at, answer): (usize, std::thread::Result<T>)| {
        answer.unwrap_or_else(|_| panic!("{}: a panic; its message stands above", cases[at]))
    };
    answers.into_iter().map(answer).collect()
}

/// Runs cases on several backends. Says nothing of coverage.
#[must_use]
pub fn run_cases(cases: &[Case], backends: &[(&dyn Backend, &[Gap])]) -> Vec<SuiteReport> {
    let mut reports: Vec<SuiteReport> = backends.iter().map(|_| SuiteReport::default()).collect();
    for (case, verdicts) in cases.iter().zip(map_cases(cases, |case| judge_all(case, backends))) {
        for (report, verdict) in reports.iter_mut().zip(verdicts) {
            report.cases += 1;
            match verdict {
                Verdict::Passed => report.passed += 1,
                Verdict::Refused => report.refused += 1,
                Verdict::Failed(fault) => report.failures.push(format!("{case}: {fault}")),
            }
        }
    }
    reports
}

fn judge_all(case: &Case, backends: &[(&dyn Backend, &[Gap])]) -> Vec<Verdict> {
    let oracle = OracleBackend::new("oracle");
    let truth = OnceCell::new();
    let judge = |backend, gaps| judge(case, backend, gaps, || truth.get_or_init(|| Truth::new(&oracle, case)));
    // A panic fails its case on that backend, and the others go on.
    let caught = |(backend, gaps)| {
        catch_unwind(AssertUnwindSafe(|| judge(backend, gaps)))
            .unwrap_or_else(|_| Verdict::Failed("a panic; its message stands above".into()))
    };
    backends.iter().copied().map(caught).collect()
}

fn judge<'a>(case: &Case, backend: &dyn Backend, gaps: &[Gap], truth: impl FnOnce() -> &'a Truth<'a>) -> Verdict {
    let declared = gaps.iter().any(|gap| gap.covers(case));
    match (support(backend, case), declared) {
        (Support::No(_), true) => Verdict::Refused,
        (Support::No(reason), false) => Verdict::Failed(format!("refused without a gap: {reason}")),
        (Support::Yes, true) => Verdict::Failed("supported, but declared as a gap".into()),
        (Support::Yes, false) => match truth().check(backend, case) {
            Ok(()) => Verdict::Passed,
            Err(fault) => Verdict::Failed(fault),
        },
    }
}

/// What a case starts from and what the oracle makes of it.
struct Truth<'a> {
    image: Image,
    outcome: Result<Outcome, BackendError>,
    bounds: OnceCell<Vec<f64>>,
    oracle: &'a OracleBackend,
}

impl<'a> Truth<'a> {
    fn new(oracle: &'a OracleBackend, case: &Case) -> Self {
        let image = Image::new(case);
        let outcome = image.run(oracle, case);
        Self { image, outcome, bounds: OnceCell::new(), oracle }
    }

    fn check(&self, backend: &dyn Backend, case: &Case) -> Result<(), String> {
        let expected = self.outcome.as_ref().map_err(|error| format!("the oracle fails: {error}"))?;
        let found = self.image.run(backend, case).map_err(|error| error.to_string())?;
        match (expected, found) {
            (Outcome::Done(expected), Outcome::Done(found)) => {
                let bounds =
                    || self.bounds.get_or_init(|| compare::bounds(self.oracle, case, &self.image, expected)).as_slice();
                compare::images(case, &self.image, expected, &found, bounds)?;
                let pieces = cuts::run_in_pieces(backend, case, &self.image).map_err(|e| format!("in pieces: {e}"))?;
                if pieces == found { Ok(()) } else { Err("a run in pieces gives other bits than a whole one".into()) }
            }
            (Outcome::Failed(_, expected), Outcome::Failed(found, error)) => {
                if error != *expected {
                    return Err(format!("`{error}` instead of `{expected}`"));
                }
                if found != self.image.bytes { Err("memory was touched before the error".into()) } else { Ok(()) }
            }
            (Outcome::Failed(_, expected), Outcome::Done(_)) => Err(format!("no error instead of `{expected}`")),
            (Outcome::Done(_), Outcome::Failed(_, error)) => Err(error.to_string()),
        }
    }
}

/// Runs one case and gives its memory afterwards, all bytes of it: for comparing runs bit by bit.
///
/// # Errors
/// What the backend reports.
pub fn run_case(backend: &dyn Backend, case: &Case) -> Result<Vec<u8>, BackendError> {
    match Image::new(case).run(backend, case)? {
        Outcome::Done(bytes) | Outcome::Failed(bytes, _) => Ok(bytes),
    }
}

/// Runs one case with its memory full of `padding` wherever nothing else stands (guards, holes of strides, the
/// result before the run), and gives the result's elements alone.
///
/// # Errors
/// What the backend reports, of the run as well.
pub fn run_case_padded(backend: &dyn Backend, case: &Case, padding: u8) -> Result<Vec<u8>, BackendError> {
    let image = Image::padded(case, padding);
    let bytes = match image.run(backend, case)? {
        Outcome::Done(bytes) => bytes,
        Outcome::Failed(_, error) => return Err(error),
    };
    let ranges = crate::image::unit_ranges(&image.output);
    Ok(ranges.into_iter().flat_map(|range| bytes[range].iter().copied()).collect())
}
