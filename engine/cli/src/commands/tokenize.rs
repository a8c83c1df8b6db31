//! `entensor tokenize`: the token ids of a text.

use std::path::PathBuf;

use clap::Args;
use entensor_models::{gguf::GgufFile, tokenizer::Tokenizer};
use serde::Serialize;

use crate::{
    error::CliError,
    figures::{Align, Table},
    loading::PromptArgs,
    output::{excerpt, print, print_json},
};

const EXAMPLES: &str = "\
Examples:
  entensor tokenize model.gguf -p \"Hello, world\"
  entensor tokenize model.gguf -p \"<|im_start|>user\" --json

JSON: {\"prompt_ids\":[id, ...], \"pieces\":[\"how the vocabulary spells it\", ...]}";

/// Print the token ids of a text
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenizeArgs {
    /// The model, a GGUF file; only its vocabulary is read
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Tokens<'a> {
    prompt_ids: &'a [u32],
    pieces: Vec<&'a str>,
}

/// Runs the command.
pub(crate) fn run(args: &TokenizeArgs) -> Result<(), CliError> {
    let file = GgufFile::open(&args.model)?;
    let tokenizer = Tokenizer::from_metadata(file.metadata())?;
    let ids = tokenizer.encode(&args.prompt.prompt, true)?;
    let spelling = |&id: &u32| tokenizer.token_spelling(id).unwrap_or_default();
    if args.json {
        return print_json(&Tokens { prompt_ids: &ids, pieces: ids.iter().map(spelling).collect() });
    }
    let mut table = Table::new(&[("id", Align::Right), ("piece", Align::Left)]);
    for id in &ids {
        table.row([id.to_string(), excerpt(spelling(id), usize::MAX)]);
    }
    print(&table.to_string())
}
