//! One suite of cases that any backend can run against the oracle.
//!
//! Cases come from the op table: each row's samples, crossed with the operands' dtypes and with layouts, beside
//! hand-made edges. Every tensor lies between guard bytes; guards, holes between strided elements and results
//! before the run are NaN patterns, and whatever an op has no business to write must be unchanged afterwards.
//!
//! A backend declares its [`Gap`]s. A refusal outside the gaps fails, a gap that is supported fails, and so does a
//! combination of op, dtypes and layout that the backend supports and no case covers: a new row of a table cannot go
//! untested.
//!
//! A case prints as one line; a part of that line in `CONFORMANCE_CASE` runs the matching cases only.

#![forbid(unsafe_code)]

mod case;
mod cases;
mod compare;
mod coverage;
mod edges;
mod image;
mod layout;
mod magnitudes;

use std::fmt;

use entensor_components::{Backend, BackendError, DType, OpDesc, OpKind, Support};
use entensor_oracle::OracleBackend;

pub use case::{Case, CaseOperand, Fill};
pub use cases::cases;
pub use layout::Layout;

use crate::image::Outcome;

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

/// Whether a case is asked for by `CONFORMANCE_CASE`.
fn is_wanted(case: &Case) -> bool {
    std::env::var("CONFORMANCE_CASE").map_or(true, |part| case.to_string().contains(&part))
}

/// Whether the backend takes the case.
fn support(backend: &dyn Backend, case: &Case) -> Support {
    let operands: Vec<_> = case.operands.iter().map(|o| o.desc).collect();
    backend.support(&OpDesc { op: &case.op, output: case.output(), operands: &operands })
}

/// Runs every case on a backend that uses host memory.
#[must_use]
pub fn run_suite(backend: &dyn Backend, gaps: &[Gap]) -> SuiteReport {
    let oracle = OracleBackend::new("oracle");
    let mut report = SuiteReport::default();
    let cases = cases();
    for case in cases.iter().filter(|case| is_wanted(case)) {
        report.cases += 1;
        let declared = gaps.iter().any(|gap| gap.covers(case));
        match (support(backend, case), declared) {
            (Support::No(_), true) => report.refused += 1,
            (Support::No(reason), false) => report.failures.push(format!("{case}: refused without a gap: {reason}")),
            (Support::Yes, true) => report.failures.push(format!("{case}: supported, but declared as a gap")),
            (Support::Yes, false) => match check(backend, &oracle, case) {
                Ok(()) => report.passed += 1,
                Err(fault) => report.failures.push(format!("{case}: {fault}")),
            },
        }
    }
    report.failures.extend(coverage::missing(backend, &cases));
    report
}

/// Runs one case and gives its memory afterwards, all bytes of it: for comparing runs bit by bit.
///
/// # Errors
/// What the backend reports.
pub fn run_case(backend: &dyn Backend, case: &Case) -> Result<Vec<u8>, BackendError> {
    match image::Image::new(case).run(backend, case)? {
        Outcome::Done(bytes) | Outcome::Failed(bytes, _) => Ok(bytes),
    }
}

fn check(backend: &dyn Backend, oracle: &OracleBackend, case: &Case) -> Result<(), String> {
    let image = image::Image::new(case);
    let expected = image.run(oracle, case).map_err(|error| format!("the oracle fails: {error}"))?;
    let found = image.run(backend, case).map_err(|error| error.to_string())?;
    match (expected, found) {
        (Outcome::Done(expected), Outcome::Done(found)) => compare::images(oracle, case, &image, &expected, &found),
        (Outcome::Failed(_, expected), Outcome::Failed(found, error)) => {
            if error != expected {
                return Err(format!("`{error}` instead of `{expected}`"));
            }
            if found != image.bytes { Err("memory was touched before the error".into()) } else { Ok(()) }
        }
        (Outcome::Failed(_, expected), Outcome::Done(_)) => Err(format!("no error instead of `{expected}`")),
        (Outcome::Done(_), Outcome::Failed(_, error)) => Err(error.to_string()),
    }
}
