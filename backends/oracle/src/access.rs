//! Elements by strides: decoding operands to f64, and storing results without touching any byte between elements.

use entensor_components::{DType, Shape, TensorDesc, TensorRef};
use half::{bf16, f16};

/// An operand: what it looks like and the memory it lies in.
pub(crate) struct Operand<'a> {
    pub(crate) desc: TensorDesc,
    pub(crate) bytes: &'a [u8],
    pub(crate) start: usize,
}

/// What a node evaluates to.
pub(crate) enum Evaluated {
    /// Every element in linear order.
    Values(Vec<f64>),
    /// Every element (every block, for block dtypes) in linear order, as bytes: what ops give that only move data.
    Units(Vec<u8>),
    /// Some rows, in the order in which they are written.
    Rows(Vec<Row>),
}

/// One row of a result.
pub(crate) struct Row {
    /// Axes 1 to 3.
    pub(crate) at: [u64; 3],
    /// The whole row.
    pub(crate) contents: Contents,
}

/// What is in a row.
pub(crate) enum Contents {
    /// Numbers to encode.
    Values(Vec<f64>),
    /// Bytes of the result's dtype.
    Units(Vec<u8>),
}

/// Sizes were checked against the memory when it was bound, so they fit.
pub(crate) fn index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Where a tensor ends in its memory; `None` if no memory is that large.
pub(crate) fn end(tensor: &TensorRef) -> Option<u64> {
    if tensor.desc.shape.is_empty() {
        return Some(0);
    }
    let end = tensor.desc.span_bytes()?.checked_add(tensor.offset_bytes)?;
    usize::try_from(end).is_ok().then_some(end)
}

/// Where a tensor's first element lies.
pub(crate) fn start(tensor: &TensorRef) -> usize {
    index(tensor.offset_bytes)
}

/// Coordinates of a shape's rows in linear order.
pub(crate) fn rows(shape: Shape) -> impl Iterator<Item = [u64; 3]> {
    let [_, d1, d2, d3] = shape.0;
    (0..d3).flat_map(move |i3| (0..d2).flat_map(move |i2| (0..d1).map(move |i1| [i1, i2, i3])))
}

/// Byte ranges of the units (elements or blocks) of one row.
fn units(desc: &TensorDesc, start: usize, at: [u64; 3]) -> impl Iterator<Item = std::ops::Range<usize>> {
    // Strides of a tensor without elements may be anything.
    let offset = || (0..3).map(|axis| at[axis] * desc.strides.0[axis + 1]).sum();
    let row: u64 = if desc.shape.is_empty() { 0 } else { offset() };
    let (step, unit) = (desc.strides.0[0], index(desc.dtype.block_bytes()));
    (0..desc.shape.0[0] / desc.dtype.block_elements()).map(move |i| {
        let begin = start + index(row + i * step);
        begin..begin + unit
    })
}

impl Operand<'_> {
    /// One row, decoded.
    pub(crate) fn row(&self, at: [u64; 3]) -> Vec<f64> {
        let mut values = Vec::with_capacity(index(self.desc.shape.0[0]));
        let mut block = vec![0.0; index(self.desc.dtype.block_elements())];
        for unit in units(&self.desc, self.start, at) {
            let bytes = &self.bytes[unit];
            if let Some(integer) = integer(self.desc.dtype, bytes) {
                // Decoding through f32 would round integers above 2^24; f64 holds 2^53, and ops that only move integers
                // move bytes.
                values.push(integer as f64);
            } else {
                (self.desc.dtype.row().dequantize)(bytes, &mut block);
                values.extend(block.iter().map(|&v| f64::from(v)));
            }
        }
        values
    }

    /// Every element in linear order.
    pub(crate) fn values(&self) -> Vec<f64> {
        rows(self.desc.shape).flat_map(|at| self.row(at)).collect()
    }

    /// The units of one row, as bytes.
    pub(crate) fn row_units(&self, at: [u64; 3]) -> Vec<u8> {
        units(&self.desc, self.start, at).flat_map(|unit| self.bytes[unit].iter().copied()).collect()
    }

    /// Integers in linear order; nothing, if the elements are none.
    pub(crate) fn integers(&self) -> Vec<i64> {
        let units = |at| units(&self.desc, self.start, at);
        rows(self.desc.shape).flat_map(units).filter_map(|unit| integer(self.desc.dtype, &self.bytes[unit])).collect()
    }
}

/// One element of an integer dtype.
fn integer(dtype: DType, bytes: &[u8]) -> Option<i64> {
    let mut eight = [0; 8];
    if !dtype.is_integer() {
        return None;
    }
    eight[..bytes.len()].copy_from_slice(bytes);
    // The upper bytes are copies of the sign.
    let unused = 64 - 8 * bytes.len();
    Some(i64::from_le_bytes(eight) << unused >> unused)
}

/// Stores a result by the output's strides.
pub(crate) fn store(result: &Evaluated, desc: &TensorDesc, bytes: &mut [u8], start: usize) {
    let width = index(desc.shape.0[0]);
    match result {
        Evaluated::Values(values) => {
            for (at, values) in rows(desc.shape).zip(values.chunks_exact(width.max(1))) {
                store_row(&encode(values, desc.dtype), desc, bytes, start, at);
            }
        }
        Evaluated::Units(units) => {
            let row_bytes = desc.dtype.row_bytes(desc.shape.0[0]).map_or(0, index);
            for (at, units) in rows(desc.shape).zip(units.chunks_exact(row_bytes.max(1))) {
                store_row(units, desc, bytes, start, at);
            }
        }
        Evaluated::Rows(written) => {
            for row in written {
                match &row.contents {
                    Contents::Values(values) => store_row(&encode(values, desc.dtype), desc, bytes, start, row.at),
                    Contents::Units(units) => store_row(units, desc, bytes, start, row.at),
                }
            }
        }
    }
}

fn store_row(encoded: &[u8], desc: &TensorDesc, bytes: &mut [u8], start: usize, at: [u64; 3]) {
    let unit_bytes = index(desc.dtype.block_bytes());
    for (unit, encoded) in units(desc, start, at).zip(encoded.chunks_exact(unit_bytes)) {
        bytes[unit].copy_from_slice(encoded);
    }
}

/// Rounds once to the dtype; integers saturate, and blocks are encoded from f32.
#[expect(clippy::cast_possible_truncation, reason = "rounding to the output's dtype is what this function is for")]
fn encode(values: &[f64], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|&v| f16::from_f32(round_to_odd(v)).to_le_bytes()).collect(),
        DType::Bf16 => values.iter().flat_map(|&v| bf16::from_f32(round_to_odd(v)).to_le_bytes()).collect(),
        DType::I8 => values.iter().flat_map(|&v| (v as i8).to_le_bytes()).collect(),
        DType::I16 => values.iter().flat_map(|&v| (v as i16).to_le_bytes()).collect(),
        DType::I32 => values.iter().flat_map(|&v| (v as i32).to_le_bytes()).collect(),
        DType::I64 => values.iter().flat_map(|&v| (v as i64).to_le_bytes()).collect(),
        DType::F32
        | DType::Q4_0
        | DType::Q4_1
        | DType::Q5_0
        | DType::Q5_1
        | DType::Q8_0
        | DType::Q2K
        | DType::Q3K
        | DType::Q4K
        | DType::Q5K
        | DType::Q6K
        | DType::Iq4Nl
        | DType::Mxfp4 => {
            let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
            let mut bytes = vec![0; dtype.row_bytes(values.len() as u64).map_or(0, index)];
            (dtype.row().quantize)(&values, &mut bytes);
            bytes
        }
    }
}

/// f64 to f32 such that rounding the result to f16 or bf16 is rounding the f64 once: an inexact result gets an odd mantissa,
/// so that it is never mistaken for a tie.
#[expect(clippy::cast_possible_truncation, reason = "the rounding error is what the function repairs")]
fn round_to_odd(v: f64) -> f32 {
    let nearest = v as f32;
    let back = f64::from(nearest);
    if back == v || !nearest.is_finite() || nearest.to_bits() & 1 == 1 {
        return nearest;
    }
    // The neighbour on the other side of `v` is odd, since `nearest` is even.
    let away = i32::from(v.abs() > back.abs()) * 2 - 1;
    if nearest == 0.0 {
        f32::from_bits(1).copysign(nearest)
    } else {
        f32::from_bits(nearest.to_bits().wrapping_add_signed(away))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_results_are_rounded_once() {
        // Just above a tie of f16 by less than f32 can hold: two roundings would give the even neighbour below.
        let tie = 1.0 + 2.0_f64.powi(-11);
        let above = tie + 2.0_f64.powi(-40);
        assert_eq!(f16::from_f32(round_to_odd(tie)).to_f64(), 1.0);
        assert_eq!(f16::from_f32(round_to_odd(above)).to_f64(), 1.0 + 2.0_f64.powi(-10));
        assert_eq!(f16::from_f32(round_to_odd(-above)).to_f64(), -1.0 - 2.0_f64.powi(-10));
        assert!(round_to_odd(f64::NAN).is_nan());
    }

    #[test]
    fn bf16_results_are_rounded_once() {
        let tie = 1.0 + 2.0_f64.powi(-8);
        let rounded = |v| bf16::from_f32(round_to_odd(v)).to_f64();
        assert_eq!(rounded(tie), 1.0);
        assert_eq!(rounded(tie + 2.0_f64.powi(-40)), 1.0 + 2.0_f64.powi(-7));
        assert_eq!(rounded(3.0 * tie), 3.0 + 2.0_f64.powi(-6));
        // Smaller than any f32: nothing, and not the smallest normal number.
        assert_eq!(rounded(1e-60), 0.0);
        assert_eq!(rounded(-1e-60).to_bits(), (-0.0_f64).to_bits());
        assert_eq!(rounded(1e39), f64::INFINITY);
    }

    #[test]
    fn big_integers_survive() {
        let bytes = 16_777_217_i32.to_le_bytes();
        let desc = TensorDesc::packed(DType::I32, Shape([1; 4])).expect("one integer");
        let operand = Operand { desc, bytes: &bytes, start: 0 };
        assert_eq!(encode(&operand.values(), DType::I32), bytes);
    }

    #[test]
    fn integers_of_every_width_keep_their_sign() {
        let check = |dtype: DType, bytes: &[u8], expected: i64| {
            let desc = TensorDesc::packed(dtype, Shape([1; 4])).expect("one integer");
            assert_eq!(Operand { desc, bytes, start: 0 }.integers(), [expected], "{dtype}");
        };
        check(DType::I8, &(-3_i8).to_le_bytes(), -3);
        check(DType::I16, &(-300_i16).to_le_bytes(), -300);
        check(DType::I32, &i32::MIN.to_le_bytes(), i64::from(i32::MIN));
        check(DType::I64, &(i64::MAX - 1).to_le_bytes(), i64::MAX - 1);
    }
}
