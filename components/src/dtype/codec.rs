//! Block codecs: the executable meaning of each dtype's bytes, straightforward and safe.
//!
//! Source: the block structures of the GGUF format (`ggml-common.h`). Every codec works on whole blocks:
//! `bytes.len() / block_bytes` blocks are decoded or encoded, and the f32 slice must hold that many blocks of
//! elements.
//!
//! # Panics
//! Codecs panic when the slices do not describe the same number of blocks; callers size both from one shape.

use half::f16;

use super::DType;

/// Reads the little-endian f16 at the start of `bytes`.
fn read_f16(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
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

/// f32: plain little-endian floats.
pub mod f32s {
    /// Decodes f32 bytes.
    pub fn dequantize(bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * 4);
        for (b, o) in bytes.as_chunks::<4>().0.iter().zip(out) {
            *o = f32::from_le_bytes(*b);
        }
    }

    /// Encodes f32 bytes.
    pub fn quantize(x: &[f32], bytes: &mut [u8]) {
        assert_eq!(bytes.len(), x.len() * 4);
        for (b, x) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(x) {
            *b = x.to_le_bytes();
        }
    }
}

/// f16: plain little-endian half floats, rounded to nearest even.
pub mod f16s {
    use half::f16;

    /// Decodes f16 bytes.
    pub fn dequantize(bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * 2);
        for (b, o) in bytes.as_chunks::<2>().0.iter().zip(out) {
            *o = f16::from_le_bytes(*b).to_f32();
        }
    }

    /// Encodes f16 bytes; values beyond the range become infinities.
    pub fn quantize(x: &[f32], bytes: &mut [u8]) {
        assert_eq!(bytes.len(), x.len() * 2);
        for (b, x) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(x) {
            *b = f16::from_f32(*x).to_le_bytes();
        }
    }
}

/// i32: plain little-endian integers.
pub mod i32s {
    /// Decodes i32 bytes; integers above 2^24 round to the nearest f32.
    #[expect(clippy::cast_precision_loss, reason = "decoding to f32 is what this function is for")]
    pub fn dequantize(bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * 4);
        for (b, o) in bytes.as_chunks::<4>().0.iter().zip(out) {
            *o = i32::from_le_bytes(*b) as f32;
        }
    }

    /// Encodes i32 bytes, rounding to nearest, saturating; NaN becomes 0.
    #[expect(clippy::cast_possible_truncation, reason = "saturation is the documented meaning")]
    pub fn quantize(x: &[f32], bytes: &mut [u8]) {
        assert_eq!(bytes.len(), x.len() * 4);
        for (b, x) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(x) {
            *b = (x.round() as i32).to_le_bytes();
        }
    }
}

/// q4_1: see the dtype's row.
pub mod q4_1 {
    use half::f16;

    use super::read_f16;

    /// Decodes q4_1 blocks.
    pub fn dequantize(bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len() / 20 * 32, out.len());
        for (block, out) in bytes.as_chunks::<20>().0.iter().zip(out.as_chunks_mut::<32>().0) {
            let (d, m) = (read_f16(&block[0..]), read_f16(&block[2..]));
            for (i, &q) in block[4..].iter().enumerate() {
                out[i] = d * f32::from(q & 15) + m;
                out[i + 16] = d * f32::from(q >> 4) + m;
            }
        }
    }

    /// Encodes q4_1 blocks: the range of each block in 15 equal steps.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0..=15 first")]
    pub fn quantize(x: &[f32], bytes: &mut [u8]) {
        assert_eq!(bytes.len() / 20 * 32, x.len());
        for (block, x) in bytes.as_chunks_mut::<20>().0.iter_mut().zip(x.as_chunks::<32>().0) {
            let min = x.iter().copied().fold(f32::INFINITY, f32::min);
            let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let d = (max - min) / 15.0;
            let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
            block[0..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
            block[2..4].copy_from_slice(&f16::from_f32(min).to_le_bytes());
            let encode = |v: f32| ((v - min) * inverse + 0.5).clamp(0.0, 15.0) as u8;
            for i in 0..16 {
                block[4 + i] = encode(x[i]) | encode(x[i + 16]) << 4;
            }
        }
    }
}

/// q8_0: see the dtype's row.
pub mod q8_0 {
    use half::f16;

    use super::read_f16;

    /// Decodes q8_0 blocks.
    pub fn dequantize(bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len() / 34 * 32, out.len());
        for (block, out) in bytes.as_chunks::<34>().0.iter().zip(out.as_chunks_mut::<32>().0) {
            let d = read_f16(block);
            for (o, &q) in out.iter_mut().zip(&block[2..]) {
                *o = d * f32::from(q.cast_signed());
            }
        }
    }

    /// Encodes q8_0 blocks: the largest magnitude of each block becomes ±127, halves round away from zero.
    #[expect(clippy::cast_possible_truncation, reason = "|v / d| is at most 127, and casts saturate")]
    pub fn quantize(x: &[f32], bytes: &mut [u8]) {
        assert_eq!(bytes.len() / 34 * 32, x.len());
        for (block, x) in bytes.as_chunks_mut::<34>().0.iter_mut().zip(x.as_chunks::<32>().0) {
            let largest = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
            let d = largest / 127.0;
            let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
            block[0..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
            for (q, &v) in block[2..].iter_mut().zip(x) {
                *q = ((v * inverse).round() as i8).cast_unsigned();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::DTYPES;

    #[test]
    fn every_codec_round_trips_within_half_a_step() {
        let x: Vec<f32> = (0..64_i16).map(|i| f32::from(i * 37 % 101) / 8.0 - 5.0).collect();
        for row in DTYPES {
            let bytes_len =
                usize::try_from(row.dtype.row_bytes(64).expect("64 is a whole number of blocks")).expect("small");
            let mut bytes = vec![0; bytes_len];
            let mut back = vec![0.0; 64];
            (row.quantize)(&x, &mut bytes);
            (row.dequantize)(&bytes, &mut back);
            let step = match row.name {
                "f32" => 0.0,
                "f16" => 0.01,
                "i32" => 0.5,
                "q4_1" => 0.5 * 12.6 / 15.0 + 0.01,
                "q8_0" => 0.5 * 7.6 / 127.0 + 0.01,
                other => panic!("state the step of {other} here"),
            };
            for (a, b) in x.iter().zip(&back) {
                assert!((a - b).abs() <= step, "{}: {a} became {b}", row.name);
            }
        }
    }

    #[test]
    fn layouts_are_those_of_gguf() {
        let mut block = [0_u8; 20];
        block[0..2].copy_from_slice(&half::f16::from_f32(2.0).to_le_bytes());
        block[2..4].copy_from_slice(&half::f16::from_f32(-1.0).to_le_bytes());
        block[4] = 0x31;
        let mut out = [0.0; 32];
        super::q4_1::dequantize(&block, &mut out);
        assert_eq!((out[0], out[16], out[1]), (1.0, 5.0, -1.0));
    }
}
