//! What can go wrong between messages and tokens.

use crate::{gguf::GgufError, tokenizer::TokenizerError};

/// Why messages could not be written as a model expects them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The file says nothing about chats.
    #[error(
        "the file has no chat template (`tokenizer.chat_template`); it is no chat model, or was converted without one: give it plain text"
    )]
    NoTemplate,
    /// The template in the file is no string.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// A template that is too long to be one.
    #[error("the chat template has {length_bytes} bytes; at most {limit} are read")]
    TooLong {
        /// Its length.
        length_bytes: usize,
        /// The most.
        limit: usize,
    },
    /// A template that is none.
    #[error("line {line} of the chat template cannot be read: {reason}")]
    Syntax {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The template says that the messages are wrong, such as two of one role in a row.
    #[error("the chat template refuses these messages: {message}")]
    Refused {
        /// What it says.
        message: String,
    },
    /// The template does something that cannot be done.
    #[error("line {line} of the chat template fails: {reason}")]
    Render {
        /// The line, counted from 1.
        line: usize,
        /// What fails.
        reason: String,
    },
    /// The template computes without end, or makes texts without measure.
    #[error("the chat template takes too much time or memory; it is damaged or hostile")]
    TooMuchWork,
    /// A message spells a control token, and the template rewrites messages so that it cannot be told from the template's own.
    #[error(
        "message {message} spells the control token {token:?}, which this chat template cannot keep apart from its own; remove it"
    )]
    Inseparable {
        /// The message, counted from 0.
        message: usize,
        /// The token.
        token: String,
    },
    /// The system has no thread to run the template on.
    #[error("no thread can be started for the chat template: {0}")]
    Thread(std::io::Error),
    /// The template engine has a fault that this template meets.
    #[error("the template engine fails on this chat template; replace it, or give the prompt as plain text")]
    Engine,
    /// The text cannot be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}
