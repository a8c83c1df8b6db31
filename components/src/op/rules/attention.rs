//! What attention layers need beside products.

use super::{MAX_BIAS, Rule, like_first, mask_planes_fit, refuse, repeats};
use crate::{
    dtype::DType,
    op::{Op, OpError, RopeMode, row::packed},
    shape::{Shape, TensorDesc},
};

/// Rotary embedding: one position per element of axis 2, or four in the modes with sections.
pub(crate) fn rope(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::Rope { mode, n_dims, sections, .. } = op else { unreachable!("rule of `rope`") };
    let param = |param, rule| Err(OpError::Param { op: "rope", param, rule });
    let (x, positions) = (operands[0].shape, operands[1].shape);
    let width = x.0[0];
    let pairs = if *mode == RopeMode::Vision {
        if !width.is_multiple_of(2) || (*n_dims != 0 && u64::from(*n_dims) != width / 2) {
            return param("n_dims", "`vision` rotates whole rows: must be half the first axis, or 0");
        }
        width / 2
    } else {
        let rotated = if *n_dims == 0 { width } else { u64::from(*n_dims) };
        if !rotated.is_multiple_of(2) || rotated > width {
            return param("n_dims", "must be even and at most the first axis");
        }
        rotated / 2
    };
    let sectors: u64 = sections.iter().copied().map(u64::from).sum();
    if mode.has_sections() {
        if sectors == 0 {
            return param("sections", "must count at least one pair in this mode");
        }
        if sectors > width && !x.is_empty() {
            return param("sections", "must count no more pairs than the first axis has elements");
        }
    } else if sectors != 0 {
        return param("sections", "belong to the modes `mrope`, `vision` and `imrope`");
    }
    rope_frequencies(op)?;
    let kinds = if mode.has_sections() { 4 } else { 1 };
    if x.0[2].checked_mul(kinds) != Some(positions.0[0]) || positions.rank() != 1 {
        return refuse(
            op,
            "there must be one position per element of axis 2, four in the modes with sections",
            operands,
        );
    }
    if let Some(factors) = operands.get(2)
        && (factors.shape.0[0] < pairs || factors.shape.rank() != 1)
    {
        return refuse(op, "there must be a frequency factor per rotated pair", operands);
    }
    like_first(op, operands)
}

/// The parameters that frequencies and magnitude are made of.
fn rope_frequencies(op: &Op) -> Result<(), OpError> {
    let Op::Rope { n_ctx_orig, base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow, .. } = op else {
        unreachable!("rule of `rope`")
    };
    let param = |param, rule| Err(OpError::Param { op: "rope", param, rule });
    if !(base.is_finite() && *base > 0.0) {
        return param("base", "must be positive");
    }
    if !freq_scale.is_finite() {
        return param("freq_scale", "must be finite");
    }
    if !attn_factor.is_finite() {
        return param("attn_factor", "must be finite");
    }
    if !ext_factor.is_finite() {
        return param("ext_factor", "must be finite");
    }
    if *ext_factor == 0.0 {
        return Ok(());
    }
    // What follows is under a logarithm, or under a fraction.
    if *n_ctx_orig == 0 {
        return param("n_ctx_orig", "YaRN (`ext_factor`) needs the context that the model was trained with");
    }
    if *base <= 1.0 {
        return param("base", "must be above 1 with YaRN (`ext_factor`)");
    }
    if *freq_scale <= 0.0 {
        return param("freq_scale", "must be positive with YaRN (`ext_factor`)");
    }
    if !(beta_slow.is_finite() && *beta_slow > 0.0) {
        return param("beta_slow", "must be positive");
    }
    if !(beta_fast.is_finite() && beta_fast >= beta_slow) {
        return param("beta_fast", "must be at least `beta_slow`");
    }
    Ok(())
}

/// Attention: q `[dk,n,h,b]`, k `[dk,kv,hk,b']`, v `[dv,kv,hk,b']` → `[dv,h,n,b]`.
pub(crate) fn flash_attn_ext(op: &Op, operands: &[TensorDesc]) -> Rule {
    let Op::FlashAttnExt { scale, max_bias, logit_softcap } = op else { unreachable!("rule of `flash_attn_ext`") };
    let param = |param, rule| Err(OpError::Param { op: "flash_attn_ext", param, rule });
    if !scale.is_finite() {
        return param("scale", "must be finite");
    }
    // Slopes are at least 2^-max_bias: none may become 0, since 0 times a mask of minus infinity is no number.
    if !(0.0..=MAX_BIAS).contains(max_bias) {
        return param("max_bias", "must be from 0 to 126");
    }
    if !(logit_softcap.is_finite() && *logit_softcap >= 0.0) {
        return param("logit_softcap", "must be 0 or more");
    }
    let (q, k, v) = (operands[0].shape.0, operands[1].shape.0, operands[2].shape.0);
    if q[0] != k[0] {
        return refuse(op, "q and k need the same first axis (the one summed over)", operands);
    }
    if k[1..] != v[1..] {
        return refuse(op, "k and v must agree on axes 1, 2 and 3 (keys, heads, batch)", operands);
    }
    if !(repeats(k[2], q[2]) && repeats(k[3], q[3])) {
        return refuse(op, "heads and batch of k and v must divide those of q", operands);
    }
    if let Some(mask) = operands.get(3) {
        let m = mask.shape;
        // A query of no elements still has a result: whatever the keys, they all score 0.
        let empty = q[1..].contains(&0) || v[0] == 0;
        if m.0[0] != k[1] || m.0[1] < q[1] || !mask_planes_fit(m, operands[0].shape, empty) {
            return refuse(
                op,
                "the mask needs an element per key, at least a row per query, and outer axes that divide those of q",
                operands,
            );
        }
    }
    if let Some(sinks) = operands.get(4)
        && (sinks.shape.0[0] != q[2] || sinks.shape.rank() != 1)
    {
        return refuse(op, "there must be one sink per head of q", operands);
    }
    packed(op, DType::F32, Shape([v[0], q[2], q[1], q[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::OpKind;

    fn of(dtype: DType, shape: [u64; 4]) -> TensorDesc {
        TensorDesc::packed(dtype, Shape(shape)).expect("valid")
    }

    fn f32s(shape: [u64; 4]) -> TensorDesc {
        of(DType::F32, shape)
    }

    fn rope_with(set: &[(&str, &str)], x: [u64; 4], positions: u64) -> Rule {
        let mut op = OpKind::Rope.default_op();
        for (name, text) in set {
            op.set_param(name, text).expect("parameters of `rope`");
        }
        op.result(&[f32s(x), of(DType::I32, [positions, 1, 1, 1])])
    }

    fn refused_param(result: Rule) -> &'static str {
        match result {
            Err(OpError::Param { param, .. }) => param,
            other => panic!("{other:?} is no parameter out of range"),
        }
    }

    #[test]
    fn rope_refuses_parameters_out_of_range() {
        let x = [8, 2, 3, 1];
        for (set, param) in [
            (&[("n_dims", "3")][..], "n_dims"),
            (&[("n_dims", "10")], "n_dims"),
            (&[("mode", "vision"), ("sections", "[2,2,0,0]"), ("n_dims", "8")], "n_dims"),
            (&[("base", "0")], "base"),
            (&[("sections", "[1,0,0,0]")], "sections"),
            (&[("mode", "mrope")], "sections"),
            (&[("mode", "imrope"), ("sections", "[4,4,1,0]")], "sections"),
            (&[("ext_factor", "1")], "n_ctx_orig"),
            (&[("ext_factor", "1"), ("n_ctx_orig", "64"), ("base", "1")], "base"),
            (&[("ext_factor", "1"), ("n_ctx_orig", "64"), ("freq_scale", "-0.5")], "freq_scale"),
            (&[("ext_factor", "1"), ("n_ctx_orig", "64"), ("beta_slow", "0")], "beta_slow"),
            (&[("ext_factor", "1"), ("n_ctx_orig", "64"), ("beta_fast", "0.5")], "beta_fast"),
        ] {
            assert_eq!(refused_param(rope_with(set, x, 3)), param, "{set:?}");
        }
        // Text has no infinities; callers do.
        for (index, param) in ["base", "freq_scale", "ext_factor", "attn_factor"].into_iter().enumerate() {
            let mut op = OpKind::Rope.default_op();
            let Op::Rope { base, freq_scale, ext_factor, attn_factor, .. } = &mut op else { unreachable!("rope") };
            *[base, freq_scale, ext_factor, attn_factor][index] = f32::NAN;
            let result = op.result(&[f32s(x), of(DType::I32, [3, 1, 1, 1])]);
            assert_eq!(refused_param(result), param);
        }
    }

    #[test]
    fn rope_counts_positions_pairs_and_factors() {
        let x = [8, 2, 3, 1];
        assert!(rope_with(&[], x, 3).is_ok());
        assert!(matches!(rope_with(&[], x, 4), Err(OpError::Shape { .. })));
        let mrope = [("mode", "mrope"), ("sections", "[2,1,1,0]")];
        assert!(rope_with(&mrope, x, 12).is_ok());
        assert!(matches!(rope_with(&mrope, x, 3), Err(OpError::Shape { .. })));
        let vision = [("mode", "vision"), ("sections", "[2,2,0,0]"), ("n_dims", "4")];
        assert!(rope_with(&vision, x, 12).is_ok());
        assert_eq!(refused_param(rope_with(&vision, [7, 2, 3, 1], 12)), "n_dims");
        // Four times as many tokens as can be counted.
        let (many, none) = (1 << 62, f32s([0, 0, 1 << 62, 1]));
        let mut op = OpKind::Rope.default_op();
        op.set_param("mode", "mrope").expect("a mode");
        op.set_param("sections", "[1,0,0,0]").expect("four numbers");
        let positions = TensorDesc { shape: Shape([many, 1, 1, 1]), ..of(DType::I32, [0, 1, 1, 1]) };
        assert!(op.result(&[none, positions]).is_err());

        let op = OpKind::Rope.default_op();
        let with = |factors| op.result(&[f32s(x), of(DType::I32, [3, 1, 1, 1]), f32s(factors)]);
        assert!(with([4, 1, 1, 1]).is_ok() && with([5, 1, 1, 1]).is_ok());
        assert!(with([3, 1, 1, 1]).is_err() && with([4, 2, 1, 1]).is_err());
    }

    #[test]
    fn attention_refuses_what_does_not_fit() {
        let op = OpKind::FlashAttnExt.default_op();
        let (q, k, v) = ([8, 3, 4, 2], [8, 5, 2, 1], [6, 5, 2, 1]);
        let (mask, sinks) = ([5, 3, 4, 2], [4, 1, 1, 1]);
        let run = |shapes: &[[u64; 4]]| op.result(&shapes.iter().map(|&s| f32s(s)).collect::<Vec<_>>());
        let shape = |shapes: &[[u64; 4]]| run(shapes).map(|result| result.desc.shape.0);
        assert_eq!(shape(&[q, k, v]), Ok([6, 4, 3, 2]));
        assert_eq!(shape(&[q, k, v, mask, sinks]), Ok([6, 4, 3, 2]));
        assert_eq!(shape(&[q, k, v, [5, 9, 1, 1]]), Ok([6, 4, 3, 2]));
        assert_eq!(shape(&[[8, 0, 4, 2], k, v, [5, 0, 3, 1]]), Ok([6, 4, 0, 2]), "no queries, so no mask to fit");
        assert_eq!(shape(&[q, [8, 0, 2, 1], [6, 0, 2, 1]]), Ok([6, 4, 3, 2]), "no keys");
        for bad in [
            &[[7, 3, 4, 2], k, v][..],
            &[q, k, [6, 4, 2, 1]],
            &[q, [8, 5, 3, 1], [6, 5, 3, 1]],
            &[q, [8, 5, 2, 3], [6, 5, 2, 3]],
            &[q, [8, 5, 0, 1], [6, 5, 0, 1]],
            &[q, k, v, [4, 3, 1, 1]],
            &[q, k, v, [5, 2, 1, 1]],
            &[q, k, v, [5, 3, 3, 1]],
            &[q, k, v, [5, 3, 0, 1]],
            &[q, k, v, mask, [3, 1, 1, 1]],
            &[q, k, v, mask, [4, 2, 1, 1]],
        ] {
            assert!(matches!(run(bad), Err(OpError::Shape { .. })), "{bad:?}");
        }
        assert!(matches!(op.result(&[f32s(q), of(DType::I32, k), f32s(v)]), Err(OpError::DType { .. })));
        // Queries of no elements have results, so their masks must have planes.
        let (q, k, v) = ([0, 3, 2, 1], [0, 5, 2, 1], [4, 5, 2, 1]);
        assert!(matches!(run(&[q, k, v, [5, 3, 0, 1]]), Err(OpError::Shape { .. })));
        assert!(run(&[q, k, v, [5, 3, 1, 1]]).is_ok());
        // A result that nobody can count, of operands without elements.
        let huge = [[0, 1 << 40, 1 << 20, 1], [0, 0, 1 << 20, 1], [1 << 20, 0, 1 << 20, 1]];
        assert!(matches!(run(&huge), Err(OpError::Result { .. })));
    }

    #[test]
    fn attention_refuses_parameters_out_of_range() {
        let operands = [f32s([8, 3, 4, 2]), f32s([8, 5, 2, 1]), f32s([6, 5, 2, 1])];
        let default = |scale, max_bias, logit_softcap| Op::FlashAttnExt { scale, max_bias, logit_softcap };
        for (op, param) in [
            (default(f32::NAN, 0.0, 0.0), "scale"),
            (default(1.0, -1.0, 0.0), "max_bias"),
            (default(1.0, f32::INFINITY, 0.0), "max_bias"),
            (default(1.0, f32::NAN, 0.0), "max_bias"),
            (default(1.0, 127.0, 0.0), "max_bias"),
            (default(1.0, 8.0, -30.0), "logit_softcap"),
            (default(1.0, 8.0, f32::NAN), "logit_softcap"),
        ] {
            assert_eq!(refused_param(op.result(&operands)), param);
        }
        assert!(default(0.0, 126.0, 50.0).result(&operands).is_ok());
    }
}
