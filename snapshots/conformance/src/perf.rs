//! How long ops take: the rows' bench samples, in each dtype.

use std::{
    fmt,
    time::{Duration, Instant},
};

use entensor_components::{Backend, BackendError, DTypeClass, OPS, OpKind, TensorDesc, Usage};

use crate::{Case, Layout, Selection, cases, image::Image, suite::support};

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerfConfig {
    /// Samples taken of each case; their median is given.
    pub samples: usize,
    /// A sample is as many runs as take this long, at least one.
    pub sample_time: Duration,
}

impl Default for PerfConfig {
    fn default() -> Self {
        Self { samples: 7, sample_time: Duration::from_millis(20) }
    }
}

/// What was measured of one case.
#[derive(Clone, Debug, PartialEq)]
pub struct PerfRow {
    /// The case.
    pub case: Case,
    /// Time of one run: the median of the samples.
    pub run: Duration,
    /// Bytes that one run must touch: operands and result, of tables only the rows that ids name.
    pub bytes: u64,
    /// Floating-point operations of one run, as the op's row counts them.
    pub flops: u64,
}

/// Why nothing was measured.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// The backend fails.
    #[error("{case}: {source}")]
    Backend {
        /// The case's line.
        case: String,
        /// What it reports.
        source: BackendError,
    },
    /// No bench case has the part in its line, or the backend supports none that has.
    #[error("no bench case that runs here has `{part}` in its line")]
    NoSuchCase {
        /// What was asked for.
        part: String,
    },
}

impl PerfRow {
    /// Bytes touched per second, in 10⁹.
    #[must_use]
    pub fn gb_per_second(&self) -> f64 {
        self.bytes as f64 / self.run.as_secs_f64().max(1e-9) / 1e9
    }

    /// Operations per second, in 10⁹.
    #[must_use]
    pub fn gflop_per_second(&self) -> f64 {
        self.flops as f64 / self.run.as_secs_f64().max(1e-9) / 1e9
    }
}

impl fmt::Display for PerfRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.run.as_secs_f64() * 1e6;
        let (bandwidth, speed) = (self.gb_per_second(), self.gflop_per_second());
        write!(f, "{micros:>10.1} µs {bandwidth:>8.2} GB/s {speed:>8.2} GFLOP/s  {}", self.case)
    }
}

/// The bench cases: each row's samples, packed, in each dtype.
pub(super) fn bench_cases() -> Vec<Case> {
    let mut bench = Vec::new();
    for row in OPS.iter().filter(|row| row.computes()) {
        for sample in row.bench_samples() {
            let layouts = vec![Layout::Contiguous; sample.operands.len()];
            for dtypes in cases::uniform_dtypes(row, sample.operands.len()) {
                bench.extend(cases::case(&sample, &dtypes, &layouts));
            }
        }
    }
    bench
}

/// Measures the chosen bench cases that the backend supports, or the one case that is chosen, and hands each row on as it
/// comes.
///
/// # Errors
/// What the backend reports, or that there was nothing to measure.
pub fn perf(
    backend: &dyn Backend,
    selection: &Selection,
    config: PerfConfig,
    mut each: impl FnMut(PerfRow),
) -> Result<(), PerfError> {
    let (mut cases, part) = match selection {
        Selection::All => (bench_cases(), ""),
        Selection::Part(part) => (bench_cases(), part.as_str()),
        Selection::One(case) => (vec![Case::clone(case)], ""),
    };
    cases.retain(|case| case.to_string().contains(part) && support(backend, case).is_yes());
    if cases.is_empty() {
        return Err(PerfError::NoSuchCase { part: part.into() });
    }
    for case in cases {
        let failed = |source| PerfError::Backend { case: case.to_string(), source };
        let run = measure(backend, &case, config).map_err(failed)?;
        let (bytes, flops) = (touched_bytes(&case), (case.op.row().flops)(&case.descs(), &case.output()));
        each(PerfRow { case, run, bytes, flops });
    }
    Ok(())
}

fn measure(backend: &dyn Backend, case: &Case, config: PerfConfig) -> Result<Duration, BackendError> {
    let image = Image::new(case);
    let prepared = backend.prepare(&image.split(case))?;
    let key = backend.create_buffer(image.bytes.len() as u64, Usage::Compute)?;
    let memory = backend.memory(key)?;
    backend.write(&memory, 0, &image.bytes)?;
    let runs = |count: u32| {
        let start = Instant::now();
        for _ in 0..count {
            prepared.submit(std::slice::from_ref(&memory))?;
        }
        backend.synchronize()?;
        Ok::<_, BackendError>(start.elapsed() / count)
    };
    // The first run warms caches up, the second says how many make a sample.
    runs(1)?;
    let once = runs(1)?.max(Duration::from_nanos(100));
    let count = (config.sample_time.as_nanos() / once.as_nanos()).clamp(1, 100_000);
    let count = u32::try_from(count).unwrap_or(1);
    let mut times = (0..config.samples.max(1)).map(|_| runs(count)).collect::<Result<Vec<_>, _>>()?;
    backend.destroy_buffer(key)?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn touched_bytes(case: &Case) -> u64 {
    let descs = case.descs();
    let sizes = |descs: &[TensorDesc]| descs.iter().map(TensorDesc::size_bytes).sum::<u64>();
    match case.op.kind() {
        // Rows are read from the table as they are written to the result, or the other way round.
        OpKind::GetRows => sizes(&descs[1..]) + case.output().size_bytes() + rows_bytes(&descs[0], &descs[1]),
        OpKind::SetRows => sizes(&descs[1..]) + rows_bytes(&descs[0], &descs[2]),
        // A writer's target is written; it is not read.
        _ if case.op.row().writes.is_some() => sizes(&descs),
        _ => sizes(&descs) + case.output().size_bytes(),
    }
}

/// Bytes of as many rows as there are ids.
fn rows_bytes(table: &TensorDesc, ids: &TensorDesc) -> u64 {
    debug_assert_eq!(ids.dtype.row().class, DTypeClass::Integer);
    let row = table.dtype.row_bytes(table.shape.0[0]).unwrap_or(0);
    row.saturating_mul(ids.shape.elements().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use entensor_oracle::OracleBackend;

    use super::*;

    #[test]
    fn what_is_chosen_is_measured() {
        let oracle = OracleBackend::new("oracle");
        let config = PerfConfig { samples: 1, sample_time: Duration::ZERO };
        let measure = |text: &str| {
            let mut rows = Vec::new();
            perf(&oracle, &Selection::new(text), config, |row| rows.push(row)).map(|()| rows)
        };
        let rows = measure("scale by=2.0 x=f16[6,5]:sliced").expect("one case");
        assert_eq!((rows.len(), rows[0].flops), (1, 30));
        // The rows without the last gap, and a packed result.
        assert_eq!(rows[0].bytes, (7 * 4 + 6) * 2 + 60);
        let rows = measure("get_rows table=q8_0[64,9]:contiguous ids=i32[3]:contiguous").expect("one case");
        assert_eq!(rows[0].bytes, 3 * 68 + 3 * 4 + 3 * 256);
        let nothing = measure("scael").expect_err("no such op");
        assert_eq!(nothing, PerfError::NoSuchCase { part: "scael".into() });
    }

    #[test]
    fn every_op_has_something_to_measure() {
        let bench = bench_cases();
        for row in OPS.iter().filter(|row| row.computes()) {
            assert!(bench.iter().any(|case| case.op.kind() == row.kind), "{}", row.name);
        }
    }
}
