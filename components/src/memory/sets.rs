//! Where the tensors of a set lie when their memory is allocated at once.

/// Where a set of tensors lies: in one buffer, or in several where it exceeds the largest. No tensor is torn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetLayout {
    /// Per tensor: which buffer, and the offset there.
    pub places: Vec<(usize, u64)>,
    /// The sizes of the buffers.
    pub buffer_bytes: Vec<u64>,
}

impl SetLayout {
    /// Puts tensors of these sizes one behind the other, each aligned, and starts a new buffer where one does not fit. A set of nothing, or of
    /// empty tensors, has one buffer of no bytes.
    ///
    /// # Errors
    /// The index of a tensor that exceeds the largest buffer by itself.
    pub fn new(
        sizes_bytes: impl IntoIterator<Item = u64>,
        align_bytes: u64,
        max_buffer_bytes: u64,
    ) -> Result<Self, usize> {
        let mut layout = Self { places: Vec::new(), buffer_bytes: vec![0] };
        for (index, size_bytes) in sizes_bytes.into_iter().enumerate() {
            let current = layout.buffer_bytes.len() - 1;
            let used = layout.buffer_bytes[current];
            let start = used.checked_next_multiple_of(align_bytes.max(1));
            let end = |start: u64| start.checked_add(size_bytes).filter(|&end| end <= max_buffer_bytes);
            let place = match start.and_then(|start| Some((start, end(start)?))) {
                Some((start, end)) => {
                    layout.buffer_bytes[current] = end;
                    (current, start)
                }
                None if size_bytes > max_buffer_bytes => return Err(index),
                None => {
                    layout.buffer_bytes.push(size_bytes);
                    (current + 1, 0)
                }
            };
            layout.places.push(place);
        }
        Ok(layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_aligned_and_never_torn() {
        let layout = SetLayout::new([10, 0, 20, 33, 31, 64, 1], 32, 64).expect("all fit");
        assert_eq!(layout.places, [(0, 0), (0, 32), (0, 32), (1, 0), (2, 0), (3, 0), (4, 0)]);
        assert_eq!(layout.buffer_bytes, [52, 33, 31, 64, 1]);
        assert_eq!(SetLayout::new([64, 65, 1], 32, 64), Err(1));
        assert_eq!(SetLayout::new([1, u64::MAX], 32, u64::MAX).expect("two buffers").buffer_bytes, [1, u64::MAX]);
        assert_eq!(SetLayout::new([], 32, 64).expect("nothing").buffer_bytes, [0]);
        assert_eq!(SetLayout::new([0, 0], 32, 0).expect("nothing").places, [(0, 0), (0, 0)]);
    }
}
