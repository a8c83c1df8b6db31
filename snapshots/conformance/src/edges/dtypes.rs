//! Every dtype where numbers, ids and sizes are at an edge.

use entensor_components::{DType, DTypeSet, Op};

use super::{operand, packed};
use crate::{Case, Fill, Layout};

pub(super) fn cases(cases: &mut Vec<Case>) {
    for dtype in DTypeSet::REALS.iter() {
        products(cases, dtype);
        rows(cases, dtype);
        copies(cases, dtype);
    }
    integers(cases);
}

/// Whole blocks of a dtype around the widths at which kernels change their ways.
fn widths(dtype: DType, of: &[u64]) -> impl Iterator<Item = u64> {
    of.iter().copied().filter(move |width| width.is_multiple_of(dtype.block_elements()))
}

/// Products whose tiles do not come out even, with activations that are no numbers, and large ones.
fn products(cases: &mut Vec<Case>, dtype: DType) {
    for k in widths(dtype, &[32, 64, 256, 288, 512, 576, 1536]) {
        for (m, n) in [(1, 1), (2, 3), (5, 4), (7, 7), (9, 13)] {
            let operands = vec![packed(dtype, [k, m, 1, 1]), packed(DType::F32, [k, n, 1, 1])];
            cases.push(Case::new(Op::MulMat {}, operands));
        }
    }
    for fill in [Fill::Nan, Fill::Infinity] {
        let operands = vec![packed(dtype, [256, 5, 1, 1]), packed(DType::F32, [256, 6, 1, 1])];
        cases.push(Case { fill, ..Case::new(Op::MulMat {}, operands) });
    }
    let operands = vec![packed(dtype, [512, 70, 1, 1]), packed(DType::F32, [512, 6, 1, 1])];
    cases.push(Case::new(Op::MulMat {}, operands));
    // Rows of weights that lie apart, and planes of them that are shared.
    let weights = operand(dtype, [256, 5, 2, 1], Layout::Permuted);
    cases.push(Case::new(Op::MulMat {}, vec![weights, operand(DType::F32, [256, 3, 6, 1], Layout::Sliced)]));
}

/// Ids that repeat and ids out of range, in both widths.
fn rows(cases: &mut Vec<Case>, dtype: DType) {
    for ids in DTypeSet::INDICES.iter() {
        let ids = packed(ids, [6, 1, 1, 1]);
        for fill in [Fill::IdTooLarge, Fill::IdNegative, Fill::IdsEqual] {
            let table = packed(dtype, [256, 9, 1, 1]);
            cases.push(Case { fill, ..Case::new(Op::GetRows {}, vec![table, ids]) });
            let rows = packed(DType::F32, [256, 6, 1, 1]);
            cases.push(Case { fill, ..Case::new(Op::SetRows {}, vec![table, rows, ids]) });
        }
    }
    let ids = packed(DType::I64, [5, 1, 1, 1]);
    let table = operand(dtype, [512, 7, 1, 1], Layout::Sliced);
    cases.push(Case::new(Op::GetRows {}, vec![table, ids]));
    cases.push(Case::new(Op::SetRows {}, vec![table, packed(DType::F32, [512, 5, 1, 1]), ids]));
}

/// Conversions from and to f32, where pieces of rows meet blocks.
fn copies(cases: &mut Vec<Case>, dtype: DType) {
    for width in widths(dtype, &[32, 256, 512, 768]) {
        let (plain, other) = (packed(DType::F32, [width, 5, 1, 1]), packed(dtype, [width, 5, 1, 1]));
        cases.push(Case::new(Op::Cpy {}, vec![plain, other]));
        cases.push(Case::new(Op::Cpy {}, vec![other, plain]));
    }
    // Longer than a chunk.
    let (plain, other) = (packed(DType::F32, [8192, 3, 1, 1]), packed(dtype, [8192, 3, 1, 1]));
    cases.push(Case::new(Op::Cpy {}, vec![plain, other]));
    cases.push(Case::new(Op::Cpy {}, vec![other, plain]));
}

/// Integers of every width are moved whole, whatever the layout.
fn integers(cases: &mut Vec<Case>) {
    for dtype in DTypeSet::INTEGERS.iter() {
        for width in [1, 7, 8, 33, 257, 5000] {
            for layout in [Layout::Contiguous, Layout::Transposed, Layout::Sliced] {
                let x = operand(dtype, [width, 3, 1, 1], layout);
                cases.push(Case::new(Op::Cont {}, vec![x]));
                cases.push(Case::new(Op::Cpy {}, vec![x, packed(dtype, [width, 1, 3, 1])]));
                cases.push(Case::new(Op::GetRows {}, vec![x, packed(DType::I64, [4, 1, 1, 1])]));
            }
        }
    }
}
