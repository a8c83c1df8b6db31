//! Rows by index.

use super::{Rule, refuse, repeats};
use crate::{
    dtype::DType,
    op::{Op, OpResult, ViewOf, row::packed},
    shape::{Shape, TensorDesc},
};

/// Rows of a table by index: `[k,m,p,q]`, ids `[n,p,q]` → `[k,n,p,q]`.
pub(crate) fn get_rows(op: &Op, operands: &[TensorDesc]) -> Rule {
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
pub(crate) fn set_rows(op: &Op, operands: &[TensorDesc]) -> Rule {
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
