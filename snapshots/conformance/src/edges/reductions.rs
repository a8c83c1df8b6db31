//! Norms, softmax, sorting and sums at their edges.

use entensor_components::{DType, Op, SortOrder};

use super::{operand, packed};
use crate::{Case, CaseOperand, Fill, Layout};

pub(super) fn cases(cases: &mut Vec<Case>) {
    numbers(cases);
    sinks_and_slopes(cases);
    row_lengths(cases);
    large(cases);
}

/// The ops that take rows of one operand.
fn ops() -> Vec<Op> {
    vec![
        Op::Norm { eps: 1e-5 },
        Op::GroupNorm { n_groups: 1, eps: 1e-6 },
        Op::L2Norm { eps: 1e-12 },
        Op::DiagMaskInf { n_past: 1 },
        Op::Argmax {},
        Op::Argsort { order: SortOrder::Ascending },
        Op::Argsort { order: SortOrder::Descending },
        Op::TopK { k: 1 },
        Op::Sum {},
        Op::Mean {},
        Op::Cumsum {},
    ]
}

/// NaN, infinities, equals, and numbers whose squares no f32 can hold.
fn numbers(cases: &mut Vec<Case>) {
    use Fill::{AllMasked, Equal, Huge, Infinity, Large, MaskedNan, Nan, Nans, Offset, Specials, Tiny};
    let x = packed(DType::F32, [37, 3, 4, 2]);
    let mut ops = ops();
    ops.push(Op::TopK { k: 20 });
    // Groups of one size, and of two.
    ops.extend([2, 3].map(|n_groups| Op::GroupNorm { n_groups, eps: 1e-6 }));
    for fill in [Nan, Infinity, AllMasked, MaskedNan, Large, Specials, Nans, Equal, Huge, Tiny, Offset] {
        for op in &ops {
            for layout in [Layout::Contiguous, Layout::Transposed] {
                let x = operand(DType::F32, [37, 3, 4, 2], layout);
                cases.push(Case { fill, ..Case::new(op.clone(), vec![x]) });
            }
            if op.row().overwrites.contains(&0) {
                cases.push(Case { fill, in_place: Some(0), ..Case::new(op.clone(), vec![x]) });
            }
        }
    }
    // Without an epsilon, rows of zeros and of equals are not numbers.
    for fill in [Equal, Tiny] {
        for op in [Op::Norm { eps: 0.0 }, Op::L2Norm { eps: 0.0 }, Op::GroupNorm { n_groups: 2, eps: 0.0 }] {
            cases.push(Case { fill, ..Case::new(op, vec![x]) });
        }
    }
    // A length below the epsilon.
    cases.push(Case { fill: Tiny, ..Case::new(Op::L2Norm { eps: 1.0 }, vec![x]) });
    // What has no rows, or rows of nothing.
    for op in [Op::Sum {}, Op::Mean {}, Op::SumRows {}, Op::Argmax {}] {
        for shape in [[0, 5, 2, 1], [5, 0, 2, 1], [0, 0, 1, 1]] {
            cases.push(Case::new(op.clone(), vec![packed(DType::F32, shape)]));
        }
    }
}

/// ALiBi and sinks over masks of all kinds.
fn sinks_and_slopes(cases: &mut Vec<Case>) {
    use Fill::{AllMasked, InfiniteSink, Large, MaskedByMask, MaskedNan, MaskedSinks, Nan, NanSink, Plain};
    for heads in [1, 2, 3, 8, 12] {
        let x = packed(DType::F32, [37, 3, heads, 2]);
        let sinks = packed(DType::F32, [heads, 1, 1, 1]);
        for max_bias in [0.0, 0.5, 8.0, 126.0] {
            for (scale, mask) in [(1.0, DType::F32), (0.125, DType::F16)] {
                let op = Op::SoftMax { scale, max_bias };
                let mask = packed(mask, [37, 4, 1, 1]);
                let fills = [Plain, AllMasked, MaskedByMask, Nan];
                cases.extend(fills.map(|fill| Case { fill, ..Case::new(op.clone(), vec![x, mask]) }));
                let fills = [Plain, AllMasked, MaskedByMask, MaskedSinks, MaskedNan, NanSink, InfiniteSink, Nan, Large];
                for fill in fills {
                    let case = Case { fill, ..Case::new(op.clone(), vec![x, mask, sinks]) };
                    cases.extend([Case { in_place: Some(0), ..case.clone() }, case]);
                }
            }
        }
    }
}

/// Row lengths around the widths of registers and tiles, and around what a top-k keeps.
fn row_lengths(cases: &mut Vec<Case>) {
    for width in [1, 2, 7, 8, 9, 31, 33, 255, 256, 257, 511, 513, 1025] {
        for layout in [Layout::Contiguous, Layout::Sliced, Layout::Transposed] {
            let x = operand(DType::F32, [width, 3, 1, 1], layout);
            cases.extend(ops().into_iter().map(|op| Case::new(op, vec![x])));
            let k = u32::try_from(width).expect("small").div_ceil(2);
            for fill in [Fill::Plain, Fill::Specials] {
                cases.push(Case { fill, ..Case::new(Op::TopK { k }, vec![x]) });
            }
        }
    }
    for (width, k) in [(256, 255), (257, 128), (300, 129), (2000, 128), (2000, 1), (2000, 1999), (5000, 700)] {
        let x = packed(DType::F32, [width, 3, 1, 1]);
        for fill in [Fill::Plain, Fill::Specials, Fill::Nans, Fill::Equal, Fill::AllMasked] {
            cases.push(Case { fill, ..Case::new(Op::TopK { k }, vec![x]) });
        }
    }
    // The diagonal inside, at the end of, and behind tiles and rows.
    for n_past in [0, 254, 255, 256, 299, 300, u32::MAX] {
        let x = packed(DType::F32, [300, 4, 1, 1]);
        cases.push(Case { in_place: Some(0), ..Case::new(Op::DiagMaskInf { n_past }, vec![x]) });
        cases.push(Case::new(Op::DiagMaskInf { n_past }, vec![x]));
    }
}

/// Sizes at which backends start to share work between threads.
fn large(cases: &mut Vec<Case>) {
    let x = packed(DType::F32, [1000, 90, 1, 1]);
    cases.extend(ops().into_iter().map(|op| Case::new(op, vec![x])));
    cases.push(Case::new(Op::TopK { k: 40 }, vec![x]));
    // One row that is cut, and rows that are not next to each other.
    cases.push(Case::new(Op::Sum {}, vec![packed(DType::F32, [90_001, 1, 1, 1])]));
    for layout in [Layout::Transposed, Layout::Sliced, Layout::Broadcast] {
        cases.push(Case::new(Op::Sum {}, vec![operand(DType::F32, [300, 20, 17, 1], layout)]));
    }
    for n_groups in [1, 8, 9] {
        for layout in [Layout::Contiguous, Layout::Permuted] {
            let x = operand(DType::F32, [33, 21, 48, 2], layout);
            cases.push(Case::new(Op::GroupNorm { n_groups, eps: 1e-6 }, vec![x]));
        }
    }
    // Many short rows.
    let short = packed(DType::F32, [16, 5000, 1, 1]);
    for op in [Op::Argsort { order: SortOrder::Descending }, Op::TopK { k: 2 }, Op::Argmax {}, Op::Norm { eps: 1e-5 }] {
        cases.push(Case::new(op, vec![short]));
    }
    let operands: Vec<CaseOperand> =
        [[300, 40, 12, 1], [300, 40, 1, 1], [12, 1, 1, 1]].into_iter().map(|shape| packed(DType::F32, shape)).collect();
    cases.push(Case::new(Op::SoftMax { scale: 0.125, max_bias: 8.0 }, operands));
}
