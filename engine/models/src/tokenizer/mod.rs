//! Text to token ids and back, with the vocabulary that a GGUF file carries.
//!
//! Three kinds of vocabulary are implemented (`tokenizer.ggml.model`, [`SUPPORTED_MODELS`]):
//!
//! - `gpt2`, byte-level byte-pair encoding. Text is split first, in one of the ways of [`SUPPORTED_PRE_TOKENIZERS`]
//!   (`tokenizer.ggml.pre`, or another name for it in [`PRE_TOKENIZER_ALIASES`]). For `llama-bpe` a piece that is a token is
//!   taken as it is, whether or not merges lead to it.
//! - `llama`, SentencePiece's BPE: characters are merged by the scores of tokens.
//! - `t5`, SentencePiece's unigram model: the tokens with the best sum of scores.
//!
//! Others are refused by name and never read as one of these, because a wrong split gives plausible ids that the model has
//! never seen. The name `default` is refused too: converters write it when they do not know. Ids are those of the libraries
//! that the vocabularies come from (`tokenizers`, and `sentencepiece` as of 0.2.3), down to ties.
//!
//! **SentencePiece.** A space is put before text (`add_space_prefix`), and before the text after each control token; decoding
//! leaves it out at the start. Extra spaces are removed (`remove_extra_whitespaces`) and characters rewritten
//! (`precompiled_charsmap`) where the file asks for that. Characters without a token become byte tokens where the vocabulary
//! has them, and else one unknown token for each run, which is not decoded.
//!
//! **First and last tokens.** The file says whether [`Tokenizer::encode`] adds them (`add_bos_token`, `add_eos_token`). Where it
//! does not, but names the token, `llama-bpe` and `llama` add the first and `t5` the last.
//!
//! **Not here.** Text for byte-level vocabularies is not normalized. Some models' own tokenizers (`qwen2`) compose characters
//! first (NFC); text that is not composed already must be given to them so.
//!
//! **Cost.** Building takes time in proportion to the vocabulary, but for sorting it. Encoding a text of `n` bytes costs `O(n log n)` whatever the text is; with a
//! scratch that is kept ([`Tokenizer::encode_into`]) it allocates nothing once the buffers have grown. A [`Tokenizer`] is
//! an `Arc`: clones are cheap, and it can be used from any number of threads at once.
//!
//! **Tolerated in vocabularies:** tokens of no text (they are never produced and decode to nothing), merges listed
//! twice (the first counts), bytes without a token in byte-level vocabularies (see [`MissingBytes`]). Everything else that
//! does not fit together is an error.

mod bpe;
mod byte_level;
mod decode;
mod error;
mod merging;
mod model;
mod sentencepiece;
mod special;
mod split;
mod vocab;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use decode::StreamDecoder;
pub use error::TokenizerError;
pub use vocab::TokenKind;

use crate::gguf::Metadata;
use decode::Decoding;
use merging::Merging;
use model::Inner;
use vocab::Vocab;

/// The values of `tokenizer.ggml.model` that are implemented.
pub const SUPPORTED_MODELS: &[&str] = &["gpt2", "llama", "t5"];

/// The values of `tokenizer.ggml.pre` that are implemented.
pub const SUPPORTED_PRE_TOKENIZERS: &[&str] = &["smollm", "gpt-2", "llama-bpe", "qwen2"];

/// Other values of `tokenizer.ggml.pre` and which of [`SUPPORTED_PRE_TOKENIZERS`] they mean.
pub const PRE_TOKENIZER_ALIASES: &[(&str, &str)] = &[
    ("starcoder", "smollm"),
    ("refact", "smollm"),
    ("command-r", "smollm"),
    ("phi-2", "gpt-2"),
    ("llama3", "llama-bpe"),
    ("llama-v3", "llama-bpe"),
    ("deepseek-r1-qwen", "qwen2"),
];

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
    /// The scores of the tokens, the best to be preferred.
    pub const SCORES: &str = "tokenizer.ggml.scores";
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
    /// Whether a space is put before text.
    pub const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
    /// Whether spaces around text, and all but one within, are removed.
    pub const REMOVE_EXTRA_WHITESPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
    /// How characters are rewritten before text is encoded.
    pub const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
}

/// What encoding does with a byte that has no token. Byte-level vocabularies often lack a few control characters; others
/// have a token for everything.
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

/// Buffers that encoding reuses from piece to piece and from call to call.
#[derive(Clone, Debug, Default)]
pub struct EncodeScratch {
    merging: Merging,
    sentencepiece: sentencepiece::Scratch,
}

/// A tokenizer. See the [module](self).
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<Inner>,
    missing: MissingBytes,
}

impl Tokenizer {
    /// Reads and checks the vocabulary in the metadata of a GGUF file. It is copied; the file need not stay open.
    ///
    /// # Errors
    /// A key that is missing or of another type, a kind of tokenizer that is not implemented, or a vocabulary that
    /// contradicts itself.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        Ok(Self { inner: Arc::new(Inner::read(metadata)?), missing: MissingBytes::default() })
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
        out.extend(self.inner.vocab.bos.filter(|_| self.inner.vocab.add_bos));
        self.encode_into(text, parse_special, &mut EncodeScratch::default(), &mut out)?;
        out.extend(self.inner.vocab.eos.filter(|_| self.inner.vocab.add_eos));
        Ok(out)
    }

    /// Appends the tokens of `text` to `out` and no others, for parts of a longer text. `out` is unchanged on error.
    ///
    /// SentencePiece vocabularies treat every part as a text of its own, with a space before it.
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
        self.inner.encode(text, parse_special, self.missing, scratch, out)
    }

    /// The text of these tokens without control tokens. Bytes that are no UTF-8 become replacement characters.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let mut bytes = Vec::new();
        self.decode_into(ids.iter().copied(), ControlTokens::Skip, &mut bytes)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| {
            let mut text = String::new();
            decode::drain(&mut error.into_bytes(), &mut text, self.decoding(), true);
            text
        }))
    }

    /// Appends the bytes of these tokens, which are a text of their own, to `out`, which is unchanged on error.
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
        let mut leading = self.decoding().leading_space;
        let decoded = ids.into_iter().try_for_each(|id| Decoding::push(self.vocab(), id, control, &mut leading, out));
        decoded.inspect_err(|_| out.truncate(before))
    }

    /// A decoder that takes one token after the other.
    #[must_use]
    pub fn stream(&self, control: ControlTokens) -> StreamDecoder {
        StreamDecoder::new(self.clone(), control)
    }

    /// The number of tokens.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.inner.vocab.len()
    }

    /// Whether there are no tokens, which no tokenizer that was built has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.vocab.len() == 0
    }

    /// The token that the vocabulary spells like this: special tokens as they are written, others in byte-level spelling
    /// (`Ġthe` for ` the`) or that of SentencePiece (`▁the`).
    #[must_use]
    pub fn token_id(&self, spelling: &str) -> Option<u32> {
        self.inner.vocab.id(spelling)
    }

    /// How the vocabulary spells this token.
    #[must_use]
    pub fn token_spelling(&self, id: u32) -> Option<&str> {
        self.inner.vocab.text(id)
    }

    /// The bytes that this token stands for; they need not be whole characters.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.inner.vocab.bytes(id)
    }

    /// What this token is for.
    #[must_use]
    pub fn token_kind(&self, id: u32) -> Option<TokenKind> {
        self.inner.vocab.kind(id)
    }

    /// The token that begins a text.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.inner.vocab.bos
    }

    /// The token that ends a text.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.inner.vocab.eos
    }

    /// The token that fills up batches.
    #[must_use]
    pub fn padding(&self) -> Option<u32> {
        self.inner.vocab.padding
    }

    /// The token for what has no token.
    #[must_use]
    pub fn unknown(&self) -> Option<u32> {
        self.inner.vocab.unknown
    }

    /// Whether generation stops after this token: the end of a text, a turn or a message.
    #[must_use]
    pub fn is_end(&self, id: u32) -> bool {
        self.inner.vocab.ends.contains(&id)
    }

    /// Whether [`encode`](Self::encode) puts a first and a last token.
    #[must_use]
    pub fn adds_bos_eos(&self) -> (bool, bool) {
        (self.inner.vocab.add_bos, self.inner.vocab.add_eos)
    }

    fn vocab(&self) -> &Vocab {
        &self.inner.vocab
    }

    fn decoding(&self) -> Decoding {
        self.inner.decoding
    }
}
