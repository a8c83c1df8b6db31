//! The tokenizer against the ids that a reference implementation gave for a real model.
//!
//! `ENTENSOR_MODEL` names the model file (SmolLM2-135M-Instruct); without it the test is skipped and says so.

use std::io::Write;
use std::path::{Path, PathBuf};

use entensor_models::gguf::GgufFile;
use entensor_models::tokenizer::{ControlTokens, Tokenizer};
use serde_json::Value;

const REFERENCES: [&str; 2] = ["smollm2-135m-instruct-f32.json", "smollm2-135m-instruct-q4_1.json"];

fn model() -> Option<GgufFile> {
    let Some(path) = std::env::var_os("ENTENSOR_MODEL").map(PathBuf::from) else {
        // Not `eprintln!`: the test harness would swallow it.
        let notice = "SKIPPED: ENTENSOR_MODEL is not set; set it to the path of SmolLM2-135M-Instruct.Q4_1.gguf to run this test";
        writeln!(std::io::stderr(), "{notice}").expect("standard error is open");
        return None;
    };
    Some(GgufFile::open(path).expect("ENTENSOR_MODEL names a model file"))
}

fn cases(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../snapshots/reference").join(name);
    let text = std::fs::read_to_string(path).expect("the reference is part of the repository");
    let reference: Value = serde_json::from_str(&text).expect("the reference is JSON");
    reference["cases"].as_array().expect("cases").clone()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

#[test]
fn ids_and_texts_are_those_of_the_reference() {
    let Some(file) = model() else { return };
    let tokenizer = Tokenizer::from_metadata(file.metadata()).expect("a supported vocabulary");
    let mut checked = 0;
    for case in REFERENCES.iter().flat_map(|name| cases(name)) {
        let name = &case["name"];
        let prompt = case["prompt"].as_str().expect("a prompt");
        let prompt_ids = ids(&case["prompt_ids"]);
        assert_eq!(tokenizer.encode(prompt, true).expect("encodable"), prompt_ids, "{name}");
        let mut bytes = Vec::new();
        tokenizer.decode_into(prompt_ids, ControlTokens::Write, &mut bytes).expect("known ids");
        assert_eq!(bytes, prompt.as_bytes(), "{name}");

        let generated = ids(&case["generated_ids"]);
        let text = case["generated_text"].as_str().expect("a text");
        assert_eq!(tokenizer.decode(&generated).expect("known ids"), text, "{name}");
        let mut stream = tokenizer.stream(ControlTokens::Skip);
        let mut streamed = String::new();
        for id in generated {
            streamed.push_str(stream.push(id).expect("known ids"));
        }
        streamed.push_str(stream.finish());
        assert_eq!(streamed, text, "{name}");
        checked += 1;
    }
    assert!(checked >= 16, "{checked} cases");
}

#[test]
fn the_model_file_is_read_whole() {
    let Some(file) = model() else { return };
    let header = file.header();
    assert_eq!((header.version, header.alignment, header.tensors.len(), header.metadata.len()), (3, 32, 272, 33));
    assert_eq!(file.metadata().get_str("general.architecture").expect("set"), "llama");
    assert_eq!(file.metadata().get_u32("llama.block_count").expect("set"), 30);
    assert_eq!(file.metadata().strings("tokenizer.ggml.tokens").expect("set").len(), 49_152);
    let embedding = header.tensors.get("token_embd.weight").expect("there");
    assert_eq!((embedding.shape, embedding.n_dims), ([576, 49_152, 1, 1], 2));
    let bytes: u64 = header.tensors.iter().map(|tensor| tensor.size_bytes).sum();
    assert!(header.data_offset + bytes <= file.mapping().len() as u64);
    assert_eq!(file.tensor_bytes("token_embd.weight").expect("there").len() as u64, embedding.size_bytes);
}
