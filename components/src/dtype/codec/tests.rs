//! What every codec keeps: errors within its step, layouts, and what becomes of numbers that no block can hold.

use super::{super::DTYPES, *};

fn size(dtype: DType, elements: usize) -> usize {
    usize::try_from(dtype.row_bytes(elements as u64).expect("whole blocks")).expect("small")
}

/// Encoded and decoded again.
fn round_trip(dtype: DType, x: &[f32]) -> Vec<f32> {
    let (mut bytes, mut back) = (vec![0xaa; size(dtype, x.len())], vec![0.5; x.len()]);
    (dtype.row().quantize)(x, &mut bytes);
    (dtype.row().dequantize)(&bytes, &mut back);
    back
}

#[test]
fn constants_are_those_of_the_table() {
    fn check<B: BlockCodec>(dtype: DType) {
        assert_eq!((dtype.block_elements(), dtype.block_bytes()), (B::ELEMENTS as u64, B::BYTES as u64), "{dtype}");
    }
    check::<Q4_0>(DType::Q4_0);
    check::<Q4_1>(DType::Q4_1);
    check::<Q5_0>(DType::Q5_0);
    check::<Q5_1>(DType::Q5_1);
    check::<Q8_0>(DType::Q8_0);
    check::<Q2K>(DType::Q2K);
    check::<Q3K>(DType::Q3K);
    check::<Q4K>(DType::Q4K);
    check::<Q5K>(DType::Q5K);
    check::<Q6K>(DType::Q6K);
    check::<Iq4Nl>(DType::Iq4Nl);
    check::<Mxfp4>(DType::Mxfp4);
}

#[test]
fn layouts_are_those_of_gguf() {
    let mut block = [0_u8; 20];
    write_f16(&mut block, 0, 2.0);
    write_f16(&mut block, 2, -1.0);
    block[4] = 0x31;
    let mut out = [0.0; 32];
    Q4_1::dequantize(&block, &mut out);
    assert_eq!((out[0], out[16], out[1]), (1.0, 5.0, -1.0));
}

#[test]
fn blocks_of_zeros_and_of_one_number_come_back() {
    for row in DTYPES {
        assert!(round_trip(row.dtype, &[0.0; 256]).iter().all(|&v| v == 0.0), "{}", row.name);
        for constant in [1.0_f32, -3.0] {
            // Each type has a scale that makes one number a quant; scales are rounded.
            let back = round_trip(row.dtype, &[constant; 256]);
            assert!(back.iter().all(|v| (v - constant).abs() <= 0.01 * constant.abs()), "{}: {back:?}", row.name);
        }
    }
}

#[test]
fn what_is_no_number_stays_visible() {
    for row in DTYPES.iter().filter(|row| row.dtype.is_block()) {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [0.25; 512];
            x[7] = bad;
            let back = round_trip(row.dtype, &x);
            let block = usize::try_from(row.block_elements).expect("small");
            assert!(back[..block].iter().all(|v| !v.is_finite()), "{}: {bad} is hidden", row.name);
            assert!(back[block..].iter().all(|v| (v - 0.25).abs() < 0.01), "{}: other blocks", row.name);
        }
    }
}

#[test]
fn no_magnitude_panics_and_none_gets_smaller_by_more_than_a_step() {
    for row in DTYPES {
        for exponent in -149..=127 {
            let unit = 2.0_f32.powi(exponent);
            let x: [f32; 256] = std::array::from_fn(|i| unit * (1.0 - i as f32 / 128.0));
            let back = round_trip(row.dtype, &x);
            if row.dtype.is_integer() {
                continue;
            }
            // Below the smallest scale, 2^-24, everything is zero: in `q6_K`, up to 4096 halves of it. Above the largest
            // nothing is a number, or all is in bounds.
            for (a, b) in x.iter().zip(&back) {
                let bound = 0.7 * unit + 2.0_f32.powi(-13);
                assert!(!b.is_finite() || (a - b).abs() <= bound, "{} at 2^{exponent}: {a} became {b}", row.name);
            }
            if (-10..15).contains(&exponent) {
                assert!(back.iter().all(|v| v.is_finite()), "{} at 2^{exponent}", row.name);
            }
        }
    }
}

#[test]
fn integers_round_and_saturate() {
    let x = [0.5, -0.5, 2.4, 1e20, -1e20, f32::NAN, f32::INFINITY, -128.0];
    assert_eq!(round_trip(DType::I8, &x), [1.0, -1.0, 2.0, 127.0, -128.0, 0.0, 127.0, -128.0]);
    assert_eq!(round_trip(DType::I16, &x)[3..5], [32767.0, -32768.0]);
    let largest = i64::MAX as f32;
    assert_eq!(round_trip(DType::I64, &x)[3..5], [largest, -largest]);
}

#[test]
fn bf16_rounds_to_even_and_keeps_nan() {
    let tie = f32::from_bits(0x3f80_8000);
    let odd = f32::from_bits(0x3f81_8000);
    assert_eq!(round_trip(DType::Bf16, &[tie, odd]), [1.0, f32::from_bits(0x3f82_0000)]);
    assert!(round_trip(DType::Bf16, &[f32::from_bits(0x7f80_0001)])[0].is_nan());
    assert_eq!(round_trip(DType::Bf16, &[f32::MAX])[0], f32::INFINITY);
}
