//! Shapes, strides and tensor descriptions: plain data, fastest axis first, every product checked.

use bevy_ecs::prelude::*;

use crate::{dtype::DType, generation::bump_generation};

/// How many axes a tensor can have.
pub const MAX_DIMS: usize = 4;

/// Elements per axis, **fastest axis first** (as in ggml and GGUF); unused axes are 1.
#[derive(Component, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[component(immutable, on_insert = bump_generation)]
pub struct Shape(pub [u64; MAX_DIMS]);

impl Shape {
    /// A shape from its leading axes; the rest are 1. `None` if there are more than four.
    ///
    /// ```
    /// # use entensor_components::Shape;
    /// assert_eq!(Shape::new(&[64, 2]), Some(Shape([64, 2, 1, 1])));
    /// assert_eq!(Shape::new(&[1; 5]), None);
    /// ```
    #[must_use]
    pub fn new(dims: &[u64]) -> Option<Self> {
        let mut shape = [1; MAX_DIMS];
        shape.get_mut(..dims.len())?.copy_from_slice(dims);
        Some(Self(shape))
    }

    /// Number of elements, or `None` if it overflows.
    #[must_use]
    pub fn elements(self) -> Option<u64> {
        // A zero axis makes the whole shape empty, whatever the other axes say.
        if self.is_empty() {
            return Some(0);
        }
        self.0.iter().try_fold(1_u64, |n, &d| n.checked_mul(d))
    }

    /// Number of rows: elements of all axes but the fastest. Saturates.
    #[must_use]
    pub fn rows(self) -> u64 {
        self.0[1].saturating_mul(self.0[2]).saturating_mul(self.0[3])
    }

    /// Whether any axis is zero.
    #[must_use]
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0.contains(&0)
    }

    /// Number of axes without the trailing ones; at least 1.
    #[must_use]
    pub fn rank(self) -> usize {
        self.0.iter().rposition(|&d| d != 1).map_or(1, |last| last + 1)
    }

    /// Whether a tensor of this shape can be repeated to `target`: each axis divides it.
    #[must_use]
    pub fn repeats_to(self, target: Self) -> bool {
        self.0.iter().zip(target.0).all(|(&d, t)| if d == 0 { t == 0 } else { t.is_multiple_of(d) })
    }
}

/// `[64,2]`: the axes without trailing ones.
impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_list(f, &self.0[..self.rank()])
    }
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Bytes from one element to the next along each axis. For block dtypes the first is the bytes of one block.
#[derive(Component, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[component(immutable, on_insert = bump_generation)]
pub struct Strides(pub [u64; MAX_DIMS]);

impl Strides {
    /// The strides of a packed tensor; `None` where rows are no whole blocks or sizes overflow.
    #[must_use]
    pub fn packed(dtype: DType, shape: Shape) -> Option<Self> {
        let row = dtype.row_bytes(shape.0[0])?;
        let plane = row.checked_mul(shape.0[1])?;
        let cube = plane.checked_mul(shape.0[2])?;
        cube.checked_mul(shape.0[3])?;
        Some(Self([dtype.block_bytes(), row, plane, cube]))
    }
}

impl std::fmt::Display for Strides {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_list(f, &self.0)
    }
}

impl std::fmt::Debug for Strides {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

fn write_list(f: &mut std::fmt::Formatter<'_>, values: &[u64]) -> std::fmt::Result {
    f.write_str("[")?;
    for (i, v) in values.iter().enumerate() {
        if i > 0 {
            f.write_str(",")?;
        }
        write!(f, "{v}")?;
    }
    f.write_str("]")
}

/// Why a tensor of some dtype and shape cannot exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// The fastest axis is not a whole number of blocks.
    #[error("shape {shape}: {dtype} packs {block} elements a block, so the first axis must be a multiple of {block}")]
    PartialBlock {
        /// The dtype asked for.
        dtype: DType,
        /// The shape asked for.
        shape: Shape,
        /// Elements per block.
        block: u64,
    },
    /// The size in bytes does not fit in 63 bits.
    #[error("shape {shape} of {dtype} overflows; use smaller axes")]
    Overflow {
        /// The dtype asked for.
        dtype: DType,
        /// The shape asked for.
        shape: Shape,
    },
    /// More than [`MAX_DIMS`] axes.
    #[error("{rank} axes; a tensor has at most 4, so merge some")]
    TooManyAxes {
        /// Axes asked for.
        rank: usize,
    },
}

/// What a backend needs to know of a tensor beside where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorDesc {
    /// Element type.
    pub dtype: DType,
    /// Elements per axis, fastest first.
    pub shape: Shape,
    /// Bytes per axis.
    pub strides: Strides,
}

impl TensorDesc {
    /// A packed tensor.
    ///
    /// # Errors
    /// When the first axis is no whole number of blocks, or the size does not fit in 63 bits.
    pub fn packed(dtype: DType, shape: Shape) -> Result<Self, ShapeError> {
        let block = dtype.block_elements();
        if !shape.0[0].is_multiple_of(block) {
            return Err(ShapeError::PartialBlock { dtype, shape, block });
        }
        let overflow = ShapeError::Overflow { dtype, shape };
        let strides = Strides::packed(dtype, shape).ok_or(overflow)?;
        let desc = Self { dtype, shape, strides };
        // Empty axes make the strides small; the other axes must still be countable.
        let countable = shape.0.iter().try_fold(1_i64, |n, &d| n.checked_mul(i64::try_from(d.max(1)).ok()?));
        match desc.span_bytes() {
            Some(bytes) if i64::try_from(bytes).is_ok() && countable.is_some() => Ok(desc),
            _ => Err(overflow),
        }
    }

    /// Bytes from the first to just past the last element, holes of the strides included; `None` on overflow.
    #[must_use]
    #[inline]
    pub fn span_bytes(&self) -> Option<u64> {
        if self.shape.is_empty() {
            return Some(0);
        }
        let mut end = if self.is_row_packed() {
            self.dtype.row_bytes(self.shape.0[0])?
        } else {
            // Strided first axes exist for plain types only: views of blocks keep rows whole.
            self.strides.0[0].checked_mul(self.shape.0[0] - 1)?.checked_add(self.dtype.block_bytes())?
        };
        for axis in 1..MAX_DIMS {
            end = end.checked_add(self.strides.0[axis].checked_mul(self.shape.0[axis] - 1)?)?;
        }
        Some(end)
    }

    /// Bytes of the span, for descriptions that were checked when they were made.
    ///
    /// # Panics
    /// Never for a description from [`TensorDesc::packed`], the op rules or a checked view.
    #[must_use]
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        self.span_bytes().expect("descriptions are checked for overflow when they are made")
    }

    /// Whether elements of a row lie next to each other.
    #[must_use]
    #[inline]
    pub fn is_row_packed(&self) -> bool {
        self.strides.0[0] == self.dtype.block_bytes()
    }

    /// Whether the tensor is packed: no holes, axes in order. Axes of length 1 may have any stride.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        let Some(packed) = Strides::packed(self.dtype, self.shape) else { return false };
        self.shape.is_empty()
            || (0..MAX_DIMS).all(|axis| {
                let length_one =
                    if axis == 0 { self.dtype.block_elements() == self.shape.0[0] } else { self.shape.0[axis] == 1 };
                length_one || self.strides.0[axis] == packed.0[axis]
            })
    }
}

/// `f32 [64,2]`, with strides when they are not the packed ones.
impl std::fmt::Display for TensorDesc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.dtype, self.shape)?;
        if !self.is_packed() {
            write!(f, " strides {}", self.strides)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_sizes_and_spans() {
        let desc = TensorDesc::packed(DType::Q8_0, Shape([64, 3, 1, 1])).expect("valid");
        assert_eq!((desc.size_bytes(), desc.is_packed()), (204, true));
        let empty = TensorDesc::packed(DType::F32, Shape([0, 5, 1, 1])).expect("valid");
        assert_eq!(empty.size_bytes(), 0);
        let transposed =
            TensorDesc { dtype: DType::F32, shape: Shape([3, 4, 1, 1]), strides: Strides([16, 4, 48, 48]) };
        assert_eq!((transposed.size_bytes(), transposed.is_packed()), (48, false));
    }

    #[test]
    fn impossible_tensors_are_errors() {
        for q in [1, 31, 33, 255, 257] {
            assert!(matches!(
                TensorDesc::packed(DType::Q4_1, Shape([q, 1, 1, 1])),
                Err(ShapeError::PartialBlock { .. })
            ));
        }
        for shape in [[1 << 62, 4, 1, 1], [1 << 32, 1 << 32, 1, 1], [u64::MAX, 1, 1, 1], [0, u64::MAX, 3, 1]] {
            assert!(TensorDesc::packed(DType::F32, Shape(shape)).is_err(), "{shape:?}");
        }
    }

    #[test]
    fn a_shape_prints_without_trailing_ones() {
        assert_eq!(Shape([64, 2, 1, 1]).to_string(), "[64,2]");
        assert_eq!(Shape([1; 4]).to_string(), "[1]");
    }
}
