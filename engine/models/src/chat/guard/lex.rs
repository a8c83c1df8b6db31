//! The words and marks of a block of a template.

use super::super::ChatError;

/// Names, strings and symbols in one block: chains of them are compiled by recursion. Real templates have some hundreds.
const MAX_TOKENS: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Name,
    Text,
    Number,
    Symbol,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    pub(super) start: usize,
}

impl Token<'_> {
    pub(super) fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// The tokens up to the end of a block, and the place behind it.
pub(super) fn tokens<'a>(source: &'a str, start: usize, close: &str) -> Result<(Vec<Token<'a>>, usize), ChatError> {
    const LONG: [&str; 6] = ["**", "//", "==", "!=", "<=", ">="];
    let mut tokens = Vec::new();
    let mut at = start;
    // A mark for the spaces before the block.
    if source[at..].starts_with(['-', '+']) {
        at += 1;
    }
    let mut open = 0_usize;
    loop {
        let rest = &source[at..];
        let trimmed = rest.trim_start();
        at += rest.len() - trimmed.len();
        let rest = trimmed;
        let Some(first) = rest.chars().next() else {
            return Err(error(source, at, "a block is not closed"));
        };
        // Inside braces, `}}` closes two dictionaries.
        if open == 0 {
            let unmarked = rest.strip_prefix(['-', '+']).unwrap_or(rest);
            if let Some(behind) = unmarked.strip_prefix(close).or_else(|| rest.strip_prefix(close)) {
                return Ok((tokens, source.len() - behind.len()));
            }
        }
        let (kind, length) = match first {
            '"' | '\'' => {
                let mut escaped = false;
                let end = rest[1..].char_indices().find(|&(_, c)| {
                    let ends = c == first && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                let Some((end, _)) = end else { return Err(error(source, at, "a string is not closed")) };
                (Kind::Text, end + 2)
            }
            c if c.is_ascii_digit() => (Kind::Number, number(rest)),
            c if c == '_' || c.is_alphabetic() => {
                let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
                (Kind::Name, end)
            }
            c => {
                match c {
                    '{' | '[' | '(' => open += 1,
                    '}' | ']' | ')' => open = open.saturating_sub(1),
                    _ => {}
                }
                let is_long = LONG.iter().any(|symbol| rest.starts_with(symbol));
                (Kind::Symbol, if is_long { 2 } else { c.len_utf8() })
            }
        };
        if tokens.len() == MAX_TOKENS {
            return Err(error(source, at, "a block is too long"));
        }
        tokens.push(Token { kind, text: &rest[..length], start: at });
        at += length;
    }
}

/// The length of a number: digits, a fraction, an exponent, or letters of another base.
fn number(text: &str) -> usize {
    let digits = |text: &str| text.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(text.len());
    let whole = digits(text);
    let rest = &text[whole..];
    match rest.strip_prefix('.').filter(|fraction| fraction.starts_with(|c: char| c.is_ascii_digit())) {
        Some(fraction) => whole + 1 + digits(fraction),
        // The sign of an exponent.
        None if text[..whole].ends_with(['e', 'E']) && rest.starts_with(['+', '-']) => whole + 1 + digits(&rest[1..]),
        None => whole,
    }
}

pub(super) fn error(source: &str, at: usize, reason: &str) -> ChatError {
    let line = source[..at.min(source.len())].matches('\n').count() + 1;
    ChatError::Syntax { line, reason: reason.into() }
}
