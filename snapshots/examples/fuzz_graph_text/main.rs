//! Fuzzes the `.graph` text and the planner behind it with damaged fixtures, corpus files and random graphs.
//!
//! ```text
//! cargo run --release -p entensor-snapshots --example fuzz_graph_text -- [--seed S] [--cases N | --seconds T]
//! ```
//!
//! Case `i` of a run is seed `S + i`, so any range can be run again, and `--seed S --cases 1` runs one case. Prints a summary
//! line; a case that panics or is wrong is printed with its seed and text, and ends the run with status 1.

mod cases;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use cases::{Summary, keep_panics, run, texts};

const USAGE: &str = "usage: fuzz_graph_text [--seed S] [--cases N | --seconds T]";

struct Options {
    seed: u64,
    cases: u64,
    time: Duration,
}

fn options() -> Result<Options, String> {
    let mut options = Options { seed: 1, cases: u64::MAX, time: Duration::MAX };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().and_then(|value| value.parse::<u64>().ok());
        let value = value.ok_or_else(|| format!("`{word}` needs a number; {USAGE}"))?;
        match word.as_str() {
            "--seed" => options.seed = value,
            "--cases" => options.cases = value,
            "--seconds" => options.time = Duration::from_secs(value),
            _ => return Err(format!("unknown word `{word}`; {USAGE}")),
        }
    }
    if options.cases == u64::MAX && options.time == Duration::MAX {
        options.time = Duration::from_secs(60);
    }
    Ok(options)
}

/// The most memory that the process has had, where the system says it.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.map_or_else(String::new, |peak| format!("; peak memory {}", peak.trim()))
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let (texts, mut summary, start) = (texts(), Summary::default(), Instant::now());
    keep_panics();
    let mut seed = options.seed;
    while summary.cases < options.cases && start.elapsed() < options.time {
        if let Err(failure) = run(seed, &texts, &mut summary) {
            println!("{failure}");
            println!("stopped after {summary}");
            return ExitCode::FAILURE;
        }
        seed = seed.wrapping_add(1);
    }
    println!(
        "seeds {}..{seed} over {} texts, {} s, {summary}{}",
        options.seed,
        texts.len(),
        start.elapsed().as_secs(),
        peak_memory()
    );
    ExitCode::SUCCESS
}
