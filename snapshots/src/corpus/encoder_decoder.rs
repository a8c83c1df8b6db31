//! A speech model: an encoder over sound, and a decoder that attends to it.

use entensor_components::DType;

use super::{
    CorpusError, CorpusFile,
    attention::Attention,
    sheet::{Sheet, Tensor, list},
};

const WIDTH: u64 = 512;
const HEADS: u64 = 8;
const LAYERS: u32 = 6;
/// Frames that the encoder is left with.
const FRAMES: u64 = 1500;
const BANDS: u64 = 80;
const TOKENS: u64 = 4;
const CONTEXT: u64 = 448;
const WINDOW: u64 = 64;
const VOCABULARY: u64 = 51865;
const GPU: &str = "gpu";

/// The file of this family.
pub(super) fn file() -> Result<CorpusFile, CorpusError> {
    let about = "speech encoder and decoder of 6 layers each with cross attention; the gpu has no conv_1d, its kernels and the \
                 token embedding are on the host";
    let mut s = Sheet::new(&["gpu ops=all,-conv_1d events async", "cpu"]);
    s.buffer("kv_self", GPU);
    s.buffer("kv_cross", GPU);
    let encoded = encoder(&mut s);
    let logits_of = decoder(&mut s, encoded);
    let output = s.weight("output.weight", DType::F16, &[WIDTH, VOCABULARY], GPU);
    s.output("logits", "mul_mat", &[output, logits_of]);
    s.finish("encoder_decoder", about, 1)
}

fn attention(tokens: u64, window: u64) -> Attention {
    Attention {
        width: WIDTH,
        dim: WIDTH / HEADS,
        heads: HEADS,
        kv_heads: HEADS,
        tokens,
        context: CONTEXT,
        window,
        fused: false,
        dtype: DType::F16,
    }
}

fn layer_norm(s: &mut Sheet, name: &str, x: Tensor) -> Tensor {
    let normed = s.op(&format!("{name}_norm"), "norm", &[x]);
    let weight = s.weight(&format!("{name}.weight"), DType::F32, &[WIDTH], GPU);
    let scaled = s.op(&format!("{name}_scaled"), "mul", &[normed, weight]);
    let bias = s.weight(&format!("{name}.bias"), DType::F32, &[WIDTH], GPU);
    s.op(name, "add", &[scaled, bias])
}

fn linear(s: &mut Sheet, name: &str, to: u64, x: Tensor) -> Tensor {
    let from = s.shape(x)[0];
    let weight = s.weight(&format!("{name}.weight"), DType::F16, &[from, to], GPU);
    let product = s.op(&format!("{name}_product"), "mul_mat", &[weight, x]);
    let bias = s.weight(&format!("{name}.bias"), DType::F32, &[to], GPU);
    s.op(name, "add", &[product, bias])
}

/// `[width, n]` → `[dim, n, heads]`.
fn heads(s: &mut Sheet, name: &str, x: Tensor) -> Tensor {
    let n = s.shape(x)[1];
    let split = format!("reshape shape={}", list(&[WIDTH / HEADS, HEADS, n]));
    let split = s.op(&format!("{name}_heads"), &split, &[x]);
    s.op(&format!("{name}_perm"), "permute axes=[0,2,1,3]", &[split])
}

fn feed_forward(s: &mut Sheet, layer: &str, x: Tensor) -> Tensor {
    let normed = layer_norm(s, &format!("{layer}.mlp_ln"), x);
    let wide = linear(s, &format!("{layer}.mlp_up"), 4 * WIDTH, normed);
    let wide = s.op(&format!("{layer}.mlp_gelu"), "gelu", &[wide]);
    let narrow = linear(s, &format!("{layer}.mlp_down"), WIDTH, wide);
    s.op(&format!("{layer}.out"), "add", &[x, narrow])
}

fn encoder(s: &mut Sheet) -> Tensor {
    let sound = s.input("sound", DType::F32, &[2 * FRAMES, BANDS]);
    let kernel = s.weight("enc.conv1.weight", DType::F16, &[3, BANDS, WIDTH], "cpu");
    let x = s.op("enc.conv1", "conv_1d p0=1", &[kernel, sound]);
    let x = s.op("enc.conv1_gelu", "gelu", &[x]);
    let kernel = s.weight("enc.conv2.weight", DType::F16, &[3, WIDTH, WIDTH], "cpu");
    let x = s.op("enc.conv2", "conv_1d s0=2 p0=1", &[kernel, x]);
    let x = s.op("enc.conv2_gelu", "gelu", &[x]);
    let x = s.op("enc.frames_transposed", "transpose", &[x]);
    let x = s.op("enc.frames", "cont", &[x]);
    let positions = s.weight("enc.positions", DType::F32, &[WIDTH, FRAMES], GPU);
    let mut x = s.op("enc.embedded", "add", &[x, positions]);
    let attention = attention(FRAMES, FRAMES);
    for i in 0..LAYERS {
        let layer = format!("enc.{i}");
        let normed = layer_norm(s, &format!("{layer}.attn_ln"), x);
        let q = linear(s, &format!("{layer}.q"), WIDTH, normed);
        let q = heads(s, &format!("{layer}.q"), q);
        let k = linear(s, &format!("{layer}.k"), WIDTH, normed);
        let k = heads(s, &format!("{layer}.k"), k);
        let v = linear(s, &format!("{layer}.v"), WIDTH, normed);
        let v = heads(s, &format!("{layer}.v"), v);
        let attended = attention.attend(s, &layer, q, k, v, None);
        let attended = linear(s, &format!("{layer}.attn_out"), WIDTH, attended);
        x = s.op(&format!("{layer}.attended"), "add", &[x, attended]);
        x = feed_forward(s, &layer, x);
    }
    layer_norm(s, "enc.ln", x)
}

/// What a decoder layer's attention looks at: rows of a cache, as `[dim, window, heads]`.
fn cached(s: &mut Sheet, name: &str, cache: Tensor, window: u64) -> Tensor {
    let [element, row, ..] = s.strides(cache);
    let dim = WIDTH / HEADS;
    let strides = list(&[element, row, element * dim, element * WIDTH]);
    s.op(name, &format!("view shape={} strides={strides}", list(&[dim, window, HEADS])), &[cache])
}

fn decoder(s: &mut Sheet, encoded: Tensor) -> Tensor {
    let ids = s.input("ids", DType::I32, &[TOKENS]);
    let rows = s.input("rows", DType::I32, &[TOKENS]);
    let mask = s.input("mask", DType::F16, &[WINDOW, TOKENS]);
    let embedding = s.weight("token_embd.weight", DType::F16, &[WIDTH, VOCABULARY], "cpu");
    let x = s.op("dec.tokens", "get_rows", &[embedding, ids]);
    let places = s.weight("dec.positions", DType::F32, &[WIDTH, CONTEXT], GPU);
    let places = s.op("dec.places", "get_rows", &[places, rows]);
    let mut x = s.op("dec.embedded", "add", &[x, places]);
    for i in 0..LAYERS {
        let layer = format!("dec.{i}");
        let normed = layer_norm(s, &format!("{layer}.attn_ln"), x);
        let q = linear(s, &format!("{layer}.q"), WIDTH, normed);
        let q = heads(s, &format!("{layer}.q"), q);
        let [k, v] = ["k", "v"].map(|what| {
            let fresh = linear(s, &format!("{layer}.{what}"), WIDTH, normed);
            let cache = s.tensor(&format!("{layer}.cache_{what}"), DType::F16, &[WIDTH, CONTEXT], "kv_self");
            s.op(&format!("{layer}.{what}_set"), "set_rows", &[cache, fresh, rows]);
            cached(s, &format!("{layer}.{what}_view"), cache, WINDOW)
        });
        let attended = attention(TOKENS, WINDOW).attend(s, &format!("{layer}.self"), q, k, v, Some(mask));
        let attended = linear(s, &format!("{layer}.attn_out"), WIDTH, attended);
        let after_self = s.op(&format!("{layer}.attended"), "add", &[x, attended]);

        let normed = layer_norm(s, &format!("{layer}.cross_ln"), after_self);
        let q = linear(s, &format!("{layer}.cross_q"), WIDTH, normed);
        let q = heads(s, &format!("{layer}.cross_q"), q);
        // The encoder's keys and values are kept, so that later tokens need no encoder.
        let [k, v] = ["k", "v"].map(|what| {
            let fresh = linear(s, &format!("{layer}.cross_{what}"), WIDTH, encoded);
            let cache = s.tensor(&format!("{layer}.cross_cache_{what}"), DType::F16, &[WIDTH, FRAMES], "kv_cross");
            s.op(&format!("{layer}.cross_{what}_cpy"), "cpy", &[fresh, cache]);
            cached(s, &format!("{layer}.cross_{what}_view"), cache, FRAMES)
        });
        let attended = attention(TOKENS, FRAMES).attend(s, &format!("{layer}.cross"), q, k, v, None);
        let attended = linear(s, &format!("{layer}.cross_out"), WIDTH, attended);
        x = s.op(&format!("{layer}.cross_attended"), "add", &[after_self, attended]);
        x = feed_forward(s, &layer, x);
    }
    layer_norm(s, "dec.ln", x)
}
