//! What can be wrong with a GGUF file.

use std::fmt;
use std::path::PathBuf;

use entensor_components::DTYPES;

use super::value::ValueKind;
use super::{ALIGNMENT_KEY, KEY_LIMIT_BYTES, MAX_ALIGNMENT, MAX_DIMS, MIN_ALIGNMENT, NAME_LIMIT_BYTES, VERSIONS};

/// Why a GGUF file could not be opened, parsed, queried or written.
///
/// Keys and names come from the file: messages quote them escaped and shortened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file system refused to open or to read the file.
    #[error("cannot read model file {path:?}: {source}; check that the path is right and that you may read the file")]
    Io {
        /// The path as given.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The path names a directory, a device or a pipe.
    #[error("{path:?} is {found}, not a model file; give the path of a .gguf or .safetensors file")]
    NotAFile {
        /// The path as given.
        path: PathBuf,
        /// What is there instead.
        found: &'static str,
    },
    /// The file has no bytes.
    #[error("model file {path:?} is empty; the download or copy did not finish, fetch it again")]
    EmptyFile {
        /// The path as given.
        path: PathBuf,
    },
    /// A fault in the contents of a file on disk.
    #[error("model file {path:?}: {source}")]
    InFile {
        /// The path as given.
        path: PathBuf,
        /// The fault.
        source: Box<GgufError>,
    },

    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it starts with {}, not \"GGUF\"{}", Quoted(.found), magic_hint(.found))]
    BadMagic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The file was written for a big-endian machine.
    #[error(
        "the file is big-endian (byte-swapped); only little-endian files are read, convert it with the tool that wrote it"
    )]
    ByteSwapped,
    /// A version that is not read.
    #[error("GGUF version {version} is not supported (supported: {} to {}); {}", VERSIONS.start(), VERSIONS.end(), version_hint(*.version))]
    UnsupportedVersion {
        /// The version in the file.
        version: u32,
    },
    /// The file ends in the middle of its header.
    #[error(
        "the file ends inside {reading}: {needed} bytes needed at offset {offset_bytes}, {left} left; the file is damaged or cut short, fetch it again"
    )]
    Truncated {
        /// The part of the header that was being read.
        reading: &'static str,
        /// Where in the file that part starts.
        offset_bytes: u64,
        /// Bytes that it would need (saturated).
        needed: u64,
        /// Bytes that the file still has.
        left: u64,
    },
    /// A count that no file of this length can hold. Negative counts arrive here as huge ones.
    #[error(
        "the file claims {count} {what}, but its {left} remaining bytes can hold at most {most}; the header is damaged"
    )]
    CountTooLarge {
        /// What is counted.
        what: &'static str,
        /// The count in the file.
        count: u64,
        /// The most that the remaining bytes can hold.
        most: u64,
        /// Bytes that the file still has.
        left: u64,
    },
    /// The header does not fit in memory.
    #[error("not enough memory for {bytes} bytes of {what}")]
    OutOfMemory {
        /// What needed the memory.
        what: &'static str,
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// A string that is not UTF-8.
    #[error("{what} at offset {offset_bytes} is not valid UTF-8")]
    InvalidUtf8 {
        /// What the string is.
        what: &'static str,
        /// Where in the file the string starts.
        offset_bytes: u64,
    },

    /// A metadata key of no bytes.
    #[error("metadata entry {index} has an empty key")]
    EmptyKey {
        /// The entry's position in the file.
        index: u64,
    },
    /// A metadata key that is too long.
    #[error("the key of metadata entry {index} has {length} bytes; the limit is {}", KEY_LIMIT_BYTES - 1)]
    KeyTooLong {
        /// The entry's position in the file.
        index: u64,
        /// The key's length in bytes.
        length: u64,
    },
    /// Two metadata entries with one key.
    #[error("metadata key {key:?} occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value type that the format does not define.
    #[error("metadata key {key:?} has the unknown value type {id}; the file is damaged or newer than this reader")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The type's id in the file.
        id: u32,
    },
    /// An array of arrays.
    #[error("metadata key {key:?} is an array of arrays, which is not supported")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata key {key:?} has a boolean with the value {found}; only 0 and 1 are allowed")]
    InvalidBool {
        /// The key.
        key: String,
        /// The byte in the file.
        found: u8,
    },
    /// `general.alignment` is not of type `u32`.
    #[error("{ALIGNMENT_KEY} must be of type u32, found {found}")]
    AlignmentType {
        /// What the file has.
        found: ValueKind,
    },
    /// `general.alignment` has a value that cannot be used.
    #[error("{ALIGNMENT_KEY} is {alignment}; it must be a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}")]
    InvalidAlignment {
        /// The value in the file.
        alignment: u64,
    },

    /// A tensor name of no bytes.
    #[error("tensor {index} has an empty name")]
    EmptyName {
        /// The tensor's position in the file.
        index: u64,
    },
    /// A tensor name that is too long.
    #[error("the name of tensor {index} has {length} bytes; the limit is {}", NAME_LIMIT_BYTES - 1)]
    NameTooLong {
        /// The tensor's position in the file.
        index: u64,
        /// The name's length in bytes.
        length: u64,
    },
    /// Two tensors with one name.
    #[error("tensor name {tensor:?} occurs twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// A number of dimensions that cannot be used.
    #[error("tensor {tensor:?} has {n_dims} dimensions; 1 to {MAX_DIMS} are allowed")]
    InvalidDims {
        /// The tensor.
        tensor: String,
        /// The number of dimensions in the file.
        n_dims: u32,
    },
    /// A dimension of no elements.
    #[error("dimension {axis} of tensor {tensor:?} is zero")]
    ZeroDimension {
        /// The tensor.
        tensor: String,
        /// The axis, fastest first.
        axis: u32,
    },
    /// A dtype that the dtype table does not have.
    #[error(
        "tensor {tensor:?} has the unknown dtype id {id}; known are {KnownDTypes}; convert the file to one of them"
    )]
    UnknownDType {
        /// The tensor.
        tensor: String,
        /// The dtype's id in the file.
        id: u32,
    },
    /// The first dimension is no multiple of the dtype's block.
    #[error("tensor {tensor:?} has rows of {elements} elements, no whole number of {dtype} blocks of {block_elements}")]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Elements per row.
        elements: u64,
        /// The dtype's name.
        dtype: &'static str,
        /// Elements per block.
        block_elements: u64,
    },
    /// A size or an offset that does not fit in 63 bits.
    #[error("the {what} of tensor {tensor:?} with dimensions {shape:?} overflows; the header is damaged")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// The quantity that overflowed.
        what: &'static str,
        /// The tensor's dimensions, padded with ones.
        shape: [u64; 4],
    },
    /// A tensor that does not start at a multiple of the alignment.
    #[error("tensor {tensor:?} starts at offset {offset_bytes} of the data, no multiple of the alignment {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset_bytes: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor whose data end after the file does.
    #[error(
        "tensor {tensor:?} ends at offset {end_bytes}, but the file has {file_bytes} bytes; it was cut short, fetch it again"
    )]
    BeyondEnd {
        /// The tensor.
        tensor: String,
        /// Where in the file its data would end.
        end_bytes: u64,
        /// The length of the file.
        file_bytes: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors {first:?} and {second:?} overlap in the file; the header is damaged")]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts before the first one ends.
        second: String,
    },

    /// A key that the file does not have.
    #[error("the file has no metadata key {key:?}; it is incomplete, or no model of this kind")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key whose value has another type.
    #[error("metadata key {key:?} should be {expected}, found {found}; convert the file again")]
    WrongType {
        /// The key.
        key: String,
        /// What was asked for.
        expected: &'static str,
        /// What the file has.
        found: ValueKind,
    },
    /// An integer that does not fit the type that was asked for.
    #[error("metadata key {key:?} is {value}, which does not fit {expected}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The value in the file.
        value: i128,
        /// What was asked for.
        expected: &'static str,
    },
    /// A tensor that the file does not have.
    #[error("the file has no tensor {tensor:?}")]
    MissingTensor {
        /// The name.
        tensor: String,
    },
    /// The bytes of a file could not be written.
    #[error("the model file cannot be written: {0}")]
    Write(#[source] std::io::Error),
    /// Tensor data whose length does not follow from dtype and shape (when writing).
    #[error("tensor {tensor:?} needs {expected} bytes of data, {found} were given")]
    DataSize {
        /// The tensor.
        tensor: String,
        /// Bytes that dtype and shape ask for.
        expected: u64,
        /// Bytes that were given.
        found: u64,
    },
}

/// Turns the absence of a key into `None` and keeps every other error.
pub trait OptionalKey<T> {
    /// `Ok(None)` where the file does not have the key.
    ///
    /// # Errors
    /// Every error but [`GgufError::MissingKey`].
    fn optional(self) -> Result<Option<T>, GgufError>;
}

impl<T> OptionalKey<T> for Result<T, GgufError> {
    fn optional(self) -> Result<Option<T>, GgufError> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(GgufError::MissingKey { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }
}

/// At most 64 characters of a foreign string, for messages.
pub(crate) fn excerpt(text: &str) -> String {
    const LIMIT: usize = 64;
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Prints the dtypes of the table, so that the message never lags behind it.
struct KnownDTypes;

impl fmt::Display for KnownDTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, row) in DTYPES.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{} ({})", row.name, row.gguf_id)?;
        }
        Ok(())
    }
}

/// Prints bytes as an escaped string.
struct Quoted<'a>(&'a [u8; 4]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// What the first bytes of a wrong file usually mean.
fn magic_hint(found: &[u8; 4]) -> &'static str {
    match found {
        b"vers" => " (this looks like a Git LFS pointer: run `git lfs pull`)",
        b"PK\x03\x04" => " (this is a zip archive, such as a PyTorch checkpoint: convert it to GGUF)",
        b"lmgg" | b"fmgg" | b"tjgg" | b"algg" => " (this is an older format of the same family: convert it to GGUF)",
        b"<!DO" | b"<htm" | b"<HTM" => " (this is a web page: download the file itself)",
        _ => "; give a model in GGUF format",
    }
}

fn version_hint(version: u32) -> &'static str {
    if version > *VERSIONS.end() {
        "the file is newer than this reader, or damaged"
    } else {
        "convert the model again with a current tool"
    }
}
