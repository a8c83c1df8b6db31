//! The level that every CPU has: plain Rust in shapes that compilers vectorize.

use entensor_components::codec::{BlockCodec, Codec, Part};
use half::f16;

use crate::kernels::{Activations, Map, Zip};

use super::{
    BLOCK, BUNDLE_SCALES, BUNDLE_STEPS, BUNDLE_SUMS, Blocks, BytePart, FOUR, Fetch, GROUP, GroupLayout, Level, PANEL,
    PANEL_ROWS, Panel, PanelRows, Panels, PlainRows, Rounded, STEPS_MOST, Streams, bundle_block,
    vector::{Pairing, WeightRows, count, vector_bytes},
};

/// Proof of nothing: every CPU can run this.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// Partial sums of a plain dot product; as many as the widest register that the compiler may pick.
const LANES: usize = 8;

/// 1.5 · 2^23: adding it leaves the nearest integer in the low bits of the mantissa.
const ROUND: f32 = 12_582_912.0;

#[inline(always)]
pub(super) fn read_f32(bytes: &[u8], index: usize) -> f32 {
    let at = index * 4;
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
fn read_f16(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

#[inline(always)]
fn read_bf16(bytes: &[u8], index: usize) -> f32 {
    f32::from_bits(u32::from(bytes[2 * index + 1]) << 24 | u32::from(bytes[2 * index]) << 16)
}

/// The sum of partial sums, pairwise.
#[inline(always)]
pub(super) fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn dot_plain(k: usize, w: impl Fn(usize) -> f32, x: &[u8]) -> f32 {
    let mut lanes = [0.0; LANES];
    let whole = k - k % LANES;
    for start in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += w(start + lane) * read_f32(x, start + lane);
        }
    }
    for i in whole..k {
        lanes[i - whole] += w(i) * read_f32(x, i);
    }
    sum_lanes(lanes)
}

/// Rows against rows, one product at a time.
#[inline(always)]
fn each<const M: usize, const N: usize>(
    w: [&[u8]; M],
    x: [&[u8]; N],
    dot: impl Fn(&[u8], &[u8]) -> f32,
) -> [[f32; N]; M] {
    w.map(|w| x.map(|x| dot(w, x)))
}

/// Rows against rows of a group, one product at a time.
#[inline(always)]
fn each_rounded<const M: usize, const N: usize>(
    w: [&[u8]; M],
    x: Rounded<'_>,
    dot: impl Fn(&[u8], &[u8], usize) -> f32,
) -> [[f32; N]; M] {
    w.map(|w| std::array::from_fn(|row| dot(w, x.group, x.first + row)))
}

impl Level for Portable {
    #[inline(always)]
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        f()
    }

    #[inline]
    fn map(self, f: &dyn Map, from: &[f32], to: &mut [f32]) {
        f.portable(self, from, to);
    }

    #[inline]
    fn zip(self, f: &dyn Zip, a: &mut [f32], b: &[f32]) {
        f.portable(self, a, b);
    }

    #[inline(always)]
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }

    #[inline(always)]
    fn decode_f16(self, bytes: &[u8], out: &mut [f32]) {
        assert!(bytes.len() >= out.len() * 2);
        for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *o = f16::from_le_bytes(*b).to_f32();
        }
    }

    #[inline(always)]
    fn encode_f16(self, x: &[f32], bytes: &mut [u8]) {
        assert!(bytes.len() >= x.len() * 2);
        for (x, b) in x.iter().zip(bytes.as_chunks_mut::<2>().0) {
            *b = f16::from_f32(*x).to_le_bytes();
        }
    }

    #[inline(always)]
    fn quantize(self, x: &[f32], k: usize, row: usize, first: usize, group: &mut [u8]) {
        let layout = GroupLayout { k };
        for (b, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let mut quants = [0; BLOCK];
            let ([even, odd], sum) = quantize_block(x, &mut quants);
            group[layout.quants(row, first + b)..][..BLOCK].copy_from_slice(&quants);
            group[layout.scales(row, first + b)..][..4].copy_from_slice(&even.to_le_bytes());
            group[layout.scales(row, first + b) + 4..][..4].copy_from_slice(&odd.to_le_bytes());
            group[layout.sum(row, first + b)..][..4].copy_from_slice(&sum.to_le_bytes());
        }
    }

    #[inline(always)]
    fn dots_q8_0<const M: usize, const N: usize, const S: usize>(
        self,
        k: usize,
        w: [&[u8]; M],
        x: Rounded<'_>,
    ) -> [[f32; N]; M] {
        let layout = GroupLayout { k };
        each_rounded(w, x, |w, group, row| {
            let mut sum = 0.0;
            for (b, w) in w.as_chunks::<34>().0.iter().step_by(S).take(k / BLOCK).enumerate() {
                let q = &group[layout.quants(row, b)..][..BLOCK];
                let mut dots = [0_i32; 2];
                for (i, (&w, &q)) in w[2..].iter().zip(q).enumerate() {
                    dots[i / FOUR % 2] += i32::from(w.cast_signed()) * i32::from(q.cast_signed());
                }
                sum += scaled(dots, read_f16(w, 0), &group[layout.scales(row, b)..]);
            }
            sum
        })
    }

    #[inline(always)]
    fn dots_q4_1<const M: usize, const N: usize, const S: usize>(
        self,
        k: usize,
        w: [&[u8]; M],
        x: Rounded<'_>,
    ) -> [[f32; N]; M] {
        let layout = GroupLayout { k };
        each_rounded(w, x, |w, group, row| {
            let (mut sum, mut minima) = (0.0, 0.0);
            for (b, w) in w.as_chunks::<20>().0.iter().step_by(S).take(k / BLOCK).enumerate() {
                let q = &group[layout.quants(row, b)..][..BLOCK];
                let mut dots = [0_i32; 2];
                for i in 0..BLOCK / 2 {
                    // The second half starts at a multiple of two fours, so its elements take the same turns.
                    dots[i / FOUR % 2] += i32::from(w[4 + i] & 15) * i32::from(q[i].cast_signed());
                    dots[i / FOUR % 2] += i32::from(w[4 + i] >> 4) * i32::from(q[i + BLOCK / 2].cast_signed());
                }
                sum += scaled(dots, read_f16(w, 0), &group[layout.scales(row, b)..]);
                minima += read_f16(w, 2) * read_f32(&group[layout.sum(row, b)..], 0);
            }
            sum + minima
        })
    }

    #[inline(always)]
    fn dots_blocks<B: Blocks, const M: usize, const N: usize, const S: usize>(
        self,
        k: usize,
        w: [&[u8]; M],
        x: Rounded<'_>,
    ) -> [[f32; N]; M] {
        assert!(k.is_multiple_of(B::ELEMENTS));
        let layout = GroupLayout { k };
        let parts = B::ELEMENTS / BLOCK;
        w.map(|w| {
            let mut sums = [[0.0; LANES]; N];
            for (block, bytes) in w.chunks_exact(B::BYTES).step_by(S).take(k / B::ELEMENTS).enumerate() {
                for part in 0..parts {
                    let (b, part) = (block * parts + part, B::part(bytes, part));
                    for (j, sums) in sums.iter_mut().enumerate() {
                        let row = x.first + j;
                        let q = &x.group[layout.quants(row, b)..].as_chunks().0[0];
                        let scales = &x.group[layout.scales(row, b)..];
                        add_part::<B>(&part, q, [read_f32(scales, 0), read_f32(scales, 1)], sums);
                    }
                }
            }
            sums.map(sum_lanes)
        })
    }

    #[inline(always)]
    fn decode_blocks<B: Blocks>(self, row: &[u8], step: usize, first: usize, out: &mut [f32]) {
        let blocks = row.chunks(B::BYTES).step_by(step).skip(first);
        for (block, out) in blocks.zip(out.chunks_exact_mut(B::ELEMENTS)) {
            B::dequantize(block, out);
        }
    }

    #[inline(always)]
    fn interleave(self, rows: &PanelRows, depth: usize, panel: &mut Panel) {
        for (i, panel) in panel[..depth].iter_mut().enumerate() {
            for (element, row) in panel.iter_mut().zip(rows) {
                *element = row[i];
            }
        }
    }

    #[inline(always)]
    fn round_bundle(self, x: &[f32], row: usize, first: usize, bundle: &mut [u8]) {
        for (b, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let mut quants = [0; BLOCK];
            let (steps, scale, sum) = round_block(x, &mut quants);
            let block = &mut bundle[bundle_block(first + b)..];
            block[row * BLOCK..][..BLOCK].copy_from_slice(&quants);
            for (steps, at) in steps.into_iter().zip([0, 4]) {
                let twice = [steps.to_le_bytes(); 2];
                block[BUNDLE_STEPS + row * 8 + at..][..4].copy_from_slice(twice.as_flattened());
            }
            block[BUNDLE_SCALES + row * 4..][..4].copy_from_slice(&scale.to_le_bytes());
            block[BUNDLE_SUMS + row * 4..][..4].copy_from_slice(&sum.to_le_bytes());
        }
    }

    #[inline(always)]
    fn dots_f32<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M] {
        each(w, x, |w, x| dot_plain(k, |i| read_f32(w, i), x))
    }

    #[inline(always)]
    fn dots_f16<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M] {
        each(w, x, |w, x| dot_plain(k, |i| read_f16(w, 2 * i), x))
    }

    #[inline(always)]
    fn dots_bf16<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M] {
        each(w, x, |w, x| dot_plain(k, |i| read_bf16(w, i), x))
    }

    #[inline(always)]
    fn quantize_vector(self, x: &[f32], first: usize, pairing: Pairing, out: &mut [u8]) {
        for (b, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let slot = pairing.slot(first + b);
            let mut quants = [0; BLOCK];
            let ([even, odd], sum) = quantize_block(x, &mut quants);
            for (half, quants) in quants.as_chunks::<16>().0.iter().enumerate() {
                out[slot.quants() + half * BLOCK..][..16].copy_from_slice(quants);
            }
            for (i, (scale, sum)) in [(even, 0.0), (odd, sum)].into_iter().enumerate() {
                out[slot.scales() + 4 * i..][..4].copy_from_slice(&scale.to_le_bytes());
                out[slot.sums() + 4 * i..][..4].copy_from_slice(&sum.to_le_bytes());
            }
            for (i, count) in count(&quants).into_iter().enumerate() {
                out[slot.counts() + 2 * i..][..2].copy_from_slice(&count.to_le_bytes());
            }
        }
    }

    #[inline(always)]
    fn vector_blocks<B: Streams, const S: usize>(
        self,
        k: usize,
        w: WeightRows<'_>,
        x: &[u8],
        _fetch: Fetch,
        out: &mut [f32],
    ) {
        assert!(k.is_multiple_of(B::ELEMENTS) && x.len() >= vector_bytes(k));
        let (pairing, parts) = (Pairing::of(B::ELEMENTS), B::ELEMENTS / BLOCK);
        for (row, out) in out.iter_mut().enumerate() {
            let w = w.row::<S>(row, k / B::ELEMENTS, B::BYTES);
            let mut sums = [0.0; LANES];
            for (block, bytes) in w.chunks_exact(B::BYTES).step_by(S).enumerate() {
                for part in 0..parts {
                    let slot = pairing.slot(block * parts + part);
                    let mut q = [0; BLOCK];
                    for (half, q) in q.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                        q.copy_from_slice(&x[slot.quants() + half * BLOCK..][..16]);
                    }
                    let scales = &x[slot.scales()..];
                    let scales = [read_f32(scales, 0), read_f32(scales, 1)];
                    add_part::<B>(&B::part(bytes, part), &q, scales, &mut sums);
                }
            }
            *out = sum_lanes(sums);
        }
    }

    #[inline(always)]
    fn vector_f32(self, k: usize, w: WeightRows<'_>, x: &[u8], out: &mut [f32]) {
        for (row, out) in out.iter_mut().enumerate() {
            let w = w.row::<1>(row, k, 4);
            *out = dot_plain(k, |i| read_f32(w, i), x);
        }
    }

    #[inline(always)]
    fn vector_f16(self, k: usize, w: WeightRows<'_>, x: &[u8], out: &mut [f32]) {
        for (row, out) in out.iter_mut().enumerate() {
            let w = w.row::<1>(row, k, 2);
            *out = dot_plain(k, |i| read_f16(w, 2 * i), x);
        }
    }

    #[inline(always)]
    fn vector_bf16(self, k: usize, w: WeightRows<'_>, x: &[u8], out: &mut [f32]) {
        for (row, out) in out.iter_mut().enumerate() {
            let w = w.row::<1>(row, k, 2);
            *out = dot_plain(k, |i| read_bf16(w, i), x);
        }
    }

    #[inline(always)]
    fn decode_q8_0(self, bytes: &[u8], out: &mut [f32]) {
        assert!(bytes.len() >= out.len() / BLOCK * 34 && out.len().is_multiple_of(BLOCK));
        for (block, out) in bytes.as_chunks::<34>().0.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
            let scale = read_f16(block, 0);
            for (q, out) in block[2..].iter().zip(out) {
                *out = f32::from(q.cast_signed()) * scale;
            }
        }
    }

    #[inline(always)]
    fn add_scores<const N: usize>(self, k: usize, rows: PlainRows<'_>, queries: [&[f32]; N], scores: [&mut [f32]; N]) {
        rows.check(k);
        for (query, scores) in queries.into_iter().zip(scores) {
            for (row, score) in scores.iter_mut().enumerate().take(rows.count) {
                let row = &rows.bytes[row * rows.stride_bytes..];
                let query = bytemuck::cast_slice(query);
                *score += match rows.halves {
                    true => dot_plain(k, |i| read_f16(row, 2 * i), query),
                    false => dot_plain(k, |i| read_f32(row, i), query),
                };
            }
        }
    }

    #[inline(always)]
    fn add_weighted<const N: usize>(
        self,
        rows: PlainRows<'_>,
        weights: [&[f32]; N],
        rescale: [f32; N],
        sums: [&mut [f32]; N],
    ) {
        for ((weights, rescale), sums) in weights.into_iter().zip(rescale).zip(sums) {
            add_weighted_columns(rows, 0, weights, rescale, sums);
        }
    }

    #[inline(always)]
    fn add_panel<const M: usize>(self, a: &[f32], panel: &[[f32; PANEL]], sums: &mut [f32], strides: [usize; 2]) {
        for row in 0..M {
            let (a, mut added) = (&a[row * strides[0]..], [0.0; PANEL]);
            for (a, b) in a.iter().zip(panel) {
                for (added, b) in added.iter_mut().zip(b) {
                    *added += a * b;
                }
            }
            for (sum, added) in sums[row * strides[1]..][..PANEL].iter_mut().zip(&added) {
                *sum += added;
            }
        }
    }

    #[inline(always)]
    fn turn_into_panel(self, rows: &[f32], stride: usize, panel: &mut [[f32; PANEL]]) {
        for (d, to) in panel.iter_mut().enumerate() {
            for (row, to) in to.iter_mut().enumerate() {
                *to = rows.get(row * stride + d).copied().unwrap_or(0.0);
            }
        }
    }
}

/// Weighted sums of the columns from `first` on.
#[inline(always)]
pub(super) fn add_weighted_columns(rows: PlainRows<'_>, first: usize, weights: &[f32], rescale: f32, sums: &mut [f32]) {
    for (column, sum) in sums.iter_mut().enumerate().skip(first) {
        let mut added = 0.0;
        for (row, weight) in weights.iter().enumerate().take(rows.count) {
            let row = &rows.bytes[row * rows.stride_bytes..];
            added += weight * if rows.halves { read_f16(row, 2 * column) } else { read_f32(row, column) };
        }
        *sum = *sum * rescale + added;
    }
}

/// Where an element of a row lies in a [`BytePart`]: in which vector, and where there.
#[inline(always)]
fn byte_place(row: usize, element: usize) -> (usize, usize) {
    let four = element / FOUR;
    ((four % 2 * 4 + four / 2) * 2 + row / 8, row % 8 * FOUR + element % FOUR)
}

/// One block to 8 bits for bundles: the whole numbers of its two scales, what one is worth, and its sum.
#[inline(always)]
fn round_block(x: &[f32; BLOCK], quants: &mut [u8; BLOCK]) -> ([i16; 2], f32, f32) {
    let mut largest = [0; 2];
    for (i, v) in x.iter().enumerate() {
        let most = &mut largest[i / FOUR % 2];
        *most = (*most).max(v.to_bits() & 0x7fff_ffff);
    }
    let finite = largest.map(|most| most < f32::INFINITY.to_bits());
    let scale = |half: usize| if finite[half] { f32::from_bits(largest[half]) / 127.0 } else { 0.0 };
    let scales = [scale(0), scale(1)];
    let unit = scales[0].max(scales[1]) * (1.0 / STEPS_MOST);
    // A subnormal scale has no finite inverse; such a block is zero for all purposes of a product.
    let unit = if unit >= f32::MIN_POSITIVE { unit } else { 0.0 };
    let steps = scales.map(|scale| if unit > 0.0 { (scale / unit).ceil() } else { 0.0 });
    let inverses = steps.map(|steps| if steps > 0.0 { 1.0 / (steps * unit) } else { 0.0 });
    let mut sums = [0_i32; 2];
    for (i, (q, v)) in quants.iter_mut().zip(x).enumerate() {
        let half = i / FOUR % 2;
        *q = if finite[half] { (v * inverses[half] + ROUND).to_bits() as u8 } else { 0 };
        sums[half] += i32::from(q.cast_signed());
    }
    let steps = steps.map(|steps| steps as i16);
    let unit = if finite == [true; 2] { unit } else { f32::NAN };
    (steps, unit, unit * (sums[0] * i32::from(steps[0]) + sums[1] * i32::from(steps[1])) as f32)
}

/// Adds a part of weights times a block of activations, eight neighbours a step: the first four of them are an even four,
/// the others an odd one.
#[inline(always)]
fn add_part<B: BlockCodec>(part: &Part, q: &[u8; BLOCK], x_scales: [f32; 2], sums: &mut [f32; LANES]) {
    for (half, (w, q)) in part.quants.as_chunks::<16>().0.iter().zip(q.as_chunks::<16>().0).enumerate() {
        let q = q.map(|q| i16::from(q.cast_signed()));
        for lane in 0..LANES {
            let x_scale = x_scales[lane / FOUR];
            // At most 2 · 128 · 127, so 16 bits are enough.
            let dot = (i16::from(w[lane]) * q[lane]).wrapping_add(i16::from(w[lane + LANES]) * q[lane + LANES]);
            sums[lane] += f32::from(dot) * (part.scales[half] * x_scale);
            if B::OFFSETS {
                sums[lane] += f32::from(q[lane].wrapping_add(q[lane + LANES])) * (part.offsets[half] * x_scale);
            }
        }
    }
}

/// The products of a block's even and odd fours, each with its scale.
#[inline(always)]
fn scaled(dots: [i32; 2], weights_scale: f32, scales: &[u8]) -> f32 {
    dots[0] as f32 * (weights_scale * read_f32(scales, 0)) + dots[1] as f32 * (weights_scale * read_f32(scales, 1))
}

/// One block to 8 bits: its two scales and its sum. The sum is that of the values after rounding: rounding errors then meet
/// the weights themselves, whose mean is near zero, and cancel; with exact sums they would meet the quants of `q4_1`, which
/// are never negative, and add up (measured on a real model: 2.5 times the error).
#[inline(always)]
fn quantize_block(x: &[f32; BLOCK], quants: &mut [u8; BLOCK]) -> ([f32; 2], f32) {
    // Compared as integers, NaN and infinity are the largest magnitudes and cannot get lost.
    let mut largest = [0; 2];
    for (i, v) in x.iter().enumerate() {
        let most = &mut largest[i / FOUR % 2];
        *most = (*most).max(v.to_bits() & 0x7fff_ffff);
    }
    let finite = largest.map(|most| most < f32::INFINITY.to_bits());
    let scales = largest.map(|most| f32::from_bits(most) / 127.0);
    // A subnormal scale has no finite inverse; such a half is zero for all purposes of a product.
    let inverses = scales.map(|scale| if scale < f32::MIN_POSITIVE { 0.0 } else { 1.0 / scale });
    let mut sums = [0_i32; 2];
    for (i, (q, v)) in quants.iter_mut().zip(x).enumerate() {
        let half = i / FOUR % 2;
        // The low byte of the mantissa is the nearest integer, ties to even, in two's complement.
        *q = if finite[half] { (v * inverses[half] + ROUND).to_bits() as u8 } else { 0 };
        sums[half] += i32::from(q.cast_signed());
    }
    let scales = std::array::from_fn(|half| if finite[half] { scales[half] } else { f32::NAN });
    (scales, scales[0] * sums[0] as f32 + scales[1] * sums[1] as f32)
}

impl Panels for Portable {
    type Base = Self;
    type Part = BytePart;

    const NO_ROWS: BytePart = BytePart::ZERO;
    const ROUNDED: Activations = Activations::Bundles;

    #[inline(always)]
    fn base(self) -> Self {
        self
    }

    #[inline(always)]
    fn panel_dots<const N: usize>(self, panel: &[[f32; PANEL_ROWS]], x: [&[u8]; N], sums: &mut [[f32; PANEL_ROWS]; N]) {
        for (x, sums) in x.iter().zip(sums) {
            let mut lanes = [0.0; PANEL_ROWS];
            for (weights, x) in panel.iter().zip(x.as_chunks().0) {
                let x = f32::from_le_bytes(*x);
                for (lane, weight) in lanes.iter_mut().zip(weights) {
                    *lane += weight * x;
                }
            }
            for (sum, lane) in sums.iter_mut().zip(lanes) {
                *sum += lane;
            }
        }
    }

    /// Compilers multiply floats better than bytes.
    fn has_byte_panels<B: Blocks>() -> bool {
        false
    }

    #[inline(always)]
    fn pack_bytes<B: Blocks>(self, rows: &[(&[u8], usize)], first: usize, panel: &mut [BytePart]) {
        let parts = B::ELEMENTS / BLOCK;
        for (index, panel) in panel.iter_mut().enumerate() {
            let (block, part) = ((first + index) / parts, (first + index) % parts);
            for (row, (bytes, step)) in rows.iter().enumerate() {
                let part = B::part(&bytes[block * step * B::BYTES..], part);
                (panel.scales[row], panel.offsets[row]) = (part.scales[0], part.offsets[0]);
                for (i, q) in part.quants.iter().enumerate() {
                    let (vector, lane) = byte_place(row, i);
                    panel.quants[vector][lane] = q.cast_unsigned();
                }
            }
        }
    }

    #[inline(always)]
    fn byte_dots<B: Blocks>(
        self,
        panel: &[BytePart],
        _k: usize,
        x: &[u8],
        first: usize,
        sums: &mut [[f32; PANEL_ROWS]; GROUP],
    ) {
        for (index, part) in panel.iter().enumerate() {
            let block = &x[bundle_block(first + index)..];
            for (row, sums) in sums.iter_mut().enumerate() {
                let quants = &block[row * BLOCK..][..BLOCK];
                let steps = [0, 4].map(|at| {
                    let at = BUNDLE_STEPS + row * 8 + at;
                    i32::from(i16::from_le_bytes([block[at], block[at + 1]]))
                });
                let [scale, total] = [BUNDLE_SCALES, BUNDLE_SUMS].map(|at| read_f32(&block[at..], row));
                for (i, sum) in sums.iter_mut().enumerate() {
                    let mut dots = [0_i32; 2];
                    for (element, &q) in quants.iter().enumerate() {
                        let (vector, lane) = byte_place(i, element);
                        let weight = part.quants[vector][lane].cast_signed();
                        dots[element / FOUR % 2] += i32::from(weight) * i32::from(q.cast_signed());
                    }
                    let dot = (dots[0] * steps[0] + dots[1] * steps[1]) as f32 * scale;
                    *sum += dot * part.scales[i] + total * part.offsets[i];
                }
            }
        }
    }
}
