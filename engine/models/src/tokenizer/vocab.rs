//! Reading and checking the vocabulary of a GGUF file.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::bpe::{Merge, Merges, NO_TOKEN};
use super::byte_level::{byte_of, char_of};
use super::error::TokenizerError;
use super::{SUPPORTED_MODELS, SUPPORTED_PRE_TOKENIZERS, keys};
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

/// A checked vocabulary.
#[derive(Debug)]
pub(super) struct Vocab {
    /// The tokens as the file spells them.
    texts: Arena<String>,
    /// The bytes that they stand for.
    bytes: Arena<Vec<u8>>,
    kinds: Vec<TokenKind>,
    index: NameIndex,
    pub(super) byte_tokens: [u32; 256],
    pub(super) merges: Merges,
    /// Finds user-defined tokens in text.
    pub(super) user_defined: Option<SpecialFinder>,
    /// Finds user-defined, control and unknown tokens in text.
    pub(super) special: Option<SpecialFinder>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) padding: Option<u32>,
    pub(super) unknown: Option<u32>,
    /// Tokens after which generation stops.
    pub(super) ends: Vec<u32>,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
}

/// Finds the texts of tokens: the leftmost, and of those that start there the longest.
#[derive(Debug)]
pub(super) struct SpecialFinder {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

impl SpecialFinder {
    /// The matches in `text`: token and range.
    pub(super) fn find_iter<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (u32, std::ops::Range<usize>)> + 'a {
        self.automaton.find_iter(text).map(|found| (self.ids[found.pattern().as_usize()], found.range()))
    }
}

impl Vocab {
    pub(super) fn read(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let model = metadata.get_str(keys::MODEL)?;
        if !SUPPORTED_MODELS.contains(&model) {
            return Err(TokenizerError::UnsupportedModel { found: excerpt(model) });
        }
        let pre = metadata.get_str(keys::PRE)?;
        if !SUPPORTED_PRE_TOKENIZERS.contains(&pre) {
            return Err(TokenizerError::UnsupportedPreTokenizer { found: excerpt(pre) });
        }
        let mut vocab = Self {
            texts: Arena::default(),
            bytes: Arena::default(),
            kinds: Vec::new(),
            index: NameIndex::default(),
            byte_tokens: [NO_TOKEN; 256],
            merges: Merges::default(),
            user_defined: None,
            special: None,
            bos: None,
            eos: None,
            padding: None,
            unknown: None,
            ends: Vec::new(),
            add_bos: metadata.get_bool(keys::ADD_BOS).optional()?.unwrap_or(false),
            add_eos: metadata.get_bool(keys::ADD_EOS).optional()?.unwrap_or(false),
        };
        vocab.read_tokens(metadata)?;
        for byte in 0..=u8::MAX {
            let mut buffer = [0; 4];
            let spelling: &str = char_of(byte).encode_utf8(&mut buffer);
            vocab.byte_tokens[byte as usize] = vocab.id(spelling).unwrap_or(NO_TOKEN);
        }
        vocab.read_merges(metadata)?;
        vocab.user_defined = vocab.finder(|kind| kind == TokenKind::UserDefined)?;
        vocab.special = vocab.finder(|kind| kind == TokenKind::UserDefined || kind.is_control())?;
        vocab.read_special_ids(metadata)?;
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

    fn read_tokens(&mut self, metadata: &Metadata) -> Result<(), TokenizerError> {
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
            push_bytes(&mut self.bytes.data, text, kind);
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

    fn read_merges(&mut self, metadata: &Metadata) -> Result<(), TokenizerError> {
        let merges = metadata.strings(keys::MERGES)?;
        if u32::try_from(merges.len()).is_err() {
            return Err(TokenizerError::TooManyMerges { merges: merges.len(), limit: u32::MAX });
        }
        let mut table = Merges::with_capacity(merges.len());
        let mut joined = String::new();
        for (index, merge) in merges.iter().enumerate() {
            let malformed = || TokenizerError::MalformedMerge { index, merge: excerpt(merge) };
            let (left, right) = merge.split_once(' ').ok_or_else(malformed)?;
            if left.is_empty() || right.is_empty() || right.contains(' ') {
                return Err(malformed());
            }
            let id = |token: &str| {
                self.id(token).ok_or_else(|| TokenizerError::MergeUnknownToken {
                    index,
                    merge: excerpt(merge),
                    token: excerpt(token),
                })
            };
            joined.clear();
            joined.extend([left, right]);
            table.push(Merge { left: id(left)?, right: id(right)?, merged: id(&joined)? });
        }
        self.merges = table;
        Ok(())
    }

    fn finder(&self, wanted: impl Fn(TokenKind) -> bool) -> Result<Option<SpecialFinder>, TokenizerError> {
        let candidates = (0u32..).zip(&self.kinds).filter(|&(_, &kind)| wanted(kind));
        let (ids, texts): (Vec<u32>, Vec<&str>) =
            candidates.filter_map(|(id, _)| Some((id, self.text(id).filter(|text| !text.is_empty())?))).unzip();
        if ids.is_empty() {
            return Ok(None);
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            // Its size is in proportion to the texts; a DFA's is hundreds of times that, and the texts are foreign.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(texts)?;
        Ok(Some(SpecialFinder { automaton, ids }))
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
        for (add, id, key) in [(self.add_bos, self.bos, keys::BOS), (self.add_eos, self.eos, keys::EOS)] {
            if add && id.is_none() {
                return Err(GgufError::MissingKey { key: key.to_owned() }.into());
            }
        }
        Ok(())
    }
}

fn read_kinds(metadata: &Metadata, tokens: usize) -> Result<Vec<TokenKind>, TokenizerError> {
    let Some(types) = metadata.integers(keys::TOKEN_TYPE).optional()? else {
        return Ok(vec![TokenKind::Normal; tokens]);
    };
    let found = metadata.array_len(keys::TOKEN_TYPE)?;
    if found != tokens {
        return Err(TokenizerError::LengthMismatch { key: keys::TOKEN_TYPE, expected: tokens, found });
    }
    (0u32..)
        .zip(types)
        .map(|(token, found)| TokenKind::from_id(found).ok_or(TokenizerError::UnknownTokenType { token, found }))
        .collect()
}

/// Appends what a token stands for. Special tokens are spelled as they are; so is, in other tokens, every
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
