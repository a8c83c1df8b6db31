//! What stops a command, and the exit status that tells of it.

use std::{io, path::PathBuf};

use entensor::{
    EngineError, RegistryError,
    graph_text::{GraphError, GraphTextError},
};
use entensor_models::{
    ModelError, chat::ChatError, compare::CompareError, gguf::GgufError, quantize::QuantizeError,
    safetensors::SafetensorsError, sampling::SamplingError, tokenizer::TokenizerError,
};
use serde::Serialize;

use crate::interrupt;

/// What stops a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// Options that do not go together, or do not fit the file.
    #[error("{0}")]
    Usage(String),
    /// A file that cannot be read at all.
    #[error("cannot read {path:?}: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// A fault in a `.graph` text.
    #[error(transparent)]
    GraphText(#[from] GraphTextError),
    /// A graph that does not become entities, or text.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A model that cannot be loaded or run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The result could not be written.
    #[error("cannot write the result: {0}")]
    Output(#[from] io::Error),
    /// Ctrl-C; what was generated until then is out.
    #[error("interrupted")]
    Interrupted,
    /// Two backends that are further apart than they may be.
    #[error("{over} nodes are above the limit of their op; the table marks them with OVER")]
    Over {
        /// How many nodes.
        over: usize,
    },
}

/// An error as tools read it, under the key `error`.
#[derive(Serialize)]
pub(crate) struct ErrorJson {
    error: ErrorFields,
}

#[derive(Serialize)]
struct ErrorFields {
    kind: &'static str,
    message: String,
    node: Option<String>,
    backend: Option<String>,
}

impl CliError {
    /// 1 for what went wrong with a model, a plan or a run; 2 for what the user typed or a file that cannot be read; 130 for Ctrl-C.
    pub(crate) fn exit_code(&self) -> u8 {
        let is_usage = match self {
            Self::Interrupted => return interrupt::EXIT_CODE,
            Self::Usage(_) | Self::Unreadable { .. } | Self::GraphText(_) => true,
            Self::Graph(_) | Self::Output(_) | Self::Over { .. } => false,
            Self::Engine(error) | Self::Model(ModelError::Engine(error)) => is_usage(error),
            Self::Model(error) => matches!(
                error,
                ModelError::Gguf(unreadable!())
                    | ModelError::Quantize(QuantizeError::Gguf(unreadable!()))
                    | ModelError::Safetensors(SafetensorsError::Open(_))
                    | ModelError::Quantize(
                        QuantizeError::IntegerTarget { .. }
                            | QuantizeError::UnmatchedPattern { .. }
                            | QuantizeError::SameFile { .. }
                            | QuantizeError::OutputNotAFile { .. }
                            | QuantizeError::Create { .. }
                    )
                    | ModelError::Compare(CompareError::Json(_) | CompareError::NothingRecorded)
                    | ModelError::Sampling(
                        SamplingError::InvalidTemperature { .. }
                            | SamplingError::InvalidTopP { .. }
                            | SamplingError::InvalidMinP { .. }
                            | SamplingError::InvalidTailFree { .. }
                            | SamplingError::InvalidRepeatPenalty { .. }
                    )
                    | ModelError::Context { .. }
                    | ModelError::MicroBatch { .. }
                    | ModelError::NoTokens
            ),
        };
        if is_usage { 2 } else { 1 }
    }

    /// Whether the reader of the output went away, as `head` does.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether standard output cannot take more.
    pub(crate) fn is_output(&self) -> bool {
        matches!(self, Self::Output(_))
    }

    /// The error as tools read it.
    pub(crate) fn to_json(&self) -> ErrorJson {
        let plan = match self {
            Self::Engine(EngineError::Plan { error, .. })
            | Self::Model(ModelError::Engine(EngineError::Plan { error, .. })) => Some(error),
            _ => None,
        };
        let fields = ErrorFields {
            kind: self.kind(),
            message: self.to_string(),
            node: plan.and_then(|error| error.node()).map(Into::into),
            backend: plan.and_then(|error| error.backend()).map(Into::into),
        };
        ErrorJson { error: fields }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Usage(_) => "Usage",
            Self::Unreadable { .. } => "Unreadable",
            Self::GraphText(_) => "GraphText",
            Self::Graph(_) => "Graph",
            Self::Engine(error) | Self::Model(ModelError::Engine(error)) => error.kind(),
            Self::Model(_) => "Model",
            Self::Output(_) => "Output",
            Self::Interrupted => "Interrupted",
            Self::Over { .. } => "Over",
        }
    }
}

/// The pattern of files that cannot be read at all.
macro_rules! unreadable {
    () => {
        GgufError::Io { .. } | GgufError::NotAFile { .. } | GgufError::EmptyFile { .. }
    };
}
use unreadable;

/// Backends that were named wrongly; not those that failed to start.
fn is_usage(error: &EngineError) -> bool {
    matches!(error, EngineError::Registry(inner) if !matches!(inner, RegistryError::Start { .. }))
}

impl From<GgufError> for CliError {
    fn from(error: GgufError) -> Self {
        Self::Model(error.into())
    }
}

impl From<QuantizeError> for CliError {
    fn from(error: QuantizeError) -> Self {
        Self::Model(error.into())
    }
}

impl From<SafetensorsError> for CliError {
    fn from(error: SafetensorsError) -> Self {
        Self::Model(error.into())
    }
}

impl From<ChatError> for CliError {
    fn from(error: ChatError) -> Self {
        Self::Model(error.into())
    }
}

impl From<CompareError> for CliError {
    fn from(error: CompareError) -> Self {
        Self::Model(error.into())
    }
}

impl From<TokenizerError> for CliError {
    fn from(error: TokenizerError) -> Self {
        Self::Model(error.into())
    }
}

impl From<SamplingError> for CliError {
    fn from(error: SamplingError) -> Self {
        Self::Model(error.into())
    }
}

impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        // Keeps the kind, so that a pipe that broke inside a JSON text is still known as one.
        Self::Output(error.into())
    }
}
