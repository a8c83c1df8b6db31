//! Functions of rows.

use super::{Rule, like_first, refuse};
use crate::{
    op::{Op, OpError, row::packed},
    shape::{Shape, TensorDesc},
};

/// As [`like_first`], with an epsilon that keeps roots real.
pub(crate) fn rms_norm(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::RmsNorm { eps } = op else { unreachable!("rule of `rms_norm`") };
    if !(eps.is_finite() && *eps >= 0.0) {
        return Err(OpError::Param { op: "rms_norm", param: "eps", rule: "must be 0 or more" });
    }
    like_first(op, operands)
}

/// Softmax over rows with an optional mask.
pub(crate) fn soft_max(op: &Op, operands: &[TensorDesc]) -> Rule {
    if let Some(mask) = operands.get(1) {
        let (x, m) = (operands[0].shape.0, mask.shape.0);
        let planes_fit = m[2] != 0 && m[3] != 0 && x[2].is_multiple_of(m[2]) && x[3].is_multiple_of(m[3]);
        let empty = operands[0].shape.is_empty();
        if m[0] != x[0] || m[1] < x[1] || !(planes_fit || empty) {
            return refuse(
                op,
                "the mask needs the row length, at least as many rows, and outer axes that divide",
                operands,
            );
        }
    }
    like_first(op, operands)
}

/// Rows summed: the first axis becomes 1.
pub(crate) fn sum_rows(op: &Op, operands: &[TensorDesc]) -> Rule {
    let [_, d1, d2, d3] = operands[0].shape.0;
    packed(op, operands[0].dtype, Shape([1, d1, d2, d3]))
}
