//! Three plain calls of the `gemm` crate, with biases and relu in a loop after each.
#![expect(unsafe_code, reason = "the crate's only function takes pointers")]

use gemm::{Parallelism, gemm};

use crate::{Failure, Layer, Policy, Side};

/// The policy, and buffers of the activations between its layers.
pub(crate) struct GemmCalls<'a> {
    policy: &'a Policy,
    batch: usize,
    between: Vec<Vec<f32>>,
}

impl<'a> GemmCalls<'a> {
    pub(crate) fn new(policy: &'a Policy, batch: usize) -> Self {
        let inner = &policy.layers[..policy.layers.len() - 1];
        let between = inner.iter().map(|layer| vec![0.0; layer.m * batch]).collect();
        Self { policy, batch, between }
    }
}

impl Side for GemmCalls<'_> {
    fn name(&self) -> &'static str {
        "gemm"
    }

    fn run(&mut self, x: &[f32], y: &mut [f32]) -> Result<(), Failure> {
        for (index, layer) in self.policy.layers.iter().enumerate() {
            let (before, behind) = self.between.split_at_mut(index);
            let from = before.last().map_or(x, Vec::as_slice);
            let to = behind.first_mut().map_or(&mut *y, Vec::as_mut_slice);
            product(layer, self.batch, from, to)?;
            for row in to.chunks_exact_mut(layer.m) {
                for (value, bias) in row.iter_mut().zip(&layer.bias) {
                    let sum = *value + bias;
                    *value = if layer.relu { sum.max(0.0) } else { sum };
                }
            }
        }
        Ok(())
    }
}

/// `to` = `from` times the layer's weights, on one thread.
fn product(layer: &Layer, n: usize, from: &[f32], to: &mut [f32]) -> Result<(), Failure> {
    let (m, k) = (layer.m, layer.k);
    if layer.weights.len() != m * k || from.len() != k * n || to.len() != m * n {
        return Err("buffers of other sizes than the layer's".into());
    }
    let (rows, columns) = (isize::try_from(m)?, isize::try_from(k)?);
    // Rows of activations are the columns of a column-major matrix.
    // SAFETY: the three matrices have the sizes that were just checked, packed, and the result is borrowed from none of the others.
    unsafe {
        gemm(
            m,
            n,
            k,
            to.as_mut_ptr(),
            rows,
            1,
            false,
            layer.weights.as_ptr(),
            1,
            columns,
            from.as_ptr(),
            columns,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
    Ok(())
}
