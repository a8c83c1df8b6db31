//! Converting the data of one tensor, piece by piece, on several threads.

use std::{
    num::NonZeroUsize,
    sync::{Mutex, PoisonError},
};

use entensor_components::{DType, DTypeClass};

/// Elements that a thread converts at a time: 2 MiB of f32, so that memory stays small and starting threads costs nothing.
const PIECE_ELEMENTS: usize = 1 << 19;

/// Bytes that are handed on at a time where nothing is converted.
const COPY_BYTES: usize = 8 << 20;

/// More threads only take more memory.
const MAX_THREADS: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// Beyond this, scales in half precision overflow; below it, none can.
const LARGEST_SAFE: f32 = 32_768.0;

/// A value that the dtype cannot hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BadValue {
    /// Its place in the tensor.
    pub(super) index: u64,
    pub(super) value: f32,
}

/// Why a conversion stopped.
#[derive(Debug, PartialEq)]
pub(super) enum Stopped<E> {
    Value(BadValue),
    Sink(E),
}

/// Converts data, with memory that is kept between tensors.
pub(super) struct Converter {
    workers: Vec<Worker>,
}

#[derive(Default)]
struct Worker {
    values: Vec<f32>,
    check: Vec<f32>,
    bytes: Vec<u8>,
}

impl Converter {
    pub(super) fn new(threads: NonZeroUsize) -> Self {
        let threads = threads.min(MAX_THREADS);
        Self { workers: std::iter::repeat_with(Worker::default).take(threads.get()).collect() }
    }

    /// Converts `source`, which is whole blocks of `from` and of `to`, and gives the pieces to `sink` in order, with the bytes
    /// of the source that they came from. The number of threads changes no byte.
    pub(super) fn convert<E>(
        &mut self,
        source: &[u8],
        from: DType,
        to: DType,
        mut sink: impl FnMut(&[u8], u64) -> Result<(), E>,
    ) -> Result<(), Stopped<E>> {
        if from == to {
            return source
                .chunks(COPY_BYTES)
                .try_for_each(|bytes| sink(bytes, bytes.len() as u64))
                .map_err(Stopped::Sink);
        }
        // Rows are whole blocks of both, so cuts may be anywhere where both end a block.
        let (unit, piece) = piece_elements(from, to);
        let piece_bytes = piece / unit * unit_bytes(from, unit);
        let round_bytes = piece_bytes * self.workers.len();
        for (round, bytes) in source.chunks(round_bytes.max(1)).enumerate() {
            let pieces = bytes.chunks(piece_bytes.max(1));
            let first_piece = round * self.workers.len();
            let mut results = vec![Ok(()); pieces.len()];
            let helpers = pieces.len().saturating_sub(1);
            {
                let jobs = Mutex::new(self.workers.iter_mut().zip(pieces.clone()).zip(&mut results));
                let work = || {
                    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
                    while let Some(((worker, piece), result)) = next() {
                        *result = worker.run(piece, from, to);
                    }
                };
                std::thread::scope(|scope| {
                    // The caller works too, and does all of it where the system has no threads to spare.
                    for _ in 0..helpers {
                        if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                            break;
                        }
                    }
                    work();
                });
            }
            for (i, ((worker, piece_source), result)) in self.workers.iter().zip(pieces).zip(results).enumerate() {
                result.map_err(|bad: BadValue| {
                    let before = ((first_piece + i) as u64).saturating_mul(piece as u64);
                    Stopped::Value(BadValue { index: before.saturating_add(bad.index), ..bad })
                })?;
                sink(&worker.bytes, piece_source.len() as u64).map_err(Stopped::Sink)?;
            }
        }
        Ok(())
    }
}

impl Worker {
    /// Fills `bytes`; the place of a bad value is counted from the start of the piece.
    fn run(&mut self, source: &[u8], from: DType, to: DType) -> Result<(), BadValue> {
        let (from, to) = (from.row(), to.row());
        let blocks = source.len() / usize_of(from.block_bytes);
        let elements = blocks * usize_of(from.block_elements);
        self.values.resize(elements, 0.0);
        (from.dequantize)(source, &mut self.values);
        // One infinity would take all precision from its whole block; plain floats have room for it.
        if to.class == DTypeClass::Block
            && let Some((i, &value)) = self.values.iter().enumerate().find(|(_, value)| !value.is_finite())
        {
            return Err(BadValue { index: i as u64, value });
        }
        self.bytes.resize(elements / usize_of(to.block_elements) * usize_of(to.block_bytes), 0);
        (to.quantize)(&self.values, &mut self.bytes);
        if self.values.iter().any(|value| value.abs() > LARGEST_SAFE) {
            self.check.resize(elements, 0.0);
            (to.dequantize)(&self.bytes, &mut self.check);
            let mut pairs = self.values.iter().zip(&self.check);
            if let Some(lost) = pairs.position(|(value, check)| value.is_finite() && !check.is_finite()) {
                return Err(self.largest_beside(lost, usize_of(to.block_elements)));
            }
        }
        Ok(())
    }

    /// The value of a block that made its scale overflow.
    fn largest_beside(&self, lost: usize, block_elements: usize) -> BadValue {
        let start = lost / block_elements * block_elements;
        let block = self.values[start..].iter().take(block_elements).enumerate();
        let largest = block.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()));
        largest.map_or(BadValue { index: lost as u64, value: self.values[lost] }, |(i, &value)| BadValue {
            index: (start + i) as u64,
            value,
        })
    }
}

/// Elements that are whole blocks of both dtypes, and the most of them, but at least one, that make a piece.
fn piece_elements(from: DType, to: DType) -> (usize, usize) {
    let (a, b) = (usize_of(from.block_elements()), usize_of(to.block_elements()));
    let unit = a / gcd(a, b) * b;
    (unit, (PIECE_ELEMENTS / unit).max(1) * unit)
}

fn unit_bytes(dtype: DType, unit: usize) -> usize {
    unit / usize_of(dtype.block_elements()) * usize_of(dtype.block_bytes())
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Blocks have a few hundred elements and bytes.
fn usize_of(small: u64) -> usize {
    usize::try_from(small).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use entensor_components::DTYPES;

    use super::*;

    fn converted(source: &[u8], from: DType, to: DType, threads: usize) -> Result<Vec<u8>, Stopped<()>> {
        let (mut out, mut read) = (Vec::new(), 0);
        let mut converter = Converter::new(NonZeroUsize::new(threads).expect("not zero"));
        converter.convert(source, from, to, |bytes, source_bytes| {
            out.extend_from_slice(bytes);
            read += source_bytes;
            Ok(())
        })?;
        assert_eq!(read, source.len() as u64);
        Ok(out)
    }

    fn values(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 % 1013) as f32 / 100.0 - 5.0) * (1.0 + (i / 256 % 3) as f32)).collect()
    }

    fn encoded(dtype: DType, values: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; dtype.row_bytes(values.len() as u64).expect("whole blocks") as usize];
        (dtype.row().quantize)(values, &mut bytes);
        bytes
    }

    #[test]
    fn pieces_and_threads_change_no_byte() {
        // Two and a bit pieces, so that rounds and the last piece are cut in every way.
        let count = 2 * PIECE_ELEMENTS + 256 * 5;
        let values = values(count);
        let source = encoded(DType::F32, &values);
        for row in DTYPES.iter().filter(|row| row.class != DTypeClass::Integer) {
            let expected = encoded(row.dtype, &values);
            for threads in [1, 2, 3, 7] {
                let found = converted(&source, DType::F32, row.dtype, threads).expect("finite");
                assert!(found == expected, "{} with {threads} threads", row.name);
            }
            let mut back = vec![0.0; count];
            (row.dequantize)(&expected, &mut back);
            let again = converted(&expected, row.dtype, DType::F32, 2).expect("finite");
            assert!(again == encoded(DType::F32, &back), "{} to f32", row.name);
        }
    }

    #[test]
    fn the_same_dtype_is_copied_bit_for_bit() {
        let source: Vec<u8> = (0..COPY_BYTES + 20 * 7).map(|i| (i * 31 % 251) as u8).collect();
        let whole = &source[..source.len() / 20 * 20];
        assert!(converted(whole, DType::Q4_1, DType::Q4_1, 2) == Ok(whole.to_vec()));
    }

    #[test]
    fn values_that_would_be_lost_are_named() {
        let count = PIECE_ELEMENTS + 512;
        for (value, dtype, bad) in [
            (f32::NAN, DType::Q4_1, true),
            (f32::INFINITY, DType::Q8_0, true),
            (f32::NEG_INFINITY, DType::F16, false),
            (f32::NAN, DType::F16, false),
            (1e6, DType::F16, true),
            (-65_504.0, DType::F16, false),
            (9e5, DType::Q4_1, false),
            (-1e6, DType::Q4_1, true),
            (1e9, DType::Q8_0, true),
            (1e6, DType::Q8_0, false),
        ] {
            let mut values = values(count);
            let at = PIECE_ELEMENTS + 100;
            values[at] = value;
            let found = converted(&encoded(DType::F32, &values), DType::F32, dtype, 2);
            match found {
                Err(Stopped::Value(found)) => {
                    assert!(bad && found.index == at as u64, "{value} as {dtype}: {found:?}");
                    assert_eq!(found.value.to_bits(), value.to_bits());
                }
                found => assert!(found.is_ok() && !bad, "{value} as {dtype}"),
            }
        }
    }
}
