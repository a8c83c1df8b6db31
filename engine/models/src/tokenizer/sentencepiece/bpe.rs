//! Merging by score: of all neighbours that are a token together, those of the best score become one first.

use hashbrown::HashMap;

use super::super::merging::{Merge, Merging, NO_TOKEN, Pair};
use super::super::vocab::{TokenKind, Vocab};
use super::{Output, SPACE, is_text};

/// The order of merges.
#[derive(Debug)]
pub(super) struct Bpe {
    /// By token: the better the score, the lower.
    ranks: Vec<u32>,
    longest_bytes: usize,
    /// Whether no merge crosses the start of a word, so that words can be merged one by one.
    by_words: bool,
}

/// Buffers that encoding reuses.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    /// Where unused tokens that were merged have to be cut again: bytes of the left part, as found last.
    cuts: HashMap<u32, usize>,
    parts: Vec<(usize, usize)>,
}

impl Bpe {
    pub(super) fn new(vocab: &Vocab, scores: &[f32]) -> Self {
        let texts = vocab.iter().filter(|&(.., kind)| is_text(kind));
        let by_words = texts.clone().all(|(_, text, kind)| match kind {
            // How an unused token is cut depends on all of the text before.
            TokenKind::Unused => text.chars().nth(1).is_none(),
            TokenKind::UserDefined => true,
            _ => word_length(text) == text.len(),
        });
        Self {
            ranks: scores.iter().map(|&score| rank_of(score)).collect(),
            longest_bytes: texts.map(|(_, text, _)| text.len()).max().unwrap_or(0),
            by_words,
        }
    }

    /// The tokens of a text without user-defined tokens.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        merging: &mut Merging,
        scratch: &mut Scratch,
        out: &mut Output<'_>,
    ) {
        let mut rest = text;
        while !rest.is_empty() {
            let (word, after) = rest.split_at(if self.by_words { word_length(rest) } else { rest.len() });
            self.encode_word(vocab, word, merging, scratch, out);
            rest = after;
        }
    }

    fn encode_word(
        &self,
        vocab: &Vocab,
        word: &str,
        merging: &mut Merging,
        scratch: &mut Scratch,
        out: &mut Output<'_>,
    ) {
        scratch.cuts.clear();
        // Characters are looked up only if they are left.
        merging.start(word.chars().map(|char| (NO_TOKEN, char.len_utf8() as u32)));
        merging.run(|pair| self.merge(vocab, word, pair, &mut scratch.cuts));
        for (id, range) in merging.symbols() {
            if vocab.kind(id) == Some(TokenKind::Normal) {
                out.token(id);
            } else {
                emit(vocab, word, (range.start, range.end), scratch, out);
            }
        }
    }

    fn merge(&self, vocab: &Vocab, word: &str, pair: Pair, cuts: &mut HashMap<u32, usize>) -> Option<Merge> {
        if pair.end - pair.start > self.longest_bytes {
            return None;
        }
        let (merged, kind) = find(vocab, &word[pair.start..pair.end])?;
        if kind == TokenKind::Unused {
            cuts.insert(merged, pair.middle - pair.start);
        }
        Some(Merge { rank: *self.ranks.get(merged as usize)?, merged })
    }
}

/// Writes a part of the word that is no token, or one that must be cut again.
fn emit(vocab: &Vocab, word: &str, part: (usize, usize), scratch: &mut Scratch, out: &mut Output<'_>) {
    scratch.parts.clear();
    scratch.parts.push(part);
    while let Some((start, end)) = scratch.parts.pop() {
        let text = &word[start..end];
        match find(vocab, text) {
            Some((id, TokenKind::Unused)) => match scratch.cuts.get(&id) {
                Some(&left) => scratch.parts.extend([(start + left, end), (start, start + left)]),
                None => out.unknown(text),
            },
            Some((id, _)) => out.token(id),
            None => out.unknown(text),
        }
    }
}

fn find(vocab: &Vocab, text: &str) -> Option<(u32, TokenKind)> {
    let id = vocab.id(text)?;
    let kind = vocab.kind(id)?;
    is_text(kind).then_some((id, kind))
}

/// Bytes up to the second word: a word may begin with spaces and has none further on.
fn word_length(text: &str) -> usize {
    let word = text.trim_start_matches(SPACE);
    let spaces = text.len() - word.len();
    spaces + word.find(SPACE).unwrap_or(word.len())
}

/// Orders scores, which are numbers, from the best to the worst.
fn rank_of(score: f32) -> u32 {
    // Both zeros are one score.
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 0 { !(bits | 1 << 31) } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_scores_have_lower_ranks() {
        let scores = [f32::MAX, 1.5, 1e-40, 0.0, -1e-40, -1.0, -1.0000001, -31744.0, f32::MIN];
        assert!(scores.map(rank_of).is_sorted_by(|better, worse| better < worse));
        assert_eq!(rank_of(0.0), rank_of(-0.0));
    }

    #[test]
    fn words_begin_with_spaces() {
        for (text, length) in [("▁a▁b", 4), ("▁▁ab▁▁b", 8), ("a▁", 1), ("▁", 3), ("▁▁", 6), ("ü▁▁", 2)]
        {
            assert_eq!(word_length(text), length, "{text}");
        }
    }
}
