//! Every dtype against recorded values of the `gguf` package (`scripts/record_dtypes.py`), and what codecs promise of any
//! data.

use std::collections::BTreeMap;

use entensor_components::{DTYPES, DType, DTypeSet, Shape, TensorDesc};
use proptest::prelude::*;

/// Hexadecimal bytes of a dtype: blocks and the f32 values that they stand for.
#[derive(serde::Deserialize)]
struct Recorded {
    bytes: String,
    values: String,
}

#[derive(serde::Deserialize)]
struct Reference {
    decode: BTreeMap<String, Recorded>,
    encode: BTreeMap<String, Recorded>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("../reference/dtypes.json")).expect("the recording script writes JSON")
}

fn bytes(hex: &str) -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(pair).collect()
}

fn floats(hex: &str) -> Vec<f32> {
    bytes(hex).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn dtype(name: &str) -> DType {
    DType::from_name(name).unwrap_or_else(|| panic!("the table has no {name}"))
}

fn encode(dtype: DType, x: &[f32]) -> Vec<u8> {
    let size = dtype.row_bytes(x.len() as u64).expect("whole blocks");
    let mut bytes = vec![0xaa; usize::try_from(size).expect("small")];
    (dtype.row().quantize)(x, &mut bytes);
    bytes
}

fn decode(dtype: DType, bytes: &[u8], elements: usize) -> Vec<f32> {
    let mut values = vec![0.5; elements];
    (dtype.row().dequantize)(bytes, &mut values);
    values
}

#[test]
fn decoding_gives_the_recorded_bits() {
    let recorded = reference().decode;
    for dtype in DTypeSet::REALS.without(DType::F32).iter() {
        assert!(recorded.contains_key(dtype.name()), "nothing is recorded of {dtype}");
    }
    for (name, recorded) in recorded {
        let expected = floats(&recorded.values);
        let found = decode(dtype(&name), &bytes(&recorded.bytes), expected.len());
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            // NaN has many patterns, and which one comes out of arithmetic is the machine's choice.
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(same, "{name}: element {i} is {found:e}, not {expected:e}");
        }
    }
}

#[test]
fn encoding_gives_the_recorded_bytes() {
    let recorded = reference().encode;
    let names: Vec<&str> = recorded.keys().map(String::as_str).collect();
    assert_eq!(names, ["bf16", "f16", "mxfp4", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]);
    for (name, recorded) in &recorded {
        let x = floats(&recorded.values);
        let (found, expected) = (encode(dtype(name), &x), bytes(&recorded.bytes));
        let block = expected.len() / (x.len() / 32);
        for (row, (found, expected)) in found.chunks(block).zip(expected.chunks(block)).enumerate() {
            assert_eq!(found, expected, "{name}: row {row}");
        }
    }
}

/// How far an element may be from itself after encoding, as a share of the largest magnitude of its block: half a step,
/// a whole one where one end of the range has no quant, and for two levels of scales what rounding the small ones adds.
fn share(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 0.0,
        DType::F16 => 1.0 / 2048.0,
        DType::Bf16 => 1.0 / 256.0,
        DType::Q4_0 => 1.0 / 8.0,
        DType::Q4_1 => 1.0 / 15.0,
        DType::Q5_0 => 1.0 / 16.0,
        DType::Q5_1 => 1.0 / 31.0,
        DType::Q8_0 => 0.5 / 127.0,
        DType::Q2K => 0.5,
        DType::Q3K => 0.25,
        DType::Q4K => 0.1,
        DType::Q5K => 0.05,
        DType::Q6K => 0.025,
        DType::Iq4Nl => 0.13,
        DType::Mxfp4 => 0.25,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => unreachable!("integers are not encoded from reals"),
    }
}

/// The root of the mean square of the errors, as a share of that of the values, that noise may have: what makes a codec good
/// on average.
fn typical(dtype: DType) -> f64 {
    match dtype {
        DType::Q4_0 => 0.089,
        DType::Q4_1 => 0.081,
        DType::Q5_0 => 0.044,
        DType::Q5_1 => 0.0395,
        DType::Q8_0 => 0.0055,
        DType::Q2K => 0.285,
        DType::Q3K => 0.15,
        DType::Q4K => 0.0745,
        DType::Q5K => 0.0377,
        DType::Q6K => 0.018,
        DType::Iq4Nl => 0.079,
        DType::Mxfp4 => 0.123,
        _ => f64::from(share(dtype)),
    }
}

fn check_round_trip(dtype: DType, x: &[f32]) -> Result<(), TestCaseError> {
    let back = decode(dtype, &encode(dtype, x), x.len());
    let block = usize::try_from(dtype.block_elements()).expect("small");
    for (x, back) in x.chunks(block).zip(back.chunks(block)) {
        let largest = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        for (a, b) in x.iter().zip(back) {
            // Beside the share, scale and minimum are f16: rounded, by up to three 2048ths of the largest in all, and of
            // smallest steps.
            let bound = share(dtype) * largest + if dtype.is_block() { largest / 680.0 + 1e-5 } else { 1e-7 };
            prop_assert!((a - b).abs() <= bound, "{}: {} became {}, largest {}", dtype, a, b, largest);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_codec_round_trips_within_its_bound(
        x in prop::collection::vec(prop_oneof![8 => -1.0_f32..1.0, 1 => -30.0_f32..30.0, 1 => Just(0.0_f32)], 512),
        scale in prop_oneof![Just(1.0_f32), 0.001_f32..100.0],
        shift in prop_oneof![2 => Just(0.0_f32), 1 => -4.0_f32..4.0],
    ) {
        let x: Vec<f32> = x.iter().map(|v| v * scale + shift).collect();
        for dtype in DTypeSet::REALS.iter() {
            check_round_trip(dtype, &x)?;
        }
    }
}

#[test]
fn noise_comes_back_as_well_as_bits_allow() {
    // Sums of twelve uniform numbers: close enough to a bell.
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let x: Vec<f32> = (0..64 * 256).map(|_| (0..12).map(|_| uniform()).sum::<f32>() * 0.05).collect();
    let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>();
    for dtype in DTypeSet::REALS.without(DType::F32).iter() {
        let back = decode(dtype, &encode(dtype, &x), x.len());
        let error = squares(&mut x.iter().zip(&back).map(|(a, b)| f64::from(a - b)));
        let error = (error / squares(&mut x.iter().map(|&v| f64::from(v)))).sqrt();
        println!("{dtype}: {error:.4}");
        assert!(error <= typical(dtype), "{dtype}: {error}");
    }
}

/// lc#4950: rows that are no whole number of blocks.
#[test]
fn report_61_odd_columns_are_errors_or_right() {
    for row in DTYPES {
        for columns in [1_u64, 31, 32, 33, 255, 256, 257] {
            let desc = TensorDesc::packed(row.dtype, Shape([columns, 3, 1, 1]));
            if !columns.is_multiple_of(row.block_elements) {
                let error = desc.expect_err("no whole block").to_string();
                assert!(error.contains(row.name) && error.contains(&columns.to_string()), "{error}");
                continue;
            }
            let size = desc.expect("whole blocks").size_bytes();
            assert_eq!(size, 3 * columns / row.block_elements * row.block_bytes);
            let x: Vec<f32> = (0..columns).map(|i| i as f32 % 7.0 - 3.0).collect();
            let back = decode(row.dtype, &encode(row.dtype, &x), x.len());
            let bound = if row.dtype.is_integer() { 0.0 } else { 3.05 * share(row.dtype) };
            assert!(x.iter().zip(&back).all(|(a, b)| (a - b).abs() <= bound), "{} of {columns}: {back:?}", row.name);
        }
    }
}
