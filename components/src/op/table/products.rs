//! Rows: matrix products.

#[doc(hidden)]
#[macro_export]
macro_rules! product_ops {
    ($next:tt $callback:ident $($rows:tt)*) => { $crate::next_ops! { $next $callback $($rows)*

    /// Matrix product `[k,m] × [k,n] → [m,n]`: element (i, j) is the dot product of row i of `weights` with row j of
    /// `x`. Outer axes of `weights` serve groups of neighbours: plane p of `x` uses plane `p / (x planes / weights planes)`, as
    /// grouped-query attention needs it (`add` and its kind repeat by remainder instead). Accumulated in f32. With block
    /// weights the rows of `x` may be rounded to 8-bit blocks first, and a row of `x` that is not finite may give NaN
    /// throughout.
    mul_mat MulMat(weights: One<REALS>, x: One<FLOATS>) {} => ROW {
        anchor: Some(0),
        batch: BatchRule::Axis1,
        result: rules::mul_mat,
        flops: |operands, out| 2 * operands[0].shape.0[0] * out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::QuantizedProduct,
        samples: |_| samples::mul_mat(),
        bench: |_| samples::bench_mul_mat(),
        source: "ggml_mul_mat",
    }

    /// Products with chosen planes (a mixture of experts): `experts` `[k, m, e]`, `x` `[k, u', t]`, `ids` `[u, t]` → f32
    /// `[m, u, t]`: element (i, s, t) is the dot product of row i of plane `ids[s, t]` with row (s mod u', t) of `x`; u' divides
    /// u, so that a token's one row can serve all its experts. Accuracy is that of `mul_mat`. An id outside of `0..e` is an
    /// error at run time, before memory is touched.
    mul_mat_id MulMatId(experts: One<REALS>, x: One<FLOATS>, ids: One<IDS, PlaneIndices>) {} => ROW {
        anchor: Some(0),
        batch: BatchRule::Axis2,
        result: rules::mul_mat_id,
        flops: |operands, out| 2 * operands[0].shape.0[0] * out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::QuantizedProduct,
        samples: |_| samples::mul_mat_id(),
        bench: |_| samples::bench_mul_mat_id(),
        source: "ggml_mul_mat_id; Shazeer et al. 2017, arXiv:1701.06538",
    }

    } };
}
