//! Gated recurrent steps, a tile of a row at a time.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use super::Grid;
use crate::{
    math::{sigmoid, tanh},
    place::Place,
    simd::Level,
    tensor::{Bases, TILE},
};

/// A step of long short-term memory.
#[derive(Debug)]
pub(crate) struct Lstm {
    pub(crate) gates: Place,
    pub(crate) cell: Place,
    pub(crate) out: Place,
    /// Over the rows of the cell; a chunk writes both planes of the result.
    pub(crate) grid: Grid,
}

impl Lstm {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (gates, cell, out) = (bases.tensor(&self.gates), bases.tensor(&self.cell), bases.tensor(&self.out));
        let width = self.cell.shape[0];
        let (mut tiles, mut state) = ([[0.0; TILE]; 4], [0.0; TILE]);
        for piece in self.grid.chunk(chunk) {
            let (gates, cell) = (gates.row([piece.row, 0, 0]), cell.row([piece.row, 0, 0]));
            // SAFETY: the piece belongs to this chunk, in both planes.
            let [hidden_out, cell_out] = [0, 1].map(|plane| unsafe { out.row_mut([piece.row, plane, 0]) });
            for (start, len) in piece.tiles() {
                for (gate, tile) in tiles.iter_mut().enumerate() {
                    gates.load(level, gate * width + start, &mut tile[..len]);
                }
                cell.load(level, start, &mut state[..len]);
                let [input, forget, candidate, output] = &mut tiles;
                for i in 0..len {
                    state[i] = sigmoid(forget[i]) * state[i] + sigmoid(input[i]) * tanh(candidate[i]);
                    output[i] = sigmoid(output[i]) * tanh(state[i]);
                }
                hidden_out.store(level, start, &output[..len]);
                cell_out.store(level, start, &state[..len]);
            }
        }
    }
}

/// A step of a gated recurrent unit.
#[derive(Debug)]
pub(crate) struct Gru {
    pub(crate) x_gates: Place,
    pub(crate) h_gates: Place,
    pub(crate) hidden: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl Gru {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x_gates, h_gates) = (bases.tensor(&self.x_gates), bases.tensor(&self.h_gates));
        let (hidden, out) = (bases.tensor(&self.hidden), bases.tensor(&self.out));
        let width = self.out.shape[0];
        let (mut x, mut h, mut state) = ([[0.0; TILE]; 3], [[0.0; TILE]; 3], [0.0; TILE]);
        for piece in self.grid.chunk(chunk) {
            let at = [piece.row, 0, 0];
            let (x_gates, h_gates, hidden) = (x_gates.row(at), h_gates.row(at), hidden.row(at));
            // SAFETY: the piece belongs to this chunk.
            let out = unsafe { out.row_mut(at) };
            for (start, len) in piece.tiles() {
                for gate in 0..3 {
                    x_gates.load(level, gate * width + start, &mut x[gate][..len]);
                    h_gates.load(level, gate * width + start, &mut h[gate][..len]);
                }
                hidden.load(level, start, &mut state[..len]);
                for i in 0..len {
                    let reset = sigmoid(x[0][i] + h[0][i]);
                    let update = sigmoid(x[1][i] + h[1][i]);
                    let new = tanh(x[2][i] + reset * h[2][i]);
                    state[i] = (1.0 - update) * new + update * state[i];
                }
                out.store(level, start, &state[..len]);
            }
        }
    }
}
