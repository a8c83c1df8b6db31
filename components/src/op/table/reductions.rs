//! Rows: norms, sums and whatever else looks at a whole row.

#[doc(hidden)]
#[macro_export]
macro_rules! reduction_ops {
    ($next:tt $callback:ident $($rows:tt)*) => { $crate::next_ops! { $next $callback $($rows)*

    /// Each row divided by the root of its mean square: `x / sqrt(mean(x²) + eps)`. The sum is accumulated wider than f32.
    rms_norm RmsNorm(x: One<F32>) { eps: f32 = 1e-5 } => ROWWISE {
        result: rules::rms_norm,
        source: "ggml_rms_norm; Zhang and Sennrich 2019, arXiv:1910.07467",
    }

    /// Softmax of each row of `x · scale + mask`. The mask is repeated over the outer axes. A row that is
    /// all minus infinity gives zeros, not NaN.
    soft_max SoftMax(x: One<F32>, mask: Maybe<FLOATS, Mask>) { scale: f32 = 1.0 } => ROWWISE {
        result: rules::soft_max,
        samples: |_| samples::soft_max(),
        source: "ggml_soft_max_ext",
    }

    /// The sum of each row, accumulated wider than f32.
    sum_rows SumRows(x: One<F32>) {} => REDUCTION { source: "ggml_sum_rows", }

    } };
}
