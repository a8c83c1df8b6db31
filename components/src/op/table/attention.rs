//! Rows: what attention layers need beside products.

#[doc(hidden)]
#[macro_export]
macro_rules! attention_ops {
    ($next:tt $callback:ident $($rows:tt)*) => { $crate::next_ops! { $next $callback $($rows)*

    /// Rotary position embedding: the first `n_dims` elements of each row of `x` `[width, heads, tokens, batch]` (all, if
    /// 0) are rotated in pairs by `position · freq_scale · base^(-2i/n_dims) / factor[i]`; the rest is copied. Angles
    /// are computed in f64, the rotation in f32.
    rope Rope(x: One<FLOATS>, positions: One<I32, Positions>, factors: Maybe<F32, Factors>)
        { mode: RopeMode = RopeMode::Normal, n_dims: u32 = 0, base: f32 = 10000.0, freq_scale: f32 = 1.0 } => ROWWISE {
        batch: BatchRule::Axis2,
        result: rules::rope,
        samples: |_| samples::rope(),
        bench: |op| samples::bench_rope(op),
        source: "ggml_rope_ext; Su et al. 2021, arXiv:2104.09864",
    }

    } };
}
