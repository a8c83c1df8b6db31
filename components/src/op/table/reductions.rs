//! Rows: norms, sums and whatever else looks at a whole row.

#[doc(hidden)]
#[macro_export]
macro_rules! reduction_ops {
    ($next:tt $callback:ident $($rows:tt)*) => { $crate::next_ops! { $next $callback $($rows)*

    /// Each row divided by the root of its mean square: `x / sqrt(mean(x²) + eps)`. The sum is accumulated wider than f32.
    rms_norm RmsNorm(x: One<F32>) { eps: f32 = 1e-5 } => ROWWISE {
        result: rules::normalized,
        source: "ggml_rms_norm; Zhang and Sennrich 2019, arXiv:1910.07467",
    }

    /// Each row with mean 0 and variance 1: `(x - mean) / sqrt(variance + eps)`; the variance divides by the row's length. Sums
    /// are accumulated in two passes, wider than f32, so that a large mean costs no digits. A row that holds a NaN or an
    /// infinity is NaN throughout; with `eps` 0, so is a row of equal elements.
    norm Norm(x: One<F32>) { eps: f32 = 1e-5 } => ROWWISE {
        result: rules::normalized,
        source: "ggml_norm; Ba et al. 2016, arXiv:1607.06450",
    }

    /// As `norm`, over groups of channels: `x` is `[width, height, channels, batch]`, the channels are cut into groups of
    /// `ceil(channels / n_groups)` neighbours (the last may be smaller), and each group of each item of the batch has a
    /// mean and a variance of its own. NaN and infinities spread over their group.
    group_norm GroupNorm(x: One<F32>) { n_groups: u32 = 1, eps: f32 = 1e-6 } => ROWWISE {
        result: rules::group_norm,
        samples: |_| samples::group_norm(),
        bench: |_| samples::bench_group_norm(),
        source: "ggml_group_norm; Wu and He 2018, arXiv:1803.08494",
    }

    /// Each row divided by its length: `x / max(sqrt(sum(x²)), eps)`. The sum is accumulated wider than f32. A row with a
    /// NaN is NaN throughout; in a row with an infinity, finite elements become 0 and infinite ones NaN. With `eps` 0 a row of
    /// zeros is NaN.
    l2_norm L2Norm(x: One<F32>) { eps: f32 = 1e-12 } => ROWWISE {
        result: rules::normalized,
        source: "ggml_l2_norm",
    }

    /// Softmax of each row of `x · scale + slope · mask`. The mask is repeated over the outer axes. Slopes are 1, unless
    /// `max_bias` is positive (ALiBi): with n the largest power of two up to the number of heads (axis 2), head h has
    /// the slope `2^(-max_bias·(h+1)/n)`, and from head n on `2^(-max_bias·(2(h-n)+1)/2n)`. A sink is one more score of
    /// every row of its head, neither scaled nor masked: it takes its share of the sum and has no place in the result. A
    /// row that is all minus infinity, sink included, gives zeros, not NaN. A row (or sink) with a NaN or plus infinity
    /// is NaN throughout.
    soft_max SoftMax(x: One<F32>, mask: Maybe<FLOATS, Mask>, sinks: Maybe<F32>) { scale: f32 = 1.0, max_bias: f32 = 0.0 } => ROWWISE {
        result: rules::soft_max,
        samples: |_| samples::soft_max(),
        source: "ggml_soft_max_ext, ggml_soft_max_add_sinks; Press et al. 2021, arXiv:2108.12409; Xiao et al. 2023, arXiv:2309.17453",
    }

    /// `x` with minus infinity right of the diagonal: element `(i0, i1)` of every plane, where `i0 > n_past + i1`. The rest
    /// is copied, NaN included.
    diag_mask_inf DiagMaskInf(x: One<F32>) { n_past: u32 = 0 } => ROWWISE {
        result: rules::like_first,
        flops: |_, _| 0,
        tolerance: Tolerance::Exact,
        samples: |_| samples::diag_mask_inf(),
        bench: |_| samples::bench_diag_mask_inf(),
        source: "ggml_diag_mask_inf",
    }

    /// The index of each row's largest element, `[d0,d1,d2,d3]` → `[d1,d2,d3]`; of equals the first, and -0 equals 0. NaN is
    /// passed over. A row without a number (empty, or only NaN) gives -1, which no table has as a row.
    argmax Argmax(x: One<F32>) {} => REDUCTION {
        result: rules::argmax,
        tolerance: Tolerance::Exact,
        source: "ggml_argmax",
    }

    /// The indices that sort each row. Equals (-0 equals 0) stay in the order of their indices, and NaN comes last, in both
    /// orders.
    argsort Argsort(x: One<F32>) { order: SortOrder = SortOrder::Ascending } => REDUCTION {
        result: rules::argsort,
        tolerance: Tolerance::Exact,
        samples: |_| samples::argsort(),
        bench: samples::bench_sorting,
        source: "ggml_argsort",
    }

    /// The indices of each row's `k` largest elements, `[d0,d1,d2,d3]` → `[k,d1,d2,d3]`, the largest first: the beginning of
    /// what `argsort` gives in descending order.
    top_k TopK(x: One<F32>) { k: u32 = 1 } => REDUCTION {
        result: rules::top_k,
        tolerance: Tolerance::Exact,
        samples: |_| samples::top_k(),
        bench: |_| samples::bench_top_k(),
        source: "ggml_top_k",
    }

    /// The sum of all elements, accumulated wider than f32 in an order that depends on the shape and layout alone; of no
    /// elements, 0. Infinities of both signs give NaN.
    sum Sum(x: One<F32>) {} => REDUCTION { result: rules::sum, source: "ggml_sum", }

    /// The sum of each row, accumulated wider than f32.
    sum_rows SumRows(x: One<F32>) {} => REDUCTION { source: "ggml_sum_rows", }

    /// The mean of each row, accumulated wider than f32; of an empty row, NaN.
    mean Mean(x: One<F32>) {} => REDUCTION { source: "ggml_mean", }

    /// Running sums along each row: element i is the sum of elements 0 to i, accumulated wider than f32 and rounded once. A
    /// NaN stays to the end of its row, and so does an infinity, until one of the other sign makes it NaN.
    cumsum Cumsum(x: One<F32>) {} => ROWWISE {
        result: rules::like_first,
        flops: per_input,
        tolerance: Tolerance::Linear,
        source: "ggml_cumsum",
    }

    } };
}
