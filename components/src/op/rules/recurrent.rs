//! Gated recurrent steps.

use super::{Rule, refuse};
use crate::{
    dtype::DType,
    op::{Op, row::packed},
    shape::{Shape, TensorDesc},
};

/// Whether `gates` is `[count·h, n]` for a state `[h, n]`.
fn has_gates(gates: Shape, count: u64, state: Shape) -> bool {
    state.rank() <= 2 && state.0[0].checked_mul(count) == Some(gates.0[0]) && gates.0[1..] == state.0[1..]
}

/// Gates `[4h,n]`, cell `[h,n]` → hidden state and cell `[h,n,2]`.
pub(crate) fn lstm(op: &Op, operands: &[TensorDesc]) -> Rule {
    let (gates, cell) = (operands[0].shape, operands[1].shape);
    if !has_gates(gates, 4, cell) {
        return refuse(op, "the cell must be [h,n] and the gates [4h,n]", operands);
    }
    packed(op, DType::F32, Shape([cell.0[0], cell.0[1], 2, 1]))
}

/// Gates `[3h,n]` of input and of state, state `[h,n]` → `[h,n]`.
pub(crate) fn gru(op: &Op, operands: &[TensorDesc]) -> Rule {
    let [x_gates, h_gates, hidden] = [operands[0].shape, operands[1].shape, operands[2].shape];
    if !(has_gates(x_gates, 3, hidden) && has_gates(h_gates, 3, hidden)) {
        return refuse(op, "the state must be [h,n] and both gates [3h,n]", operands);
    }
    packed(op, DType::F32, hidden)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::OpError;

    fn f32s(shape: [u64; 4]) -> TensorDesc {
        TensorDesc::packed(DType::F32, Shape(shape)).expect("valid")
    }

    #[test]
    fn gates_are_as_many_as_the_state_asks_for() {
        let lstm = |gates, cell| Op::Lstm {}.result(&[f32s(gates), f32s(cell)]);
        assert_eq!(lstm([12, 5, 1, 1], [3, 5, 1, 1]).expect("fits").desc.shape, Shape([3, 5, 2, 1]));
        assert_eq!(lstm([0, 5, 1, 1], [0, 5, 1, 1]).expect("empty").desc.shape, Shape([0, 5, 2, 1]));
        for (gates, cell) in [
            ([9, 5, 1, 1], [3, 5, 1, 1]),
            ([12, 4, 1, 1], [3, 5, 1, 1]),
            ([12, 5, 2, 1], [3, 5, 2, 1]),
            ([12, 5, 2, 1], [3, 5, 1, 1]),
        ] {
            assert!(matches!(lstm(gates, cell), Err(OpError::Shape { .. })), "{gates:?} {cell:?}");
        }
        let gru = |x, h, state| Op::Gru {}.result(&[f32s(x), f32s(h), f32s(state)]);
        assert_eq!(gru([9, 5, 1, 1], [9, 5, 1, 1], [3, 5, 1, 1]).expect("fits").desc.shape, Shape([3, 5, 1, 1]));
        for (x, h, state) in [
            ([12, 5, 1, 1], [9, 5, 1, 1], [3, 5, 1, 1]),
            ([9, 5, 1, 1], [9, 4, 1, 1], [3, 5, 1, 1]),
            ([9, 5, 1, 1], [9, 5, 1, 1], [3, 5, 1, 2]),
        ] {
            assert!(matches!(gru(x, h, state), Err(OpError::Shape { .. })), "{x:?} {h:?} {state:?}");
        }
        // Four times the state is more than can be counted.
        let cell = TensorDesc { shape: Shape([1 << 62, 0, 1, 1]), ..f32s([0, 1, 1, 1]) };
        assert!(Op::Lstm {}.result(&[f32s([0, 0, 1, 1]), cell]).is_err());
    }
}
