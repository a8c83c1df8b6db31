//! Products, attention, recurrent steps and indexing: hand-made cases.

use entensor_components::{DType, Op, OpKind, RopeMode};

use super::{operand, packed};
use crate::{Case, Fill, Layout};

const WEIGHTS: [DType; 4] = [DType::F32, DType::F16, DType::Q4_1, DType::Q8_0];

pub(super) fn cases(cases: &mut Vec<Case>) {
    experts(cases);
    add_id(cases);
    rope(cases);
    attention(cases);
    masked(cases);
    recurrent(cases);
}

/// Bad ids, groups that are full and not, and sizes at which threads share the work.
fn experts(cases: &mut Vec<Case>) {
    for dtype in WEIGHTS {
        let experts = packed(dtype, [64, 5, 4, 1]);
        let (x, ids) = (packed(DType::F32, [64, 2, 3, 1]), packed(DType::I32, [2, 3, 1, 1]));
        for fill in [Fill::IdTooLarge, Fill::IdNegative, Fill::IdsEqual, Fill::Nan, Fill::Infinity] {
            cases.push(Case { fill, ..Case::new(Op::MulMatId {}, vec![experts, x, ids]) });
        }
        // Every expert with its own number of rows; rows that are not a multiple of a tile's.
        for (m, slots, tokens) in [(1, 1, 1), (3, 1, 5), (9, 3, 17), (33, 2, 40)] {
            let experts = packed(dtype, [96, m, 6, 1]);
            for per_token in [1, slots] {
                let x = operand(DType::F16, [96, per_token, tokens, 1], Layout::Sliced);
                let ids = operand(DType::I32, [slots, tokens, 1, 1], Layout::Transposed);
                cases.push(Case::new(Op::MulMatId {}, vec![experts, x, ids]));
                let fill = Fill::IdsEqual;
                cases.push(Case { fill, ..Case::new(Op::MulMatId {}, vec![experts, x, ids]) });
            }
        }
        for (per_token, tokens) in [(1, 1), (1, 70), (4, 70)] {
            let experts = packed(dtype, [256, 160, 9, 1]);
            let x = packed(DType::F32, [256, per_token, tokens, 1]);
            cases.push(Case::new(Op::MulMatId {}, vec![experts, x, packed(DType::I32, [4, tokens, 1, 1])]));
        }
        // No experts at all, and a result without elements: no excuse for ids.
        let none = packed(dtype, [64, 5, 0, 1]);
        cases.push(Case::new(Op::MulMatId {}, vec![none, x, ids]));
        let empty = packed(dtype, [64, 0, 4, 1]);
        cases.push(Case { fill: Fill::IdTooLarge, ..Case::new(Op::MulMatId {}, vec![empty, x, ids]) });
    }
}

fn add_id(cases: &mut Vec<Case>) {
    let (a, b) = (packed(DType::F32, [37, 2, 3, 1]), packed(DType::F32, [37, 4, 1, 1]));
    let ids = packed(DType::I32, [2, 3, 1, 1]);
    for fill in [Fill::IdTooLarge, Fill::IdNegative, Fill::IdsEqual, Fill::Nan, Fill::Infinity] {
        let case = Case { fill, ..Case::new(Op::AddId {}, vec![a, b, ids]) };
        cases.push(Case { in_place: Some(0), ..case.clone() });
        cases.push(case);
    }
    let empty = vec![packed(DType::F32, [0, 2, 3, 1]), packed(DType::F32, [0, 4, 1, 1]), ids];
    cases.push(Case { fill: Fill::IdNegative, ..Case::new(Op::AddId {}, empty) });
    let large = vec![packed(DType::F32, [1000, 4, 30, 1]), packed(DType::F32, [1000, 7, 1, 1])];
    let ids = packed(DType::I32, [4, 30, 1, 1]);
    cases.push(Case::new(Op::AddId {}, large.into_iter().chain([ids]).collect()));
}

/// A rope by its text form.
fn rope_with(set: &[(&str, &str)]) -> Op {
    let mut op = OpKind::Rope.default_op();
    for (name, text) in set {
        op.set_param(name, text).expect("parameters of `rope`");
    }
    op
}

/// Modes with sections, YaRN and factors together, on every layout, in place and not: partly rotated rows, sections that
/// begin again, kinds without pairs.
fn rope(cases: &mut Vec<Case>) {
    let yarn = [("ext_factor", "1"), ("n_ctx_orig", "512"), ("freq_scale", "0.25"), ("attn_factor", "0.8")];
    let positions = |mode: RopeMode| packed(DType::I32, [if mode.has_sections() { 20 } else { 5 }, 1, 1, 1]);
    let factors = operand(DType::F32, [16, 1, 1, 1], Layout::Sliced);
    for (mode, mode_text, n_dims, sections) in [
        (RopeMode::Normal, "normal", "16", "[0,0,0,0]"),
        (RopeMode::Neox, "neox", "16", "[0,0,0,0]"),
        (RopeMode::Mrope, "mrope", "16", "[2,3,3,0]"),
        (RopeMode::Mrope, "mrope", "20", "[0,1,1,1]"),
        (RopeMode::Imrope, "imrope", "16", "[3,3,2,0]"),
        (RopeMode::Imrope, "imrope", "20", "[4,1,0,5]"),
        (RopeMode::Vision, "vision", "10", "[5,5,0,0]"),
        (RopeMode::Vision, "vision", "0", "[1,2,0,1]"),
    ] {
        let plain = [("mode", mode_text), ("n_dims", n_dims), ("sections", sections), ("base", "1000")];
        let scaled: Vec<_> = plain.into_iter().chain(yarn).collect();
        for op in [rope_with(&plain), rope_with(&scaled)] {
            for dtype in [DType::F32, DType::F16] {
                for layout in Layout::ALL {
                    let x = operand(dtype, [20, 3, 5, 2], layout);
                    cases.push(Case::new(op.clone(), vec![x, positions(mode)]));
                    let with_factors = Case::new(op.clone(), vec![x, positions(mode), factors]);
                    if layout == Layout::Contiguous {
                        cases.push(Case { in_place: Some(0), ..with_factors.clone() });
                    }
                    cases.push(with_factors);
                }
            }
        }
    }
    // Ramps that end before they begin, that begin beyond the last pair, and half of what YaRN asks for.
    for (fast, slow, part) in [("32", "32", "1"), ("1e-3", "1e-4", "1"), ("1e6", "1e5", "1"), ("32", "1", "0.5")] {
        let op = rope_with(&[
            ("n_ctx_orig", "4096"),
            ("freq_scale", "0.5"),
            ("beta_fast", fast),
            ("beta_slow", slow),
            ("ext_factor", part),
        ]);
        cases.push(Case::new(op, vec![packed(DType::F32, [64, 2, 5, 1]), positions(RopeMode::Normal)]));
    }
    // Without YaRN the attention factor still counts.
    let op = rope_with(&[("attn_factor", "1.5"), ("n_dims", "6")]);
    cases.push(Case::new(op, vec![packed(DType::F32, [10, 3, 5, 2]), positions(RopeMode::Normal)]));
    let large = rope_with(&[("mode", "mrope"), ("sections", "[16,24,24,0]")]);
    let operands = vec![packed(DType::F32, [128, 9, 100, 1]), packed(DType::I32, [400, 1, 1, 1])];
    cases.push(Case::new(large, operands));
}

/// A head's width around registers, blocks and tiles; keys around the kernel's tiles; every kind of group.
fn attention(cases: &mut Vec<Case>) {
    let op = |scale| Op::FlashAttnExt { scale, max_bias: 0.0, logit_softcap: 0.0 };
    for (k, v) in [(1, 1), (8, 3), (33, 64), (64, 33), (255, 257), (256, 256), (300, 512), (576, 512)] {
        for dtype in [DType::F32, DType::F16] {
            let q = packed(DType::F32, [k, 5, 2, 1]);
            let (k, v) = (packed(dtype, [k, 21, 1, 1]), packed(dtype, [v, 21, 1, 1]));
            cases.push(Case::new(op(0.1), vec![q, k, v]));
        }
    }
    for keys in [1, 2, 15, 16, 17, 31, 33, 100] {
        for queries in [1, 3, 4, 7, 8, 9, 13] {
            let q = packed(DType::F32, [32, queries, 6, 2]);
            let (k, v) = (packed(DType::Q8_0, [32, keys, 2, 1]), packed(DType::F16, [32, keys, 2, 1]));
            let mask = packed(DType::F16, [keys, queries, 3, 2]);
            let op = Op::FlashAttnExt { scale: 0.25, max_bias: 8.0, logit_softcap: 0.0 };
            cases.push(Case::new(op.clone(), vec![q, k, v, mask]));
            cases.push(Case::new(op, vec![q, k, v, mask, packed(DType::F32, [6, 1, 1, 1])]));
        }
    }
    // A cache whose rows hold all heads, a query straight from its projection, and sizes at which threads share the work.
    for (dtype, queries) in [(DType::F16, 1), (DType::F16, 40), (DType::Q8_0, 40), (DType::Q4_1, 7)] {
        let q = operand(DType::F32, [64, queries, 9, 1], Layout::Permuted);
        let cache = operand(dtype, [64, 300, 3, 1], Layout::Permuted);
        let mask = packed(DType::F32, [300, queries, 1, 1]);
        cases.push(Case::new(op(0.125), vec![q, cache, cache, mask]));
        let capped = Op::FlashAttnExt { scale: 0.125, max_bias: 4.0, logit_softcap: 1.5 };
        cases.push(Case::new(capped, vec![q, cache, cache, mask, packed(DType::F32, [9, 1, 1, 1])]));
    }
}

/// NaN, infinities and masks in attention: a fully masked query gets zeros and the others what they would have got.
fn masked(cases: &mut Vec<Case>) {
    use Fill::{AllMasked, Infinity, Large, MaskedByMask, MaskedKeys, MaskedQuery, Nan};
    let op = Op::FlashAttnExt { scale: 0.125, max_bias: 0.0, logit_softcap: 0.0 };
    let capped = Op::FlashAttnExt { scale: 0.125, max_bias: 2.0, logit_softcap: 3.0 };
    let (q, k, v) = (packed(DType::F32, [16, 5, 2, 1]), packed(DType::F32, [16, 40, 2, 1]), [9, 40, 2, 1]);
    let (v, mask, sinks) = (packed(DType::F32, v), packed(DType::F16, [40, 5, 1, 1]), packed(DType::F32, [2, 1, 1, 1]));
    for op in [op, capped] {
        for fill in [Nan, Infinity, AllMasked, Large, MaskedByMask, MaskedQuery, MaskedKeys] {
            for operands in [vec![q, k, v], vec![q, k, v, mask], vec![q, k, v, mask, sinks]] {
                if operands.len() > 3 || !matches!(fill, MaskedByMask | MaskedQuery | MaskedKeys) {
                    cases.push(Case { fill, ..Case::new(op.clone(), operands) });
                }
            }
        }
    }
}

/// Gates that are shut, open, or no number; states of any size; rows that lie apart.
fn recurrent(cases: &mut Vec<Case>) {
    for (h, n) in [(37, 3), (1000, 90)] {
        let state = packed(DType::F32, [h, n, 1, 1]);
        let (four, three) = (packed(DType::F32, [4 * h, n, 1, 1]), packed(DType::F32, [3 * h, n, 1, 1]));
        for fill in [Fill::Plain, Fill::Nan, Fill::Infinity, Fill::AllMasked, Fill::Large] {
            cases.push(Case { fill, ..Case::new(Op::Lstm {}, vec![four, state]) });
            let gru = Case { fill, ..Case::new(Op::Gru {}, vec![three, three, state]) };
            cases.push(Case { in_place: Some(2), ..gru.clone() });
            cases.push(gru);
        }
    }
}
