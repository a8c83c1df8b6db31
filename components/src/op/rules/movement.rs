//! Copies and repetition.

use super::{Rule, refuse};
use crate::{
    op::{Op, OpResult, ViewOf, broadcasts, row::packed},
    shape::TensorDesc,
};

/// Source copied into the target, converting; the result is the target.
pub(crate) fn cpy(op: &Op, operands: &[TensorDesc]) -> Rule {
    let (source, target) = (operands[0], operands[1]);
    if source.shape.elements() != target.shape.elements() {
        return refuse(op, "source and target must have the same number of elements", operands);
    }
    if source.dtype != target.dtype && (source.dtype.is_integer() || target.dtype.is_integer()) {
        return refuse(op, "integers are copied to the same integer type only", operands);
    }
    if source.shape != target.shape && (source.dtype.is_block() || target.dtype.is_block()) {
        return refuse(op, "block types are copied between equal shapes only", operands);
    }
    Ok(OpResult { desc: target, view: Some(ViewOf { operand: 1, offset_bytes: 0 }) })
}

/// Operand 0 repeated to a shape.
pub(crate) fn repeat(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Repeat { shape } = op else { unreachable!("rule of `repeat`") };
    if !broadcasts(operands[0].shape, *shape) {
        return refuse(op, "every axis of the source must divide that of the new shape", operands);
    }
    packed(op, operands[0].dtype, *shape)
}
