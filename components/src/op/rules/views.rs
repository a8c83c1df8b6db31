//! Other looks at the same memory.

use super::{Rule, refuse};
use crate::{
    op::{Op, OpError, OpResult, ViewOf, row::packed},
    shape::{MAX_DIMS, Shape, Strides, TensorDesc},
};

/// A window of operand 0's memory.
pub(crate) fn view(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::View { offset, shape, strides } = op else { unreachable!("rule of `view`") };
    let source = operands[0];
    let unit = source.dtype.block_bytes();
    let mut desc = packed(op, source.dtype, *shape)?.desc;
    if let Some(strides) = strides {
        if source.dtype.is_block() && strides.0[0] != unit {
            return refuse(
                op,
                "views of block types keep rows whole, so the first stride is the block's bytes",
                operands,
            );
        }
        if strides.0.iter().any(|s| !s.is_multiple_of(unit)) {
            return refuse(op, "strides must be whole elements (blocks)", operands);
        }
        desc.strides = *strides;
    }
    if !offset.is_multiple_of(unit) {
        return refuse(op, "the offset must be a whole number of elements (blocks)", operands);
    }
    let end = desc.span_bytes().and_then(|bytes| bytes.checked_add(*offset));
    if end.is_none_or(|end| end > source.size_bytes()) {
        return refuse(op, "the view must lie inside its source", operands);
    }
    Ok(OpResult { desc, view: Some(ViewOf { operand: 0, offset_bytes: *offset }) })
}

/// The same packed memory under another shape.
pub(crate) fn reshape(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Reshape { shape } = op else { unreachable!("rule of `reshape`") };
    if !operands[0].is_packed() {
        return refuse(op, "only packed tensors can be reshaped; apply `cont` first", operands);
    }
    if shape.elements() != operands[0].shape.elements() {
        return refuse(op, "the new shape must have the same number of elements", operands);
    }
    let desc = packed(op, operands[0].dtype, *shape)?.desc;
    Ok(OpResult { desc, view: Some(ViewOf { operand: 0, offset_bytes: 0 }) })
}

fn permuted(op: &Op, operands: &[TensorDesc], axes: [u32; MAX_DIMS]) -> Rule {
    let source = operands[0];
    let mut shape = [u64::MAX; MAX_DIMS];
    let mut strides = [0; MAX_DIMS];
    for (i, &axis) in axes.iter().enumerate() {
        let Some(slot) = shape.get_mut(axis as usize).filter(|slot| **slot == u64::MAX) else {
            return Err(OpError::Param { op: op.row().name, param: "axes", rule: "name each of 0, 1, 2, 3 once" });
        };
        *slot = source.shape.0[i];
        strides[axis as usize] = source.strides.0[i];
    }
    if source.dtype.is_block() && axes[0] != 0 {
        return refuse(op, "rows of block types stay whole, so axis 0 keeps its place", operands);
    }
    let desc = TensorDesc { dtype: source.dtype, shape: Shape(shape), strides: Strides(strides) };
    Ok(OpResult { desc, view: Some(ViewOf { operand: 0, offset_bytes: 0 }) })
}

/// Axis i of the source becomes axis `axes[i]`.
pub(crate) fn permute(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Permute { axes } = op else { unreachable!("rule of `permute`") };
    permuted(op, operands, *axes)
}

/// Axes 0 and 1 swapped.
pub(crate) fn transpose(op: &Op, operands: &[TensorDesc]) -> Rule {
    permuted(op, operands, [1, 0, 2, 3])
}
