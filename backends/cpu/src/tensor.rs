//! Tensors in locked memory: the one place where offsets and strides become pointers.
//!
//! The bytes are shared between the workers of a run, and a result may lie in the memory of an operand, so nothing here
//! hands out `&mut` to them, and `&` only where a kernel can promise that nobody writes. Everything else is copied in
//! and out, a tile at a time.
#![expect(unsafe_code, reason = "memory that several workers use at once, partitioned by the steps' chunk grids")]

use std::ops::Range;

use entensor_components::{DType, DTypeSet};

use crate::{
    place::Place,
    simd::{Level, spread_bytes},
};

/// Elements that kernels work on at a time: a whole number of blocks of every dtype, and a few KiB of first-level cache.
pub(crate) const TILE: usize = 256;

/// At least the bytes of a block of any dtype.
const BLOCK_BYTES: usize = 256;

/// Where a slot's bytes begin in this run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) bytes: *mut u8,
    pub(crate) len: usize,
    /// Whether weights of products have the private layout there.
    pub(crate) repacked: bool,
}

/// The bases of all slots of a run, work memory included.
#[derive(Clone, Copy)]
pub(crate) struct Bases<'a>(&'a [Base]);

impl<'a> Bases<'a> {
    /// # Safety
    /// As long as the result or anything made of it is used: every base points to `len` readable bytes, writable too
    /// where a place of the program is written; the program's places all lie inside; and nobody but the workers of this
    /// run, each in the chunks it claimed, touches bytes that the run writes.
    pub(crate) unsafe fn new(bases: &'a [Base]) -> Self {
        Self(bases)
    }

    /// Whether a place lies in memory of the private layout.
    #[inline(always)]
    pub(crate) fn is_repacked(self, place: &Place) -> bool {
        self.0[place.slot].repacked
    }

    /// A tensor of the program.
    #[inline(always)]
    pub(crate) fn tensor(self, place: &'a Place) -> Tensor<'a> {
        let base = self.0[place.slot];
        debug_assert!(place.is_empty() || place.region().end <= base.len);
        // The offset of an empty place is 0, so this stays inside the memory.
        Tensor { first: base.bytes.wrapping_add(place.offset), place }
    }
}

/// A tensor in bound memory.
#[derive(Clone, Copy)]
pub(crate) struct Tensor<'a> {
    first: *mut u8,
    place: &'a Place,
}

impl<'a> Tensor<'a> {
    #[inline(always)]
    pub(crate) fn place(&self) -> &'a Place {
        self.place
    }

    /// A row to read.
    #[inline(always)]
    pub(crate) fn row(&self, at: [usize; 3]) -> Row {
        let (shape, strides) = (&self.place.shape, &self.place.strides);
        assert!(at[0] < shape[1] && at[1] < shape[2] && at[2] < shape[3]);
        let offset = at[0] * strides[1] + at[1] * strides[2] + at[2] * strides[3];
        let dtype = self.place.dtype;
        Row { first: self.first.wrapping_add(offset), step: strides[0], len: shape[0], dtype }
    }

    /// A row of packed bytes.
    ///
    /// # Safety
    /// Nobody may write the row while the slice lives.
    #[inline(always)]
    pub(crate) unsafe fn row_bytes(&self, at: [usize; 3]) -> &'a [u8] {
        assert!(self.place.is_row_packed());
        let len = self.place.row_units() * self.place.unit_bytes();
        // SAFETY: `row` checked the coordinates, and the whole row lies in memory that outlives `'a` by the contract of
        // `Bases::new`; the caller promises that it does not change.
        unsafe { std::slice::from_raw_parts(self.row(at).first, len) }
    }

    /// Rows of packed elements from `at` on, `columns` of each, from the first to the end of the last; gives the bytes from row to row, too.
    ///
    /// # Safety
    /// Nobody may write what lies between them while the slice lives.
    #[inline(always)]
    pub(crate) unsafe fn rows_bytes(&self, at: [usize; 3], count: usize, columns: Range<usize>) -> (&'a [u8], usize) {
        let (place, unit) = (self.place, self.place.unit_bytes());
        assert!(place.is_row_packed() && !place.dtype.is_block() && columns.end <= place.shape[0]);
        assert!(count > 0 && at[0] + count <= place.shape[1] && columns.start <= columns.end);
        let len = (count - 1) * place.strides[1] + columns.len() * unit;
        // SAFETY: the coordinates of the first row are checked by `row`, those of the last were just checked; they lie in memory that
        // outlives `'a` by the contract of `Bases::new`; the caller promises that it does not change.
        let bytes = unsafe { std::slice::from_raw_parts(self.row(at).first.add(columns.start * unit), len) };
        (bytes, place.strides[1])
    }

    /// Packed rows from `at` on, from the first to the end of the last; gives the bytes from row to row, too.
    ///
    /// # Safety
    /// Nobody may write what lies between them while the slice lives.
    #[inline(always)]
    pub(crate) unsafe fn whole_rows_bytes(&self, at: [usize; 3], count: usize) -> (&'a [u8], usize) {
        let place = self.place;
        assert!(place.is_row_packed() && count > 0 && at[0] + count <= place.shape[1]);
        let len = (count - 1) * place.strides[1] + place.row_units() * place.unit_bytes();
        // SAFETY: the coordinates of the first row are checked by `row`, those of the last were just checked; they lie in memory that
        // outlives `'a` by the contract of `Bases::new`; the caller promises that it does not change.
        (unsafe { std::slice::from_raw_parts(self.row(at).first, len) }, place.strides[1])
    }

    /// A row of packed blocks that lies beside `S - 1` others: from its first block to its last, with theirs in between.
    ///
    /// # Safety
    /// Nobody may write these rows while the slice lives.
    #[inline(always)]
    pub(crate) unsafe fn side_row_bytes<const S: usize>(&self, at: [usize; 3]) -> &'a [u8] {
        let (place, block_bytes) = (self.place, self.place.unit_bytes());
        let (blocks, beside) = (place.row_units(), at[0] % S);
        let first = at[0] - beside;
        assert!(place.strides[1] == blocks * block_bytes && first + S <= place.shape[1]);
        let len = spread_bytes(blocks, S, block_bytes);
        // SAFETY: `S` whole rows lie one behind the other from `first` on, and the slice ends before they do; they lie in memory that
        // outlives `'a` by the contract of `Bases::new`; the caller promises that it does not change.
        unsafe { std::slice::from_raw_parts(self.row([first, at[1], at[2]]).first.add(beside * block_bytes), len) }
    }

    /// A row to write.
    ///
    /// # Safety
    /// The row must belong to the chunk that this worker claimed, and the tensor must be one that the step writes.
    #[inline(always)]
    pub(crate) unsafe fn row_mut(&self, at: [usize; 3]) -> RowMut {
        RowMut(self.row(at))
    }

    /// An integer of an index tensor.
    #[inline(always)]
    pub(crate) fn integer(&self, at: [usize; 4]) -> i64 {
        let row = self.row([at[1], at[2], at[3]]);
        assert!(at[0] < row.len && DTypeSet::INDICES.contains(row.dtype));
        let element = row.first.wrapping_add(at[0] * row.step);
        // SAFETY: the coordinates and the dtype were just checked.
        unsafe {
            if row.dtype == DType::I64 {
                i64::from_le_bytes(element.cast::<[u8; 8]>().read())
            } else {
                i64::from(i32::from_le_bytes(element.cast::<[u8; 4]>().read()))
            }
        }
    }
}

/// A row of a bound tensor.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    first: *mut u8,
    /// Bytes from one element (block) to the next.
    step: usize,
    /// Elements.
    len: usize,
    dtype: DType,
}

/// A row that its holder alone writes.
#[derive(Clone, Copy)]
pub(crate) struct RowMut(Row);

impl Row {
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The bytes of packed f16.
    ///
    /// # Safety
    /// Nobody may write the row while the slice lives, and its memory must outlive it.
    #[inline(always)]
    pub(crate) unsafe fn halves<'a>(&self, start: usize, len: usize) -> Option<&'a [u8]> {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: the range was just checked; the rest the caller promises.
        (self.dtype == DType::F16 && self.step == 2)
            .then(|| unsafe { std::slice::from_raw_parts(self.first.add(start * 2), len * 2) })
    }

    /// Every `step`th element from `start` on, for plain dtypes.
    #[inline(always)]
    pub(crate) fn every(&self, start: usize, step: usize) -> Self {
        assert!(start < self.len && step > 0 && !self.dtype.is_block());
        let len = (self.len - start).div_ceil(step);
        // Of one element the step is never taken, and it might overflow.
        let step = if len > 1 { self.step * step } else { self.dtype.block_bytes() as usize };
        Self { first: self.first.wrapping_add(start * self.step), step, len, dtype: self.dtype }
    }

    /// Decodes elements from `start`; for block dtypes, whole blocks.
    #[inline(always)]
    pub(crate) fn load<L: Level>(&self, level: L, start: usize, out: &mut [f32]) {
        assert!(start <= self.len && out.len() <= self.len - start);
        let packed = self.step == self.dtype.block_bytes() as usize;
        match self.dtype {
            DType::F32 if packed => {
                // SAFETY: the range was just checked; `out` is no memory of a tensor.
                unsafe {
                    let from = self.first.add(start * 4);
                    std::ptr::copy_nonoverlapping(from, out.as_mut_ptr().cast::<u8>(), out.len() * 4);
                }
            }
            DType::F32 => self.load_each(start, out, f32::from_le_bytes),
            DType::F16 if packed => {
                // Through a copy: the row may be the one that is written later in this chunk.
                let mut bytes = [0_u8; TILE * 2];
                for (tile, out) in out.chunks_mut(TILE).enumerate() {
                    let bytes = &mut bytes[..out.len() * 2];
                    // SAFETY: the range was just checked; `bytes` is ours.
                    unsafe {
                        let from = self.first.add((start + tile * TILE) * 2);
                        std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
                    }
                    level.decode_f16(bytes, out);
                }
            }
            DType::F16 => self.load_each(start, out, |b| half::f16::from_le_bytes(b).to_f32()),
            DType::Q8_0 if packed => {
                const BLOCK: usize = 32;
                assert!(start.is_multiple_of(BLOCK) && out.len().is_multiple_of(BLOCK));
                let mut bytes = [0_u8; TILE / BLOCK * 34];
                for (tile, out) in out.chunks_mut(TILE).enumerate() {
                    let bytes = &mut bytes[..out.len() / BLOCK * 34];
                    // SAFETY: the range was just checked, blocks lie side by side, and `bytes` is ours.
                    unsafe {
                        let from = self.first.add((start + tile * TILE) / BLOCK * 34);
                        std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
                    }
                    level.decode_q8_0(bytes, out);
                }
            }
            DType::Bf16 => self.load_each(start, out, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
            DType::I8 => self.load_each(start, out, |b| f32::from(i8::from_le_bytes(b))),
            DType::I16 => self.load_each(start, out, |b| f32::from(i16::from_le_bytes(b))),
            DType::I32 => self.load_each(start, out, |b| i32::from_le_bytes(b) as f32),
            DType::I64 => self.load_each(start, out, |b| i64::from_le_bytes(b) as f32),
            DType::Q4_0
            | DType::Q4_1
            | DType::Q5_0
            | DType::Q5_1
            | DType::Q8_0
            | DType::Q2K
            | DType::Q3K
            | DType::Q4K
            | DType::Q5K
            | DType::Q6K
            | DType::Iq4Nl
            | DType::Mxfp4 => self.load_blocks(start, out),
        }
    }

    /// Decodes elements of `N` bytes one by one. The packed loop has a step that the compiler knows.
    #[inline(always)]
    fn load_each<const N: usize>(&self, start: usize, out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
        assert!(self.dtype.block_bytes() == N as u64 && start <= self.len && out.len() <= self.len - start);
        // SAFETY: elements have `N` bytes, and the range was just checked.
        let element = |i: usize, step: usize| unsafe { self.first.add((start + i) * step).cast::<[u8; N]>().read() };
        if self.step == N {
            out.iter_mut().enumerate().for_each(|(i, o)| *o = decode(element(i, N)));
        } else {
            out.iter_mut().enumerate().for_each(|(i, o)| *o = decode(element(i, self.step)));
        }
    }

    fn load_blocks(&self, start: usize, out: &mut [f32]) {
        let row = self.dtype.row();
        let (elements, unit) = (row.block_elements as usize, row.block_bytes as usize);
        assert!(start.is_multiple_of(elements) && out.len().is_multiple_of(elements));
        let mut block = [0_u8; BLOCK_BYTES];
        let block = &mut block[..unit];
        for (i, out) in out.chunks_exact_mut(elements).enumerate() {
            // SAFETY: `load` checked that the blocks lie inside the row; `block` is ours.
            unsafe {
                let from = self.first.add((start / elements + i) * self.step);
                std::ptr::copy_nonoverlapping(from, block.as_mut_ptr(), unit);
            }
            (row.dequantize)(block, out);
        }
    }

    /// Decodes a tile with the row repeated as often as needed.
    #[inline(always)]
    pub(crate) fn load_repeated<L: Level>(&self, level: L, start: usize, out: &mut [f32]) {
        if self.len == 1 {
            let mut one = [0.0];
            self.load(level, 0, &mut one);
            out.fill(one[0]);
            return;
        }
        let mut filled = 0;
        while filled < out.len() {
            let from = (start + filled) % self.len;
            let run = (self.len - from).min(out.len() - filled);
            self.load(level, from, &mut out[filled..filled + run]);
            filled += run;
        }
    }
}

impl RowMut {
    #[inline(always)]
    pub(crate) fn as_row(self) -> Row {
        self.0
    }

    /// Encodes elements from `start`; for block dtypes, whole blocks.
    #[inline(always)]
    pub(crate) fn store<L: Level>(self, level: L, start: usize, x: &[f32]) {
        let row = self.0;
        assert!(start <= row.len && x.len() <= row.len - start);
        let packed = row.step == row.dtype.block_bytes() as usize;
        match row.dtype {
            DType::F32 if packed => {
                // SAFETY: the range was just checked, and the row is ours; `x` is no memory of a tensor.
                unsafe {
                    let to = row.first.add(start * 4);
                    std::ptr::copy_nonoverlapping(x.as_ptr().cast::<u8>(), to, x.len() * 4);
                }
            }
            DType::F32 => self.store_each(start, x, f32::to_le_bytes),
            DType::F16 => {
                let mut bytes = [0_u8; TILE * 2];
                for (tile, x) in x.chunks(TILE).enumerate() {
                    level.encode_f16(x, &mut bytes);
                    for (i, pair) in bytes.as_chunks::<2>().0.iter().take(x.len()).enumerate() {
                        // SAFETY: the range was just checked, and the row is ours.
                        unsafe {
                            let to = row.first.add((start + tile * TILE + i) * row.step);
                            to.cast::<[u8; 2]>().write(*pair);
                        }
                    }
                }
            }
            DType::Bf16 => self.store_each(start, x, |v| half::bf16::from_f32(v).to_le_bytes()),
            DType::I8 => self.store_each(start, x, |v| (v.round() as i8).to_le_bytes()),
            DType::I16 => self.store_each(start, x, |v| (v.round() as i16).to_le_bytes()),
            DType::I32 => self.store_each(start, x, |v| (v.round() as i32).to_le_bytes()),
            DType::I64 => self.store_each(start, x, |v| (v.round() as i64).to_le_bytes()),
            DType::Q4_0
            | DType::Q4_1
            | DType::Q5_0
            | DType::Q5_1
            | DType::Q8_0
            | DType::Q2K
            | DType::Q3K
            | DType::Q4K
            | DType::Q5K
            | DType::Q6K
            | DType::Iq4Nl
            | DType::Mxfp4 => self.store_blocks(start, x),
        }
    }

    /// Encodes elements of `N` bytes one by one.
    #[inline(always)]
    fn store_each<const N: usize>(self, start: usize, x: &[f32], encode: impl Fn(f32) -> [u8; N]) {
        let row = self.0;
        assert!(row.dtype.block_bytes() == N as u64 && start <= row.len && x.len() <= row.len - start);
        let store = |i: usize, step: usize, bytes: [u8; N]| {
            // SAFETY: elements have `N` bytes, the range was just checked, and the row is ours.
            unsafe { row.first.add((start + i) * step).cast::<[u8; N]>().write(bytes) };
        };
        if row.step == N {
            x.iter().enumerate().for_each(|(i, v)| store(i, N, encode(*v)));
        } else {
            x.iter().enumerate().for_each(|(i, v)| store(i, row.step, encode(*v)));
        }
    }

    fn store_blocks(self, start: usize, x: &[f32]) {
        let (row, table) = (self.0, self.0.dtype.row());
        let (elements, unit) = (table.block_elements as usize, table.block_bytes as usize);
        assert!(start.is_multiple_of(elements) && x.len().is_multiple_of(elements));
        let mut block = [0_u8; BLOCK_BYTES];
        let block = &mut block[..unit];
        for (i, x) in x.chunks_exact(elements).enumerate() {
            (table.quantize)(x, block);
            // SAFETY: `store` checked that the blocks lie inside the row, and the row is ours.
            unsafe {
                let to = row.first.add((start / elements + i) * row.step);
                std::ptr::copy_nonoverlapping(block.as_ptr(), to, unit);
            }
        }
    }

    /// Writes one element of an f32 row.
    #[inline(always)]
    pub(crate) fn set(self, index: usize, value: f32) {
        assert!(index < self.0.len && self.0.dtype == DType::F32);
        // SAFETY: the index was just checked, and the row is ours.
        unsafe { self.0.first.add(index * self.0.step).cast::<f32>().write_unaligned(value) };
    }

    /// Writes neighbouring elements of an f32 row.
    #[inline(always)]
    pub(crate) fn set_run(self, start: usize, values: &[f32]) {
        let row = self.0;
        if row.step == 4 {
            assert!(start <= row.len && values.len() <= row.len - start && row.dtype == DType::F32);
            // SAFETY: the range was just checked, and the row is ours; `values` is no memory of a tensor.
            unsafe {
                let to = row.first.add(start * 4);
                std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), to, values.len() * 4);
            }
        } else {
            values.iter().enumerate().for_each(|(i, &value)| self.set(start + i, value));
        }
    }

    /// The same for a number of elements that compilers know: no call for a few bytes.
    #[inline(always)]
    pub(crate) fn set_array<const N: usize>(self, start: usize, values: &[f32; N]) {
        self.set_run(start, values);
    }

    /// Writes one element of an i32 row.
    #[inline(always)]
    pub(crate) fn set_integer(self, index: usize, value: i32) {
        assert!(index < self.0.len && self.0.dtype == DType::I32);
        // SAFETY: the index was just checked, and the element is ours.
        unsafe { self.0.first.add(index * self.0.step).cast::<i32>().write_unaligned(value.to_le()) };
    }

    /// Writes zeros to elements of a plain dtype, all of which have zero as zero bytes.
    #[inline(always)]
    pub(crate) fn fill_zero(self, start: usize, len: usize) {
        let row = self.0;
        assert!(start <= row.len && len <= row.len - start && row.dtype.block_elements() == 1);
        let unit = row.dtype.block_bytes() as usize;
        // SAFETY: the range was just checked, and the row is ours.
        unsafe {
            let to = row.first.add(start * row.step);
            if row.step == unit {
                std::ptr::write_bytes(to, 0, len * unit);
            } else {
                for i in 0..len {
                    std::ptr::write_bytes(to.add(i * row.step), 0, unit);
                }
            }
        }
    }

    /// Copies units (elements or blocks) as bytes, without a look at what they mean. Both rows have one dtype.
    #[inline(always)]
    pub(crate) fn copy_units(self, to: usize, from: &Row, start: usize, units: usize) {
        let unit = self.0.dtype.block_bytes() as usize;
        let elements = self.0.dtype.block_elements() as usize;
        assert!(from.dtype == self.0.dtype);
        assert!(start + units <= from.len / elements && to + units <= self.0.len / elements);
        // SAFETY: both ranges were just checked, and the row is ours. A source that overlaps the target was copied
        // elsewhere when the program was made, unless it is the very same.
        unsafe {
            let (source, target) = (from.first.add(start * from.step), self.0.first.add(to * self.0.step));
            if from.step == unit && self.0.step == unit {
                std::ptr::copy(source, target, units * unit);
            } else {
                match unit {
                    8 => copy_strided::<8>(source, from.step, target, self.0.step, units),
                    4 => copy_strided::<4>(source, from.step, target, self.0.step, units),
                    2 => copy_strided::<2>(source, from.step, target, self.0.step, units),
                    1 => copy_strided::<1>(source, from.step, target, self.0.step, units),
                    _ => {
                        for i in 0..units {
                            std::ptr::copy(source.add(i * from.step), target.add(i * self.0.step), unit);
                        }
                    }
                }
            }
        }
    }
}

/// # Safety
/// Both sides must hold `units` units of `N` bytes at their steps.
#[inline(always)]
unsafe fn copy_strided<const N: usize>(from: *const u8, from_step: usize, to: *mut u8, to_step: usize, units: usize) {
    for i in 0..units {
        // SAFETY: the caller promises the units.
        unsafe { to.add(i * to_step).cast::<[u8; N]>().write(from.add(i * from_step).cast::<[u8; N]>().read()) };
    }
}

/// The packed bytes of rows of a step's own work memory.
///
/// # Safety
/// As for [`Tensor::row_mut`]; and nobody else may read or write the row while the slice lives.
#[inline(always)]
pub(crate) unsafe fn work_row<'a>(tensor: &Tensor<'a>, at: [usize; 3]) -> &'a mut [u8] {
    let len = tensor.place().row_units() * tensor.place().unit_bytes();
    assert!(tensor.place().is_row_packed());
    // SAFETY: `row` checks the coordinates; the caller promises that the bytes are his alone.
    unsafe { std::slice::from_raw_parts_mut(tensor.row(at).first, len) }
}
