//! Splitting text into pieces that are merged one by one: merges never cross a border between pieces.
//!
//! The rule is stated by its authors as regular expressions: first every `\p{N}` by itself, then between those
//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. Its five character classes and one look-ahead are
//! written out here as a scan: it is linear in any text, where a backtracking engine is not, and needs no engine. A test
//! compares it with the expressions.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// The pieces of a text, in order. Together they are the text.
pub(super) struct Pieces<'a> {
    rest: &'a str,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { rest: text }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let length = piece_length(self.rest)?;
        let (piece, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some(piece)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

fn class(char: char) -> Class {
    if char.is_ascii() {
        return match char {
            'a'..='z' | 'A'..='Z' => Class::Letter,
            '0'..='9' => Class::Number,
            '\t'..='\r' | ' ' => Class::Space,
            _ => Class::Other,
        };
    }
    if char.is_whitespace() {
        return Class::Space;
    }
    // The general category, and not `is_alphabetic`: that one counts many marks as letters.
    match char.general_category_group() {
        GeneralCategoryGroup::Letter => Class::Letter,
        GeneralCategoryGroup::Number => Class::Number,
        _ => Class::Other,
    }
}

/// Bytes of the first piece of `text`, `None` at its end.
fn piece_length(text: &str) -> Option<usize> {
    let mut chars = text.chars();
    let first = chars.next()?;
    if first == '\''
        && let Some(length) = contraction_length(text)
    {
        return Some(length);
    }
    let second = chars.next().map(class);
    Some(match (first, class(first), second) {
        // Digits stand alone and never take the space before them.
        (_, Class::Number, _) => first.len_utf8(),
        (' ', _, Some(class @ (Class::Letter | Class::Other))) => 1 + run_length(&text[1..], class),
        (_, Class::Space, _) => spaces_length(text),
        (_, class, _) => run_length(text, class),
    })
}

fn contraction_length(text: &str) -> Option<usize> {
    ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"].iter().find(|suffix| text.starts_with(**suffix)).map(|s| s.len())
}

/// Bytes of the leading characters of one class.
fn run_length(text: &str, of: Class) -> usize {
    text.find(|char| class(char) != of).unwrap_or(text.len())
}

/// Bytes of the leading white space, less the last one if a word follows that may begin with it.
fn spaces_length(text: &str) -> usize {
    let length = run_length(text, Class::Space);
    let (spaces, rest) = text.split_at(length);
    // Before a digit the run counts as the end of a text, since digits are cut out first.
    let word_follows = rest.chars().next().is_some_and(|next| class(next) != Class::Number);
    match spaces.char_indices().next_back() {
        Some((last, _)) if word_follows && last > 0 => last,
        _ => length,
    }
}

#[cfg(test)]
mod tests {
    use fancy_regex::Regex;
    use proptest::prelude::*;

    use super::*;

    /// The rule as its authors state it.
    fn by_expression(text: &str) -> Vec<String> {
        let digit = Regex::new(r"\p{N}").expect("a valid expression");
        let words = Regex::new(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
            .expect("a valid expression");
        let mut pieces = Vec::new();
        let between = |part: &str, pieces: &mut Vec<String>| {
            pieces.extend(words.find_iter(part).map(|found| found.expect("no limit is reached").as_str().to_owned()));
        };
        let mut start = 0;
        for found in digit.find_iter(text) {
            let found = found.expect("no limit is reached");
            between(&text[start..found.start()], &mut pieces);
            pieces.push(found.as_str().to_owned());
            start = found.end();
        }
        between(&text[start..], &mut pieces);
        pieces
    }

    /// Characters of every class and of the borders between them: marks, letter and other numbers, joiners, exotic
    /// spaces, an unassigned code point.
    const POOL: &[char] = &[
        'a',
        'Z',
        's',
        't',
        'r',
        'e',
        'v',
        'm',
        'l',
        'd',
        '\'',
        '\'',
        '’',
        ' ',
        ' ',
        ' ',
        '\t',
        '\n',
        '\r',
        '\u{b}',
        '0',
        '7',
        '²',
        'Ⅷ',
        '٣',
        '一',
        'é',
        'ß',
        'ª',
        'ʰ',
        'א',
        'Ж',
        '\u{301}',
        '\u{93e}',
        '🙂',
        '\u{200d}',
        '\u{200b}',
        '\u{a0}',
        '\u{85}',
        '\u{3000}',
        '\u{2028}',
        '\u{378}',
        '\0',
        '\u{7f}',
        '.',
        '_',
        '-',
        '—',
        '$',
        '\u{10ffff}',
    ];

    proptest! {
        #[test]
        fn pieces_are_those_of_the_expressions(picks in prop::collection::vec(prop::sample::select(POOL), 0..40)) {
            let text: String = picks.into_iter().collect();
            let pieces: Vec<&str> = Pieces::new(&text).collect();
            prop_assert_eq!(pieces.concat(), text.as_str());
            prop_assert_eq!(pieces, by_expression(&text));
        }
    }

    #[test]
    fn words_keep_one_space_and_digits_none() {
        let pieces: Vec<&str> = Pieces::new("   We'll  pay 120\n\n$ 5 ").collect();
        assert_eq!(pieces, ["  ", " We", "'ll", " ", " pay", " ", "1", "2", "0", "\n", "\n", "$", " ", "5", " "]);
    }
}
