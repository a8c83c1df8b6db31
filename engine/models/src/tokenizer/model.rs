//! A vocabulary together with how text becomes its tokens.

use std::borrow::Cow;
use std::ops::Range;

use super::bpe::ByteLevel;
use super::decode::{Decoding, LeadingSpace};
use super::error::TokenizerError;
use super::sentencepiece::{self, SentencePiece};
use super::special::SpecialFinder;
use super::split::Split;
use super::vocab::{Defaults, Spelling, TokenKind, Vocab};
use super::{EncodeScratch, MissingBytes, keys};
use crate::gguf::{Metadata, excerpt};

/// How text between special tokens becomes tokens.
#[derive(Debug)]
enum Model {
    ByteLevel(ByteLevel),
    SentencePiece(SentencePiece),
}

/// What a tokenizer shares with its clones.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) vocab: Vocab,
    pub(super) decoding: Decoding,
    model: Model,
    /// Finds user-defined tokens in text.
    user_defined: Option<SpecialFinder>,
    /// Finds user-defined, control and unknown tokens in text.
    special: Option<SpecialFinder>,
}

/// A part of a text on its way to tokens.
enum Part {
    /// To be encoded: where it is.
    Text(Range<usize>),
    /// A special token.
    Token(u32),
}

impl Inner {
    pub(super) fn read(metadata: &Metadata) -> Result<Self, TokenizerError> {
        match metadata.get_str(keys::MODEL)? {
            "gpt2" => Self::read_byte_level(metadata),
            "llama" => {
                let defaults = Defaults { add_bos: true, add_eos: false };
                Self::read_sentencepiece(metadata, sentencepiece::Kind::Bpe, defaults)
            }
            "t5" => {
                let defaults = Defaults { add_bos: false, add_eos: true };
                Self::read_sentencepiece(metadata, sentencepiece::Kind::Unigram, defaults)
            }
            name => Err(TokenizerError::UnsupportedModel { found: excerpt(name) }),
        }
    }

    fn read_byte_level(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let pre = metadata.get_str(keys::PRE)?;
        let unsupported = || TokenizerError::UnsupportedPreTokenizer { found: excerpt(pre) };
        let split = Split::named(pre).ok_or_else(unsupported)?;
        let defaults = Defaults { add_bos: split == Split::Llama3, add_eos: false };
        let vocab = Vocab::read(metadata, Spelling::ByteLevel, defaults)?;
        let model = Model::ByteLevel(ByteLevel::read(metadata, split, &vocab)?);
        Self::new(vocab, model, Decoding { leading_space: LeadingSpace::Keep, replaces_bytes: false })
    }

    fn read_sentencepiece(
        metadata: &Metadata,
        kind: sentencepiece::Kind,
        defaults: Defaults,
    ) -> Result<Self, TokenizerError> {
        let vocab = Vocab::read(metadata, Spelling::SentencePiece, defaults)?;
        let model = SentencePiece::read(metadata, kind, &vocab)?;
        let decoding = Decoding { leading_space: model.leading_space(), replaces_bytes: true };
        Self::new(vocab, Model::SentencePiece(model), decoding)
    }

    fn new(vocab: Vocab, model: Model, decoding: Decoding) -> Result<Self, TokenizerError> {
        let finder = |wanted: fn(TokenKind) -> bool| {
            let tokens = vocab.iter().filter(|&(.., kind)| wanted(kind));
            SpecialFinder::new(tokens.map(|(id, text, _)| (id, Cow::from(text))))
        };
        let user_defined = finder(|kind| kind == TokenKind::UserDefined)?;
        let special = finder(|kind| kind == TokenKind::UserDefined || kind.is_control())?;
        Ok(Self { vocab, decoding, model, user_defined, special })
    }

    /// See [`Tokenizer::encode_into`](super::Tokenizer::encode_into).
    pub(super) fn encode(
        &self,
        text: &str,
        parse_special: bool,
        missing: MissingBytes,
        scratch: &mut EncodeScratch,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let EncodeScratch { merging, sentencepiece } = scratch;
        if let Model::ByteLevel(model) = &self.model {
            self.check_text(model, text, parse_special, missing)?;
        }
        let before = out.len();
        let encoded = self.for_each_part(text, parse_special, |part| {
            match (part, &self.model) {
                (Part::Token(id), _) => out.push(id),
                (Part::Text(range), Model::ByteLevel(model)) => model.encode(&self.vocab, &text[range], merging, out),
                (Part::Text(range), Model::SentencePiece(model)) => {
                    model.encode(&self.vocab, &text[range], merging, sentencepiece, out)?;
                }
            }
            Ok(())
        });
        encoded.inspect_err(|_| out.truncate(before))
    }

    /// Calls `f` for every special token in `text` that is to be found and for what is between them.
    fn for_each_part(
        &self,
        text: &str,
        parse_special: bool,
        mut f: impl FnMut(Part) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        let finder = if parse_special { &self.special } else { &self.user_defined };
        let mut start = 0;
        for (id, range) in finder.iter().flat_map(|finder| finder.find_iter(text)) {
            // SentencePiece finds user-defined tokens itself, once the text is normalized.
            if matches!(self.model, Model::SentencePiece(_)) && self.vocab.kind(id) == Some(TokenKind::UserDefined) {
                continue;
            }
            f(Part::Text(start..range.start))?;
            f(Part::Token(id))?;
            start = range.end;
        }
        f(Part::Text(start..text.len()))
    }

    /// Checks what byte-level encoding could fail at.
    fn check_text(
        &self,
        model: &ByteLevel,
        text: &str,
        parse_special: bool,
        missing: MissingBytes,
    ) -> Result<(), TokenizerError> {
        // Positions of symbols are 32 bits wide, and the largest marks the end.
        if text.len() >= u32::MAX as usize {
            return Err(TokenizerError::TextTooLong { length_bytes: text.len(), limit: u32::MAX - 1 });
        }
        // Nearly always there is nothing to find, and no need to look where the special tokens are.
        if missing == MissingBytes::Skip || model.missing_byte(text).is_none() {
            return Ok(());
        }
        self.for_each_part(text, parse_special, |part| match part {
            Part::Token(_) => Ok(()),
            Part::Text(range) => match model.missing_byte(&text[range.clone()]) {
                Some((at, byte)) => Err(TokenizerError::MissingByte { byte, offset_bytes: range.start + at }),
                None => Ok(()),
            },
        })
    }
}
