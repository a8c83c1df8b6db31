//! Rows by index.

use super::{Rule, like_first, refuse, repeats};
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
    let expected = if target.dtype.is_integer() { target.dtype } else { DType::F32 };
    if rows.dtype != expected {
        return refuse(op, "rows are f32, or of the target's dtype if that is an integer", operands);
    }
    Ok(OpResult { desc: target, view: Some(ViewOf { operand: 0, offset_bytes: 0 }) })
}

/// `a` `[m,u,t]` and rows of `b` `[m,e]` by ids `[u,t]`.
pub(crate) fn add_id(op: &Op, operands: &[TensorDesc]) -> Rule {
    let (a, b, ids) = (operands[0].shape.0, operands[1].shape.0, operands[2].shape.0);
    if a[0] != b[0] {
        return refuse(op, "a and b need the same first axis", operands);
    }
    if a[3] != 1 || b[2] != 1 || b[3] != 1 || ids[2] != 1 || ids[3] != 1 {
        return refuse(op, "a has three axes at most, b and ids two", operands);
    }
    if a[1..3] != ids[..2] {
        return refuse(op, "there must be one id per row of a", operands);
    }
    like_first(op, operands)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::OpError;

    fn of(dtype: DType, shape: [u64; 4]) -> TensorDesc {
        TensorDesc::packed(dtype, Shape(shape)).expect("valid")
    }

    fn refused(op: &Op, shapes: &[[u64; 4]]) -> bool {
        let last = shapes.len() - 1;
        let dtype = |i| if i == last { DType::I32 } else { DType::F32 };
        let operands: Vec<_> = shapes.iter().enumerate().map(|(i, &shape)| of(dtype(i), shape)).collect();
        matches!(op.result(&operands), Err(OpError::Shape { .. }))
    }

    #[test]
    fn ids_must_fit_their_rows() {
        let get = |table, ids| refused(&Op::GetRows {}, &[table, ids]);
        assert!(!get([7, 5, 3, 2], [4, 3, 2, 1]) && !get([7, 0, 1, 1], [4, 1, 1, 1]));
        assert!(get([7, 5, 3, 2], [4, 2, 2, 1]) && get([7, 5, 3, 2], [4, 3, 1, 1]) && get([7, 5, 1, 1], [4, 1, 1, 2]));

        let set = |target, rows, ids| refused(&Op::SetRows {}, &[target, rows, ids]);
        assert!(!set([7, 9, 4, 2], [7, 3, 4, 2], [3, 2, 1, 1]));
        for (target, rows, ids) in [
            ([7, 9, 4, 2], [6, 3, 4, 2], [3, 2, 1, 1]),
            ([7, 9, 4, 2], [7, 3, 2, 2], [3, 2, 1, 1]),
            ([7, 9, 4, 2], [7, 3, 4, 1], [3, 2, 1, 1]),
            ([7, 9, 4, 2], [7, 3, 4, 2], [4, 2, 1, 1]),
            ([7, 9, 4, 2], [7, 3, 4, 2], [3, 3, 1, 1]),
            ([7, 9, 4, 2], [7, 3, 4, 2], [3, 2, 1, 2]),
        ] {
            assert!(set(target, rows, ids), "{target:?} {rows:?} {ids:?}");
        }

        let add = |a, b, ids| refused(&Op::AddId {}, &[a, b, ids]);
        assert!(!add([7, 2, 3, 1], [7, 5, 1, 1], [2, 3, 1, 1]));
        for (a, b, ids) in [
            ([6, 2, 3, 1], [7, 5, 1, 1], [2, 3, 1, 1]),
            ([7, 2, 3, 2], [7, 5, 1, 1], [2, 3, 1, 1]),
            ([7, 2, 3, 1], [7, 5, 2, 1], [2, 3, 1, 1]),
            ([7, 2, 3, 1], [7, 5, 1, 2], [2, 3, 1, 1]),
            ([7, 2, 3, 1], [7, 5, 1, 1], [1, 3, 1, 1]),
            ([7, 2, 3, 1], [7, 5, 1, 1], [2, 2, 1, 1]),
            ([7, 2, 3, 1], [7, 5, 1, 1], [2, 3, 2, 1]),
            ([7, 2, 3, 1], [7, 5, 1, 1], [2, 3, 1, 2]),
        ] {
            assert!(add(a, b, ids), "{a:?} {b:?} {ids:?}");
        }
    }

    #[test]
    fn tables_of_integers_give_integers() {
        let ids = of(DType::I32, [4, 1, 1, 1]);
        let rows = |dtype| Op::GetRows {}.result(&[of(dtype, [64, 5, 1, 1]), ids]).expect("fits").desc.dtype;
        assert_eq!(rows(DType::I32), DType::I32);
        for dtype in [DType::F32, DType::F16, DType::Q4_1, DType::Q8_0] {
            assert_eq!(rows(dtype), DType::F32);
        }
    }
}
