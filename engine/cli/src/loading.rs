//! Engines and models from command-line options, with a progress bar on terminals.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use entensor::{AUTO, BackendSpec, Engine, EngineBuilder, Registry};
use entensor_models::{LanguageModel, LoadStage, ModelLoad, WeightMemory};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use serde::Serialize;

use crate::{error::CliError, figures::bytes, output::note};

/// The context where nothing else is asked for, if the model was trained for as much.
const DEFAULT_CONTEXT: u32 = 2048;

/// The model and what runs it.
#[derive(Args)]
pub(crate) struct ModelArgs {
    /// The model, a GGUF file
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) backends: BackendArgs,
    /// Tokens that fit into the context [default: 2048, or what the model was trained for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub(crate) ctx: Option<u32>,
}

/// What computes.
#[derive(Args)]
pub(crate) struct BackendArgs {
    /// Adds a backend, highest priority first, such as cpu:threads=2; `entensor backends` lists them [default: auto]
    #[arg(long = "backend", value_name = "SPEC")]
    pub(crate) specs: Vec<String>,
}

impl BackendArgs {
    /// An engine with these backends that computes, or the default one.
    pub(crate) fn computing_engine(&self) -> Result<EngineBuilder, CliError> {
        for spec in &self.specs {
            if BackendSpec::parse(spec).is_ok_and(|spec| spec.name == "null") {
                let message = "the null backend computes nothing: it is for `plan` and `explain`; leave it out here";
                return Err(CliError::Usage(message.into()));
            }
        }
        Ok(self.engine())
    }

    /// The same backends, or the default one, on so many threads: those that can be told and were not.
    pub(crate) fn with_threads(&self, threads: u32) -> Self {
        let registry = Registry::default();
        let specs = if self.specs.is_empty() { vec![AUTO.into()] } else { self.specs.clone() };
        let told = |text: String| match BackendSpec::parse(&text) {
            Ok(spec) if spec.option("threads").is_none() && !spec.flag("threads") => {
                let takes = registry.takes(&spec.name, "threads");
                let sign = if text.contains(':') { ',' } else { ':' };
                if takes { format!("{text}{sign}threads={threads}") } else { text }
            }
            // What is wrong with it is said where the backend is made.
            _ => text,
        };
        Self { specs: specs.into_iter().map(told).collect() }
    }

    /// An engine with these backends, or the default one.
    pub(crate) fn engine(&self) -> EngineBuilder {
        self.specs.iter().fold(Engine::builder(), EngineBuilder::backend)
    }
}

/// The text that a model is given.
#[derive(Args)]
pub(crate) struct PromptArgs {
    /// The text; special tokens that are written in it, such as <|im_start|>, are parsed
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: String,
}

impl PromptArgs {
    /// The text, unless there is none.
    pub(crate) fn not_empty(&self) -> Result<&str, CliError> {
        if self.prompt.is_empty() {
            return Err(CliError::Usage("the prompt is empty; give some text with -p".into()));
        }
        Ok(&self.prompt)
    }
}

/// Where weights lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum WeightsIn {
    /// In the mapped file: no copy
    #[default]
    Mapped,
    /// Copied to pages of 2 MiB: as much memory as the file is large, and faster to read
    Huge,
}

impl WeightsIn {
    fn memory(self) -> WeightMemory {
        match self {
            Self::Mapped => WeightMemory::Mapped,
            Self::Huge => WeightMemory::Huge,
        }
    }
}

/// Where a model's weights lie, and what memory they take.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct WeightFigures {
    /// `mapped` or `huge`, as it was asked for.
    #[serde(rename = "weights")]
    asked: &'static str,
    /// The file, as it is mapped.
    mapped_bytes: u64,
    /// Memory of ours that the weights were copied to.
    weight_copy_bytes: u64,
    /// How much of all our memory lies on pages of 2 MiB.
    huge_page_bytes: u64,
}

impl WeightFigures {
    pub(crate) fn new(engine: &mut Engine, model: &LanguageModel, asked: WeightsIn) -> Self {
        let mapped_bytes = model.file().mapping().len() as u64;
        let huge_page_bytes = engine.memory().iter().map(|memory| memory.report.huge_page_bytes).sum();
        let (asked, weight_copy_bytes) = match asked {
            WeightsIn::Mapped => ("mapped", 0),
            WeightsIn::Huge => ("huge", mapped_bytes),
        };
        Self { asked, mapped_bytes, weight_copy_bytes, huge_page_bytes }
    }

    /// Says so if what was asked for is not what there is.
    fn note_refusal(&self) {
        if self.weight_copy_bytes > 0 && self.huge_page_bytes < self.weight_copy_bytes / 2 {
            let (got, all) = (bytes(self.huge_page_bytes), bytes(self.weight_copy_bytes));
            note(format_args!(
                "note: only {got} of {all} weights lie on 2 MiB pages; `entensor backends` says why there are none, or too little \
                 memory was free in one piece"
            ));
        }
    }
}

impl fmt::Display for WeightFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.weight_copy_bytes == 0 {
            return write!(f, "mapped, {} of the file, no copy", bytes(self.mapped_bytes));
        }
        let (copy, huge) = (bytes(self.weight_copy_bytes), bytes(self.huge_page_bytes.min(self.weight_copy_bytes)));
        write!(f, "copied, {copy} of memory, {huge} of it on 2 MiB pages")
    }
}

/// Whether the weights are read before they are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    /// All pages are read once, so that figures do not contain the disk.
    Warm,
    /// Pages come from the disk when they are used.
    Lazy,
}

/// A progress bar, shown on standard error if that is a terminal. `template` is indicatif's.
pub(crate) fn progress_bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
    // A bad template leaves the default look, which is no reason to stop.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Loads a model whose weights stay in the mapped file. Progress is shown on standard error if that is a terminal.
pub(crate) fn load(engine: &mut Engine, path: &Path, weights: Weights) -> Result<LanguageModel, CliError> {
    load_in(engine, path, weights, WeightsIn::Mapped)
}

/// The same with weights where they are wanted; says so if they cannot be there.
pub(crate) fn load_in(
    engine: &mut Engine,
    path: &Path,
    weights: Weights,
    place: WeightsIn,
) -> Result<LanguageModel, CliError> {
    let bar = progress_bar("{msg} {bar:40} {bytes}/{total_bytes}");
    let show = |stage: LoadStage| match stage {
        LoadStage::Header => bar.set_message("vocabulary"),
        LoadStage::Tokenizer => bar.set_message("weights"),
        LoadStage::Weights => {}
        LoadStage::Warm { done_bytes, total_bytes } => {
            bar.set_message("reading");
            bar.set_length(total_bytes);
            bar.set_position(done_bytes);
        }
    };
    bar.set_message("header");
    let how = ModelLoad { weights: place.memory(), ..ModelLoad::default() };
    let loaded = LanguageModel::load_with(engine, path, how, show);
    if let (Ok(model), Weights::Warm) = (&loaded, weights) {
        model.warm(show);
    }
    bar.finish_and_clear();
    let model = loaded?;
    WeightFigures::new(engine, &model, place).note_refusal();
    Ok(model)
}

/// The context to use; says so when it is more than the model was trained for.
pub(crate) fn context(model: &LanguageModel, asked: Option<u32>) -> u32 {
    let trained = model.network().config().context_length;
    let context = asked.unwrap_or_else(|| trained.min(DEFAULT_CONTEXT));
    if context > trained {
        note(format_args!(
            "note: a context of {context} is more than the {trained} tokens that the model was trained for"
        ));
    }
    context
}
