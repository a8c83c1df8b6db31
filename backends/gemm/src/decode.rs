//! Rows of any dtype as f32.

use entensor_components::DType;
use half::{bf16, f16, slice::HalfFloatSliceExt as _};

/// Decodes elements of a row: the first begins at `bytes[0]`, and each next one (or block) `step` bytes behind.
///
/// # Panics
/// Unless `bytes` reaches to the end of the last element, and for block dtypes `out` is whole blocks.
pub(crate) fn decode(dtype: DType, bytes: &[u8], step: usize, out: &mut [f32]) {
    let unit = dtype.block_bytes() as usize;
    if step != unit {
        // Only plain dtypes have rows with holes.
        let two = |i: usize| [bytes[i * step], bytes[i * step + 1]];
        if dtype == DType::F16 {
            return out.iter_mut().enumerate().for_each(|(i, value)| *value = f16::from_le_bytes(two(i)).to_f32());
        }
        return out.iter_mut().enumerate().for_each(|(i, value)| {
            let at = i * step;
            (dtype.row().dequantize)(&bytes[at..at + unit], std::slice::from_mut(value));
        });
    }
    match dtype {
        DType::F16 => match cast::<f16>(bytes) {
            Some(halves) => halves[..out.len()].convert_to_f32_slice(out),
            None => packed(dtype, bytes, out),
        },
        DType::Bf16 => match cast::<bf16>(bytes) {
            Some(halves) => halves[..out.len()].convert_to_f32_slice(out),
            None => packed(dtype, bytes, out),
        },
        DType::F32
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
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
        | DType::Mxfp4 => packed(dtype, bytes, out),
    }
}

fn packed(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    let row = dtype.row();
    let blocks = out.len() / row.block_elements as usize;
    (row.dequantize)(&bytes[..blocks * row.block_bytes as usize], out);
}

/// Bytes as halves; none where they do not lie at even addresses, as in memory that somebody imported.
fn cast<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Option<&[T]> {
    bytemuck::try_cast_slice(bytes).ok()
}

#[cfg(test)]
mod tests {
    use entensor_components::DTYPES;

    use super::*;

    #[test]
    fn every_dtype_decodes_as_its_table_says_at_any_address_and_step() {
        for row in DTYPES {
            let (elements, unit) = (row.block_elements as usize, row.block_bytes as usize);
            let values: Vec<f32> = (0..elements * 3).map(|i| i as f32 / 8.0 - 20.0).collect();
            let mut bytes = vec![0; unit * 3];
            (row.quantize)(&values, &mut bytes);
            let mut expected = vec![0.0; elements * 3];
            (row.dequantize)(&bytes, &mut expected);
            for shift in 0..4 {
                let shifted = [vec![0xff; shift], bytes.clone()].concat();
                let mut found = vec![f32::NAN; elements * 3];
                decode(row.dtype, &shifted[shift..], unit, &mut found);
                assert_eq!(found, expected, "{} at {shift}", row.name);
            }
            if elements == 1 {
                let step = unit + 3;
                let mut spread = vec![0xff; 2 * step + unit];
                for (i, element) in bytes.chunks(unit).enumerate() {
                    spread[i * step..i * step + unit].copy_from_slice(element);
                }
                let mut found = vec![f32::NAN; 3];
                decode(row.dtype, &spread, step, &mut found);
                assert_eq!(found, expected, "{} with holes", row.name);
            }
        }
    }
}
