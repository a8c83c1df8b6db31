//! Functions of elements.

use super::{by_row, repeated};
use crate::access::{Evaluated, Operand, rows};

pub(super) fn unary(x: &Operand<'_>, f: impl Fn(f64) -> f64) -> Evaluated {
    Evaluated::Values(x.values().into_iter().map(f).collect())
}

pub(super) fn binary(operands: &[Operand<'_>], f: impl Fn(f64, f64) -> f64) -> Evaluated {
    let (a, b) = (&operands[0], &operands[1]);
    let mut out = Vec::new();
    if !a.desc.shape.is_empty() {
        for at in rows(a.desc.shape) {
            let second = b.row(repeated(at, b.desc.shape));
            out.extend(a.row(at).iter().zip(second.iter().cycle()).map(|(&a, &b)| f(a, b)));
        }
    }
    Evaluated::Values(out)
}

pub(super) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

pub(super) fn swiglu(operands: &[Operand<'_>]) -> Evaluated {
    let gated = |gate: &[f64], value: &[f64]| -> Vec<f64> {
        gate.iter().zip(value).map(|(&gate, &value)| silu(gate) * value).collect()
    };
    match operands.get(1) {
        Some(value) => Evaluated::Values(
            rows(value.desc.shape).flat_map(|at| gated(&operands[0].row(at), &value.row(at))).collect(),
        ),
        None => by_row(&operands[0], |row| {
            let (gate, value) = row.split_at(row.len() / 2);
            gated(gate, value)
        }),
    }
}
