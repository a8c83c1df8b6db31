//! `entensor bench`: how fast a model reads and writes on this machine.

use std::{path::PathBuf, time::Instant};

use clap::Args;
use entensor::Engine;
use entensor_models::{LanguageModel, MICRO_BATCH_TOKENS, Session, SessionConfig};
use serde::Serialize;

use crate::{
    error::CliError,
    figures::{Align, Table},
    loading::{BackendArgs, WeightFigures, Weights, WeightsIn, load_in},
    output::{note, print, print_json},
};

const EXAMPLES: &str = "\
Examples:
  entensor bench model.gguf
  entensor bench model.gguf -t 1,2,4 -p 128 -n 64 -r 3 --json
  entensor bench model.gguf --backend gemm --backend cpu

ppN feeds a prompt of N tokens at once, tgN feeds N tokens one by one, both from an empty context. The first
repetition warms up and is not counted. JSON: {\"rows\":[{\"test\",\"threads\",\"mean\",\"min\",\"max\",\"sd\",
\"weights_gb_per_s\",\"logits_hash\"}], \"repetitions\", \"identical\"}, speeds in tokens/s, and the weights' memory. `identical` says whether
the last logits of each test are the same bit for bit over all thread counts.";

/// Measure prompt and decode speed
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// The model, a GGUF file
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Tokens of the prompt test; 0 leaves it out
    #[arg(short = 'p', long = "prompt-tokens", value_name = "N", default_value_t = 512)]
    prompt: u32,
    /// Tokens of the decode test; 0 leaves it out
    #[arg(short = 'n', long = "decode-tokens", value_name = "N", default_value_t = 128)]
    decode: u32,
    /// Thread counts [default: all cores]
    #[arg(short, long, value_name = "T,T", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// Where the weights lie
    #[arg(long, value_enum, default_value_t)]
    weights: WeightsIn,
    #[command(flatten)]
    backends: BackendArgs,
    /// Repetitions of each test
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How tokens are fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feed {
    /// All at once, in micro-batches.
    Prompt,
    /// One by one.
    Decode,
}

/// A test and its number of tokens.
#[derive(Clone, Copy, Debug)]
struct Test {
    feed: Feed,
    tokens: u32,
}

/// Speeds of one test in tokens/s.
#[derive(Serialize)]
struct Row {
    test: String,
    threads: u32,
    mean: f64,
    min: f64,
    max: f64,
    sd: f64,
    weights_gb_per_s: f64,
    logits_hash: String,
}

#[derive(Serialize)]
struct Report {
    rows: Vec<Row>,
    repetitions: u32,
    identical: bool,
    #[serde(flatten)]
    weights: Option<WeightFigures>,
}

/// Runs the command.
pub(crate) fn run(args: &BenchArgs) -> Result<(), CliError> {
    let tests = [Test { feed: Feed::Prompt, tokens: args.prompt }, Test { feed: Feed::Decode, tokens: args.decode }];
    let tests: Vec<Test> = tests.into_iter().filter(|test| test.tokens > 0).collect();
    let Some(context) = tests.iter().map(|test| test.tokens).max() else {
        return Err(CliError::Usage("there is nothing to measure; give -p or -n a number above 0".into()));
    };
    if i32::try_from(context).is_err() {
        return Err(CliError::Usage(format!("tests of {context} tokens cannot be; choose from 1 to {}", i32::MAX)));
    }
    let all_cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = match args.threads.as_slice() {
        [] => vec![u32::try_from(all_cores()).unwrap_or(1)],
        given => given.to_vec(),
    };
    let (mut rows, mut weights) = (Vec::new(), None);
    for threads in threads {
        let mut engine = args.backends.with_threads(threads).computing_engine()?.build()?;
        let model = load_in(&mut engine, &args.model, Weights::Warm, args.weights)?;
        weights = Some(WeightFigures::new(&mut engine, &model, args.weights));
        let trained = model.network().config().context_length;
        if context > trained && rows.is_empty() {
            note(format_args!("note: tests of {context} tokens exceed the {trained} that the model was trained for"));
        }
        let config = SessionConfig { context, ..SessionConfig::default() };
        let mut session = Session::new(&mut engine, &model, config)?;
        for &test in &tests {
            let speeds = measure(args.repetitions, test, &mut engine, &model, &mut session)?;
            rows.push(Row::new(test, threads, &speeds, &model, session.logits()));
        }
    }
    let first = |row: &Row| rows.iter().find(|other| other.test == row.test).map(|other| other.logits_hash.clone());
    let identical = rows.iter().all(|row| first(row).as_ref() == Some(&row.logits_hash));
    let report = Report { rows, repetitions: args.repetitions, identical, weights };
    if args.json { print_json(&report) } else { print(&report.text()) }
}

/// The speed of each repetition after a first one that makes plans and fills caches.
fn measure(
    repetitions: u32,
    test: Test,
    engine: &mut Engine,
    model: &LanguageModel,
    session: &mut Session,
) -> Result<Vec<f64>, CliError> {
    let vocabulary = u32::try_from(model.network().config().vocabulary).unwrap_or(u32::MAX).max(1);
    // Any ids do; these are spread over the vocabulary, so that rows of the embedding are not all in a cache.
    let ids: Vec<u32> = (0..test.tokens).map(|i| i.wrapping_mul(2_654_435_761) % vocabulary).collect();
    let mut speeds = Vec::new();
    for repetition in 0..=repetitions {
        session.truncate(0);
        let start = Instant::now();
        match test.feed {
            Feed::Prompt => session.feed(engine, model, &ids)?,
            Feed::Decode => ids.iter().try_for_each(|id| session.feed(engine, model, std::slice::from_ref(id)))?,
        }
        let seconds = start.elapsed().as_secs_f64();
        if repetition > 0 {
            // A clock may be too coarse to see a tiny model run.
            speeds.push(f64::from(test.tokens) / seconds.max(1e-9));
        }
    }
    Ok(speeds)
}

impl Row {
    #[expect(clippy::cast_precision_loss, reason = "repetitions and bytes of weights are far below 2^53")]
    fn new(test: Test, threads: u32, speeds: &[f64], model: &LanguageModel, logits: &[f32]) -> Self {
        let count = speeds.len().max(1) as f64;
        let mean = speeds.iter().sum::<f64>() / count;
        let squares: f64 = speeds.iter().map(|speed| (speed - mean).powi(2)).sum();
        let (word, passes_per_token) = match test.feed {
            Feed::Decode => ("tg", 1.0),
            // A micro-batch reads the weights once for all its tokens.
            Feed::Prompt => ("pp", f64::from(test.tokens.div_ceil(MICRO_BATCH_TOKENS)) / f64::from(test.tokens)),
        };
        Self {
            test: format!("{word}{}", test.tokens),
            threads,
            mean,
            min: speeds.iter().copied().fold(f64::INFINITY, f64::min),
            max: speeds.iter().copied().fold(0.0, f64::max),
            sd: if speeds.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 },
            weights_gb_per_s: model.network().read_bytes() as f64 * mean * passes_per_token / 1e9,
            logits_hash: format!("{:016x}", hash(logits)),
        }
    }
}

/// FNV-1a over the bits of the logits.
fn hash(logits: &[f32]) -> u64 {
    let bytes = logits.iter().flat_map(|logit| logit.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Report {
    /// The table for people.
    fn text(&self) -> String {
        let mut table = Table::new(&[
            ("test", Align::Left),
            ("threads", Align::Right),
            ("tokens/s", Align::Right),
            ("min", Align::Right),
            ("max", Align::Right),
            ("sd", Align::Right),
            ("weights GB/s", Align::Right),
            ("logits hash", Align::Left),
        ]);
        for row in &self.rows {
            let speed = |value: f64| format!("{value:.2}");
            table.row([
                row.test.clone(),
                row.threads.to_string(),
                speed(row.mean),
                speed(row.min),
                speed(row.max),
                speed(row.sd),
                speed(row.weights_gb_per_s),
                row.logits_hash.clone(),
            ]);
        }
        let identical = if self.identical { "identical" } else { "DIFFERENT" };
        let weights = self.weights.map(|weights| format!("weights: {weights}\n")).unwrap_or_default();
        format!("{table}{weights}results over thread counts: {identical}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_see_every_bit() {
        assert_eq!(hash(&[]), 0xcbf2_9ce4_8422_2325);
        assert_ne!(hash(&[0.0]), hash(&[-0.0]));
        assert_ne!(hash(&[1.0, 2.0]), hash(&[2.0, 1.0]));
    }
}
