//! Writing GGUF files.

use std::io::Write;

use entensor_components::DType;

use super::error::{GgufError, excerpt};
use super::file::GgufFile;
use super::header::{GgufHeader, check_alignment};
use super::tensor::{overflow, size_bytes};
use super::value::{ARRAY_ID, GgufValue, ValueKind, put_string};
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, VERSIONS};

/// What a file will hold: its metadata, and its tensors without their data. [`GgufOutline::start`] begins to write it.
///
/// Entries and tensors keep the order in which they were added.
///
/// ```
/// use entensor_components::DType;
/// use entensor_models::gguf::{GgufHeader, GgufOutline};
///
/// let mut outline = GgufOutline::new();
/// outline.value("general.architecture", "llama");
/// outline.tensor("w", DType::F32, &[2, 2])?;
/// let mut writer = outline.start(Vec::new())?;
/// // A row at a time, or as it comes.
/// writer.write(&[0; 8])?;
/// writer.write(&[1; 8])?;
/// let header = GgufHeader::parse(writer.finish()?)?;
/// assert_eq!(header.tensors.get("w").map(|w| w.size_bytes), Some(16));
/// # Ok::<(), entensor_models::gguf::GgufError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct GgufOutline {
    /// The entries as they lie in the file.
    entries: Vec<u8>,
    entry_count: u64,
    /// None for the format's default.
    alignment: Option<u64>,
    tensors: Vec<PlannedTensor>,
}

#[derive(Clone, Debug)]
struct PlannedTensor {
    name: String,
    dtype: DType,
    shape: Vec<u64>,
    size_bytes: u64,
}

impl GgufOutline {
    /// A file without entries and tensors.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The metadata and the alignment of another file, byte for byte and in its order, but with these values in the place of
    /// its own. Keys that the file does not have come last.
    #[must_use]
    pub fn with_metadata_of(file: &GgufFile, changed: &[(&str, GgufValue)]) -> Self {
        let metadata = file.metadata();
        let mut outline = Self { alignment: Some(file.header().alignment), ..Self::default() };
        let mapping = file.mapping();
        for (key, place) in metadata.places() {
            if let Some((_, value)) = changed.iter().find(|(changed, _)| *changed == key) {
                outline.value(key, value.clone());
                continue;
            }
            // Parsing took the entry from there, and the mapping's length never changes.
            let place = usize::try_from(place.start).ok().zip(usize::try_from(place.end).ok());
            let bytes = place.and_then(|(start, end)| mapping.get(start..end)).unwrap_or_default();
            outline.entries.extend_from_slice(bytes);
            outline.entry_count += 1;
        }
        for (key, value) in changed.iter().filter(|(key, _)| !metadata.contains(key)) {
            outline.value(key, value.clone());
        }
        outline
    }

    /// Adds a metadata entry. The alignment is set with [`alignment`](Self::alignment) and not here.
    pub fn value(&mut self, key: &str, value: impl Into<GgufValue>) {
        put_entry(&mut self.entries, key, &value.into());
        self.entry_count += 1;
    }

    /// Sets the alignment of tensor data and adds the entry that says so.
    pub fn alignment(&mut self, alignment_bytes: u32) {
        self.value(ALIGNMENT_KEY, alignment_bytes);
        self.alignment = Some(alignment_bytes.into());
    }

    /// Adds a tensor; `shape` lists 1 to 4 dimensions, fastest axis first.
    ///
    /// # Errors
    /// A shape that no file can hold.
    pub fn tensor(&mut self, name: impl Into<String>, dtype: DType, shape: &[u64]) -> Result<(), GgufError> {
        let name = name.into();
        let size_bytes = data_bytes(&name, dtype, shape)?;
        self.tensors.push(PlannedTensor { name, dtype, shape: shape.to_vec(), size_bytes });
        Ok(())
    }

    /// Writes the header to `out`. What is written in the end is always a file that [`GgufHeader::parse`] accepts: the header is
    /// parsed before its first byte is written, so that writer and reader share one set of rules.
    ///
    /// # Errors
    /// What a reader would object to, or [`GgufError::Write`].
    pub fn start<W: Write>(self, mut out: W) -> Result<GgufWriter<W>, GgufError> {
        let alignment = self.alignment.unwrap_or(DEFAULT_ALIGNMENT);
        check_alignment(alignment)?;
        let (mut header, data_bytes) = self.header(alignment)?;
        pad(&mut header, alignment);
        GgufHeader::parse_start(&header, (header.len() as u64).saturating_add(data_bytes))?;
        out.write_all(&header).map_err(GgufError::Write)?;
        Ok(GgufWriter { out, alignment, tensors: self.tensors, current: 0, written: 0 })
    }

    /// The header without padding, and the bytes of the data section.
    fn header(&self, alignment: u64) -> Result<(Vec<u8>, u64), GgufError> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSIONS.end().to_le_bytes());
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        out.extend_from_slice(&self.entry_count.to_le_bytes());
        out.extend_from_slice(&self.entries);
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_string(&mut out, &tensor.name);
            out.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
            for extent in &tensor.shape {
                out.extend_from_slice(&extent.to_le_bytes());
            }
            out.extend_from_slice(&tensor.dtype.row().gguf_id.to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
            offset = offset
                .checked_add(tensor.size_bytes)
                .and_then(|end| end.checked_next_multiple_of(alignment))
                .ok_or_else(|| overflow(&tensor.name, "offset", padded(&tensor.shape)))?;
        }
        Ok((out, offset))
    }
}

/// A file whose header is written, and whose tensor data are being written, tensor after tensor.
#[derive(Debug)]
pub struct GgufWriter<W> {
    out: W,
    alignment: u64,
    tensors: Vec<PlannedTensor>,
    /// The tensor whose data come next.
    current: usize,
    /// Bytes of it that are written.
    written: u64,
}

impl<W: Write> GgufWriter<W> {
    /// Appends to the data of the current tensor, the first one that is not complete. Bytes of two tensors are two calls.
    ///
    /// # Errors
    /// [`GgufError::DataSize`] where the tensor has no room for so many bytes, or [`GgufError::Write`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), GgufError> {
        let given = self.written.saturating_add(bytes.len() as u64);
        let Some(tensor) = self.tensors.get(self.current) else {
            return match bytes {
                [] => Ok(()),
                _ => Err(GgufError::DataSize { tensor: String::new(), expected: 0, found: given }),
            };
        };
        if given > tensor.size_bytes {
            return Err(data_size(tensor, given));
        }
        self.out.write_all(bytes).map_err(GgufError::Write)?;
        self.written = given;
        if given == tensor.size_bytes {
            const ZEROS: [u8; 4096] = [0; 4096];
            let mut padding = padding(given, self.alignment);
            while padding > 0 {
                let count = padding.min(ZEROS.len() as u64);
                self.out.write_all(&ZEROS[..count as usize]).map_err(GgufError::Write)?;
                padding -= count;
            }
            (self.current, self.written) = (self.current + 1, 0);
        }
        Ok(())
    }

    /// Ends the file and flushes it.
    ///
    /// # Errors
    /// [`GgufError::DataSize`] where data are missing, or [`GgufError::Write`].
    pub fn finish(mut self) -> Result<W, GgufError> {
        if let Some(tensor) = self.tensors.get(self.current) {
            return Err(data_size(tensor, self.written));
        }
        self.out.flush().map_err(GgufError::Write)?;
        Ok(self.out)
    }
}

/// Builds a GGUF file of the newest version in memory, for small files. [`GgufOutline`] writes large ones.
///
/// Entries and tensors keep the order in which they were added. What [`build`](Self::build) returns is always a file that
/// [`GgufHeader::parse`] accepts.
///
/// ```
/// use entensor_components::DType;
/// use entensor_models::gguf::{GgufBuilder, GgufHeader};
///
/// let bytes = GgufBuilder::new()
///     .value("general.architecture", "llama")
///     .value("llama.block_count", 30u32)
///     .tensor("output_norm.weight", DType::F32, &[2], vec![0; 8])
///     .build()?;
/// let header = GgufHeader::parse(&bytes)?;
/// assert_eq!(header.metadata.get_u64("llama.block_count")?, 30);
/// # Ok::<(), entensor_models::gguf::GgufError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct GgufBuilder {
    entries: Vec<(String, GgufValue)>,
    tensors: Vec<PendingTensor>,
    alignment: Option<u32>,
}

#[derive(Clone, Debug)]
struct PendingTensor {
    name: String,
    dtype: DType,
    shape: Vec<u64>,
    data: Vec<u8>,
}

impl GgufBuilder {
    /// A file without entries and tensors.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata entry. The alignment is set with [`alignment`](Self::alignment) and not here.
    #[must_use]
    pub fn value(mut self, key: impl Into<String>, value: impl Into<GgufValue>) -> Self {
        self.entries.push((key.into(), value.into()));
        self
    }

    /// Sets the alignment of tensor data and adds the entry that says so.
    #[must_use]
    pub fn alignment(mut self, alignment_bytes: u32) -> Self {
        self.alignment = Some(alignment_bytes);
        self
    }

    /// Adds a tensor; `shape` lists 1 to 4 dimensions, fastest axis first, and `data` are the bytes of all its blocks.
    #[must_use]
    pub fn tensor(mut self, name: impl Into<String>, dtype: DType, shape: &[u64], data: Vec<u8>) -> Self {
        self.tensors.push(PendingTensor { name: name.into(), dtype, shape: shape.to_vec(), data });
        self
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// What a reader would object to, or [`GgufError::DataSize`].
    pub fn build(self) -> Result<Vec<u8>, GgufError> {
        let mut outline = GgufOutline::new();
        if let Some(alignment) = self.alignment {
            outline.alignment(alignment);
        }
        for (key, value) in self.entries {
            outline.value(&key, value);
        }
        let mut data = Vec::with_capacity(self.tensors.len());
        for tensor in self.tensors {
            outline.tensor(tensor.name, tensor.dtype, &tensor.shape)?;
            data.push(tensor.data);
        }
        for (tensor, data) in outline.tensors.iter().zip(&data) {
            let found = data.len() as u64;
            if found != tensor.size_bytes {
                return Err(data_size(tensor, found));
            }
        }
        let mut writer = outline.start(Vec::new())?;
        data.iter().try_for_each(|data| writer.write(data))?;
        writer.finish()
    }
}

/// Checked before anything is written, because a wrong length would shift all later tensors.
fn data_bytes(name: &str, dtype: DType, shape: &[u64]) -> Result<u64, GgufError> {
    let n_dims = u32::try_from(shape.len()).unwrap_or(u32::MAX);
    if !(1..=MAX_DIMS).contains(&n_dims) {
        return Err(GgufError::InvalidDims { tensor: excerpt(name), n_dims });
    }
    size_bytes(name, dtype, padded(shape))
}

/// The shape with ones behind it.
fn padded(shape: &[u64]) -> [u64; 4] {
    let mut padded = [1; MAX_DIMS as usize];
    for (extent, &given) in padded.iter_mut().zip(shape) {
        *extent = given;
    }
    padded
}

fn data_size(tensor: &PlannedTensor, found: u64) -> GgufError {
    GgufError::DataSize { tensor: excerpt(&tensor.name), expected: tensor.size_bytes, found }
}

fn put_entry(out: &mut Vec<u8>, key: &str, value: &GgufValue) {
    put_string(out, key);
    match value.kind {
        ValueKind::Scalar(ty) => out.extend_from_slice(&ty.id().to_le_bytes()),
        ValueKind::Array { element, length } => {
            out.extend_from_slice(&ARRAY_ID.to_le_bytes());
            out.extend_from_slice(&element.id().to_le_bytes());
            out.extend_from_slice(&length.to_le_bytes());
        }
    }
    out.extend_from_slice(&value.payload);
}

/// Bytes up to the next multiple of `alignment`, a power of two.
fn padding(length: u64, alignment: u64) -> u64 {
    length.wrapping_neg() & (alignment - 1)
}

fn pad(out: &mut Vec<u8>, alignment: u64) {
    let padding = padding(out.len() as u64, alignment);
    out.resize(out.len() + padding as usize, 0);
}
