//! Copies, repetition, and what else moves elements or makes them from nothing.

use super::{Rule, refuse, refuse_param};
use crate::{
    dtype::DType,
    op::{Op, OpResult, ViewOf, broadcasts, row::packed},
    shape::{MAX_DIMS, Shape, TensorDesc},
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

/// Operand 1 behind operand 0 along an axis.
pub(crate) fn concat(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Concat { dim } = op else { unreachable!("rule of `concat`") };
    let (a, b) = (operands[0], operands[1]);
    if a.dtype != b.dtype {
        return refuse(op, "both operands must have one dtype", operands);
    }
    let mut shape = a.shape.0;
    let Some(along) = shape.get_mut(*dim as usize) else {
        return refuse_param(op, "dim", "must be 0, 1, 2 or 3");
    };
    *along = along.saturating_add(b.shape.0[*dim as usize]);
    if (0..MAX_DIMS).any(|axis| axis != *dim as usize && a.shape.0[axis] != b.shape.0[axis]) {
        return refuse(op, "the operands may differ along axis `dim` only", operands);
    }
    packed(op, a.dtype, Shape(shape))
}

/// Operand 0 with zeros around.
pub(crate) fn pad(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Pad { right, left } = op else { unreachable!("rule of `pad`") };
    let shape = std::array::from_fn(|axis| {
        let added = u64::from(left[axis]) + u64::from(right[axis]);
        operands[0].shape.0[axis].saturating_add(added)
    });
    packed(op, operands[0].dtype, Shape(shape))
}

/// Operand 0 stretched to a shape.
pub(crate) fn upscale(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Upscale { ne, .. } = op else { unreachable!("rule of `upscale`") };
    if operands[0].shape.is_empty() && !ne.is_empty() {
        return refuse(op, "a tensor without elements can only be stretched to one without", operands);
    }
    packed(op, operands[0].dtype, *ne)
}

/// Operand 0 as another dtype.
pub(crate) fn cast(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Cast { dtype } = op else { unreachable!("rule of `cast`") };
    if dtype.is_integer() {
        return refuse_param(op, "dtype", "must be one of real numbers, not of integers");
    }
    packed(op, *dtype, operands[0].shape)
}

/// Numbers at equal distances.
pub(crate) fn arange(op: &Op, _: &[TensorDesc]) -> Rule {
    let Op::Arange { start, stop, step } = op else { unreachable!("rule of `arange`") };
    for (param, value) in [("start", start), ("stop", stop), ("step", step)] {
        if !value.is_finite() {
            return refuse_param(op, param, "must be finite");
        }
    }
    if *step == 0.0 {
        return refuse_param(op, "step", "must not be 0");
    }
    // Casts saturate: below zero is empty, and what is too large to count cannot exist.
    let count = ((stop - start) / step).ceil() as u64;
    packed(op, DType::F32, Shape([count, 1, 1, 1]))
}

/// One row of sines and cosines a time step.
pub(crate) fn timestep_embedding(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::TimestepEmbedding { dim, max_period } = op else { unreachable!("rule of `timestep_embedding`") };
    if *dim == 0 {
        return refuse_param(op, "dim", "must be at least 1");
    }
    if *max_period == 0 {
        return refuse_param(op, "max_period", "must be at least 1");
    }
    let timesteps = operands[0].shape;
    if timesteps.rank() != 1 {
        return refuse(op, "time steps must have one axis", operands);
    }
    packed(op, DType::F32, Shape([u64::from(*dim), timesteps.0[0], 1, 1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        op::OpError,
        shape::{ShapeError, Strides},
    };

    fn desc(dtype: DType, shape: [u64; 4]) -> TensorDesc {
        TensorDesc::packed(dtype, Shape(shape)).expect("valid")
    }

    fn f32s(shape: [u64; 4]) -> TensorDesc {
        desc(DType::F32, shape)
    }

    #[track_caller]
    fn makes(op: &Op, operands: &[TensorDesc], expected: TensorDesc) {
        assert_eq!(op.result(operands), Ok(OpResult { desc: expected, view: None }), "{op}");
    }

    #[track_caller]
    fn bad_param(op: &Op, operands: &[TensorDesc], name: &str) {
        match op.result(operands) {
            Err(OpError::Param { param, .. }) => assert_eq!(param, name, "{op}"),
            other => panic!("{op}: {other:?}"),
        }
    }

    #[track_caller]
    fn bad_shape(op: &Op, operands: &[TensorDesc]) {
        let result = op.result(operands);
        assert!(matches!(result, Err(OpError::Shape { .. })), "{op}: {result:?}");
    }

    #[track_caller]
    fn impossible(op: &Op, operands: &[TensorDesc]) {
        let result = op.result(operands);
        assert!(matches!(result, Err(OpError::Result { .. })), "{op}: {result:?}");
    }

    #[test]
    fn concat_adds_along_one_axis() {
        let a = f32s([7, 5, 3, 2]);
        for dim in 0..4_u32 {
            let mut shape = a.shape.0;
            shape[dim as usize] = 4;
            let b = f32s(shape);
            shape[dim as usize] += a.shape.0[dim as usize];
            makes(&Op::Concat { dim }, &[a, b], f32s(shape));
            bad_shape(&Op::Concat { dim: (dim + 1) % 4 }, &[a, b]);
        }
        makes(&Op::Concat { dim: 0 }, &[f32s([0, 3, 1, 1]), f32s([2, 3, 1, 1])], f32s([2, 3, 1, 1]));
        let blocks = |width| desc(DType::Q8_0, [width, 3, 1, 1]);
        makes(&Op::Concat { dim: 0 }, &[blocks(32), blocks(64)], blocks(96));
        for dim in [4, u32::MAX] {
            bad_param(&Op::Concat { dim }, &[a, a], "dim");
        }
        bad_shape(&Op::Concat { dim: 0 }, &[a, desc(DType::F16, [7, 5, 3, 2])]);
        let vast = TensorDesc { shape: Shape([u64::MAX, 1, 1, 1]), strides: Strides([0; 4]), ..a };
        impossible(&Op::Concat { dim: 0 }, &[vast, f32s([1, 1, 1, 1])]);
    }

    #[test]
    fn pad_adds_on_both_sides() {
        let op = Op::Pad { right: [1, 2, 3, 4], left: [5, 0, 1, 0] };
        makes(&op, &[desc(DType::I32, [7, 5, 3, 2])], desc(DType::I32, [13, 7, 7, 6]));
        makes(&op, &[f32s([0, 5, 3, 2])], f32s([6, 7, 7, 6]));
        impossible(&Op::Pad { right: [u32::MAX; 4], left: [u32::MAX; 4] }, &[f32s([7, 5, 3, 2])]);
        let blocks = desc(DType::Q8_0, [32, 1, 1, 1]);
        assert!(matches!(op.result(&[blocks]), Err(OpError::DType { .. })));
    }

    #[test]
    fn upscale_goes_to_any_shape_from_something() {
        let op = |ne| Op::Upscale { ne: Shape(ne), mode: crate::UpscaleMode::Bilinear, align_corners: true };
        makes(&op([3, 9, 6, 1]), &[desc(DType::F16, [7, 5, 3, 2])], desc(DType::F16, [3, 9, 6, 1]));
        makes(&op([3, 0, 6, 1]), &[f32s([0, 5, 3, 2])], f32s([3, 0, 6, 1]));
        bad_shape(&op([3, 9, 6, 1]), &[f32s([0, 5, 3, 2])]);
        impossible(&op([u64::MAX, 9, 6, 1]), &[f32s([7, 5, 3, 2])]);
    }

    #[test]
    fn cast_is_between_real_numbers() {
        let x = f32s([64, 5, 1, 1]);
        makes(&Op::Cast { dtype: DType::Q4_1 }, &[x], desc(DType::Q4_1, [64, 5, 1, 1]));
        makes(&Op::Cast { dtype: DType::F16 }, &[desc(DType::Q8_0, [64, 5, 1, 1])], desc(DType::F16, [64, 5, 1, 1]));
        bad_param(&Op::Cast { dtype: DType::I32 }, &[x], "dtype");
        impossible(&Op::Cast { dtype: DType::Q8_0 }, &[f32s([33, 2, 1, 1])]);
        let integers = desc(DType::I32, [64, 1, 1, 1]);
        assert!(matches!(Op::Cast { dtype: DType::F32 }.result(&[integers]), Err(OpError::DType { .. })));
    }

    #[test]
    fn arange_counts_what_lies_before_the_end() {
        let op = |start, stop, step| Op::Arange { start, stop, step };
        for (start, stop, step, count) in [
            (0.0, 4.0, 1.0, 4),
            (0.0, 4.5, 1.0, 5),
            (3.0, -3.0, -2.0, 3),
            (0.0, 1.0, 0.1, 10),
            (2.0, 2.0, 1.0, 0),
            (2.0, 5.0, -1.0, 0),
        ] {
            makes(&op(start, stop, step), &[], f32s([count, 1, 1, 1]));
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            bad_param(&op(bad, 1.0, 1.0), &[], "start");
            bad_param(&op(0.0, bad, 1.0), &[], "stop");
            bad_param(&op(0.0, 1.0, bad), &[], "step");
        }
        for zero in [0.0, -0.0] {
            bad_param(&op(0.0, 1.0, zero), &[], "step");
        }
        for (start, stop, step) in [(0.0, f32::MAX, 1.0), (f32::MIN, f32::MAX, 1.0), (0.0, 1.0, 1e-40)] {
            let result = op(start, stop, step).result(&[]);
            let overflow = matches!(result, Err(OpError::Result { source: ShapeError::Overflow { .. }, .. }));
            assert!(overflow, "{result:?}");
        }
        assert!(matches!(op(0.0, 1.0, 1.0).result(&[f32s([1; 4])]), Err(OpError::Arity { .. })));
    }

    #[test]
    fn time_steps_are_a_list() {
        let op = |dim, max_period| Op::TimestepEmbedding { dim, max_period };
        makes(&op(7, 1), &[f32s([5, 1, 1, 1])], f32s([7, 5, 1, 1]));
        makes(&op(7, 100), &[f32s([0, 1, 1, 1])], f32s([7, 0, 1, 1]));
        bad_param(&op(0, 100), &[f32s([5, 1, 1, 1])], "dim");
        bad_param(&op(2, 0), &[f32s([5, 1, 1, 1])], "max_period");
        bad_shape(&op(2, 100), &[f32s([5, 2, 1, 1])]);
        impossible(&op(u32::MAX, 100), &[f32s([1 << 40, 1, 1, 1])]);
    }
}
