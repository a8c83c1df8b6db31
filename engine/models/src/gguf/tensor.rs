//! Tensor infos: reading them and checking where their data lie.

use std::ops::Range;

use entensor_components::DType;

use super::cursor::Cursor;
use super::error::GgufError;
use super::{MAX_DIMS, NAME_LIMIT_BYTES};
use crate::name_index::NameIndex;

/// The least that a tensor info takes in a file: a name of one byte, one dimension, the dtype, the offset.
pub(super) const LEAST_INFO_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// Sizes and offsets stay below this, so that they fit signed integers everywhere.
const SIZE_LIMIT: u64 = i64::MAX as u64;

/// A tensor of a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GgufTensor {
    /// The name, unique in the file.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// Elements per dimension, fastest axis first, padded with ones.
    pub shape: [u64; 4],
    /// Dimensions that the file lists, 1 to 4.
    pub n_dims: u32,
    /// Where the data start, counted from the start of the file.
    pub offset_bytes: u64,
    /// Bytes of data.
    pub size_bytes: u64,
}

impl GgufTensor {
    /// The number of elements. It cannot overflow for a tensor that was parsed.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, &extent| product.saturating_mul(extent))
    }

    /// Where the data lie in the file.
    #[must_use]
    pub fn byte_range(&self) -> Range<u64> {
        self.offset_bytes..self.offset_bytes.saturating_add(self.size_bytes)
    }
}

/// The tensors of a GGUF file: in the order of the file, and by name.
#[derive(Clone, Debug, Default)]
pub struct Tensors {
    list: Vec<GgufTensor>,
    index: NameIndex,
}

impl Tensors {
    /// The tensor with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&GgufTensor> {
        let position = self.index.find(name, |position| &self.list[position as usize].name)?;
        self.list.get(position as usize)
    }

    /// All tensors, in the order of the file.
    #[must_use]
    pub fn as_slice(&self) -> &[GgufTensor] {
        &self.list
    }

    /// All tensors, in the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, GgufTensor> {
        self.list.iter()
    }

    /// The number of tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are no tensors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Reads `count` infos. Offsets are still relative to the data section; [`Self::place`] makes them absolute.
    pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Self, GgufError> {
        let mut tensors = Self::default();
        for position in 0..count {
            let tensor = read_info(cursor, position)?;
            let Ok(position) = u32::try_from(position) else {
                let left = cursor.left();
                return Err(GgufError::CountTooLarge { what: "tensors", count, most: u32::MAX.into(), left });
            };
            tensors.list.push(tensor);
            let Self { list, index } = &mut tensors;
            let name = &list[position as usize].name;
            index
                .insert(name, position, |other| &list[other as usize].name)
                .map_err(|_| GgufError::DuplicateTensor { tensor: name.clone() })?;
        }
        Ok(tensors)
    }

    /// Makes offsets absolute and checks alignment, bounds and overlaps.
    pub(super) fn place(&mut self, data_offset: u64, alignment: u64, file_bytes: u64) -> Result<(), GgufError> {
        for tensor in &mut self.list {
            if !tensor.offset_bytes.is_multiple_of(alignment) {
                return Err(GgufError::Misaligned {
                    tensor: tensor.name.clone(),
                    offset_bytes: tensor.offset_bytes,
                    alignment,
                });
            }
            let start = data_offset.checked_add(tensor.offset_bytes).filter(|&start| start <= SIZE_LIMIT);
            let end = start.and_then(|start| start.checked_add(tensor.size_bytes)).filter(|&end| end <= SIZE_LIMIT);
            let (Some(start), Some(end_bytes)) = (start, end) else {
                return Err(overflow(&tensor.name, "offset", tensor.shape));
            };
            if end_bytes > file_bytes {
                return Err(GgufError::BeyondEnd { tensor: tensor.name.clone(), end_bytes, file_bytes });
            }
            tensor.offset_bytes = start;
        }
        self.check_overlaps()
    }

    fn check_overlaps(&self) -> Result<(), GgufError> {
        let mut by_offset: Vec<&GgufTensor> = self.list.iter().collect();
        by_offset.sort_unstable_by_key(|tensor| tensor.offset_bytes);
        for pair in by_offset.windows(2) {
            if let [first, second] = pair
                && first.byte_range().end > second.offset_bytes
            {
                return Err(GgufError::Overlap { first: first.name.clone(), second: second.name.clone() });
            }
        }
        Ok(())
    }
}

impl<'a> IntoIterator for &'a Tensors {
    type Item = &'a GgufTensor;
    type IntoIter = std::slice::Iter<'a, GgufTensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

fn read_info(cursor: &mut Cursor<'_>, index: u64) -> Result<GgufTensor, GgufError> {
    let length = cursor.u64("a tensor name")?;
    if length == 0 {
        return Err(GgufError::EmptyName { index });
    }
    if length >= NAME_LIMIT_BYTES {
        return Err(GgufError::NameTooLong { index, length });
    }
    let name = cursor.text(length, "a tensor name")?;
    let n_dims = cursor.u32("the dimensions of a tensor")?;
    if !(1..=MAX_DIMS).contains(&n_dims) {
        return Err(GgufError::InvalidDims { tensor: name.to_owned(), n_dims });
    }
    let mut shape = [1; MAX_DIMS as usize];
    for extent in shape.iter_mut().take(n_dims as usize) {
        *extent = cursor.u64("the dimensions of a tensor")?;
    }
    let id = cursor.u32("the dtype of a tensor")?;
    let dtype = DType::from_gguf_id(id).ok_or_else(|| GgufError::UnknownDType { tensor: name.to_owned(), id })?;
    let size_bytes = size_bytes(name, dtype, shape)?;
    let offset_bytes = cursor.u64("the offset of a tensor")?;
    Ok(GgufTensor { name: name.to_owned(), dtype, shape, n_dims, offset_bytes, size_bytes })
}

/// The bytes of a tensor, every product checked.
pub(super) fn size_bytes(name: &str, dtype: DType, shape: [u64; 4]) -> Result<u64, GgufError> {
    if let Some(axis) = shape.iter().position(|&extent| extent == 0) {
        return Err(GgufError::ZeroDimension { tensor: name.to_owned(), axis: axis as u32 });
    }
    let product = |first: u64, rest: &[u64]| {
        rest.iter().try_fold(first, |product, &extent| product.checked_mul(extent)).filter(|&size| size <= SIZE_LIMIT)
    };
    let [row, rest @ ..] = shape;
    product(row, &rest).ok_or_else(|| overflow(name, "number of elements", shape))?;
    if !row.is_multiple_of(dtype.block_elements()) {
        return Err(GgufError::PartialBlock {
            tensor: name.to_owned(),
            elements: row,
            dtype: dtype.name(),
            block_elements: dtype.block_elements(),
        });
    }
    dtype.row_bytes(row).and_then(|row| product(row, &rest)).ok_or_else(|| overflow(name, "size", shape))
}

pub(super) fn overflow(name: &str, what: &'static str, shape: [u64; 4]) -> GgufError {
    GgufError::Overflow { tensor: name.to_owned(), what, shape }
}

#[cfg(test)]
mod tests {
    use entensor_components::DTYPES;
    use proptest::prelude::*;

    use super::*;

    /// Extents around the powers of two, where products overflow.
    fn extent() -> impl Strategy<Value = u64> {
        prop_oneof![6 => 1..=64u64, 2 => (1..=64u64).prop_map(|n| n * 32), 1 => any::<u64>(), 1 => (0..64u32, -2..=2i64).prop_map(|(bits, d)| (1u64 << bits).wrapping_add_signed(d))]
    }

    proptest! {
        /// lc#18674: sizes agree with saturating arithmetic in 128 bits.
        #[test]
        fn sizes_agree_with_wide_arithmetic(shape in prop::array::uniform4(extent()), row in 0..DTYPES.len()) {
            let row = &DTYPES[row];
            let limit = u128::from(SIZE_LIMIT);
            // Saturation keeps "too large" too large; zeros are decided first.
            let elements = shape.iter().fold(1u128, |p, &e| p.saturating_mul(e.into()));
            let blocks = shape[1..].iter().fold(u128::from(shape[0]) / u128::from(row.block_elements), |p, &e| p.saturating_mul(e.into()));
            let bytes = blocks.saturating_mul(row.block_bytes.into());
            let found = size_bytes("t", row.dtype, shape);
            if shape.contains(&0) {
                prop_assert!(matches!(found, Err(GgufError::ZeroDimension { .. })), "{found:?}");
            } else if elements > limit {
                prop_assert!(matches!(found, Err(GgufError::Overflow { .. })), "{found:?}");
            } else if !shape[0].is_multiple_of(row.block_elements) {
                prop_assert!(matches!(found, Err(GgufError::PartialBlock { .. })), "{found:?}");
            } else if bytes > limit {
                prop_assert!(matches!(found, Err(GgufError::Overflow { .. })), "{found:?}");
            } else {
                prop_assert_eq!(u128::from(found.expect("in range")), bytes);
            }
        }
    }
}
