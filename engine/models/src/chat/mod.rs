//! Messages of a chat as a model expects them: the template in its file, rendered.
//!
//! [`ChatTemplate`] renders messages to text and to tokens, [`Conversation`] says what to feed to a
//! [`Session`](crate::Session) turn by turn, so that what the session has already seen is not fed again.
//!
//! **The template** is Jinja as the usual Python libraries render it: blocks eat the newline behind and the spaces before them, methods of
//! Python's strings, lists and dictionaries work, `raise_exception`, `strftime_now` (in UTC) and `tojson` exist, and so do the
//! variables `messages`, `add_generation_prompt`, `bos_token`, `eos_token`, `unk_token`, `pad_token`, `tools` and `documents` (none).
//!
//! **Who may steer the model.** Control tokens in what the template writes become tokens. Control tokens that are spelled in a message
//! stay text, so that nobody can end a turn or speak for another role by writing it. The text is tokenized as a whole otherwise, as
//! the model saw it in training: no token begins or ends at a message's edge only because it is one. The template says everything
//! about first and last tokens; none are added.
//!
//! How: in the messages, the first and the last characters of control tokens are replaced by characters that occur nowhere, the template
//! is rendered, control tokens are found in the result, and the characters are put back in what lies between. That this changed
//! nothing of the text is checked against the same template rendered without it. Templates that look at those very characters are
//! rendered again with only those replaced that begin a whole control token; if that changes the text as well, messages that spell
//! one are refused.
//!
//! **Hostile templates.** Rendering has a budget of steps, of bytes, and of everything that a value holds when something is done with
//! it; nested calls and expressions have limits; and the thread that renders has a stack for all of that. Statements and expressions of
//! chat templates are known, what else Jinja has (including other templates) is refused.

mod conversation;
mod encode;
mod error;
mod functions;
mod guard;
mod template;
mod weigh;

#[cfg(test)]
mod tests;

pub use conversation::{Conversation, Turn};
pub use error::ChatError;
pub use template::{CHAT_TEMPLATE_KEY, ChatTemplate, TEMPLATE_LIMIT_BYTES};

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Says how the model shall behave.
    System,
    /// Talks to the model.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The word for it in templates.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// What somebody says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}
