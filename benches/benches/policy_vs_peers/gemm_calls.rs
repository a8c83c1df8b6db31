//! Three plain calls of the `gemm` crate, without biases and activations: what the products cost that way.
#![expect(unsafe_code, reason = "the crate's only function takes pointers")]

use gemm::{Parallelism, gemm};

use super::Policy;

/// Buffers of the activations between the calls.
pub(crate) struct GemmCalls<'a> {
    policy: &'a Policy,
    rows: usize,
    between: Vec<Vec<f32>>,
}

impl<'a> GemmCalls<'a> {
    pub(crate) fn new(policy: &'a Policy, rows: usize) -> Self {
        let between = policy.layers.iter().map(|layer| vec![0.0; layer.m * rows]).collect();
        Self { policy, rows, between }
    }

    /// The products of all layers, on one thread. No policy's values: nothing is added or applied in between.
    pub(crate) fn run(&mut self, x: &[f32]) -> &[f32] {
        for (index, layer) in self.policy.layers.iter().enumerate() {
            let (before, rest) = self.between.split_at_mut(index);
            let from = before.last().map_or(x, Vec::as_slice);
            let (m, k, n, to) = (layer.m, layer.k, self.rows, &mut rest[0]);
            assert!(from.len() == k * n && to.len() == m * n && layer.weights.len() == m * k);
            let stride = |stride: usize| isize::try_from(stride).expect("small");
            // Rows of activations are columns of a column-major matrix, and rows of weights are rows.
            // SAFETY: the three matrices have the sizes that were just checked, packed, and the result is none of the others.
            unsafe {
                gemm(
                    m,
                    n,
                    k,
                    to.as_mut_ptr(),
                    stride(m),
                    1,
                    false,
                    layer.weights.as_ptr(),
                    1,
                    stride(k),
                    from.as_ptr(),
                    stride(k),
                    1,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    Parallelism::None,
                );
            }
        }
        self.between.last().map_or(&[], Vec::as_slice)
    }
}
