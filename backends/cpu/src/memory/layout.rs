//! The private layout of weights: blocks of eight rows side by side.
//!
//! Rows are taken eight at a time. Of these come the first blocks, row by row, then the second blocks, and so on, so that a product of
//! several rows reads one stream. Rows beyond the last eight of a plane stay as they are. A block keeps its bytes, so the layout is a
//! permutation of blocks, any range of bytes can be found in it, and products have the same bits as with plain rows.

use std::ops::Range;

use entensor_components::{DType, TensorDesc};

/// Rows side by side.
pub(crate) const SIDE: usize = 8;

/// Whether weights of a dtype are laid out this way.
pub(crate) const fn is_repacked(dtype: DType) -> bool {
    matches!(dtype, DType::Q4_0 | DType::Q4_1 | DType::Q8_0)
}

/// A tensor in this layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interleaved {
    pub(crate) dtype: DType,
    /// Elements per axis.
    pub(crate) shape: [u64; 4],
    block_bytes: u64,
    /// Blocks of a row.
    row_blocks: u64,
    /// Rows of a plane, and those of them that lie side by side.
    plane_rows: u64,
    side_rows: u64,
}

impl Interleaved {
    /// The layout of a tensor; `None` for those that stay as they are.
    pub(crate) fn of(desc: &TensorDesc) -> Option<Self> {
        let (shape, dtype) = (desc.shape.0, desc.dtype);
        if !is_repacked(dtype) || !desc.is_packed() || desc.shape.is_empty() {
            return None;
        }
        let row_blocks = shape[0] / dtype.block_elements();
        let side_rows = shape[1] - shape[1] % SIDE as u64;
        let layout =
            Self { dtype, shape, block_bytes: dtype.block_bytes(), row_blocks, plane_rows: shape[1], side_rows };
        (row_blocks > 0).then_some(layout)
    }

    pub(crate) fn row_bytes(&self) -> u64 {
        self.row_blocks * self.block_bytes
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.row_bytes() * self.plane_rows * self.shape[2] * self.shape[3]
    }

    /// Where a range of bytes of the plain tensor lies: pieces of at most a block, in order, each with its length and its place.
    pub(crate) fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let (row, in_row) = (at / self.row_bytes(), at % self.row_bytes());
            let (block, in_block) = (in_row / self.block_bytes, in_row % self.block_bytes);
            let (plane, row) = (row / self.plane_rows, row % self.plane_rows);
            let before = plane * self.plane_rows * self.row_bytes();
            let len = (self.block_bytes - in_block).min(range.end - at);
            let place = if row < self.side_rows {
                let side = SIDE as u64;
                ((row / side * self.row_blocks + block) * side + row % side) * self.block_bytes + in_block
            } else {
                row * self.row_bytes() + in_row
            };
            at += len;
            Some((len, before + place))
        })
    }
}

#[cfg(test)]
mod tests {
    use entensor_components::Shape;

    use super::*;

    #[test]
    fn every_byte_has_one_place_and_rows_beyond_the_last_eight_stay() {
        for (dtype, shape) in [
            (DType::Q4_1, [64, 19, 2, 1]),
            (DType::Q8_0, [96, 8, 1, 3]),
            (DType::Q4_0, [32, 7, 1, 1]),
            (DType::Q4_0, [32, 16, 1, 1]),
        ] {
            let desc = TensorDesc::packed(dtype, Shape(shape)).expect("small");
            let layout = Interleaved::of(&desc).expect("a dtype of this layout");
            assert_eq!(layout.size_bytes(), desc.size_bytes());
            let mut taken = vec![false; layout.size_bytes() as usize];
            let mut at = 0;
            for (len, place) in layout.pieces(0..layout.size_bytes()) {
                for byte in place..place + len {
                    assert!(!std::mem::replace(&mut taken[byte as usize], true), "{dtype} {byte}");
                }
                let row = at / layout.row_bytes() % shape[1];
                if row >= shape[1] - shape[1] % 8 {
                    assert_eq!(at, place, "{dtype}: row {row} stays");
                }
                at += len;
            }
            assert!(taken.iter().all(|&taken| taken));
            // Any range is the same pieces, cut.
            let whole: Vec<u64> =
                layout.pieces(0..layout.size_bytes()).flat_map(|(len, place)| place..place + len).collect();
            for range in [3..5, 17..layout.size_bytes() - 9, 40..40] {
                let cut: Vec<u64> = layout.pieces(range.clone()).flat_map(|(len, place)| place..place + len).collect();
                assert_eq!(cut, whole[range.start as usize..range.end as usize]);
            }
        }
    }

    #[test]
    fn the_second_row_follows_the_first_block_of_the_first() {
        let desc = TensorDesc::packed(DType::Q8_0, Shape([64, 8, 1, 1])).expect("small");
        let layout = Interleaved::of(&desc).expect("a dtype of this layout");
        let place = |byte| layout.pieces(byte..byte + 1).next().map(|(_, place)| place);
        assert_eq!((place(0), place(34), place(68), place(68 + 34)), (Some(0), Some(8 * 34), Some(34), Some(9 * 34)));
        let plain = |dtype, dims| Interleaved::of(&TensorDesc::packed(dtype, Shape(dims)).expect("small"));
        assert_eq!(plain(DType::F32, [64, 8, 1, 1]), None);
        assert_eq!(plain(DType::Q4_0, [64, 0, 1, 1]), None);
    }
}
