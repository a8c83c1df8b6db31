//! The tokenizer against the ids that a reference implementation gave for a real model.
//!
//! `ENTENSOR_MODEL` names the model file (SmolLM2-135M-Instruct); without it the test is skipped and says so.

mod real_model;

use entensor_models::{
    gguf::GgufFile,
    tokenizer::{ControlTokens, Tokenizer},
};
use real_model::reference;

fn model() -> Option<GgufFile> {
    Some(GgufFile::open(real_model::path()?).expect("ENTENSOR_MODEL names a model file"))
}

#[test]
fn ids_and_texts_are_those_of_the_reference() {
    let Some(file) = model() else { return };
    let tokenizer = Tokenizer::from_metadata(file.metadata()).expect("a supported vocabulary");
    let mut checked = 0;
    for case in ["f32", "q4_1"].into_iter().flat_map(reference) {
        let name = &case.name;
        assert_eq!(tokenizer.encode(&case.prompt, true).expect("encodable"), case.prompt_ids, "{name}");
        let mut bytes = Vec::new();
        tokenizer.decode_into(case.prompt_ids, ControlTokens::Write, &mut bytes).expect("known ids");
        assert_eq!(bytes, case.prompt.as_bytes(), "{name}");
        assert_eq!(tokenizer.decode(&case.generated_ids).expect("known ids"), case.generated_text, "{name}");
        let mut stream = tokenizer.stream(ControlTokens::Skip);
        let mut streamed = String::new();
        for id in case.generated_ids {
            streamed.push_str(stream.push(id).expect("known ids"));
        }
        streamed.push_str(stream.finish());
        assert_eq!(streamed, case.generated_text, "{name}");
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
