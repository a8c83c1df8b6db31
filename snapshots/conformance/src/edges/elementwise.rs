//! Functions of elements: where they bend and overflow, results over either operand, sizes that threads share.

use entensor_components::{DType, Op};

use super::packed;
use crate::{Case, EXTREMES, Fill};

const FUNCTIONS: [Op; 28] = [
    Op::Scale { by: -2.0 },
    Op::Scale { by: f32::INFINITY },
    Op::Sqr {},
    Op::Sqrt {},
    Op::Log {},
    Op::Exp {},
    Op::Neg {},
    Op::Abs {},
    Op::Sgn {},
    Op::Step {},
    Op::Clamp { min: f32::MIN, max: f32::MAX },
    Op::Clamp { min: 0.0, max: 3.0 },
    Op::Clamp { min: -0.0, max: -0.0 },
    Op::Clamp { min: f32::NEG_INFINITY, max: f32::INFINITY },
    Op::Relu {},
    Op::LeakyRelu { negative_slope: 0.01 },
    Op::LeakyRelu { negative_slope: 0.0 },
    Op::LeakyRelu { negative_slope: -3.0 },
    Op::Elu {},
    Op::Sigmoid {},
    Op::Tanh {},
    Op::Silu {},
    Op::Gelu {},
    Op::GeluQuick {},
    Op::GeluErf {},
    Op::Hardsigmoid {},
    Op::Hardswish {},
    Op::Cont {},
];

const OF_TWO: [Op; 7] = [Op::Add {}, Op::Sub {}, Op::Mul {}, Op::Div {}, Op::Swiglu {}, Op::Geglu {}, Op::Reglu {}];

pub(super) fn cases(cases: &mut Vec<Case>) {
    let count = EXTREMES.len() as u64;
    for dtype in [DType::F32, DType::F16] {
        // Rows of one element, so that no large neighbour makes the tolerance wide.
        let x = packed(dtype, [1, count, 1, 1]);
        let pairs = packed(dtype, [1, count * count, 1, 1]);
        let row = packed(dtype, [count * count, 1, 1, 1]);
        for op in FUNCTIONS {
            cases.push(Case { fill: Fill::Extremes, ..Case::new(op, vec![x]) });
        }
        for op in OF_TWO {
            for operands in [vec![pairs, pairs], vec![row, row]] {
                cases.push(Case { fill: Fill::Extremes, ..Case::new(op.clone(), operands) });
            }
        }
    }
    let x = packed(DType::F32, [1000, 90, 1, 1]);
    for op in [Op::Gelu {}, Op::GeluErf {}, Op::Tanh {}, Op::Log {}, Op::Hardswish {}] {
        cases.push(Case { in_place: Some(0), ..Case::new(op, vec![x]) });
    }
    // The order of operands shows where the result takes over the second.
    for op in [Op::Sub {}, Op::Div {}, Op::Geglu {}] {
        cases.push(Case { in_place: Some(1), ..Case::new(op, vec![x, x]) });
    }
    cases.push(Case::new(Op::Div {}, vec![x, packed(DType::F32, [1, 90, 1, 1])]));
    cases.push(Case::new(Op::Sub {}, vec![x, packed(DType::F16, [100, 1, 1, 1])]));
    cases.push(Case::new(Op::Reglu {}, vec![x]));
}
