//! Grouped-query attention over a cache, as decoders use it.

use entensor_components::DType;

use super::sheet::{Sheet, Tensor, list};

/// Sizes of an attention layer, and how it is computed.
#[derive(Clone, Copy)]
pub(super) struct Attention {
    /// Elements of the residual stream.
    pub(super) width: u64,
    /// Elements of a head.
    pub(super) dim: u64,
    /// Query heads.
    pub(super) heads: u64,
    /// Key and value heads.
    pub(super) kv_heads: u64,
    /// Tokens that are fed at once.
    pub(super) tokens: u64,
    /// Rows of the cache.
    pub(super) context: u64,
    /// Rows of it that are looked at.
    pub(super) window: u64,
    /// One op, or products around a softmax.
    pub(super) fused: bool,
    /// The weights' dtype.
    pub(super) dtype: DType,
}

/// What all layers read.
#[derive(Clone, Copy)]
pub(super) struct Inputs {
    /// Positions of the tokens.
    pub(super) positions: Tensor,
    /// Rows of the cache that they get.
    pub(super) rows: Tensor,
    /// What they may look at.
    pub(super) mask: Tensor,
}

impl Attention {
    /// The inputs of all layers.
    pub(super) fn inputs(&self, s: &mut Sheet) -> Inputs {
        Inputs {
            positions: s.input("positions", DType::I32, &[self.tokens]),
            rows: s.input("rows", DType::I32, &[self.tokens]),
            mask: s.input("mask", DType::F16, &[self.window, self.tokens]),
        }
    }

    /// `1 / sqrt(dim)`, as text.
    #[expect(clippy::cast_precision_loss, reason = "head sizes are small integers")]
    pub(super) fn scale(&self) -> String {
        format!("scale={}", 1.0 / (self.dim as f32).sqrt())
    }

    /// Attention of a layer, up to but not including its output product: `[heads · dim, tokens]`.
    pub(super) fn layer(
        &self,
        s: &mut Sheet,
        i: u32,
        x: Tensor,
        inputs: &Inputs,
        weights: &str,
        cache: &str,
    ) -> Tensor {
        let Self { width, dim, heads, kv_heads, tokens, context, dtype, .. } = *self;
        let kv_width = kv_heads * dim;
        let product = |s: &mut Sheet, what: &str, rows: u64| {
            let w = s.weight(&format!("blk.{i}.attn_{what}.weight"), dtype, &[width, rows], weights);
            s.op(&format!("{what}.{i}"), "mul_mat", &[w, x])
        };
        let rope = |s: &mut Sheet, what: &str, x: Tensor, heads: u64| {
            let shape = list(&[dim, heads, tokens]);
            let split = s.op(&format!("{what}_heads.{i}"), &format!("reshape shape={shape}"), &[x]);
            let rope = format!("rope n_dims={dim} base=100000");
            s.op(&format!("{what}_rope.{i}"), &rope, &[split, inputs.positions])
        };
        let q = product(s, "q", heads * dim);
        let q = rope(s, "q", q, heads);
        let k = product(s, "k", kv_width);
        let k = rope(s, "k", k, kv_heads);
        let k = s.op(&format!("k_flat.{i}"), &format!("reshape shape={}", list(&[kv_width, tokens])), &[k]);
        let v = product(s, "v", kv_width);
        let keys = s.tensor(&format!("cache_k.{i}"), DType::F16, &[kv_width, context], cache);
        let values = s.tensor(&format!("cache_v.{i}"), DType::F16, &[kv_width, context], cache);
        s.op(&format!("k_set.{i}"), "set_rows", &[keys, k, inputs.rows]);
        s.op(&format!("v_set.{i}"), "set_rows", &[values, v, inputs.rows]);
        let keys = self.window(s, &format!("k_view.{i}"), keys);
        let values = self.window(s, &format!("v_view.{i}"), values);
        let q = s.op(&format!("q_perm.{i}"), "permute axes=[0,2,1,3]", &[q]);
        self.attend(s, &i.to_string(), q, keys, values, Some(inputs.mask))
    }

    /// Rows of a cache with heads as third axis, by strides alone.
    fn window(&self, s: &mut Sheet, name: &str, cache: Tensor) -> Tensor {
        let [element, row, ..] = s.strides(cache);
        let head = element * self.dim;
        let (shape, strides) = ([self.dim, self.window, self.kv_heads], [element, row, head, head * self.kv_heads]);
        s.op(name, &format!("view shape={} strides={}", list(&shape), list(&strides)), &[cache])
    }

    /// q `[dim, n, heads]`, k and v `[dim, kv, kv_heads]` → `[heads · dim, n]`.
    pub(super) fn attend(
        &self,
        s: &mut Sheet,
        i: &str,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Option<Tensor>,
    ) -> Tensor {
        let tokens = s.shape(q)[1];
        let with_mask = |operands: &[Tensor]| operands.iter().copied().chain(mask).collect::<Vec<_>>();
        let merged = if self.fused {
            let op = format!("flash_attn_ext {}", self.scale());
            s.op(&format!("attended_heads.{i}"), &op, &with_mask(&[q, keys, values]))
        } else {
            let scores = s.op(&format!("scores.{i}"), "mul_mat", &[keys, q]);
            let op = format!("soft_max {}", self.scale());
            let weights = s.op(&format!("weights.{i}"), &op, &with_mask(&[scores]));
            let values = s.op(&format!("v_transposed.{i}"), "transpose", &[values]);
            let mixed = s.op(&format!("mixed.{i}"), "mul_mat", &[values, weights]);
            let mixed = s.op(&format!("mixed_perm.{i}"), "permute axes=[0,2,1,3]", &[mixed]);
            s.op(&format!("mixed_cont.{i}"), "cont", &[mixed])
        };
        let shape = list(&[self.dim * self.heads, tokens]);
        s.op(&format!("heads_merged.{i}"), &format!("reshape shape={shape}"), &[merged])
    }
}

/// `x / rms(x) · weights`.
pub(super) fn rms_norm(s: &mut Sheet, name: &str, weight: &str, x: Tensor, backend: &str) -> Tensor {
    let width = s.shape(x)[0];
    let normed = s.op(&format!("{name}_rms"), "rms_norm", &[x]);
    let weight = s.weight(weight, DType::F32, &[width], backend);
    s.op(name, "mul", &[normed, weight])
}
