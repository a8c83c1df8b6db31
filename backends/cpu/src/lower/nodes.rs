//! Each op as kernels: one line an op here, the work in one file a family.

use entensor_components::{BackendError, Op};

use super::Builder;
use crate::{
    kernels::{Grid, binary_ops, unary_ops},
    place::Place,
};

/// Costs of an element in the unit of [`Grid`]: bytes in and out, and arithmetic as so many bytes more.
pub(super) mod cost {
    pub(in crate::lower) const MOVE: usize = 8;
    pub(in crate::lower) const CONVERT: usize = 16;
    pub(in crate::lower) const EXP: usize = 32;
    pub(in crate::lower) const NORM: usize = 16;
    pub(in crate::lower) const SIN_COS: usize = 256;
}

/// A packed result whose elements may be cut into any pieces.
pub(super) fn may_flatten(places: &[&Place]) -> bool {
    places.iter().all(|place| place.is_packed() && place.shape == places[0].shape)
}

/// The grid of a step that writes `out`: one chunk in linear order if elements of the result share bytes.
fn ordered(grid: Grid, out: &Place) -> Grid {
    if out.is_injective() { grid } else { grid.serial() }
}

pub(super) fn pieces(out: &Place, cost: usize) -> Grid {
    ordered(Grid::pieces(out.rows(), out.shape[0], cost), out)
}

pub(super) fn whole_rows(out: &Place, width: usize, cost: usize) -> Grid {
    ordered(Grid::rows(out.rows(), out.shape[0], cost.saturating_mul(width)), out)
}

impl Builder {
    /// Lowers a checked op. Operands share no bytes with the result, or are the result.
    pub(super) fn lower_op(&mut self, op: &Op, operands: &[Place], out: Place) -> Result<(), BackendError> {
        match op {
            // `support` refuses them.
            Op::None {} | Op::View { .. } | Op::Reshape { .. } | Op::Permute { .. } | Op::Transpose {} => {}
            unary_ops!(Op) => self.unary(op, operands[0], out),
            binary_ops!(Op) => self.binary(op, operands, out),
            Op::RmsNorm { eps } => self.rms_norm(*eps, operands[0], out),
            Op::SoftMax { scale } => self.soft_max(*scale, operands, out),
            Op::SumRows {} => self.sum_rows(operands[0], out),
            Op::MulMat {} => return self.mul_mat(operands[0], operands[1], out),
            Op::GetRows {} => self.get_rows(operands[0], operands[1], out),
            Op::SetRows {} => self.set_rows(operands[1], operands[2], out),
            Op::Cpy {} | Op::Cont {} => self.copy(operands[0], out),
            Op::Rope { mode, n_dims, base, freq_scale } => {
                return self.rope(*mode, *n_dims as usize, *base, *freq_scale, operands, out);
            }
            Op::Repeat { .. } => self.repeat(operands[0], out),
            Op::Concat { dim } => self.concat(*dim as usize, operands[0], operands[1], out),
            Op::Pad { left, .. } => self.pad(*left, operands[0], out),
            Op::Roll { shifts } => self.roll(*shifts, operands[0], out),
            Op::Upscale { mode, align_corners, .. } => self.upscale(*mode, *align_corners, operands[0], out),
            Op::Cast { .. } => self.copy_rows(operands[0], out),
            Op::Arange { start, step, .. } => self.arange(*start, *step, out),
            Op::TimestepEmbedding { max_period, .. } => {
                return self.timestep_embedding(*max_period, operands[0], out);
            }
        }
        Ok(())
    }
}
