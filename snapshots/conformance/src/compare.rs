//! Whether a backend's memory is what the oracle's is, as far as the op's tolerance asks.

use entensor_components::{DType, Op, TensorRef, Tolerance};
use entensor_oracle::OracleBackend;

use crate::{
    Case,
    image::{Image, unit_ranges},
    magnitudes,
};

/// Compares memory after a run: the result within its tolerance, everything else byte for byte.
pub(super) fn images<'a>(
    case: &Case,
    image: &Image,
    expected: &[u8],
    found: &[u8],
    bounds: impl FnOnce() -> &'a [f64],
) -> Result<(), String> {
    let ranges = unit_ranges(&image.output);
    let mut untouched = vec![true; image.bytes.len()];
    for range in &ranges {
        untouched[range.clone()].fill(false);
    }
    if let Some(at) = (0..untouched.len()).find(|&at| untouched[at] && found[at] != image.bytes[at]) {
        return Err(format!("byte {at} was written, outside the result at {}", image.output.offset_bytes));
    }
    let dtype = image.output.desc.dtype;
    let exact = case.op.row().tolerance == Tolerance::Exact;
    // Equal bytes need no bounds, and working them out runs the oracle again.
    if ranges.iter().all(|range| expected[range.clone()] == found[range.clone()]) {
        return Ok(());
    }
    let bounds = bounds();
    for (unit, range) in ranges.iter().enumerate() {
        let (expected, found) = (&expected[range.clone()], &found[range.clone()]);
        if expected == found {
            continue;
        }
        let (expected, found) = (decode(dtype, expected), decode(dtype, found));
        for (i, (&expected, &found)) in expected.iter().zip(&found).enumerate() {
            let element = unit * expected_len(dtype) + i;
            let agrees = if expected.is_nan() && found.is_nan() {
                true
            } else if exact {
                // Equal bytes went by already; what is left differs at least in sign.
                false
            } else if !expected.is_finite() {
                found == expected || (may_lose_infinities(case) && !found.is_finite())
            } else {
                (found - expected).abs() <= bounds[element]
            };
            if !agrees {
                let bound = bounds.get(element).copied().unwrap_or(0.0);
                return Err(format!("element {element} is {found}, not {expected} (±{bound:e})"));
            }
        }
    }
    Ok(())
}

fn expected_len(dtype: DType) -> usize {
    usize::try_from(dtype.block_elements()).expect("small")
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    // As f32, neighbours of large integers would be the same.
    if dtype == DType::I32 {
        return bytes.as_chunks::<4>().0.iter().map(|b| f64::from(i32::from_le_bytes(*b))).collect();
    }
    if dtype == DType::I64 {
        return bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect();
    }
    let mut values = vec![0.0; expected_len(dtype)];
    (dtype.row().dequantize)(bytes, &mut values);
    values.into_iter().map(f64::from).collect()
}

/// Every element of a tensor in linear order.
pub(super) fn values(tensor: &TensorRef, bytes: &[u8]) -> Vec<f64> {
    unit_ranges(tensor).into_iter().flat_map(|range| decode(tensor.desc.dtype, &bytes[range])).collect()
}

/// Rounding to 8 bits has no infinities; a product with one is some value that is not finite. Nor has a gate infinities
/// that rounds to 0 in f32.
fn may_lose_infinities(case: &Case) -> bool {
    matches!(case.op, Op::MulMat {} | Op::MulMatId {}) && case.operands[0].desc.dtype.is_block()
        || matches!(case.op, Op::Swiglu {} | Op::Geglu {})
}

/// A unit in the last place of a dtype at a magnitude.
fn unit_of(dtype: DType, magnitude: f64) -> f64 {
    match dtype {
        DType::F16 => magnitude * 2.0_f64.powi(-10) + 2.0_f64.powi(-24),
        DType::Bf16 => magnitude * 2.0_f64.powi(-7) + 2.0_f64.powi(-133),
        _ => magnitude * 2.0_f64.powi(-23) + 2.0_f64.powi(-149),
    }
}

/// How far each element of the result may be off.
pub(super) fn bounds(oracle: &OracleBackend, case: &Case, image: &Image, expected: &[u8]) -> Vec<f64> {
    let dtype = image.output.desc.dtype;
    let results = values(&image.output, expected);
    let width = usize::try_from(image.output.desc.shape.0[0]).expect("small").max(1);
    let finite = |v: &f64| if v.is_finite() { v.abs() } else { 0.0 };
    match case.op.row().tolerance {
        Tolerance::Exact => vec![0.0; results.len()],
        Tolerance::Rounding => results.iter().map(|v| 2.0 * unit_of(dtype, finite(v))).collect(),
        Tolerance::Sum => results
            .chunks(width)
            .flat_map(|row| {
                let largest = row.iter().map(finite).fold(0.0, f64::max);
                row.iter().map(move |v| 1e-5 * largest + unit_of(dtype, finite(v)))
            })
            .collect(),
        Tolerance::WeightedMean => {
            let largest = values(&image.operands[2], &image.bytes).iter().map(finite).fold(0.0, f64::max);
            results.iter().map(|v| 1e-5 * largest + unit_of(dtype, finite(v))).collect()
        }
        Tolerance::Linear | Tolerance::QuantizedProduct => {
            let sums = magnitudes::bounds(oracle, case, image);
            results.iter().zip(sums).map(|(v, sum)| sum + unit_of(dtype, finite(v))).collect()
        }
    }
}
