//! Plain dtypes: one little-endian number per element.
//!
//! Integers become the nearest f32 and come from the nearest integer, halves away from zero; values beyond the range
//! saturate, NaN becomes 0. Nothing that only moves integers may go through these: f32 holds 24 bits.

use half::{bf16, f16};

use super::Codec;

macro_rules! plain {
    ($($(#[doc = $doc:literal])+ $name:ident, $bytes:literal, $decode:expr, $encode:expr;)+) => {$(
        $(#[doc = $doc])+
        pub struct $name;

        impl Codec for $name {
            fn dequantize(bytes: &[u8], out: &mut [f32]) {
                let decode: fn([u8; $bytes]) -> f32 = $decode;
                assert_eq!(bytes.len(), out.len() * $bytes);
                for (b, o) in bytes.as_chunks::<$bytes>().0.iter().zip(out) {
                    *o = decode(*b);
                }
            }

            fn quantize(x: &[f32], bytes: &mut [u8]) {
                let encode: fn(f32) -> [u8; $bytes] = $encode;
                assert_eq!(bytes.len(), x.len() * $bytes);
                for (b, x) in bytes.as_chunks_mut::<$bytes>().0.iter_mut().zip(x) {
                    *b = encode(*x);
                }
            }
        }
    )+};
}

plain! {
    /// IEEE single precision.
    F32, 4, f32::from_le_bytes, f32::to_le_bytes;
    /// IEEE half precision, rounded to nearest even; values beyond the range become infinities.
    F16, 2, |b| f16::from_le_bytes(b).to_f32(), |v| f16::from_f32(v).to_le_bytes();
    /// The upper half of an IEEE single, rounded to nearest even; NaN stays NaN.
    Bf16, 2, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16), |v| bf16::from_f32(v).to_le_bytes();
    /// Signed 8-bit integers.
    I8, 1, |b| f32::from(i8::from_le_bytes(b)), |v| (v.round() as i8).to_le_bytes();
    /// Signed 16-bit integers.
    I16, 2, |b| f32::from(i16::from_le_bytes(b)), |v| (v.round() as i16).to_le_bytes();
    /// Signed 32-bit integers.
    I32, 4, |b| i32::from_le_bytes(b) as f32, |v| (v.round() as i32).to_le_bytes();
    /// Signed 64-bit integers.
    I64, 8, |b| i64::from_le_bytes(b) as f32, |v| (v.round() as i64).to_le_bytes();
}
