//! `entensor plan`: what the passes decide about a graph, without running it.

use clap::{Args, ValueEnum};
use entensor::{Engine, EngineError, Pass, Plan, systems::text::PassTexts};

use crate::{
    error::CliError,
    figures::{PlanSizes, bytes},
    output::{note, print, print_json},
    plan_dot,
    plan_json::PlanJson,
    subject::SubjectArgs,
};

const EXAMPLES: &str = "\
Examples:
  entensor plan two-backends.graph --until split
  entensor plan model.gguf --tokens 32 --format json
  entensor plan model.gguf --machine two-gpus.graph --gpu-layers 20 --verify
  entensor plan model.gguf --format graph > model.graph

Nothing is computed. The backends of a .graph text are imaginary, so a placement question can be asked of a
machine that one does not own. With --format json, an error is printed as
{\"error\":{\"kind\",\"message\",\"node\",\"backend\"}} too. Exit status 1 for an error of planning or a violation
that --verify found.";

/// Plan a graph: where every node runs, what is copied, how much memory it takes
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    subject: SubjectArgs,
    /// Stops after a pass; with --format text
    #[arg(long, value_name = "PASS", value_parser = pass_parser())]
    until: Option<Pass>,
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Proves the plan with a checker that shares no code with the passes
    #[arg(long)]
    verify: bool,
}

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// What each pass changed, in the canonical words
    Text,
    /// One JSON object
    Json,
    /// The graph and its machine as .graph text
    Graph,
    /// The plan as input of Graphviz
    Dot,
}

fn pass_parser() -> impl clap::builder::TypedValueParser<Value = Pass> {
    use clap::builder::{PossibleValuesParser, TypedValueParser as _};
    let names = Pass::ALL.map(Pass::name);
    // Every possible value is the name of a pass.
    PossibleValuesParser::new(names).map(|name| Pass::from_name(&name).unwrap_or(Pass::Compute))
}

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> Result<(), CliError> {
    let result = plan(args);
    if let Err(error) = &result
        && args.format == Format::Json
        && !error.is_output()
    {
        print_json(&error.to_json())?;
    }
    result
}

fn plan(args: &PlanArgs) -> Result<(), CliError> {
    if args.until.is_some() && args.format != Format::Text {
        return Err(CliError::Usage("--until shows passes as text; leave out --format, or --until".into()));
    }
    let mut subject = args.subject.read(args.verify)?;
    if args.format == Format::Graph && !args.verify {
        return print(&subject.to_text()?);
    }
    let until = args.until.unwrap_or(Pass::Compute);
    match subject.engine.plan(subject.graph) {
        // A pass that was not asked for failed.
        Err(EngineError::Plan { pass, .. }) if pass > until => return print(&pass_texts(&subject.engine, until)),
        result => result.map(drop)?,
    }
    let plan = subject.engine.plan_of(subject.graph).ok_or(EngineError::UnknownGraph)?;
    if args.verify {
        note(format_args!("verified: every read finds its bytes, and no memory is used twice at a time"));
    }
    match args.format {
        Format::Text => {
            print(&pass_texts(&subject.engine, until))?;
            summary(plan);
            Ok(())
        }
        Format::Json => print_json(&PlanJson::new(plan, &subject.engine.timings())),
        Format::Graph => print(&subject.to_text()?),
        Format::Dot => print(&plan_dot::render(plan)),
    }
}

fn pass_texts(engine: &Engine, until: Pass) -> String {
    engine.world().get_resource::<PassTexts>().map_or_else(String::new, |texts| texts.render(until))
}

fn summary(plan: &Plan) {
    let PlanSizes { splits, copies, planned_bytes } = PlanSizes::of(plan);
    let (nodes, planned, least) = (plan.node_count(), bytes(planned_bytes), bytes(plan.lower_bound_bytes));
    note(format_args!(
        "{nodes} nodes, {splits} splits, {copies} copies, {planned} planned (no plan needs less than {least})"
    ));
}
