//! Norms, sums and whatever else looks at a whole row.

use crate::access::{Evaluated, Operand, rows};

pub(super) fn rms_norm(row: &[f64], eps: f64) -> Vec<f64> {
    let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    row.iter().map(|x| x * scale).collect()
}

pub(super) fn soft_max(operands: &[Operand<'_>], scale: f64) -> Evaluated {
    let x = &operands[0];
    let mut out = Vec::new();
    for at in rows(x.desc.shape) {
        let mut row: Vec<f64> = x.row(at).iter().map(|v| v * scale).collect();
        if let Some(mask) = operands.get(1) {
            let planes = mask.desc.shape.0;
            let mask = mask.row([at[0], at[1] % planes[2].max(1), at[2] % planes[3].max(1)]);
            row.iter_mut().zip(mask).for_each(|(x, m)| *x += m);
        }
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if max == f64::NEG_INFINITY && !row.iter().any(|x| x.is_nan()) {
            row.fill(0.0);
        } else {
            row.iter_mut().for_each(|x| *x = (*x - max).exp());
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|x| *x /= sum);
        }
        out.extend(row);
    }
    Evaluated::Values(out)
}
