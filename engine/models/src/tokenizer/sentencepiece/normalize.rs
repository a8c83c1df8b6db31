//! What happens to text before it is cut into tokens: characters are rewritten as the file says, spaces collapsed if it
//! asks for that and marked by `▁`, and one is put before the text.

use super::super::decode::LeadingSpace;
use super::super::error::TokenizerError;
use super::super::keys;
use super::super::special::SpecialFinder;
use super::charsmap::CharsMap;
use super::{MOST_BYTES, SPACE};
use crate::gguf::{Metadata, OptionalKey};

/// What a file asks for.
#[derive(Debug)]
pub(super) struct Normalizer {
    space_prefix: bool,
    /// No spaces at the start and at the end, and single ones between.
    trims: bool,
    map: Option<CharsMap>,
}

impl Normalizer {
    pub(super) fn read(metadata: &Metadata) -> Result<Self, TokenizerError> {
        Ok(Self {
            space_prefix: metadata.get_bool(keys::ADD_SPACE_PREFIX).optional()?.unwrap_or(true),
            trims: metadata.get_bool(keys::REMOVE_EXTRA_WHITESPACES).optional()?.unwrap_or(false),
            map: CharsMap::read(metadata)?,
        })
    }

    /// Replaces `out` by the normalized text, which is cut off where it is longer than [`MOST_BYTES`]. Where characters are
    /// rewritten, user-defined tokens are not.
    pub(super) fn normalize(&self, text: &str, user_defined: Option<&SpecialFinder>, out: &mut String) {
        out.clear();
        if text.is_empty() {
            return;
        }
        if self.space_prefix {
            out.push(SPACE);
        }
        let mut writer = Writer { out, trims: self.trims, after_space: self.trims };
        match &self.map {
            Some(map) => rewrite(map, text, user_defined, &mut writer),
            None => text.split_inclusive(' ').for_each(|unit| writer.push(unit)),
        }
        if self.trims {
            out.truncate(out.trim_end_matches(SPACE).len());
        }
    }

    pub(super) fn leading_space(&self) -> LeadingSpace {
        match (self.trims, self.space_prefix) {
            (true, _) => LeadingSpace::StripAll,
            (false, true) => LeadingSpace::StripOne,
            (false, false) => LeadingSpace::Keep,
        }
    }
}

/// Puts text together from units that spaces at most begin or end, or that are spaces.
struct Writer<'a> {
    out: &'a mut String,
    trims: bool,
    after_space: bool,
}

impl Writer<'_> {
    fn push(&mut self, unit: &str) {
        let unit = if self.after_space { unit.trim_start_matches(' ') } else { unit };
        if unit.is_empty() {
            return;
        }
        for (i, part) in unit.split(' ').enumerate() {
            if i > 0 {
                self.out.push(SPACE);
            }
            self.out.push_str(part);
        }
        self.after_space = self.trims && unit.ends_with(' ');
    }
}

fn rewrite(map: &CharsMap, text: &str, user_defined: Option<&SpecialFinder>, writer: &mut Writer<'_>) {
    let find = |at: usize| {
        let (_, range) = user_defined?.find_iter(&text[at..]).next()?;
        Some(at + range.start..at + range.end)
    };
    let mut kept = find(0);
    let mut at = 0;
    while let Some(char) = text[at..].chars().next()
        && writer.out.len() <= MOST_BYTES
    {
        // What was rewritten may have reached into the token that would have come next.
        if kept.as_ref().is_some_and(|kept| kept.start < at) {
            kept = find(at);
        }
        let end = if let Some(kept) = kept.as_ref().filter(|kept| kept.start == at) {
            writer.push(&text[kept.clone()]);
            kept.end
        } else if let Some((length, replacement)) = map.longest_prefix(&text[at..]) {
            writer.push(replacement);
            at + length
        } else {
            let end = at + char.len_utf8();
            writer.push(&text[at..end]);
            end
        };
        at = end;
    }
}
