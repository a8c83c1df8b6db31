//! The conformance suite at the command line, on the CPU backend or on the oracle:
//!
//! ```text
//! cargo run --release -p entensor-conformance --example suite -- test 'mul_mat weights=q8_0'
//! cargo run --release -p entensor-conformance --example suite -- support --backend oracle
//! cargo run --release -p entensor-conformance --example suite -- perf --backend cpu:threads=1 soft_max
//! ```

use std::process::ExitCode;

use entensor_components::{Backend, BackendError};
use entensor_conformance::{
    NoSuchCase, PerfConfig, PerfError, Selection, SupportTable, coverage, perf, run_cases, run_suite,
};
use entensor_cpu::{CpuBackend, CpuConfig, Simd};
use entensor_oracle::OracleBackend;

const USAGE: &str = "usage: suite test|support|perf|coverage [--backend NAME] [LINE, OR PART OF A CASE'S LINE]
  --backend cpu[:threads=N][:simd=detect|avx2|portable|strict]   the default
  --backend oracle";

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}\n{USAGE}")]
    Usage(String),
    #[error(transparent)]
    NoSuchCase(#[from] NoSuchCase),
    #[error(transparent)]
    Perf(#[from] PerfError),
    #[error(transparent)]
    Backend(#[from] BackendError),
}

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("suite: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether everything passed.
fn run(mut words: impl Iterator<Item = String>) -> Result<bool, Error> {
    let mode = words.next().ok_or_else(|| Error::Usage("no mode".into()))?;
    let mut name = String::from("cpu");
    let mut rest = Vec::new();
    while let Some(word) = words.next() {
        if word == "--backend" {
            name = words.next().ok_or_else(|| Error::Usage("`--backend` needs a name".into()))?;
        } else {
            rest.push(word);
        }
    }
    let backend = backend(&name)?;
    // A line may come as one word or as several.
    let part = rest.join(" ");
    let selection = if part.is_empty() { Selection::All } else { Selection::new(&part) };
    match mode.as_str() {
        "test" => {
            let report = match selection {
                Selection::All => run_suite(&*backend, &[]),
                _ => run_cases(&selection.cases()?, &[(&*backend, &[])]).pop().unwrap_or_default(),
            };
            report.failures.iter().for_each(|failure| println!("{failure}"));
            println!("{name}: {report}");
            return Ok(report.failures.is_empty());
        }
        "support" => print!("{}", SupportTable::new(&*backend, &selection.cases()?)),
        "perf" => perf(&*backend, &selection, PerfConfig::default(), |row| println!("{row}"))?,
        "coverage" => print!("{}", coverage(&[&*backend])),
        _ => return Err(Error::Usage(format!("no mode `{mode}`"))),
    }
    Ok(true)
}

fn backend(text: &str) -> Result<Box<dyn Backend>, Error> {
    let mut parts = text.split(':');
    let mut config = CpuConfig::default();
    match parts.next() {
        Some("oracle") if text == "oracle" => return Ok(Box::new(OracleBackend::new("oracle"))),
        Some("cpu") => {}
        _ => return Err(Error::Usage(format!("no backend `{text}`"))),
    }
    for part in parts {
        match part.split_once('=') {
            Some(("threads", count)) => {
                let count = count.parse().map_err(|_| Error::Usage(format!("`{count}` is no number of threads")))?;
                config.threads = Some(count);
            }
            Some(("simd", name)) => {
                config.simd = Simd::from_name(name)
                    .ok_or_else(|| Error::Usage(format!("`{name}` is no choice of instructions")))?;
            }
            _ => return Err(Error::Usage(format!("no backend `{text}`"))),
        }
    }
    Ok(Box::new(CpuBackend::new(config)?))
}
