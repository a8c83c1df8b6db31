//! Tokens of rendered messages: control tokens of the template, but none of the messages.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::{ChatError, ChatTemplate, Message};
use crate::{
    gguf::excerpt,
    tokenizer::{EncodeScratch, TokenKind, Tokenizer, TokenizerError},
};

/// A text with control tokens that are meant, and none that are not.
pub(super) struct Guarded {
    /// The text that was rendered.
    pub(super) plain: String,
    /// The same with characters of messages replaced, character for character; none where there was nothing to replace.
    replaced: Option<String>,
    stand_ins: StandIns,
}

impl ChatTemplate {
    /// The tokens of these messages. Control tokens that are spelled in a message stay text; no tokens are added to what the
    /// template writes.
    ///
    /// # Errors
    /// As [`render`](Self::render), [`ChatError::Inseparable`], or what the tokenizer reports.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>, ChatError> {
        let guarded = self.render_guarded(tokenizer, messages, add_generation_prompt)?;
        guarded.encode(tokenizer, 0)
    }

    pub(super) fn render_guarded(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Guarded, ChatError> {
        let plain = self.render(messages, add_generation_prompt)?;
        let controls = texts(tokenizer, TokenKind::is_control);
        // A control token that neither begins nor ends in a message is not the message's.
        let edge_of = |text: &str| [text.chars().next(), text.chars().next_back()];
        let mut edges: Vec<char> = controls.iter().flat_map(|(_, text)| edge_of(text)).flatten().collect();
        edges.sort_unstable();
        edges.dedup();
        let has_edge = |message: &Message| message.content.contains(edges.as_slice());
        if !messages.iter().any(has_edge) {
            return Ok(Guarded { plain, replaced: None, stand_ins: StandIns::default() });
        }
        let finder = finder(&controls, MatchKind::Standard)?;
        let whole = |message: &Message| -> Vec<usize> {
            finder.find_overlapping_iter(&message.content).map(|found| found.start()).collect()
        };
        let seen = messages.iter().map(|message| message.content.as_str()).chain([&*plain, self.source()]);
        let stand_ins = StandIns::new(&edges, seen);
        let try_with = |contents: Vec<String>| -> Result<Option<String>, ChatError> {
            let contents: Vec<&str> = contents.iter().map(String::as_str).collect();
            // A template may refuse what it does not refuse otherwise.
            let rendered = match self.render_with(messages, &contents, add_generation_prompt) {
                Ok(rendered) => rendered,
                Err(ChatError::TooMuchWork) => return Err(ChatError::TooMuchWork),
                Err(_) => return Ok(None),
            };
            Ok((stand_ins.restored(&rendered) == plain).then_some(rendered))
        };
        if stand_ins.cover(&edges) {
            let every = messages.iter().map(|message| stand_ins.replace(&message.content, |_| true));
            if let Some(replaced) = try_with(every.collect())? {
                return Ok(Guarded { plain, replaced: Some(replaced), stand_ins });
            }
            let some = messages.iter().map(|message| {
                let whole = whole(message);
                stand_ins.replace(&message.content, |at| whole.contains(&at))
            });
            if let Some(replaced) = try_with(some.collect())? {
                return Ok(Guarded { plain, replaced: Some(replaced), stand_ins });
            }
        }
        // The template looks at what was replaced. Without whole control tokens that does no harm.
        for (message, content) in messages.iter().map(|message| &message.content).enumerate() {
            // The longest of those that are spelled.
            let longest = finder.find_overlapping_iter(content).max_by_key(|found| found.range().len());
            if let Some(found) = longest {
                return Err(ChatError::Inseparable { message, token: excerpt(&content[found.range()]) });
            }
        }
        Ok(Guarded { plain, replaced: None, stand_ins })
    }
}

impl Guarded {
    /// Whether the part of the text from this byte on begins with a control token that the template wrote.
    pub(super) fn begins_with_control(&self, tokenizer: &Tokenizer, from: usize) -> Result<bool, ChatError> {
        let finder = finder(&texts(tokenizer, TokenKind::is_control), MatchKind::LeftmostLongest)?;
        Ok(finder.find(self.tail(from)).is_some_and(|found| found.start() == 0))
    }

    /// The tokens of the part of the text from this byte on.
    pub(super) fn encode(&self, tokenizer: &Tokenizer, from: usize) -> Result<Vec<u32>, ChatError> {
        let (mut scratch, mut out) = (EncodeScratch::default(), Vec::new());
        let text = self.tail(from);
        if self.replaced.is_none() {
            tokenizer.encode_into(text, true, &mut scratch, &mut out)?;
            return Ok(out);
        }
        // As the tokenizer looks for them, but in a text where those of the messages are not to be found.
        let special = texts(tokenizer, |kind| kind.is_control() || kind == TokenKind::UserDefined);
        let finder = finder(&special, MatchKind::LeftmostLongest)?;
        let mut start = 0;
        for found in finder.find_iter(text) {
            let between = self.stand_ins.restored(&text[start..found.start()]);
            tokenizer.encode_into(&between, false, &mut scratch, &mut out)?;
            out.extend(special.get(found.pattern().as_usize()).map(|(id, _)| *id));
            start = found.end();
        }
        tokenizer.encode_into(&self.stand_ins.restored(&text[start..]), false, &mut scratch, &mut out)?;
        Ok(out)
    }

    /// What is behind this byte of the plain text.
    fn tail(&self, from: usize) -> &str {
        let before = self.plain.get(..from).unwrap_or(&self.plain);
        let Some(replaced) = &self.replaced else { return &self.plain[before.len()..] };
        // Characters were replaced one by one.
        let at = replaced.char_indices().nth(before.chars().count()).map_or(replaced.len(), |(at, _)| at);
        &replaced[at..]
    }
}

/// The tokens of some kinds that have a text.
fn texts(tokenizer: &Tokenizer, wanted: impl Fn(TokenKind) -> bool) -> Vec<(u32, &str)> {
    let tokens = (0..tokenizer.len()).filter(|&id| tokenizer.token_kind(id).is_some_and(&wanted));
    tokens
        .filter_map(|id| tokenizer.token_spelling(id).map(|text| (id, text)))
        .filter(|(_, text)| !text.is_empty())
        .collect()
}

fn finder(texts: &[(u32, &str)], kind: MatchKind) -> Result<AhoCorasick, TokenizerError> {
    let texts = texts.iter().map(|(_, text)| text);
    Ok(AhoCorasick::builder().match_kind(kind).kind(Some(AhoCorasickKind::ContiguousNFA)).build(texts)?)
}

/// Characters that take the place of others, and occur nowhere.
#[derive(Default)]
struct StandIns {
    /// The character of a message, and what takes its place.
    pairs: Vec<(char, char)>,
}

impl StandIns {
    /// For each of `chars` a private character that none of the texts has, as long as there are any.
    fn new<'a>(chars: &[char], seen: impl Iterator<Item = &'a str>) -> Self {
        let is_private = |c: &char| matches!(*c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{ffffd}');
        let used: std::collections::HashSet<char> = seen.flat_map(str::chars).filter(is_private).collect();
        let free = ('\u{e000}'..='\u{f8ff}').chain('\u{f0000}'..='\u{ffffd}').filter(|c| !used.contains(c));
        Self { pairs: chars.iter().copied().zip(free).collect() }
    }

    /// Whether there is one for each of these.
    fn cover(&self, chars: &[char]) -> bool {
        self.pairs.len() == chars.len()
    }

    /// The text with characters replaced where `wanted` says so of their offset.
    fn replace(&self, text: &str, wanted: impl Fn(usize) -> bool) -> String {
        let stand_in = |c: char| self.pairs.iter().find(|pair| pair.0 == c).map(|pair| pair.1);
        text.char_indices().map(|(at, c)| stand_in(c).filter(|_| wanted(at)).unwrap_or(c)).collect()
    }

    fn restored(&self, text: &str) -> String {
        let original = |c: char| self.pairs.iter().find(|pair| pair.1 == c).map(|pair| pair.0);
        text.chars().map(|c| original(c).unwrap_or(c)).collect()
    }
}
