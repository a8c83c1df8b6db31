//! Checked reading of little-endian values from a byte slice.

use super::error::GgufError;

/// A position in the bytes of a file. Nothing is read, skipped or reserved beyond their end.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The offset of the next byte.
    pub(super) fn offset(&self) -> u64 {
        self.at as u64
    }

    /// The number of bytes after the position.
    pub(super) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `length` bytes.
    pub(super) fn take(&mut self, length: u64, reading: &'static str) -> Result<&'a [u8], GgufError> {
        let taken = usize::try_from(length)
            .ok()
            .and_then(|length| self.at.checked_add(length))
            .and_then(|end| Some((self.bytes.get(self.at..end)?, end)));
        let Some((taken, end)) = taken else {
            return Err(self.truncated(length, reading));
        };
        self.at = end;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, reading: &'static str) -> Result<[u8; N], GgufError> {
        match self.bytes[self.at..].first_chunk() {
            Some(chunk) => {
                self.at += N;
                Ok(*chunk)
            }
            None => Err(self.truncated(N as u64, reading)),
        }
    }

    pub(super) fn u32(&mut self, reading: &'static str) -> Result<u32, GgufError> {
        self.array(reading).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, reading: &'static str) -> Result<u64, GgufError> {
        self.array(reading).map(u64::from_le_bytes)
    }

    /// The next `length` bytes as text.
    pub(super) fn text(&mut self, length: u64, what: &'static str) -> Result<&'a str, GgufError> {
        let offset_bytes = self.offset();
        let bytes = self.take(length, what)?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::InvalidUtf8 { what, offset_bytes })
    }

    /// A length and as many bytes of text.
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a str, GgufError> {
        let length = self.u64(what)?;
        self.text(length, what)
    }

    /// A count of things that take at least `least_bytes` each, checked against the bytes that are left.
    pub(super) fn check_count(&self, count: u64, least_bytes: u64, what: &'static str) -> Result<(), GgufError> {
        let most = self.left() / least_bytes;
        if count > most {
            return Err(GgufError::CountTooLarge { what, count, most, left: self.left() });
        }
        Ok(())
    }

    fn truncated(&self, needed: u64, reading: &'static str) -> GgufError {
        GgufError::Truncated { reading, offset_bytes: self.offset(), needed, left: self.left() }
    }
}
