//! Decoders like llama: RMS norms, grouped queries with rotary positions, a cache, gated feed-forward layers.

use entensor_components::DType;

use super::{
    CorpusError, CorpusFile,
    attention::{Attention, rms_norm},
    sheet::Sheet,
};

/// Where the parts of layers are, as backends and buffers by layer.
type Place = fn(u32) -> &'static str;

struct Llama {
    name: &'static str,
    about: &'static str,
    machine: &'static [&'static str],
    buffers: &'static [(&'static str, &'static str)],
    layers: u32,
    tokens: u64,
    window: u64,
    fused: bool,
    weights: Place,
    cache: Place,
    /// Where the embedding is; it is the output's product too.
    embedding: &'static str,
    copies: u32,
}

const CPU: &[&str] = &["cpu"];
const GPU_CPU: &[&str] = &["gpu offload_batch=32 events async", "cpu"];
const TWO_GPUS: &[&str] = &["gpu0 events async", "gpu1 events async", "cpu"];

/// The sizes of a model of 135 million parameters.
const CASES: &[Llama] = &[
    Llama {
        name: "llama_decode_cpu",
        about: "llama of 30 layers, one token, attention in parts, on the host alone",
        machine: CPU,
        buffers: &[("kv", "cpu")],
        layers: 30,
        tokens: 1,
        window: 256,
        fused: false,
        weights: |_| "cpu",
        cache: |_| "kv",
        embedding: "cpu",
        copies: 1,
    },
    Llama {
        name: "llama_prompt_cpu",
        about: "llama of 30 layers, a prompt of 512 tokens, fused attention, on the host alone",
        machine: CPU,
        buffers: &[("kv", "cpu")],
        layers: 30,
        tokens: 512,
        window: 512,
        fused: true,
        weights: |_| "cpu",
        cache: |_| "kv",
        embedding: "cpu",
        copies: 1,
    },
    Llama {
        name: "llama_decode_gpu",
        about: "llama of 24 layers, one token, fused attention; layers and cache on the gpu, the tied embedding on the host",
        machine: GPU_CPU,
        buffers: &[("kv", "gpu")],
        layers: 24,
        tokens: 1,
        window: 1024,
        fused: true,
        weights: |_| "gpu",
        cache: |_| "kv",
        embedding: "cpu",
        copies: 1,
    },
    Llama {
        name: "llama_decode_split",
        about: "llama of 30 layers, one token, attention in parts; the last 15 layers with their cache on the gpu",
        machine: GPU_CPU,
        buffers: &[("kv_cpu", "cpu"), ("kv_gpu", "gpu")],
        layers: 30,
        tokens: 1,
        window: 512,
        fused: false,
        weights: |layer| if layer < 15 { "cpu" } else { "gpu" },
        cache: |layer| if layer < 15 { "kv_cpu" } else { "kv_gpu" },
        embedding: "gpu",
        copies: 1,
    },
    Llama {
        name: "llama_decode_kv_host",
        about: "llama of 16 layers, one token, attention in parts; weights on the gpu, the cache on the host",
        machine: GPU_CPU,
        buffers: &[("kv", "cpu")],
        layers: 16,
        tokens: 1,
        window: 1024,
        fused: false,
        weights: |_| "gpu",
        cache: |_| "kv",
        embedding: "gpu",
        copies: 1,
    },
    Llama {
        name: "llama_prompt_offload",
        about: "llama of 16 layers, a prompt of 512 tokens, attention in parts; all memory on the host, the gpu takes products of large batches",
        machine: GPU_CPU,
        buffers: &[("kv", "cpu")],
        layers: 16,
        tokens: 512,
        window: 512,
        fused: false,
        weights: |_| "cpu",
        cache: |_| "kv",
        embedding: "cpu",
        copies: 1,
    },
    Llama {
        name: "llama_prompt_kv_split",
        about: "llama of 20 layers, a prompt of 512 tokens, fused attention; weights on the gpu, the cache of every second layer on the host",
        machine: &["gpu events async", "cpu"],
        buffers: &[("kv_cpu", "cpu"), ("kv_gpu", "gpu")],
        layers: 20,
        tokens: 512,
        window: 1024,
        fused: true,
        weights: |_| "gpu",
        cache: |layer| if layer.is_multiple_of(2) { "kv_cpu" } else { "kv_gpu" },
        embedding: "gpu",
        copies: 1,
    },
    Llama {
        name: "llama_prompt_two_gpus",
        about: "llama of 24 layers, a prompt of 512 tokens, fused attention, 4 copies; layers and cache on two gpus by halves",
        machine: TWO_GPUS,
        buffers: &[("kv0", "gpu0"), ("kv1", "gpu1")],
        layers: 24,
        tokens: 512,
        window: 512,
        fused: true,
        weights: |layer| if layer < 12 { "gpu0" } else { "gpu1" },
        cache: |layer| if layer < 12 { "kv0" } else { "kv1" },
        embedding: "gpu1",
        copies: 4,
    },
    Llama {
        name: "llama_decode_three",
        about: "llama of 24 layers, 8 tokens, attention in parts, 4 copies; a third of layers and cache on each of two gpus and the host",
        machine: TWO_GPUS,
        buffers: &[("kv_cpu", "cpu"), ("kv0", "gpu0"), ("kv1", "gpu1")],
        layers: 24,
        tokens: 8,
        window: 768,
        fused: false,
        weights: |layer| ["cpu", "gpu0", "gpu1"][(layer as usize / 8).min(2)],
        cache: |layer| ["kv_cpu", "kv0", "kv1"][(layer as usize / 8).min(2)],
        embedding: "gpu1",
        copies: 4,
    },
];

const FEED_FORWARD: u64 = 1536;
const VOCABULARY: u64 = 49152;

/// The files of this family.
pub(super) fn files() -> Result<Vec<CorpusFile>, CorpusError> {
    CASES.iter().map(Llama::file).collect()
}

impl Llama {
    fn file(&self) -> Result<CorpusFile, CorpusError> {
        let mut s = Sheet::new(self.machine);
        for (name, backend) in self.buffers {
            s.buffer(name, backend);
        }
        let attention = Attention {
            width: 576,
            dim: 64,
            heads: 9,
            kv_heads: 3,
            tokens: self.tokens,
            context: 2048,
            window: self.window,
            fused: self.fused,
            dtype: DType::Q4_1,
        };
        let ids = s.input("ids", DType::I32, &[self.tokens]);
        let inputs = attention.inputs(&mut s);
        let wanted = (self.tokens > 1).then(|| s.input("wanted", DType::I32, &[1]));
        let embedding = s.weight("token_embd.weight", DType::Q8_0, &[attention.width, VOCABULARY], self.embedding);
        let mut x = s.op("embedded", "get_rows", &[embedding, ids]);
        for i in 0..self.layers {
            let (weights, cache) = ((self.weights)(i), (self.cache)(i));
            let normed = rms_norm(&mut s, &format!("attn_norm.{i}"), &format!("blk.{i}.attn_norm.weight"), x, weights);
            let mut attended = attention.layer(&mut s, i, normed, &inputs, weights, cache);
            // After the last attention only the wanted tokens matter.
            if let Some(wanted) = wanted.filter(|_| i + 1 == self.layers) {
                attended = s.op("attended_wanted", "get_rows", &[attended, wanted]);
                x = s.op("wanted_rows", "get_rows", &[x, wanted]);
            }
            let width = attention.width;
            let w = s.weight(&format!("blk.{i}.attn_output.weight"), DType::Q4_1, &[width, width], weights);
            let attended = s.op(&format!("attn_out.{i}"), "mul_mat", &[w, attended]);
            x = s.op(&format!("attended.{i}"), "add", &[x, attended]);
            x = self.feed_forward(&mut s, i, x, weights);
        }
        let last = (self.weights)(self.layers - 1);
        let normed = rms_norm(&mut s, "output_norm", "output_norm.weight", x, last);
        s.output("logits", "mul_mat", &[embedding, normed]);
        s.finish(self.name, self.about, self.copies)
    }

    fn feed_forward(&self, s: &mut Sheet, i: u32, x: super::sheet::Tensor, weights: &str) -> super::sheet::Tensor {
        let width = s.shape(x)[0];
        let normed = rms_norm(s, &format!("ffn_norm.{i}"), &format!("blk.{i}.ffn_norm.weight"), x, weights);
        let gate = s.weight(&format!("blk.{i}.ffn_gate.weight"), DType::Q4_1, &[width, FEED_FORWARD], weights);
        let gate = s.op(&format!("gate.{i}"), "mul_mat", &[gate, normed]);
        let up = s.weight(&format!("blk.{i}.ffn_up.weight"), DType::Q4_1, &[width, FEED_FORWARD], weights);
        let up = s.op(&format!("up.{i}"), "mul_mat", &[up, normed]);
        let gated = s.op(&format!("gated.{i}"), "swiglu", &[gate, up]);
        let down = s.weight(&format!("blk.{i}.ffn_down.weight"), DType::Q4_1, &[FEED_FORWARD, width], weights);
        let down = s.op(&format!("down.{i}"), "mul_mat", &[down, gated]);
        s.op(&format!("layer.{i}"), "add", &[x, down])
    }
}
