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

/// `[k,m,e]` planes, `[k,u',t]`, ids `[u,t]` → `[m,u,t]` in f32.
pub(crate) fn mul_mat_id(op: &Op, operands: &[TensorDesc]) -> Rule {
    let (experts, x, ids) = (operands[0].shape.0, operands[1].shape.0, operands[2].shape.0);
    if experts[0] != x[0] {
        return refuse(op, "experts and x need the same first axis (the one summed over)", operands);
    }
    if experts[3] != 1 || x[3] != 1 || ids[2] != 1 || ids[3] != 1 {
        return refuse(op, "experts and x have three axes at most, ids two", operands);
    }
    if x[2] != ids[1] || !repeats(x[1], ids[0]) {
        return refuse(
            op,
            "axis 1 of the ids must equal axis 2 of x (tokens), and axis 1 of x must divide axis 0 of the ids",
            operands,
        );
    }
    packed(op, DType::F32, Shape([experts[1], ids[0], ids[1], 1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::OpError;

    #[test]
    fn experts_refuse_what_does_not_fit() {
        let of = |dtype, shape| TensorDesc::packed(dtype, Shape(shape)).expect("valid");
        let run = |experts, x, ids| {
            Op::MulMatId {}.result(&[of(DType::F32, experts), of(DType::F16, x), of(DType::I32, ids)])
        };
        let (experts, x, ids) = ([8, 5, 4, 1], [8, 2, 3, 1], [2, 3, 1, 1]);
        assert_eq!(run(experts, x, ids).expect("fits").desc, of(DType::F32, [5, 2, 3, 1]));
        assert_eq!(run(experts, [8, 1, 3, 1], ids).expect("one row a token").desc.shape, Shape([5, 2, 3, 1]));
        assert!(run(experts, x, [0, 3, 1, 1]).is_ok() && run(experts, [8, 0, 3, 1], [0, 3, 1, 1]).is_ok(), "no slots");
        assert!(run([8, 5, 0, 1], x, ids).is_ok(), "no experts: any id is refused at run time");
        for (experts, x, ids) in [
            ([7, 5, 4, 1], x, ids),
            ([8, 5, 4, 2], x, ids),
            (experts, [8, 2, 3, 2], ids),
            (experts, [8, 3, 3, 1], ids),
            (experts, [8, 0, 3, 1], ids),
            (experts, x, [2, 4, 1, 1]),
            (experts, x, [2, 3, 2, 1]),
            (experts, x, [2, 3, 1, 2]),
        ] {
            assert!(matches!(run(experts, x, ids), Err(OpError::Shape { .. })), "{experts:?} {x:?} {ids:?}");
        }
        let huge = run([0, 1 << 40, 1, 1], [0, 1, 1 << 40, 1], [1, 1 << 40, 1, 1]);
        assert!(matches!(huge, Err(OpError::Result { .. })));
        let floats = Op::MulMatId {}.result(&[of(DType::F32, experts), of(DType::F32, x), of(DType::F32, ids)]);
        assert!(matches!(floats, Err(OpError::DType { operand: "ids", .. })));
    }
}
