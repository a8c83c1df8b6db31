//! Rows: gated recurrent steps. The products with the weights are the caller's, so that one product serves all steps' inputs.

#[doc(hidden)]
#[macro_export]
macro_rules! recurrent_ops {
    ($next:tt $callback:ident $($rows:tt)*) => { $crate::next_ops! { $next $callback $($rows)*

    /// A step of long short-term memory: `gates` `[4h, n]` (`W·x + U·hidden + bias`, in the order input, forget, cell,
    /// output), `cell` `[h, n]` → `[h, n, 2]`. With i, f, o the sigmoids of their gates and g the tanh of its, plane 1 is the new
    /// cell `f · cell + i · g`, and plane 0 the new hidden state `o · tanh(new cell)`. Computed in f32; gates of ± infinity
    /// are shut or open.
    lstm Lstm(gates: One<F32>, cell: One<F32>) {} => ROW {
        result: rules::lstm,
        flops: |_, out| 12 * out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::Sum,
        samples: |_| samples::lstm(),
        bench: |_| samples::bench_lstm(),
        source: "torch.nn.LSTMCell; Hochreiter and Schmidhuber 1997",
    }

    /// A step of a gated recurrent unit: `x_gates` (`W·x + bias`) and `h_gates` (`U·hidden + bias`), both `[3h, n]` in the order
    /// reset, update, new, and `hidden` `[h, n]` → `[h, n]`: with r and z the sigmoids of the sums of their gates and
    /// `new = tanh(x_new + r · h_new)`, the result is `(1 - z) · new + z · hidden`. Computed in f32.
    gru Gru(x_gates: One<F32>, h_gates: One<F32>, hidden: One<F32>) {} => ROW {
        overwrites: &[2],
        result: rules::gru,
        flops: |_, out| 24 * out.shape.elements().unwrap_or(0),
        tolerance: Tolerance::Sum,
        samples: |_| samples::gru(),
        bench: |_| samples::bench_gru(),
        source: "torch.nn.GRUCell; Cho et al. 2014, arXiv:1406.1078",
    }

    } };
}
