//! Hand-made GGUF bytes: unlike the builder, they may be wrong.

/// A GGUF file in the making, with the counts set apart from what follows.
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    /// A header of version 3 with these counts.
    pub(crate) fn new(tensors: u64, entries: u64) -> Self {
        Self(Vec::new()).bytes(b"GGUF").u32(3).u64(tensors).u64(entries)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn string(self, text: &str) -> Self {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    /// A tensor info.
    pub(crate) fn tensor(self, name: &str, dims: &[u64], dtype: u32, offset: u64) -> Self {
        let raw = self.string(name).u32(dims.len() as u32);
        dims.iter().fold(raw, |raw, &extent| raw.u64(extent)).u32(dtype).u64(offset)
    }

    /// Zeros up to a multiple of 32, and `data` more.
    pub(crate) fn data(mut self, data: usize) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(32) + data, 0);
        self.0
    }
}
