//! Functions of elements.

use super::{Rule, refuse};
use crate::{
    op::{Op, broadcasts, row::packed},
    shape::{Shape, TensorDesc},
};

/// The result is packed, with the dtype and shape of operand 0.
pub(crate) fn like_first(op: &Op, operands: &[TensorDesc]) -> Rule {
    packed(op, operands[0].dtype, operands[0].shape)
}

/// Elementwise with operand 1 repeated to operand 0.
pub(crate) fn broadcast_second(op: &Op, operands: &[TensorDesc]) -> Rule {
    if !broadcasts(operands[1].shape, operands[0].shape) {
        return refuse(op, "every axis of the second operand must divide that of the first", operands);
    }
    like_first(op, operands)
}

/// One operand split in halves along axis 0, or gate and value as two operands of one shape.
pub(crate) fn gated(op: &Op, operands: &[TensorDesc]) -> Rule {
    let first = operands[0];
    match operands.get(1) {
        Some(second) if second.shape != first.shape || second.dtype != first.dtype => {
            refuse(op, "gate and value must have one shape and dtype", operands)
        }
        Some(_) => like_first(op, operands),
        None if !first.shape.0[0].is_multiple_of(2) => {
            refuse(op, "the first axis holds gate and value, so it must be even", operands)
        }
        None => {
            let [d0, d1, d2, d3] = first.shape.0;
            packed(op, first.dtype, Shape([d0 / 2, d1, d2, d3]))
        }
    }
}
