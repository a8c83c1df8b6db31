//! Codecs: the executable meaning of each dtype's bytes, straightforward and safe.
//!
//! Source: the block structures of the GGUF format as its Python package (`gguf`) reads them. Decoding does the same f32
//! operations in the same order, so that both give the same bits. Every codec works on whole blocks.
//!
//! What cannot be encoded stays visible. A block with a NaN or an infinity gets a NaN scale and decodes to NaN
//! throughout (`mxfp4`, which has no NaN, to infinities). Where a scale is beyond f16, elements become infinities and NaN.
//! Where a scale is below f16's smallest, elements become zeros (the minimum, in types that have one).

mod blocks;
mod codebook;
mod k;
mod k_fit;
mod plain;

pub use blocks::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub use codebook::{CODEBOOK_IQ4_NL, CODEBOOK_MXFP4, Iq4Nl, Mxfp4, power_of_two_half};
pub use k::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub use plain::{Bf16, F16, F32, I8, I16, I32, I64};

use half::f16;

use super::DType;

/// How a dtype's bytes stand for numbers.
pub trait Codec {
    /// Decodes whole blocks to f32.
    ///
    /// # Panics
    /// Panics when the slices do not hold the same number of blocks; callers size both from one shape.
    fn dequantize(bytes: &[u8], out: &mut [f32]);

    /// Encodes f32 to whole blocks.
    ///
    /// # Panics
    /// As [`Codec::dequantize`].
    fn quantize(x: &[f32], bytes: &mut [u8]);
}

/// Elements of a [`Part`].
pub const PART: usize = 32;

/// 32 neighbours of a block as products want them: element `i` is `scales[i / 16] · quants[i] + offsets[i / 16]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Small integers.
    pub quants: [i8; PART],
    /// What a step is worth, in the first and in the second half.
    pub scales: [f32; 2],
    /// What is added, in the first and in the second half; zeros in types that add nothing.
    pub offsets: [f32; 2],
}

/// A dtype whose elements are packed in blocks that share scales.
pub trait BlockCodec {
    /// Elements of a block: one part or several.
    const ELEMENTS: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Whether parts have offsets. Types without must not add a zero: it would turn −0 into 0.
    const OFFSETS: bool;

    /// The part of a block that begins at element `index · 32`.
    ///
    /// # Panics
    /// Panics when `block` is too short, or the block has no such part.
    fn part(block: &[u8], index: usize) -> Part;

    /// Encodes one block.
    ///
    /// # Panics
    /// Panics when a slice is too short.
    fn encode(x: &[f32], block: &mut [u8]);
}

impl<B: BlockCodec> Codec for B {
    fn dequantize(bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len() * B::ELEMENTS, out.len() * B::BYTES);
        for (block, out) in bytes.chunks_exact(B::BYTES).zip(out.chunks_exact_mut(B::ELEMENTS)) {
            for (index, out) in out.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
                let part = B::part(block, index);
                for (i, (o, &q)) in out.iter_mut().zip(&part.quants).enumerate() {
                    let product = part.scales[i / 16] * f32::from(q);
                    *o = if B::OFFSETS { product + part.offsets[i / 16] } else { product };
                }
            }
        }
    }

    fn quantize(x: &[f32], bytes: &mut [u8]) {
        assert_eq!(bytes.len() * B::ELEMENTS, x.len() * B::BYTES);
        for (block, x) in bytes.chunks_exact_mut(B::BYTES).zip(x.chunks_exact(B::ELEMENTS)) {
            B::encode(x, block);
        }
    }
}

/// Dot product of one encoded row with f32 values, in f64: the reference that fast dot products are tested against.
///
/// # Panics
/// Panics when `row` does not hold exactly `x.len()` elements of `dtype`.
#[must_use]
pub fn dot(dtype: DType, row: &[u8], x: &[f32]) -> f64 {
    let mut values = vec![0.0; x.len()];
    (dtype.row().dequantize)(row, &mut values);
    values.iter().zip(x).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// Nibbles of 32 elements: the low ones are elements 0–15, the high ones 16–31.
fn nibbles(packed: &[u8]) -> [u8; PART] {
    let mut quants = [0; PART];
    let (low, high) = quants.split_at_mut(PART / 2);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(&packed[..PART / 2]) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
    quants
}

/// The little-endian f16 at `at`.
fn read_f16(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Writes a little-endian f16, rounded to nearest even, and gives back what it has become.
fn write_f16(bytes: &mut [u8], at: usize, value: f32) -> f32 {
    // From f32: the conversion from f64 rounds twice on some machines.
    let rounded = f16::from_f32(value);
    bytes[at..at + 2].copy_from_slice(&rounded.to_le_bytes());
    rounded.to_f32()
}

/// Whether a block can be encoded; if not, it is written as one whose scale, an f16 at `scale_at`, is NaN.
fn is_finite(x: &[f32], block: &mut [u8], scale_at: usize) -> bool {
    let finite = x.iter().all(|v| v.is_finite());
    if !finite {
        block.fill(0);
        write_f16(block, scale_at, f32::NAN);
    }
    finite
}

/// What to multiply with instead of dividing by a scale; nothing is a multiple of 0.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The first of the elements with the largest magnitude, with its sign.
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |extreme: f32, &v| if v.abs() > extreme.abs() { v } else { extreme })
}

/// The integer nearest to a value of fewer than 22 bits, ties to even. `f32::round_ties_even` is a call on some targets.
fn nearest(v: f32) -> f32 {
    const WHOLE: f32 = 12_582_912.0;
    (v + WHOLE) - WHOLE
}

#[cfg(test)]
mod tests;
