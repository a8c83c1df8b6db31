//! What attention layers need beside products.

use super::{Sample, sample};
use crate::op::{Op, RopeMode};

pub(crate) fn rope() -> Vec<Sample> {
    let mut samples = Vec::new();
    for mode in [RopeMode::Normal, RopeMode::Neox] {
        let whole = Op::Rope { mode, n_dims: 0, base: 10_000.0, freq_scale: 1.0 };
        let part = Op::Rope { mode, n_dims: 6, base: 500.0, freq_scale: 0.5 };
        samples.push(sample(whole.clone(), &[[2, 1, 1, 1], [1, 1, 1, 1]]));
        samples.push(sample(whole.clone(), &[[64, 3, 5, 1], [5, 1, 1, 1]]));
        samples.push(sample(whole, &[[8, 3, 0, 1], [0, 1, 1, 1]]));
        samples.push(sample(part.clone(), &[[10, 3, 5, 2], [5, 1, 1, 1]]));
        samples.push(sample(part, &[[10, 3, 5, 2], [5, 1, 1, 1], [3, 1, 1, 1]]));
    }
    samples
}

/// The heads of a prompt.
pub(crate) fn bench_rope(op: &Op) -> Vec<Sample> {
    vec![sample(op.clone(), &[[64, 9, 512, 1], [512, 1, 1, 1]])]
}
