//! `entensor run`: a model continues a text, or answers in a chat.

use std::{
    io::{self, BufRead, IsTerminal, Read, Write},
    time::{Duration, Instant},
};

use clap::Args;
use entensor::{Engine, EngineError, GraphId, ProfileConfig};
use entensor_models::{
    LanguageModel, ModelError, Session, SessionConfig,
    chat::{ChatTemplate, Conversation},
    sampling::{Sampler, StopStrings},
    tokenizer::ControlTokens,
};
use serde::Serialize;

use crate::{
    error::CliError,
    figures::{self, Align, PassFigures, PlanFigures, PlanSizes, Table},
    interrupt::Interrupt,
    loading::{ModelArgs, WeightFigures, Weights, WeightsIn, context, load_in},
    output::{note, print, print_json},
    profile::ProfileJson,
    sampling::SamplingArgs,
};

const EXAMPLES: &str = "\
Examples:
  entensor run model.gguf -p \"The capital of France is\" --temp 0
  entensor run model.gguf -p \"Once upon a time\" -n 400 --seed 7
  entensor run model.gguf -p \"Hello\" --backend cpu:threads=2 --json
  entensor run model.gguf -p \"Hello\" --profile
  entensor run model.gguf --chat -p \"Why is the sea salt?\" --stop \"\\n\\n\"
  entensor run model.gguf --chat --system \"You are a pirate.\"

With --chat, the model's own template makes a turn of the prompt; control tokens spelled in it are text then. Without -p, every
line of standard input is a turn, and what the model has seen is not fed again. With --json, each turn is an object on its own line.

The same command gives the same text: the seed is 0 unless given. Generation stops at a token that ends
the text, at a --stop text, after -n tokens, or when the context is full. Tokens are picked by repetition penalty, top-k,
tail-free, top-p, min-p and temperature, in this order. Ctrl-C ends generation, also in the middle of a long prompt, and keeps the
text so far; the exit status is 130 then. JSON: {\"text\", \"prompt_ids\", \"generated_ids\",
\"finish_reason\":\"stop|length|context|interrupted\", \"stop_string\", figures}, and with --profile \"profile\":{\"passes\",
\"graphs\":[{\"graph\", \"runs\", \"splits\", \"copies\", \"ops\", \"nodes\"}]} with count, mean_ns, p50_ns, p99_ns and max_ns of each.";

/// Continue a text with a model, or chat with it; tokens appear as they come, figures follow on standard error
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text; without --chat, special tokens that are written in it, such as <|im_start|>, are parsed
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, required_unless_present = "chat")]
    prompt: Option<String>,
    /// Answers as the model's chat template asks for it: the text, or one line of standard input after the other
    #[arg(long)]
    chat: bool,
    /// What the model is told about how to behave
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true)]
    system: Option<String>,
    /// Most tokens to generate, in each turn
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 128, allow_negative_numbers = true)]
    max_tokens: u32,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Where the weights lie
    #[arg(long, value_enum, default_value_t)]
    weights: WeightsIn,
    /// Print one JSON object at the end instead of the text
    #[arg(long)]
    json: bool,
    /// Time passes, runs, splits, copies and ops, and print statistics of them with the figures
    #[arg(long)]
    profile: bool,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum FinishReason {
    /// So many tokens were asked for.
    Length,
    /// The model ended the text.
    Stop,
    /// The context is full.
    Context,
    /// Ctrl-C.
    Interrupted,
}

/// What was generated, and how long it took.
struct Generated {
    text: String,
    ids: Vec<u32>,
    finish_reason: FinishReason,
    stop_string: Option<String>,
    /// Tokens of the prompt that were read: fewer than it has where it was interrupted.
    prompt_read: u32,
    prompt_time: Duration,
    first_token: Option<Duration>,
    /// From the first token on.
    decode_time: Duration,
    /// Tokens fed after the prompt.
    decoded: u32,
}

#[derive(Serialize)]
struct Report<'a> {
    text: &'a str,
    prompt_ids: &'a [u32],
    generated_ids: &'a [u32],
    finish_reason: FinishReason,
    stop_string: Option<&'a str>,
    prompt_tokens_per_s: Option<f64>,
    decode_tokens_per_s: Option<f64>,
    /// From the prompt on, with the model loaded.
    time_to_first_token_ms: Option<f64>,
    /// From the start on, loading included.
    cold_time_to_first_token_ms: Option<f64>,
    load_ms: f64,
    #[serde(flatten)]
    weights: WeightFigures,
    #[serde(flatten)]
    sizes: PlanSizes,
    plans: PlanFigures,
    passes: Vec<PassFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<ProfileJson>,
}

/// Longer lines are no turns of a chat; a limit, so that a device is not read forever.
const LINE_LIMIT_BYTES: u64 = 16 << 20;

/// A model that generates.
struct Runner<'a> {
    args: &'a RunArgs,
    engine: Engine,
    model: LanguageModel,
    session: Session,
    sampler: Sampler,
    stops: StopStrings,
    load_time: Duration,
    weights: WeightFigures,
    interrupt: Interrupt,
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> Result<(), CliError> {
    // Settings are checked before a model is loaded for nothing.
    let sampler = args.sampling.sampler()?;
    let stops = args.sampling.stop_strings()?;
    if args.prompt.as_ref().is_some_and(String::is_empty) {
        return Err(CliError::Usage("the prompt is empty; give some text with -p".into()));
    }
    let interrupt = Interrupt::install();
    let start = Instant::now();
    let mut engine = args.model.backends.computing_engine()?.build()?;
    engine.set_profile(args.profile.then(ProfileConfig::default));
    let model = load_in(&mut engine, &args.model.model, Weights::Warm, args.weights)?;
    let load_time = start.elapsed();
    let weights = WeightFigures::new(&mut engine, &model, args.weights);
    let chat = if args.chat { Some(conversation(args, &model)?) } else { None };
    let config = SessionConfig { context: context(&model, args.model.ctx), ..SessionConfig::default() };
    let mut session = Session::new(&mut engine, &model, config)?;
    session.set_cancel_token(Some(interrupt.token()));
    let mut runner = Runner { args, engine, model, session, sampler, stops, load_time, weights, interrupt };
    let last = match (chat, &args.prompt) {
        (None, prompt) => {
            let prompt = prompt.as_deref().unwrap_or_default();
            let ids = runner.model.tokenizer().encode(prompt, true)?;
            let generated = runner.generate(&ids)?;
            Some((ids, generated))
        }
        (Some(mut chat), Some(prompt)) => Some(runner.turn(&mut chat, prompt)?),
        (Some(mut chat), None) => runner.turns(&mut chat)?,
    };
    if let Some((ids, generated)) = last {
        if !args.json {
            note(format_args!("\n{}", runner.report(&ids, &generated).figures()));
        } else if args.prompt.is_some() {
            // Turns that came line by line are printed already.
            print_json(&runner.report(&ids, &generated))?;
        }
        if generated.finish_reason == FinishReason::Interrupted {
            return Err(CliError::Interrupted);
        }
    }
    Ok(())
}

fn conversation(args: &RunArgs, model: &LanguageModel) -> Result<Conversation, CliError> {
    let template = ChatTemplate::from_metadata(model.file().metadata(), model.tokenizer())?;
    Ok(Conversation::new(template, model.tokenizer().clone(), args.system.as_deref()))
}

impl Runner<'_> {
    /// Lets the user say something, and the model answer: what was fed, and what was generated.
    fn turn(&mut self, chat: &mut Conversation, text: &str) -> Result<(Vec<u32>, Generated), CliError> {
        let turn = chat.ask(text)?;
        self.session.truncate(turn.keep);
        self.stops.restart();
        let generated = self.generate(&turn.feed)?;
        let ends = generated.ids.last().is_some_and(|&id| self.model.tokenizer().is_end(id));
        let picked = &generated.ids[..generated.ids.len() - usize::from(ends)];
        chat.answer(&generated.text, picked, generated.decoded as usize);
        Ok((turn.feed, generated))
    }

    /// Takes lines of standard input as turns until it ends; gives the last one.
    fn turns(&mut self, chat: &mut Conversation) -> Result<Option<(Vec<u32>, Generated)>, CliError> {
        let mut last = None;
        let asks = io::stdin().is_terminal();
        loop {
            if asks {
                let mut stderr = io::stderr().lock();
                // That nobody can see it is no reason to stop.
                let _ = write!(stderr, "> ").and_then(|()| stderr.flush());
            }
            let Some(line) = read_line()? else { return Ok(last) };
            if line.trim().is_empty() {
                continue;
            }
            let (ids, generated) = self.turn(chat, &line)?;
            if self.args.json {
                print_json(&self.report(&ids, &generated))?;
            }
            let interrupted = generated.finish_reason == FinishReason::Interrupted;
            last = Some((ids, generated));
            if interrupted {
                return Ok(last);
            }
        }
    }

    fn report<'a>(&self, prompt_ids: &'a [u32], generated: &'a Generated) -> Report<'a> {
        Report {
            text: &generated.text,
            prompt_ids,
            generated_ids: &generated.ids,
            finish_reason: generated.finish_reason,
            stop_string: generated.stop_string.as_deref(),
            prompt_tokens_per_s: per_second(generated.prompt_read as usize, generated.prompt_time),
            decode_tokens_per_s: per_second(generated.decoded as usize, generated.decode_time),
            time_to_first_token_ms: generated.first_token.map(millis),
            cold_time_to_first_token_ms: generated.first_token.map(|time| millis(self.load_time + time)),
            load_ms: millis(self.load_time),
            weights: self.weights,
            sizes: last_plan(&self.engine),
            plans: PlanFigures::new(&self.engine.counters()),
            passes: figures::pass_figures(&self.engine.timings()),
            profile: ProfileJson::of(&self.engine),
        }
    }

    fn generate(&mut self, prompt_ids: &[u32]) -> Result<Generated, CliError> {
        self.interrupt.computing(true);
        let generated = self.generate_until_interrupted(prompt_ids);
        self.interrupt.computing(false);
        generated
    }

    fn generate_until_interrupted(&mut self, prompt_ids: &[u32]) -> Result<Generated, CliError> {
        let Self { args, engine, model, session, sampler, stops, interrupt, .. } = self;
        let start = Instant::now();
        let mut generated = Generated {
            text: String::new(),
            ids: Vec::new(),
            finish_reason: FinishReason::Length,
            stop_string: None,
            prompt_read: 0,
            prompt_time: Duration::ZERO,
            first_token: None,
            decode_time: Duration::ZERO,
            decoded: 0,
        };
        let before = session.position();
        let fed = self::fed(session.feed(engine, model, prompt_ids))?;
        generated.prompt_time = start.elapsed();
        generated.prompt_read = session.position().saturating_sub(before);
        sampler.accept(prompt_ids);
        let mut stream = model.tokenizer().stream(ControlTokens::Skip);
        let mut decode_start = Instant::now();
        for _ in 0..if fed { args.max_tokens } else { 0 } {
            if let Some(&last) = generated.ids.last() {
                if session.remaining() == 0 {
                    generated.finish_reason = FinishReason::Context;
                    break;
                }
                if interrupt.came() || !self::fed(session.feed(engine, model, &[last]))? {
                    break;
                }
                generated.decoded += 1;
            }
            let id = sampler.sample(session.logits())?;
            if generated.first_token.is_none() {
                generated.first_token = Some(start.elapsed());
                decode_start = Instant::now();
            }
            generated.ids.push(id);
            show(args, stops.push(stream.push(id)?), &mut generated.text)?;
            if model.tokenizer().is_end(id) || stops.found().is_some() {
                generated.finish_reason = FinishReason::Stop;
                break;
            }
        }
        if interrupt.came() {
            generated.finish_reason = FinishReason::Interrupted;
        }
        generated.decode_time = decode_start.elapsed();
        show(args, stops.push(stream.finish()), &mut generated.text)?;
        show(args, stops.finish(), &mut generated.text)?;
        generated.stop_string = stops.found().map(str::to_owned);
        if !args.json && !generated.text.ends_with('\n') {
            print("\n")?;
        }
        Ok(generated)
    }
}

/// Whether a feed came to its end; not if it was cancelled.
fn fed(result: Result<(), ModelError>) -> Result<bool, CliError> {
    match result {
        Ok(()) => Ok(true),
        Err(ModelError::Engine(EngineError::Cancelled { .. })) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A line of standard input without its end; none at the end of all.
fn read_line() -> Result<Option<String>, CliError> {
    let unreadable = |reason: String| CliError::Unreadable { path: "standard input".into(), reason };
    let mut bytes = Vec::new();
    let mut input = io::stdin().lock().take(LINE_LIMIT_BYTES);
    input.read_until(b'\n', &mut bytes).map_err(|error| unreadable(error.to_string()))?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() as u64 == LINE_LIMIT_BYTES {
        return Err(unreadable(format!("a line has {LINE_LIMIT_BYTES} bytes or more, too many for a turn")));
    }
    let line = String::from_utf8(bytes).map_err(|_| unreadable("a line is no UTF-8 text".into()))?;
    Ok(Some(line.trim_end_matches(['\n', '\r']).to_owned()))
}

/// Keeps a piece of the text, and shows it at once unless one JSON object is wanted.
fn show(args: &RunArgs, piece: &str, text: &mut String) -> Result<(), CliError> {
    text.push_str(piece);
    if args.json || piece.is_empty() { Ok(()) } else { print(piece) }
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens are far below 2^53")]
fn per_second(count: usize, time: Duration) -> Option<f64> {
    let seconds = time.as_secs_f64();
    (count > 0 && seconds > 0.0).then(|| count as f64 / seconds)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Sizes of the plan that ran last.
fn last_plan(engine: &Engine) -> PlanSizes {
    let last = engine.world().get_resource::<entensor::systems::Planning>().map(|planning| GraphId(planning.0));
    last.and_then(|graph| engine.plan_of(graph)).map(|plan| PlanSizes::of(plan)).unwrap_or_default()
}

impl Report<'_> {
    /// The tables for people.
    fn figures(&self) -> String {
        let mut table = Table::new(&[("figure", Align::Left), ("value", Align::Left)]);
        let mut row = |name: &str, value: String| table.row([name.into(), value]);
        let optional = |value: Option<f64>, unit: &str| value.map_or("-".into(), |value| format!("{value:.1} {unit}"));
        let finish = match self.finish_reason {
            FinishReason::Length => "-n tokens were generated",
            FinishReason::Stop if self.stop_string.is_some() => "a stop text came up",
            FinishReason::Stop => "the model ended the text",
            FinishReason::Context => "the context is full; a larger --ctx lets it go on",
            FinishReason::Interrupted => "it was interrupted",
        };
        row("load", format!("{:.1} ms", self.load_ms));
        row("weights", self.weights.to_string());
        let (warm, cold) = (self.time_to_first_token_ms, self.cold_time_to_first_token_ms);
        row("time to first token", format!("{}, {} with loading", optional(warm, "ms"), optional(cold, "ms")));
        row("prompt", format!("{} tokens, {}", self.prompt_ids.len(), optional(self.prompt_tokens_per_s, "tokens/s")));
        let decode = optional(self.decode_tokens_per_s, "tokens/s");
        row("decode", format!("{} tokens, {decode}", self.generated_ids.len()));
        row("end", finish.into());
        row("plans", self.plans.to_string());
        let PlanSizes { splits, copies, planned_bytes } = self.sizes;
        row("last plan", format!("{splits} splits, {copies} copies, {} planned", figures::bytes(planned_bytes)));
        let profile = self.profile.as_ref().map(ProfileJson::text).unwrap_or_default();
        format!("{profile}{}\n{table}", figures::pass_table(&self.passes)).trim_end().into()
    }
}
