//! Functions of rows.

use super::{MAX_BIAS, Rule, like_first, mask_planes_fit, refuse};
use crate::{
    dtype::DType,
    op::{Op, OpError, row::packed},
    shape::{Shape, TensorDesc},
};

fn out_of_range(op: &Op, param: &'static str, rule: &'static str) -> OpError {
    OpError::Param { op: op.row().name, param, rule }
}

/// An epsilon must keep roots real.
fn check_eps(op: &Op, eps: f32) -> Result<(), OpError> {
    if eps.is_finite() && eps >= 0.0 { Ok(()) } else { Err(out_of_range(op, "eps", "must be 0 or more")) }
}

/// As [`like_first`], with an epsilon.
pub(crate) fn normalized(op: &Op, operands: &[TensorDesc]) -> Rule {
    let (Op::RmsNorm { eps } | Op::Norm { eps } | Op::L2Norm { eps }) = op else { unreachable!("rule of norms") };
    check_eps(op, *eps)?;
    like_first(op, operands)
}

/// As [`like_first`], with no more groups than channels.
pub(crate) fn group_norm(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::GroupNorm { n_groups, eps } = op else { unreachable!("rule of `group_norm`") };
    check_eps(op, *eps)?;
    let channels = operands[0].shape.0[2];
    if *n_groups == 0 || u64::from(*n_groups) > channels.max(1) {
        return Err(out_of_range(op, "n_groups", "must be from 1 to the number of channels (axis 2)"));
    }
    like_first(op, operands)
}

/// Softmax over rows, with an optional mask and a sink per head.
pub(crate) fn soft_max(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::SoftMax { scale, max_bias } = op else { unreachable!("rule of `soft_max`") };
    if !scale.is_finite() {
        return Err(out_of_range(op, "scale", "must be finite"));
    }
    if !(0.0..=MAX_BIAS).contains(max_bias) {
        return Err(out_of_range(op, "max_bias", "must be from 0 to 126"));
    }
    let x = operands[0].shape;
    match operands.get(1) {
        Some(mask) => {
            let m = mask.shape;
            if m.0[0] != x.0[0] || m.0[1] < x.0[1] || !mask_planes_fit(m, x, x.is_empty()) {
                return refuse(
                    op,
                    "the mask needs the row length, at least as many rows, and outer axes that divide",
                    operands,
                );
            }
        }
        None if *max_bias > 0.0 => {
            return Err(out_of_range(op, "max_bias", "needs a mask, whose values the slopes multiply; give one, or 0"));
        }
        None => {}
    }
    if let Some(sinks) = operands.get(2)
        && sinks.shape != Shape([x.0[2], 1, 1, 1])
    {
        return refuse(op, "there must be one sink per head (axis 2)", operands);
    }
    like_first(op, operands)
}

/// The length of rows whose indices are i32.
fn indexed(op: &Op, operands: &[TensorDesc]) -> Result<u64, OpError> {
    let width = operands[0].shape.0[0];
    if width > 1 << 31 {
        return Err(op
            .row()
            .shape_error("rows of more than 2^31 elements have indices that i32 cannot hold", operands));
    }
    Ok(width)
}

/// One index a row: the first axis goes, the others move down.
pub(crate) fn argmax(op: &Op, operands: &[TensorDesc]) -> Rule {
    indexed(op, operands)?;
    let [_, d1, d2, d3] = operands[0].shape.0;
    packed(op, DType::I32, Shape([d1, d2, d3, 1]))
}

/// An index for every element.
pub(crate) fn argsort(op: &Op, operands: &[TensorDesc]) -> Rule {
    indexed(op, operands)?;
    packed(op, DType::I32, operands[0].shape)
}

/// `k` indices a row.
pub(crate) fn top_k(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::TopK { k } = op else { unreachable!("rule of `top_k`") };
    let width = indexed(op, operands)?;
    if *k == 0 || u64::from(*k) > width {
        return Err(out_of_range(op, "k", "must be from 1 to the length of a row"));
    }
    let [_, d1, d2, d3] = operands[0].shape.0;
    packed(op, DType::I32, Shape([u64::from(*k), d1, d2, d3]))
}

/// Everything summed.
pub(crate) fn sum(op: &Op, operands: &[TensorDesc]) -> Rule {
    packed(op, operands[0].dtype, Shape([1; 4]))
}

/// One value a row: the first axis becomes 1.
pub(crate) fn sum_rows(op: &Op, operands: &[TensorDesc]) -> Rule {
    let [_, d1, d2, d3] = operands[0].shape.0;
    packed(op, operands[0].dtype, Shape([1, d1, d2, d3]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{op::SortOrder, shape::Strides};

    fn f32s(shape: [u64; 4]) -> TensorDesc {
        TensorDesc::packed(DType::F32, Shape(shape)).expect("small")
    }

    fn shape(op: &Op, operands: &[TensorDesc]) -> (DType, [u64; 4]) {
        let desc = op.result(operands).expect("the operands fit").desc;
        assert!(desc.is_packed());
        (desc.dtype, desc.shape.0)
    }

    /// The parameter that is refused.
    fn refused_param(op: &Op, operands: &[TensorDesc]) -> &'static str {
        match op.result(operands) {
            Err(OpError::Param { op: name, param, .. }) if name == op.row().name => param,
            result => panic!("{op}: {result:?}"),
        }
    }

    fn is_refused(op: &Op, operands: &[TensorDesc]) -> bool {
        matches!(op.result(operands), Err(OpError::Shape { op: name, .. }) if name == op.row().name)
    }

    #[test]
    fn an_epsilon_is_finite_and_not_negative() {
        let x = [f32s([7, 5, 6, 2])];
        for eps in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e-6] {
            for op in [Op::RmsNorm { eps }, Op::Norm { eps }, Op::L2Norm { eps }, Op::GroupNorm { n_groups: 2, eps }] {
                assert_eq!(refused_param(&op, &x), "eps", "{eps}");
            }
        }
        for op in [Op::Norm { eps: 0.0 }, Op::L2Norm { eps: 0.0 }, Op::GroupNorm { n_groups: 6, eps: 0.0 }] {
            assert_eq!(shape(&op, &x), (DType::F32, [7, 5, 6, 2]));
        }
    }

    #[test]
    fn groups_are_at_least_one_and_at_most_the_channels() {
        let norm = |n_groups| Op::GroupNorm { n_groups, eps: 1e-6 };
        let x = [f32s([7, 5, 6, 2])];
        for n_groups in [0, 7, u32::MAX] {
            assert_eq!(refused_param(&norm(n_groups), &x), "n_groups");
        }
        assert_eq!(shape(&norm(4), &x).1, [7, 5, 6, 2]);
        assert_eq!(shape(&norm(3), &[f32s([0, 5, 6, 2])]).1, [0, 5, 6, 2]);
        assert_eq!(shape(&norm(1), &[f32s([7, 5, 0, 2])]).1, [7, 5, 0, 2]);
    }

    #[test]
    fn what_soft_max_takes() {
        let soft_max = |scale, max_bias| Op::SoftMax { scale, max_bias };
        let (x, mask, sinks) = (f32s([7, 5, 6, 2]), f32s([7, 5, 1, 1]), f32s([6, 1, 1, 1]));
        for scale in [f32::NAN, f32::INFINITY] {
            assert_eq!(refused_param(&soft_max(scale, 0.0), &[x]), "scale");
        }
        for max_bias in [f32::NAN, f32::INFINITY, -1.0, 126.5] {
            assert_eq!(refused_param(&soft_max(1.0, max_bias), &[x, mask]), "max_bias");
        }
        assert_eq!(refused_param(&soft_max(1.0, 8.0), &[x]), "max_bias", "slopes without a mask");
        assert_eq!(shape(&soft_max(1.0, 126.0), &[x, mask, sinks]), (DType::F32, [7, 5, 6, 2]));
        let plain = soft_max(1.0, 0.0);
        for wrong in [[7, 4, 1, 1], [1, 5, 1, 1], [7, 5, 4, 1], [7, 5, 1, 3], [7, 5, 0, 1]] {
            assert!(is_refused(&plain, &[x, f32s(wrong)]), "a mask of {wrong:?}");
        }
        for wrong in [[5, 1, 1, 1], [7, 1, 1, 1], [1, 1, 1, 1], [6, 2, 1, 1], [0, 1, 1, 1]] {
            assert!(is_refused(&plain, &[x, mask, f32s(wrong)]), "sinks of {wrong:?}");
        }
        let half = TensorDesc::packed(DType::F16, Shape([6, 1, 1, 1])).expect("small");
        assert!(matches!(plain.result(&[x, mask, half]), Err(OpError::DType { operand: "sinks", .. })));
        let gap = plain.given_operands([Some(x), None, Some(sinks)]);
        assert!(matches!(gap, Err(OpError::OperandGap { missing: "mask", given: "sinks", .. })));
        assert_eq!(shape(&plain, &[f32s([7, 5, 0, 2]), mask, f32s([0, 1, 1, 1])]).1, [7, 5, 0, 2]);
    }

    #[test]
    fn indices_of_rows() {
        let argsort = Op::Argsort { order: SortOrder::Descending };
        assert_eq!(shape(&argsort, &[f32s([7, 5, 6, 2])]), (DType::I32, [7, 5, 6, 2]));
        assert_eq!(shape(&Op::Argmax {}, &[f32s([7, 5, 6, 2])]), (DType::I32, [5, 6, 2, 1]));
        assert_eq!(shape(&Op::Argmax {}, &[f32s([0, 5, 6, 2])]), (DType::I32, [5, 6, 2, 1]));
        assert_eq!(shape(&Op::Argmax {}, &[f32s([7, 0, 6, 2])]), (DType::I32, [0, 6, 2, 1]));
        // Rows longer than an i32 counts, all of them one element of memory.
        let long =
            TensorDesc { dtype: DType::F32, shape: Shape([(1 << 31) + 1, 1, 1, 1]), strides: Strides([0, 0, 0, 0]) };
        for op in [argsort, Op::Argmax {}, Op::TopK { k: 1 }] {
            assert!(is_refused(&op, &[long]), "{op}");
        }
        let longest = TensorDesc { shape: Shape([1 << 31, 1, 1, 1]), ..long };
        assert_eq!(shape(&Op::Argmax {}, &[longest]).1, [1; 4]);
    }

    #[test]
    fn top_k_takes_no_more_than_there_is() {
        let x = [f32s([7, 5, 6, 2])];
        for k in [0, 8, u32::MAX] {
            assert_eq!(refused_param(&Op::TopK { k }, &x), "k");
        }
        assert_eq!(refused_param(&Op::TopK { k: 1 }, &[f32s([0, 5, 1, 1])]), "k");
        assert_eq!(shape(&Op::TopK { k: 7 }, &x), (DType::I32, [7, 5, 6, 2]));
        assert_eq!(shape(&Op::TopK { k: 3 }, &x), (DType::I32, [3, 5, 6, 2]));
        assert_eq!(shape(&Op::TopK { k: 3 }, &[f32s([7, 0, 6, 2])]), (DType::I32, [3, 0, 6, 2]));
    }

    #[test]
    fn sums_keep_what_they_do_not_sum() {
        let x = [f32s([7, 5, 6, 2])];
        assert_eq!(shape(&Op::Sum {}, &x), (DType::F32, [1; 4]));
        assert_eq!(shape(&Op::Sum {}, &[f32s([0, 5, 6, 2])]), (DType::F32, [1; 4]));
        assert_eq!(shape(&Op::SumRows {}, &x), (DType::F32, [1, 5, 6, 2]));
        assert_eq!(shape(&Op::Mean {}, &x), (DType::F32, [1, 5, 6, 2]));
        assert_eq!(shape(&Op::Cumsum {}, &x), (DType::F32, [7, 5, 6, 2]));
        assert_eq!(shape(&Op::DiagMaskInf { n_past: u32::MAX }, &x), (DType::F32, [7, 5, 6, 2]));
    }

    #[test]
    fn only_f32_is_reduced() {
        let i32s = TensorDesc::packed(DType::I32, Shape([7, 5, 1, 1])).expect("small");
        for op in [Op::Norm { eps: 0.0 }, Op::Sum {}, Op::Argmax {}, Op::Cumsum {}, Op::DiagMaskInf { n_past: 0 }] {
            assert!(matches!(op.result(&[i32s]), Err(OpError::DType { operand: "x", .. })), "{op}");
        }
    }
}
