//! Decoding a token at a time.

use super::error::TokenizerError;
use super::vocab::{TokenKind, Vocab};
use super::{ControlTokens, Tokenizer};

/// What decoding does with a space at the start of a text, where encoding may have put it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeadingSpace {
    /// It is text.
    Keep,
    /// The first one is left out.
    StripOne,
    /// That of every token is left out until there is text.
    StripAll,
}

/// How a kind of vocabulary is decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoding {
    pub(super) leading_space: LeadingSpace,
    /// Whether every byte that is no UTF-8 becomes a replacement character, or every part that could begin a character.
    pub(super) replaces_bytes: bool,
}

impl Decoding {
    /// Appends the bytes of a token. `leading` says what becomes of a space before it, and for the next token.
    pub(super) fn push(
        vocab: &Vocab,
        id: u32,
        control: ControlTokens,
        leading: &mut LeadingSpace,
        out: &mut Vec<u8>,
    ) -> Result<(), TokenizerError> {
        let Some((bytes, kind)) = vocab.bytes(id).zip(vocab.kind(id)) else {
            return Err(TokenizerError::UnknownId { id, tokens: vocab.len() });
        };
        if kind.is_control() {
            // The text has not begun, or it goes on after.
            if control == ControlTokens::Write {
                out.extend_from_slice(bytes);
            }
            return Ok(());
        }
        let stripped = match bytes.strip_prefix(b" ") {
            Some(stripped) if *leading != LeadingSpace::Keep && kind != TokenKind::Byte => stripped,
            _ => bytes,
        };
        out.extend_from_slice(stripped);
        if *leading == LeadingSpace::StripOne && !bytes.is_empty() || !stripped.is_empty() {
            *leading = LeadingSpace::Keep;
        }
        Ok(())
    }
}

/// Turns token ids into text as they come.
///
/// A character may be spread over several tokens. Bytes that do not make whole characters yet are held back, so that what
/// [`push`](Self::push) returns is always whole text; put together it is what [`Tokenizer::decode`] gives for all ids at once.
/// The first token begins a text: the space that SentencePiece vocabularies put there is left out.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    control: ControlTokens,
    leading: LeadingSpace,
    pending: Vec<u8>,
    text: String,
}

impl StreamDecoder {
    pub(super) fn new(tokenizer: Tokenizer, control: ControlTokens) -> Self {
        let leading = tokenizer.decoding().leading_space;
        Self { tokenizer, control, leading, pending: Vec::new(), text: String::new() }
    }

    /// The text that is complete with this token; empty if it only begins a character.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`]; the decoder can go on.
    pub fn push(&mut self, id: u32) -> Result<&str, TokenizerError> {
        Decoding::push(self.tokenizer.vocab(), id, self.control, &mut self.leading, &mut self.pending)?;
        self.text.clear();
        drain(&mut self.pending, &mut self.text, self.tokenizer.decoding(), false);
        Ok(&self.text)
    }

    /// Ends the text: what was held back comes out as replacement characters. The decoder is as new afterwards.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        drain(&mut self.pending, &mut self.text, self.tokenizer.decoding(), true);
        self.leading = self.tokenizer.decoding().leading_space;
        &self.text
    }
}

/// Moves whole characters from `bytes` to `text`, and replacement characters for what is none.
pub(super) fn drain(bytes: &mut Vec<u8>, text: &mut String, decoding: Decoding, finish: bool) {
    let mut done = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        done += chunk.valid().len();
        let invalid = chunk.invalid();
        let at_end = done + invalid.len() == bytes.len();
        if invalid.is_empty() || (at_end && !finish && is_unfinished(invalid)) {
            continue;
        }
        let replaced = if decoding.replaces_bytes { invalid.len() } else { 1 };
        text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, replaced));
        done += invalid.len();
    }
    bytes.drain(..done);
}

/// Whether more bytes could make a character of these.
fn is_unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
