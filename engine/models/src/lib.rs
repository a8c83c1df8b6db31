//! Model files for Entensor: readers, tokenizers and samplers.
//!
//! The modules do not depend on each other's internals and can be used alone:
//!
//! - [`gguf`] maps a GGUF file and gives typed access to its metadata and its tensors;
//! - [`tokenizer`] turns text into token ids and back, with the vocabulary that a GGUF file carries;
//! - [`sampling`] picks the next token from a row of logits.
//!
//! Model files come from strangers. Every reader here checks what it reads before it believes it, reserves no more
//! memory than the bytes at hand can justify, and answers with a typed error that names the fault and a way out.

pub mod gguf;
mod name_index;
pub mod sampling;
pub mod tokenizer;

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
}
