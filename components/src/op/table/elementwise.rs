//! Rows: functions of one element, or of one element of each of two operands.

#[doc(hidden)]
#[macro_export]
macro_rules! elementwise_ops {
    ($next:tt $callback:ident $($rows:tt)*) => { $crate::next_ops! { $next $callback $($rows)*

    /// `a + b`, with `b` repeated over the axes of `a`. Computed in f32, rounded once to the dtype of `a`.
    add Add(a: One<FLOATS>, b: One<FLOATS>) {} => BINARY { source: "ggml_add", }

    /// `a · b`, with `b` repeated over the axes of `a`. Computed in f32, rounded once to the dtype of `a`.
    mul Mul(a: One<FLOATS>, b: One<FLOATS>) {} => BINARY { source: "ggml_mul", }

    /// `x · by`, computed in f32.
    scale Scale(x: One<FLOATS>) { by: f32 = 1.0 } => UNARY {
        samples: |_| samples::unary(&Op::Scale { by: 0.125 }),
        source: "ggml_scale",
    }

    /// `max(x, 0)`; NaN becomes 0.
    relu Relu(x: One<FLOATS>) {} => UNARY { tolerance: Tolerance::Exact, source: "ggml_relu; Nair and Hinton 2010", }

    /// `x / (1 + exp(-x))`, computed in f32. Minus infinity gives 0 or NaN, infinity gives infinity.
    silu Silu(x: One<FLOATS>) {} => FUNCTION { source: "ggml_silu; Elfwing et al. 2017", }

    /// `ln(1 + e^x)`, computed in f32 as `max(x, 0) + ln(1 + e^-|x|)`, which neither overflows nor loses small results.
    softplus Softplus(x: One<FLOATS>) {} => FUNCTION { source: "ggml_softplus; Dugas et al. 2000", }

    /// `silu(gate) · value`: gate and value are two operands, or the first and second half of each row of one.
    swiglu Swiglu(gate: One<FLOATS>, value: Maybe<FLOATS>) {} => GATED {
        source: "ggml_swiglu, ggml_swiglu_split; Shazeer 2020, arXiv:2002.05202",
    }

    } };
}
