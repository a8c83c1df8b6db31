//! Matrix products.

use super::{Rule, refuse, repeats};
use crate::{
    dtype::DType,
    op::{Op, row::packed},
    shape::{Shape, TensorDesc},
};

/// `[k,m] × [k,n] → [m,n]` in f32; operand 0 is repeated over the outer axes of operand 1.
pub(crate) fn mul_mat(op: &Op, operands: &[TensorDesc]) -> Rule {
    let (a, b) = (operands[0].shape.0, operands[1].shape.0);
    if a[0] != b[0] {
        return refuse(op, "both operands need the same first axis (the one summed over)", operands);
    }
    if !(0..2).all(|i| repeats(a[i + 2], b[i + 2])) {
        return refuse(op, "outer axes of the first operand must divide those of the second", operands);
    }
    packed(op, DType::F32, Shape([a[1], b[1], b[2], b[3]]))
}
