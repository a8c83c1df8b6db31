//! Convolutions over many channels, forward and transposed: a few outputs of a row at a time, for a register's worth of
//! output channels, summed over input channels that lie next to each other.
#![expect(unsafe_code, reason = "reads packed operands in place, and writes the rows of its chunk")]

use std::ops::Range;

use super::{Axis, MOST_TERMS};
use crate::{
    kernels::Grid,
    place::Place,
    simd::Level,
    tensor::{Bases, TILE, Tensor, work_row},
};

/// Output channels side by side, where there are enough of them.
pub(crate) const WIDE: usize = 16;
/// Where there are few.
pub(crate) const NARROW: usize = 8;

/// Outputs of a row side by side: with [`WIDE`] channels as many sums as hide the latency of adding.
const OUTPUTS: usize = 4;

/// Outputs of a row that are stored together.
const SEGMENT: usize = 64;

/// The kernel in the order in which it is used: input channels, with output channels side by side.
#[derive(Debug)]
pub(crate) struct PackKernel {
    /// `[IC,KW,KH,OC]`.
    pub(crate) kernel: Place,
    /// `[lanes·IC, KW, KH, OC/lanes]` in work memory.
    pub(crate) out: Place,
    pub(crate) lanes: usize,
    /// Over the rows of `out`.
    pub(crate) grid: Grid,
}

impl PackKernel {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (kernel, out) = (bases.tensor(&self.kernel), bases.tensor(&self.out));
        let [channels, _, _, outputs] = self.kernel.shape;
        let mut tile = [0.0; TILE];
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            // SAFETY: the row belongs to this chunk, and nobody else uses it before the step is done.
            let packed: &mut [f32] = bytemuck::cast_slice_mut(unsafe { work_row(&out, at) });
            let first = at[2] * self.lanes;
            if outputs - first < self.lanes {
                packed.fill(0.0);
            }
            for lane in 0..self.lanes.min(outputs - first) {
                let row = kernel.row([at[0], at[1], first + lane]);
                for start in (0..channels).step_by(TILE) {
                    let len = (channels - start).min(TILE);
                    row.load(level, start, &mut tile[..len]);
                    for (packed, v) in packed[start * self.lanes..].chunks_exact_mut(self.lanes).zip(&tile[..len]) {
                        packed[lane] = *v;
                    }
                }
            }
        }
    }
}

/// A convolution, or the transpose of one.
#[derive(Debug)]
pub(crate) struct Conv {
    /// `[IC·W, H, N]`: f32 in work memory, channels fastest.
    pub(crate) x: Place,
    /// `[lanes·IC·KW, KH, OC/lanes]`, from [`PackKernel`].
    pub(crate) kernel: Place,
    /// `[OW,OH,OC,N]`.
    pub(crate) out: Place,
    /// Input channels.
    pub(crate) channels: usize,
    pub(crate) lanes: usize,
    pub(crate) axes: [Axis; 2],
    pub(crate) transposed: bool,
    /// Over rows of the result for `lanes` channels: axis 1 fastest, then the groups of channels, then axis 3.
    pub(crate) grid: Grid,
}

/// Sums of a few outputs, for `W` channels each.
struct Sums<const W: usize> {
    near: [[f32; W]; OUTPUTS],
    wide: [[f64; W]; OUTPUTS],
    /// Most terms in any of `near`.
    terms: usize,
}

impl<const W: usize> Sums<W> {
    #[inline(always)]
    fn new() -> Self {
        Self { near: [[0.0; W]; OUTPUTS], wide: [[0.0; W]; OUTPUTS], terms: 0 }
    }

    #[inline(always)]
    fn widen(&mut self) {
        for (wide, near) in self.wide.iter_mut().zip(&mut self.near) {
            for (wide, near) in wide.iter_mut().zip(near) {
                *wide += f64::from(*near);
                *near = 0.0;
            }
        }
        self.terms = 0;
    }

    /// Makes room for so many terms more.
    #[inline(always)]
    fn expect(&mut self, terms: usize) {
        if self.terms + terms > MOST_TERMS {
            self.widen();
        }
        self.terms += terms;
    }
}

/// Adds the products of rows of `x` with as many rows of the kernel to the first sums.
#[inline(always)]
fn add<L: Level, const M: usize, const W: usize>(level: L, x: [&[f32]; M], kernel: &[f32], sums: &mut [[f32; W]]) {
    let kernel = kernel.as_chunks::<W>().0;
    let x = x.map(|x| &x[..kernel.len()]);
    let mut near: [[f32; W]; M] = std::array::from_fn(|m| sums[m]);
    for (term, weights) in kernel.iter().enumerate() {
        for (near, x) in near.iter_mut().zip(x) {
            let x = x[term];
            for (near, weight) in near.iter_mut().zip(weights) {
                *near = level.mul_add(x, *weight, *near);
            }
        }
    }
    sums[..M].copy_from_slice(&near);
}

/// What a row of the input adds to a few outputs.
struct Line<'a> {
    /// The row, all channels of an element side by side.
    x: &'a [f32],
    channels: usize,
    /// The element under the first output; it may lie beside the row.
    first: i64,
    /// From output to output.
    advance: i64,
}

impl Line<'_> {
    /// The outputs, of the first `outputs`, that have their element in the row.
    #[inline(always)]
    fn inside(&self, outputs: usize, width: usize) -> Range<usize> {
        let mut inside = 0..outputs;
        while inside.start < inside.end && self.first + self.advance * (inside.start as i64) < 0 {
            inside.start += 1;
        }
        while inside.start < inside.end && self.first + self.advance * (inside.end as i64 - 1) >= width as i64 {
            inside.end -= 1;
        }
        inside
    }

    /// `terms` values from `start` of the element under each of `M` outputs.
    #[inline(always)]
    fn values<const M: usize>(&self, output: usize, start: usize, terms: usize) -> [&[f32]; M] {
        std::array::from_fn(|m| {
            let element = (self.first + self.advance * (output + m) as i64) as usize;
            &self.x[element * self.channels + start..][..terms]
        })
    }

    #[inline(always)]
    fn add<L: Level, const W: usize>(&self, level: L, outputs: &Range<usize>, kernel: &[f32], sums: &mut Sums<W>) {
        let all = kernel.len() / W;
        for start in (0..all).step_by(MOST_TERMS) {
            let terms = (all - start).min(MOST_TERMS);
            sums.expect(terms);
            let kernel = &kernel[start * W..(start + terms) * W];
            let mut output = outputs.start;
            if outputs.len() == OUTPUTS {
                add::<L, OUTPUTS, W>(level, self.values(output, start, terms), kernel, &mut sums.near);
                continue;
            }
            if outputs.len() >= 2 {
                add::<L, 2, W>(level, self.values(output, start, terms), kernel, &mut sums.near[output..]);
                output += 2;
            }
            if output < outputs.end {
                add::<L, 1, W>(level, self.values(output, start, terms), kernel, &mut sums.near[output..]);
            }
        }
    }
}

/// What a row of the result is made of.
struct Source<'a> {
    x: Tensor<'a>,
    kernel: Tensor<'a>,
    /// Axis 1 of the result.
    oy: usize,
    /// Which group of output channels.
    group: usize,
    /// Axis 3.
    n: usize,
}

impl Source<'_> {
    #[inline(always)]
    fn x(&self, iy: usize) -> &[f32] {
        // SAFETY: work memory of this node, which no step writes while this one runs.
        bytemuck::cast_slice(unsafe { self.x.row_bytes([iy, self.n, 0]) })
    }

    #[inline(always)]
    fn kernel(&self, ky: usize) -> &[f32] {
        // SAFETY: as above.
        bytemuck::cast_slice(unsafe { self.kernel.row_bytes([ky, self.group, 0]) })
    }
}

impl Conv {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        if self.lanes == NARROW {
            self.rows::<L, NARROW>(level, bases, chunk);
        } else {
            self.rows::<L, WIDE>(level, bases, chunk);
        }
    }

    #[inline(always)]
    fn rows<L: Level, const W: usize>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let out = bases.tensor(&self.out);
        let [_, height, outputs, _] = self.out.shape;
        let groups = outputs.div_ceil(W);
        for piece in self.grid.chunk(chunk) {
            let (oy, rest) = (piece.row % height, piece.row / height);
            let source = Source {
                x: bases.tensor(&self.x),
                kernel: bases.tensor(&self.kernel),
                oy,
                group: rest % groups,
                n: rest / groups,
            };
            let first = source.group * W;
            for start in (piece.start..piece.end).step_by(SEGMENT) {
                let len = (piece.end - start).min(SEGMENT);
                let mut segment = [[0.0; SEGMENT]; W];
                self.segment(level, &source, start, len, &mut segment);
                for (lane, values) in segment.iter().enumerate().take(outputs - first) {
                    // SAFETY: the part of the row belongs to this chunk.
                    unsafe { out.row_mut([oy, first + lane, source.n]) }.store(level, start, &values[..len]);
                }
            }
        }
    }

    /// `len` outputs from `start`. Those of a transposed convolution that are `stride` apart meet the same taps, so they
    /// are computed together.
    #[inline(always)]
    fn segment<L: Level, const W: usize>(
        &self,
        level: L,
        source: &Source<'_>,
        start: usize,
        len: usize,
        segment: &mut [[f32; SEGMENT]; W],
    ) {
        let step = if self.transposed { (self.axes[0].stride as usize).min(SEGMENT) } else { 1 };
        for residue in 0..step.min(len) {
            for first in (residue..len).step_by(step * OUTPUTS) {
                let outputs = (len - first).div_ceil(step).min(OUTPUTS);
                let mut sums = Sums::<W>::new();
                self.outputs(level, source, start + first, outputs, &mut sums);
                sums.widen();
                for (output, sums) in sums.wide.iter().enumerate().take(outputs) {
                    for (values, sum) in segment.iter_mut().zip(sums) {
                        values[first + output * step] = *sum as f32;
                    }
                }
            }
        }
    }

    /// The element of the input under the first output's tap on an axis, which may lie beside it; none where a transposed
    /// convolution steps over the output.
    #[inline(always)]
    fn element(&self, axis: usize, output: usize, tap: usize) -> Option<i64> {
        // Packing the input succeeded, so all of this is far from the limits.
        let Axis { stride, padding, dilation, .. } = self.axes[axis];
        let (stride, padding) = (stride as i64, padding as i64);
        let (output, reach) = (output as i64, tap as i64 * dilation as i64);
        if self.transposed {
            let steps = output + padding - reach;
            (steps % stride == 0).then(|| steps / stride)
        } else {
            Some(output * stride + reach - padding)
        }
    }

    /// Adds up a few outputs from `first` on.
    #[inline(always)]
    fn outputs<L: Level, const W: usize>(
        &self,
        level: L,
        source: &Source<'_>,
        first: usize,
        outputs: usize,
        sums: &mut Sums<W>,
    ) {
        let [along, across] = &self.axes;
        let terms = self.channels * W;
        // Taps side by side on elements side by side are one long row of both.
        let joined = !self.transposed && along.dilation == 1;
        for ky in 0..across.taps {
            let Some(iy) = self.element(1, source.oy, ky) else { continue };
            if !(0..across.input as i64).contains(&iy) {
                continue;
            }
            let (x, kernel) = (source.x(iy as usize), source.kernel(ky));
            let mut kx = 0;
            while kx < along.taps {
                let element = self.element(0, first, kx);
                let mut taps = 1;
                if let Some(element) = element {
                    let advance = if self.transposed { 1 } else { along.stride as i64 };
                    let line = Line { x, channels: self.channels, first: element, advance };
                    let inside = line.inside(outputs, along.input);
                    if joined && kx == 0 && inside.len() == outputs {
                        let last = element + advance * (outputs as i64 - 1) + along.taps as i64;
                        taps = if last <= along.input as i64 { along.taps } else { 1 };
                    }
                    if !inside.is_empty() {
                        line.add(level, &inside, &kernel[kx * terms..(kx + taps) * terms], sums);
                    }
                }
                kx += taps;
            }
        }
    }
}
