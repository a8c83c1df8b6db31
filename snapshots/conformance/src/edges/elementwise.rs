//! Functions of elements: where they bend and overflow, results over either operand, sizes that threads share.

use entensor_components::{DType, DTypeSet, OPS, Op, OpRow};

use super::packed;
use crate::{Case, EXTREMES, Fill};

/// The functions of one element, and those of two: rows whose result may lie over any of so many operands of floats.
fn functions(operands: usize) -> impl Iterator<Item = Op> {
    let takes_floats = |row: &&OpRow| row.operands.iter().all(|operand| operand.dtypes == DTypeSet::FLOATS);
    let overwrites = &[0, 1][..operands];
    let rows = OPS.iter().filter(move |row| row.operands.len() == operands && row.overwrites == overwrites);
    rows.filter(takes_floats).map(|row| row.kind.default_op())
}

/// Parameters at which the functions are others than by default.
const PARAMETERS: [Op; 7] = [
    Op::Scale { by: -2.0 },
    Op::Scale { by: f32::INFINITY },
    Op::Clamp { min: 0.0, max: 3.0 },
    Op::Clamp { min: -0.0, max: -0.0 },
    Op::Clamp { min: f32::NEG_INFINITY, max: f32::INFINITY },
    Op::LeakyRelu { negative_slope: 0.0 },
    Op::LeakyRelu { negative_slope: -3.0 },
];

pub(super) fn cases(cases: &mut Vec<Case>) {
    let count = EXTREMES.len() as u64;
    for dtype in DTypeSet::FLOATS.iter() {
        // Rows of one element, so that no large neighbour makes the tolerance wide.
        let x = packed(dtype, [1, count, 1, 1]);
        let pairs = packed(dtype, [1, count * count, 1, 1]);
        let row = packed(dtype, [count * count, 1, 1, 1]);
        for op in functions(1).chain(PARAMETERS) {
            cases.push(Case { fill: Fill::Extremes, ..Case::new(op, vec![x]) });
        }
        for op in functions(2) {
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
