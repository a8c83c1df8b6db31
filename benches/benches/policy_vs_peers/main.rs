//! A policy of an agent, 24→64→64→8 with biases and relu, beside other ways to compute it on one thread, in turn, in one process.
//!
//! `cargo bench -p entensor-benches --features peers-policy --bench policy_vs_peers [-- record]`. See the folder's README.

mod gemm_calls;
mod onnx;
mod others;
mod ours;

use std::{error::Error, hint::black_box, process::Command, time::Instant};

use entensor_benches::{results, spread};

use gemm_calls::GemmCalls;
use others::{Candle, Rten, Tract};
use ours::Whole;

type Failure = Box<dyn Error + Send + Sync>;

const WIDTHS: [usize; 4] = [24, 64, 64, 8];
const BATCHES: [usize; 3] = [1, 32, 1024];
/// How often all of them take their turn.
const ROUNDS: usize = 101;
/// How long one of them runs in a round. Short, so that all of a round are of the same mood of the machine.
const SAMPLE_SECONDS: f64 = 0.003;
/// How far outputs may lie apart: all of them sum up in orders of their own.
const TOLERANCE: f32 = 1e-4;

/// Batch, who, and how many of their time ours may take.
const WANTED: [(usize, &str, f64); 5] =
    [(1, "gemm", 0.6), (1, "rten", 1.0 / 3.0), (1, "tract", 1.0 / 3.0), (1, "candle", 1.0 / 3.0), (1024, "gemm", 0.85)];

/// What candle and rten ask for the number of threads.
const THREADS: &str = "RAYON_NUM_THREADS";

/// A layer's numbers: `m` rows of `k` weights, and `m` biases.
struct Layer {
    k: usize,
    m: usize,
    weights: Vec<f32>,
    bias: Vec<f32>,
    /// Whether negative sums become zero.
    relu: bool,
}

/// The numbers that all of them get.
struct Policy {
    layers: Vec<Layer>,
}

/// Numbers between -0.25 and 0.25 without a pattern that would let sums vanish.
fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 4006.0 - 0.25).collect()
}

impl Policy {
    fn new() -> Self {
        let layer = |(index, pair): (usize, &[usize])| {
            let (k, m, relu) = (pair[0], pair[1], index + 2 < WIDTHS.len());
            Layer { k, m, weights: numbers(k * m, index), bias: numbers(m, index + 10), relu }
        };
        Self { layers: WIDTHS.windows(2).enumerate().map(layer).collect() }
    }
}

/// One way to compute the policy: from numbers in a slice to numbers in a slice, as whoever steps a simulation has them.
trait Side {
    fn name(&self) -> &'static str;

    fn run(&mut self, x: &[f32], y: &mut [f32]) -> Result<(), Failure>;

    /// As [`time`], on the thread that is best for it.
    fn time(&mut self, runs: u32, x: &[f32], y: &mut [f32]) -> Result<f64, Failure> {
        time(self, runs, x, y)
    }
}

/// Microseconds of a run, of so many.
fn time<S: Side + ?Sized>(side: &mut S, runs: u32, x: &[f32], y: &mut [f32]) -> Result<f64, Failure> {
    // What the others left in caches is not what is measured.
    for _ in 0..3 {
        side.run(x, y)?;
    }
    let start = Instant::now();
    for _ in 0..runs {
        side.run(black_box(x), y)?;
        black_box(&*y);
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(runs))
}

/// A line of the table.
struct Row {
    batch: usize,
    name: &'static str,
    /// The middle of the rounds' ratios of our time to theirs.
    ratio: f64,
}

fn main() -> Result<(), Failure> {
    if results::recorded("policy_vs_peers", "--features peers-policy")? {
        return Ok(());
    }
    // It can be set only for a process that starts, where no thread reads it meanwhile.
    if std::env::var(THREADS).as_deref() != Ok("1") {
        let once_more =
            Command::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(THREADS, "1").status()?;
        return if once_more.success() { Ok(()) } else { Err("the comparison failed".into()) };
    }
    let policy = Policy::new();
    println!(
        "policy {WIDTHS:?} in f32, one thread; {ROUNDS} rounds in turn; ratios are of a round; least / middle / most\n"
    );
    println!("| batch | who | µs a run | ours, held ÷ it |");
    println!("|---|---|---|---|");
    let mut rows = Vec::new();
    for batch in BATCHES {
        rows.extend(ours::with_held(&policy, batch, |held| compare(&policy, batch, held))?);
    }
    println!();
    for (batch, name, most) in WANTED {
        let row =
            rows.iter().find(|row| row.batch == batch && row.name == name).ok_or("a row that was not measured")?;
        let verdict = if row.ratio <= most { "holds" } else { "DOES NOT HOLD" };
        println!("- batch {batch}: {:.2} of {name}'s time, wanted at most {most:.2}: {verdict}", row.ratio);
    }
    Ok(())
}

/// Measures all of them in turn, and prints their rows.
fn compare(policy: &Policy, batch: usize, held: &mut dyn Side) -> Result<Vec<Row>, Failure> {
    let mut whole = Whole::new(policy, batch)?;
    let mut calls = GemmCalls::new(policy, batch);
    let (mut rten, mut tract) = (Rten::new(policy, batch)?, Tract::new(policy, batch)?);
    let mut candle = Candle::new(policy, batch)?;
    let mut sides: [&mut dyn Side; 6] = [held, &mut whole, &mut calls, &mut rten, &mut tract, &mut candle];

    let x = numbers(WIDTHS[0] * batch, 99);
    let mut outputs = Vec::new();
    let mut runs = Vec::new();
    for side in &mut sides {
        let mut y = vec![f32::NAN; WIDTHS[3] * batch];
        side.run(&x, &mut y)?;
        outputs.push(y.clone());
        let about = side.time(20, &x, &mut y)?;
        runs.push((SAMPLE_SECONDS * 1e6 / about).clamp(1.0, 1e6) as u32);
    }
    for (side, y) in sides.iter().zip(&outputs) {
        // Not the largest difference: that would miss NaN.
        let is_same = y.iter().zip(&outputs[0]).all(|(theirs, ours)| (theirs - ours).abs() <= TOLERANCE);
        if !is_same || y.iter().all(|value| value.abs() < 100.0 * TOLERANCE) {
            return Err(format!("batch {batch}: {} computes something else", side.name()).into());
        }
    }

    let mut y = vec![0.0; WIDTHS[3] * batch];
    let mut samples = vec![Vec::with_capacity(ROUNDS); sides.len()];
    for round in 0..ROUNDS {
        for turn in 0..sides.len() {
            // Everyone follows everyone: whoever heats the core up or empties its caches does so to another one each time.
            let who = (turn * (1 + 4 * (round % 2)) + round / 2) % sides.len();
            samples[who].push(sides[who].time(runs[who], &x, &mut y)?);
        }
    }
    let rows = sides.iter().zip(&samples).map(|(side, theirs)| {
        let of = spread(theirs.clone());
        let ratios = spread(samples[0].iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect());
        println!(
            "| {batch} | {} | {:.2} / {:.2} / {:.2} | {:.3} / {:.3} / {:.3} |",
            side.name(),
            of.least,
            of.middle,
            of.most,
            ratios.least,
            ratios.middle,
            ratios.most
        );
        Row { batch, name: side.name(), ratio: ratios.middle }
    });
    Ok(rows.collect())
}
