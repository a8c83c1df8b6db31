//! Writing GGUF files.

use entensor_components::DType;

use super::error::{GgufError, excerpt};
use super::header::{GgufHeader, check_alignment};
use super::tensor::size_bytes;
use super::value::{ARRAY_ID, GgufValue, ValueKind, put_string};
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, VERSIONS};

/// Builds a GGUF file of the newest version in memory.
///
/// Entries and tensors keep the order in which they were added. What [`build`](Self::build) returns is always a file that
/// [`GgufHeader::parse`] accepts: it parses the file before it hands it out, so that writer and reader share one set of rules.
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

impl PendingTensor {
    /// Checked before anything is written, because a wrong length would shift all later tensors.
    fn check(&self) -> Result<(), GgufError> {
        let n_dims = u32::try_from(self.shape.len()).unwrap_or(u32::MAX);
        if !(1..=MAX_DIMS).contains(&n_dims) {
            return Err(GgufError::InvalidDims { tensor: excerpt(&self.name), n_dims });
        }
        let mut shape = [1; MAX_DIMS as usize];
        for (extent, &given) in shape.iter_mut().zip(&self.shape) {
            *extent = given;
        }
        let expected = size_bytes(&self.name, self.dtype, shape)?;
        let found = self.data.len() as u64;
        if found != expected {
            return Err(GgufError::DataSize { tensor: excerpt(&self.name), expected, found });
        }
        Ok(())
    }
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
        let alignment = self.alignment.map_or(DEFAULT_ALIGNMENT, u64::from);
        check_alignment(alignment)?;
        self.tensors.iter().try_for_each(PendingTensor::check)?;
        let mut out = self.header(alignment);
        pad(&mut out, alignment);
        for tensor in &self.tensors {
            out.extend_from_slice(&tensor.data);
            pad(&mut out, alignment);
        }
        GgufHeader::parse(&out)?;
        Ok(out)
    }

    fn header(&self, alignment: u64) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSIONS.end().to_le_bytes());
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        let entries = self.entries.len() + usize::from(self.alignment.is_some());
        out.extend_from_slice(&(entries as u64).to_le_bytes());
        if let Some(alignment) = self.alignment {
            put_entry(&mut out, ALIGNMENT_KEY, &alignment.into());
        }
        for (key, value) in &self.entries {
            put_entry(&mut out, key, value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_string(&mut out, &tensor.name);
            out.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
            for extent in &tensor.shape {
                out.extend_from_slice(&extent.to_le_bytes());
            }
            out.extend_from_slice(&tensor.dtype.row().gguf_id.to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
            offset += padding(tensor.data.len() as u64, alignment) + tensor.data.len() as u64;
        }
        out
    }
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
