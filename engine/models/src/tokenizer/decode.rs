//! Decoding a token at a time.

use super::error::TokenizerError;
use super::{ControlTokens, Tokenizer};

/// Turns token ids into text as they come.
///
/// A character may be spread over several tokens. Bytes that do not make whole characters yet are held back, so that what
/// [`push`](Self::push) returns is always whole text; put together it is what [`Tokenizer::decode`] gives for all ids at once.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    control: ControlTokens,
    pending: Vec<u8>,
    text: String,
}

impl StreamDecoder {
    pub(super) fn new(tokenizer: Tokenizer, control: ControlTokens) -> Self {
        Self { tokenizer, control, pending: Vec::new(), text: String::new() }
    }

    /// The text that is complete with this token; empty if it only begins a character.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`]; the decoder can go on.
    pub fn push(&mut self, id: u32) -> Result<&str, TokenizerError> {
        self.tokenizer.decode_into([id], self.control, &mut self.pending)?;
        self.text.clear();
        drain(&mut self.pending, &mut self.text, false);
        Ok(&self.text)
    }

    /// Ends the text: what was held back comes out as a replacement character. The decoder is as new afterwards.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        drain(&mut self.pending, &mut self.text, true);
        &self.text
    }
}

/// Moves whole characters from `bytes` to `text`, a replacement character for every maximal invalid part.
fn drain(bytes: &mut Vec<u8>, text: &mut String, finish: bool) {
    let mut done = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        done += chunk.valid().len();
        let invalid = chunk.invalid();
        let at_end = done + invalid.len() == bytes.len();
        if invalid.is_empty() || (at_end && !finish && is_unfinished(invalid)) {
            continue;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        done += invalid.len();
    }
    bytes.drain(..done);
}

/// Whether more bytes could make a character of these.
fn is_unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
