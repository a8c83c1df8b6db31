//! Splitting text into pieces that are merged one by one: merges never cross a border between pieces.
//!
//! The rules are stated by the models' authors as regular expressions ([`Split`]). Their few character classes and one
//! look-ahead are written out here as a scan: it is linear in any text, where a backtracking engine is not, and needs no
//! engine. Tests compare it with the expressions.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

#[cfg(test)]
mod tests;

/// A rule. What the expressions do not match cannot be: each of them matches any character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Split {
    /// First every `\p{N}` by itself, then between those as [`Gpt2`](Self::Gpt2).
    SmolLm,
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Llama3,
    /// The same with `\p{N}` for `\p{N}{1,3}`.
    Qwen2,
}

impl Split {
    /// The rule that files name like this.
    pub(super) fn named(name: &str) -> Option<Self> {
        let aliases = super::PRE_TOKENIZER_ALIASES.iter();
        let name = aliases.copied().find_map(|(alias, of)| (alias == name).then_some(of)).unwrap_or(name);
        match name {
            "smollm" => Some(Self::SmolLm),
            "gpt-2" => Some(Self::Gpt2),
            "llama-bpe" => Some(Self::Llama3),
            "qwen2" => Some(Self::Qwen2),
            _ => None,
        }
    }

    /// Whether a piece that is a token is taken as it is, merges or not (`ignore_merges` in the models' own files).
    pub(super) fn takes_whole_pieces(self) -> bool {
        self == Self::Llama3
    }

    /// The pieces of `text`.
    pub(super) fn pieces(self, text: &str) -> Pieces<'_> {
        Pieces { split: self, rest: text }
    }

    /// Bytes of the first piece of `text`, which is not empty.
    fn piece_length(self, text: &str) -> usize {
        match self {
            Self::SmolLm => gpt2_length(text, Numbers::Alone),
            Self::Gpt2 => gpt2_length(text, Numbers::AsWords),
            Self::Llama3 => llama3_length(text, 3),
            Self::Qwen2 => llama3_length(text, 1),
        }
    }
}

/// The pieces of a text, in order. Together they are the text.
pub(super) struct Pieces<'a> {
    split: Split,
    rest: &'a str,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        let (piece, rest) = self.rest.split_at(self.split.piece_length(self.rest));
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

/// What becomes of numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Numbers {
    /// Each is a piece. They are cut out first, so that before one the text counts as ended.
    Alone,
    /// They form runs, as letters do.
    AsWords,
}

fn gpt2_length(text: &str, numbers: Numbers) -> usize {
    if let Some(length) = contraction_length(text, false) {
        return length;
    }
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return 0 };
    let is_word = |class| class != Class::Space && !(class == Class::Number && numbers == Numbers::Alone);
    match (class(first), chars.next().map(class)) {
        (Class::Number, _) if numbers == Numbers::Alone => first.len_utf8(),
        (Class::Space, Some(second)) if first == ' ' && is_word(second) => 1 + run_length(&text[1..], second),
        (Class::Space, _) => {
            let (spaces, rest) = text.split_at(run_length(text, Class::Space));
            spaces_length(spaces, rest.chars().next().is_some_and(|next| is_word(class(next))))
        }
        (class, _) => run_length(text, class),
    }
}

fn llama3_length(text: &str, most_numbers: usize) -> usize {
    if let Some(length) = contraction_length(text, true) {
        return length;
    }
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return 0 };
    let second = chars.next().map(class);
    match (class(first), second) {
        (Class::Letter, _) => run_length(text, Class::Letter),
        (Class::Number, _) => {
            text.chars().take(most_numbers).take_while(|&char| class(char) == Class::Number).map(char::len_utf8).sum()
        }
        (_, Some(Class::Letter)) if !is_newline(first) => {
            let start = first.len_utf8();
            start + run_length(&text[start..], Class::Letter)
        }
        (Class::Space, Some(Class::Other)) if first == ' ' => 1 + marks_length(&text[1..]),
        (Class::Other, _) => marks_length(text),
        (Class::Space, _) => {
            let (spaces, rest) = text.split_at(run_length(text, Class::Space));
            match spaces.rfind(is_newline) {
                Some(last) => last + 1,
                None => spaces_length(spaces, !rest.is_empty()),
            }
        }
    }
}

fn is_newline(char: char) -> bool {
    matches!(char, '\r' | '\n')
}

/// Bytes of `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` or `'d` at the start of `text`.
fn contraction_length(text: &str, any_case: bool) -> Option<usize> {
    let mut chars = text.strip_prefix('\'')?.chars();
    let fold = |char: char| match char {
        // Ignoring case the long s is an s, and the only letter outside ASCII that is one of these.
        'ſ' if any_case => 's',
        _ if any_case => char.to_ascii_lowercase(),
        _ => char,
    };
    let first = chars.next()?;
    match (fold(first), chars.next().map(fold)) {
        ('s' | 't' | 'm' | 'd', _) => Some(1 + first.len_utf8()),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(3),
        _ => None,
    }
}

/// Bytes of the leading characters of one class.
fn run_length(text: &str, of: Class) -> usize {
    text.find(|char| class(char) != of).unwrap_or(text.len())
}

/// Bytes of the leading characters that are neither space, letter nor number, and of the newlines after them.
fn marks_length(text: &str) -> usize {
    let marks = run_length(text, Class::Other);
    marks + text[marks..].find(|char| !is_newline(char)).unwrap_or(text.len() - marks)
}

/// Bytes of a run of white space, less the last one if a word follows, which begins with it or leaves it alone.
fn spaces_length(spaces: &str, word_follows: bool) -> usize {
    match spaces.char_indices().next_back() {
        Some((last, _)) if word_follows && last > 0 => last,
        _ => spaces.len(),
    }
}
