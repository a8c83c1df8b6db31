//! Small vocabularies, made by hand.

use proptest::prelude::*;

use super::byte_level::char_of;
use super::*;
use crate::gguf::{GgufBuilder, GgufError, GgufHeader, GgufValue};

/// Every byte but 0x01, three special tokens, and a few merges.
#[derive(Clone)]
struct Fixture {
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<String>,
    extra: Vec<(&'static str, GgufValue)>,
}

impl Fixture {
    fn new() -> Self {
        let mut tokens: Vec<String> = ["<|end|>", "<|end|>>", "USER"].map(String::from).to_vec();
        let mut types = vec![3, 3, 4];
        tokens.extend((0..=u8::MAX).filter(|&byte| byte != 1).map(|byte| char_of(byte).to_string()));
        let merges = ["l o", "Ġ lo", "w e", "Ġlo we", "a a", "aa aa", "Ã ¼"].map(String::from).to_vec();
        tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
        types.resize(tokens.len(), 1);
        Self { tokens, types, merges, extra: vec![(keys::EOS, 0u32.into())] }
    }

    fn with(mut self, key: &'static str, value: impl Into<GgufValue>) -> Self {
        self.extra.push((key, value.into()));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut builder = GgufBuilder::new()
            .value(keys::TOKENS, self.tokens.clone())
            .value(keys::TOKEN_TYPE, self.types.clone())
            .value(keys::MERGES, self.merges.clone());
        for (key, value) in self.extra.iter().cloned() {
            builder = builder.value(key, value);
        }
        let is_set = |key| self.extra.iter().any(|(set, _)| *set == key);
        for (key, value) in [(keys::MODEL, "gpt2"), (keys::PRE, "smollm")] {
            if !is_set(key) {
                builder = builder.value(key, value);
            }
        }
        builder.build().expect("a valid file")
    }

    fn build(&self) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_metadata(&GgufHeader::parse(self.bytes()).expect("a valid file").metadata)
    }
}

fn tokenizer() -> Tokenizer {
    Fixture::new().build().expect("a valid vocabulary")
}

/// The spellings of the tokens of `text`.
fn spell(tokenizer: &Tokenizer, text: &str, parse_special: bool) -> Vec<String> {
    let ids = tokenizer.encode(text, parse_special).expect("encodable");
    ids.into_iter().map(|id| tokenizer.token_spelling(id).expect("a token").to_owned()).collect()
}

#[test]
fn merges_are_applied_by_rank_within_pieces() {
    let tokenizer = tokenizer();
    assert_eq!(spell(&tokenizer, "low lower", false), ["lo", "w", "Ġlowe", "r"]);
    assert_eq!(spell(&tokenizer, "aaaaaaa", false), ["aaaa", "aa", "a"]);
    assert_eq!(spell(&tokenizer, "ü", false), ["Ã¼"]);
    assert_eq!(spell(&tokenizer, "", true), [""; 0]);
}

#[test]
fn special_tokens_are_found_on_request_and_the_longest_first() {
    let tokenizer = tokenizer();
    assert_eq!(spell(&tokenizer, "a<|end|>>lo<|end|>", true), ["a", "<|end|>>", "lo", "<|end|>"]);
    assert_eq!(spell(&tokenizer, "<|end|>", false), ["<", "|", "e", "n", "d", "|", ">"]);
    // Text of its own, not a command: found either way.
    assert_eq!(spell(&tokenizer, "loUSERlo", false), ["lo", "USER", "lo"]);
}

#[test]
fn first_and_last_tokens_are_added_as_the_file_asks() {
    let fixture = Fixture::new().with(keys::BOS, 1u32).with(keys::ADD_BOS, true).with(keys::ADD_EOS, true);
    let tokenizer = fixture.build().expect("valid");
    assert_eq!(spell(&tokenizer, "lo", false), ["<|end|>>", "lo", "<|end|>"]);
    let mut out = vec![9];
    tokenizer.encode_into("lo", false, &mut EncodeScratch::default(), &mut out).expect("encodable");
    assert_eq!(out.len(), 2);
    assert!(tokenizer.is_end(0) && !tokenizer.is_end(1));
    let missing = Fixture::new().with(keys::ADD_BOS, true).build();
    assert!(matches!(missing, Err(TokenizerError::Metadata(GgufError::MissingKey { .. }))));
}

#[test]
fn bytes_without_a_token_are_refused_or_left_out() {
    let tokenizer = tokenizer();
    let error = tokenizer.encode("a<|end|>b\u{1}c", true).expect_err("no token");
    assert!(matches!(error, TokenizerError::MissingByte { byte: 1, offset_bytes: 9 }), "{error}");
    // It leaves a gap: its neighbours are not merged over it.
    let skipping = tokenizer.with_missing_bytes(MissingBytes::Skip);
    assert_eq!(spell(&skipping, "a\u{1}a", true), ["a", "a"]);
}

#[test]
fn special_tokens_may_hold_bytes_that_text_may_not() {
    let mut fixture = Fixture::new();
    fixture.tokens[0] = "<\u{1}>".into();
    let tokenizer = fixture.build().expect("valid");
    assert_eq!(tokenizer.encode("a<\u{1}>", true).expect("a special token").len(), 2);
    assert!(matches!(tokenizer.encode("a<\u{1}>", false), Err(TokenizerError::MissingByte { offset_bytes: 2, .. })));
}

#[test]
fn decoding_leaves_out_control_tokens_unless_asked() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("<|end|>lower ü USER<|end|>", true).expect("encodable");
    assert_eq!(tokenizer.decode(&ids).expect("known ids"), "lower ü USER");
    let mut bytes = Vec::new();
    tokenizer.decode_into(ids, ControlTokens::Write, &mut bytes).expect("known ids");
    assert_eq!(bytes, "<|end|>lower ü USER<|end|>".as_bytes());
    let unknown = tokenizer.decode_into([3, u32::MAX], ControlTokens::Skip, &mut bytes);
    assert!(matches!(unknown, Err(TokenizerError::UnknownId { id: u32::MAX, .. })));
    assert_eq!(bytes, "<|end|>lower ü USER<|end|>".as_bytes());
}

#[test]
fn streams_hold_back_unfinished_characters() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("🙂", false).expect("encodable");
    let mut stream = tokenizer.stream(ControlTokens::Skip);
    let pushed: Vec<String> = ids.iter().map(|&id| stream.push(id).expect("known").to_owned()).collect();
    assert_eq!(pushed, ["", "", "", "🙂"]);
    stream.push(ids[0]).expect("known");
    assert!(stream.push(u32::MAX).is_err());
    assert_eq!(stream.finish(), "\u{FFFD}");
    assert_eq!(stream.finish(), "");
}

proptest! {
    /// Any text comes back, and in parts as well.
    #[test]
    fn text_comes_back(text in any::<String>()) {
        let tokenizer = tokenizer().with_missing_bytes(MissingBytes::Skip);
        let ids = tokenizer.encode(&text, false).expect("encodable");
        prop_assert_eq!(tokenizer.decode(&ids).expect("known ids"), text.replace('\u{1}', ""));
    }

    /// A stream gives what decoding at once gives, for ids that make no sense as well.
    #[test]
    fn streams_agree_with_decoding(ids in prop::collection::vec(0..260u32, 0..40)) {
        let tokenizer = tokenizer();
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
    fn damaged_vocabularies_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = Fixture::new().bytes();
        for (position, value) in changes {
            let position = position.index(bytes.len());
            bytes[position] = value;
        }
        if let Ok(header) = GgufHeader::parse(&bytes)
            && let Ok(tokenizer) = Tokenizer::from_metadata(&header.metadata)
        {
            for parse_special in [false, true] {
                if let Ok(ids) = tokenizer.encode("<|end|>lower aaaa ü 12\u{1}", parse_special) {
                    tokenizer.decode(&ids).expect("ids of its own");
                }
            }
        }
    }
}

#[test]
fn long_words_take_time_in_proportion() {
    let tokenizer = tokenizer();
    // Quadratic merging of a million bytes would take minutes.
    let ids = tokenizer.encode(&"a".repeat(1 << 20), false).expect("encodable");
    assert_eq!(ids.len(), 1 << 18);
    let spaces = tokenizer.encode(&" ".repeat(1 << 20), false).expect("encodable");
    assert_eq!(spaces.len(), 1 << 20);
}

#[test]
fn a_warm_encoder_allocates_nothing() {
    let tokenizer = tokenizer();
    let (mut scratch, mut out) = (EncodeScratch::default(), Vec::new());
    let text = "a lower <|end|> aaaa ü";
    tokenizer.encode_into(text, true, &mut scratch, &mut out).expect("encodable");
    let info = allocation_counter::measure(|| {
        out.clear();
        tokenizer.encode_into(text, true, &mut scratch, &mut out).expect("encodable");
    });
    assert_eq!(info.count_total, 0);
}

#[test]
fn contradictions_in_vocabularies_are_named() {
    let broken = |change: fn(&mut Fixture)| {
        let mut fixture = Fixture::new();
        change(&mut fixture);
        fixture.build().expect_err("a broken vocabulary")
    };
    let error = broken(|fixture| fixture.extra.push((keys::MODEL, "bert".into())));
    assert!(matches!(&error, TokenizerError::UnsupportedModel { found } if found == "bert"));
    assert!(error.to_string().contains("tokenizer.ggml.model is \"bert\""), "{error}");
    assert!(error.to_string().contains("supported: gpt2, llama, t5"), "{error}");
    for pre in ["tekken", "default", ""] {
        let error = Fixture::new().with(keys::PRE, pre).build().expect_err("not supported");
        assert!(matches!(&error, TokenizerError::UnsupportedPreTokenizer { found } if found == pre));
        assert!(error.to_string().contains("supported: smollm, gpt-2, llama-bpe, qwen2"), "{error}");
        let is_default = error.to_string().contains("did not recognise");
        assert_eq!(is_default, pre == "default", "{error}");
    }

    let error = broken(|fixture| fixture.types.truncate(5));
    assert!(matches!(error, TokenizerError::LengthMismatch { found: 5, .. }), "{error}");
    let error = broken(|fixture| fixture.types[4] = 7);
    assert!(matches!(error, TokenizerError::UnknownTokenType { token: 4, found: 7 }), "{error}");
    let error = broken(|fixture| fixture.tokens[9] = fixture.tokens[5].clone());
    assert!(matches!(error, TokenizerError::DuplicateToken { first: 5, second: 9, .. }), "{error}");
    let error = broken(|fixture| (fixture.tokens, fixture.types) = Default::default());
    assert!(matches!(error, TokenizerError::VocabularySize { tokens: 0, .. }), "{error}");
    for merge in ["", "ab", " ", "a ", " b", "a b c", "a  b"] {
        let mut fixture = Fixture::new();
        fixture.merges[1] = merge.into();
        let error = fixture.build().expect_err("no merge");
        assert!(matches!(error, TokenizerError::MalformedMerge { index: 1, .. }), "{error}");
    }
    for merge in ["zz a", "a zz", "a z"] {
        let mut fixture = Fixture::new();
        fixture.merges[1] = merge.into();
        let error = fixture.build().expect_err("unknown tokens");
        assert!(matches!(error, TokenizerError::MergeUnknownToken { index: 1, .. }), "{error}");
    }
    for key in [keys::BOS, keys::EOT, keys::EOM, keys::PADDING, keys::UNKNOWN] {
        let error = Fixture::new().with(key, 1000u32).build().expect_err("out of range");
        assert!(matches!(&error, TokenizerError::SpecialOutOfRange { key: found, id: 1000, .. } if *found == key));
        Fixture::new().with(key, u32::MAX).build().expect("none");
    }
    let error = Fixture::new().with(keys::BOS, "one").build().expect_err("another type");
    assert!(matches!(error, TokenizerError::Metadata(GgufError::WrongType { .. })), "{error}");
}

/// Says which key is wrong, what is there, and what to do about it.
pub(super) fn assert_says(error: &TokenizerError, parts: &[&str]) {
    let message = error.to_string();
    assert!(parts.iter().all(|part| message.contains(part)), "{message}: {parts:?}");
    let remedy = message.rsplit_once("; ").map(|(_, remedy)| remedy);
    assert!(remedy.is_some_and(|remedy| remedy.len() > 10), "what is to be done? {message}");
}

#[test]
fn messages_name_key_value_and_remedy() {
    let error = |change: fn(&mut Fixture)| {
        let mut fixture = Fixture::new();
        change(&mut fixture);
        fixture.build().expect_err("a broken vocabulary")
    };
    assert_says(&error(|fixture| fixture.types.truncate(5)), &[keys::TOKEN_TYPE, "5", "265"]);
    assert_says(&error(|fixture| fixture.types[4] = -7), &[keys::TOKEN_TYPE, "-7", "token 4"]);
    assert_says(&error(|fixture| fixture.tokens[9] = fixture.tokens[5].clone()), &[keys::TOKENS, "5 and 9"]);
    assert_says(&error(|fixture| fixture.merges[1] = "ab".into()), &[keys::MERGES, "\"ab\"", "merge 1"]);
    assert_says(&error(|fixture| fixture.merges[1] = "a zz".into()), &[keys::MERGES, "\"a zz\"", "\"zz\""]);
    assert_says(&error(|fixture| (fixture.tokens, fixture.types) = Default::default()), &[keys::TOKENS, "0 tokens"]);
    assert_says(&error(|fixture| fixture.extra.push((keys::BOS, 1000u32.into()))), &[keys::BOS, "1000", "265"]);
    assert_says(&error(|fixture| fixture.extra.push((keys::MODEL, "rwkv".into()))), &[keys::MODEL, "rwkv", "gpt2"]);
    assert_says(&error(|fixture| fixture.extra.push((keys::PRE, "default".into()))), &[keys::PRE, "default", "gpt-2"]);
    let tokenizer = tokenizer();
    assert_says(&tokenizer.decode(&[1000]).expect_err("unknown"), &["1000", "265"]);
    assert_says(&tokenizer.encode("\u{1}", false).expect_err("no token"), &["0x01", "offset 0"]);
}

#[test]
fn pieces_that_are_tokens_are_taken_whole_only_where_merges_are_ignored() {
    // No merge leads to the first; the others must never come from text.
    let with = |pre: &str| {
        let mut fixture = Fixture::new().with(keys::PRE, pre);
        fixture.tokens.extend(["Ġwell", "Ġend", "Ġ東"].map(String::from));
        fixture.types.extend([1, 3, 1]);
        fixture.build().expect("a valid vocabulary")
    };
    for name in ["llama-bpe", "llama3", "llama-v3"] {
        let tokenizer = with(name);
        assert_eq!(spell(&tokenizer, "a well lo lower", false), ["a", "Ġwell", "Ġlo", "Ġlowe", "r"], "{name}");
        assert_eq!(spell(&tokenizer, " end", false), ["Ġ", "e", "n", "d"], "{name}");
        assert_eq!(spell(&tokenizer, " end", true), ["Ġ", "e", "n", "d"], "{name}");
        assert_eq!(spell(&tokenizer, " 東", false).len(), 4, "{name}");
    }
    for name in ["qwen2", "gpt-2", "smollm", "deepseek-r1-qwen"] {
        assert_eq!(spell(&with(name), " well", false), ["Ġ", "we", "l", "l"], "{name}");
    }
}

#[test]
fn first_tokens_are_added_by_default_where_models_expect_them() {
    let adds = |fixture: Fixture| fixture.build().expect("a valid vocabulary").adds_bos_eos();
    let llama = || Fixture::new().with(keys::PRE, "llama-bpe");
    assert_eq!(adds(llama().with(keys::BOS, 1u32)), (true, false));
    assert_eq!(adds(llama().with(keys::BOS, 1u32).with(keys::ADD_BOS, false)), (false, false));
    assert_eq!(adds(llama()), (false, false));
    assert_eq!(adds(Fixture::new().with(keys::BOS, 1u32)), (false, false));
}

#[test]
fn holes_and_repeated_merges_are_tolerated() {
    let mut fixture = Fixture::new();
    fixture.tokens.extend(["", ""].map(String::from));
    fixture.types.extend([5, 3]);
    fixture.merges.push("l o".into());
    let tokenizer = fixture.build().expect("tolerated");
    assert_eq!(spell(&tokenizer, " lo", true), ["Ġlo"]);
    assert_eq!(tokenizer.decode(&[tokenizer.len() - 1, tokenizer.len() - 2]).expect("known ids"), "");
}
