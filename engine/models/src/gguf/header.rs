//! The header of a GGUF file: everything before the tensor data.

use super::cursor::Cursor;
use super::error::GgufError;
use super::metadata::{LEAST_ENTRY_BYTES, Metadata};
use super::tensor::{LEAST_INFO_BYTES, Tensors};
use super::value::{ValueKind, ValueType};
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_ALIGNMENT, MIN_ALIGNMENT, VERSIONS};

/// The parsed header of a GGUF file. It borrows nothing from the file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GgufHeader {
    /// The version of the format.
    pub version: u32,
    /// The metadata.
    pub metadata: Metadata,
    /// The tensors.
    pub tensors: Tensors,
    /// Tensor data start at multiples of this, counted from `data_offset`.
    pub alignment: u64,
    /// Where the tensor data start in the file. In a file without tensors this may lie beyond its end.
    pub data_offset: u64,
}

impl GgufHeader {
    /// Parses the bytes of a whole file.
    ///
    /// A pure function that looks at the header only; the tensor data count with their length alone.
    ///
    /// # Errors
    /// Any fault of the file; see the [module](super) for what is checked.
    pub fn parse(bytes: impl AsRef<[u8]>) -> Result<Self, GgufError> {
        let bytes = bytes.as_ref();
        Self::parse_start(bytes, bytes.len() as u64)
    }

    /// As [`parse`](Self::parse), for the first bytes of a file of `file_bytes`: at least its header.
    pub(super) fn parse_start(bytes: &[u8], file_bytes: u64) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(bytes);
        let version = read_version(&mut cursor)?;
        let tensor_count = cursor.u64("the number of tensors")?;
        let entry_count = cursor.u64("the number of metadata entries")?;
        cursor.check_count(tensor_count, LEAST_INFO_BYTES, "tensors")?;
        cursor.check_count(entry_count, LEAST_ENTRY_BYTES, "metadata entries")?;

        let metadata = Metadata::read(&mut cursor, entry_count)?;
        let alignment = read_alignment(&metadata)?;
        let mut tensors = Tensors::read(&mut cursor, tensor_count)?;
        let data_offset = cursor.offset().next_multiple_of(alignment);
        tensors.place(data_offset, alignment, file_bytes)?;
        Ok(Self { version, metadata, tensors, alignment, data_offset })
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let found: [u8; 4] = cursor.array("the magic")?;
    if found.iter().eq(MAGIC.iter().rev()) {
        return Err(GgufError::ByteSwapped);
    }
    if found != MAGIC {
        return Err(GgufError::BadMagic { found });
    }
    let version = cursor.u32("the version")?;
    // Writers on big-endian machines keep the magic and swap the rest. Versions are small, so that a version whose low
    // half is empty can only be a swapped one.
    if version != 0 && version.trailing_zeros() >= 16 {
        return Err(GgufError::ByteSwapped);
    }
    if !VERSIONS.contains(&version) {
        return Err(GgufError::UnsupportedVersion { version });
    }
    Ok(version)
}

fn read_alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    match metadata.kind(ALIGNMENT_KEY) {
        None => return Ok(DEFAULT_ALIGNMENT),
        Some(ValueKind::Scalar(ValueType::U32)) => {}
        Some(found) => return Err(GgufError::AlignmentType { found }),
    }
    let alignment = metadata.get_u64(ALIGNMENT_KEY)?;
    check_alignment(alignment)?;
    Ok(alignment)
}

/// Whether tensor data may have this alignment.
pub(super) fn check_alignment(alignment: u64) -> Result<(), GgufError> {
    if !alignment.is_power_of_two() || !(MIN_ALIGNMENT..=MAX_ALIGNMENT).contains(&alignment) {
        return Err(GgufError::InvalidAlignment { alignment });
    }
    Ok(())
}
