//! Rows of bytes at a distance: two-dimensional reads and writes.

use std::ops::Range;

use crate::backend::{BackendError, Readback};

/// Rows of bytes that lie at one distance in a buffer and at another in the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRows {
    /// How many rows.
    pub rows: u64,
    /// Bytes of each.
    pub row_bytes: u64,
    /// From the start of one row to the next in the buffer.
    pub buffer_stride_bytes: u64,
    /// From the start of one row to the next in the caller's memory. Where rows are written, it may be smaller than a row: 0 writes one
    /// row everywhere.
    pub host_stride_bytes: u64,
}

impl ByteRows {
    /// Rows that lie next to each other in the caller's memory.
    #[must_use]
    pub fn new(rows: u64, row_bytes: u64, buffer_stride_bytes: u64) -> Self {
        Self { rows, row_bytes, buffer_stride_bytes, host_stride_bytes: row_bytes }
    }

    /// Whether there is nothing to read or write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0 || self.row_bytes == 0
    }

    fn bad(&self, stride_bytes: u64, rule: &'static str) -> BackendError {
        BackendError::BadRows { rows: self.rows, row_bytes: self.row_bytes, stride_bytes, rule }
    }

    fn span(&self, stride_bytes: u64) -> Result<u64, BackendError> {
        if self.is_empty() {
            return Ok(0);
        }
        let before_last = (self.rows - 1).checked_mul(stride_bytes);
        let span = before_last.and_then(|bytes| bytes.checked_add(self.row_bytes));
        span.ok_or_else(|| self.bad(stride_bytes, "their span must be countable in 64 bits"))
    }

    /// Bytes of the buffer from the first to the last, holes included.
    ///
    /// # Errors
    /// [`BackendError::BadRows`] where nobody can count them.
    pub fn buffer_span_bytes(&self) -> Result<u64, BackendError> {
        self.span(self.buffer_stride_bytes)
    }

    /// Bytes of the caller's memory from the first to the last, holes included.
    ///
    /// # Errors
    /// [`BackendError::BadRows`] where nobody can count them.
    pub fn host_span_bytes(&self) -> Result<u64, BackendError> {
        self.span(self.host_stride_bytes)
    }

    fn check(&self, target_stride_bytes: u64, host_bytes: usize) -> Result<(), BackendError> {
        if self.rows > 1 && target_stride_bytes < self.row_bytes {
            return Err(self.bad(target_stride_bytes, "rows that are written must not overlap"));
        }
        let (needed_bytes, given_bytes) = (self.host_span_bytes()?, host_bytes as u64);
        if needed_bytes > given_bytes {
            return Err(BackendError::HostTooSmall { needed_bytes, given_bytes });
        }
        Ok(())
    }

    /// Checks everything about a write but the bounds of the buffer.
    ///
    /// # Errors
    /// [`BackendError::BadRows`] for rows that overlap in the buffer, [`BackendError::HostTooSmall`].
    pub fn check_write(&self, host_bytes: usize) -> Result<(), BackendError> {
        self.check(self.buffer_stride_bytes, host_bytes)
    }

    /// Checks everything about a read but the bounds of the buffer.
    ///
    /// # Errors
    /// [`BackendError::BadRows`] for rows that overlap in the caller's memory, [`BackendError::HostTooSmall`].
    pub fn check_read(&self, host_bytes: usize) -> Result<(), BackendError> {
        self.check(self.host_stride_bytes, host_bytes)
    }

    /// The pieces to copy, each an offset in the buffer and a range of the caller's memory: one a row, or one for all where rows lie next to
    /// each other on both sides. For rows that were checked, in a buffer that has room for them.
    pub fn pieces(&self, offset_bytes: u64) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
        let one_piece = self.buffer_stride_bytes == self.row_bytes && self.host_stride_bytes == self.row_bytes;
        let (rows, row_bytes) = match (self.is_empty(), one_piece) {
            (true, _) => (0, 0),
            // The host's memory holds as many bytes, so they can be counted.
            (false, true) => (1, self.rows.saturating_mul(self.row_bytes)),
            (false, false) => (self.rows, self.row_bytes),
        };
        let (buffer_stride, host_stride) = (self.buffer_stride_bytes, self.host_stride_bytes);
        (0..rows).map(move |row| {
            let start = (row * host_stride) as usize;
            (offset_bytes + row * buffer_stride, start..start + row_bytes as usize)
        })
    }
}

/// Rows that an asynchronous read brings.
#[derive(Clone, Debug)]
pub struct RowsReadback {
    bytes: Readback,
    /// How the rows lie in the bytes.
    stride_bytes: u64,
    rows: ByteRows,
}

impl RowsReadback {
    /// For a read of the whole span, holes included.
    #[must_use]
    pub fn of_span(bytes: Readback, rows: ByteRows) -> Self {
        Self { bytes, stride_bytes: rows.buffer_stride_bytes, rows }
    }

    /// For a read that leaves the holes out.
    #[must_use]
    pub fn of_packed(bytes: Readback, rows: ByteRows) -> Self {
        Self { bytes, stride_bytes: rows.row_bytes, rows }
    }

    /// Puts the rows where they were wanted, once the ticket of the read is done.
    ///
    /// # Errors
    /// As [`ByteRows::check_read`].
    pub fn take(&self, into: &mut [u8]) -> Result<(), BackendError> {
        self.rows.check_read(into.len())?;
        self.bytes.with(|bytes| {
            let from = ByteRows { host_stride_bytes: self.stride_bytes, ..self.rows };
            let to = self.rows;
            // Each side row by row: one of them may be packed where the other is not.
            for row in 0..if to.is_empty() { 0 } else { to.rows } {
                let start = |stride: u64| (row * stride) as usize;
                let len = to.row_bytes as usize;
                let source = &bytes[start(from.host_stride_bytes)..][..len];
                into[start(to.host_stride_bytes)..][..len].copy_from_slice(source);
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_counted_or_refused() {
        let rows = ByteRows::new(3, 4, 10);
        assert_eq!((rows.buffer_span_bytes(), rows.host_span_bytes()), (Ok(24), Ok(12)));
        assert_eq!(ByteRows::new(0, 4, u64::MAX).buffer_span_bytes(), Ok(0));
        let huge = ByteRows::new(u64::MAX, 4, u64::MAX);
        assert!(matches!(huge.buffer_span_bytes(), Err(BackendError::BadRows { .. })));
        assert!(matches!(huge.check_write(1 << 20), Err(BackendError::BadRows { .. })));
    }

    #[test]
    fn what_is_written_must_not_overlap_and_what_is_read_may() {
        let rows = |buffer_stride_bytes, host_stride_bytes| ByteRows {
            rows: 2,
            row_bytes: 4,
            buffer_stride_bytes,
            host_stride_bytes,
        };
        assert_eq!(rows(8, 0).check_write(4), Ok(()));
        assert!(matches!(rows(3, 4).check_write(8), Err(BackendError::BadRows { .. })));
        assert_eq!(rows(0, 4).check_read(8), Ok(()));
        assert!(matches!(rows(8, 3).check_read(8), Err(BackendError::BadRows { .. })));
        let short = BackendError::HostTooSmall { needed_bytes: 8, given_bytes: 7 };
        assert_eq!(rows(8, 4).check_write(7), Err(short));
    }

    #[test]
    fn rows_next_to_each_other_are_one_piece() {
        let pieces = |rows: ByteRows| rows.pieces(100).collect::<Vec<_>>();
        assert_eq!(pieces(ByteRows::new(3, 4, 4)), [(100, 0..12)]);
        assert_eq!(pieces(ByteRows::new(2, 4, 10)), [(100, 0..4), (110, 4..8)]);
        assert!(pieces(ByteRows::new(2, 0, 10)).is_empty());
    }

    #[test]
    fn rows_are_taken_out_of_spans_and_of_packed_bytes() {
        let rows = ByteRows { rows: 2, row_bytes: 2, buffer_stride_bytes: 3, host_stride_bytes: 4 };
        for (readback, bytes) in [
            (RowsReadback::of_span as fn(Readback, ByteRows) -> RowsReadback, &[1, 2, 9, 3, 4][..]),
            (RowsReadback::of_packed, &[1, 2, 3, 4]),
        ] {
            let back = Readback::new(bytes.len() as u64).expect("a few bytes");
            back.with(|into| into.copy_from_slice(bytes));
            let mut out = [7; 6];
            readback(back, rows).take(&mut out).expect("fits");
            assert_eq!(out, [1, 2, 7, 7, 3, 4]);
        }
    }
}
