//! `entensor explain`: why every node is where it is.

use std::{collections::HashSet, fmt::Write as _, sync::Arc};

use clap::Args;
use entensor::{Engine, Explanation, components::Backend};
use serde::Serialize;

use crate::{
    error::CliError,
    figures::{Align, Table},
    output::{excerpt, print, print_json},
    subject::SubjectArgs,
};

const EXAMPLES: &str = "\
Examples:
  entensor explain two-backends.graph
  entensor explain model.gguf --machine two-gpus.graph --gpu-layers 20
  entensor explain model.gguf --json

The last lines say of each backend in use how far its results are the same.

JSON: {\"nodes\":[{\"node\",\"op\",\"dtype\",\"shape\",\"backend\",\"cause\",\"why\"}],
\"backends\":[{\"backend\",\"sameness\":\"device\"|\"machine\"|\"strict\",\"meaning\"}]}, and {\"error\":...} as in `plan`.";

/// Explain where every node of a graph runs, and why
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    subject: SubjectArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    nodes: Vec<Node>,
    backends: Vec<InUse>,
}

#[derive(Serialize)]
struct Node {
    node: String,
    op: String,
    dtype: &'static str,
    shape: [u64; 4],
    backend: String,
    cause: &'static str,
    why: String,
}

/// A backend that has nodes.
#[derive(Serialize)]
struct InUse {
    backend: String,
    sameness: &'static str,
    meaning: String,
}

/// Runs the command.
pub(crate) fn run(args: &ExplainArgs) -> Result<(), CliError> {
    let result = explain(args);
    if let Err(error) = &result
        && args.json
        && !error.is_output()
    {
        print_json(&error.to_json())?;
    }
    result
}

fn explain(args: &ExplainArgs) -> Result<(), CliError> {
    let mut subject = args.subject.read(false)?;
    let explanations = subject.engine.explain(subject.graph)?;
    let backends = in_use(&subject.engine, &explanations);
    if args.json {
        return print_json(&Report { nodes: explanations.iter().map(Node::new).collect(), backends });
    }
    let columns = ["node", "op", "type", "backend", "cause", "why"].map(|heading| (heading, Align::Left));
    let mut table = Table::new(&columns);
    for e in &explanations {
        let kind = format!("{} {}", e.dtype, e.shape);
        let (node, backend, why) = (safe(&e.node), safe(&e.backend), safe(&e.why));
        table.row([node, e.op.clone(), kind, backend, e.cause.name().into(), why]);
    }
    let mut text = format!("{table}\n");
    for InUse { backend, meaning, .. } in &backends {
        let _ = writeln!(text, "{}: {meaning}", safe(backend));
    }
    print(&text)
}

/// The backends that nodes are on, the highest first.
fn in_use(engine: &Engine, explanations: &[Explanation]) -> Vec<InUse> {
    let names: HashSet<&str> = explanations.iter().map(|explanation| &*explanation.backend).collect();
    let backends = engine.backends().iter().filter(|backend| names.contains(backend.name()));
    let row = |backend: &Arc<dyn Backend>| {
        let sameness = backend.sameness();
        InUse { backend: backend.name().into(), sameness: sameness.name(), meaning: sameness.to_string() }
    };
    backends.map(row).collect()
}

/// Names come from files, and must not steer a terminal.
fn safe(name: &str) -> String {
    excerpt(name, usize::MAX)
}

impl Node {
    fn new(explanation: &Explanation) -> Self {
        Self {
            node: explanation.node.to_string(),
            op: explanation.op.clone(),
            dtype: explanation.dtype.name(),
            shape: explanation.shape.0,
            backend: explanation.backend.to_string(),
            cause: explanation.cause.name(),
            why: explanation.why.clone(),
        }
    }
}
