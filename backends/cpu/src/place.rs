//! Where a program's tensors lie: layouts whose every product was checked, as `usize`.

use entensor_components::{DType, TensorRef};

/// A tensor of a program: layout and memory slot, all checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slot: usize,
    pub(crate) offset: usize,
    pub(crate) dtype: DType,
    pub(crate) shape: [usize; 4],
    pub(crate) strides: [usize; 4],
}

/// Bytes of a slot that a place touches, holes included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) slot: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Region {
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.slot == other.slot && self.start < other.end && other.start < self.end
    }
}

impl Place {
    /// The place of a tensor; `None` when its end overflows.
    pub(crate) fn new(tensor: &TensorRef) -> Option<Self> {
        let desc = &tensor.desc;
        let end = desc.span_bytes()?.checked_add(tensor.offset_bytes)?;
        isize::try_from(end).ok()?;
        desc.shape.elements().and_then(|n| isize::try_from(n).ok())?;
        let empty = desc.shape.is_empty();
        let small = |v: u64| usize::try_from(v).ok();
        let mut place = Self {
            slot: small(u64::from(tensor.memory.0))?,
            offset: if empty { 0 } else { small(tensor.offset_bytes)? },
            dtype: desc.dtype,
            shape: [0; 4],
            strides: [0; 4],
        };
        for (axis, (&length, &stride)) in desc.shape.0.iter().zip(&desc.strides.0).enumerate() {
            // Axes may be too long to count only where another is 0, and then none of them is walked.
            place.shape[axis] = small(length.min(isize::MAX as u64))?;
            // A stride that is never taken can be anything.
            let taken = length > 1 && !empty;
            place.strides[axis] = if taken || axis == 0 { small(stride)? } else { 0 };
        }
        if place.row_units() <= 1 {
            place.strides[0] = place.unit_bytes();
        }
        Some(place)
    }

    /// A packed place at the start of a slot; `None` when its size overflows.
    pub(crate) fn packed(slot: usize, dtype: DType, shape: [usize; 4]) -> Option<Self> {
        let mut place = Self { slot, offset: 0, dtype, shape, strides: [0; 4] };
        let mut stride = place.unit_bytes();
        for (axis, units) in [place.row_units(), shape[1], shape[2], shape[3]].into_iter().enumerate() {
            place.strides[axis] = stride;
            stride = stride.checked_mul(units)?;
        }
        isize::try_from(stride).ok().map(|_| place)
    }

    /// Bytes of an element, or of a block.
    pub(crate) fn unit_bytes(&self) -> usize {
        self.dtype.block_bytes() as usize
    }

    /// Elements, or blocks, of a row.
    pub(crate) fn row_units(&self) -> usize {
        self.shape[0] / self.dtype.block_elements() as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    pub(crate) fn rows(&self) -> usize {
        if self.is_empty() { 0 } else { self.shape[1] * self.shape[2] * self.shape[3] }
    }

    pub(crate) fn elements(&self) -> usize {
        self.rows() * self.shape[0]
    }

    pub(crate) fn is_row_packed(&self) -> bool {
        self.strides[0] == self.unit_bytes()
    }

    pub(crate) fn is_packed(&self) -> bool {
        let mut expected = self.unit_bytes();
        (0..4).all(|axis| {
            let units = if axis == 0 { self.row_units() } else { self.shape[axis] };
            let fits = units == 1 || self.strides[axis] == expected;
            expected = expected.saturating_mul(units);
            fits
        })
    }

    /// Whether nothing is left of a region after this is written.
    pub(crate) fn overwrites(&self, region: &Region) -> bool {
        let own = self.region();
        self.is_packed() && own.slot == region.slot && own.start <= region.start && region.end <= own.end
    }

    /// The bytes it touches.
    pub(crate) fn region(&self) -> Region {
        let last = |axis: usize, units: usize| (units - 1) * self.strides[axis];
        let span = if self.is_empty() {
            0
        } else {
            let outer: usize = (1..4).map(|axis| last(axis, self.shape[axis])).sum();
            last(0, self.row_units()) + outer + self.unit_bytes()
        };
        Region { slot: self.slot, start: self.offset, end: self.offset + span }
    }

    /// Whether no two elements can share a byte: every stride clears what the smaller ones span.
    pub(crate) fn is_injective(&self) -> bool {
        // Strides of a place without elements may be anything.
        if self.is_empty() {
            return true;
        }
        let mut axes: Vec<(usize, usize)> = (0..4)
            .map(|axis| (self.strides[axis], if axis == 0 { self.row_units() } else { self.shape[axis] }))
            .collect();
        axes.retain(|&(_, units)| units > 1);
        axes.sort_unstable();
        let mut span = self.unit_bytes();
        axes.into_iter().all(|(stride, units)| {
            let clears = stride >= span;
            span += stride * (units - 1);
            clears
        })
    }

    /// Coordinates of a row by its linear index.
    #[inline(always)]
    pub(crate) fn row_at(&self, index: usize) -> [usize; 3] {
        let (rest, i1) = (index / self.shape[1], index % self.shape[1]);
        [i1, rest % self.shape[2], rest / self.shape[2]]
    }

    /// The first or second half of every row.
    pub(crate) fn half_rows(&self, second: bool) -> Self {
        let mut half = *self;
        half.shape[0] /= 2;
        if second && !self.is_empty() {
            half.offset += half.shape[0] * self.strides[0];
        }
        half
    }

    /// The elements from `start` on, `len` of them, along an axis; whole blocks along axis 0.
    pub(crate) fn window(&self, axis: usize, start: usize, len: usize) -> Self {
        let mut window = *self;
        window.shape[axis] = len;
        if !window.is_empty() {
            let units = if axis == 0 { start / self.dtype.block_elements() as usize } else { start };
            window.offset += units * self.strides[axis];
        }
        window
    }

    /// The same bytes as one long row; for packed places.
    pub(crate) fn flat(&self) -> Self {
        let mut flat = *self;
        flat.shape = [self.elements(), 1, 1, 1];
        flat.strides = [self.unit_bytes(), 0, 0, 0];
        flat
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(shape: [usize; 4], strides: [usize; 4]) -> Place {
        Place { slot: 0, offset: 8, dtype: DType::F32, shape, strides }
    }

    #[test]
    fn regions_and_overlap_of_elements() {
        let rows = place([3, 2, 1, 1], [4, 16, 0, 0]);
        assert_eq!(rows.region(), Region { slot: 0, start: 8, end: 8 + 16 + 12 });
        assert!(rows.is_injective());
        assert!(!place([3, 2, 1, 1], [4, 8, 0, 0]).is_injective());
        assert!(!place([3, 2, 1, 1], [4, 0, 0, 0]).is_injective());
        assert!(!place([3, 2, 1, 1], [8, 4, 0, 0]).is_packed());
        assert_eq!(place([0, 2, 1, 1], [4, 0, 0, 0]).region().end, 8);
        assert!(place([1 << 40, 0, 1, 1], [1 << 40, 0, 0, 0]).is_injective());
    }

    #[test]
    fn windows_keep_strides_and_stay_inside() {
        let rows = place([5, 4, 1, 1], [4, 32, 0, 0]);
        let right = rows.window(0, 3, 2);
        assert_eq!((right.shape, right.strides, right.offset), ([2, 4, 1, 1], rows.strides, 8 + 12));
        let below = rows.window(1, 1, 3);
        assert_eq!((below.shape, below.offset, below.region().end), ([5, 3, 1, 1], 8 + 32, rows.region().end));
        assert_eq!(rows.window(1, 4, 0).region().end, 8, "nothing behind the end is nowhere");
        let blocks = Place { dtype: DType::Q8_0, ..place([96, 2, 1, 1], [34, 102, 0, 0]) };
        assert_eq!(blocks.window(0, 32, 64).offset, 8 + 34);
    }
}
