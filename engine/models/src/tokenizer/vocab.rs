//! Reading and checking what all vocabularies of GGUF files have in common: the tokens and those of special meaning.

use super::byte_level::byte_of;
use super::error::TokenizerError;
use super::keys;
use super::merging::NO_TOKEN;
use super::sentencepiece;
use crate::gguf::{GgufError, Metadata, OptionalKey, excerpt};
use crate::name_index::NameIndex;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// A part of text.
    Normal,
    /// Stands for text that has no token.
    Unknown,
    /// Steers the model and is no text: turns of a chat, the end of a text.
    Control,
    /// Text that is never split into smaller tokens.
    UserDefined,
    /// Reserved.
    Unused,
    /// A single byte.
    Byte,
}

impl TokenKind {
    fn from_id(id: i128) -> Option<Self> {
        match id {
            // Some converters leave the type undefined.
            0 | 1 => Some(Self::Normal),
            2 => Some(Self::Unknown),
            3 => Some(Self::Control),
            4 => Some(Self::UserDefined),
            5 => Some(Self::Unused),
            6 => Some(Self::Byte),
            _ => None,
        }
    }

    /// Whether the token is found in text only on request, and by default is left out of decoded text.
    #[must_use]
    pub fn is_control(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}

/// Strings or byte strings in one arena.
#[derive(Clone, Debug, Default)]
struct Arena<T> {
    data: T,
    ends: Vec<usize>,
}

impl<T> Arena<T> {
    fn range(&self, id: u32) -> Option<std::ops::Range<usize>> {
        let id = id as usize;
        let start = if id == 0 { 0 } else { *self.ends.get(id - 1)? };
        Some(start..*self.ends.get(id)?)
    }
}

/// How token texts stand for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// A character for each byte.
    ByteLevel,
    /// The text itself, with another character for the space.
    SentencePiece,
}

/// What a kind of tokenizer does where the file does not say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
}

/// The tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct Vocab {
    /// The tokens as the file spells them.
    texts: Arena<String>,
    /// The bytes that they stand for.
    bytes: Arena<Vec<u8>>,
    kinds: Vec<TokenKind>,
    index: NameIndex,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) padding: Option<u32>,
    pub(super) unknown: Option<u32>,
    /// Tokens after which generation stops.
    pub(super) ends: Vec<u32>,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
}

impl Vocab {
    pub(super) fn read(metadata: &Metadata, spelling: Spelling, defaults: Defaults) -> Result<Self, TokenizerError> {
        let mut vocab = Self {
            texts: Arena::default(),
            bytes: Arena::default(),
            kinds: Vec::new(),
            index: NameIndex::default(),
            bos: None,
            eos: None,
            padding: None,
            unknown: None,
            ends: Vec::new(),
            add_bos: false,
            add_eos: false,
        };
        vocab.read_tokens(metadata, spelling)?;
        vocab.read_special_ids(metadata)?;
        if spelling == Spelling::SentencePiece && vocab.unknown.is_none() {
            vocab.unknown = (0u32..).zip(&vocab.kinds).find(|&(_, &kind)| kind == TokenKind::Unknown).map(|(id, _)| id);
        }
        vocab.add_bos = adds(metadata, keys::ADD_BOS, defaults.add_bos, vocab.bos, keys::BOS)?;
        vocab.add_eos = adds(metadata, keys::ADD_EOS, defaults.add_eos, vocab.eos, keys::EOS)?;
        Ok(vocab)
    }

    /// The number of tokens.
    pub(super) fn len(&self) -> u32 {
        self.kinds.len() as u32
    }

    pub(super) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// The token as the file spells it.
    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.texts.data.get(self.texts.range(id)?)
    }

    /// The bytes that the token stands for.
    pub(super) fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.data.get(self.bytes.range(id)?)
    }

    /// The token that the file spells like this.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.index.find(text, |id| self.text(id).unwrap_or_default())
    }

    /// All tokens: id, text and kind.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &str, TokenKind)> + Clone {
        (0u32..).zip(&self.kinds).filter_map(|(id, &kind)| Some((id, self.text(id)?, kind)))
    }

    fn read_tokens(&mut self, metadata: &Metadata, spelling: Spelling) -> Result<(), TokenizerError> {
        let tokens = metadata.strings(keys::TOKENS)?;
        // `NO_TOKEN` is no id.
        if tokens.is_empty() || tokens.len() >= NO_TOKEN as usize {
            return Err(TokenizerError::VocabularySize { tokens: tokens.len(), limit: NO_TOKEN - 1 });
        }
        self.kinds = read_kinds(metadata, tokens.len())?;
        self.texts.data.reserve(tokens.total_bytes());
        self.bytes.data.reserve(tokens.total_bytes());
        for ((id, text), &kind) in (0u32..).zip(tokens.iter()).zip(&self.kinds) {
            self.texts.data.push_str(text);
            self.texts.ends.push(self.texts.data.len());
            match spelling {
                Spelling::ByteLevel => push_bytes(&mut self.bytes.data, text, kind),
                Spelling::SentencePiece => sentencepiece::push_bytes(&mut self.bytes.data, id, text, kind)?,
            }
            self.bytes.ends.push(self.bytes.data.len());
            // Tokens without text cannot be written; several of them are holes and no clash.
            if text.is_empty() {
                continue;
            }
            let texts = &self.texts;
            let text_of = |id| texts.range(id).and_then(|range| texts.data.get(range)).unwrap_or_default();
            self.index.insert(text, id, text_of).map_err(|first| TokenizerError::DuplicateToken {
                text: excerpt(text),
                first,
                second: id,
            })?;
        }
        Ok(())
    }

    fn read_special_ids(&mut self, metadata: &Metadata) -> Result<(), TokenizerError> {
        let tokens = self.len();
        let special = |key: &'static str| match metadata.get_u32(key).optional()? {
            // Converters write the largest id for "none".
            None | Some(u32::MAX) => Ok(None),
            Some(id) if id < tokens => Ok(Some(id)),
            Some(id) => Err(TokenizerError::SpecialOutOfRange { key, id, tokens }),
        };
        self.bos = special(keys::BOS)?;
        self.eos = special(keys::EOS)?;
        self.padding = special(keys::PADDING)?;
        self.unknown = special(keys::UNKNOWN)?;
        self.ends = [self.eos, special(keys::EOT)?, special(keys::EOM)?].into_iter().flatten().collect();
        self.ends.sort_unstable();
        self.ends.dedup();
        Ok(())
    }
}

/// Whether the token `id` is added to every text: what the file says, and else the default, if the file names the token.
fn adds(
    metadata: &Metadata,
    key: &'static str,
    default: bool,
    id: Option<u32>,
    id_key: &'static str,
) -> Result<bool, TokenizerError> {
    match metadata.get_bool(key).optional()? {
        Some(true) if id.is_none() => Err(GgufError::MissingKey { key: id_key.to_owned() }.into()),
        Some(add) => Ok(add),
        None => Ok(default && id.is_some()),
    }
}

/// Checks that an array has one element per token.
pub(super) fn check_length(metadata: &Metadata, key: &'static str, expected: usize) -> Result<(), TokenizerError> {
    let found = metadata.array_len(key)?;
    if found != expected {
        return Err(TokenizerError::LengthMismatch { key, expected, found });
    }
    Ok(())
}

fn read_kinds(metadata: &Metadata, tokens: usize) -> Result<Vec<TokenKind>, TokenizerError> {
    let Some(types) = metadata.integers(keys::TOKEN_TYPE).optional()? else {
        return Ok(vec![TokenKind::Normal; tokens]);
    };
    check_length(metadata, keys::TOKEN_TYPE, tokens)?;
    (0u32..)
        .zip(types)
        .map(|(token, found)| TokenKind::from_id(found).ok_or(TokenizerError::UnknownTokenType { token, found }))
        .collect()
}

/// Appends what a byte-level token stands for. Special tokens are spelled as they are; so is, in other tokens, every
/// character that stands for no byte.
fn push_bytes(out: &mut Vec<u8>, text: &str, kind: TokenKind) {
    let literal = kind.is_control() || kind == TokenKind::UserDefined;
    for char in text.chars() {
        match byte_of(char) {
            Some(byte) if !literal => out.push(byte),
            _ => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}
