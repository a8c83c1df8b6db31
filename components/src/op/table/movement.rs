//! Rows: copies, repetition, and what else moves elements.

#[doc(hidden)]
#[macro_export]
macro_rules! movement_ops {
    ($next:tt $callback:ident $($rows:tt)*) => { $crate::next_ops! { $next $callback $($rows)*

    /// Copies `source` into `target`, converting the dtype, elements in order of their linear index; the result is the target.
    cpy Cpy(source: One<ANY>, target: One<ANY>) {} => MOVE {
        writes: Some(1),
        result: rules::cpy,
        samples: |_| samples::cpy(),
        bench: samples::bench_binary,
        source: "ggml_cpy",
    }

    /// A packed copy of `x`.
    cont Cont(x: One<ANY>) {} => MOVE { source: "ggml_cont", }

    /// `x` repeated along every axis to `shape`.
    repeat Repeat(x: One<PLAIN>) { shape: Shape = Shape([1; MAX_DIMS]) } => MOVE {
        result: rules::repeat,
        samples: |_| samples::repeat(),
        bench: |_| samples::bench_repeat(),
        source: "ggml_repeat",
    }

    /// `b` behind `a` along axis `dim`; both have one dtype, and the other axes are equal.
    concat Concat(a: One<ANY>, b: One<ANY>) { dim: u32 = 0 } => MOVE {
        result: rules::concat,
        samples: |_| samples::concat(),
        bench: |_| samples::bench_concat(),
        source: "ggml_concat",
    }

    /// `x` with zeros around: `left` before its first and `right` behind its last element along each axis.
    pad Pad(x: One<PLAIN>) { right: [u32; MAX_DIMS] = [0; MAX_DIMS], left: [u32; MAX_DIMS] = [0; MAX_DIMS] } => MOVE {
        result: rules::pad,
        samples: |_| samples::pad(),
        bench: |_| samples::bench_pad(),
        source: "ggml_pad, ggml_pad_ext",
    }

    /// `x` moved along each axis, what leaves at one end coming in at the other: element i goes to `(i + shift) mod length`.
    /// Shifts may be negative and longer than the axis.
    roll Roll(x: One<PLAIN>) { shifts: [i32; MAX_DIMS] = [0; MAX_DIMS] } => MOVE {
        samples: |_| samples::roll(),
        bench: |_| samples::bench_roll(),
        source: "ggml_roll",
    }

    /// `x` stretched (or shrunk, without smoothing) to the shape `ne`.
    ///
    /// Mode `nearest` takes element `floor(i · old / new)` along every axis, with aligned corners `floor(i · (old - 1) /
    /// (new - 1))` along axes 0 and 1. Mode `bilinear` does so along axes 2 and 3, and along axes 0 and 1 takes the weighted
    /// mean of the elements below and above position `(i + 1/2) · old / new - 1/2` (centres of cells; with aligned corners
    /// `i · (old - 1) / (new - 1)`), kept between the first and the last. Corners are aligned only along axes that are longer
    /// than 1 before and after. Positions are exact, sums are f32. NaN and infinities spread from each of the four elements,
    /// even at weight 0.
    upscale Upscale(x: One<FLOATS>) {
        ne: Shape = Shape([1; MAX_DIMS]), mode: UpscaleMode = UpscaleMode::Nearest, align_corners: bool = false
    } => ROW {
        result: rules::upscale,
        flops: |_, out| 8 * out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::Linear,
        samples: |_| samples::upscale(),
        bench: |_| samples::bench_upscale(),
        source: "ggml_upscale, ggml_upscale_ext, ggml_interpolate",
    }

    /// `x` as another dtype of real numbers, packed; each element is decoded and rounded as the dtype's codec says. Rows must
    /// be whole blocks of the new dtype.
    cast Cast(x: One<REALS>) { dtype: DType = DType::F32 } => MOVE {
        result: rules::cast,
        samples: |_| samples::cast(),
        bench: |_| samples::bench_cast(),
        source: "ggml_cast",
    }

    /// The numbers from `start` to just before `stop`, `step` apart: `start + i · step` for each i below
    /// `ceil((stop - start) / step)`, all computed in f32. Empty where `step` leads away from `stop`.
    arange Arange() { start: f32 = 0.0, stop: f32 = 1.0, step: f32 = 1.0 } => ROW {
        result: rules::arange,
        flops: |_, out| 2 * out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::Sum,
        samples: |_| samples::arange(),
        bench: |_| samples::bench_arange(),
        source: "ggml_arange",
    }

    /// Sinusoidal embedding of time steps, `[n]` → `[dim, n]`: with `half = dim / 2` rounded down, element j below `half` is
    /// `cos(t · max_period^(-j / half))`, element `half + j` the sine of the same angle; an odd last element is 0. Angles are
    /// f64. A step that is NaN or infinite gives NaN.
    timestep_embedding TimestepEmbedding(timesteps: One<F32, Positions>) { dim: u32 = 2, max_period: u32 = 10_000 } => ROW {
        result: rules::timestep_embedding,
        flops: |_, out| 20 * out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::Sum,
        samples: |_| samples::timestep_embedding(),
        bench: |_| samples::bench_timestep_embedding(),
        source: "ggml_timestep_embedding; Vaswani et al. 2017, arXiv:1706.03762",
    }

    } };
}
