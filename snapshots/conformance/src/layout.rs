//! How an operand lies in memory.

use std::fmt;

use entensor_components::{DType, MAX_DIMS, Shape, Strides, TensorDesc};

/// A layout that every op is tried with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Packed.
    Contiguous,
    /// Rows packed, the outer axes in reverse order.
    Permuted,
    /// All axes in reverse order, so that elements of a row are far apart. Plain dtypes only.
    Transposed,
    /// A window of something larger: gaps behind rows, planes and cubes.
    Sliced,
    /// Every row of a plane is the same row in memory. Never what an op writes.
    Broadcast,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Self; 5] = [Self::Contiguous, Self::Permuted, Self::Transposed, Self::Sliced, Self::Broadcast];

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::Permuted => "permuted",
            Self::Transposed => "transposed",
            Self::Sliced => "sliced",
            Self::Broadcast => "broadcast",
        }
    }

    /// The layout that prints like this.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.name() == name)
    }

    /// The description of a tensor in this layout; `None` where there is no such thing.
    #[must_use]
    pub fn apply(self, dtype: DType, shape: Shape) -> Option<TensorDesc> {
        let packed = TensorDesc::packed(dtype, shape).ok()?;
        let unit = dtype.block_bytes();
        let units = shape.0[0] / dtype.block_elements();
        let lengths = [units, shape.0[1], shape.0[2], shape.0[3]];
        let strides = match self {
            Self::Contiguous => packed.strides.0,
            Self::Permuted => in_order(&lengths, [0, 3, 2, 1], unit, 0)?,
            Self::Transposed if dtype.is_block() => return None,
            Self::Transposed => in_order(&lengths, [3, 2, 1, 0], unit, 0)?,
            Self::Sliced => in_order(&lengths, [0, 1, 2, 3], unit, 1)?,
            Self::Broadcast => {
                let mut strides = packed.strides.0;
                strides[1] = 0;
                strides
            }
        };
        let desc = TensorDesc { dtype, shape, strides: Strides(strides) };
        desc.span_bytes().map(|_| desc)
    }
}

/// Strides with axes from the fastest to the slowest, and `gap` more entries on each than the shape says; `None` on
/// overflow.
fn in_order(lengths: &[u64; MAX_DIMS], order: [usize; MAX_DIMS], unit: u64, gap: u64) -> Option<[u64; MAX_DIMS]> {
    let mut strides = [0; MAX_DIMS];
    let mut stride = unit;
    for axis in order {
        strides[axis] = stride;
        stride = stride.checked_mul(lengths[axis].checked_add(gap)?.max(1))?;
    }
    Some(strides)
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
