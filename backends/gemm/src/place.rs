//! Where an operand or a result lies: offsets and strides in bytes, all checked to be countable.

use entensor_components::{DType, TensorRef};

/// A tensor of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slot: usize,
    pub(crate) dtype: DType,
    /// Bytes from the memory's start to the first element.
    offset: usize,
    /// Bytes from the first element to behind the last, holes included.
    span: usize,
    pub(crate) shape: [usize; 4],
    /// Bytes; for block dtypes the first is that of a block.
    pub(crate) strides: [usize; 4],
}

impl Place {
    /// The place of a tensor; `None` when its end overflows.
    pub(crate) fn new(tensor: &TensorRef) -> Option<Self> {
        let desc = &tensor.desc;
        let empty = desc.shape.is_empty();
        let span = isize::try_from(desc.span_bytes()?).ok()? as usize;
        let offset = if empty { 0 } else { usize::try_from(tensor.offset_bytes).ok()? };
        isize::try_from(offset.checked_add(span)?).ok()?;
        isize::try_from(desc.shape.elements()?).ok()?;
        let mut place = Self {
            slot: usize::try_from(tensor.memory.0).ok()?,
            dtype: desc.dtype,
            offset,
            span,
            shape: [0; 4],
            strides: [0; 4],
        };
        for axis in 0..4 {
            let (length, stride) = (desc.shape.0[axis], desc.strides.0[axis]);
            // Axes may be too long to count only where another is 0, and then none of them is walked.
            place.shape[axis] = usize::try_from(length.min(isize::MAX as u64)).ok()?;
            // A stride that is never taken can be anything.
            let taken = !empty && length > 1;
            place.strides[axis] = if taken { usize::try_from(stride).ok()? } else { 0 };
        }
        if desc.is_row_packed() || desc.shape.0[0] <= desc.dtype.block_elements() {
            place.strides[0] = place.unit_bytes();
        }
        Some(place)
    }

    /// Bytes of an element, or of a block.
    pub(crate) fn unit_bytes(&self) -> usize {
        self.dtype.block_bytes() as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Whether the first element begins at a multiple of its size from the memory's start.
    pub(crate) fn is_aligned(&self) -> bool {
        self.dtype.is_block() || self.offset.is_multiple_of(self.unit_bytes())
    }

    /// Bytes that the memory must have.
    pub(crate) fn end(&self) -> usize {
        self.offset + self.span
    }

    /// Whether the two may touch a byte in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.slot == other.slot && self.offset < other.end() && other.offset < self.end()
    }

    /// Bytes from the memory's start to an element; along the first axis it must be the first of a block.
    pub(crate) fn at(&self, at: [usize; 4]) -> usize {
        let units = at[0] / self.dtype.block_elements() as usize;
        let steps = [units, at[1], at[2], at[3]];
        self.offset + steps.iter().zip(self.strides).map(|(step, stride)| step * stride).sum::<usize>()
    }

    /// Bytes that some elements of one row span.
    pub(crate) fn row_span(&self, elements: usize) -> usize {
        let units = elements / self.dtype.block_elements() as usize;
        if units == 0 { 0 } else { (units - 1) * self.strides[0] + self.unit_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use entensor_components::{MemorySlot, Shape, Strides, TensorDesc};

    use super::*;

    #[test]
    fn places_are_found_and_checked() {
        let desc = TensorDesc { dtype: DType::F32, shape: Shape([3, 2, 1, 1]), strides: Strides([4, 16, 7, 7]) };
        let tensor = |desc, offset_bytes| TensorRef { desc, memory: MemorySlot(1), offset_bytes };
        let place = Place::new(&tensor(desc, 8)).expect("small");
        assert_eq!((place.end(), place.at([2, 1, 0, 0]), place.row_span(3)), (8 + 28, 8 + 8 + 16, 12));
        assert!(place.overlaps(&Place::new(&tensor(desc, 32)).expect("small")));
        assert!(!place.overlaps(&Place::new(&tensor(desc, 36)).expect("small")));
        assert_eq!(Place::new(&tensor(desc, u64::MAX)), None);
        let blocks = TensorDesc::packed(DType::Q8_0, Shape([96, 2, 1, 1])).expect("valid");
        let place = Place::new(&tensor(blocks, 0)).expect("small");
        assert_eq!((place.at([32, 1, 0, 0]), place.row_span(64)), (34 + 102, 68));
    }
}
