//! Rows: functions of one element, or of one element of each of two operands.

#[doc(hidden)]
#[macro_export]
macro_rules! elementwise_ops {
    ($next:tt $callback:ident $($rows:tt)*) => { $crate::next_ops! { $next $callback $($rows)*

    /// `a + b`, with `b` repeated over the axes of `a`. Computed in f32, rounded once to the dtype of `a`.
    add Add(a: One<FLOATS>, b: One<FLOATS>) {} => BINARY { source: "ggml_add", }

    /// `a - b`, with `b` repeated over the axes of `a`. Computed in f32, rounded once to the dtype of `a`.
    sub Sub(a: One<FLOATS>, b: One<FLOATS>) {} => BINARY { source: "ggml_sub", }

    /// `a · b`, with `b` repeated over the axes of `a`. Computed in f32, rounded once to the dtype of `a`.
    mul Mul(a: One<FLOATS>, b: One<FLOATS>) {} => BINARY { source: "ggml_mul", }

    /// `a / b`, with `b` repeated over the axes of `a`. Computed in f32, rounded once to the dtype of `a`. Division by zero gives
    /// an infinity whose sign is that of IEEE, and NaN for 0 / 0.
    div Div(a: One<FLOATS>, b: One<FLOATS>) {} => BINARY { source: "ggml_div", }

    /// `x · by`, computed in f32. `by` must not be NaN.
    scale Scale(x: One<FLOATS>) { by: f32 = 1.0 } => UNARY {
        result: rules::scale,
        samples: |_| samples::unary(&Op::Scale { by: 0.125 }),
        source: "ggml_scale",
    }

    /// `x²`, computed in f32.
    sqr Sqr(x: One<FLOATS>) {} => UNARY { source: "ggml_sqr", }

    /// The square root of `x`, computed in f32; NaN below zero, -0 for -0.
    sqrt Sqrt(x: One<FLOATS>) {} => UNARY { source: "ggml_sqrt", }

    /// The natural logarithm of `x`, computed in f32; minus infinity for ±0, NaN below zero.
    log Log(x: One<FLOATS>) {} => FUNCTION { source: "ggml_log", }

    /// `e^x`, computed in f32; infinity where that overflows, 0 for minus infinity.
    exp Exp(x: One<FLOATS>) {} => FUNCTION { source: "ggml_exp", }

    /// `-x`: the sign bit turned, that of zero too.
    neg Neg(x: One<FLOATS>) {} => UNARY { tolerance: Tolerance::Exact, source: "ggml_neg", }

    /// `|x|`.
    abs Abs(x: One<FLOATS>) {} => UNARY { tolerance: Tolerance::Exact, source: "ggml_abs", }

    /// The sign of `x`: -1, 0 (for ±0) or 1; NaN stays NaN.
    sgn Sgn(x: One<FLOATS>) {} => UNARY { tolerance: Tolerance::Exact, source: "ggml_sgn", }

    /// 1 where `x > 0`, 0 elsewhere; NaN becomes 0.
    step Step(x: One<FLOATS>) {} => UNARY { tolerance: Tolerance::Exact, source: "ggml_step", }

    /// `min` below `min`, `max` above `max`, else `x`, so NaN stays NaN. `min` must be at most `max`; both may be infinite. The
    /// defaults bring infinities back to the largest f32.
    clamp Clamp(x: One<FLOATS>) { min: f32 = f32::MIN, max: f32 = f32::MAX } => UNARY {
        result: rules::clamp,
        tolerance: Tolerance::Exact,
        samples: |_| samples::clamp(),
        source: "ggml_clamp",
    }

    /// `max(x, 0)`; NaN becomes 0.
    relu Relu(x: One<FLOATS>) {} => UNARY { tolerance: Tolerance::Exact, source: "ggml_relu; Nair and Hinton 2010", }

    /// `x` above zero, `negative_slope · x` elsewhere, computed in f32. The slope must be finite.
    leaky_relu LeakyRelu(x: One<FLOATS>) { negative_slope: f32 = 0.01 } => UNARY {
        result: rules::leaky_relu,
        samples: |_| samples::leaky_relu(),
        source: "ggml_leaky_relu; Maas et al. 2013",
    }

    /// `x` above zero, `e^x - 1` elsewhere, computed in f32; -1 for minus infinity.
    elu Elu(x: One<FLOATS>) {} => FUNCTION { source: "ggml_elu; Clevert et al. 2015, arXiv:1511.07289", }

    /// `1 / (1 + e^-x)`, computed in f32; 0 for minus infinity, 1 for infinity.
    sigmoid Sigmoid(x: One<FLOATS>) {} => FUNCTION { source: "ggml_sigmoid", }

    /// The hyperbolic tangent of `x`, computed in f32; ±1 for infinities.
    tanh Tanh(x: One<FLOATS>) {} => FUNCTION { source: "ggml_tanh", }

    /// `x · sigmoid(x)`, computed in f32; 0 for minus infinity.
    silu Silu(x: One<FLOATS>) {} => FUNCTION { source: "ggml_silu; Elfwing et al. 2017, arXiv:1702.03118", }

    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))`, computed in f32 as `x` times a sigmoid, so that nothing cancels; 0 for
    /// minus infinity.
    gelu Gelu(x: One<FLOATS>) {} => FUNCTION { source: "ggml_gelu; Hendrycks and Gimpel 2016, arXiv:1606.08415", }

    /// `x · sigmoid(1.702 · x)`, computed in f32; 0 for minus infinity.
    gelu_quick GeluQuick(x: One<FLOATS>) {} => FUNCTION {
        source: "ggml_gelu_quick; Hendrycks and Gimpel 2016, arXiv:1606.08415",
    }

    /// `x/2 · (1 + erf(x / √2))`: `x` times the normal distribution function, computed in f32; 0 for minus infinity.
    gelu_erf GeluErf(x: One<FLOATS>) {} => FUNCTION {
        source: "ggml_gelu_erf; Hendrycks and Gimpel 2016, arXiv:1606.08415",
    }

    /// `(x + 3) / 6`, at least 0 and at most 1, computed in f32; NaN stays NaN.
    hardsigmoid Hardsigmoid(x: One<FLOATS>) {} => UNARY { source: "ggml_hardsigmoid", }

    /// `x · hardsigmoid(x)`, computed in f32; 0 for minus infinity.
    hardswish Hardswish(x: One<FLOATS>) {} => UNARY {
        source: "ggml_hardswish; Howard et al. 2019, arXiv:1905.02244",
    }

    /// `ln(1 + e^x)`, computed in f32 as `max(x, 0) + ln(1 + e^-|x|)`, which neither overflows nor loses small results.
    softplus Softplus(x: One<FLOATS>) {} => FUNCTION { source: "ggml_softplus; Dugas et al. 2000", }

    /// `silu(gate) · value`: gate and value are two operands, or the first and second half of each row of one. Where
    /// `silu(gate)` rounds to 0 in f32, an infinite value gives NaN.
    swiglu Swiglu(gate: One<FLOATS>, value: Maybe<FLOATS>) {} => GATED {
        source: "ggml_swiglu, ggml_swiglu_split; Shazeer 2020, arXiv:2002.05202",
    }

    /// `gelu(gate) · value`: gate and value are two operands, or the first and second half of each row of one. Where
    /// `gelu(gate)` rounds to 0 in f32, an infinite value gives NaN.
    geglu Geglu(gate: One<FLOATS>, value: Maybe<FLOATS>) {} => GATED {
        source: "ggml_geglu, ggml_geglu_split; Shazeer 2020, arXiv:2002.05202",
    }

    /// `relu(gate) · value`: gate and value are two operands, or the first and second half of each row of one. A NaN gate is 0.
    reglu Reglu(gate: One<FLOATS>, value: Maybe<FLOATS>) {} => GATED {
        tolerance: Tolerance::Rounding,
        source: "ggml_reglu, ggml_reglu_split; Shazeer 2020, arXiv:2002.05202",
    }

    } };
}
