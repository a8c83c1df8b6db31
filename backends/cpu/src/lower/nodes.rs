//! Each op as kernels: one line an op here, the work in one file a family.

use entensor_components::{BackendError, Op};

use super::{Builder, spatial::Steps};
use crate::{
    kernels::{Grid, NormKind},
    math,
    place::Place,
};

/// Costs of an element in the unit of [`Grid`]: bytes in and out, and arithmetic as so many bytes more.
pub(super) mod cost {
    pub(in crate::lower) const MOVE: usize = 8;
    pub(in crate::lower) const CONVERT: usize = 16;
    pub(in crate::lower) const EXP: usize = 32;
    pub(in crate::lower) const NORM: usize = 16;
    pub(in crate::lower) const SIN_COS: usize = 256;
    pub(in crate::lower) const SORT: usize = 192;
}

/// A packed result whose elements may be cut into any pieces.
pub(super) fn may_flatten(places: &[&Place]) -> bool {
    places.iter().all(|place| place.is_packed() && place.shape == places[0].shape)
}

/// The grid of a step that writes `out`: one chunk in linear order if elements of the result share bytes.
pub(super) fn ordered(grid: Grid, out: &Place) -> Grid {
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
            Op::Add {} => self.binary(operands, out, cost::MOVE, |a, b| a + b),
            Op::Sub {} => self.binary(operands, out, cost::MOVE, |a, b| a - b),
            Op::Mul {} => self.binary(operands, out, cost::MOVE, |a, b| a * b),
            Op::Div {} => self.binary(operands, out, cost::MOVE, |a, b| a / b),
            &Op::Scale { by } => self.unary(operands, out, cost::MOVE, move |x| x * by),
            Op::Sqr {} => self.unary(operands, out, cost::MOVE, |x| x * x),
            Op::Sqrt {} => self.unary(operands, out, cost::MOVE, f32::sqrt),
            Op::Log {} => self.unary(operands, out, cost::EXP, math::log),
            Op::Exp {} => self.unary(operands, out, cost::EXP, math::exp),
            Op::Neg {} => self.unary(operands, out, cost::MOVE, |x: f32| -x),
            Op::Abs {} => self.unary(operands, out, cost::MOVE, f32::abs),
            Op::Sgn {} => self.unary(operands, out, cost::MOVE, math::sgn),
            Op::Step {} => self.unary(operands, out, cost::MOVE, |x| if x > 0.0 { 1.0 } else { 0.0 }),
            &Op::Clamp { min, max } => self.unary(operands, out, cost::MOVE, move |x| math::clamp(x, min, max)),
            Op::Relu {} => self.unary(operands, out, cost::MOVE, math::relu),
            &Op::LeakyRelu { negative_slope } => {
                self.unary(operands, out, cost::MOVE, move |x| if x > 0.0 { x } else { negative_slope * x });
            }
            Op::Elu {} => self.unary(operands, out, cost::EXP, math::elu),
            Op::Sigmoid {} => self.unary(operands, out, cost::EXP, math::sigmoid),
            Op::Tanh {} => self.unary(operands, out, cost::EXP, math::tanh),
            Op::Silu {} => self.unary(operands, out, cost::EXP, math::silu),
            Op::Gelu {} => self.unary(operands, out, cost::EXP, math::gelu),
            Op::GeluQuick {} => self.unary(operands, out, cost::EXP, math::gelu_quick),
            Op::GeluErf {} => self.unary(operands, out, cost::EXP, math::gelu_erf),
            Op::Hardsigmoid {} => self.unary(operands, out, cost::MOVE, math::hardsigmoid),
            Op::Hardswish {} => self.unary(operands, out, cost::MOVE, math::hardswish),
            Op::Softplus {} => self.unary(operands, out, cost::EXP, math::log_1p_exp),
            Op::Swiglu {} => self.gated(operands, out, cost::EXP, |gate, value| math::silu(gate) * value),
            Op::Geglu {} => self.gated(operands, out, cost::EXP, |gate, value| math::gelu(gate) * value),
            Op::Reglu {} => self.gated(operands, out, cost::MOVE, |gate, value| math::relu(gate) * value),
            Op::RmsNorm { eps } => self.rms_norm(*eps, operands[0], out),
            Op::Norm { eps } => self.norm(NormKind::Standard, *eps, operands[0], out),
            Op::GroupNorm { n_groups, eps } => self.group_norm(*n_groups as usize, *eps, operands[0], out),
            Op::L2Norm { eps } => self.norm(NormKind::L2, *eps, operands[0], out),
            Op::SoftMax { scale, max_bias } => self.soft_max(*scale, *max_bias, operands, out),
            Op::DiagMaskInf { n_past } => self.diag_mask_inf(*n_past as usize, operands[0], out),
            Op::Argmax {} => self.argmax(operands[0], out),
            Op::Argsort { order } => return self.argsort(*order, operands[0], out),
            Op::TopK { k } => return self.top_k(*k as usize, operands[0], out),
            Op::Sum {} => return self.sum(operands[0], out),
            Op::SumRows {} => self.sum_rows(1.0, operands[0], out),
            Op::Mean {} => self.sum_rows(operands[0].shape[0] as f64, operands[0], out),
            Op::Cumsum {} => self.cumsum(operands[0], out),
            Op::MulMat {} => return self.mul_mat(operands[0], operands[1], out),
            Op::GetRows {} => self.get_rows(operands[0], operands[1], out),
            Op::SetRows {} => self.set_rows(operands[1], operands[2], out),
            Op::Cpy {} | Op::Cont {} => self.copy(operands[0], out),
            Op::Rope { .. } => return self.rope(op, operands, out),
            Op::FlashAttnExt { .. } => return self.flash_attn_ext(op, operands, out),
            Op::MulMatId {} => return self.mul_mat_id(operands[0], operands[1], operands[2], out),
            Op::AddId {} => self.add_id(operands[0], operands[1], operands[2], out),
            Op::Lstm {} => self.lstm(operands[0], operands[1], out),
            Op::Gru {} => self.gru(operands[0], operands[1], operands[2], out),
            Op::Repeat { .. } => self.repeat(operands[0], out),
            Op::Im2col { s0, s1, p0, p1, d0, d1, is_2d, .. } => {
                let both = Steps::new([*s0, *s1], [*p0, *p1], [*d0, *d1]);
                self.im2col(if *is_2d { both } else { Steps::along(*s0, *p0, *d0) }, *is_2d, operands, out);
            }
            Op::Conv1d { s0, p0, d0 } => return self.conv_1d(Steps::along(*s0, *p0, *d0), operands, out),
            Op::Conv2d { s0, s1, p0, p1, d0, d1 } => {
                return self.conv_2d(Steps::new([*s0, *s1], [*p0, *p1], [*d0, *d1]), operands, out);
            }
            Op::Conv2dDw { s0, s1, p0, p1, d0, d1 } => {
                self.conv_2d_dw(Steps::new([*s0, *s1], [*p0, *p1], [*d0, *d1]), operands, out);
            }
            Op::ConvTranspose1d { s0, p0, d0 } => {
                return self.conv_transpose_1d(Steps::along(*s0, *p0, *d0), operands, out);
            }
            Op::ConvTranspose2d { stride } => return self.conv_transpose_2d(*stride, operands, out),
            Op::Pool1d { op, k0, s0, p0 } => {
                self.pool(*op, [*k0, 1], Steps::along(*s0, *p0, 1), operands[0], out);
            }
            Op::Pool2d { op, k0, k1, s0, s1, p0, p1 } => {
                self.pool(*op, [*k0, *k1], Steps::new([*s0, *s1], [*p0, *p1], [1, 1]), operands[0], out);
            }
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
