//! Runs in pieces: a deadline that has passed lets every call do one piece, so a run is cut wherever its backend can cut it.

use std::{collections::BTreeMap, fmt, time::Instant};

use entensor_components::{
    Backend, BackendError, BufferKey, Cursor, MemoryHandle, PreparedSplit, Progress, RunLimit, Usage,
};

use crate::{Case, image::Image, map_cases, perf::bench_cases, suite::support};

/// What cutting found.
#[derive(Debug, Default)]
pub struct CutReport {
    /// Cases that were cut.
    pub cases: usize,
    /// Per op, the most pauses of any of its cases.
    pub pauses: BTreeMap<&'static str, usize>,
    /// What went wrong: the case's line, and how.
    pub failures: Vec<String>,
}

impl CutReport {
    /// # Panics
    /// Panics with the first failures if there are any.
    #[track_caller]
    pub fn assert_passed(&self) {
        let shown = self.failures.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
        assert!(self.failures.is_empty(), "{self}\n{shown}");
    }
}

impl fmt::Display for CutReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pauses = self.pauses.values().max().unwrap_or(&0);
        write!(f, "{} cases cut, up to {pauses} times: {} failures", self.cases, self.failures.len())
    }
}

/// A run of a case in pieces.
pub(super) struct Pieces<'a> {
    backend: &'a dyn Backend,
    key: BufferKey,
    memory: MemoryHandle,
    at: Option<Cursor>,
    /// How often it paused.
    pub(super) pauses: usize,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(backend: &'a dyn Backend, image: &Image) -> Result<Self, BackendError> {
        let key = backend.create_buffer(image.bytes.len() as u64, Usage::Compute)?;
        let memory = backend.memory(key)?;
        backend.write(&memory, 0, &image.bytes)?;
        Ok(Self { backend, key, memory, at: Some(Cursor::START), pauses: 0 })
    }

    /// Does one piece; whether there is more to do.
    pub(super) fn go_on(&mut self, prepared: &dyn PreparedSplit) -> Result<bool, String> {
        self.go_on_until(prepared, Some(Instant::now()))
    }

    fn go_on_until(&mut self, prepared: &dyn PreparedSplit, deadline: Option<Instant>) -> Result<bool, String> {
        let Some(from) = self.at else { return Ok(false) };
        let limit = RunLimit { deadline, cancel: None };
        let progress = prepared.run_from(std::slice::from_ref(&self.memory), from, &limit);
        self.at = match progress.map_err(|error| format!("at {from:?}: {error}"))? {
            Progress::Done(_) => None,
            Progress::Paused(at) if at > from => Some(at),
            Progress::Paused(at) => return Err(format!("no progress from {from:?}: paused at {at:?}")),
        };
        self.pauses += usize::from(self.at.is_some());
        Ok(self.at.is_some())
    }

    /// Memory after the run.
    pub(super) fn finish(self, image: &Image) -> Result<Vec<u8>, BackendError> {
        self.backend.synchronize()?;
        let mut bytes = vec![0; image.bytes.len()];
        self.backend.read(&self.memory, 0, &mut bytes)?;
        self.backend.destroy_buffer(self.key)?;
        Ok(bytes)
    }
}

/// Memory after a run of a case that is cut wherever it can be.
pub(super) fn run_in_pieces(backend: &dyn Backend, case: &Case, image: &Image) -> Result<Vec<u8>, String> {
    let prepared = backend.prepare(&image.split(case)).map_err(|error| error.to_string())?;
    let mut pieces = Pieces::new(backend, image).map_err(|error| error.to_string())?;
    while pieces.go_on(&*prepared)? {}
    pieces.finish(image).map_err(|error| error.to_string())
}

/// Cuts the bench case of every op that the backend supports, in every dtype, wherever the backend can cut it, and compares memory bit by
/// bit with that of a whole run. Another run of the same prepared split comes in between now and then, so that whatever a backend
/// keeps from piece to piece is lost.
///
/// Bench cases are large enough to have a grid; the cases of [`run_suite`](crate::run_suite) are cut there.
#[must_use]
pub fn run_cuts(backend: &dyn Backend) -> CutReport {
    let mut cases = bench_cases();
    cases.retain(|case| support(backend, case).is_yes());
    let mut report = CutReport { cases: cases.len(), ..CutReport::default() };
    for (case, result) in cases.iter().zip(map_cases(&cases, |case| cut(backend, case))) {
        match result {
            Ok(pauses) => {
                let most = report.pauses.entry(case.op.row().name).or_default();
                *most = (*most).max(pauses);
            }
            Err(fault) => report.failures.push(format!("{case}: {fault}")),
        }
    }
    report
}

/// How often a case was cut.
fn cut(backend: &dyn Backend, case: &Case) -> Result<usize, String> {
    let image = Image::new(case);
    let failed = |error: BackendError| error.to_string();
    let prepared = backend.prepare(&image.split(case)).map_err(failed)?;
    let mut whole = Pieces::new(backend, &image).map_err(failed)?;
    prepared.submit(std::slice::from_ref(&whole.memory)).map_err(failed)?;
    whole.at = None;
    let expected = whole.finish(&image).map_err(failed)?;
    let mut runs = [Pieces::new(backend, &image).map_err(failed)?, Pieces::new(backend, &image).map_err(failed)?];
    while runs[0].go_on(&*prepared)? {
        // The other run comes in between now and then: what is made anew for each of them takes its time.
        if runs[0].pauses % 16 == 1 {
            runs[1].go_on(&*prepared)?;
        }
    }
    runs[1].go_on_until(&*prepared, None)?;
    let pauses = runs[0].pauses;
    for run in runs {
        let found = run.finish(&image).map_err(failed)?;
        if let Some(at) = (0..expected.len()).find(|&at| found[at] != expected[at]) {
            return Err(format!("byte {at} is {}, not {}, after {pauses} pauses", found[at], expected[at]));
        }
    }
    Ok(pauses)
}
