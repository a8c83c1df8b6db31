//! The `entensor` command: runs, inspects, plans, explains, measures, converts and compares models.
//!
//! Standard output carries the result alone; messages and figures for people go to standard error. Exit status: 0 done, 1 the
//! model, a plan or a run failed, 2 bad usage or an unreadable file, 130 ended by Ctrl-C.
#![forbid(unsafe_code)]

mod commands;
mod error;
mod figures;
mod interrupt;
mod loading;
mod output;
mod plan_dot;
mod plan_json;
mod profile;
mod sampling;
mod subject;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  entensor run model.gguf -p \"The capital of France is\"
  entensor bench model.gguf -t 1,2,4
  entensor plan model.gguf --machine two-gpus.graph --gpu-layers 20 --format json

Exit status: 0 done, 1 the model, a plan or a run failed, 2 bad usage or an unreadable file, 130 ended by Ctrl-C.";

/// Run, inspect, plan, explain, measure, convert and compare machine-learning models.
#[derive(Parser)]
#[command(name = "entensor", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(commands::run::RunArgs),
    Tokenize(commands::tokenize::TokenizeArgs),
    Inspect(commands::inspect::InspectArgs),
    Plan(commands::plan::PlanArgs),
    Explain(commands::explain::ExplainArgs),
    Logits(commands::logits::LogitsArgs),
    Bench(commands::bench::BenchArgs),
    Quantize(commands::quantize::QuantizeArgs),
    Backends(commands::backends::BackendsArgs),
    Compare(commands::compare::CompareArgs),
    CompareLogits(commands::compare_logits::CompareLogitsArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => commands::run::run(&args),
        Command::Tokenize(args) => commands::tokenize::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Logits(args) => commands::logits::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Quantize(args) => commands::quantize::run(&args),
        Command::Backends(args) => commands::backends::run(&args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::CompareLogits(args) => commands::compare_logits::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format_args!("error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}
