//! The networks that games and tools run, and random ones.

use super::net::Net;

/// A llama-like model.
#[derive(Clone, Copy)]
pub(super) struct Llama {
    pub(super) layers: usize,
    pub(super) width: u64,
    pub(super) ffn: u64,
    pub(super) heads: u64,
    pub(super) kv_width: u64,
    pub(super) vocab: u64,
    pub(super) tokens: u64,
    pub(super) context: u64,
    pub(super) flash: bool,
    /// Logits of the last token only.
    pub(super) last_only: bool,
    /// Experts used per token; 0 for a dense model.
    pub(super) experts: u64,
}

pub(super) const SMOL: Llama = Llama {
    layers: 30,
    width: 576,
    ffn: 1536,
    heads: 9,
    kv_width: 192,
    vocab: 49152,
    tokens: 1,
    context: 512,
    flash: false,
    last_only: true,
    experts: 0,
};

pub(super) fn llama(m: Llama) -> Net {
    let mut g = Net::default();
    let ids = g.input(4 * m.tokens);
    let positions = g.input(4 * m.tokens);
    let mask = g.input(4 * m.context * m.tokens);
    let rows = g.input(8 * m.tokens);
    let last = m.last_only.then(|| g.input(4));
    let mut x = g.op(4 * m.width * m.tokens, &[ids]);
    for layer in 0..m.layers {
        let normed = g.op(g.size(x), &[x]);
        let normed = g.map(&[normed]);
        let q = g.op(4 * m.width * m.tokens, &[normed]);
        let q = g.map(&[q, positions]);
        let k = g.op(4 * m.kv_width * m.tokens, &[normed]);
        let k = g.map(&[k, positions]);
        let v = g.op(4 * m.kv_width * m.tokens, &[normed]);
        g.op(0, &[k, rows]);
        g.op(0, &[v, rows]);
        let mixed = if m.flash {
            g.op(4 * m.width * m.tokens, &[q, mask])
        } else {
            let scores = g.op(4 * m.context * m.tokens * m.heads, &[q]);
            let weights = g.map(&[scores, mask]);
            let mixed = g.op(4 * m.width * m.tokens, &[weights]);
            g.op(4 * m.width * m.tokens, &[mixed])
        };
        let mut out = g.op(4 * m.width * m.tokens, &[mixed]);
        if let Some(last) = last.filter(|_| layer + 1 == m.layers && m.tokens > 1) {
            out = g.op(4 * m.width, &[out, last]);
            x = g.op(4 * m.width, &[x, last]);
        }
        let tokens = g.size(x) / (4 * m.width);
        x = g.map(&[out, x]);
        let normed = g.op(g.size(x), &[x]);
        let normed = g.map(&[normed]);
        let down = if m.experts == 0 {
            let gate = g.op(4 * m.ffn * tokens, &[normed]);
            let up = g.op(4 * m.ffn * tokens, &[normed]);
            let gated = g.map(&[gate, up]);
            g.op(4 * m.width * tokens, &[gated])
        } else {
            let logits = g.op(4 * 64 * tokens, &[normed]);
            let odds = g.map(&[logits]);
            let chosen = g.op(4 * m.experts * tokens, &[odds]);
            let weights = g.op(4 * m.experts * tokens, &[odds, chosen]);
            let sum = g.op(4 * tokens, &[weights]);
            let weights = g.map(&[weights, sum]);
            let gate = g.op(4 * m.ffn * tokens * m.experts, &[normed, chosen]);
            let up = g.op(4 * m.ffn * tokens * m.experts, &[normed, chosen]);
            let gated = g.map(&[gate, up]);
            let down = g.op(4 * m.width * tokens * m.experts, &[gated, chosen]);
            let down = g.map(&[down, weights]);
            let mut sum = g.op(4 * m.width * tokens, &[down]);
            for _ in 2..m.experts {
                sum = g.map(&[sum, down]);
            }
            sum
        };
        x = g.map(&[down, x]);
    }
    let normed = g.map(&[x]);
    let normed = g.map(&[normed]);
    let tokens = g.size(normed) / (4 * m.width);
    let logits = g.op(4 * m.vocab * tokens, &[normed]);
    g.output(logits);
    g
}

/// Encoder layers, then decoder layers that all read the encoder's result.
pub(super) fn encoder_decoder(layers: usize, width: u64, frames: u64, tokens: u64) -> Net {
    let mut g = Net::default();
    let mel = g.input(4 * 80 * 2 * frames);
    let ids = g.input(4 * tokens);
    let columns = g.op(4 * 240 * 2 * frames, &[mel]);
    let x = g.op(4 * width * 2 * frames, &[columns]);
    let x = g.map(&[x]);
    let x = g.map(&[x]);
    let columns = g.op(4 * 3 * width * frames, &[x]);
    let x = g.op(4 * width * frames, &[columns]);
    let mut x = g.map(&[x]);
    let attend = |g: &mut Net, x: usize, memory: usize, n: u64, m: u64| {
        let normed = g.op(4 * width * n, &[x]);
        let normed = g.map(&[normed]);
        let normed = g.map(&[normed]);
        let other = if memory == x { normed } else { memory };
        let q = g.op(4 * width * n, &[normed]);
        let q = g.map(&[q]);
        let k = g.op(4 * width * m, &[other]);
        let v = g.op(4 * width * m, &[other]);
        let v = g.map(&[v]);
        let q = g.op(4 * width * n, &[q]);
        let k = g.op(2 * width * m, &[k]);
        let scores = g.op(4 * n * m * (width / 64), &[q, k]);
        let odds = g.map(&[scores]);
        let v = g.op(4 * width * m, &[v]);
        let mixed = g.op(4 * width * n, &[odds, v]);
        let mixed = g.op(4 * width * n, &[mixed]);
        let out = g.op(4 * width * n, &[mixed]);
        let out = g.map(&[out]);
        g.map(&[out, x])
    };
    let feed = |g: &mut Net, x: usize, n: u64| {
        let normed = g.op(4 * width * n, &[x]);
        let normed = g.map(&[normed]);
        let h = g.op(16 * width * n, &[normed]);
        let h = g.map(&[h]);
        let h = g.map(&[h]);
        let out = g.op(4 * width * n, &[h]);
        let out = g.map(&[out]);
        g.map(&[out, x])
    };
    for _ in 0..layers {
        x = attend(&mut g, x, x, frames, frames);
        x = feed(&mut g, x, frames);
    }
    let memory = g.op(4 * width * frames, &[x]);
    let mut y = g.op(4 * width * tokens, &[ids]);
    for _ in 0..layers {
        y = attend(&mut g, y, y, tokens, tokens);
        y = attend(&mut g, y, memory, tokens, frames);
        y = feed(&mut g, y, tokens);
    }
    let logits = g.op(4 * 51864 * tokens, &[y]);
    g.output(logits);
    g
}

/// Convolutions through columns, halving and doubling, with a skip at every level. `stacked` keeps two skips a level.
pub(super) fn unet(levels: u32, width: u64, side: u64, stacked: bool) -> Net {
    let mut g = Net::default();
    let image = g.input(4 * 3 * side * side);
    let time = g.input(4 * 128);
    let time = g.op(4 * 4 * width, &[time]);
    let time = g.map(&[time]);
    let conv = |g: &mut Net, x: usize, channels_in: u64, channels: u64, side: u64| {
        let columns = g.op(2 * 9 * channels_in * side * side, &[x]);
        let y = g.op(4 * channels * side * side, &[columns]);
        g.map(&[y])
    };
    let block = |g: &mut Net, x: usize, channels_in: u64, channels: u64, side: u64| {
        let h = g.op(g.size(x), &[x]);
        let h = g.map(&[h]);
        let h = g.map(&[h]);
        let h = conv(g, h, channels_in, channels, side);
        let t = g.op(4 * channels, &[time]);
        let h = g.map(&[h, t]);
        let h2 = g.op(g.size(h), &[h]);
        let h2 = g.map(&[h2]);
        let h2 = conv(g, h2, channels, channels, side);
        let x = if channels_in == channels { x } else { g.op(4 * channels * side * side, &[x]) };
        g.map(&[h2, x])
    };
    let mut x = conv(&mut g, image, 3, width, side);
    let mut skips = vec![(x, width)];
    let (mut channels, mut s) = (width, side);
    for level in 0..levels {
        let out = width << level.min(2);
        for _ in 0..=u32::from(stacked) {
            x = block(&mut g, x, channels, out, s);
            channels = out;
            skips.push((x, channels));
        }
        if level + 1 < levels {
            s /= 2;
            x = g.op(4 * channels * s * s, &[x]);
            skips.push((x, channels));
        }
    }
    x = block(&mut g, x, channels, channels, s);
    for level in (0..levels).rev() {
        let out = width << level.min(2);
        while let Some((skip, skip_channels)) = skips.pop_if(|(skip, c)| g.size(*skip) == 4 * *c * s * s) {
            let joined = g.op(4 * (channels + skip_channels) * s * s, &[x, skip]);
            x = block(&mut g, joined, channels + skip_channels, out, s);
            channels = out;
        }
        if level > 0 {
            s *= 2;
            x = g.op(4 * channels * s * s, &[x]);
            x = conv(&mut g, x, channels, channels, s);
        }
    }
    let y = conv(&mut g, x, channels, 3, s);
    g.output(y);
    g
}

/// Inverted bottlenecks with residuals.
pub(super) fn mobilenet(side: u64, direct: bool) -> Net {
    let mut g = Net::default();
    let image = g.input(4 * 3 * side * side);
    let mut s = side / 2;
    let mut x = g.op(4 * 32 * s * s, &[image]);
    let mut channels = 32;
    for (expand, out, repeats, stride) in
        [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    {
        for i in 0..repeats {
            let wide = channels * expand;
            let before = x;
            let mut h = if expand > 1 { g.op(4 * wide * s * s, &[x]) } else { x };
            h = if expand > 1 { g.map(&[h]) } else { h };
            if i == 0 {
                s = s.div_ceil(stride);
            }
            if !direct {
                h = g.op(4 * 9 * wide * s * s, &[h]);
            }
            h = g.op(4 * wide * s * s, &[h]);
            h = g.map(&[h]);
            h = g.op(4 * out * s * s, &[h]);
            h = g.map(&[h]);
            x = if i > 0 { g.map(&[h, before]) } else { h };
            channels = out;
        }
    }
    let x = g.op(4 * 1280 * s * s, &[x]);
    let x = g.map(&[x]);
    let x = g.op(4 * 1280, &[x]);
    let y = g.op(4 * 1000, &[x]);
    g.output(y);
    g
}

/// Bottlenecks with residuals, convolutions through columns.
pub(super) fn resnet(side: u64) -> Net {
    let mut g = Net::default();
    let image = g.input(4 * 3 * side * side);
    let mut s = side / 2;
    let columns = g.op(4 * 147 * s * s, &[image]);
    let x = g.op(4 * 64 * s * s, &[columns]);
    let x = g.map(&[x]);
    s /= 2;
    let mut x = g.op(4 * 64 * s * s, &[x]);
    let mut channels = 64;
    for (level, repeats) in [3, 4, 6, 3].into_iter().enumerate() {
        let narrow = 64 << level;
        for i in 0..repeats {
            let h = g.op(4 * narrow * s * s, &[x]);
            let h = g.map(&[h]);
            let from = x;
            if i == 0 && level > 0 {
                s /= 2;
            }
            let columns = g.op(4 * 9 * narrow * s * s, &[h]);
            let h = g.op(4 * narrow * s * s, &[columns]);
            let h = g.map(&[h]);
            let h = g.op(4 * 4 * narrow * s * s, &[h]);
            let h = g.map(&[h]);
            let short = if channels == 4 * narrow { from } else { g.op(4 * 4 * narrow * s * s, &[from]) };
            let sum = g.map(&[h, short]);
            x = g.map(&[sum]);
            channels = 4 * narrow;
        }
    }
    let x = g.op(4 * channels, &[x]);
    let y = g.op(4 * 1000, &[x]);
    g.output(y);
    g
}

/// A policy over many agents.
pub(super) fn mlp(batch: u64) -> Net {
    let mut g = Net::default();
    let mut x = g.input(4 * 24 * batch);
    for width in [64, 64, 8] {
        x = g.op(4 * width * batch, &[x]);
        x = g.map(&[x]);
        x = g.map(&[x]);
    }
    g.output(x);
    g
}

/// Nodes that read earlier ones, mostly recent ones, now and then far ones; sizes over many magnitudes.
pub(super) fn random(seed: u64, nodes: usize, far_percent: u64, elementwise_percent: u64) -> Net {
    let mut random = super::Random(seed);
    let mut g = Net::default();
    g.input(4096);
    while g.len() < nodes {
        let n = g.len();
        let pick = |random: &mut super::Random| {
            let reach = if random.below(100) < far_percent { n } else { n.min(4) };
            n - 1 - usize::try_from(random.below(reach as u64)).unwrap_or(0)
        };
        let sources: Vec<usize> = (0..=random.below(2)).map(|_| pick(&mut random)).collect();
        if random.below(100) < elementwise_percent {
            g.map(&sources);
        } else {
            let size = random.heavy(1 << 20);
            g.op(size, &sources);
        }
    }
    let last = g.len() - 1;
    g.output(last);
    g
}
