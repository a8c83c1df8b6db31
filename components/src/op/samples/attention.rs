//! What attention layers need beside products.

use super::{Sample, sample};
use crate::op::{Op, OpKind, RopeMode};

pub(crate) fn rope() -> Vec<Sample> {
    let mut samples = Vec::new();
    for mode in [RopeMode::Normal, RopeMode::Neox] {
        let whole = Op::rope(mode, 0, 10_000.0, 1.0);
        let part = Op::rope(mode, 6, 500.0, 0.5);
        samples.push(sample(whole.clone(), &[[2, 1, 1, 1], [1, 1, 1, 1]]));
        samples.push(sample(whole.clone(), &[[64, 3, 5, 1], [5, 1, 1, 1]]));
        samples.push(sample(whole, &[[8, 3, 0, 1], [0, 1, 1, 1]]));
        samples.push(sample(part.clone(), &[[10, 3, 5, 2], [5, 1, 1, 1]]));
        samples.push(sample(part.clone(), &[[10, 3, 5, 2], [5, 1, 1, 1], [3, 1, 1, 1]]));
        samples.push(sample(yarn(part), &[[10, 3, 5, 2], [5, 1, 1, 1], [3, 1, 1, 1]]));
    }
    for (mode, n_dims, sections) in [
        (RopeMode::Mrope, 0, [2, 1, 1, 1]),
        (RopeMode::Mrope, 8, [1, 0, 1, 1]),
        (RopeMode::Imrope, 0, [2, 2, 1, 0]),
        (RopeMode::Vision, 0, [3, 2, 0, 0]),
        (RopeMode::Vision, 5, [1, 1, 1, 0]),
    ] {
        let op = with_sections(Op::rope(mode, n_dims, 500.0, 0.5), sections);
        samples.push(sample(op.clone(), &[[10, 3, 5, 2], [20, 1, 1, 1]]));
        samples.push(sample(yarn(op), &[[10, 3, 5, 2], [20, 1, 1, 1], [6, 1, 1, 1]]));
    }
    samples
}

/// With a ramp over some of the pairs of small heads.
fn yarn(mut op: Op) -> Op {
    if let Op::Rope { n_ctx_orig, ext_factor, attn_factor, .. } = &mut op {
        (*n_ctx_orig, *ext_factor, *attn_factor) = (2048, 0.75, 1.25);
    }
    op
}

fn with_sections(mut op: Op, of_kinds: [u32; 4]) -> Op {
    if let Op::Rope { sections, .. } = &mut op {
        *sections = of_kinds;
    }
    op
}

/// The heads of a prompt.
pub(crate) fn bench_rope() -> Vec<Sample> {
    vec![sample(OpKind::Rope.default_op(), &[[64, 9, 512, 1], [512, 1, 1, 1]])]
}

/// The suite crosses the dtypes of keys, values and mask, so sizes are small.
pub(crate) fn flash_attn_ext() -> Vec<Sample> {
    let plain = Op::FlashAttnExt { scale: 0.5, max_bias: 0.0, logit_softcap: 0.0 };
    let all = Op::FlashAttnExt { scale: 0.3, max_bias: 8.0, logit_softcap: 2.5 };
    vec![
        sample(plain.clone(), &[[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]),
        sample(plain.clone(), &[[7, 3, 4, 2], [7, 19, 2, 1], [5, 19, 2, 1]]),
        // No queries, no keys, nothing to add up.
        sample(plain.clone(), &[[7, 0, 1, 1], [7, 3, 1, 1], [5, 3, 1, 1]]),
        sample(plain.clone(), &[[7, 2, 2, 1], [7, 0, 1, 1], [5, 0, 1, 1]]),
        sample(plain.clone(), &[[0, 2, 2, 1], [0, 3, 1, 1], [5, 3, 1, 1]]),
        sample(all.clone(), &[[7, 3, 6, 2], [7, 19, 2, 2], [5, 19, 2, 2], [19, 4, 3, 1], [6, 1, 1, 1]]),
        sample(plain.clone(), &[[7, 3, 6, 2], [7, 19, 2, 1], [5, 19, 2, 1], [19, 3, 2, 1]]),
        // Few queries of many heads, alone, with a mask a head, and with rows that are looked at in several pieces.
        sample(plain.clone(), &[[7, 1, 12, 1], [7, 40, 6, 1], [5, 40, 6, 1]]),
        sample(all.clone(), &[[7, 1, 10, 2], [7, 40, 5, 1], [5, 40, 5, 1], [40, 1, 10, 2], [10, 1, 1, 1]]),
        sample(plain, &[[200, 1, 6, 1], [200, 40, 3, 1], [200, 40, 3, 1], [40, 1, 2, 1]]),
        // Rows of whole blocks, of every block type.
        sample(all, &[[256, 2, 2, 1], [256, 5, 1, 1], [256, 5, 1, 1], [5, 2, 1, 1], [2, 1, 1, 1]]),
        sample(
            Op::FlashAttnExt { scale: 0.0625, max_bias: 0.0, logit_softcap: 0.0 },
            &[[256, 2, 2, 1], [256, 5, 1, 1], [256, 5, 1, 1]],
        ),
    ]
}

/// Decode and prompt of a small language model, with grouped heads.
pub(crate) fn bench_flash_attn_ext() -> Vec<Sample> {
    let op = Op::FlashAttnExt { scale: 0.125, max_bias: 0.0, logit_softcap: 0.0 };
    [1, 128]
        .iter()
        .map(|&n| sample(op.clone(), &[[64, n, 9, 1], [64, 1024, 3, 1], [64, 1024, 3, 1], [1024, n, 1, 1]]))
        .collect()
}
