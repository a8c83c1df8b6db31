//! Text to token ids and back, with the vocabulary that a GGUF file carries.
//!
//! One kind of vocabulary is implemented: byte-level byte-pair encoding (`tokenizer.ggml.model` is `gpt2`) over text split
//! in the way called `smollm`. Other kinds are refused by name and never read as this one, because a wrong split
//! gives plausible ids that the model has never seen.
//!
//! **Cost.** Building is linear in the vocabulary. Encoding a text of `n` bytes costs `O(n log n)` whatever the text is; with a
//! scratch that is kept ([`Tokenizer::encode_into`]) it allocates nothing once the buffers have grown. A [`Tokenizer`] is
//! an `Arc`: clones are cheap, and it can be used from any number of threads at once.
//!
//! **Tolerated in vocabularies:** tokens of no text (they are never produced and decode to nothing), merges listed
//! twice (the first counts), bytes without a token (see [`MissingBytes`]). Everything else that does not fit together is an error.

mod bpe;
mod byte_level;
mod decode;
mod error;
mod split;
mod vocab;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use bpe::EncodeScratch;
pub use decode::StreamDecoder;
pub use error::TokenizerError;
pub use vocab::TokenKind;

use crate::gguf::Metadata;
use bpe::NO_TOKEN;
use split::Pieces;
use vocab::Vocab;

/// The values of `tokenizer.ggml.model` that are implemented.
pub const SUPPORTED_MODELS: &[&str] = &["gpt2"];

/// The values of `tokenizer.ggml.pre` that are implemented.
pub const SUPPORTED_PRE_TOKENIZERS: &[&str] = &["smollm"];

/// The metadata keys of vocabularies.
pub mod keys {
    /// The kind of tokenizer.
    pub const MODEL: &str = "tokenizer.ggml.model";
    /// How text is split before merging.
    pub const PRE: &str = "tokenizer.ggml.pre";
    /// The texts of the tokens.
    pub const TOKENS: &str = "tokenizer.ggml.tokens";
    /// The kinds of the tokens.
    pub const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
    /// The merges, the first to be applied first.
    pub const MERGES: &str = "tokenizer.ggml.merges";
    /// The token that begins a text.
    pub const BOS: &str = "tokenizer.ggml.bos_token_id";
    /// The token that ends a text.
    pub const EOS: &str = "tokenizer.ggml.eos_token_id";
    /// The token that ends a turn.
    pub const EOT: &str = "tokenizer.ggml.eot_token_id";
    /// The token that ends a message.
    pub const EOM: &str = "tokenizer.ggml.eom_token_id";
    /// The token that fills up batches.
    pub const PADDING: &str = "tokenizer.ggml.padding_token_id";
    /// The token for what has no token.
    pub const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
    /// Whether texts begin with the first of these tokens.
    pub const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
    /// Whether texts end with the second of these tokens.
    pub const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
}

/// What encoding does with a byte that has no token. Byte-level vocabularies often lack a few control characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingBytes {
    /// Answer with [`TokenizerError::MissingByte`], so that nothing is lost unnoticed.
    #[default]
    Refuse,
    /// Leave the byte out, as other engines do.
    Skip,
}

/// What decoding does with tokens that are no text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlTokens {
    /// Leave them out.
    #[default]
    Skip,
    /// Write them as the vocabulary spells them.
    Write,
}

/// A tokenizer. See the [module](self).
#[derive(Clone, Debug)]
pub struct Tokenizer {
    vocab: Arc<Vocab>,
    missing: MissingBytes,
}

impl Tokenizer {
    /// Reads and checks the vocabulary in the metadata of a GGUF file. It is copied; the file need not stay open.
    ///
    /// # Errors
    /// A key that is missing or of another type, a kind of tokenizer that is not implemented, or a vocabulary that
    /// contradicts itself.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        Ok(Self { vocab: Arc::new(Vocab::read(metadata)?), missing: MissingBytes::default() })
    }

    /// The same tokenizer with another way to treat bytes that have no token.
    #[must_use]
    pub fn with_missing_bytes(self, missing: MissingBytes) -> Self {
        Self { missing, ..self }
    }

    /// The tokens of `text`, with a first and a last token where the file asks for them.
    ///
    /// With `parse_special`, control tokens spelled out in the text become those tokens: right for a chat template,
    /// wrong for the words of a stranger, who could end a turn with them. User-defined tokens are always found. Where
    /// several tokens match, the leftmost is taken, and of those that start there the longest.
    ///
    /// # Errors
    /// [`TokenizerError::MissingByte`] or [`TokenizerError::TextTooLong`].
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let mut out = Vec::new();
        out.extend(self.vocab.bos.filter(|_| self.vocab.add_bos));
        self.encode_into(text, parse_special, &mut EncodeScratch::default(), &mut out)?;
        out.extend(self.vocab.eos.filter(|_| self.vocab.add_eos));
        Ok(out)
    }

    /// Appends the tokens of `text` to `out` and no others, for parts of a longer text. `out` is unchanged on error.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_into(
        &self,
        text: &str,
        parse_special: bool,
        scratch: &mut EncodeScratch,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        self.check_text(text, parse_special)?;
        let finder = if parse_special { &self.vocab.special } else { &self.vocab.user_defined };
        let mut start = 0;
        if let Some(finder) = finder {
            for (id, range) in finder.find_iter(text) {
                self.encode_part(&text[start..range.start], scratch, out);
                out.push(id);
                start = range.end;
            }
        }
        self.encode_part(&text[start..], scratch, out);
        Ok(())
    }

    /// The text of these tokens without control tokens. Bytes that are no UTF-8 become replacement characters.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let mut bytes = Vec::new();
        self.decode_into(ids.iter().copied(), ControlTokens::Skip, &mut bytes)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Appends the bytes of these tokens to `out`, which is unchanged on error.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode_into(
        &self,
        ids: impl IntoIterator<Item = u32>,
        control: ControlTokens,
        out: &mut Vec<u8>,
    ) -> Result<(), TokenizerError> {
        let before = out.len();
        for id in ids {
            let Some((bytes, kind)) = self.vocab.bytes(id).zip(self.vocab.kind(id)) else {
                out.truncate(before);
                return Err(TokenizerError::UnknownId { id, tokens: self.vocab.len() });
            };
            if control == ControlTokens::Write || !kind.is_control() {
                out.extend_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// A decoder that takes one token after the other.
    #[must_use]
    pub fn stream(&self, control: ControlTokens) -> StreamDecoder {
        StreamDecoder::new(self.clone(), control)
    }

    /// The number of tokens.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.vocab.len()
    }

    /// Whether there are no tokens, which no tokenizer that was built has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.vocab.len() == 0
    }

    /// The token that the vocabulary spells like this: special tokens as they are written, others in
    /// byte-level spelling (`Ġthe` for ` the`).
    #[must_use]
    pub fn token_id(&self, spelling: &str) -> Option<u32> {
        self.vocab.id(spelling)
    }

    /// How the vocabulary spells this token.
    #[must_use]
    pub fn token_spelling(&self, id: u32) -> Option<&str> {
        self.vocab.text(id)
    }

    /// The bytes that this token stands for; they need not be whole characters.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocab.bytes(id)
    }

    /// What this token is for.
    #[must_use]
    pub fn token_kind(&self, id: u32) -> Option<TokenKind> {
        self.vocab.kind(id)
    }

    /// The token that begins a text.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.vocab.bos
    }

    /// The token that ends a text.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.vocab.eos
    }

    /// The token that fills up batches.
    #[must_use]
    pub fn padding(&self) -> Option<u32> {
        self.vocab.padding
    }

    /// The token for what has no token.
    #[must_use]
    pub fn unknown(&self) -> Option<u32> {
        self.vocab.unknown
    }

    /// Whether generation stops after this token: the end of a text, a turn or a message.
    #[must_use]
    pub fn is_end(&self, id: u32) -> bool {
        self.vocab.ends.contains(&id)
    }

    /// Whether [`encode`](Self::encode) puts a first and a last token.
    #[must_use]
    pub fn adds_bos_eos(&self) -> (bool, bool) {
        (self.vocab.add_bos, self.vocab.add_eos)
    }

    fn encode_part(&self, text: &str, scratch: &mut EncodeScratch, out: &mut Vec<u32>) {
        for piece in Pieces::new(text) {
            let bytes = piece.bytes().map(|byte| self.vocab.byte_tokens[byte as usize]);
            scratch.encode(&self.vocab.merges, bytes, out);
        }
    }

    /// Checks what encoding could fail at, so that it never stops half-way.
    fn check_text(&self, text: &str, parse_special: bool) -> Result<(), TokenizerError> {
        // Positions of symbols are 32 bits wide, and the largest marks the end.
        if text.len() >= u32::MAX as usize {
            return Err(TokenizerError::TextTooLong { length_bytes: text.len(), limit: u32::MAX - 1 });
        }
        if self.missing == MissingBytes::Skip {
            return Ok(());
        }
        let missing = |range: std::ops::Range<usize>| {
            let mut bytes = text.as_bytes().iter().enumerate().take(range.end).skip(range.start);
            match bytes.find(|&(_, &byte)| self.vocab.byte_tokens[byte as usize] == NO_TOKEN) {
                Some((offset_bytes, &byte)) => Err(TokenizerError::MissingByte { byte, offset_bytes }),
                None => Ok(()),
            }
        };
        // Nearly always there is nothing to find, and no need to look where the special tokens are.
        if missing(0..text.len()).is_ok() {
            return Ok(());
        }
        let finder = if parse_special { &self.vocab.special } else { &self.vocab.user_defined };
        let mut start = 0;
        if let Some(finder) = finder {
            for (_, range) in finder.find_iter(text) {
                missing(start..range.start)?;
                start = range.end;
            }
        }
        missing(start..text.len())
    }
}
