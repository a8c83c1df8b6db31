//! Patches as rows.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use super::{Axis, common};
use crate::{
    kernels::Grid,
    place::Place,
    simd::Level,
    tensor::{Bases, TILE},
};

/// Patches that are gathered together: those of neighbours read neighbours.
pub(crate) const LINES: usize = 16;

/// The patches of `[W,H,IC,N]` that a kernel meets: `[IC·KH·KW, OW, OH, N]`.
#[derive(Debug)]
pub(crate) struct Im2col {
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) axes: [Axis; 2],
    /// Over runs of [`LINES`] patches of a row of outputs.
    pub(crate) grid: Grid,
}

impl Im2col {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let [along, across] = &self.axes;
        let [patch, width, height, _] = self.out.shape;
        let runs = width.div_ceil(LINES);
        for piece in self.grid.chunk(chunk) {
            let (first, rest) = (piece.row % runs * LINES, piece.row / runs);
            let (oy, n) = (rest % height, rest / height);
            let whole = first..(first + LINES).min(width);
            for start in (0..patch).step_by(TILE) {
                let len = (patch - start).min(TILE);
                // Padding stays zero.
                let mut patches = [[0.0; TILE]; LINES];
                let (mut kx, rest) = (start % along.taps, start / along.taps);
                let (mut ky, mut channel) = (rest % across.taps, rest / across.taps);
                for element in 0..len {
                    let outputs = common(&along.outputs_of(kx), &whole);
                    if let Some(iy) = across.input_at(oy, ky)
                        && let Some(from) = along.input_at(outputs.start, kx)
                        && !outputs.is_empty()
                    {
                        let mut values = [0.0; LINES];
                        let values = &mut values[..outputs.len()];
                        x.row([iy, channel, n]).every(from, along.stride as usize).load(level, 0, values);
                        for (patch, v) in patches[outputs.start - first..].iter_mut().zip(values) {
                            patch[element] = *v;
                        }
                    }
                    kx += 1;
                    if kx == along.taps {
                        (kx, ky) = (0, ky + 1);
                    }
                    if ky == across.taps {
                        (ky, channel) = (0, channel + 1);
                    }
                }
                for (output, patch) in whole.clone().zip(&patches) {
                    // SAFETY: the row belongs to this chunk.
                    unsafe { out.row_mut([output, oy, n]) }.store(level, start, &patch[..len]);
                }
            }
        }
    }
}
