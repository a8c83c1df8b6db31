//! The tokenizers against other libraries: small vocabularies and what `tokenizers` and `sentencepiece` made of texts that are
//! hard to tokenize, as `snapshots/scripts/record_tokenizers.py` wrote them to `data/tokenizers.json`.

use entensor_models::{
    gguf::{GgufBuilder, GgufHeader},
    tokenizer::{ControlTokens, EncodeScratch, MissingBytes, SUPPORTED_MODELS, SUPPORTED_PRE_TOKENIZERS, Tokenizer},
};
use serde_json::Value;

/// The recorded texts and vocabularies; `ENTENSOR_TOKENIZER_CASES` may name others.
fn recorded() -> (Vec<String>, Vec<Value>) {
    let path = std::env::var("ENTENSOR_TOKENIZER_CASES")
        .unwrap_or_else(|_| format!("{}/tests/data/tokenizers.json", env!("CARGO_MANIFEST_DIR")));
    let text = std::fs::read_to_string(path).expect("the recorded cases are in the repository");
    let value: Value = serde_json::from_str(&text).expect("the recorded cases are JSON");
    (strings(&value["texts"]), value["vocabularies"].as_array().expect("vocabularies").clone())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn strings(value: &Value) -> Vec<String> {
    list(value).iter().map(|text| text.as_str().expect("a string").to_owned()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    list(value).iter().map(|id| u32::try_from(id.as_u64().expect("an id")).expect("small")).collect()
}

fn name(vocabulary: &Value) -> &str {
    vocabulary["name"].as_str().expect("a name")
}

/// The vocabulary in a GGUF file, as converters write it.
fn tokenizer(vocabulary: &Value) -> Tokenizer {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let kinds: Vec<i32> = ids(&vocabulary["token_type"]).into_iter().map(u32::cast_signed).collect();
    let mut file = GgufBuilder::new()
        .value(key("tokens"), strings(&vocabulary["tokens"]))
        .value(key("token_type"), kinds)
        .value(key("add_bos_token"), false)
        .value(key("add_eos_token"), false);
    for (name, value) in vocabulary["keys"].as_object().expect("keys") {
        file = match value {
            Value::String(text) => file.value(key(name), text.as_str()),
            Value::Bool(value) => file.value(key(name), *value),
            // Negative where there is no such token.
            value => match value.as_u64() {
                Some(id) => file.value(key(name), u32::try_from(id).expect("small")),
                None => file,
            },
        };
    }
    if let Some(scores) = vocabulary.get("scores") {
        let scores: Vec<f32> = list(scores).iter().map(|score| score.as_f64().expect("a score") as f32).collect();
        file = file.value(key("scores"), scores);
    }
    if let Some(merges) = vocabulary.get("merges") {
        file = file.value(key("merges"), strings(merges));
    }
    if let Some(hex) = vocabulary["charsmap"].as_str().filter(|hex| !hex.is_empty()) {
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
        file = file.value(key("precompiled_charsmap"), (0..hex.len()).step_by(2).map(byte).collect::<Vec<u8>>());
    }
    let header = GgufHeader::parse(file.build().expect("a valid file")).expect("a valid file");
    Tokenizer::from_metadata(&header.metadata).expect("a valid vocabulary")
}

/// Ids and decoded text of a recorded case.
fn case<'a>(case: &'a Value, text: &'a str) -> (Vec<u32>, &'a str) {
    match list(case) {
        [ids_of, Value::String(decoded)] => (ids(ids_of), decoded),
        _ => (ids(case), text),
    }
}

fn spell(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| tokenizer.token_spelling(id).unwrap_or("?").to_owned()).collect()
}

#[test]
fn ids_are_those_of_the_libraries() {
    let (texts, vocabularies) = recorded();
    let mut scratch = EncodeScratch::default();
    let mut checked = 0;
    for vocabulary in &vocabularies {
        let tokenizer = tokenizer(vocabulary);
        let cases = list(&vocabulary["cases"]);
        assert_eq!(cases.len(), texts.len());
        for (i, (text, recorded)) in texts.iter().zip(cases).enumerate() {
            let (expected, _) = case(recorded, text);
            let mut found = Vec::new();
            tokenizer.encode_into(text, false, &mut scratch, &mut found).expect("encodable");
            let spelled = |ids: &[u32]| spell(&tokenizer, ids);
            assert_eq!(spelled(&found), spelled(&expected), "{}: {text:?}", name(vocabulary));
            assert_eq!(found, expected, "{}: {text:?}", name(vocabulary));
            if let Some(special) = vocabulary.get("special") {
                let expected = special.get(i.to_string()).map_or(expected, ids);
                let found = tokenizer.encode(text, true).expect("encodable");
                assert_eq!(spelled(&found), spelled(&expected), "{}: {text:?} with special tokens", name(vocabulary));
            }
            checked += 1;
        }
    }
    assert!(checked >= 9 * 200, "{checked} cases");
}

/// All texts many times over, of which only a hash of the ids is recorded.
#[test]
fn ids_of_a_long_text_are_those_of_the_libraries() {
    let (texts, vocabularies) = recorded();
    let text = texts.concat().repeat(24);
    for vocabulary in &vocabularies {
        let ids = tokenizer(vocabulary).encode(&text, false).expect("encodable");
        let hash = ids.iter().fold(0, |hash: u64, &id| hash.wrapping_mul(0x0000_0100_0000_01B3) ^ u64::from(id));
        let recorded = list(&vocabulary["long"]);
        assert_eq!(recorded[0].as_u64(), Some(ids.len() as u64), "{}", name(vocabulary));
        assert_eq!(recorded[1].as_str(), Some(format!("{hash:016x}").as_str()), "{}", name(vocabulary));
    }
}

#[test]
fn texts_are_those_of_the_libraries_at_once_and_streamed() {
    let (texts, vocabularies) = recorded();
    for vocabulary in &vocabularies {
        let tokenizer = tokenizer(vocabulary);
        let mut stream = tokenizer.stream(ControlTokens::Skip);
        for (text, recorded) in texts.iter().zip(list(&vocabulary["cases"])) {
            let (ids, expected) = case(recorded, text);
            let spelled = spell(&tokenizer, &ids);
            assert_eq!(tokenizer.decode(&ids).expect("known ids"), expected, "{}: {spelled:?}", name(vocabulary));
            let mut streamed = String::new();
            for &id in &ids {
                streamed.push_str(stream.push(id).expect("known ids"));
            }
            streamed.push_str(stream.finish());
            assert_eq!(streamed, expected, "{}: {spelled:?}", name(vocabulary));
        }
    }
}

/// Vocabularies with a token for every byte lose nothing, be the text what it may.
#[test]
fn byte_level_texts_come_back() {
    let (texts, vocabularies) = recorded();
    let byte_level: Vec<&Value> = vocabularies.iter().filter(|one| one["keys"]["model"] == "gpt2").collect();
    assert_eq!(byte_level.len(), SUPPORTED_PRE_TOKENIZERS.len());
    for vocabulary in byte_level {
        let tokenizer = tokenizer(vocabulary).with_missing_bytes(MissingBytes::Refuse);
        for text in &texts {
            let ids = tokenizer.encode(text, false).expect("encodable");
            assert_eq!(&tokenizer.decode(&ids).expect("known ids"), text, "{}", name(vocabulary));
        }
        let all = texts.concat();
        let ids = tokenizer.encode(&all, false).expect("encodable");
        assert_eq!(tokenizer.decode(&ids).expect("known ids"), all, "{}", name(vocabulary));
    }
}

#[test]
fn every_supported_kind_is_recorded() {
    let (_, vocabularies) = recorded();
    let has = |key: &str, wanted: &str| vocabularies.iter().any(|vocabulary| vocabulary["keys"][key] == wanted);
    for model in SUPPORTED_MODELS {
        assert!(has("model", model), "{model}");
    }
    for pre in SUPPORTED_PRE_TOKENIZERS {
        assert!(has("pre", pre), "{pre}");
    }
}

/// A quarter of a million bytes of one kind: whatever is quadratic in the text would take minutes.
#[test]
fn long_texts_take_time_in_proportion() {
    let (_, vocabularies) = recorded();
    let mut scratch = EncodeScratch::default();
    let mut out = Vec::new();
    for vocabulary in &vocabularies {
        let tokenizer = tokenizer(vocabulary);
        for unit in ["a", " ", "▁", "\n", "1", "'", "今", "\u{301}", "ab", "a ", "<sep>", "<"] {
            let text = unit.repeat((1 << 18) / unit.len());
            out.clear();
            tokenizer.encode_into(&text, true, &mut scratch, &mut out).expect("encodable");
        }
    }
}

#[test]
fn warm_encoders_allocate_nothing() {
    let (texts, vocabularies) = recorded();
    let text = texts.concat();
    for vocabulary in &vocabularies {
        let tokenizer = tokenizer(vocabulary);
        let (mut scratch, mut out) = (EncodeScratch::default(), Vec::new());
        tokenizer.encode_into(&text, true, &mut scratch, &mut out).expect("encodable");
        let info = allocation_counter::measure(|| {
            out.clear();
            tokenizer.encode_into(&text, true, &mut scratch, &mut out).expect("encodable");
        });
        assert_eq!(info.count_total, 0, "{}", name(vocabulary));
    }
}
