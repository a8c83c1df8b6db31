//! What attention layers need beside products.

use super::{Rule, like_first, refuse};
use crate::{
    op::{Op, OpError},
    shape::TensorDesc,
};

/// Rotary embedding: one position per element of axis 2.
pub(crate) fn rope(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Rope { n_dims, base, freq_scale, .. } = op else { unreachable!("rule of `rope`") };
    let param = |param, rule| Err(OpError::Param { op: "rope", param, rule });
    let width = operands[0].shape.0[0];
    let rotated = if *n_dims == 0 { width } else { u64::from(*n_dims) };
    if !rotated.is_multiple_of(2) || rotated > width {
        return param("n_dims", "must be even and at most the first axis");
    }
    if !(base.is_finite() && *base > 0.0) {
        return param("base", "must be positive");
    }
    if !freq_scale.is_finite() {
        return param("freq_scale", "must be finite");
    }
    let positions = operands[1].shape;
    if positions.0[0] != operands[0].shape.0[2] || positions.rank() != 1 {
        return refuse(op, "there must be one position per element of axis 2", operands);
    }
    if let Some(factors) = operands.get(2)
        && (factors.shape.0[0] < rotated / 2 || factors.shape.rank() != 1)
    {
        return refuse(op, "there must be a frequency factor per rotated pair", operands);
    }
    like_first(op, operands)
}
