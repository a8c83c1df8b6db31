//! Norms, sums and whatever else looks at a whole row.

use std::cmp::Ordering;

use entensor_components::SortOrder;

use crate::access::{Evaluated, Operand, index, rows};

pub(super) fn rms_norm(row: &[f64], eps: f64) -> Vec<f64> {
    let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    row.iter().map(|x| x * scale).collect()
}

pub(super) fn norm(row: &[f64], eps: f64) -> Vec<f64> {
    let len = row.len() as f64;
    let mean = row.iter().sum::<f64>() / len;
    let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / len;
    row.iter().map(|x| (x - mean) / (variance + eps).sqrt()).collect()
}

/// In linear order, a group's channels lie behind each other.
pub(super) fn group_norm(x: &Operand<'_>, n_groups: u64, eps: f64) -> Evaluated {
    let [width, height, channels, _] = x.desc.shape.0;
    let (item, group) = (width * height * channels, width * height * channels.div_ceil(n_groups));
    let values = x.values();
    let items = values.chunks(index(item).max(1));
    Evaluated::Values(items.flat_map(|item| item.chunks(index(group).max(1))).flat_map(|row| norm(row, eps)).collect())
}

pub(super) fn l2_norm(row: &[f64], eps: f64) -> Vec<f64> {
    let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
    // Not `max`, which would pass over a NaN.
    let length = if length < eps { eps } else { length };
    row.iter().map(|x| x / length).collect()
}

/// ALiBi: what the mask is multiplied by for a head.
fn slope(max_bias: f64, heads: u64, head: u64) -> f64 {
    if max_bias == 0.0 {
        return 1.0;
    }
    let n = 1_u64 << heads.ilog2();
    let power = if head < n { (head + 1) as f64 } else { (2 * (head - n) + 1) as f64 / 2.0 };
    libm::exp2(-max_bias * power / n as f64)
}

pub(super) fn soft_max(operands: &[Operand<'_>], scale: f64, max_bias: f64) -> Evaluated {
    let x = &operands[0];
    let sinks = operands.get(2).map(Operand::values);
    let mut out = Vec::new();
    for at in rows(x.desc.shape) {
        let mut row: Vec<f64> = x.row(at).iter().map(|v| v * scale).collect();
        if let Some(mask) = operands.get(1) {
            let slope = slope(max_bias, x.desc.shape.0[2], at[1]);
            let planes = mask.desc.shape.0;
            let mask = mask.row([at[0], at[1] % planes[2].max(1), at[2] % planes[3].max(1)]);
            row.iter_mut().zip(mask).for_each(|(x, m)| *x += slope * m);
        }
        let sink = sinks.as_ref().map(|sinks| sinks[index(at[1])]);
        // The sink is a score like the others until the row is done.
        row.extend(sink);
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if max == f64::NEG_INFINITY && !row.iter().any(|x| x.is_nan()) {
            row.fill(0.0);
        } else {
            row.iter_mut().for_each(|x| *x = libm::exp(*x - max));
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|x| *x /= sum);
        }
        row.truncate(index(x.desc.shape.0[0]));
        out.extend(row);
    }
    Evaluated::Values(out)
}

pub(super) fn diag_mask_inf(x: &Operand<'_>, n_past: u64) -> Evaluated {
    let mut out = Vec::new();
    for at in rows(x.desc.shape) {
        let masked = |(i0, v)| if i0 as u64 > n_past + at[0] { f64::NEG_INFINITY } else { v };
        out.extend(x.row(at).into_iter().enumerate().map(masked));
    }
    Evaluated::Values(out)
}

pub(super) fn argmax(row: &[f64]) -> Vec<f64> {
    let mut best: Option<usize> = None;
    for (i, x) in row.iter().enumerate().filter(|(_, x)| !x.is_nan()) {
        if best.is_none_or(|best| *x > row[best]) {
            best = Some(i);
        }
    }
    vec![best.map_or(-1.0, |i| i as f64)]
}

pub(super) fn argsort(row: &[f64], order: SortOrder) -> Vec<f64> {
    let mut indices: Vec<usize> = (0..row.len()).collect();
    // The sort is stable, so equals keep their order.
    indices.sort_by(|&a, &b| {
        let (a, b) = (row[a], row[b]);
        let values = a.partial_cmp(&b).unwrap_or(Ordering::Equal);
        a.is_nan().cmp(&b.is_nan()).then(match order {
            SortOrder::Ascending => values,
            SortOrder::Descending => values.reverse(),
        })
    });
    indices.into_iter().map(|i| i as f64).collect()
}

pub(super) fn top_k(row: &[f64], k: usize) -> Vec<f64> {
    let mut indices = argsort(row, SortOrder::Descending);
    indices.truncate(k);
    indices
}

pub(super) fn cumsum(row: &[f64]) -> Vec<f64> {
    let mut sum = 0.0;
    let add = |x: &f64| {
        sum += x;
        sum
    };
    row.iter().map(add).collect()
}
