//! The tokens with the best sum of scores, found in one pass from left to right (Viterbi).

use std::borrow::Cow;
use std::ops::Range;

use super::super::merging::NO_TOKEN;
use super::super::vocab::{TokenKind, Vocab};
use super::trie::Trie;
use super::{Output, is_text, with_marks};

/// How much worse than the worst token an unknown character is.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Sums below this are brought back to zero, so that single precision is enough for texts of any length.
const LOWEST_SUM: f32 = -100_000.0;

/// The tokens and their scores.
///
/// Sums are kept in single precision and rounded as in the library: which of two cuts of one sum is taken hangs on that.
#[derive(Debug)]
pub(super) struct Unigram {
    trie: Trie,
    longest_bytes: usize,
    /// By token.
    scores: Vec<f32>,
    unknown_score: f32,
}

/// The best way to a place in the text.
#[derive(Clone, Copy, Debug)]
struct Node {
    score: f32,
    /// Where its last token starts.
    start: u32,
    id: u32,
}

/// Buffers that encoding reuses.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    /// By byte of the text; those inside of characters are not used.
    nodes: Vec<Option<Node>>,
    path: Vec<(u32, Range<usize>)>,
}

impl Unigram {
    pub(super) fn new(vocab: &Vocab, mut scores: Vec<f32>) -> Self {
        let normal = (0u32..).zip(&scores).filter(|&(id, _)| vocab.kind(id) == Some(TokenKind::Normal));
        let worst = normal.map(|(_, &score)| score).reduce(f32::min).unwrap_or(0.0);
        for ((_, text, kind), score) in vocab.iter().zip(&mut scores) {
            if kind == TokenKind::UserDefined {
                // Better than logarithms of probabilities, and so taken where it stands, the longer the rather.
                *score = (text.len().saturating_sub(1) as f64 * 0.1) as f32;
            }
        }
        let is_used = |text: &str, kind| is_text(kind) && kind != TokenKind::Unused && !text.is_empty();
        let tokens = vocab.iter().filter(|&(_, text, kind)| is_used(text, kind));
        let tokens: Vec<(u32, Cow<'_, str>)> = tokens
            .map(|(id, text, kind)| (id, if kind == TokenKind::UserDefined { with_marks(text) } else { text.into() }))
            .collect();
        Self {
            trie: Trie::new(&tokens),
            longest_bytes: tokens.iter().map(|(_, text)| text.len()).max().unwrap_or(0),
            scores,
            unknown_score: worst - UNKNOWN_PENALTY,
        }
    }

    /// The tokens of a normalized text.
    pub(super) fn encode(&self, text: &str, scratch: &mut Scratch, out: &mut Output<'_>) {
        self.find_best(text, &mut scratch.nodes);
        scratch.path.clear();
        let mut end = text.len();
        while end > 0 {
            let Some(Some(node)) = scratch.nodes.get(end) else { break };
            scratch.path.push((node.id, node.start as usize..end));
            end = node.start as usize;
        }
        for (id, range) in scratch.path.drain(..).rev() {
            if id == NO_TOKEN { out.unknown(&text[range]) } else { out.token(id) }
        }
    }

    fn find_best(&self, text: &str, nodes: &mut Vec<Option<Node>>) {
        nodes.clear();
        nodes.resize(text.len() + 1, None);
        nodes[0] = Some(Node { score: 0.0, start: 0, id: NO_TOKEN });
        for (start, char) in text.char_indices() {
            // Every character can be unknown, so that every place is reached.
            let Some(Node { score: mut before, .. }) = nodes[start] else { continue };
            if before < LOWEST_SUM {
                let last = text.len().min(start + self.longest_bytes);
                nodes[start + 1..=last].iter_mut().flatten().for_each(|node| node.score -= before);
                before = 0.0;
            }
            let mut reach = |end: usize, id: u32, score: f32| {
                let score = score + before;
                if nodes[end].is_none_or(|best| score > best.score) {
                    nodes[end] = Some(Node { score, start: start as u32, id });
                }
            };
            let mut is_token = false;
            for (length, id) in self.trie.prefixes(&text[start..]) {
                is_token |= length == char.len_utf8();
                reach(start + length, id, self.scores[id as usize]);
            }
            if !is_token {
                reach(start + char.len_utf8(), NO_TOKEN, self.unknown_score);
            }
        }
    }
}
