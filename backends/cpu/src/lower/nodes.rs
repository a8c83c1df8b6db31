//! Each op as kernels: one line an op here, the work in one file a family.

use entensor_components::{BackendError, Op};

use super::Builder;
use crate::{
    kernels::{BinaryOp, Grid, UnaryOp},
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
            Op::Add {} => self.binary(BinaryOp::Add, operands[0], operands[1], out, cost::MOVE),
            Op::Mul {} => self.binary(BinaryOp::Mul, operands[0], operands[1], out, cost::MOVE),
            Op::Scale { by } => self.unary(UnaryOp::Scale(*by), operands[0], out, cost::MOVE),
            Op::Relu {} => self.unary(UnaryOp::Relu, operands[0], out, cost::MOVE),
            Op::Silu {} => self.unary(UnaryOp::Silu, operands[0], out, cost::EXP),
            Op::Swiglu {} => match operands {
                [both] => {
                    self.binary(BinaryOp::Gate, both.half_rows(false), both.half_rows(true), out, cost::EXP);
                }
                _ => self.binary(BinaryOp::Gate, operands[0], operands[1], out, cost::EXP),
            },
            Op::RmsNorm { eps } => self.rms_norm(*eps, operands[0], out),
            Op::SoftMax { scale } => self.soft_max(*scale, operands, out),
            Op::SumRows {} => self.sum_rows(operands[0], out),
            Op::MulMat {} => return self.mul_mat(operands[0], operands[1], out),
            Op::GetRows {} => self.get_rows(operands[0], operands[1], out),
            Op::SetRows {} => self.set_rows(operands[1], operands[2], out),
            Op::Cpy {} | Op::Cont {} => self.copy(operands[0], out),
            Op::Rope { .. } => return self.rope(op, operands, out),
            Op::FlashAttnExt { .. } => self.flash_attn_ext(op, operands, out),
            Op::MulMatId {} => return self.mul_mat_id(operands[0], operands[1], operands[2], out),
            Op::AddId {} => self.add_id(operands[0], operands[1], operands[2], out),
            Op::Lstm {} => self.lstm(operands[0], operands[1], out),
            Op::Gru {} => self.gru(operands[0], operands[1], operands[2], out),
            Op::Repeat { .. } => self.repeat(operands[0], out),
        }
        Ok(())
    }
}
