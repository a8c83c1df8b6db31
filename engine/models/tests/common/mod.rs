//! What the tests on the real model share.
#![allow(dead_code, reason = "each test binary uses its own part")]

use entensor::Engine;
use entensor_models::LanguageModel;
use serde_json::Value;

/// The model named by `ENTENSOR_MODEL` in an engine with this backend; a loud line and `None` when it is not there.
pub(crate) fn load(backend: &str) -> Option<(Engine, LanguageModel)> {
    let Some(path) = std::env::var_os("ENTENSOR_MODEL") else {
        eprintln!("SKIPPED: set ENTENSOR_MODEL to the model file (the README says how to get it) to run this test");
        return None;
    };
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
    /// Tokens of the prompt.
    pub(crate) prompt_ids: Vec<u32>,
    /// What was recorded per prompt position.
    pub(crate) positions: Vec<Position>,
    /// What was generated greedily.
    pub(crate) generated_ids: Vec<u32>,
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
        prompt_ids: ids(&value["prompt_ids"]),
        positions: value["positions"].as_array().expect("positions").iter().map(position).collect(),
        generated_ids: ids(&value["generated_ids"]),
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
