//! Dtype and shape rules: what each op makes of its operands, or why it cannot.

use crate::{
    dtype::DType,
    op::{Op, OpError, OpResult, ViewOf, broadcasts, row::packed},
    shape::{MAX_DIMS, Shape, Strides, TensorDesc},
};

type Rule = Result<OpResult, OpError>;

fn refuse(op: &Op, rule: &'static str, operands: &[TensorDesc]) -> Rule {
    Err(op.row().shape_error(rule, operands))
}

/// Leaves have no operands and no rule; their description is given, not derived.
pub(super) fn leaf(op: &Op, operands: &[TensorDesc]) -> Rule {
    refuse(op, "a leaf's dtype and shape are declared, not derived", operands)
}

/// The result is packed, with the dtype and shape of operand 0.
pub(super) fn like_first(op: &Op, operands: &[TensorDesc]) -> Rule {
    packed(op, operands[0].dtype, operands[0].shape)
}

/// As [`like_first`], with an epsilon that keeps roots real.
pub(super) fn rms_norm(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::RmsNorm { eps } = op else { unreachable!("rule of `rms_norm`") };
    if !(eps.is_finite() && *eps >= 0.0) {
        return Err(OpError::Param { op: "rms_norm", param: "eps", rule: "must be 0 or more" });
    }
    like_first(op, operands)
}

/// Elementwise with operand 1 repeated to operand 0.
pub(super) fn broadcast_second(op: &Op, operands: &[TensorDesc]) -> Rule {
    if !broadcasts(operands[1].shape, operands[0].shape) {
        return refuse(op, "every axis of the second operand must divide that of the first", operands);
    }
    like_first(op, operands)
}

/// One operand split in halves along axis 0, or gate and value as two operands of one shape.
pub(super) fn gated(op: &Op, operands: &[TensorDesc]) -> Rule {
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

/// Softmax over rows with an optional mask.
pub(super) fn soft_max(op: &Op, operands: &[TensorDesc]) -> Rule {
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

/// `[k,m] × [k,n] → [m,n]` in f32; operand 0 is repeated over the outer axes of operand 1.
pub(super) fn mul_mat(op: &Op, operands: &[TensorDesc]) -> Rule {
    let (a, b) = (operands[0].shape.0, operands[1].shape.0);
    if a[0] != b[0] {
        return refuse(op, "both operands need the same first axis (the one summed over)", operands);
    }
    if !(0..2).all(|i| repeats(a[i + 2], b[i + 2])) {
        return refuse(op, "outer axes of the first operand must divide those of the second", operands);
    }
    packed(op, DType::F32, Shape([a[1], b[1], b[2], b[3]]))
}

fn repeats(small: u64, large: u64) -> bool {
    if small == 0 { large == 0 } else { large.is_multiple_of(small) }
}

/// Rows of a table by index: `[k,m,p,q]`, ids `[n,p,q]` → `[k,n,p,q]`.
pub(super) fn get_rows(op: &Op, operands: &[TensorDesc]) -> Rule {
    let (table, ids) = (operands[0], operands[1]);
    let (t, i) = (table.shape.0, ids.shape.0);
    if t[2] != i[1] || t[3] != i[2] || i[3] != 1 {
        return refuse(
            op,
            "axes 1 and 2 of the ids must equal axes 2 and 3 of the table, and axis 3 must be 1",
            operands,
        );
    }
    let dtype = if table.dtype.is_integer() { table.dtype } else { DType::F32 };
    packed(op, dtype, Shape([t[0], i[0], i[1], i[2]]))
}

/// Rows written by index: target `[k,m,p,q]`, rows `[k,n,p,q]`, ids `[n,p',q']`; the result is the target.
pub(super) fn set_rows(op: &Op, operands: &[TensorDesc]) -> Rule {
    let (target, rows, ids) = (operands[0], operands[1], operands[2]);
    let (t, r, i) = (target.shape.0, rows.shape.0, ids.shape.0);
    if t[0] != r[0] || t[2] != r[2] || t[3] != r[3] {
        return refuse(op, "target and rows must agree on axes 0, 2 and 3", operands);
    }
    if r[1] != i[0] || !repeats(i[1], r[2]) || !repeats(i[2], r[3]) || i[3] != 1 {
        return refuse(
            op,
            "there must be one id a row, and outer axes of the ids must divide those of the rows",
            operands,
        );
    }
    Ok(OpResult { desc: target, view: Some(ViewOf { operand: 0, offset_bytes: 0 }) })
}

/// Source copied into the target, converting; the result is the target.
pub(super) fn cpy(op: &Op, operands: &[TensorDesc]) -> Rule {
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

/// A window of operand 0's memory.
pub(super) fn view(op: &Op, operands: &[TensorDesc]) -> Rule {
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
pub(super) fn reshape(op: &Op, operands: &[TensorDesc]) -> Rule {
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
pub(super) fn permute(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Permute { axes } = op else { unreachable!("rule of `permute`") };
    permuted(op, operands, *axes)
}

/// Axes 0 and 1 swapped.
pub(super) fn transpose(op: &Op, operands: &[TensorDesc]) -> Rule {
    permuted(op, operands, [1, 0, 2, 3])
}

/// Rotary embedding: one position per element of axis 2.
pub(super) fn rope(op: &Op, operands: &[TensorDesc]) -> Rule {
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

/// Operand 0 repeated to a shape.
pub(super) fn repeat(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Repeat { shape } = op else { unreachable!("rule of `repeat`") };
    if !broadcasts(operands[0].shape, *shape) {
        return refuse(op, "every axis of the source must divide that of the new shape", operands);
    }
    packed(op, operands[0].dtype, *shape)
}

/// Rows summed: the first axis becomes 1.
pub(super) fn sum_rows(op: &Op, operands: &[TensorDesc]) -> Rule {
    let [_, d1, d2, d3] = operands[0].shape.0;
    packed(op, operands[0].dtype, Shape([1, d1, d2, d3]))
}
