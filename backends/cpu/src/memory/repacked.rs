//! Buffers of weights in the private layout: what is written is converted, what is read is converted back.

use std::{
    collections::BTreeMap,
    sync::{PoisonError, RwLock},
};

use entensor_components::{BackendError, HostMemory, TensorDesc};

use super::layout::Interleaved;
use crate::place::{Place, Region};

/// A buffer whose tensors may have a layout of their own.
pub(crate) struct Repacked {
    pub(crate) host: HostMemory,
    /// Tensors by where they begin. Locked under the lock of the bytes only, so that a tensor never begins or ends in the middle of an
    /// access.
    tensors: RwLock<BTreeMap<u64, Interleaved>>,
}

impl Repacked {
    pub(crate) fn new(host: HostMemory) -> Self {
        Self { host, tensors: RwLock::default() }
    }

    fn outside(&self, offset_bytes: u64, len_bytes: u64) -> BackendError {
        BackendError::OutOfBounds { offset_bytes, len_bytes, size_bytes: self.host.size_bytes() }
    }

    fn check(&self, offset_bytes: u64, len_bytes: u64) -> Result<u64, BackendError> {
        let end = offset_bytes.checked_add(len_bytes).filter(|&end| end <= self.host.size_bytes());
        end.ok_or_else(|| self.outside(offset_bytes, len_bytes))
    }

    /// Whether these bytes are in the buffer.
    pub(crate) fn check_span(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), BackendError> {
        self.check(offset_bytes, len_bytes).map(drop)
    }

    /// A tensor begins here. Bytes that are there already become its own.
    pub(crate) fn init_tensor(&self, offset_bytes: u64, desc: &TensorDesc) -> Result<(), BackendError> {
        let size_bytes = desc.span_bytes().unwrap_or(u64::MAX);
        let end = self.check(offset_bytes, size_bytes)?;
        let mut bytes = self.host.write()?;
        let mut tensors = self.tensors.write().unwrap_or_else(PoisonError::into_inner);
        let layout = Interleaved::of(desc);
        if layout.is_some() && tensors.get(&offset_bytes) == layout.as_ref() {
            return Ok(());
        }
        if size_bytes > 0 && overlapping(&tensors, offset_bytes, end).next().is_some() {
            let rule = "its bytes belong to another tensor; reset the buffer before its memory is used anew";
            return Err(BackendError::LayoutConflict { offset_bytes, rule });
        }
        let Some(layout) = layout else { return Ok(()) };
        let tensor = &mut bytes[offset_bytes as usize..end as usize];
        let plain = tensor.to_vec();
        let mut at = 0;
        for (len, place) in layout.pieces(0..size_bytes) {
            let (len, place) = (len as usize, place as usize);
            tensor[place..place + len].copy_from_slice(&plain[at..at + len]);
            at += len;
        }
        tensors.insert(offset_bytes, layout);
        Ok(())
    }

    /// All tensors end here; their bytes become plain.
    pub(crate) fn reset(&self) -> Result<(), BackendError> {
        let mut bytes = self.host.write()?;
        let mut tensors = self.tensors.write().unwrap_or_else(PoisonError::into_inner);
        for (start, layout) in std::mem::take(&mut *tensors) {
            let tensor = &mut bytes[start as usize..(start + layout.size_bytes()) as usize];
            let private = tensor.to_vec();
            let mut at = 0;
            for (len, place) in layout.pieces(0..layout.size_bytes()) {
                let (len, place) = (len as usize, place as usize);
                tensor[at..at + len].copy_from_slice(&private[place..place + len]);
                at += len;
            }
        }
        Ok(())
    }

    /// Calls `copy` for pieces of a range: where in the range, where in the memory, and how long. The caller holds the lock of the bytes.
    fn pieces(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        mut copy: impl FnMut(usize, usize, usize),
    ) -> Result<(), BackendError> {
        let end = self.check(offset_bytes, len_bytes)?;
        let tensors = self.tensors.read().unwrap_or_else(PoisonError::into_inner);
        let mut at = offset_bytes;
        let mut plain = |from: u64, to: u64| {
            if from < to {
                copy((from - offset_bytes) as usize, from as usize, (to - from) as usize);
            }
        };
        let mut private = Vec::new();
        for (start, layout) in overlapping(&tensors, offset_bytes, end) {
            plain(at, start);
            let stop = end.min(start + layout.size_bytes());
            at = at.max(start);
            private.push((at, start, layout, stop));
            at = stop;
        }
        plain(at, end);
        for (mut at, start, layout, stop) in private {
            for (len, place) in layout.pieces(at - start..stop - start) {
                copy((at - offset_bytes) as usize, (start + place) as usize, len as usize);
                at += len;
            }
        }
        Ok(())
    }

    pub(crate) fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        self.check(offset_bytes, bytes.len() as u64)?;
        let mut memory = self.host.write()?;
        self.pieces(offset_bytes, bytes.len() as u64, |from, to, len| {
            memory[to..to + len].copy_from_slice(&bytes[from..from + len]);
        })
    }

    pub(crate) fn read(&self, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        let memory = self.host.read();
        self.pieces(offset_bytes, bytes.len() as u64, |to, from, len| {
            bytes[to..to + len].copy_from_slice(&memory[from..from + len]);
        })
    }

    pub(crate) fn fill(&self, offset_bytes: u64, len_bytes: u64, value: u8) -> Result<(), BackendError> {
        self.check(offset_bytes, len_bytes)?;
        let mut memory = self.host.write()?;
        self.pieces(offset_bytes, len_bytes, |_, at, len| memory[at..at + len].fill(value))
    }

    /// Whether a place is a whole tensor of the private layout (true) or plain bytes (false). The caller holds the lock of the bytes.
    ///
    /// # Errors
    /// Why it is neither: a part of such a tensor, or one that somebody sees in another shape.
    pub(crate) fn lies(&self, place: &Place) -> Result<bool, &'static str> {
        let Region { start, end, .. } = place.region();
        if start == end {
            return Ok(false);
        }
        let tensors = self.tensors.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = overlapping(&tensors, start as u64, end as u64);
        let Some((at, layout)) = found.next() else { return Ok(false) };
        let same_shape = place.shape.iter().zip(layout.shape).all(|(&a, b)| a as u64 == b);
        if at == start as u64 && same_shape && place.dtype == layout.dtype && place.is_packed() {
            Ok(true)
        } else {
            Err("an operand is a view into weights with a private layout; views need a buffer of an ordinary type")
        }
    }
}

/// The tensors that have bytes of a range, in order.
fn overlapping(
    tensors: &BTreeMap<u64, Interleaved>,
    start: u64,
    end: u64,
) -> impl Iterator<Item = (u64, Interleaved)> + '_ {
    let before = tensors.range(..start).next_back().filter(move |(at, layout)| **at + layout.size_bytes() > start);
    before.into_iter().chain(tensors.range(start..end.max(start))).map(|(&at, &layout)| (at, layout))
}

#[cfg(test)]
mod tests {
    use entensor_components::{DType, Shape};

    use super::*;

    fn desc(dtype: DType, dims: [u64; 4]) -> TensorDesc {
        TensorDesc::packed(dtype, Shape(dims)).expect("small")
    }

    fn buffer() -> (Repacked, Vec<u8>, TensorDesc) {
        let weights = desc(DType::Q4_1, [64, 17, 2, 1]);
        let size = weights.size_bytes() as usize;
        let memory = Repacked::new(HostMemory::zeroed(size as u64 + 30).expect("small"));
        let bytes = (0..size + 30).map(|i| (i * 37 % 251) as u8).collect();
        (memory, bytes, weights)
    }

    #[test]
    fn every_range_reads_back_what_was_written() {
        let (memory, bytes, weights) = buffer();
        memory.init_tensor(10, &weights).expect("there is room");
        memory.write(0, &bytes).expect("fits");
        assert_ne!(memory.host.read()[10..100], bytes[10..100], "the layout is another");
        for (start, end) in
            [(0, bytes.len()), (0, 9), (5, 40), (11, 33), (700, bytes.len()), (bytes.len(), bytes.len())]
        {
            let mut back = vec![0; end - start];
            memory.read(start as u64, &mut back).expect("in bounds");
            assert_eq!(back, bytes[start..end], "{start}..{end}");
        }
        let mut expected = bytes.clone();
        for (start, len) in [(3, 20), (100, 41), (801, 7)] {
            let piece = vec![start as u8; len];
            memory.write(start as u64, &piece).expect("in bounds");
            expected[start..start + len].copy_from_slice(&piece);
        }
        memory.fill(333, 222, 9).expect("in bounds");
        expected[333..555].fill(9);
        let mut back = vec![0; bytes.len()];
        memory.read(0, &mut back).expect("in bounds");
        assert_eq!(back, expected);
        let end = bytes.len() as u64;
        assert!(matches!(memory.read(end, &mut [0]), Err(BackendError::OutOfBounds { .. })));
        assert!(matches!(memory.write(u64::MAX, &[0]), Err(BackendError::OutOfBounds { .. })));
        assert!(matches!(memory.fill(end, 1, 0), Err(BackendError::OutOfBounds { .. })));
    }

    #[test]
    fn tensors_begin_and_end_without_changing_a_byte() {
        let (memory, bytes, weights) = buffer();
        memory.write(0, &bytes).expect("fits");
        let whole = || {
            let mut back = vec![0; bytes.len()];
            memory.read(0, &mut back).expect("fits");
            back
        };
        memory.init_tensor(10, &weights).expect("there is room");
        assert_eq!(whole(), bytes, "bytes that were there became the tensor's");
        memory.init_tensor(10, &weights).expect("twice is once");
        assert_eq!(whole(), bytes);
        for (at, other) in [
            (10, desc(DType::Q4_1, [64, 34, 1, 1])),
            (0, desc(DType::F32, [4, 1, 1, 1])),
            (40, desc(DType::Q4_1, [64, 9, 1, 1])),
        ] {
            assert!(matches!(memory.init_tensor(at, &other), Err(BackendError::LayoutConflict { .. })), "{at}");
        }
        memory.init_tensor(0, &desc(DType::F32, [2, 1, 1, 1])).expect("bytes of nobody");
        assert!(matches!(memory.init_tensor(50, &weights), Err(BackendError::OutOfBounds { .. })));
        memory.reset().expect("writable");
        assert_eq!(whole(), bytes);
        assert_eq!(memory.host.read()[..], bytes[..], "plain again");
        memory.init_tensor(0, &desc(DType::Q8_0, [32, 8, 1, 1])).expect("free again");
    }
}
