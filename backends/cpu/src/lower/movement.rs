//! Copies, repetition, and what else moves elements or makes them from nothing.

use entensor_components::{BackendError, UpscaleMode};

use super::{
    Builder,
    nodes::{cost, may_flatten, pieces, whole_rows},
};
use crate::{
    kernels::{Arange, CopyLinear, CopyRows, Kernel, Pad, Positions, Repeat, Roll, TimestepEmbedding, Upscale},
    place::Place,
};

impl Builder {
    pub(super) fn copy(&mut self, from: Place, to: Place) {
        if from.shape == to.shape {
            return self.copy_rows(from, to);
        }
        let grid = pieces(&to, cost::MOVE);
        let kernel = Kernel::CopyLinear(CopyLinear { from, to, grid });
        self.push(kernel, grid.chunks(), &[from], Some(&to), to.elements().saturating_mul(cost::MOVE));
    }

    /// A copy between equal shapes, converting where dtypes differ.
    pub(super) fn copy_rows(&mut self, from: Place, to: Place) {
        let flat = may_flatten(&[&to, &from]);
        let (from, to) = if flat { (from.flat(), to.flat()) } else { (from, to) };
        let cost = if from.dtype == to.dtype { cost::MOVE } else { cost::CONVERT };
        let grid = pieces(&to, cost);
        let kernel = Kernel::CopyRows(CopyRows { from, to, grid });
        self.push(kernel, grid.chunks(), &[from], Some(&to), to.elements().saturating_mul(cost));
    }

    pub(super) fn repeat(&mut self, from: Place, to: Place) {
        let grid = pieces(&to, cost::MOVE);
        let kernel = Kernel::Repeat(Repeat { from, to, grid });
        self.push(kernel, grid.chunks(), &[from], Some(&to), to.elements().saturating_mul(cost::MOVE));
    }

    /// Two copies, each into its part of the result.
    pub(super) fn concat(&mut self, dim: usize, a: Place, b: Place, out: Place) {
        let (first, second) = (a.shape[dim], b.shape[dim]);
        self.copy_rows(a, out.window(dim, 0, first));
        self.copy_rows(b, out.window(dim, first, second));
    }

    pub(super) fn pad(&mut self, left: [u32; 4], x: Place, out: Place) {
        let left = left.map(|zeros| zeros as usize);
        let grid = pieces(&out, cost::MOVE);
        let kernel = Kernel::Pad(Pad { left, x, out, grid });
        self.push(kernel, grid.chunks(), &[x], Some(&out), out.elements().saturating_mul(cost::MOVE));
    }

    pub(super) fn roll(&mut self, shifts: [i32; 4], x: Place, out: Place) {
        let first = std::array::from_fn(|axis| {
            let length = x.shape[axis].max(1) as i128;
            (-i128::from(shifts[axis])).rem_euclid(length) as usize
        });
        let grid = pieces(&out, cost::MOVE);
        let kernel = Kernel::Roll(Roll { first, x, out, grid });
        self.push(kernel, grid.chunks(), &[x], Some(&out), out.elements().saturating_mul(cost::MOVE));
    }

    pub(super) fn upscale(&mut self, mode: UpscaleMode, align_corners: bool, x: Place, out: Place) {
        if out.is_empty() {
            return;
        }
        let bilinear = mode == UpscaleMode::Bilinear;
        let axes = std::array::from_fn(|axis| {
            let plane = axis < 2;
            Positions::new(x.shape[axis], out.shape[axis], align_corners && plane, bilinear && plane)
        });
        let grid = pieces(&out, cost::EXP);
        let kernel = Kernel::Upscale(Upscale { bilinear, axes, x, out, grid });
        self.push(kernel, grid.chunks(), &[x], Some(&out), out.elements().saturating_mul(cost::EXP));
    }

    pub(super) fn arange(&mut self, start: f32, step: f32, out: Place) {
        let grid = pieces(&out, cost::MOVE);
        let kernel = Kernel::Arange(Arange { start, step, out, grid });
        self.push(kernel, grid.chunks(), &[], Some(&out), out.elements().saturating_mul(cost::MOVE));
    }

    pub(super) fn timestep_embedding(
        &mut self,
        max_period: u32,
        timesteps: Place,
        out: Place,
    ) -> Result<(), BackendError> {
        if out.is_empty() {
            return Ok(());
        }
        let half = out.shape[0] / 2;
        let mut frequencies = Vec::new();
        // As large as a row of the result, which need not exist yet.
        let too_large = |_| BackendError::OutOfMemory { size_bytes: half as u64 * 8 };
        frequencies.try_reserve_exact(half).map_err(too_large)?;
        frequencies.extend((0..half).map(|j| libm::pow(f64::from(max_period), -(j as f64) / half as f64)));
        let grid = whole_rows(&out, out.shape[0], cost::SIN_COS);
        let frequencies = frequencies.into_boxed_slice();
        let kernel = Kernel::TimestepEmbedding(TimestepEmbedding { timesteps, frequencies, out, grid });
        let cost = out.elements().saturating_mul(cost::SIN_COS);
        self.push(kernel, grid.chunks(), &[timesteps], Some(&out), cost);
        Ok(())
    }
}
