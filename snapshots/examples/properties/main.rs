//! Random graphs on random machines, as many as one likes: each has a proved plan or a typed error, the same one every time, and
//! computes the same bits wherever it runs.
//!
//! ```text
//! cargo run --release -p entensor-snapshots --example properties -- [--seeds FIRST..END] [--threads N] [--seconds T]
//! ```
//!
//! Any range can be run again, and one seed alone as `--seeds S..T` with T = S + 1; a failure that is gone then has to do with the
//! seeds before it, and comes again from the next lower multiple of 64 on. `--seconds` begins no more seeds after that time, and the
//! summary says which were run. Tells its progress on standard error and
//! prints a summary line, which is the same for a range whatever the threads; the smallest seed that fails is printed with the
//! property that does not hold and its text, and ends the run with status 1.

mod checks;

use std::{
    ops::Range,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use checks::{NUMBERS_EVERY, sweep};

const USAGE: &str = "usage: properties [--seeds FIRST..END] [--threads N] [--seconds T]";

/// Seconds between two words about the progress.
const PROGRESS_SECONDS: u64 = 15;

struct Options {
    seeds: Range<u64>,
    threads: usize,
    time: Option<Duration>,
}

fn options() -> Result<Options, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = Options { seeds: 0..1_000_000, threads: cores, time: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("`{word}` needs a value; {USAGE}"))?;
        let wrong = || format!("`{value}` is no value of `{word}`; {USAGE}");
        match word.as_str() {
            "--seeds" => {
                let (first, end) = value.split_once("..").ok_or_else(wrong)?;
                options.seeds = first.parse().map_err(|_| wrong())?..end.parse().map_err(|_| wrong())?;
            }
            "--threads" => options.threads = value.parse().map_err(|_| wrong())?,
            "--seconds" => options.time = Some(Duration::from_secs(value.parse().map_err(|_| wrong())?)),
            _ => return Err(format!("unknown word `{word}`; {USAGE}")),
        }
    }
    if options.seeds.is_empty() { Err(format!("no seeds in the range; {USAGE}")) } else { Ok(options) }
}

fn main() -> ExitCode {
    let Options { seeds, threads, time } = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let (start, said, count) = (Instant::now(), AtomicU64::new(0), seeds.end - seeds.start);
    let progress = |done: u64| {
        let turn = start.elapsed().as_secs() / PROGRESS_SECONDS;
        if said.fetch_max(turn, Ordering::Relaxed) < turn {
            eprintln!("{done} of {count} seeds after {} s", start.elapsed().as_secs());
        }
    };
    // A time beyond what a clock can say is none.
    let until = time.and_then(|time| start.checked_add(time));
    match sweep(seeds.clone(), threads, until, progress) {
        Ok(summary) => {
            println!(
                "seeds {}..{}, {threads} threads, {} s, numbers of one seed in {NUMBERS_EVERY}; {summary}",
                seeds.start,
                seeds.start + summary.pairs,
                start.elapsed().as_secs()
            );
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}
