//! Policies of agents: small nets over large batches, one step of a simulation at a time.

use entensor_components::DType;

use super::{
    CorpusError, CorpusFile,
    sheet::{Sheet, Tensor, list},
};

const AGENTS: u64 = 4096;
const SEEN: u64 = 96;
const WIDTH: u64 = 256;
const ACTIONS: u64 = 12;

/// The files of this family.
pub(super) fn files() -> Result<Vec<CorpusFile>, CorpusError> {
    Ok(vec![perceptron()?, recurrent()?])
}

fn linear(s: &mut Sheet, name: &str, x: Tensor, to: u64, place: &str) -> Tensor {
    let from = s.shape(x)[0];
    let w = s.weight(&format!("{name}.weight"), DType::F32, &[from, to], place);
    let y = s.op(&format!("{name}_product"), "mul_mat", &[w, x]);
    let b = s.weight(&format!("{name}.bias"), DType::F32, &[to], place);
    s.op(name, "add", &[y, b])
}

fn hidden(s: &mut Sheet, x: Tensor, place: &str) -> Tensor {
    let mut x = x;
    for i in 0..3 {
        let y = linear(s, &format!("hidden.{i}"), x, WIDTH, place);
        x = s.op(&format!("hidden.{i}_tanh"), "tanh", &[y]);
    }
    x
}

fn perceptron() -> Result<CorpusFile, CorpusError> {
    let about = "policy and value of 4096 agents by three layers of 256, 2 copies; weights on the gpu, actions sampled on the host";
    let mut s = Sheet::new(&["gpu ops=all,-log,-argmax events async", "cpu"]);
    let seen = s.input("seen", DType::F32, &[SEEN, AGENTS]);
    let shift = s.weight("seen.mean", DType::F32, &[SEEN], "gpu");
    let x = s.op("seen_centred", "sub", &[seen, shift]);
    let spread = s.weight("seen.spread", DType::F32, &[SEEN], "gpu");
    let x = s.op("seen_scaled", "div", &[x, spread]);
    let x = s.op("seen_clamped", "clamp min=-5 max=5", &[x]);
    let x = hidden(&mut s, x, "gpu");
    let logits = linear(&mut s, "actions", x, ACTIONS, "gpu");
    let chances = s.op("chances", "soft_max", &[logits]);
    // The largest of chance / noise is a sample of the chances, if the noise is exponential.
    let noise = s.input("noise", DType::F32, &[ACTIONS, AGENTS]);
    let race = s.op("race", "div", &[chances, noise]);
    s.output("action", "argmax", &[race]);
    let surprise = s.op("log_chances", "log", &[chances]);
    let surprise = s.op("chance_logs", "mul", &[chances, surprise]);
    let entropy = s.op("negative_entropy", "sum_rows", &[surprise]);
    s.output("entropy", "neg", &[entropy]);
    let value = linear(&mut s, "value_hidden", x, WIDTH, "gpu");
    let value = s.op("value_tanh", "tanh", &[value]);
    let w = s.weight("value.weight", DType::F32, &[WIDTH, 1], "gpu");
    s.output("value", "mul_mat", &[w, value]);
    s.finish("policy_mlp", about, 2)
}

fn recurrent() -> Result<CorpusFile, CorpusError> {
    let about = "policy of 4096 agents with a long short-term memory that lives between the steps, on the host alone";
    let mut s = Sheet::new(&["cpu"]);
    s.buffer("memory", "cpu");
    let seen = s.input("seen", DType::F32, &[SEEN, AGENTS]);
    let state = s.tensor("state", DType::F32, &[WIDTH, AGENTS], "memory");
    let cell = s.tensor("cell", DType::F32, &[WIDTH, AGENTS], "memory");
    let x = hidden(&mut s, seen, "cpu");
    let from_seen = linear(&mut s, "gates_seen", x, 4 * WIDTH, "cpu");
    let w = s.weight("gates_state.weight", DType::F32, &[WIDTH, 4 * WIDTH], "cpu");
    let from_state = s.op("gates_state", "mul_mat", &[w, state]);
    let gates = s.op("gates", "add", &[from_seen, from_state]);
    let both = s.op("states", "lstm", &[gates, cell]);
    let shape = list(&[WIDTH, AGENTS]);
    let plane = s.strides(both)[2];
    let new_state = s.op("new_state", &format!("view shape={shape}"), &[both]);
    let new_cell = s.op("new_cell", &format!("view offset={plane} shape={shape}"), &[both]);
    s.output("state_kept", "cpy", &[new_state, state]);
    s.output("cell_kept", "cpy", &[new_cell, cell]);
    let logits = linear(&mut s, "actions", new_state, ACTIONS, "cpu");
    s.output("chances", "soft_max", &[logits]);
    s.finish("policy_lstm", about, 1)
}
