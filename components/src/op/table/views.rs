//! Rows: other looks at the same memory; they compute nothing.

#[doc(hidden)]
#[macro_export]
macro_rules! view_ops {
    ($next:tt $callback:ident $($rows:tt)*) => { $crate::next_ops! { $next $callback $($rows)*

    /// A window of `x`: `offset` bytes from its first element, with its own shape and strides (packed by default).
    view View(x: One<ANY>) { offset: u64 = 0, shape: Shape = Shape([1; MAX_DIMS]), strides: Option<Strides> = None } => VIEW {
        result: rules::view,
        samples: |_| samples::view(),
        source: "ggml_view_4d",
    }

    /// The memory of a packed `x` under another shape.
    reshape Reshape(x: One<ANY>) { shape: Shape = Shape([1; MAX_DIMS]) } => VIEW {
        result: rules::reshape,
        samples: |_| samples::reshape(),
        source: "ggml_reshape_4d",
    }

    /// `x` with its axes reordered: axis i becomes axis `axes[i]`.
    permute Permute(x: One<ANY>) { axes: [u32; MAX_DIMS] = [0, 1, 2, 3] } => VIEW {
        result: rules::permute,
        samples: |_| samples::permute(),
        source: "ggml_permute",
    }

    /// `x` with axes 0 and 1 swapped.
    transpose Transpose(x: One<ANY>) {} => VIEW {
        result: rules::transpose,
        samples: |_| samples::transpose(),
        source: "ggml_transpose",
    }

    } };
}
