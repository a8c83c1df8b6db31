//! Small vocabularies, made by hand.

use proptest::prelude::*;

use super::super::tests::assert_says;
use super::super::{ControlTokens, MissingBytes, Tokenizer, TokenizerError, keys};
use crate::gguf::{GgufBuilder, GgufError, GgufHeader, GgufValue};

/// Unknown, first, last and a user-defined token, byte tokens if wanted, and a few tokens with scores.
#[derive(Clone)]
struct Fixture {
    tokens: Vec<String>,
    types: Vec<i32>,
    scores: Vec<f32>,
    extra: Vec<(&'static str, Option<GgufValue>)>,
}

impl Fixture {
    fn new(model: &str, byte_tokens: bool) -> Self {
        let mut fixture = Self { tokens: Vec::new(), types: Vec::new(), scores: Vec::new(), extra: Vec::new() };
        for (text, kind) in [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("<sep>", 4)] {
            fixture.push(text, kind, 0.0);
        }
        if byte_tokens {
            (0..=u8::MAX).for_each(|byte| fixture.push(&format!("<0x{byte:02X}>"), 6, 0.0));
        }
        for (i, text) in ["he", "▁t", "▁the", "▁a", "▁", "t", "h", "e", "a", "b"].into_iter().enumerate() {
            fixture.push(text, 1, -1.0 - i as f32);
        }
        fixture.with(keys::MODEL, model).with(keys::BOS, 1u32).with(keys::EOS, 2u32)
    }

    fn push(&mut self, text: &str, kind: i32, score: f32) {
        self.tokens.push(text.into());
        self.types.push(kind);
        self.scores.push(score);
    }

    /// With another value of `key`.
    fn with(self, key: &'static str, value: impl Into<GgufValue>) -> Self {
        self.set(key, Some(value.into()))
    }

    fn without(self, key: &'static str) -> Self {
        self.set(key, None)
    }

    fn set(mut self, key: &'static str, value: Option<GgufValue>) -> Self {
        self.extra.retain(|(set, _)| *set != key);
        self.extra.push((key, value));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let own: [(&str, GgufValue); 3] = [
            (keys::TOKENS, self.tokens.clone().into()),
            (keys::TOKEN_TYPE, self.types.clone().into()),
            (keys::SCORES, self.scores.clone().into()),
        ];
        let mut builder = GgufBuilder::new();
        for (key, value) in own {
            if self.extra.iter().all(|(set, _)| *set != key) {
                builder = builder.value(key, value);
            }
        }
        for (key, value) in &self.extra {
            if let Some(value) = value {
                builder = builder.value(*key, value.clone());
            }
        }
        builder.build().expect("a valid file")
    }

    fn build(&self) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_metadata(&GgufHeader::parse(self.bytes()).expect("a valid file").metadata)
    }

    fn error(&self) -> TokenizerError {
        self.build().expect_err("a broken vocabulary")
    }
}

fn llama() -> Tokenizer {
    Fixture::new("llama", true).build().expect("a valid vocabulary")
}

/// The spellings of the tokens of `text`.
fn spell(tokenizer: &Tokenizer, text: &str, parse_special: bool) -> Vec<String> {
    let ids = tokenizer.encode(text, parse_special).expect("encodable");
    ids.into_iter().map(|id| tokenizer.token_spelling(id).expect("a token").to_owned()).collect()
}

#[test]
fn better_scores_are_merged_first() {
    let tokenizer = llama();
    // "he" is the best, and leaves nothing for "▁t" to become "▁the" but itself.
    assert_eq!(spell(&tokenizer, "the ab", false), ["<s>", "▁the", "▁a", "b"]);
    let mut fixture = Fixture::new("llama", true);
    fixture.push("th", 1, 0.0);
    let other = fixture.build().expect("valid");
    assert_eq!(spell(&other, "the", false), ["<s>", "▁", "th", "e"]);
    // As the sum of scores, it is the other way round.
    let unigram = Fixture::new("t5", true).build().expect("valid");
    assert_eq!(spell(&unigram, "the ab", false), ["▁the", "▁a", "b", "</s>"]);
}

#[test]
fn sums_of_scores_stay_exact_in_long_texts() {
    let mut fixture = Fixture::new("t5", true);
    for (text, score) in [("x", -1000.0), ("uv", -4.99), ("w", -5.0), ("u", -5.0), ("vw", -5.0)] {
        fixture.push(text, 1, score);
    }
    let tokenizer = fixture.build().expect("valid");
    // Before the last word the sum is ten million, whose neighbours in single precision are one apart.
    for count in [0, 1, 99, 100, 101, 10_000] {
        let spelled = spell(&tokenizer, &format!("{}uvw", "x".repeat(count)), false);
        assert_eq!(spelled[count + 1..], ["uv", "w", "</s>"], "{count}");
    }
}

#[test]
fn text_without_tokens_becomes_bytes_or_unknown() {
    assert_eq!(spell(&llama(), "aü\n", false), ["<s>", "▁a", "<0xC3>", "<0xBC>", "<0x0A>"]);
    for model in ["llama", "t5"] {
        let fixture = Fixture::new(model, false).with(keys::ADD_BOS, false).with(keys::ADD_EOS, false);
        let tokenizer = fixture.build().expect("valid");
        assert_eq!(spell(&tokenizer, "aüü\na", false), ["▁a", "<unk>", "a"], "{model}");
        assert_eq!(spell(&tokenizer, "ü<sep>ü", false), ["▁", "<unk>", "<sep>", "<unk>"], "{model}");
        let ids = tokenizer.encode("aüa", false).expect("encodable");
        assert_eq!(tokenizer.decode(&ids).expect("known ids"), "aa", "{model}");
        // It has a token for everything.
        assert_eq!(spell(&tokenizer.with_missing_bytes(MissingBytes::Refuse), "\0", false), ["▁", "<unk>"], "{model}");
    }
}

#[test]
fn control_tokens_are_found_on_request_and_spaces_put_after_them() {
    let tokenizer = llama();
    assert_eq!(spell(&tokenizer, "a</s>a", true), ["<s>", "▁a", "</s>", "▁a"]);
    assert_eq!(spell(&tokenizer, "</s></s>", true), ["<s>", "</s>", "</s>"]);
    assert_eq!(spell(&tokenizer, "</s>", false), ["<s>", "▁", "<0x3C>", "<0x2F>", "<0x73>", "<0x3E>"]);
    // User-defined tokens are text.
    assert_eq!(spell(&tokenizer, "a<sep>a", true), ["<s>", "▁a", "<sep>", "a"]);
    assert_eq!(spell(&tokenizer, "a<sep>a", false), ["<s>", "▁a", "<sep>", "a"]);
    // Of those that start together the longest is taken, and bytes are not spelled by their tokens.
    let mut fixture = Fixture::new("llama", true);
    fixture.push("</s>>", 4, 0.0);
    let tokenizer = fixture.build().expect("valid");
    assert_eq!(spell(&tokenizer, "</s>></s>", true), ["<s>", "▁", "</s>>", "</s>"]);
    assert_eq!(spell(&tokenizer, "<0x41>", true).len(), 2 + 6);
}

#[test]
fn user_defined_tokens_may_be_spelled_with_spaces() {
    for (spelling, model) in [("  ", "llama"), ("▁▁", "llama"), ("  ", "t5"), ("▁▁", "t5")] {
        let fixture = Fixture::new(model, true).with(keys::ADD_SPACE_PREFIX, false);
        let mut fixture = fixture.with(keys::ADD_BOS, false).with(keys::ADD_EOS, false);
        fixture.push(spelling, 4, 0.0);
        let tokenizer = fixture.build().expect("valid");
        assert_eq!(spell(&tokenizer, "a   a", false), ["a", spelling, "▁a"], "{model}");
        let ids = tokenizer.encode("   a", false).expect("encodable");
        assert_eq!(tokenizer.decode(&ids).expect("known ids"), "   a", "{model}");
    }
    // Spelled in both ways, the first token counts.
    let mut fixture = Fixture::new("t5", true).with(keys::ADD_SPACE_PREFIX, false).with(keys::ADD_EOS, false);
    fixture.push("▁▁", 1, -1.0);
    fixture.push("  ", 4, 0.0);
    assert_eq!(spell(&fixture.build().expect("valid"), "a  ", false), ["a", "▁▁"]);
}

#[test]
fn first_and_last_tokens_are_added_as_the_file_asks() {
    let adds = |fixture: Fixture| fixture.build().expect("valid").adds_bos_eos();
    assert_eq!(adds(Fixture::new("llama", true)), (true, false));
    assert_eq!(adds(Fixture::new("t5", true)), (false, true));
    assert_eq!(adds(Fixture::new("t5", true).with(keys::ADD_BOS, true).with(keys::ADD_EOS, false)), (true, false));
    assert_eq!(adds(Fixture::new("llama", true).without(keys::BOS)), (false, false));
    assert_eq!(spell(&llama(), "", false), ["<s>"]);
    let error = Fixture::new("llama", true).without(keys::BOS).with(keys::ADD_BOS, true).error();
    assert!(matches!(&error, TokenizerError::Metadata(GgufError::MissingKey { key }) if key == keys::BOS), "{error}");
}

#[test]
fn spaces_are_put_removed_and_left_out_again() {
    let fixture = Fixture::new("llama", true).with(keys::ADD_BOS, false);
    let plain = fixture.build().expect("valid");
    assert_eq!(spell(&plain, "  a ", false), ["▁", "▁", "▁a", "▁"]);
    let ids = plain.encode("  a ", false).expect("encodable");
    assert_eq!(plain.decode(&ids).expect("known ids"), "  a ");

    let bare = fixture.clone().with(keys::ADD_SPACE_PREFIX, false).build().expect("valid");
    assert_eq!(spell(&bare, "a a", false), ["a", "▁a"]);
    assert_eq!(bare.decode(&bare.encode(" a", false).expect("encodable")).expect("known ids"), " a");

    let trims = fixture.with(keys::REMOVE_EXTRA_WHITESPACES, true).build().expect("valid");
    assert_eq!(spell(&trims, "  a   a ", false), ["▁a", "▁a"]);
    assert_eq!(spell(&trims, "   ", false), [""; 0]);
    let a = trims.token_id("▁a").expect("a token");
    let space = trims.token_id("▁").expect("a token");
    assert_eq!(trims.decode(&[space, space, a]).expect("known ids"), "a");
    assert_eq!(plain.decode(&[space, space, a]).expect("known ids"), "  a");
}

#[test]
fn streams_leave_the_first_space_out_once_and_join_bytes() {
    let tokenizer = llama();
    let ids = tokenizer.encode("a a🙂", false).expect("encodable");
    let mut stream = tokenizer.stream(ControlTokens::Write);
    let mut push_all = |ids: &[u32]| -> Vec<String> {
        let mut pushed: Vec<String> = ids.iter().map(|&id| stream.push(id).expect("known").to_owned()).collect();
        pushed.push(stream.finish().to_owned());
        pushed
    };
    let expected = ["<s>", "a", " a", "", "", "", "🙂", ""];
    assert_eq!(push_all(&ids), expected);
    assert_eq!(push_all(&ids), expected, "a finished stream is as new");
    // Every byte that is no text is shown, as its library does.
    let cut = &ids[..ids.len() - 1];
    assert_eq!(push_all(cut).last().map(String::as_str), Some("\u{FFFD}\u{FFFD}\u{FFFD}"));
    assert_eq!(tokenizer.decode(cut).expect("known ids"), "a a\u{FFFD}\u{FFFD}\u{FFFD}");
    let mut bytes = b"x".to_vec();
    tokenizer.decode_into(ids, ControlTokens::Write, &mut bytes).expect("known ids");
    assert_eq!(bytes, "x<s>a a🙂".as_bytes());
    assert!(tokenizer.decode_into([1, u32::MAX], ControlTokens::Write, &mut bytes).is_err());
    assert_eq!(bytes, "x<s>a a🙂".as_bytes());
}

#[test]
fn unused_tokens_are_cut_again() {
    let mut fixture = Fixture::new("llama", true).with(keys::ADD_BOS, false);
    fixture.types[fixture.tokens.iter().position(|token| token == "▁the").expect("there")] = 5;
    let tokenizer = fixture.build().expect("valid");
    assert_eq!(spell(&tokenizer, "the", false), ["▁t", "he"]);
    fixture.types[fixture.tokens.iter().position(|token| token == "b").expect("there")] = 5;
    assert_eq!(spell(&fixture.build().expect("valid"), "b", false), ["▁", "<0x62>"]);
    let unigram = fixture.with(keys::MODEL, "t5").with(keys::ADD_EOS, false).build().expect("valid");
    assert_eq!(spell(&unigram, "the", false), ["▁t", "he"]);
}

#[test]
fn the_unknown_token_is_that_of_its_kind_where_no_key_names_one() {
    let tokenizer = Fixture::new("llama", false).build().expect("valid");
    assert_eq!(tokenizer.unknown(), Some(0));
    let tokenizer = Fixture::new("llama", false).with(keys::UNKNOWN, 4u32).build().expect("valid");
    assert_eq!(tokenizer.unknown(), Some(4));
    let mut fixture = Fixture::new("llama", false);
    fixture.types[0] = 3;
    assert!(matches!(fixture.error(), TokenizerError::NoUnknownToken));
    assert_says(&fixture.error(), &[keys::UNKNOWN]);
    let mut fixture = Fixture::new("t5", true);
    fixture.types[0] = 3;
    fixture.build().expect("byte tokens are enough");
}

#[test]
fn contradictions_in_vocabularies_are_named() {
    for model in ["llama", "t5"] {
        let fixture = Fixture::new(model, true);
        for key in [keys::SCORES, keys::TOKEN_TYPE, keys::TOKENS] {
            let error = fixture.clone().without(key).error();
            assert!(
                matches!(&error, TokenizerError::Metadata(GgufError::MissingKey { key: k }) if k == key),
                "{error}"
            );
            assert_says(&error, &[key]);
            let error = fixture.clone().with(key, "text").error();
            assert!(matches!(&error, TokenizerError::Metadata(GgufError::WrongType { .. })), "{error}");
            assert_says(&error, &[key]);
        }
        let error = fixture.clone().with(keys::SCORES, vec![0.0f32; 3]).error();
        assert!(
            matches!(error, TokenizerError::LengthMismatch { key: keys::SCORES, found: 3, expected: 270 }),
            "{error}"
        );
        assert_says(&error, &[keys::SCORES, "3", "270"]);

        for score in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e39] {
            let mut scores: Vec<f64> = fixture.scores.iter().map(|&score| score.into()).collect();
            scores[7] = score;
            let error = fixture.clone().with(keys::SCORES, scores).error();
            assert!(matches!(error, TokenizerError::ScoreNotFinite { token: 7, .. }), "{error}");
            assert_says(&error, &[keys::SCORES, &score.to_string(), "token 7"]);
        }
        for text in ["<0x4>", "<0x041>", "<0xg1>", "<0x4a>", "<0x+1>", "<0x41", "0x41", "A", ""] {
            let mut broken = fixture.clone();
            broken.tokens[4 + 0x41] = text.into();
            let error = broken.error();
            assert!(matches!(error, TokenizerError::MalformedByteToken { token: 69, .. }), "{error}");
            assert_says(&error, &[keys::TOKENS, &format!("{text:?}"), "token 69"]);
        }
        let mut broken = fixture.clone();
        broken.types[4 + 0x41] = 1;
        let error = broken.error();
        assert!(matches!(error, TokenizerError::MissingByteToken { byte: 0x41 }), "{error}");
        assert_says(&error, &[keys::TOKENS, "0x41"]);

        let mut broken = fixture.clone();
        broken.tokens[262] = "he".into();
        let error = broken.error();
        assert!(matches!(error, TokenizerError::DuplicateToken { first: 260, second: 262, .. }), "{error}");
        for key in [keys::BOS, keys::EOS, keys::UNKNOWN, keys::PADDING] {
            let error = fixture.clone().with(key, 270u32).error();
            assert!(matches!(error, TokenizerError::SpecialOutOfRange { id: 270, .. }), "{error}");
            assert_says(&error, &[key, "270"]);
        }
    }
}

/// A table that rewrites `ü` to `u`, `üb` to `<ub>`, `é` to nothing and U+3000 to a space, in the format of the library that
/// writes them, but sparse: the children of every node have 256 units to themselves.
fn charsmap() -> Vec<u8> {
    let keys: [(&[u8], &str); 4] =
        [("\u{3000}".as_bytes(), " "), ("é".as_bytes(), ""), ("ü".as_bytes(), "u"), ("üb".as_bytes(), "<ub>")];
    let mut replacements = Vec::new();
    let mut units = vec![0u32; 256];
    // Prefixes of keys, and the units that they lead to.
    let mut nodes: Vec<(Vec<u8>, usize)> = vec![(Vec::new(), 0)];
    let mut at = 0;
    while let Some((prefix, position)) = nodes.get(at).cloned() {
        at += 1;
        let base = units.len();
        units.resize(base + 256, 0);
        units[position] |= ((base ^ position) as u32) << 10;
        for (key, replacement) in keys {
            match key.strip_prefix(&prefix[..]) {
                Some([]) => {
                    units[position] |= 1 << 8;
                    units[base] = 1 << 31 | replacements.len() as u32;
                    replacements.extend_from_slice(replacement.as_bytes());
                    replacements.push(0);
                }
                Some(&[next, ..]) if units[base ^ usize::from(next)] == 0 => {
                    units[base ^ usize::from(next)] = u32::from(next);
                    nodes.push(([&prefix[..], &[next]].concat(), base ^ usize::from(next)));
                }
                _ => {}
            }
        }
    }
    let mut bytes = (units.len() as u32 * 4).to_le_bytes().to_vec();
    bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    bytes.extend(replacements);
    bytes
}

#[test]
fn characters_are_rewritten_as_the_file_says() {
    let fixture = Fixture::new("t5", false).with(keys::ADD_EOS, false).with(keys::CHARSMAP, charsmap());
    let tokenizer = fixture.build().expect("valid");
    assert_eq!(spell(&tokenizer, "a\u{3000}éaéé\u{3000}", false), ["▁a", "▁a", "▁"]);
    assert_eq!(spell(&tokenizer, "aüb", false), ["▁a", "<unk>", "b", "<unk>"]);
    let mut with_token = fixture.clone();
    with_token.push("aüb", 4, 0.0);
    let tokenizer = with_token.build().expect("valid");
    assert_eq!(spell(&tokenizer, "aübaé", false), ["▁", "aüb", "a"], "user-defined tokens are not rewritten");
    let signed: Vec<i8> = charsmap().into_iter().map(u8::cast_signed).collect();
    let tokenizer = fixture.clone().with(keys::CHARSMAP, signed).build().expect("valid");
    assert_eq!(spell(&tokenizer, "aéa", false), ["▁a", "a"]);
    let tokenizer = fixture.with(keys::CHARSMAP, Vec::<u8>::new()).build().expect("no table");
    assert_eq!(spell(&tokenizer, "aéa", false), ["▁a", "<unk>", "a"]);
}

#[test]
fn damaged_tables_of_characters_are_errors() {
    let fixture = Fixture::new("t5", false);
    let whole = charsmap();
    let error_of = |value: GgufValue| fixture.clone().with(keys::CHARSMAP, value).build().err();
    assert!(error_of(whole.clone().into()).is_none());
    for length in (1..12).chain((whole.len() - 16)..whole.len()) {
        let error = error_of(whole[..length].to_vec().into()).expect("cut short");
        assert!(matches!(error, TokenizerError::MalformedCharsMap { .. }), "{length}: {error}");
        assert_says(&error, &[keys::CHARSMAP]);
    }
    assert!(matches!(error_of(vec![0u8; 4].into()), Some(TokenizerError::MalformedCharsMap { .. })));
    assert!(matches!(error_of(vec![300i32; 40].into()), Some(TokenizerError::MalformedCharsMap { .. })));
    let mut invalid = whole.clone();
    invalid.extend([0xFF, 0]);
    assert!(matches!(error_of(invalid.into()), Some(TokenizerError::MalformedCharsMap { .. })));
    // One replacement that is very long would blow texts up.
    let last = whole.len() - 1;
    let long = [&whole[..last], &[b'x'; 300], &[0]].concat();
    assert!(matches!(error_of(long.into()), Some(TokenizerError::MalformedCharsMap { .. })));
}

/// Ids of every kind, and some that are no ids.
fn any_ids() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![0..4u32, 4..260u32, 260..270u32], 0..40)
}

proptest! {
    /// With byte tokens any text comes back, but for what stands for spaces.
    #[test]
    fn text_comes_back(text in "\\PC*|[ ▁athe<sep>\\n]{0,30}") {
        for model in ["llama", "t5"] {
            let tokenizer = Fixture::new(model, true).build().expect("valid");
            let ids = tokenizer.encode(&text, false).expect("encodable");
            prop_assert_eq!(tokenizer.decode(&ids).expect("known ids"), text.replace('▁', " "));
        }
    }

    /// A stream gives what decoding at once gives, for ids that make no sense as well.
    #[test]
    fn streams_agree_with_decoding(ids in any_ids(), trims in any::<bool>(), prefix in any::<bool>()) {
        let fixture = Fixture::new("llama", true)
            .with(keys::REMOVE_EXTRA_WHITESPACES, trims)
            .with(keys::ADD_SPACE_PREFIX, prefix);
        let tokenizer = fixture.build().expect("valid");
        let mut stream = tokenizer.stream(ControlTokens::Skip);
        let mut text = String::new();
        for &id in &ids {
            text.push_str(stream.push(id).expect("known ids"));
        }
        text.push_str(stream.finish());
        prop_assert_eq!(text, tokenizer.decode(&ids).expect("known ids"));
    }

    /// Damaged vocabularies are errors or usable.
    #[test]
    fn damaged_vocabularies_never_panic(
        unigram in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let model = if unigram { "t5" } else { "llama" };
        let mut bytes = Fixture::new(model, true).with(keys::CHARSMAP, charsmap()).bytes();
        for (position, value) in changes {
            let position = position.index(bytes.len());
            bytes[position] = value;
        }
        if let Ok(header) = GgufHeader::parse(&bytes)
            && let Ok(tokenizer) = Tokenizer::from_metadata(&header.metadata)
        {
            for parse_special in [false, true] {
                let ids = tokenizer.encode("</s>the  aüb\u{3000}é<sep>🙂", parse_special).expect("everything has a token");
                tokenizer.decode(&ids).expect("ids of its own");
            }
        }
    }
}
