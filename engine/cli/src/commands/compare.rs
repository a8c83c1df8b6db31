//! `entensor compare`: whether two backends compute the same, node by node.

use std::path::PathBuf;

use clap::Args;
use entensor::{BackendSpec, Engine, GraphComparison, NodeDifference};
use entensor_models::{MICRO_BATCH_TOKENS, compare::compare_nodes};
use serde::Serialize;

use super::compare_logits::TEXT;
use crate::{
    error::CliError,
    figures::{Align, Table},
    loading::{BackendArgs, Weights, load},
    output::{print, print_json},
};

const EXAMPLES: &str = "\
Examples:
  entensor compare model.gguf --a cpu --b gemm
  entensor compare model.gguf --a oracle --b cpu:threads=2 -p \"The capital of France is\"
  entensor compare model.gguf --b gemm --tokens 512 --json

Each side is its backend with cpu below it, since a machine ends with the host. The tokens are fed at once. NMSE is the sum
of squared differences over the sum of squares of side A. `nmse`: side B is given what side A read for each node, so the figure
is about that node alone; it must not be above `limit`, which is the op table's. `whole`: each side goes on with its own results.
Exit status 1 if a node is above its limit. The last line is `N nodes, worst NMSE X at NAME, M over`. JSON: {\"nodes\":
[{\"node\", \"op\", \"a\", \"b\", \"nmse\", \"whole\", \"limit\", \"over\"}], \"over\"}, the worst first; null for what is not finite.";

/// Compare what two backends compute for every node of a model
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompareArgs {
    /// The model, a GGUF file
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The backend that counts as right, such as oracle or cpu:threads=2
    #[arg(long, value_name = "SPEC", default_value = "cpu")]
    a: String,
    /// The backend that is compared with it
    #[arg(long, value_name = "SPEC")]
    b: String,
    /// The text [default: a paragraph of its own]
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Most tokens of the text that are fed [default: 64 of the paragraph, all of a text of yours]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MICRO_BATCH_TOKENS)))]
    tokens: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row<'a> {
    node: &'a str,
    op: &'static str,
    a: &'a str,
    b: &'a str,
    nmse: f64,
    whole: f64,
    limit: f64,
    over: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    nodes: Vec<Row<'a>>,
    over: usize,
}

/// Tokens of the paragraph that are fed unless more are asked for.
const DEFAULT_TOKENS: usize = 64;

/// Runs the command.
pub(crate) fn run(args: &CompareArgs) -> Result<(), CliError> {
    let text = args.prompt.as_deref().unwrap_or(TEXT);
    if text.is_empty() {
        return Err(CliError::Usage("the prompt is empty; give some text with -p".into()));
    }
    let (mut a, mut b) = (engine(&args.a)?, engine(&args.b)?);
    let model = load(&mut a, &args.model, Weights::Lazy)?;
    let mut tokens = model.tokenizer().encode(text, true)?;
    let most = match (args.tokens, &args.prompt) {
        (Some(most), _) => most as usize,
        (None, Some(_)) => tokens.len(),
        (None, None) => DEFAULT_TOKENS,
    };
    if args.prompt.is_none() && tokens.len() < most {
        // The paragraph again and again: what it says does not matter.
        tokens = tokens.iter().copied().cycle().take(most).collect();
    }
    tokens.truncate(most);
    if tokens.len() > MICRO_BATCH_TOKENS as usize {
        let (count, most) = (tokens.len(), MICRO_BATCH_TOKENS);
        return Err(CliError::Usage(format!(
            "the text has {count} tokens, and at most {most} are fed at once; shorten it or give --tokens"
        )));
    }
    let comparison = compare_nodes(&mut a, &mut b, &model, &tokens)?;
    if args.json {
        print_json(&Report::of(&comparison))?;
    } else {
        print(&table(&comparison))?;
    }
    match comparison.over() {
        0 => Ok(()),
        over => Err(CliError::Over { over }),
    }
}

/// A backend with the host below it.
fn engine(spec: &str) -> Result<Engine, CliError> {
    let name = BackendSpec::parse(spec).map_err(|error| CliError::Engine(error.into()))?.name;
    let mut specs = vec![spec.to_owned()];
    if name != "cpu" {
        specs.push("cpu".into());
    }
    Ok(BackendArgs { specs }.computing_engine()?.build()?)
}

impl<'a> Report<'a> {
    fn of(comparison: &'a GraphComparison) -> Self {
        let row = |node: &'a NodeDifference| Row {
            node: &node.node,
            op: node.op.name(),
            a: &node.backend_a,
            b: &node.backend_b,
            nmse: node.nmse,
            whole: node.whole_nmse,
            limit: node.max_nmse,
            over: node.is_over(),
        };
        Self { nodes: comparison.worst_first().into_iter().map(row).collect(), over: comparison.over() }
    }
}

/// The table for people, and the last line.
fn table(comparison: &GraphComparison) -> String {
    let mut table = Table::new(&[
        ("node", Align::Left),
        ("op", Align::Left),
        ("a", Align::Left),
        ("b", Align::Left),
        ("nmse", Align::Right),
        ("whole", Align::Right),
        ("limit", Align::Right),
        ("", Align::Left),
    ]);
    for node in comparison.worst_first() {
        let number = |value: f64| format!("{value:.3e}");
        table.row([
            node.node.to_string(),
            node.op.name().into(),
            node.backend_a.to_string(),
            node.backend_b.to_string(),
            number(node.nmse),
            number(node.whole_nmse),
            number(node.max_nmse),
            if node.is_over() { "OVER".into() } else { String::new() },
        ]);
    }
    format!("{table}{comparison}\n")
}
