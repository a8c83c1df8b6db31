//! Byte-level byte-pair encoding: text is split into pieces, the bytes of a piece are tokens, and a list of merges says
//! which neighbours become one.

use hashbrown::HashMap;

use super::byte_level::{byte_of, char_of};
use super::error::TokenizerError;
use super::keys;
use super::merging::{Merge, Merging, NO_TOKEN};
use super::split::Split;
use super::vocab::{TokenKind, Vocab};
use crate::gguf::{Metadata, excerpt};
use crate::name_index::NameIndex;

/// The merges of a vocabulary and how text is split before them.
#[derive(Debug)]
pub(super) struct ByteLevel {
    split: Split,
    byte_tokens: Box<[u32; 256]>,
    merges: HashMap<u64, Merge>,
    /// The tokens by the bytes that they stand for, where a piece that is a token is never merged together from its bytes:
    /// such vocabularies have tokens that no merges lead to.
    whole: Option<NameIndex>,
}

/// Where two neighbours' merge is found.
fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl ByteLevel {
    pub(super) fn read(metadata: &Metadata, split: Split, vocab: &Vocab) -> Result<Self, TokenizerError> {
        let mut byte_tokens = Box::new([NO_TOKEN; 256]);
        for (byte, token) in (0..=u8::MAX).zip(byte_tokens.iter_mut()) {
            let mut buffer = [0; 4];
            let spelling: &str = char_of(byte).encode_utf8(&mut buffer);
            *token = vocab.id(spelling).unwrap_or(NO_TOKEN);
        }
        let whole = split.takes_whole_pieces().then(|| index_by_bytes(vocab));
        Ok(Self { split, byte_tokens, merges: read_merges(metadata, vocab)?, whole })
    }

    /// Appends the tokens of `text`, which is shorter than `u32::MAX` bytes. Bytes without a token are left out.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, merging: &mut Merging, out: &mut Vec<u32>) {
        for piece in self.split.pieces(text) {
            if let Some(id) = self.whole_token(vocab, piece) {
                out.push(id);
                continue;
            }
            merging.start(piece.bytes().map(|byte| (self.byte_tokens[byte as usize], 1)));
            merging.run(|pair| self.merges.get(&pair_key(pair.left, pair.right)).copied());
            out.extend(merging.symbols().map(|(id, _)| id).filter(|&id| id != NO_TOKEN));
        }
    }

    /// The first byte that has no token, and where it stands.
    pub(super) fn missing_byte(&self, text: &str) -> Option<(usize, u8)> {
        text.bytes().enumerate().find(|&(_, byte)| self.byte_tokens[byte as usize] == NO_TOKEN)
    }

    fn whole_token(&self, vocab: &Vocab, piece: &str) -> Option<u32> {
        let index = self.whole.as_ref()?;
        index.find(piece.as_bytes(), |id| vocab.bytes(id).unwrap_or_default())
    }
}

fn index_by_bytes(vocab: &Vocab) -> NameIndex {
    let mut index = NameIndex::default();
    let bytes_of = |id| vocab.bytes(id).unwrap_or_default();
    for (id, text, kind) in vocab.iter() {
        // Text never becomes a control token here, and a text in another spelling is no sequence of bytes.
        if kind == TokenKind::Normal && !text.is_empty() && text.chars().all(|char| byte_of(char).is_some()) {
            // Texts are unique, and so are the bytes that they spell.
            let _ = index.insert(bytes_of(id), id, bytes_of);
        }
    }
    index
}

fn read_merges(metadata: &Metadata, vocab: &Vocab) -> Result<HashMap<u64, Merge>, TokenizerError> {
    let merges = metadata.strings(keys::MERGES)?;
    if u32::try_from(merges.len()).is_err() {
        return Err(TokenizerError::TooManyMerges { merges: merges.len(), limit: u32::MAX });
    }
    let mut table = HashMap::with_capacity(merges.len());
    let mut joined = String::new();
    for ((index, merge), rank) in merges.iter().enumerate().zip(0u32..) {
        let malformed = || TokenizerError::MalformedMerge { index, merge: excerpt(merge) };
        let (left, right) = merge.split_once(' ').ok_or_else(malformed)?;
        if left.is_empty() || right.is_empty() || right.contains(' ') {
            return Err(malformed());
        }
        let id = |token: &str| {
            vocab.id(token).ok_or_else(|| TokenizerError::MergeUnknownToken {
                index,
                merge: excerpt(merge),
                token: excerpt(token),
            })
        };
        joined.clear();
        joined.extend([left, right]);
        let pair = pair_key(id(left)?, id(right)?);
        let merge = Merge { rank, merged: id(&joined)? };
        // A pair that occurs twice keeps its first rank.
        table.entry(pair).or_insert(merge);
    }
    Ok(table)
}
