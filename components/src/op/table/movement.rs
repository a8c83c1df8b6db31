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

    } };
}
