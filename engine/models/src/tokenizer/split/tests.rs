use std::sync::OnceLock;

use fancy_regex::Regex;
use proptest::prelude::*;

use super::*;
use crate::tokenizer::{PRE_TOKENIZER_ALIASES, SUPPORTED_PRE_TOKENIZERS};

static EXPRESSIONS: OnceLock<Expressions> = OnceLock::new();

const ALL: [Split; 4] = [Split::SmolLm, Split::Gpt2, Split::Llama3, Split::Qwen2];

/// The rules as their authors state them.
struct Expressions {
    number: Regex,
    gpt2: Regex,
    llama3: Regex,
    qwen2: Regex,
}

impl Expressions {
    fn new() -> Self {
        let regex = |expression: &str| Regex::new(expression).expect("a valid expression");
        let llama3 = |numbers: &str| {
            regex(&format!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ))
        };
        Self {
            number: regex(r"\p{N}"),
            gpt2: regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
            llama3: llama3(r"\p{N}{1,3}"),
            qwen2: llama3(r"\p{N}"),
        }
    }

    fn pieces<'a>(&self, split: Split, text: &'a str) -> Vec<&'a str> {
        match split {
            Split::Gpt2 => all(&self.gpt2, text),
            Split::Llama3 => all(&self.llama3, text),
            Split::Qwen2 => all(&self.qwen2, text),
            Split::SmolLm => {
                let mut pieces = Vec::new();
                let mut start = 0;
                for found in self.number.find_iter(text) {
                    let found = found.expect("no limit is reached");
                    pieces.extend(all(&self.gpt2, &text[start..found.start()]));
                    pieces.push(found.as_str());
                    start = found.end();
                }
                pieces.extend(all(&self.gpt2, &text[start..]));
                pieces
            }
        }
    }
}

fn all<'a>(regex: &Regex, text: &'a str) -> Vec<&'a str> {
    regex.find_iter(text).map(|found| found.expect("no limit is reached").as_str()).collect()
}

/// Characters of every class and of the borders between them: marks, letter and other numbers, joiners, exotic spaces, an
/// unassigned code point, letters that fold to others. Those of contractions and white space are more frequent.
const POOL: &str = "aZsstTrReEvVmMlLdD''''’     \t\n\n\r\r\u{b}\u{c}0079²Ⅷ٣一éßªʰאЖſKİ\u{301}\u{93e}🙂\u{200d}\u{200b}\u{a0}\u{85}\
                    \u{3000}\u{2028}\u{378}\0\u{1c}\u{7f}..__-—$\u{10ffff}";

fn text() -> impl Strategy<Value = String> {
    let pool: Vec<char> = POOL.chars().collect();
    prop::collection::vec(prop::sample::select(pool), 0..40).prop_map(|picks| picks.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn pieces_are_those_of_the_expressions(text in text()) {
        let expressions = EXPRESSIONS.get_or_init(Expressions::new);
        for split in ALL {
            let pieces: Vec<&str> = split.pieces(&text).collect();
            prop_assert_eq!(pieces.concat(), text.as_str(), "{:?}", split);
            prop_assert_eq!(pieces, expressions.pieces(split, &text), "{:?}", split);
        }
    }

    /// Also of text that no one thought of.
    #[test]
    fn pieces_make_up_the_text(text in any::<String>()) {
        for split in ALL {
            prop_assert!(split.pieces(&text).all(|piece| !piece.is_empty()));
            prop_assert_eq!(split.pieces(&text).collect::<String>(), text.as_str(), "{:?}", split);
        }
    }
}

fn pieces(split: Split, text: &str) -> Vec<&str> {
    split.pieces(text).collect()
}

#[test]
fn the_rules_differ_in_numbers_spaces_and_case() {
    let text = "   We'll  PAY'LL 1204\r\n\n$ 5 ";
    let [smollm, gpt2, llama3, qwen2] = ALL.map(|split| pieces(split, text));
    let start = ["  ", " We", "'ll", " ", " PAY"];
    let cased = ["'", "LL"];
    let lines = ["\r\n\n", "$", " ", "5", " "];
    assert_eq!(smollm, [&start[..], &cased, &[" ", "1", "2", "0", "4", "\r\n", "\n", "$", " ", "5", " "]].concat());
    assert_eq!(gpt2, [&start[..], &cased, &[" 1204", "\r\n", "\n", "$", " 5", " "]].concat());
    assert_eq!(llama3, [&start[..], &["'LL", " ", "120", "4"], &lines].concat());
    assert_eq!(qwen2, [&start[..], &["'LL", " ", "1", "2", "0", "4"], &lines].concat());
}

#[test]
fn every_supported_name_has_a_rule_of_its_own_and_aliases_have_theirs() {
    let named: Vec<Split> =
        SUPPORTED_PRE_TOKENIZERS.iter().map(|name| Split::named(name).expect("a supported name")).collect();
    for split in ALL {
        assert_eq!(named.iter().filter(|&&found| found == split).count(), 1, "{split:?}");
    }
    for &(alias, name) in PRE_TOKENIZER_ALIASES {
        assert!(SUPPORTED_PRE_TOKENIZERS.contains(&name) && !SUPPORTED_PRE_TOKENIZERS.contains(&alias), "{alias}");
        assert_eq!(Split::named(alias), Split::named(name));
    }
    assert_eq!(["default", "", "llama3 ", "LLAMA3"].map(Split::named), [None; 4]);
}

#[test]
fn long_runs_take_time_in_proportion() {
    for unit in [" ", "\n", "\n ", "a", "7", "'", "!", "\u{301}", " \u{a0}", "'s", "一"] {
        let text = unit.repeat((1 << 20) / unit.len());
        for split in ALL {
            let length: usize = split.pieces(&text).map(str::len).sum();
            assert_eq!(length, text.len(), "{split:?} {unit:?}");
        }
    }
}
