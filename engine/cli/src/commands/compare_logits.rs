//! `entensor compare-logits`: how far apart the expectations of two models are.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::Args;
use entensor::Engine;
use entensor_models::{
    LanguageModel,
    compare::{Comparison, RecordedCase, compare_models, compare_recorded},
    gguf,
};
use serde::Serialize;

use crate::{
    error::CliError,
    figures::{Align, Table},
    loading::{BackendArgs, Weights, context, load, progress_bar},
    output::{excerpt, print, print_json},
};

/// What is read where no text is given: plain sentences, a list, numbers, a name, a question.
pub(crate) const TEXT: &str = "\
The harbour wakes before the town does. Boats come in low with the night's catch, gulls argue over the ropes, and somebody \
has already put the kettle on in the small office by the pier. \"Three crates of herring, two of cod, and one crab that nobody \
ordered,\" says Marta, and writes it down. By nine o'clock the ice is gone and the price has gone up by 12 percent.

A good map of this coast needs four things: the depth of the water, the kind of ground, the lights, and the tide. The tide \
is the hardest, because it depends on the moon, on the wind and on the shape of the bay. In 1847 a schoolteacher measured \
it every hour for a year. Her tables were right to within a hand's width, and ships used them for the next fifty years.

Why does water rise twice a day and not once? Because the Earth is pulled as well: the sea nearest to the moon is pulled \
more than the Earth, and the sea on the far side less.";

/// More than any text or record; a limit, so that a device file is not read forever.
const TEXT_LIMIT_BYTES: u64 = 256 << 20;

const EXAMPLES: &str = "\
Examples:
  entensor compare-logits model-f16.gguf model-q4_1.gguf
  entensor compare-logits a.gguf b.gguf -f chapter.txt --json
  entensor logits a.gguf -p \"Once upon a time\" --top 100 --json > a.json && entensor compare-logits a.json b.gguf

A log-probability is a logit minus the logarithm of the sum of exponentials of all logits of its position. Differences are
absolute, over all pairs of a position and a token of the vocabulary; the KL divergence is of B from A, in nats, the mean
over positions; perplexity is exp of the mean of minus the log-probability of the token that follows. A text longer than
--ctx is read in parts. If A is a record, differences are over the recorded tokens, the KL takes all others as one and is a
lower bound, and the perplexity of A is known only if every token that follows is recorded. JSON: {\"positions\", \"pairs\",
\"mean_difference\", \"worst_difference\", \"worst_position\", \"worst_token\", \"mean_kl\", \"same_top\", \"top_agreement\",
\"perplexity_a\", \"perplexity_b\", \"recorded\"}; null where a figure does not exist.";

/// Compare what two models expect after every token of a text
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompareLogitsArgs {
    /// The model to compare with, a GGUF file, or recorded logits in JSON
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The other model, a GGUF file with the same vocabulary
    #[arg(value_name = "B")]
    b: PathBuf,
    /// The text [default: a paragraph of its own]
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Takes the text from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    #[command(flatten)]
    backends: BackendArgs,
    /// Tokens that are read at once [default: 2048, or what the models were trained for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    ctx: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    positions: u64,
    pairs: u64,
    mean_difference: Option<f64>,
    worst_difference: Option<f64>,
    worst_position: Option<u64>,
    worst_token: Option<u32>,
    mean_kl: Option<f64>,
    same_top: u64,
    top_agreement: Option<f64>,
    perplexity_a: Option<f64>,
    perplexity_b: Option<f64>,
    recorded: bool,
}

/// Runs the command.
pub(crate) fn run(args: &CompareLogitsArgs) -> Result<(), CliError> {
    let record = record(&args.a)?;
    if record.is_some() && (args.prompt.is_some() || args.file.is_some()) {
        let message = "A is a record and has its own tokens; leave out -p and -f";
        return Err(CliError::Usage(message.into()));
    }
    let text = match (&args.prompt, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => text_of(path, open(path)?)?,
        (None, None) => TEXT.to_owned(),
    };
    if text.is_empty() {
        return Err(CliError::Usage("the text is empty; give some with -p or -f".into()));
    }
    let mut engine = args.backends.computing_engine()?.build()?;
    let recorded = record.is_some();
    let (model, comparison) = match record {
        Some(cases) => {
            let model = load(&mut engine, &args.b, Weights::Lazy)?;
            let total = cases.iter().map(|case| case.prompt_ids.len() as u64).sum();
            // Long enough for what was recorded, whatever the model was trained for.
            let longest = cases.iter().map(|case| case.prompt_ids.len()).max().unwrap_or(0);
            let asked = args.ctx.or(u32::try_from(longest).ok());
            let context = context(&model, asked);
            let comparison =
                with_bar(total, |progress| Ok(compare_recorded(&mut engine, &cases, &model, context, progress)?))?;
            (model, comparison)
        }
        None => two_models(args, &mut engine, &text)?,
    };
    let report = Report::of(&comparison, recorded);
    if args.json { print_json(&report) } else { print(&report.text(&model)) }
}

fn two_models(
    args: &CompareLogitsArgs,
    engine: &mut Engine,
    text: &str,
) -> Result<(LanguageModel, Comparison), CliError> {
    let a = load(engine, &args.a, Weights::Lazy)?;
    let b = load(engine, &args.b, Weights::Lazy)?;
    let context = context(&a, args.ctx).min(context(&b, args.ctx));
    let tokens = a.tokenizer().encode(text, true)?;
    let comparison =
        with_bar(tokens.len() as u64, |progress| Ok(compare_models(engine, &a, &b, &tokens, context, progress)?))?;
    Ok((b, comparison))
}

fn with_bar<T>(total: u64, run: impl FnOnce(&mut dyn FnMut(u64)) -> Result<T, CliError>) -> Result<T, CliError> {
    let bar = progress_bar("comparing {bar:40} {pos}/{len} tokens");
    bar.set_length(total);
    let result = run(&mut |done| bar.set_position(done));
    bar.finish_and_clear();
    result
}

impl Report {
    #[expect(clippy::cast_precision_loss, reason = "counts of positions are far below 2^53")]
    fn of(comparison: &Comparison, recorded: bool) -> Self {
        let worst = comparison.worst_difference();
        let positions = comparison.positions();
        Self {
            positions,
            pairs: comparison.pairs(),
            mean_difference: comparison.mean_difference(),
            worst_difference: worst.map(|worst| worst.difference),
            worst_position: worst.map(|worst| worst.position),
            worst_token: worst.map(|worst| worst.token),
            mean_kl: comparison.mean_kl(),
            same_top: comparison.same_top(),
            top_agreement: (positions > 0).then(|| comparison.same_top() as f64 / positions as f64),
            perplexity_a: comparison.perplexity_a(),
            perplexity_b: comparison.perplexity_b(),
            recorded,
        }
    }

    /// The table for people.
    fn text(&self, model: &LanguageModel) -> String {
        let mut table = Table::new(&[("figure", Align::Left), ("value", Align::Left)]);
        let mut row = |name: &str, value: String| table.row([name.into(), value]);
        let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.6}"));
        let worst = match (self.worst_position, self.worst_token) {
            (Some(position), Some(token)) => {
                let spelling = excerpt(model.tokenizer().token_spelling(token).unwrap_or_default(), 24);
                format!(" at position {position}, token {token} ({spelling})")
            }
            _ => String::new(),
        };
        row("positions", self.positions.to_string());
        row("pairs compared", self.pairs.to_string());
        row("mean difference of log-probability", number(self.mean_difference));
        row("worst difference of log-probability", number(self.worst_difference) + &worst);
        let bound = if self.recorded { " (a lower bound)" } else { "" };
        row("mean KL divergence of B from A", number(self.mean_kl) + bound);
        let share = self.top_agreement.map_or(String::new(), |share| format!(" ({:.2} %)", share * 100.0));
        row("same likeliest token", format!("{} of {}{share}", self.same_top, self.positions));
        row("perplexity of A", number(self.perplexity_a));
        row("perplexity of B", number(self.perplexity_b));
        table.to_string()
    }
}

/// The cases of a record; none if the file is a model.
fn record(path: &Path) -> Result<Option<Vec<RecordedCase>>, CliError> {
    let mut file = open(path)?;
    let mut start = Vec::new();
    let magic_bytes = gguf::MAGIC.len() as u64;
    file.by_ref().take(magic_bytes).read_to_end(&mut start).map_err(|error| unreadable(path, error))?;
    // Anything but JSON is left to the reader of models, which knows what to say about it.
    let is_json = start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    if !is_json {
        return Ok(None);
    }
    let text = text_of(path, start.as_slice().chain(file))?;
    Ok(Some(RecordedCase::from_json(&text)?))
}

fn open(path: &Path) -> Result<File, CliError> {
    // Pipes are fine, `<(…)` of a shell is one.
    if std::fs::metadata(path).map_err(|error| unreadable(path, error))?.is_dir() {
        let reason = "it is a directory; give the path of a file".into();
        return Err(CliError::Unreadable { path: path.into(), reason });
    }
    File::open(path).map_err(|error| unreadable(path, error))
}

fn text_of(path: &Path, file: impl Read) -> Result<String, CliError> {
    let mut bytes = Vec::new();
    file.take(TEXT_LIMIT_BYTES).read_to_end(&mut bytes).map_err(|error| unreadable(path, error))?;
    let reason = match bytes.len() as u64 >= TEXT_LIMIT_BYTES {
        true => format!("it has {TEXT_LIMIT_BYTES} bytes or more, too many for a text"),
        false => match String::from_utf8(bytes) {
            Ok(text) => return Ok(text),
            Err(_) => "it is no UTF-8 text".into(),
        },
    };
    Err(CliError::Unreadable { path: path.into(), reason })
}

fn unreadable(path: &Path, error: io::Error) -> CliError {
    CliError::Unreadable { path: path.into(), reason: format!("{error}; check the path and its permissions") }
}
