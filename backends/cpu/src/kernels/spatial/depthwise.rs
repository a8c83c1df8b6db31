//! Convolutions of each channel by itself: every tap adds a part of a row to a part of a row.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use super::{Axis, MOST_TERMS, common};
use crate::{
    kernels::Grid,
    place::Place,
    simd::Level,
    tensor::{Bases, TILE},
};

/// `[KW,KH,1,C]` over `[W,H,C,N]`.
#[derive(Debug)]
pub(crate) struct Depthwise {
    pub(crate) kernel: Place,
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) axes: [Axis; 2],
    /// Over the rows of the result.
    pub(crate) grid: Grid,
}

impl Depthwise {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (kernel, x, out) = (bases.tensor(&self.kernel), bases.tensor(&self.x), bases.tensor(&self.out));
        let [along, across] = &self.axes;
        let long = along.taps.saturating_mul(across.taps) > MOST_TERMS;
        let mut tile = [0.0; TILE];
        for piece in self.grid.chunk(chunk) {
            let [oy, channel, n] = self.out.row_at(piece.row);
            // SAFETY: the piece belongs to this chunk.
            let out = unsafe { out.row_mut([oy, channel, n]) };
            for (start, len) in piece.tiles() {
                let whole = start..start + len;
                let (mut near, mut wide, mut terms) = ([0.0; TILE], [0.0; TILE], 0);
                for ky in across.taps_of(oy) {
                    let Some(iy) = across.input_at(oy, ky) else { continue };
                    let (x, kernel) = (x.row([iy, channel, n]), kernel.row([ky, 0, channel]));
                    for kx in along.taps_of_any(&whole) {
                        let outputs = common(&along.outputs_of(kx), &whole);
                        let Some(first) = along.input_at(outputs.start, kx) else { continue };
                        if outputs.is_empty() {
                            continue;
                        }
                        let mut weight = [0.0];
                        kernel.load(level, kx, &mut weight);
                        let tile = &mut tile[..outputs.len()];
                        x.every(first, along.stride as usize).load(level, 0, tile);
                        for (near, x) in near[outputs.start - start..].iter_mut().zip(tile) {
                            *near = level.mul_add(weight[0], *x, *near);
                        }
                        terms += 1;
                        if long && terms == MOST_TERMS {
                            widen(&mut near, &mut wide);
                            terms = 0;
                        }
                    }
                }
                if long {
                    widen(&mut near, &mut wide);
                    near.iter_mut().zip(&wide).for_each(|(near, wide)| *near = *wide as f32);
                }
                out.store(level, start, &near[..len]);
            }
        }
    }
}

#[inline(always)]
fn widen(near: &mut [f32; TILE], wide: &mut [f64; TILE]) {
    for (near, wide) in near.iter_mut().zip(wide) {
        *wide += f64::from(*near);
        *near = 0.0;
    }
}
