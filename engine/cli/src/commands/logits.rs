//! `entensor logits`: what a model expects after every token of a text.

use clap::Args;
use entensor_models::{Logits, Session, SessionConfig, compare::log_sum_exp};
use serde::Serialize;

use crate::{
    error::CliError,
    figures::{Align, Table},
    loading::{ModelArgs, PromptArgs, Weights, context, load},
    output::{excerpt, print, print_json},
};

const EXAMPLES: &str = "\
Examples:
  entensor logits model.gguf -p \"The capital of France is\" --top 5
  entensor logits model.gguf -p \"1, 2, 3,\" --json

JSON: {\"prompt_ids\":[id, ...], \"positions\":[{\"top\":[[id, logit], ...], \"logsumexp\":x}, ...]}, a position for
each token of the prompt. A log-probability is logit - logsumexp.";

/// Print the likeliest next tokens after every token of a text
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Tokens listed per position
    #[arg(long, value_name = "K", default_value_t = 10)]
    top: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What is expected after one token.
#[derive(Debug, PartialEq, Serialize)]
struct Position {
    top: Vec<(u32, f32)>,
    logsumexp: f64,
}

#[derive(Serialize)]
struct Report<'a> {
    prompt_ids: &'a [u32],
    positions: &'a [Position],
}

/// Runs the command.
pub(crate) fn run(args: &LogitsArgs) -> Result<(), CliError> {
    let prompt = args.prompt.not_empty()?;
    let mut engine = args.model.backends.computing_engine()?.build()?;
    let model = load(&mut engine, &args.model.model, Weights::Lazy)?;
    let prompt_ids = model.tokenizer().encode(prompt, true)?;
    let config = SessionConfig { context: context(&model, args.model.ctx), ..SessionConfig::default() };
    let mut session = Session::new(&mut engine, &model, config)?;
    let mut positions = Vec::with_capacity(prompt_ids.len());
    let mut order = Vec::new();
    session.feed_with(&mut engine, &model, &prompt_ids, Logits::All, |_, row| {
        positions.push(Position::of(row, args.top as usize, &mut order));
    })?;
    if args.json {
        return print_json(&Report { prompt_ids: &prompt_ids, positions: &positions });
    }
    let spelling = |id: u32| excerpt(model.tokenizer().token_spelling(id).unwrap_or_default(), 24);
    let mut table = Table::new(&[
        ("position", Align::Right),
        ("after", Align::Left),
        ("id", Align::Right),
        ("next", Align::Left),
        ("logit", Align::Right),
        ("probability", Align::Right),
    ]);
    for (at, (position, &after)) in positions.iter().zip(&prompt_ids).enumerate() {
        for (rank, &(id, logit)) in position.top.iter().enumerate() {
            let (place, text) = if rank == 0 { (at.to_string(), spelling(after)) } else { Default::default() };
            let probability = format!("{:.4}", (f64::from(logit) - position.logsumexp).exp());
            table.row([place, text, id.to_string(), spelling(id), format!("{logit:.4}"), probability]);
        }
    }
    print(&table.to_string())
}

impl Position {
    /// The `top` largest logits, the lowest ids of equals first. `order` is kept between calls.
    fn of(logits: &[f32], top: usize, order: &mut Vec<(u32, f32)>) -> Self {
        // Zeros of both signs are equal logits.
        let larger = |a: &(u32, f32), b: &(u32, f32)| (b.1 + 0.0).total_cmp(&(a.1 + 0.0)).then(a.0.cmp(&b.0));
        order.clear();
        order.extend((0_u32..).zip(logits.iter().copied()));
        if (1..order.len()).contains(&top) {
            order.select_nth_unstable_by(top - 1, larger);
        }
        order.truncate(top);
        order.sort_unstable_by(larger);
        Self { top: order.clone(), logsumexp: log_sum_exp(logits) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_first_and_ties_by_id() {
        let logits = [1.0, 3.0, -0.0, 3.0, 0.0, f32::NEG_INFINITY];
        let top = |top| Position::of(&logits, top, &mut Vec::new()).top.iter().map(|t| t.0).collect::<Vec<_>>();
        assert_eq!(top(0), [0_u32; 0]);
        assert_eq!(top(1), [1]);
        assert_eq!(top(4), [1, 3, 0, 2]);
        assert_eq!(top(99), [1, 3, 0, 2, 4, 5]);
    }
}
