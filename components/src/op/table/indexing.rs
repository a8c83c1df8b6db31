//! Rows: rows by index, read and written.

#[doc(hidden)]
#[macro_export]
macro_rules! indexing_ops {
    ($next:tt $callback:ident $($rows:tt)*) => { $crate::next_ops! { $next $callback $($rows)*

    /// Rows of `table` by index, decoded to f32 (integers stay integers). An index outside the table is an error at
    /// run time, before memory is touched.
    get_rows GetRows(table: One<ANY>, ids: One<IDS, Indices>) {} => ROW {
        anchor: Some(0),
        batch: BatchRule::Zero,
        result: rules::get_rows,
        samples: |_| samples::get_rows(),
        bench: |_| samples::bench_get_rows(),
        source: "ggml_get_rows",
    }

    /// Writes `rows` into `target` at the rows that `ids` name, encoding f32 to its dtype; the result is the target.
    /// Integers go into a target of the same dtype, bit for bit. When an id occurs twice, the last row wins. An id outside the target is an error at run time, before memory is touched.
    set_rows SetRows(target: One<ANY>, rows: One<F32_OR_INTEGER>, ids: One<IDS, Indices>) {} => ROW {
        writes: Some(0),
        result: rules::set_rows,
        samples: |_| samples::set_rows(),
        bench: |_| samples::bench_set_rows(),
        source: "ggml_set_rows",
    }

    /// `a + b[ids]`: to row (s, t) of `a` `[m, u, t]` the row `ids[s, t]` of `b` `[m, e]` is added (biases of a mixture of
    /// experts), in f32. An id outside of `b` is an error at run time, before memory is touched.
    add_id AddId(a: One<F32>, b: One<F32>, ids: One<IDS, SecondIndices>) {} => ROW {
        overwrites: &[0],
        result: rules::add_id,
        flops: per_element,
        tolerance: Tolerance::Rounding,
        samples: |_| samples::add_id(),
        bench: |_| samples::bench_add_id(),
        source: "ggml_add_id",
    }

    } };
}
