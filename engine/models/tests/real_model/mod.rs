//! What the tests on the real model share.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{io::Write, path::PathBuf};

use entensor::Engine;
use entensor_models::LanguageModel;
use serde_json::Value;

/// Prints a line that is seen: `eprintln!` in a test that passes is not.
pub(crate) fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("standard error is open");
}

/// The model file that `ENTENSOR_MODEL` names; says loudly that the test is skipped when it names none.
pub(crate) fn path() -> Option<PathBuf> {
    let path = std::env::var_os("ENTENSOR_MODEL").map(PathBuf::from);
    if path.is_none() {
        say(
            "SKIPPED: set ENTENSOR_MODEL to the path of SmolLM2-135M-Instruct.Q4_1.gguf (see the README) to run this test",
        );
    }
    path
}

/// The model in an engine with this backend, if it is there.
pub(crate) fn load(backend: &str) -> Option<(Engine, LanguageModel)> {
    let path = path()?;
    let mut engine = Engine::builder().backend(backend).build().expect("the backend starts");
    let model = LanguageModel::load(&mut engine, path, |_| ()).expect("the model loads");
    Some((engine, model))
}

/// Recorded top logits of one position.
pub(crate) struct Position {
    /// Token and logit, best first.
    pub(crate) top: Vec<(u32, f64)>,
    /// Of all logits.
    pub(crate) logsumexp: f64,
}

/// One recorded case.
pub(crate) struct Case {
    /// Its name.
    pub(crate) name: String,
    /// The prompt.
    pub(crate) prompt: String,
    /// Tokens of the prompt.
    pub(crate) prompt_ids: Vec<u32>,
    /// What was recorded per prompt position.
    pub(crate) positions: Vec<Position>,
    /// What was generated greedily.
    pub(crate) generated_ids: Vec<u32>,
    /// The same as text.
    pub(crate) generated_text: String,
    /// How many of those have margins wide enough that they must be equal.
    pub(crate) greedy_must_match: usize,
}

/// The recorded cases of the `f32` truth or of the `q4_1` peer.
pub(crate) fn reference(which: &str) -> Vec<Case> {
    let path = format!("{}/../../snapshots/reference/smollm2-135m-instruct-{which}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the reference is in the repository");
    let value: Value = serde_json::from_str(&text).expect("the reference is JSON");
    value["cases"].as_array().expect("cases").iter().map(case).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    let numbers = value.as_array().expect("a list of ids").iter();
    numbers.map(|id| u32::try_from(id.as_u64().expect("an id")).expect("small")).collect()
}

fn case(value: &Value) -> Case {
    let position = |p: &Value| Position {
        top: p["top"]
            .as_array()
            .expect("top")
            .iter()
            .map(|t| (ids(&Value::Array(vec![t[0].clone()]))[0], t[1].as_f64().expect("a logit")))
            .collect(),
        logsumexp: p["logsumexp"].as_f64().expect("a number"),
    };
    Case {
        name: value["name"].as_str().expect("a name").into(),
        prompt: value["prompt"].as_str().expect("a prompt").into(),
        prompt_ids: ids(&value["prompt_ids"]),
        positions: value["positions"].as_array().expect("positions").iter().map(position).collect(),
        generated_ids: ids(&value["generated_ids"]),
        generated_text: value["generated_text"].as_str().expect("a text").into(),
        greedy_must_match: usize::try_from(value["greedy_must_match"].as_u64().expect("a number")).expect("small"),
    }
}

/// The token of the largest logit; the lowest id among equals.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = i;
        }
    }
    u32::try_from(best).expect("a small vocabulary")
}
