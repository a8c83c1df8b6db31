//! The `llama` architecture: RMSNorm, grouped-query attention with rotary positions, SwiGLU, tied or separate output.
//!
//! Source: Touvron et al. 2023, arXiv:2302.13971; Ainslie et al. 2023, arXiv:2305.13245 (grouped queries); tensor names and
//! metadata keys as in the GGUF files of that architecture.

use std::{borrow::BorrowMut, collections::HashSet};

use bevy_ecs::prelude::World;
use entensor::{BufferId, DType, Engine, GraphBuilder, Op, RopeMode, Tensor, TensorId};

use super::{CacheTensors, StepShape, StepTensors, linear};
use crate::{
    ModelError,
    gguf::{GgufHeader, OptionalKey},
};

/// Sizes and constants of a model, from the file's metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub width: u64,
    /// Width of the feed-forward layer.
    pub feed_forward: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// Elements of a head that rope rotates.
    pub rope_dims: u32,
    /// Base of the rope frequencies.
    pub rope_base: f32,
    /// Positions are multiplied by this: the inverse of a linear scaling factor.
    pub rope_scale: f32,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// Tokens that the model was trained for.
    pub context_length: u32,
    /// Tokens in the vocabulary, from the shape of the embedding.
    pub vocabulary: u64,
}

impl LlamaConfig {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Missing keys, sizes that do not fit each other, or rope scaling that is not supported.
    pub fn from_header(header: &GgufHeader) -> Result<Self, ModelError> {
        let meta = &header.metadata;
        let positive = |key: &str| -> Result<u64, ModelError> {
            let value = meta.get_u64(key)?;
            // Products of a few such numbers stay far from overflow, and graphs of absurd sizes are refused early.
            if value == 0 || value > 1 << 24 {
                return Err(ModelError::Config { key: key.into(), rule: "must be from 1 to 2^24" });
            }
            Ok(value)
        };
        let small = |key: &str| -> Result<u32, ModelError> {
            u32::try_from(positive(key)?).map_err(|_| ModelError::Config { key: key.into(), rule: "must fit 32 bits" })
        };
        let width = positive("llama.embedding_length")?;
        let heads = positive("llama.attention.head_count")?;
        let kv_heads = match meta.get_u64("llama.attention.head_count_kv").optional()? {
            Some(_) => positive("llama.attention.head_count_kv")?,
            None => heads,
        };
        let head_dim = match meta.get_u64("llama.attention.key_length").optional()? {
            Some(_) => positive("llama.attention.key_length")?,
            None => width / heads,
        };
        let rope_dims = match meta.get_u64("llama.rope.dimension_count").optional()? {
            Some(_) => small("llama.rope.dimension_count")?,
            None => u32::try_from(head_dim).unwrap_or(0),
        };
        let embedding = header.tensors.get("token_embd.weight").ok_or_else(|| missing("token_embd.weight"))?;
        let config = Self {
            layers: small("llama.block_count")?,
            width,
            feed_forward: positive("llama.feed_forward_length")?,
            heads,
            kv_heads,
            head_dim,
            rope_dims,
            rope_base: meta.get_f32("llama.rope.freq_base").optional()?.unwrap_or(10_000.0),
            rope_scale: 1.0 / rope_factor(header)?,
            norm_eps: meta.get_f32("llama.attention.layer_norm_rms_epsilon")?,
            context_length: small("llama.context_length")?,
            vocabulary: embedding.shape[1],
        };
        config.check(header)?;
        Ok(config)
    }

    fn check(&self, header: &GgufHeader) -> Result<(), ModelError> {
        let fail = |key: &str, rule| Err(ModelError::Config { key: key.into(), rule });
        if self.head_dim == 0 {
            return fail("llama.attention.head_count", "must not exceed llama.embedding_length");
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return fail("llama.attention.head_count_kv", "must divide llama.attention.head_count");
        }
        if !self.rope_dims.is_multiple_of(2) || u64::from(self.rope_dims) > self.head_dim {
            return fail("llama.rope.dimension_count", "must be even and at most the head's elements");
        }
        if !(self.rope_base.is_finite() && self.rope_base > 0.0) {
            return fail("llama.rope.freq_base", "must be positive");
        }
        if !(self.norm_eps.is_finite() && self.norm_eps >= 0.0) {
            return fail("llama.attention.layer_norm_rms_epsilon", "must be 0 or more");
        }
        if header.metadata.get_u64("llama.expert_count").optional()?.is_some_and(|n| n > 0) {
            return fail("llama.expert_count", "mixtures of experts are not supported");
        }
        Ok(())
    }

    /// Elements of all key (or value) heads of a token.
    #[must_use]
    pub fn kv_width(&self) -> u64 {
        self.kv_heads * self.head_dim
    }
}

/// How many times longer contexts are than the trained ones, by linear scaling of positions. A factor without a type is linear.
fn rope_factor(header: &GgufHeader) -> Result<f32, ModelError> {
    let meta = &header.metadata;
    let fail = |key: &str, rule| Err(ModelError::Config { key: key.into(), rule });
    match meta.get_str("llama.rope.scaling.type").optional()? {
        Some("none") => return Ok(1.0),
        None | Some("linear") => {}
        Some(_) => {
            return fail("llama.rope.scaling.type", "must be `none` or `linear`; other scalings are not supported");
        }
    }
    let (key, old_key) = ("llama.rope.scaling.factor", "llama.rope.scale_linear");
    let factor = match meta.get_f32(key).optional()? {
        Some(factor) => Some(factor),
        None => meta.get_f32(old_key).optional()?,
    };
    // Some writers put 0 for "none".
    let factor = factor.filter(|&factor| factor != 0.0).unwrap_or(1.0);
    if !(factor.is_finite() && factor > 0.0) {
        return fail(key, "must be positive");
    }
    Ok(factor)
}

fn missing(name: &str) -> ModelError {
    ModelError::MissingTensor { name: name.into() }
}

struct Layer {
    attention_norm: TensorId,
    query: TensorId,
    key: TensorId,
    value: TensorId,
    query_bias: Option<TensorId>,
    key_bias: Option<TensorId>,
    value_bias: Option<TensorId>,
    output_bias: Option<TensorId>,
    output: TensorId,
    feed_forward_norm: TensorId,
    gate: TensorId,
    up: TensorId,
    down: TensorId,
    gate_bias: Option<TensorId>,
    up_bias: Option<TensorId>,
    down_bias: Option<TensorId>,
}

/// A model's weights, bound to a buffer of the engine.
pub struct Llama {
    config: LlamaConfig,
    embedding: TensorId,
    layers: Vec<Layer>,
    output_norm: TensorId,
    output: TensorId,
    rope_factors: Option<TensorId>,
    read_bytes: u64,
}

/// Finds tensors in the file, checks their shapes and gives them entities.
struct Binder<'a, W: BorrowMut<World>> {
    engine: &'a mut Engine<W>,
    header: &'a GgufHeader,
    buffer: BufferId,
    bound: HashSet<&'a str>,
    read_bytes: u64,
}

impl<W: BorrowMut<World>> Binder<'_, W> {
    /// A tensor that the graph leaves out would make a silent wrong result, so there must be none.
    fn check_all_bound(&self) -> Result<(), ModelError> {
        match self.header.tensors.iter().find(|t| !self.bound.contains(&*t.name)) {
            Some(tensor) => Err(ModelError::UnusedTensor { name: tensor.name.clone() }),
            None => Ok(()),
        }
    }

    fn required(&mut self, name: &str, dims: &[u64]) -> Result<TensorId, ModelError> {
        self.optional(name, dims)?.ok_or_else(|| missing(name))
    }

    fn optional(&mut self, name: &str, dims: &[u64]) -> Result<Option<TensorId>, ModelError> {
        let Some(tensor) = self.header.tensors.get(name) else { return Ok(None) };
        let found = &tensor.shape[..];
        let same = dims.iter().chain(std::iter::repeat(&1)).zip(found).all(|(a, b)| a == b);
        if !same {
            let (expected, found) = (dims.to_vec(), tensor.shape.to_vec());
            return Err(ModelError::TensorShape { name: name.into(), expected, found });
        }
        // Vectors are added and multiplied elementwise, which block types and integers are not made for.
        if dims.len() == 1 && tensor.dtype != DType::F32 {
            return Err(ModelError::TensorDType { name: name.into(), found: tensor.dtype, expected: "f32" });
        }
        if tensor.dtype.is_integer() {
            return Err(ModelError::TensorDType {
                name: name.into(),
                found: tensor.dtype,
                expected: "a float or block type",
            });
        }
        self.bound.insert(&tensor.name);
        self.read_bytes += tensor.size_bytes;
        Ok(Some(self.engine.tensor_in(name, tensor.dtype, dims, self.buffer, tensor.offset_bytes)?))
    }
}

impl Llama {
    /// Binds the weights of a file whose bytes are `buffer`.
    ///
    /// # Errors
    /// A missing or misshapen tensor, named with the shape that the metadata asks for.
    pub fn bind<W: BorrowMut<World>>(
        engine: &mut Engine<W>,
        config: LlamaConfig,
        header: &GgufHeader,
        buffer: BufferId,
    ) -> Result<Self, ModelError> {
        let mut binder = Binder { engine, header, buffer, bound: HashSet::new(), read_bytes: 0 };
        let (width, kv_width, ff) = (config.width, config.kv_width(), config.feed_forward);
        let q_width = config.heads * config.head_dim;
        let embedding = binder.required("token_embd.weight", &[width, config.vocabulary])?;
        let embedding_bytes = std::mem::take(&mut binder.read_bytes);
        let mut layers = Vec::new();
        for layer in 0..config.layers {
            let mut get = |what: &str, dims: &[u64]| binder.required(&format!("blk.{layer}.{what}.weight"), dims);
            let bound = Layer {
                attention_norm: get("attn_norm", &[width])?,
                query: get("attn_q", &[width, q_width])?,
                key: get("attn_k", &[width, kv_width])?,
                value: get("attn_v", &[width, kv_width])?,
                output: get("attn_output", &[q_width, width])?,
                feed_forward_norm: get("ffn_norm", &[width])?,
                gate: get("ffn_gate", &[width, ff])?,
                up: get("ffn_up", &[width, ff])?,
                down: get("ffn_down", &[ff, width])?,
                query_bias: binder.optional(&format!("blk.{layer}.attn_q.bias"), &[q_width])?,
                key_bias: binder.optional(&format!("blk.{layer}.attn_k.bias"), &[kv_width])?,
                value_bias: binder.optional(&format!("blk.{layer}.attn_v.bias"), &[kv_width])?,
                output_bias: binder.optional(&format!("blk.{layer}.attn_output.bias"), &[width])?,
                gate_bias: binder.optional(&format!("blk.{layer}.ffn_gate.bias"), &[ff])?,
                up_bias: binder.optional(&format!("blk.{layer}.ffn_up.bias"), &[ff])?,
                down_bias: binder.optional(&format!("blk.{layer}.ffn_down.bias"), &[width])?,
            };
            layers.push(bound);
        }
        let output_norm = binder.required("output_norm.weight", &[width])?;
        let separate = binder.optional("output.weight", &[width, config.vocabulary])?;
        let rope_factors = binder.optional("rope_freqs.weight", &[u64::from(config.rope_dims) / 2])?;
        binder.check_all_bound()?;
        // A tied output reads the whole embedding for each token; a separate one leaves it at one row.
        let read_bytes = binder.read_bytes + if separate.is_none() { embedding_bytes } else { 0 };
        let output = separate.unwrap_or_else(|| embedding.clone());
        Ok(Self { config, embedding, layers, output_norm, output, rope_factors, read_bytes })
    }

    /// Sizes and constants.
    #[must_use]
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// Bytes of weights that one decoded token reads.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// The graph of one step. Positions, cache rows and what may be seen are inputs, so one graph serves every position of its
    /// shape.
    ///
    /// # Errors
    /// Only for shapes that do not fit the cache.
    pub fn step(
        &self,
        g: &mut GraphBuilder,
        cache: &CacheTensors,
        shape: StepShape,
    ) -> Result<StepTensors, ModelError> {
        let tokens = u64::from(shape.tokens);
        let ids = g.input("ids", DType::I32, &[tokens])?;
        let positions = g.input("positions", DType::I32, &[tokens])?;
        let rows = g.input("rows", DType::I32, &[tokens])?;
        let mask = g.input("mask", DType::F16, &[u64::from(shape.cache_rows), tokens])?;
        let wanted = match shape.outputs == shape.tokens {
            true => None,
            false => Some(g.input("wanted", DType::I32, &[u64::from(shape.outputs)])?),
        };
        let factors = self.rope_factors.as_ref().map(|f| g.shared(f)).transpose()?;
        let embedding = g.shared(&self.embedding)?;
        let inputs = AttentionInputs { positions, rows, mask, factors, shape };
        let mut x = g.get_rows(embedding, ids)?;
        x = g.name("embedded", x)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = self.norm(g, x, &layer.attention_norm)?;
            let mut attended = self.attention(g, normed, index, layer, cache, &inputs)?;
            // After the last attention only the wanted tokens matter.
            if let Some(wanted) = wanted.filter(|_| index + 1 == self.layers.len()) {
                attended = g.get_rows(attended, wanted)?;
                x = g.get_rows(x, wanted)?;
            }
            let attended = linear(g, &layer.output, layer.output_bias.as_ref(), attended)?;
            x = g.add(x, attended)?;
            x = g.name(&format!("attended.{index}"), x)?;
            let normed = self.norm(g, x, &layer.feed_forward_norm)?;
            let gate = linear(g, &layer.gate, layer.gate_bias.as_ref(), normed)?;
            let up = linear(g, &layer.up, layer.up_bias.as_ref(), normed)?;
            let gated = g.swiglu(gate, Some(up))?;
            let down = linear(g, &layer.down, layer.down_bias.as_ref(), gated)?;
            x = g.add(x, down)?;
            x = g.name(&format!("layer.{index}"), x)?;
        }
        let normed = self.norm(g, x, &self.output_norm)?;
        let tied = self.output.entity == self.embedding.entity;
        let output = if tied { embedding } else { g.shared(&self.output)? };
        let logits = g.mul_mat(output, normed)?;
        let logits = g.output("logits", logits)?;
        Ok(StepTensors { ids, positions, rows, mask, wanted, logits })
    }

    fn norm(&self, g: &mut GraphBuilder, x: Tensor, weights: &TensorId) -> Result<Tensor, ModelError> {
        let normed = g.rms_norm(x, self.config.norm_eps)?;
        let weights = g.shared(weights)?;
        Ok(g.mul(normed, weights)?)
    }

    /// Attention of one layer up to, but not including, its output product: `[heads · head_dim, tokens]`.
    fn attention(
        &self,
        g: &mut GraphBuilder,
        x: Tensor,
        index: usize,
        layer: &Layer,
        cache: &CacheTensors,
        inputs: &AttentionInputs,
    ) -> Result<Tensor, ModelError> {
        let c = &self.config;
        let (dim, tokens) = (c.head_dim, u64::from(inputs.shape.tokens));
        let kv_rows = u64::from(inputs.shape.cache_rows);
        let rope = |g: &mut GraphBuilder, x: Tensor| {
            let op = Op::rope(RopeMode::Normal, c.rope_dims, c.rope_base, c.rope_scale);
            let operands = [Some(x), Some(inputs.positions), inputs.factors];
            g.op(op, &operands.into_iter().flatten().collect::<Vec<_>>())
        };
        let query = linear(g, &layer.query, layer.query_bias.as_ref(), x)?;
        let query = g.reshape(query, [dim, c.heads, tokens, 1])?;
        let query = rope(g, query)?;
        let key = linear(g, &layer.key, layer.key_bias.as_ref(), x)?;
        let key = g.reshape(key, [dim, c.kv_heads, tokens, 1])?;
        let key = rope(g, key)?;
        let key = g.reshape(key, [c.kv_width(), tokens, 1, 1])?;
        let value = linear(g, &layer.value, layer.value_bias.as_ref(), x)?;
        let keys = g.shared(&cache.keys[index])?;
        let values = g.shared(&cache.values[index])?;
        g.set_rows(keys, key, inputs.rows)?;
        g.set_rows(values, value, inputs.rows)?;
        // The cache's rows hold all heads of a token side by side: heads become the third axis by strides alone.
        let row_bytes = keys.desc.strides.0[1];
        let head_bytes = dim * DType::F16.block_bytes();
        let strides = [DType::F16.block_bytes(), row_bytes, head_bytes, head_bytes * c.kv_heads];
        let window = [dim, kv_rows, c.kv_heads, 1];
        let keys = g.view(keys, 0, window, Some(strides))?;
        let values = g.view(values, 0, window, Some(strides))?;
        let query = g.permute(query, [0, 2, 1, 3])?;
        #[expect(clippy::cast_precision_loss, reason = "head sizes are small integers")]
        let scale = 1.0 / (dim as f32).sqrt();
        let mixed = g.flash_attn_ext(query, keys, values, Some(inputs.mask), None, scale, 0.0, 0.0)?;
        Ok(g.reshape(mixed, [dim * c.heads, tokens, 1, 1])?)
    }
}

struct AttentionInputs {
    positions: Tensor,
    rows: Tensor,
    mask: Tensor,
    factors: Option<Tensor>,
    shape: StepShape,
}
