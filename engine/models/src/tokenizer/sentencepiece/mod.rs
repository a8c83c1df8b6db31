//! SentencePiece vocabularies: text is normalized, spaces become the character `▁`, and whole sentences are cut into tokens
//! by their scores, in one of two ways ([`Algorithm`]). What no token stands for becomes byte tokens, or the unknown token.
//!
//! The rules, down to ties and roundings, are those of the library of that name.

mod bpe;
mod charsmap;
mod normalize;
mod trie;
mod unigram;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use super::decode::LeadingSpace;
use super::error::TokenizerError;
use super::keys;
use super::merging::{Merging, NO_TOKEN};
use super::special::SpecialFinder;
use super::vocab::{TokenKind, Vocab, check_length};
use crate::gguf::{GgufError, Metadata, excerpt};
use bpe::Bpe;
use normalize::Normalizer;
use unigram::Unigram;

/// Stands for the space in tokens.
const SPACE: char = '▁';

/// The longest text once it is normalized: positions are 32 bits wide, and the largest marks an end.
const MOST_BYTES: usize = u32::MAX as usize - 1;

/// How text is cut into tokens.
#[derive(Debug)]
enum Algorithm {
    /// Characters are merged, the token of the best score first.
    Bpe(Bpe),
    /// The tokens with the best sum of scores.
    Unigram(Unigram),
}

/// Which of the two a file asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bpe,
    Unigram,
}

/// What becomes of characters without a token.
#[derive(Debug)]
enum Unknown {
    /// The tokens of their bytes.
    Bytes(Box<[u32; 256]>),
    /// One token for each run of them.
    Token(u32),
}

/// Everything but the tokens.
#[derive(Debug)]
pub(super) struct SentencePiece {
    normalizer: Normalizer,
    algorithm: Algorithm,
    unknown: Unknown,
    /// Finds user-defined tokens in normalized text.
    user_defined: Option<SpecialFinder>,
}

/// Buffers that encoding reuses.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    normalized: String,
    bpe: bpe::Scratch,
    unigram: unigram::Scratch,
}

impl SentencePiece {
    pub(super) fn read(metadata: &Metadata, kind: Kind, vocab: &Vocab) -> Result<Self, TokenizerError> {
        // Without kinds, control tokens and byte tokens would be read as text.
        if !metadata.contains(keys::TOKEN_TYPE) {
            return Err(GgufError::MissingKey { key: keys::TOKEN_TYPE.to_owned() }.into());
        }
        let scores = read_scores(metadata, vocab)?;
        let unknown = Unknown::read(vocab)?;
        let user_defined = vocab.iter().filter(|&(.., kind)| kind == TokenKind::UserDefined);
        Ok(Self {
            normalizer: Normalizer::read(metadata)?,
            algorithm: match kind {
                Kind::Bpe => Algorithm::Bpe(Bpe::new(vocab, &scores)),
                Kind::Unigram => Algorithm::Unigram(Unigram::new(vocab, scores)),
            },
            unknown,
            user_defined: SpecialFinder::new(user_defined.map(|(id, text, _)| (id, with_marks(text))))?,
        })
    }

    /// Appends the tokens of `text`, which is complete but for the tokens around it. `out` is unchanged on error.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        merging: &mut Merging,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let Scratch { normalized, bpe, unigram } = scratch;
        self.normalizer.normalize(text, self.user_defined.as_ref(), normalized);
        if normalized.len() > MOST_BYTES {
            // What spaces become is three times their length.
            let limit = u32::MAX / 3 - 1;
            return Err(TokenizerError::TextTooLong { length_bytes: text.len(), limit });
        }
        let mut out = Output { unknown: &self.unknown, out, after_unknown: false };
        match &self.algorithm {
            Algorithm::Unigram(algorithm) => algorithm.encode(normalized, unigram, &mut out),
            Algorithm::Bpe(algorithm) => {
                let mut start = 0;
                for (id, range) in self.user_defined.iter().flat_map(|finder| finder.find_iter(normalized)) {
                    algorithm.encode(vocab, &normalized[start..range.start], merging, bpe, &mut out);
                    out.token(id);
                    start = range.end;
                }
                algorithm.encode(vocab, &normalized[start..], merging, bpe, &mut out);
            }
        }
        Ok(())
    }

    /// What decoding does with a space at the start of a text.
    pub(super) fn leading_space(&self) -> LeadingSpace {
        self.normalizer.leading_space()
    }
}

/// Where tokens go.
struct Output<'a> {
    unknown: &'a Unknown,
    out: &'a mut Vec<u32>,
    after_unknown: bool,
}

impl Output<'_> {
    fn token(&mut self, id: u32) {
        self.out.push(id);
        self.after_unknown = false;
    }

    fn unknown(&mut self, text: &str) {
        match self.unknown {
            Unknown::Bytes(tokens) => self.out.extend(text.bytes().map(|byte| tokens[byte as usize])),
            Unknown::Token(id) => {
                if !self.after_unknown {
                    self.out.push(*id);
                }
                self.after_unknown = true;
            }
        }
    }
}

impl Unknown {
    fn read(vocab: &Vocab) -> Result<Self, TokenizerError> {
        let mut tokens = Box::new([NO_TOKEN; 256]);
        for (id, _, _) in vocab.iter().filter(|&(.., kind)| kind == TokenKind::Byte) {
            if let Some(&[byte]) = vocab.bytes(id) {
                tokens[byte as usize] = id;
            }
        }
        let missing = (0..=u8::MAX).zip(tokens.iter()).find(|&(_, &id)| id == NO_TOKEN);
        match (missing, vocab.unknown) {
            (None, _) => Ok(Self::Bytes(tokens)),
            (Some((byte, _)), _) if tokens.iter().any(|&id| id != NO_TOKEN) => {
                Err(TokenizerError::MissingByteToken { byte })
            }
            (Some(_), Some(id)) => Ok(Self::Token(id)),
            (Some(_), None) => Err(TokenizerError::NoUnknownToken),
        }
    }
}

/// Whether text can become this token by its score.
fn is_text(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused)
}

/// Spaces become what stands for them.
fn with_marks(text: &str) -> Cow<'_, str> {
    if text.contains(' ') { text.replace(' ', "▁").into() } else { text.into() }
}

fn read_scores(metadata: &Metadata, vocab: &Vocab) -> Result<Vec<f32>, TokenizerError> {
    let scores = metadata.floats(keys::SCORES)?;
    check_length(metadata, keys::SCORES, vocab.len() as usize)?;
    let finite = |(token, score): (u32, f64)| match score as f32 {
        single if single.is_finite() => Ok(single),
        _ => Err(TokenizerError::ScoreNotFinite { token, score }),
    };
    (0u32..).zip(scores).map(finite).collect()
}

/// Appends what a token stands for.
pub(super) fn push_bytes(out: &mut Vec<u8>, token: u32, text: &str, kind: TokenKind) -> Result<(), TokenizerError> {
    match kind {
        TokenKind::Byte => {
            out.push(byte_of(text).ok_or_else(|| TokenizerError::MalformedByteToken { token, text: excerpt(text) })?);
        }
        TokenKind::Control | TokenKind::Unknown => out.extend_from_slice(text.as_bytes()),
        TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused => {
            for (i, part) in text.split(SPACE).enumerate() {
                if i > 0 {
                    out.push(b' ');
                }
                out.extend_from_slice(part.as_bytes());
            }
        }
    }
    Ok(())
}

/// The byte of a text like `<0x0A>`.
fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'A'..=b'F');
    if digits.len() == 2 && digits.bytes().all(is_digit) { u8::from_str_radix(digits, 16).ok() } else { None }
}
