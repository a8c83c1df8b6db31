//! Finding the texts of special tokens.

use std::borrow::Cow;
use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::error::TokenizerError;

/// Finds the texts of tokens: the leftmost, and of those that start there the longest.
#[derive(Debug)]
pub(super) struct SpecialFinder {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

impl SpecialFinder {
    /// A finder of these tokens; `None` where there are none with a text.
    pub(super) fn new<'a>(tokens: impl Iterator<Item = (u32, Cow<'a, str>)>) -> Result<Option<Self>, TokenizerError> {
        let (ids, texts): (Vec<u32>, Vec<Cow<'a, str>>) = tokens.filter(|(_, text)| !text.is_empty()).unzip();
        if ids.is_empty() {
            return Ok(None);
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            // Its size is in proportion to the texts; a DFA's is hundreds of times that, and the texts are foreign.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(texts.iter().map(|text| text.as_bytes()))?;
        Ok(Some(Self { automaton, ids }))
    }

    /// The matches in `text`: token and range.
    pub(super) fn find_iter<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (u32, Range<usize>)> + 'a {
        self.automaton.find_iter(text).map(|found| (self.ids[found.pattern().as_usize()], found.range()))
    }
}
