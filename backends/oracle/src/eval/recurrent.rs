//! Gated recurrent steps.

use crate::access::{Evaluated, Operand, rows};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// The hidden states of all rows, then their cells.
pub(super) fn lstm(operands: &[Operand<'_>]) -> Evaluated {
    let (gates, cell) = (&operands[0], &operands[1]);
    let (mut hidden, mut cells) = (Vec::new(), Vec::new());
    for at in rows(cell.desc.shape) {
        let (gates, cell) = (gates.row(at), cell.row(at));
        let h = cell.len();
        for i in 0..h {
            let gate = |which: usize| gates[which * h + i];
            let new = sigmoid(gate(1)) * cell[i] + sigmoid(gate(0)) * libm::tanh(gate(2));
            cells.push(new);
            hidden.push(sigmoid(gate(3)) * libm::tanh(new));
        }
    }
    hidden.extend(cells);
    Evaluated::Values(hidden)
}

pub(super) fn gru(operands: &[Operand<'_>]) -> Evaluated {
    let mut out = Vec::new();
    for at in rows(operands[2].desc.shape) {
        let [x, u, hidden] = [operands[0].row(at), operands[1].row(at), operands[2].row(at)];
        let h = hidden.len();
        out.extend((0..h).map(|i| {
            let reset = sigmoid(x[i] + u[i]);
            let update = sigmoid(x[h + i] + u[h + i]);
            let new = libm::tanh(x[2 * h + i] + reset * u[2 * h + i]);
            (1.0 - update) * new + update * hidden[i]
        }));
    }
    Evaluated::Values(out)
}
