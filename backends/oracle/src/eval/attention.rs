//! What attention layers need beside products.

use std::f64::consts::TAU;

use entensor_components::{Op, RopeMode, Shape};

use crate::access::{Evaluated, Operand, index, rows};

pub(super) fn rope(op: &Op, operands: &[Operand<'_>]) -> Evaluated {
    let Op::Rope { mode, n_dims, freq_scale, ext_factor, attn_factor, sections, .. } = op else {
        unreachable!("called for `rope`")
    };
    let (freq_scale, ext_factor) = (f64::from(*freq_scale), f64::from(*ext_factor));
    let x = &operands[0];
    let positions = operands[1].integers();
    let factors = operands.get(2).map(Operand::values);
    let (width, tokens) = (index(x.desc.shape.0[0]), index(x.desc.shape.0[2]));
    // How many elements turn; how many the frequencies are spread over.
    let (rotated, spread) = match mode {
        RopeMode::Vision => (width, width / 2),
        _ if *n_dims == 0 => (width, width),
        _ => (*n_dims as usize, *n_dims as usize),
    };
    let mut magnitude = f64::from(*attn_factor);
    if ext_factor != 0.0 {
        magnitude *= 1.0 + 0.1 * libm::log(1.0 / freq_scale);
    }
    let mut out = Vec::new();
    for at in rows(x.desc.shape) {
        let mut row = x.row(at);
        for i in 0..rotated / 2 {
            let (kind, since) = if mode.has_sections() { section(*mode, sections, i) } else { (0, i) };
            let position = positions[kind * tokens + index(at[1])] as f64;
            let factor = factors.as_ref().map_or(1.0, |f| f[i]);
            let trained = position * libm::pow(base(op), -2.0 * since as f64 / spread as f64) / factor;
            let kept = if ext_factor == 0.0 { 0.0 } else { ext_factor * ramp(op, spread, i) };
            let angle = trained * freq_scale * (1.0 - kept) + trained * kept;
            let (first, second) = match mode {
                RopeMode::Normal => (2 * i, 2 * i + 1),
                _ => (i, i + rotated / 2),
            };
            let (a, b, sin, cos) = (row[first], row[second], libm::sin(angle), libm::cos(angle));
            row[first] = (a * cos - b * sin) * magnitude;
            row[second] = (a * sin + b * cos) * magnitude;
        }
        out.extend(row);
    }
    Evaluated::Values(out)
}

fn base(op: &Op) -> f64 {
    let Op::Rope { base, .. } = op else { unreachable!("called for `rope`") };
    f64::from(*base)
}

/// Which kind of position a pair turns by, and which number it has where frequencies are counted.
fn section(mode: RopeMode, sections: &[u32; 4], pair: usize) -> (usize, usize) {
    let [t, h, w, e] = sections.map(|pairs| pairs as usize);
    let sector = pair % (t + h + w + e);
    if mode == RopeMode::Imrope {
        let kind = match sector % 3 {
            0 if sector < 3 * t => 0,
            1 if sector < 3 * h => 1,
            2 if sector < 3 * w => 2,
            _ => 3,
        };
        return (kind, pair);
    }
    let (kind, first) = match sector {
        s if s < t => (0, 0),
        s if s < t + h => (1, t),
        s if s < t + h + w => (2, t + h),
        _ => (3, t + h + w),
    };
    (kind, if mode == RopeMode::Vision { sector - first } else { pair })
}

/// YaRN: 1 for pairs whose frequency stays, 0 for those whose is scaled, between them a ramp.
fn ramp(op: &Op, spread: usize, pair: usize) -> f64 {
    let Op::Rope { n_ctx_orig, beta_fast, beta_slow, .. } = op else { unreachable!("called for `rope`") };
    let turning = |times: f32| {
        let wavelength = f64::from(*n_ctx_orig) / (TAU * f64::from(times));
        spread as f64 * libm::log(wavelength) / (2.0 * libm::log(base(op)))
    };
    let low = turning(*beta_fast).floor().max(0.0);
    let high = turning(*beta_slow).ceil().min(spread as f64 - 1.0);
    1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
}

/// What ALiBi multiplies a head's mask by.
fn slope(max_bias: f64, head: u64, heads: u64) -> f64 {
    if max_bias == 0.0 {
        return 1.0;
    }
    let power = (1..=heads).filter(|n| n.is_power_of_two()).max().unwrap_or(1);
    let exponent = if head < power {
        (head + 1) as f64 / power as f64
    } else {
        (2 * (head - power) + 1) as f64 / (2 * power) as f64
    };
    libm::exp2(-max_bias * exponent)
}

/// Scores, softmax, mean of values: one query after the other.
pub(super) fn flash_attn_ext(op: &Op, operands: &[Operand<'_>], shape: Shape) -> Evaluated {
    let Op::FlashAttnExt { scale, max_bias, logit_softcap } = op else { unreachable!("called for `flash_attn_ext`") };
    let (scale, softcap) = (f64::from(*scale), f64::from(*logit_softcap));
    let (q, k, v) = (&operands[0], &operands[1], &operands[2]);
    let sinks = operands.get(4).map(Operand::values);
    let heads = q.desc.shape.0[2];
    let group = |axis: usize| q.desc.shape.0[axis] / k.desc.shape.0[axis].max(1);
    let mut out = Vec::new();
    for [head, query, batch] in rows(shape) {
        let plane = [head / group(2).max(1), batch / group(3).max(1)];
        let q = q.row([query, head, batch]);
        let mask = operands.get(3).map(|mask| {
            let planes = mask.desc.shape.0;
            mask.row([query, head % planes[2], batch % planes[3]])
        });
        let slope = slope(f64::from(*max_bias), head, heads);
        let mut scores = Vec::new();
        let mut values = Vec::new();
        for j in 0..k.desc.shape.0[1] {
            let mask = mask.as_ref().map_or(0.0, |mask| mask[index(j)]);
            if mask == f64::NEG_INFINITY {
                continue;
            }
            let key = k.row([j, plane[0], plane[1]]);
            let mut score = q.iter().zip(&key).map(|(q, k)| q * k).sum::<f64>() * scale;
            if softcap != 0.0 {
                score = softcap * libm::tanh(score / softcap);
            }
            scores.push(score + slope * mask);
            values.push(v.row([j, plane[0], plane[1]]));
        }
        let sink = sinks.as_ref().map(|sinks| sinks[index(head)]);
        let max = scores.iter().chain(&sink).copied().fold(f64::NEG_INFINITY, f64::max);
        let max = if max == f64::NEG_INFINITY { 0.0 } else { max };
        let weights: Vec<f64> = scores.iter().map(|score| libm::exp(score - max)).collect();
        let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| libm::exp(sink - max));
        out.extend((0..index(shape.0[0])).map(|i| {
            let mean = weights.iter().zip(&values).map(|(w, v)| w * v[i]).sum::<f64>();
            if sum == 0.0 { 0.0 } else { mean / sum }
        }));
    }
    Evaluated::Values(out)
}
