//! Functions of elements.

use super::{Rule, refuse, refuse_param};
use crate::{
    op::{Op, broadcasts, row::packed},
    shape::{Shape, TensorDesc},
};

/// The result is packed, with the dtype and shape of operand 0.
pub(crate) fn like_first(op: &Op, operands: &[TensorDesc]) -> Rule {
    packed(op, operands[0].dtype, operands[0].shape)
}

/// Like operand 0, scaled by a number.
pub(crate) fn scale(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Scale { by } = op else { unreachable!("rule of `scale`") };
    if by.is_nan() {
        return refuse_param(op, "by", "must be a number");
    }
    like_first(op, operands)
}

/// Like operand 0, between two bounds.
pub(crate) fn clamp(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Clamp { min, max } = op else { unreachable!("rule of `clamp`") };
    if min.is_nan() {
        return refuse_param(op, "min", "must be a number");
    }
    if max.is_nan() || max < min {
        return refuse_param(op, "max", "must be a number that is at least `min`");
    }
    like_first(op, operands)
}

/// Like operand 0, with a slope below zero.
pub(crate) fn leaky_relu(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::LeakyRelu { negative_slope } = op else { unreachable!("rule of `leaky_relu`") };
    if !negative_slope.is_finite() {
        return refuse_param(op, "negative_slope", "must be finite");
    }
    like_first(op, operands)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dtype::DType, op::OpError};

    fn f32s(shape: [u64; 4]) -> TensorDesc {
        TensorDesc::packed(DType::F32, Shape(shape)).expect("valid")
    }

    #[track_caller]
    fn refused(op: &Op, name: &str) {
        match op.result(&[f32s([3, 2, 1, 1])]) {
            Err(OpError::Param { param, .. }) => assert_eq!(param, name, "{op}"),
            other => panic!("{op}: {other:?}"),
        }
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        refused(&Op::Scale { by: f32::NAN }, "by");
        refused(&Op::Clamp { min: f32::NAN, max: 1.0 }, "min");
        refused(&Op::Clamp { min: 0.0, max: f32::NAN }, "max");
        refused(&Op::Clamp { min: 1.0, max: 0.5 }, "max");
        for negative_slope in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            refused(&Op::LeakyRelu { negative_slope }, "negative_slope");
        }
        for op in [
            Op::Clamp { min: 1.0, max: 1.0 },
            Op::Clamp { min: f32::NEG_INFINITY, max: f32::INFINITY },
            Op::LeakyRelu { negative_slope: -2.0 },
            Op::Scale { by: 0.0 },
        ] {
            assert_eq!(op.result(&[f32s([3, 2, 1, 1])]).map(|r| r.desc), Ok(f32s([3, 2, 1, 1])), "{op}");
        }
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        for op in [Op::Sub {}, Op::Div {}] {
            let broadcast = op.result(&[f32s([6, 4, 1, 1]), f32s([3, 1, 1, 1])]);
            assert_eq!(broadcast.map(|r| r.desc), Ok(f32s([6, 4, 1, 1])));
            for second in [[4, 1, 1, 1], [6, 8, 1, 1], [6, 0, 1, 1]] {
                let result = op.result(&[f32s([6, 4, 1, 1]), f32s(second)]);
                assert!(matches!(result, Err(OpError::Shape { .. })), "{op} {second:?}: {result:?}");
            }
        }
        for op in [Op::Geglu {}, Op::Reglu {}] {
            assert_eq!(op.result(&[f32s([6, 4, 1, 1])]).map(|r| r.desc), Ok(f32s([3, 4, 1, 1])));
            for operands in [&[f32s([5, 4, 1, 1])][..], &[f32s([6, 4, 1, 1]), f32s([6, 1, 1, 1])]] {
                assert!(matches!(op.result(operands), Err(OpError::Shape { .. })), "{op}");
            }
        }
        let integers = TensorDesc::packed(DType::I32, Shape([3, 1, 1, 1])).expect("valid");
        for op in [Op::Gelu {}, Op::Neg {}, Op::Log {}] {
            assert!(matches!(op.result(&[integers]), Err(OpError::DType { .. })), "{op}");
            assert!(matches!(op.result(&[]), Err(OpError::Arity { .. })), "{op}");
        }
    }
}
