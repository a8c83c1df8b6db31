//! The tokens with the best sum of scores, found in one pass from left to right (Viterbi).

use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::super::error::TokenizerError;
use super::super::merging::NO_TOKEN;
use super::super::vocab::{TokenKind, Vocab};
use super::{Output, is_text};

/// How much worse than the worst token an unknown character is.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The tokens and their scores.
#[derive(Debug)]
pub(super) struct Unigram {
    /// Finds every token at every place.
    automaton: AhoCorasick,
    /// By number of the pattern: the token and its score. Sums are kept in single precision, as the library does: which of
    /// two cuts of one sum is taken hangs on how they are rounded.
    tokens: Vec<(u32, f32)>,
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
    pub(super) fn new(vocab: &Vocab, scores: &[f32]) -> Result<Self, TokenizerError> {
        let score_of = |id: u32| scores.get(id as usize).copied().unwrap_or_default();
        let normal = vocab.iter().filter(|&(.., kind)| kind == TokenKind::Normal);
        let worst = normal.map(|(id, ..)| score_of(id)).reduce(f32::min).unwrap_or(0.0);
        let texts =
            vocab.iter().filter(|&(_, text, kind)| is_text(kind) && kind != TokenKind::Unused && !text.is_empty());
        let score = |id: u32, text: &str, kind| match kind {
            // Better than logarithms of probabilities, and so taken where it stands, the longer the rather.
            TokenKind::UserDefined => ((text.len() - 1) as f64 * 0.1) as f32,
            _ => score_of(id),
        };
        let tokens = texts.clone().map(|(id, text, kind)| (id, score(id, text, kind))).collect();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            // Its size is in proportion to the texts.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(texts.map(|(_, text, _)| text))?;
        Ok(Self { automaton, tokens, unknown_score: worst - UNKNOWN_PENALTY })
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
        let mut matches = self.automaton.find_overlapping_iter(text).peekable();
        for (start, char) in text.char_indices() {
            let end = start + char.len_utf8();
            let mut best: Option<Node> = None;
            let mut is_token = false;
            // All that end here, the longest first.
            while let Some(found) = matches.next_if(|found| found.end() <= end) {
                is_token |= found.start() == start;
                let (id, token_score) = self.tokens[found.pattern().as_usize()];
                let Some(before) = nodes[found.start()] else { continue };
                let score = token_score + before.score;
                if best.is_none_or(|best| score > best.score) {
                    best = Some(Node { score, start: found.start() as u32, id });
                }
            }
            if !is_token && let Some(before) = nodes[start] {
                let score = self.unknown_score + before.score;
                if best.is_none_or(|best| score > best.score) {
                    best = Some(Node { score, start: start as u32, id: NO_TOKEN });
                }
            }
            nodes[end] = best;
        }
    }
}
