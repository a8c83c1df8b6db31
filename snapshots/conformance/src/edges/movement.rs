//! What moves elements: numbers that are none, overflow of casts, sizes that threads share.

use entensor_components::{DType, DTypeSet, Op, Shape, UpscaleMode};

use super::{operand, packed};
use crate::{Case, EXTREMES, Fill, Layout};

pub(super) fn cases(cases: &mut Vec<Case>) {
    numbers(cases);
    large(cases);
}

fn bilinear(ne: [u64; 4], align_corners: bool) -> Op {
    Op::Upscale { ne: Shape(ne), mode: UpscaleMode::Bilinear, align_corners }
}

/// Moving keeps whatever there is; a cast overflows to infinity; a mean spreads what is no number.
fn numbers(cases: &mut Vec<Case>) {
    let count = EXTREMES.len() as u64;
    for dtype in DTypeSet::FLOATS.iter() {
        let x = packed(dtype, [count, 3, 1, 1]);
        for op in [
            Op::Concat { dim: 0 },
            Op::Concat { dim: 1 },
            Op::Pad { right: [1, 1, 0, 0], left: [2, 0, 1, 0] },
            Op::Roll { shifts: [5, -1, 0, 0] },
            Op::Cast { dtype: DType::F32 },
            Op::Cast { dtype: DType::F16 },
        ] {
            let operands = vec![x; op.row().operands.len()];
            cases.push(Case { fill: Fill::Extremes, ..Case::new(op, operands) });
        }
        let image = packed(dtype, [7, 5, 1, 1]);
        for align_corners in [false, true] {
            for fill in [Fill::Nan, Fill::Infinity] {
                cases.push(Case { fill, ..Case::new(bilinear([13, 9, 1, 1], align_corners), vec![image]) });
                let nearest = Op::Upscale { ne: Shape([13, 9, 1, 1]), mode: UpscaleMode::Nearest, align_corners };
                cases.push(Case { fill, ..Case::new(nearest, vec![image]) });
            }
        }
    }
    for fill in [Fill::Nan, Fill::Infinity] {
        let steps = packed(DType::F32, [3, 1, 1, 1]);
        let op = Op::TimestepEmbedding { dim: 6, max_period: 10_000 };
        cases.push(Case { fill, ..Case::new(op, vec![steps]) });
    }
}

/// Sizes at which backends start to share work between threads, and rows longer than a share.
fn large(cases: &mut Vec<Case>) {
    let x = packed(DType::F32, [1000, 90, 1, 1]);
    let transposed = operand(DType::F32, [1000, 90, 1, 1], Layout::Transposed);
    for dim in [0, 1] {
        cases.push(Case::new(Op::Concat { dim }, vec![x, transposed]));
    }
    for x in [x, transposed] {
        cases.push(Case::new(Op::Pad { right: [3, 2, 1, 0], left: [300, 1, 0, 1] }, vec![x]));
        cases.push(Case::new(Op::Roll { shifts: [-333, 40, 0, 0] }, vec![x]));
        cases.push(Case::new(bilinear([700, 200, 1, 1], false), vec![x]));
    }
    let row = packed(DType::F16, [20_000, 1, 1, 1]);
    cases.push(Case::new(Op::Pad { right: [9000, 0, 0, 0], left: [9000, 0, 0, 0] }, vec![row]));
    cases.push(Case::new(Op::Roll { shifts: [9999, 0, 0, 0] }, vec![row]));
    cases.push(Case::new(bilinear([50_000, 1, 1, 1], true), vec![row]));
    cases.push(Case::new(
        Op::Upscale { ne: Shape([55, 3, 1, 1]), mode: UpscaleMode::Nearest, align_corners: false },
        vec![row],
    ));
    for dtype in DTypeSet::REALS.iter() {
        cases.push(Case::new(Op::Cast { dtype }, vec![packed(DType::F32, [1024, 90, 1, 1])]));
    }
    cases.push(Case::new(Op::Arange { start: -7.0, stop: 99_993.0, step: 1.0 }, vec![]));
    let op = Op::TimestepEmbedding { dim: 321, max_period: 10_000 };
    cases.push(Case::new(op, vec![operand(DType::F32, [50, 1, 1, 1], Layout::Sliced)]));
}
