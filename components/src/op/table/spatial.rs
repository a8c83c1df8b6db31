//! Rows: convolutions and pooling.

#[doc(hidden)]
#[macro_export]
macro_rules! spatial_ops {
    ($next:tt $callback:ident $($rows:tt)*) => { $crate::next_ops! { $next $callback $($rows)*

    /// The patches of `x` that a kernel meets, one a row, so that a product with the kernel's rows is a convolution. Kernel
    /// `[KW,KH,IC,OC]`, of which only the shape counts, over x `[W,H,IC,N]` → `[IC·KH·KW, OW, OH, N]` of `dtype`, a plain
    /// float: element kx + KW·(ky + KH·c) is `x[ox·s0 + kx·d0 − p0, oy·s1 + ky·d1 − p1, c, n]`, and 0 on padding, with
    /// `OW = (W + 2·p0 − d0·(KW−1) − 1)/s0 + 1` rounded down and OH likewise. With `is_2d=false` kernel `[KW,IC,OC]` over x
    /// `[W,IC,N]` → `[IC·KW, OW, N]`, and s1, p1 and d1 are not looked at. Elements are moved, and rounded once to `dtype`.
    im2col Im2col(kernel: One<FLOATS>, x: One<FLOATS>)
        { s0: u32 = 1, s1: u32 = 1, p0: u32 = 0, p1: u32 = 0, d0: u32 = 1, d1: u32 = 1, is_2d: bool = true, dtype: DType = DType::F32 } => ROW {
        result: rules::im2col,
        samples: |_| samples::im2col(),
        bench: |_| samples::bench_im2col(),
        source: "ggml_im2col",
    }

    /// Convolution along one axis: kernel `[K,IC,OC]` over x `[L,IC,N]` → f32 `[OL,OC,N]`,
    /// `y[o,co,n] = Σ kernel[k,c,co] · x[o·s0 + k·d0 − p0, c, n]`, with `OL = (L + 2·p0 − d0·(K−1) − 1)/s0 + 1` rounded down.
    /// Padding adds nothing, not even where a kernel is NaN or infinite; without channels the result is 0. Accumulated in
    /// f32 over short runs and wider over those, so products beyond f32 are infinite.
    conv_1d Conv1d(kernel: One<FLOATS>, x: One<FLOATS>) { s0: u32 = 1, p0: u32 = 0, d0: u32 = 1 } => CONV {
        result: rules::conv_1d,
        flops: |operands, out| rules::conv_flops(operands, out, 2),
        samples: |_| samples::conv_1d(),
        bench: |_| samples::bench_conv_1d(),
        source: "ggml_conv_1d",
    }

    /// Convolution along two axes: kernel `[KW,KH,IC,OC]` over x `[W,H,IC,N]` → f32 `[OW,OH,OC,N]`,
    /// `y[ox,oy,co,n] = Σ kernel[kx,ky,c,co] · x[ox·s0 + kx·d0 − p0, oy·s1 + ky·d1 − p1, c, n]`, with
    /// `OW = (W + 2·p0 − d0·(KW−1) − 1)/s0 + 1` rounded down and OH likewise. Numerics as for `conv_1d`.
    conv_2d Conv2d(kernel: One<FLOATS>, x: One<FLOATS>)
        { s0: u32 = 1, s1: u32 = 1, p0: u32 = 0, p1: u32 = 0, d0: u32 = 1, d1: u32 = 1 } => CONV {
        result: rules::conv_2d,
        flops: |operands, out| rules::conv_flops(operands, out, 3),
        samples: |_| samples::conv_2d(),
        bench: |_| samples::bench_conv_2d(),
        source: "ggml_conv_2d",
    }

    /// Convolution of each channel with a kernel of its own: kernel `[KW,KH,1,C]` over x `[W,H,C,N]` → f32 `[OW,OH,C,N]`.
    /// Sizes and numerics as for `conv_2d`.
    conv_2d_dw Conv2dDw(kernel: One<FLOATS>, x: One<FLOATS>)
        { s0: u32 = 1, s1: u32 = 1, p0: u32 = 0, p1: u32 = 0, d0: u32 = 1, d1: u32 = 1 } => CONV {
        result: rules::conv_2d_dw,
        flops: |operands, out| rules::conv_flops(operands, out, 3),
        samples: |_| samples::conv_2d_dw(),
        bench: |_| samples::bench_conv_2d_dw(),
        source: "ggml_conv_2d_dw; Howard et al. 2017, arXiv:1704.04861",
    }

    /// The transpose of `conv_1d`: each element of x `[L,IC,N]` adds a kernel `[K,OC,IC]` to the result, f32 `[OL,OC,N]`:
    /// `y[i·s0 + k·d0 − p0, co, n] += kernel[k,co,c] · x[i,c,n]`, with `OL = (L−1)·s0 + d0·(K−1) + 1 − 2·p0`. Elements that
    /// nothing reaches are 0. Numerics as for `conv_1d`.
    conv_transpose_1d ConvTranspose1d(kernel: One<FLOATS>, x: One<FLOATS>) { s0: u32 = 1, p0: u32 = 0, d0: u32 = 1 } => CONV {
        result: rules::conv_transpose_1d,
        flops: |operands, _| rules::conv_transpose_flops(operands, 2),
        samples: |_| samples::conv_transpose_1d(),
        bench: |_| samples::bench_conv_transpose_1d(),
        source: "ggml_conv_transpose_1d",
    }

    /// The transpose of `conv_2d` with one stride for both axes and no padding: kernel `[KW,KH,OC,IC]`, x `[W,H,IC,N]` →
    /// f32 `[(W−1)·stride + KW, (H−1)·stride + KH, OC, N]`. Numerics as for `conv_transpose_1d`.
    conv_transpose_2d ConvTranspose2d(kernel: One<FLOATS>, x: One<FLOATS>) { stride: u32 = 1 } => CONV {
        result: rules::conv_transpose_2d,
        flops: |operands, _| rules::conv_transpose_flops(operands, 3),
        samples: |_| samples::conv_transpose_2d(),
        bench: |_| samples::bench_conv_transpose_2d(),
        source: "ggml_conv_transpose_2d_p0",
    }

    /// The largest element (`op=max`) or the mean (`op=avg`) of each window of `k0` elements along axis 0, every `s0`: x
    /// `[L,…]` → f32 `[(L + 2·p0 − k0)/s0 + 1, …]` rounded down. The largest passes over padding; the mean counts it as zeros
    /// and divides by `k0` everywhere. NaN in a window gives NaN. `p0` is less than `k0`, so that no window is all padding.
    pool_1d Pool1d(x: One<FLOATS>) { op: PoolOp = PoolOp::Max, k0: u32 = 1, s0: u32 = 1, p0: u32 = 0 } => POOL {
        result: rules::pool_1d,
        samples: |_| samples::pool_1d(),
        bench: |_| samples::bench_pool_1d(),
        source: "ggml_pool_1d",
    }

    /// As `pool_1d`, with windows of `k0` by `k1` elements along axes 0 and 1: x `[W,H,…]` →
    /// f32 `[(W + 2·p0 − k0)/s0 + 1, (H + 2·p1 − k1)/s1 + 1, …]`; the mean divides by `k0·k1`.
    pool_2d Pool2d(x: One<FLOATS>)
        { op: PoolOp = PoolOp::Max, k0: u32 = 1, k1: u32 = 1, s0: u32 = 1, s1: u32 = 1, p0: u32 = 0, p1: u32 = 0 } => POOL {
        result: rules::pool_2d,
        samples: |_| samples::pool_2d(),
        bench: |_| samples::bench_pool_2d(),
        source: "ggml_pool_2d",
    }

    } };
}
