//! Hand-made cases: what went wrong elsewhere, and sizes at which backends change their ways.

mod dtypes;
mod elementwise;
mod movement;
mod reductions;
mod spatial;

use entensor_components::{DType, Op, RopeMode, Shape};

mod products;

use crate::{Case, CaseOperand, Fill, Layout};

/// Every hand-made case.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    numbers(&mut cases);
    ids(&mut cases);
    rope(&mut cases);
    row_lengths(&mut cases);
    large(&mut cases);
    reductions::cases(&mut cases);
    spatial::cases(&mut cases);
    products::cases(&mut cases);
    dtypes::cases(&mut cases);
    elementwise::cases(&mut cases);
    movement::cases(&mut cases);
    cases
}

fn operand(dtype: DType, shape: [u64; 4], layout: Layout) -> CaseOperand {
    CaseOperand::new(dtype, Shape(shape), layout).expect("hand-made layouts exist")
}

fn packed(dtype: DType, shape: [u64; 4]) -> CaseOperand {
    operand(dtype, shape, Layout::Contiguous)
}

/// NaN, infinities, masks.
fn numbers(cases: &mut Vec<Case>) {
    use Fill::{AllMasked, Infinity, Large, MaskedByMask, MaskedNan, Nan};
    let x = packed(DType::F32, [37, 3, 2, 1]);
    let half = packed(DType::F16, [37, 3, 2, 1]);
    for fill in [Nan, Infinity, AllMasked, MaskedNan, Large] {
        for scale in [1.0, 0.125] {
            let op = Op::SoftMax { scale, max_bias: 0.0 };
            cases.push(Case { fill, ..Case::new(op.clone(), vec![x]) });
            cases.push(Case { fill, in_place: Some(0), ..Case::new(op.clone(), vec![x]) });
            let mask = packed(DType::F16, [37, 3, 1, 1]);
            cases.push(Case { fill, ..Case::new(op, vec![x, mask]) });
        }
    }
    for mask in [DType::F32, DType::F16] {
        let operands = vec![x, packed(mask, [37, 4, 1, 1])];
        cases.push(Case { fill: MaskedByMask, ..Case::new(Op::SoftMax { scale: 1.0, max_bias: 0.0 }, operands) });
    }
    for fill in [Nan, Infinity] {
        for x in [x, half] {
            for op in [Op::Relu {}, Op::Silu {}, Op::Scale { by: -2.0 }, Op::Cont {}] {
                cases.push(Case { fill, ..Case::new(op, vec![x]) });
            }
            for op in [Op::Add {}, Op::Mul {}, Op::Swiglu {}, Op::Cpy {}] {
                cases.push(Case { fill, ..Case::new(op, vec![x, x]) });
            }
        }
        for op in [Op::RmsNorm { eps: 1e-5 }, Op::SumRows {}] {
            cases.push(Case { fill, ..Case::new(op, vec![x]) });
        }
    }
    // A row of zeros must not divide by zero.
    cases.push(Case::new(Op::Scale { by: 0.0 }, vec![x]));
    cases.push(Case::new(Op::RmsNorm { eps: 0.0 }, vec![x]));
    // Nor must one of numbers whose mean square, or its root's inverse, is no f32.
    for fill in [Fill::Tiny, Fill::Huge] {
        cases.push(Case { fill, ..Case::new(Op::RmsNorm { eps: 0.0 }, vec![x]) });
    }
}

/// Ids that repeat, and ids out of range.
fn ids(cases: &mut Vec<Case>) {
    for fill in [Fill::IdTooLarge, Fill::IdNegative, Fill::IdsEqual] {
        let (table, ids) = (packed(DType::F32, [7, 5, 3, 2]), packed(DType::I32, [4, 3, 2, 1]));
        cases.push(Case { fill, ..Case::new(Op::GetRows {}, vec![table, ids]) });
        // A result without elements is no excuse for a bad id.
        let (empty, ids) = (packed(DType::F32, [0, 5, 1, 1]), packed(DType::I32, [2, 1, 1, 1]));
        cases.push(Case { fill, ..Case::new(Op::GetRows {}, vec![empty, ids]) });
    }
    // A transposed cache: rows of one element, thousands of them, and every id twice.
    let target = packed(DType::F16, [1, 4096, 1, 1]);
    let operands = vec![target, packed(DType::F32, [1, 8192, 1, 1]), packed(DType::I32, [8192, 1, 1, 1])];
    cases.push(Case::new(Op::SetRows {}, operands));
}

/// Partly rotated rows on every layout, in place and not, with factors and without.
fn rope(cases: &mut Vec<Case>) {
    let positions = packed(DType::I32, [5, 1, 1, 1]);
    for mode in [RopeMode::Normal, RopeMode::Neox] {
        for n_dims in [2, 6, 10] {
            let op = Op::rope(mode, n_dims, 10_000.0, 1.0);
            for dtype in [DType::F32, DType::F16] {
                for layout in Layout::ALL {
                    let x = operand(dtype, [10, 3, 5, 2], layout);
                    let factors = operand(DType::F32, [8, 1, 1, 1], Layout::Sliced);
                    cases.push(Case::new(op.clone(), vec![x, positions]));
                    cases.push(Case::new(op.clone(), vec![x, positions, factors]));
                    if layout == Layout::Contiguous {
                        let in_place = Some(0);
                        cases.push(Case { in_place, ..Case::new(op.clone(), vec![x, positions]) });
                        cases.push(Case { in_place, ..Case::new(op.clone(), vec![x, positions, factors]) });
                    }
                }
            }
        }
    }
    let long = Op::rope(RopeMode::Neox, 0, 1e6, 0.25);
    cases.push(Case::new(long, vec![packed(DType::F32, [600, 2, 5, 1]), positions]));
}

/// Row lengths around the widths of registers, blocks and tiles.
fn row_lengths(cases: &mut Vec<Case>) {
    for width in [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 511, 513] {
        for layout in [Layout::Contiguous, Layout::Sliced, Layout::Transposed] {
            for dtype in [DType::F32, DType::F16] {
                let x = operand(dtype, [width, 3, 1, 1], layout);
                for op in [Op::Silu {}, Op::Cont {}, Op::Scale { by: 3.0 }] {
                    cases.push(Case::new(op, vec![x]));
                }
                cases.push(Case::new(Op::Add {}, vec![x, operand(DType::F32, [width, 1, 1, 1], layout)]));
                cases.push(Case::new(Op::MulMat {}, vec![x, operand(DType::F32, [width, 5, 1, 1], layout)]));
            }
            let x = operand(DType::F32, [width, 3, 1, 1], layout);
            for op in [Op::SoftMax { scale: 0.5, max_bias: 0.0 }, Op::RmsNorm { eps: 1e-6 }, Op::SumRows {}] {
                cases.push(Case::new(op, vec![x]));
            }
        }
    }
}

/// Sizes at which backends start to share work between threads.
fn large(cases: &mut Vec<Case>) {
    let x = packed(DType::F32, [1000, 90, 1, 1]);
    for op in
        [Op::Silu {}, Op::SoftMax { scale: 1.0, max_bias: 0.0 }, Op::RmsNorm { eps: 1e-5 }, Op::SumRows {}, Op::Cont {}]
    {
        cases.push(Case::new(op, vec![x]));
    }
    cases.push(Case::new(Op::Cont {}, vec![operand(DType::F16, [300, 20, 17, 1], Layout::Transposed)]));
    cases.push(Case::new(Op::Add {}, vec![x, packed(DType::F32, [1000, 1, 1, 1])]));
    cases.push(Case { in_place: Some(0), ..Case::new(Op::Mul {}, vec![x, x]) });
    cases.push(Case::new(Op::Cpy {}, vec![x, packed(DType::F16, [900, 100, 1, 1])]));
    cases.push(Case::new(Op::Repeat { shape: Shape([1000, 90, 2, 1]) }, vec![packed(DType::F32, [10, 9, 2, 1])]));
    let positions = packed(DType::I32, [100, 1, 1, 1]);
    let rope = Op::rope(RopeMode::Neox, 0, 10_000.0, 1.0);
    cases.push(Case::new(rope, vec![packed(DType::F32, [64, 9, 100, 1]), positions]));
    for weights in [DType::F32, DType::F16, DType::Q4_1, DType::Q8_0] {
        for n in [1, 6, 70] {
            let operands = vec![packed(weights, [576, 300, 1, 1]), packed(DType::F32, [576, n, 1, 1])];
            cases.push(Case::new(Op::MulMat {}, operands));
        }
        let ids = packed(DType::I32, [300, 1, 1, 1]);
        let table = packed(weights, [256, 70, 1, 1]);
        cases.push(Case::new(Op::GetRows {}, vec![table, ids]));
        cases.push(Case::new(Op::SetRows {}, vec![table, packed(DType::F32, [256, 300, 1, 1]), ids]));
    }
    // Grouped-query attention.
    let keys = operand(DType::F16, [64, 200, 3, 1], Layout::Permuted);
    cases.push(Case::new(Op::MulMat {}, vec![keys, operand(DType::F32, [64, 7, 9, 1], Layout::Permuted)]));
}
