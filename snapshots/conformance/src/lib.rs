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
//! Every case runs whole and in pieces, cut wherever the backend can cut it, and must give the same bits; [`run_cuts`] does so
//! with cases large enough to have a grid of rows.
//!
//! A case prints as one line. That line in `CONFORMANCE_CASE` runs it again, and a part of it runs every case that has it:
//!
//! ```
//! use entensor_components::Backend;
//! use entensor_conformance::{Case, run_cases};
//! use entensor_oracle::OracleBackend;
//!
//! let case: Case = "mul_mat weights=q8_0[64,5]:contiguous x=f32[64,9]:sliced".parse()?;
//! let backend = OracleBackend::new("mine");
//! let reports = run_cases(&[case], &[(&backend, &[])]);
//! assert_eq!(reports[0].passed, 1);
//! # Ok::<(), entensor_conformance::CaseParseError>(())
//! ```
//!
//! From the same definitions come [`SupportTable`] (what a backend says it runs), [`perf`] (how long the rows' bench
//! samples take) and [`coverage`] (what has cases at all). The example `suite` prints each of them.

#![forbid(unsafe_code)]

mod case;
mod cases;
mod compare;
mod coverage;
mod cuts;
mod edges;
mod image;
mod layout;
mod magnitudes;
mod parse;
mod perf;
mod recorded;
mod selection;
mod suite;
mod support;

pub use case::{Case, CaseOperand, Fill};
pub use cases::cases;
pub use coverage::{Coverage, coverage};
pub use cuts::{CutReport, run_cuts};
pub use image::EXTREMES;
pub use layout::Layout;
pub use parse::CaseParseError;
pub use perf::{PerfConfig, PerfError, PerfRow, perf};
pub use recorded::{Contents, Recorded, RecordedError};
pub use selection::{CASE_VARIABLE, NoSuchCase, Selection};
pub use suite::{Gap, SuiteReport, map_cases, run_case, run_case_padded, run_cases, run_suite, run_suite_on};
pub use support::{SupportRow, SupportTable};
