//! Model files for Entensor: readers, tokenizers and samplers.
//!
//! The modules do not depend on each other's internals and can be used alone:
//!
//! - [`gguf`] maps a GGUF file and gives typed access to its metadata and its tensors;
//! - [`tokenizer`] turns text into token ids and back, with the vocabulary that a GGUF file carries;
//! - [`sampling`] picks the next token from a row of logits;
//! - [`arch`], [`LanguageModel`] and [`Session`] run a model in an engine;
//! - [`safetensors`] maps a safetensors file for graphs of one's own;
//! - [`chat`] writes messages as a model expects them;
//! - [`quantize`] writes a model again with weights of another dtype;
//! - [`compare`] measures how far two models' expectations are apart.
//!
//! Model files come from strangers. Every reader here checks what it reads before it believes it, reserves no more
//! memory than the bytes at hand can justify, and answers with a typed error that names the fault and a way out.

pub mod arch;
pub mod chat;
pub mod compare;
pub mod gguf;
mod model;
mod name_index;
pub mod quantize;
pub mod safetensors;
pub mod sampling;
mod session;
pub mod tokenizer;

pub use model::{LanguageModel, LoadStage, ModelLoad, WeightMemory};
pub use session::{Logits, MICRO_BATCH_TOKENS, Session, SessionConfig};

/// Anything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A model file could not be opened, read or written.
    #[error(transparent)]
    Gguf(#[from] gguf::GgufError),
    /// A vocabulary is unusable, or text or ids do not fit it.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::TokenizerError),
    /// A sampler's settings or the logits that it was given are unusable.
    #[error(transparent)]
    Sampling(#[from] sampling::SamplingError),
    /// A safetensors file could not be opened or used.
    #[error(transparent)]
    Safetensors(#[from] safetensors::SafetensorsError),
    /// Messages could not be written as the model expects them.
    #[error(transparent)]
    Chat(#[from] chat::ChatError),
    /// A file could not be converted.
    #[error(transparent)]
    Quantize(#[from] quantize::QuantizeError),
    /// Two models, or a model and a record, cannot be compared.
    #[error(transparent)]
    Compare(#[from] compare::CompareError),
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] entensor::EngineError),
    /// A graph of the model does not fit together.
    #[error(transparent)]
    Build(#[from] entensor::BuildError),
    /// The file is of an architecture that this crate cannot run.
    #[error("architecture {name:?} is not supported; these are: {known}")]
    UnknownArchitecture {
        /// What the file names.
        name: String,
        /// What can be run.
        known: String,
    },
    /// A number in the metadata does not fit.
    #[error("metadata `{key}`: {rule}; the file is damaged or of another kind")]
    Config {
        /// The key.
        key: String,
        /// What must hold.
        rule: &'static str,
    },
    /// The file lacks a tensor.
    #[error("the file has no tensor `{name}`; it is incomplete, or a part of a split file")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor that the architecture does not use.
    #[error(
        "the file has a tensor `{name}` that this architecture does not use; the metadata does not describe this file, or it is of a kind that is not supported"
    )]
    UnusedTensor {
        /// The tensor.
        name: String,
    },
    /// The network gave something that is no number.
    #[error("the logits at position {position} are not finite; the file is damaged, or its numbers overflow")]
    NotFinite {
        /// The position.
        position: u32,
    },
    /// A tensor's shape is not what the metadata asks for.
    #[error("tensor `{name}` has shape {found:?}, but the metadata asks for {expected:?}; the file is damaged")]
    TensorShape {
        /// The tensor.
        name: String,
        /// What the metadata asks for.
        expected: Vec<u64>,
        /// What the file has.
        found: Vec<u64>,
    },
    /// A tensor's dtype cannot be used in its place.
    #[error("tensor `{name}` is {found}, but must be {expected}; convert the file")]
    TensorDType {
        /// The tensor.
        name: String,
        /// What the file has.
        found: entensor::DType,
        /// What can be used.
        expected: &'static str,
    },
    /// Vocabulary and embedding are of different sizes.
    #[error("the vocabulary has {tokens} tokens, but the embedding {rows} rows; the file is damaged")]
    Vocabulary {
        /// Tokens of the vocabulary.
        tokens: u64,
        /// Rows of the embedding.
        rows: u64,
    },
    /// A context of no tokens, or of more than positions can count.
    #[error("a context of {context} tokens cannot be; choose from 1 to 2147483647")]
    Context {
        /// What was asked for.
        context: u32,
    },
    /// A micro-batch of no tokens, or of too many.
    #[error("{tokens} tokens at once cannot be; choose from 1 to {max}")]
    MicroBatch {
        /// What was asked for.
        tokens: u32,
        /// The most.
        max: u32,
    },
    /// Nothing to feed.
    #[error("there are no tokens to feed; give a prompt that is not empty")]
    NoTokens,
    /// The context has no room for so many tokens.
    #[error("{tokens} tokens do not fit: {used} of {context} are used; shorten the prompt or use a larger context")]
    ContextFull {
        /// Tokens to feed.
        tokens: usize,
        /// Tokens in the conversation.
        used: u32,
        /// Tokens that fit in all.
        context: u32,
    },
    /// A token id that the vocabulary does not have.
    #[error("token id {id} is not in the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// How many there are.
        vocabulary: u64,
    },
}
