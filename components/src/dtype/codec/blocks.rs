//! Blocks of 32 with one scale: `q4_0`, `q4_1`, `q5_0`, `q5_1`, `q8_0`.
//!
//! The types whose name ends in `_0` have no offset: the element with the largest magnitude becomes the lowest quant
//! exactly, whatever its sign, so that the range has no gap. Those that end in `_1` cut the range from the smallest to
//! the largest element into equal steps. Both are what the `gguf` package does, bit for bit on finite blocks.

use super::{BlockCodec, PART, Part, extreme, inverse, is_finite, nibbles, read_f16, write_f16};

/// The lower four bits of quants, packed as [`nibbles`] reads them.
fn pack_nibbles(quants: &[u8; PART], packed: &mut [u8]) {
    for (i, byte) in packed[..16].iter_mut().enumerate() {
        *byte = quants[i] & 15 | quants[i + 16] << 4;
    }
}

/// Nibbles, with their fifth bits from a word that has one a bit, the first element's lowest.
fn fives(high: &[u8], packed: &[u8]) -> [u8; PART] {
    let low = nibbles(packed);
    std::array::from_fn(|i| low[i] | (high[i / 8] >> (i % 8) & 1) << 4)
}

/// The inverse of [`fives`].
fn pack_fives(quants: &[u8; PART], block: &mut [u8], high_at: usize) {
    let high = quants.iter().enumerate().fold(0, |high: u32, (i, q)| high | u32::from(q >> 4) << i);
    block[high_at..high_at + 4].copy_from_slice(&high.to_le_bytes());
    pack_nibbles(quants, &mut block[high_at + 4..]);
}

/// Quants from 0 to `top`, rounded after shifting: halves go up.
fn quants(x: &[f32], base: f32, inverse: f32, shift: f32, top: f32) -> [u8; PART] {
    std::array::from_fn(|i| ((x[i] - base) * inverse + shift).clamp(0.0, top) as u8)
}

fn smallest(x: &[f32]) -> f32 {
    x.iter().copied().fold(f32::INFINITY, f32::min)
}

fn largest(x: &[f32]) -> f32 {
    x.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Scale and quants of a type without offset, whose lowest quant is `−half`.
fn encode_signed(x: &[f32], block: &mut [u8], half: f32) -> [u8; PART] {
    let d = extreme(x) / -half;
    write_f16(block, 0, d);
    quants(x, 0.0, inverse(d), half + 0.5, 2.0 * half - 1.0)
}

/// Scale, minimum and quants of a type with `top` steps.
fn encode_ranged(x: &[f32], block: &mut [u8], top: f32) -> [u8; PART] {
    let min = smallest(x);
    let d = (largest(x) - min) / top;
    write_f16(block, 0, d);
    write_f16(block, 2, min);
    quants(x, min, inverse(d), 0.5, top)
}

/// The codec of `q4_0`.
pub struct Q4_0;

impl BlockCodec for Q4_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 18;
    const OFFSETS: bool = false;

    fn part(block: &[u8], _index: usize) -> Part {
        let quants = nibbles(&block[2..18]).map(|q| q.cast_signed() - 8);
        Part { quants, scales: [read_f16(block, 0); 2], offsets: [0.0; 2] }
    }

    fn encode(x: &[f32], block: &mut [u8]) {
        if is_finite(x, block, 0) {
            let quants = encode_signed(x, block, 8.0);
            pack_nibbles(&quants, &mut block[2..]);
        }
    }
}

/// The codec of `q4_1`.
pub struct Q4_1;

impl BlockCodec for Q4_1 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 20;
    const OFFSETS: bool = true;

    fn part(block: &[u8], _index: usize) -> Part {
        let quants = nibbles(&block[4..20]).map(u8::cast_signed);
        Part { quants, scales: [read_f16(block, 0); 2], offsets: [read_f16(block, 2); 2] }
    }

    fn encode(x: &[f32], block: &mut [u8]) {
        if is_finite(x, block, 0) {
            let quants = encode_ranged(x, block, 15.0);
            pack_nibbles(&quants, &mut block[4..]);
        }
    }
}

/// The codec of `q5_0`.
pub struct Q5_0;

impl BlockCodec for Q5_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 22;
    const OFFSETS: bool = false;

    fn part(block: &[u8], _index: usize) -> Part {
        let quants = fives(&block[2..6], &block[6..22]).map(|q| q.cast_signed() - 16);
        Part { quants, scales: [read_f16(block, 0); 2], offsets: [0.0; 2] }
    }

    fn encode(x: &[f32], block: &mut [u8]) {
        if is_finite(x, block, 0) {
            let quants = encode_signed(x, block, 16.0);
            pack_fives(&quants, block, 2);
        }
    }
}

/// The codec of `q5_1`.
pub struct Q5_1;

impl BlockCodec for Q5_1 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 24;
    const OFFSETS: bool = true;

    fn part(block: &[u8], _index: usize) -> Part {
        let quants = fives(&block[4..8], &block[8..24]).map(u8::cast_signed);
        Part { quants, scales: [read_f16(block, 0); 2], offsets: [read_f16(block, 2); 2] }
    }

    fn encode(x: &[f32], block: &mut [u8]) {
        if is_finite(x, block, 0) {
            let quants = encode_ranged(x, block, 31.0);
            pack_fives(&quants, block, 4);
        }
    }
}

/// The codec of `q8_0`. Its largest magnitude becomes ±127, and halves round away from zero.
pub struct Q8_0;

impl BlockCodec for Q8_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 34;
    const OFFSETS: bool = false;

    fn part(block: &[u8], _index: usize) -> Part {
        let quants = std::array::from_fn(|i| block[2 + i].cast_signed());
        Part { quants, scales: [read_f16(block, 0); 2], offsets: [0.0; 2] }
    }

    fn encode(x: &[f32], block: &mut [u8]) {
        if is_finite(x, block, 0) {
            let d = extreme(x).abs() / 127.0;
            write_f16(block, 0, d);
            let inverse = inverse(d);
            for (q, &v) in block[2..].iter_mut().zip(x) {
                *q = ((v * inverse).round() as i8).cast_unsigned();
            }
        }
    }
}
