//! Decoders with a mixture of experts: attention on the device, the experts, which are most of the bytes, on the host.

use entensor_components::DType;

use super::{
    CorpusError, CorpusFile,
    attention::{Attention, rms_norm},
    sheet::{Sheet, Tensor, list},
};

const LAYERS: u32 = 16;
const WIDTH: u64 = 1024;
const EXPERTS: u64 = 32;
/// Experts that a token is sent to.
const CHOSEN: u64 = 4;
const EXPERT_WIDTH: u64 = 512;
const VOCABULARY: u64 = 32000;

/// The files of this family.
pub(super) fn files() -> Result<Vec<CorpusFile>, CorpusError> {
    let decode = "mixture of 32 experts, 4 a token, 16 layers, one token; attention on the gpu, experts on the host";
    let prompt = "the same with a prompt of 512 tokens, and a gpu that takes large batches";
    Ok(vec![
        file("experts_decode", decode, &["gpu offload_batch=32 events async", "cpu"], 1)?,
        file("experts_prompt", prompt, &["gpu offload_batch=32 events async", "cpu"], 512)?,
    ])
}

fn file(name: &'static str, about: &'static str, machine: &[&str], tokens: u64) -> Result<CorpusFile, CorpusError> {
    let mut s = Sheet::new(machine);
    s.buffer("kv", "gpu");
    let attention = Attention {
        width: WIDTH,
        dim: 64,
        heads: 16,
        kv_heads: 4,
        tokens,
        context: 4096,
        window: 1024,
        fused: true,
        dtype: DType::Q4K,
    };
    let ids = s.input("ids", DType::I32, &[tokens]);
    let inputs = attention.inputs(&mut s);
    let embedding = s.weight("token_embd.weight", DType::Q8_0, &[WIDTH, VOCABULARY], "cpu");
    let mut x = s.op("embedded", "get_rows", &[embedding, ids]);
    for i in 0..LAYERS {
        let normed = rms_norm(&mut s, &format!("attn_norm.{i}"), &format!("blk.{i}.attn_norm.weight"), x, "gpu");
        let attended = attention.layer(&mut s, i, normed, &inputs, "gpu", "kv");
        let w = s.weight(&format!("blk.{i}.attn_output.weight"), DType::Q4K, &[WIDTH, WIDTH], "gpu");
        let attended = s.op(&format!("attn_out.{i}"), "mul_mat", &[w, attended]);
        x = s.op(&format!("attended.{i}"), "add", &[x, attended]);
        let normed = rms_norm(&mut s, &format!("ffn_norm.{i}"), &format!("blk.{i}.ffn_norm.weight"), x, "gpu");
        let mixed = mixture(&mut s, i, normed, tokens);
        x = s.op(&format!("layer.{i}"), "add", &[x, mixed]);
    }
    let normed = rms_norm(&mut s, "output_norm", "output_norm.weight", x, "gpu");
    let output = s.weight("output.weight", DType::Q8_0, &[WIDTH, VOCABULARY], "gpu");
    s.output("logits", "mul_mat", &[output, normed]);
    s.finish(name, about, 1)
}

/// A router on the device, and the experts that it chooses on the host.
fn mixture(s: &mut Sheet, i: u32, x: Tensor, tokens: u64) -> Tensor {
    let reshaped = |s: &mut Sheet, what: &str, x: Tensor, shape: &[u64]| {
        s.op(&format!("{what}.{i}"), &format!("reshape shape={}", list(shape)), &[x])
    };
    let router = s.weight(&format!("blk.{i}.ffn_gate_inp.weight"), DType::F32, &[WIDTH, EXPERTS], "gpu");
    let scores = s.op(&format!("router.{i}"), "mul_mat", &[router, x]);
    let chosen = s.op(&format!("chosen.{i}"), &format!("top_k k={CHOSEN}"), &[scores]);
    let scores = reshaped(s, "router_rows", scores, &[1, EXPERTS, tokens]);
    let scores = s.op(&format!("chosen_scores.{i}"), "get_rows", &[scores, chosen]);
    let scores = reshaped(s, "chosen_flat", scores, &[CHOSEN, tokens]);
    let shares = s.op(&format!("shares.{i}"), "soft_max", &[scores]);
    let shares = reshaped(s, "shares_rows", shares, &[1, CHOSEN, tokens]);
    let x = reshaped(s, "x_rows", x, &[WIDTH, 1, tokens]);
    let by_expert = |s: &mut Sheet, what: &str, x: Tensor, from: u64, to: u64| {
        let w = s.weight(&format!("blk.{i}.ffn_{what}_exps.weight"), DType::Q4K, &[from, to, EXPERTS], "cpu");
        let y = s.op(&format!("{what}_product.{i}"), "mul_mat_id", &[w, x, chosen]);
        let bias = s.weight(&format!("blk.{i}.ffn_{what}_exps.bias"), DType::F32, &[to, EXPERTS], "cpu");
        s.op(&format!("{what}.{i}"), "add_id", &[y, bias, chosen])
    };
    let gate = by_expert(s, "gate", x, WIDTH, EXPERT_WIDTH);
    let up = by_expert(s, "up", x, WIDTH, EXPERT_WIDTH);
    let gated = s.op(&format!("gated.{i}"), "swiglu", &[gate, up]);
    let down = by_expert(s, "down", gated, EXPERT_WIDTH, WIDTH);
    let weighted = s.op(&format!("weighted.{i}"), "mul", &[down, shares]);
    let [element, row, token, _] = s.strides(weighted);
    let slice = |s: &mut Sheet, slot: u64| {
        let strides = list(&[element, token, token * tokens, token * tokens]);
        let op = format!("view offset={} shape={} strides={strides}", slot * row, list(&[WIDTH, tokens]));
        s.op(&format!("expert.{i}.{slot}"), &op, &[weighted])
    };
    let mut sum = slice(s, 0);
    for slot in 1..CHOSEN {
        let part = slice(s, slot);
        sum = s.op(&format!("mixture.{i}.{slot}"), "add", &[sum, part]);
    }
    sum
}
