//! The dtype table: one row per element type, block layouts exactly as in GGUF.
//!
//! A row carries everything other code needs to know about a type. Adding a dtype means adding a row here, its
//! codec (of the same name) in [`codec`], and (for speed) a kernel in the backends that want one.

pub mod codec;

use bevy_ecs::prelude::*;

use crate::generation::bump_generation;

/// What the elements of a dtype are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DTypeClass {
    /// One IEEE float per element.
    Float,
    /// One signed integer per element: indices and positions.
    Integer,
    /// Elements are packed in blocks that share scales.
    Block,
}

/// One row of the dtype table.
#[derive(Debug)]
pub struct DTypeRow {
    /// The dtype this row describes.
    pub dtype: DType,
    /// The name in `.graph` text and in messages (ggml's word).
    pub name: &'static str,
    /// The type id of GGUF tensor infos.
    pub gguf_id: u32,
    /// Elements per block; 1 for plain types.
    pub block_elements: u64,
    /// Bytes per block; the size of one element for plain types.
    pub block_bytes: u64,
    /// What the elements are.
    pub class: DTypeClass,
    /// Decodes whole blocks to f32.
    pub dequantize: fn(&[u8], &mut [f32]),
    /// Encodes f32 to whole blocks.
    pub quantize: fn(&[f32], &mut [u8]),
    /// What the type is, for the documentation pages.
    pub doc: &'static str,
}

macro_rules! dtype_table {
    ($($variant:ident = $name:literal, $gguf:literal, $elements:literal, $bytes:literal, $class:ident, $doc:literal;)+) => {
        /// The element type of a tensor.
        ///
        /// Immutable as a component: inserting another value re-plans the graphs that use the tensor.
        #[derive(Component, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[component(immutable, on_insert = bump_generation)]
        pub enum DType {
            $(#[doc = $doc] $variant,)+
        }

        /// Every dtype, in table order.
        pub static DTYPES: &[DTypeRow] = &[$(DTypeRow {
            dtype: DType::$variant,
            name: $name,
            gguf_id: $gguf,
            block_elements: $elements,
            block_bytes: $bytes,
            class: DTypeClass::$class,
            dequantize: <codec::$variant as codec::Codec>::dequantize,
            quantize: <codec::$variant as codec::Codec>::quantize,
            doc: $doc,
        },)+];

        /// The class of every dtype, where constants can read it.
        const CLASSES: &[(DType, DTypeClass)] = &[$((DType::$variant, DTypeClass::$class),)+];
    };
}

dtype_table! {
    F32 = "f32", 0, 1, 4, Float, "IEEE single precision.";
    F16 = "f16", 1, 1, 2, Float, "IEEE half precision.";
    Bf16 = "bf16", 30, 1, 2, Float, "The upper half of an IEEE single: its range with 8 bits of precision.";
    I8 = "i8", 24, 1, 1, Integer, "Signed 8-bit integers.";
    I16 = "i16", 25, 1, 2, Integer, "Signed 16-bit integers.";
    I32 = "i32", 26, 1, 4, Integer, "Signed 32-bit integers: row indices and positions.";
    I64 = "i64", 27, 1, 8, Integer, "Signed 64-bit integers: row indices.";
    Q4_0 = "q4_0", 2, 32, 18, Block, "Blocks of 32: f16 scale `d`, 32 nibbles `q`; value = `d·(q − 8)`. Low nibbles are elements 0–15, high nibbles 16–31.";
    Q4_1 = "q4_1", 3, 32, 20, Block, "Blocks of 32: f16 scale `d`, f16 minimum `m`, 32 nibbles `q`; value = `d·q + m`. Low nibbles are elements 0–15, high nibbles 16–31.";
    Q5_0 = "q5_0", 6, 32, 22, Block, "Blocks of 32: f16 scale `d`, a 32-bit word of fifth bits, 32 nibbles as in `q4_0`; value = `d·(q − 16)`.";
    Q5_1 = "q5_1", 7, 32, 24, Block, "Blocks of 32: f16 scale `d`, f16 minimum `m`, a 32-bit word of fifth bits, 32 nibbles as in `q4_1`; value = `d·q + m`.";
    Q8_0 = "q8_0", 8, 32, 34, Block, "Blocks of 32: f16 scale `d`, 32 signed bytes `q`; value = `d·q`.";
    Q2K = "q2_K", 10, 256, 84, Block, "Blocks of 256: 16 bytes of a 4-bit scale `s` (low) and minimum `m` (high) for each 16 elements, 256 2-bit `q`, f16 `d`, f16 `dmin`; value = `(d·s)·q − dmin·m`.";
    Q3K = "q3_K", 11, 256, 110, Block, "Blocks of 256: 256 third bits, 256 pairs of lower bits, 6-bit scales `s` for each 16 elements, f16 `d`; value = `(d·(s − 32))·(q − 4)`.";
    Q4K = "q4_K", 12, 256, 144, Block, "Blocks of 256: f16 `d`, f16 `dmin`, a 6-bit scale `s` and minimum `m` for each 32 elements in 12 bytes, 256 nibbles `q`; value = `(d·s)·q − dmin·m`.";
    Q5K = "q5_K", 13, 256, 176, Block, "Blocks of 256: as `q4_K`, with 256 fifth bits before the nibbles.";
    Q6K = "q6_K", 14, 256, 210, Block, "Blocks of 256: 256 nibbles, 256 pairs of upper bits, a signed byte of scale `s` for each 16 elements, f16 `d`; value = `(d·s)·(q − 32)`.";
    Iq4Nl = "iq4_nl", 20, 32, 18, Block, "Blocks of 32: f16 scale `d`, 32 nibbles as in `q4_0` that index a fixed table of 16 integers, closer together near zero; value = `d·table[q]`.";
    Mxfp4 = "mxfp4", 39, 32, 17, Block, "Blocks of 32 (OCP Microscaling): exponent byte `e`, 32 nibbles as in `q4_0`, each a float of 1 sign, 2 exponent and 1 fraction bit; value = `2^(e − 127)·q`.";
}

impl DType {
    /// The table row of this dtype.
    #[must_use]
    #[inline]
    pub fn row(self) -> &'static DTypeRow {
        &DTYPES[self as usize]
    }

    /// ggml's name of this dtype, as in `.graph` text.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The dtype with this name, if the table has it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        DTYPES.iter().find(|row| row.name == name).map(|row| row.dtype)
    }

    /// The dtype with this GGUF type id, if the table has it.
    #[must_use]
    pub fn from_gguf_id(id: u32) -> Option<Self> {
        DTYPES.iter().find(|row| row.gguf_id == id).map(|row| row.dtype)
    }

    /// Elements per block; 1 for plain types.
    #[must_use]
    #[inline]
    pub fn block_elements(self) -> u64 {
        self.row().block_elements
    }

    /// Bytes per block; the element size for plain types.
    #[must_use]
    #[inline]
    pub fn block_bytes(self) -> u64 {
        self.row().block_bytes
    }

    /// Whether elements are packed in blocks that share scales.
    #[must_use]
    pub fn is_block(self) -> bool {
        self.row().class == DTypeClass::Block
    }

    /// Whether elements are IEEE floats.
    #[must_use]
    pub fn is_float(self) -> bool {
        self.row().class == DTypeClass::Float
    }

    /// Whether elements are integers.
    #[must_use]
    pub fn is_integer(self) -> bool {
        self.row().class == DTypeClass::Integer
    }

    /// Bytes of a row of `elements`, or `None` if it is no whole number of blocks or overflows.
    #[must_use]
    #[inline]
    pub fn row_bytes(self, elements: u64) -> Option<u64> {
        let row = self.row();
        // Planning asks this of every tensor; a division costs more than the rest.
        if row.block_elements == 1 {
            return elements.checked_mul(row.block_bytes);
        }
        if !elements.is_multiple_of(row.block_elements) {
            return None;
        }
        (elements / row.block_elements).checked_mul(row.block_bytes)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of dtypes, as op rows and backends declare them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DTypeSet(u64);

impl DTypeSet {
    /// No dtype.
    pub const NONE: Self = Self(0);
    /// Every dtype of the table.
    pub const ALL: Self = Self(u64::MAX);
    /// One float an element.
    pub const FLOATS: Self = Self::of_class(DTypeClass::Float);
    /// One integer an element.
    pub const INTEGERS: Self = Self::of_class(DTypeClass::Integer);
    /// Packed in blocks that share scales.
    pub const BLOCKS: Self = Self::of_class(DTypeClass::Block);
    /// Everything that stands for real numbers: floats and blocks.
    pub const REALS: Self = Self::FLOATS.union(Self::BLOCKS);
    /// The integers that name rows.
    pub const INDICES: Self = Self::of(&[DType::I32, DType::I64]);

    /// The set of these dtypes.
    #[must_use]
    pub const fn of(dtypes: &[DType]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < dtypes.len() {
            bits |= 1 << dtypes[i] as u64;
            i += 1;
        }
        Self(bits)
    }

    /// Every dtype of a class.
    const fn of_class(class: DTypeClass) -> Self {
        let mut set = Self::NONE;
        let mut i = 0;
        while i < CLASSES.len() {
            let (dtype, its) = CLASSES[i];
            if its as u8 == class as u8 {
                set = set.with(dtype);
            }
            i += 1;
        }
        set
    }

    /// What is in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set with `dtype` added.
    #[must_use]
    pub const fn with(self, dtype: DType) -> Self {
        Self(self.0 | 1 << dtype as u64)
    }

    /// This set with `dtype` taken out.
    #[must_use]
    pub const fn without(self, dtype: DType) -> Self {
        Self(self.0 & !(1 << dtype as u64))
    }

    /// Whether the set holds `dtype`.
    #[must_use]
    #[inline]
    pub const fn contains(self, dtype: DType) -> bool {
        self.0 & (1 << dtype as u64) != 0
    }

    /// The members, in table order.
    pub fn iter(self) -> impl Iterator<Item = DType> {
        DTYPES.iter().map(|row| row.dtype).filter(move |&dtype| self.contains(dtype))
    }
}

impl std::fmt::Debug for DTypeSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_enum_order_with_unique_names_and_ids() {
        for (i, row) in DTYPES.iter().enumerate() {
            assert_eq!(row.dtype as usize, i);
            assert_eq!(DType::from_name(row.name), Some(row.dtype));
            assert_eq!(DType::from_gguf_id(row.gguf_id), Some(row.dtype));
        }
    }

    #[test]
    fn sets_by_class_hold_each_dtype_once() {
        for row in DTYPES {
            let sets = [DTypeSet::FLOATS, DTypeSet::INTEGERS, DTypeSet::BLOCKS];
            assert_eq!(sets.iter().filter(|set| set.contains(row.dtype)).count(), 1, "{}", row.name);
            assert_eq!(DTypeSet::REALS.contains(row.dtype), !row.dtype.is_integer());
            assert!(DTYPES.len() <= 64, "sets are 64 bits");
        }
        assert!(DTypeSet::INDICES.iter().eq([DType::I32, DType::I64]));
    }

    #[test]
    fn rows_of_no_whole_block_have_no_size() {
        for row in DTYPES.iter().filter(|row| row.dtype.is_block()) {
            for elements in [1, 31, 33, 255, 257] {
                assert_eq!(row.dtype.row_bytes(elements), None);
            }
        }
        assert_eq!(DType::Q4_1.row_bytes(64), Some(40));
        assert_eq!(DType::F32.row_bytes(u64::MAX), None);
    }
}
