//! Rows: what attention layers need beside products.

#[doc(hidden)]
#[macro_export]
macro_rules! attention_ops {
    ($next:tt $callback:ident $($rows:tt)*) => { $crate::next_ops! { $next $callback $($rows)*

    /// Rotary position embedding: the first `n_dims` elements of each row of `x` `[width, heads, tokens, batch]` (all, if
    /// 0) are rotated in pairs by `position · freq_scale · base^(-2i/n_dims) / factor[i]`; the rest is copied. Angles
    /// are computed in f64, the rotation in f32; a pair with a NaN or an infinity becomes NaN or infinite.
    ///
    /// In the modes with sections a token has four positions, `positions` being `[4 · tokens]`, one kind after the other; pair
    /// i belongs to sector `i mod (sum of sections)`. `vision` rotates the whole row: `n_dims` is half of it (or 0),
    /// pairs are `n_dims` apart, and i counts from the start of its section.
    ///
    /// YaRN, if `ext_factor` is not 0: let `d(β) = n_dims · ln(n_ctx_orig / 2πβ) / (2 ln base)` be the pair that turns β
    /// times in the original context. Below pair `⌊d(beta_fast)⌋` frequencies stay as they were trained, above
    /// `⌈d(beta_slow)⌉` they are scaled by `freq_scale`, and between the two is a ramp; `ext_factor` says how much of this applies.
    /// Results are multiplied by `attn_factor`, and with YaRN by `1 + 0.1 · ln(1/freq_scale)` as well.
    rope Rope(x: One<FLOATS>, positions: One<I32, Positions>, factors: Maybe<F32, Factors>) {
        mode: RopeMode = RopeMode::Normal,
        n_dims: u32 = 0,
        n_ctx_orig: u32 = 0,
        base: f32 = 10000.0,
        freq_scale: f32 = 1.0,
        ext_factor: f32 = 0.0,
        attn_factor: f32 = 1.0,
        beta_fast: f32 = 32.0,
        beta_slow: f32 = 1.0,
        sections: [u32; MAX_DIMS] = [0; MAX_DIMS]
    } => ROWWISE {
        batch: BatchRule::Axis2,
        result: rules::rope,
        samples: |_| samples::rope(),
        bench: |_| samples::bench_rope(),
        source: "ggml_rope_ext, ggml_rope_multi; Su et al. 2021, arXiv:2104.09864; Peng et al. 2023, arXiv:2309.00071",
    }

    /// Attention without a score matrix: `q` `[dk, n, h, b]`, `k` `[dk, kv, hk, b']`, `v` `[dv, kv, hk, b']` →
    /// f32 `[dv, h, n, b]`. Query (i, head, b) gets the mean of the rows of `v`, weighted by the softmax over j of
    /// `score(j) = q·k_j · scale + slope(head) · mask[j, i]`. Heads and batches of `k` and `v` serve groups of neighbours, as
    /// in `mul_mat`; `mask` `[kv, n or more, …]` is repeated over heads and batches by remainder, as in `soft_max`.
    ///
    /// `logit_softcap` c, if not 0, makes the first term `c · tanh(q·k_j · scale / c)`. `max_bias`, if not 0, is ALiBi: with
    /// n the largest power of two up to h, the slope is `2^(-max_bias · (head+1) / n)` for the first n heads and
    /// `2^(-max_bias · (2(head-n)+1) / 2n)` for the others; otherwise it is 1. `sinks` (one a head) join the softmax as one more
    /// score, without a row of `v`.
    ///
    /// A key whose mask is minus infinity takes no part, whatever `k` and `v` hold there. A query without keys, or with
    /// scores of minus infinity only, gets zeros. Any other NaN among its scores makes its row NaN. Block types of `k` and `v` are
    /// decoded, sums are f32 in blocks.
    flash_attn_ext FlashAttnExt(q: One<F32>, k: One<REALS>, v: One<REALS>, mask: Maybe<FLOATS, Mask>, sinks: Maybe<F32>)
        { scale: f32 = 1.0, max_bias: f32 = 0.0, logit_softcap: f32 = 0.0 } => ROW {
        anchor: Some(1),
        batch: BatchRule::Axis2,
        result: rules::flash_attn_ext,
        flops: |operands, out| {
            let keys = operands[1].shape.0[1].saturating_mul(operands[0].shape.0[0].saturating_add(out.shape.0[0]));
            out.shape.rows().saturating_mul(keys).saturating_mul(2)
        },
        tolerance: Tolerance::WeightedMean,
        samples: |_| samples::flash_attn_ext(),
        bench: |_| samples::bench_flash_attn_ext(),
        source: "ggml_flash_attn_ext; Dao et al. 2022, arXiv:2205.14135; Press et al. 2021, arXiv:2108.12409",
    }

    } };
}
