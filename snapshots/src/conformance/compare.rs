//! Whether a backend's memory is what the oracle's is, as far as the op's tolerance asks.

use entensor_components::{DType, Op, TensorRef, Tolerance};

use super::{
    Case,
    image::{Image, unit_ranges},
};

/// Compares memory after a run: the result within its tolerance, everything else byte for byte.
pub(super) fn images(case: &Case, image: &Image, expected: &[u8], found: &[u8]) -> Result<(), String> {
    let ranges = unit_ranges(&image.output);
    let mut untouched = vec![true; image.bytes.len()];
    for range in &ranges {
        untouched[range.clone()].fill(false);
    }
    if let Some(at) = (0..untouched.len()).find(|&at| untouched[at] && found[at] != image.bytes[at]) {
        return Err(format!("byte {at} was written, outside the result at {}", image.output.offset_bytes));
    }
    let bounds = bounds(case, image, expected);
    let dtype = image.output.desc.dtype;
    let exact = case.op.row().tolerance == Tolerance::Exact;
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
fn values(tensor: &TensorRef, bytes: &[u8]) -> Vec<f64> {
    unit_ranges(tensor).into_iter().flat_map(|range| decode(tensor.desc.dtype, &bytes[range])).collect()
}

/// Rounding to 8 bits has no infinities; a product with one is some value that is not finite.
fn may_lose_infinities(case: &Case) -> bool {
    matches!(case.op, Op::MulMat {}) && case.operands[0].desc.dtype.is_block()
        || matches!(case.op, Op::Silu {} | Op::Swiglu {})
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
fn bounds(case: &Case, image: &Image, expected: &[u8]) -> Vec<f64> {
    let dtype = image.output.desc.dtype;
    let results = values(&image.output, expected);
    let width = usize::try_from(image.output.desc.shape.0[0]).expect("small").max(1);
    let finite = |v: &f64| if v.is_finite() { v.abs() } else { 0.0 };
    match case.op.row().tolerance {
        Tolerance::Exact => vec![0.0; results.len()],
        Tolerance::Rounding => results.iter().map(|v| 2.0 * unit_of(dtype, finite(v))).collect(),
        Tolerance::Sum if matches!(case.op, Op::SumRows {}) => {
            let x = values(&image.operands[0], &image.bytes);
            let width = usize::try_from(image.operands[0].desc.shape.0[0]).expect("small").max(1);
            let sums = x.chunks(width).map(|row| 1e-5 * row.iter().map(finite).sum::<f64>());
            // Empty rows have no elements to look at.
            sums.chain(std::iter::repeat(0.0)).take(results.len()).collect()
        }
        Tolerance::Sum => results
            .chunks(width)
            .flat_map(|row| {
                let largest = row.iter().map(finite).fold(0.0, f64::max);
                row.iter().map(move |v| 1e-5 * largest + unit_of(dtype, finite(v)))
            })
            .collect(),
        Tolerance::QuantizedProduct => product_bounds(image),
    }
}

/// For each element of a product, from the rows it is made of: `1e-5 · Σ|w·x|`, and for block weights half a step of each
/// block of activations, `max|x| / 254`, times the block's `Σ|w|`.
fn product_bounds(image: &Image) -> Vec<f64> {
    let (weights, x) = (&image.operands[0], &image.operands[1]);
    let (w, rows) = (values(weights, &image.bytes), values(x, &image.bytes));
    let shape = |tensor: &TensorRef| tensor.desc.shape.0.map(|d| usize::try_from(d).expect("small"));
    let (ws, xs) = (shape(weights), shape(x));
    let (k, m) = (ws[0], ws[1]);
    let mut bounds = Vec::new();
    for j in 0..xs[1] * xs[2] * xs[3] {
        let (i2, i3) = (j / xs[1] % xs[2], j / xs[1] / xs[2]);
        let plane = i2 / (xs[2] / ws[2]) + ws[2] * (i3 / (xs[3] / ws[3]));
        let x = &rows[j * k..(j + 1) * k];
        for i in 0..m {
            let w = &w[(plane * m + i) * k..][..k];
            let mut bound: f64 = 1e-5 * w.iter().zip(x).map(|(w, x)| (w * x).abs()).sum::<f64>();
            if weights.desc.dtype.is_block() {
                for (w, x) in w.chunks(32).zip(x.chunks(32)) {
                    let step = x.iter().fold(0.0_f64, |m, v| m.max(v.abs())) / 254.0;
                    bound += 1.001 * step * w.iter().map(|w| w.abs()).sum::<f64>();
                }
            }
            bounds.push(bound + 1e-30);
        }
    }
    bounds
}
