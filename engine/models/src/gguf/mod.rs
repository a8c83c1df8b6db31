//! GGUF model files, version 2 and 3, little-endian.
//!
//! [`GgufFile::open`] maps a file into memory and parses its header; the tensor data stay in the mapping and are never
//! copied here. [`GgufHeader::parse`] is the same parser as a pure function of a byte slice. [`GgufBuilder`] makes small files in
//! memory, [`GgufOutline`] and [`GgufWriter`] write large ones piece by piece.
//!
//! **Cost.** Opening costs one pass over the header (a few milliseconds for a vocabulary of 50 000 tokens) and memory in
//! proportion to it: all strings lie in one arena, an array of strings costs one offset per element. Lookups by key
//! or tensor name are one hash probe.
//!
//! **Trust.** A file may claim anything. Counts and lengths are compared with what the file still holds before anything is
//! reserved, every product and sum is checked, and a header that parsed satisfies:
//!
//! 1. keys and tensor names are unique, not empty, and valid UTF-8;
//! 2. every tensor has 1 to 4 dimensions, none of them zero, a dtype of the dtype table and rows of whole blocks;
//! 3. every tensor's bytes lie inside the file, start at a multiple of the alignment, and overlap no other tensor's.
//!
//! **Not here.** Big-endian files, version 1, nested arrays and files split into several parts are refused with an error.

mod cursor;
mod error;
mod file;
mod header;
mod metadata;
mod tensor;
mod value;
mod writer;

pub(crate) use error::excerpt;
pub use error::{GgufError, OptionalKey};
pub use file::{GgufFile, MappedFile};
pub use header::GgufHeader;
pub use metadata::Metadata;
pub use tensor::{GgufTensor, Tensors};
pub use value::{GgufValue, Number, Numbers, Strings, ValueKind, ValueRef, ValueType};
pub use writer::{GgufBuilder, GgufOutline, GgufWriter};

/// The first four bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// The versions that are read. Files are written in the last one.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;

/// The metadata key that sets the alignment of tensor data.
pub const ALIGNMENT_KEY: &str = "general.alignment";

/// The alignment of tensor data where the file does not set one.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The smallest alignment that a file may set: no element or block scale needs less.
pub const MIN_ALIGNMENT: u64 = 8;

/// The largest alignment that a file may set: a large memory page. More would only serve to blow a file up.
pub const MAX_ALIGNMENT: u64 = 1 << 21;

/// The most dimensions of a tensor.
pub const MAX_DIMS: u32 = 4;

/// Tensor names must be shorter than this, in bytes.
pub const NAME_LIMIT_BYTES: u64 = 64;

/// Metadata keys must be shorter than this, in bytes.
pub const KEY_LIMIT_BYTES: u64 = 1 << 16;
