//! Safetensors files: lists of named tensors without a model around them, for graphs of one's own.
//!
//! [`SafetensorsFile::open`] maps a file and checks its header; [`SafetensorsFile::bind`] makes the bytes a buffer of an engine, from
//! which [`SafetensorsBuffer::tensor`] gives shared tensors. Shapes are turned around: the format lists the slowest axis first,
//! graphs the fastest.
//!
//! **In place or not.** A tensor whose elements lie at multiples of their size is used where it lies in the mapping, as weights of GGUF
//! files are. The format promises no alignment; other tensors are copied into memory of their own.
//!
//! **Dtypes** are those that graphs know under the same name (`F32`, `F16`, `BF16`, signed integers). Others (`F64`, `BOOL`,
//! unsigned integers, 8-bit floats) are listed, but loading them is an error.
//!
//! **Trust.** As for GGUF files: nothing is believed before it is checked. A header that parsed has unique names, and tensors that lie
//! one behind the other, without gaps, exactly up to the end of the file.

use std::{borrow::BorrowMut, collections::HashSet, fmt, path::Path, sync::Arc};

use ::safetensors::tensor::{Metadata, SafeTensorError, SafeTensors};
use bevy_ecs::prelude::World;
use entensor::{BufferId, DType, Engine, TensorId};
use entensor_components::DTypeClass;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::{
    ModelError,
    gguf::{GgufError, MappedFile, excerpt},
};

/// Longer headers are refused, as the format asks for.
pub const HEADER_LIMIT_BYTES: u64 = 100_000_000;

/// Bytes of the header's length.
const LENGTH_BYTES: u64 = 8;

/// The key of the header that is no tensor.
const METADATA_KEY: &str = "__metadata__";

/// Why a safetensors file could not be opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// The file could not be opened or mapped.
    #[error(transparent)]
    Open(GgufError),
    /// A fault in the contents of a file on disk.
    #[error("model file {path:?}: {source}")]
    InFile {
        /// The path as given.
        path: std::path::PathBuf,
        /// The fault.
        source: Box<SafetensorsError>,
    },
    /// The file ends in the middle of its header.
    #[error(
        "the file ends inside its header: {needed} bytes needed, {left} there; it is damaged or cut short, fetch it again"
    )]
    Truncated {
        /// Bytes of length and header.
        needed: u64,
        /// Bytes of the file.
        left: u64,
    },
    /// A header that is too long to be one.
    #[error(
        "the header claims {length} bytes, more than the {HEADER_LIMIT_BYTES} that are allowed; this is no safetensors file"
    )]
    HeaderTooLarge {
        /// The length that the file claims.
        length: u64,
    },
    /// A header that is no JSON of the right form.
    #[error("the header cannot be read: {reason}; this is no safetensors file, or it is damaged")]
    Header {
        /// What is wrong with it.
        reason: String,
    },
    /// Two tensors with one name.
    #[error("tensor name {tensor:?} occurs twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// A tensor whose data end after the file does.
    #[error(
        "tensor {tensor:?} ends at offset {end_bytes}, but the file has {file_bytes} bytes; it was cut short, fetch it again"
    )]
    BeyondEnd {
        /// The tensor.
        tensor: String,
        /// Where in the file its data would end (saturated).
        end_bytes: u64,
        /// The length of the file.
        file_bytes: u64,
    },
    /// A tensor that overlaps another one, or leaves a gap behind it.
    #[error("the data of tensor {tensor:?} do not begin where those before it end; the header is damaged")]
    Misplaced {
        /// The tensor.
        tensor: String,
    },
    /// Tensors and file do not fit each other in another way.
    #[error("the header is damaged: {reason}")]
    Layout {
        /// In which way.
        reason: String,
    },
    /// A tensor that the file does not have.
    #[error("the file has no tensor {tensor:?}")]
    MissingTensor {
        /// The name.
        tensor: String,
    },
    /// A dtype that graphs do not have.
    #[error("tensor {tensor:?} is {found}, which graphs cannot use; save it as F32 or F16")]
    UnsupportedDType {
        /// The tensor.
        tensor: String,
        /// Its dtype, as the format names it.
        found: String,
    },
    /// More axes than graphs have.
    #[error("tensor {tensor:?} has {rank} axes, but at most 4 are possible; save it in another shape")]
    TooManyAxes {
        /// The tensor.
        tensor: String,
        /// Its number of axes.
        rank: usize,
    },
}

/// A tensor of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SafetensorsTensor {
    /// The name, unique in the file.
    pub name: String,
    /// The dtype, as the format names it.
    pub dtype: String,
    /// Elements per axis, **fastest first**: turned around from the file. Empty for a single value.
    pub shape: Vec<u64>,
    /// Where the data start, counted from the start of the file.
    pub offset_bytes: u64,
    /// Bytes of data.
    pub size_bytes: u64,
}

impl SafetensorsTensor {
    /// The dtype of graphs.
    ///
    /// # Errors
    /// [`SafetensorsError::UnsupportedDType`].
    pub fn graph_dtype(&self) -> Result<DType, SafetensorsError> {
        DType::from_name(&self.dtype.to_ascii_lowercase())
            .filter(|dtype| dtype.row().class != DTypeClass::Block)
            .ok_or_else(|| SafetensorsError::UnsupportedDType {
                tensor: excerpt(&self.name),
                found: self.dtype.clone(),
            })
    }

    /// The axes of graphs, fastest first; a single value has one of one element.
    ///
    /// # Errors
    /// [`SafetensorsError::TooManyAxes`].
    pub fn graph_shape(&self) -> Result<Vec<u64>, SafetensorsError> {
        match self.shape.len() {
            0 => Ok(vec![1]),
            1..=4 => Ok(self.shape.clone()),
            rank => Err(SafetensorsError::TooManyAxes { tensor: excerpt(&self.name), rank }),
        }
    }
}

/// A safetensors file: its tensors, and the mapping that holds their data.
#[derive(Clone, Debug)]
pub struct SafetensorsFile {
    mapping: Arc<MappedFile>,
    header: SafetensorsHeader,
}

/// The header of a safetensors file.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SafetensorsHeader {
    /// The tensors, in the order of their data.
    pub tensors: Vec<SafetensorsTensor>,
    /// Texts about the file, by key.
    pub metadata: Vec<(String, String)>,
}

impl SafetensorsHeader {
    /// Parses the bytes of a whole file. A pure function that looks at the header only; the data count with their length alone.
    ///
    /// # Errors
    /// Any fault of the file; see the [module](self) for what is checked.
    pub fn parse(bytes: &[u8]) -> Result<Self, SafetensorsError> {
        let file_bytes = bytes.len() as u64;
        let Some(length) = bytes.first_chunk().map(|length| u64::from_le_bytes(*length)) else {
            return Err(SafetensorsError::Truncated { needed: LENGTH_BYTES, left: file_bytes });
        };
        if length > HEADER_LIMIT_BYTES {
            return Err(SafetensorsError::HeaderTooLarge { length });
        }
        let data_offset = LENGTH_BYTES + length;
        let text = usize::try_from(data_offset).ok().and_then(|end| bytes.get(LENGTH_BYTES as usize..end));
        let text = text.ok_or(SafetensorsError::Truncated { needed: data_offset, left: file_bytes })?;
        let header = |error: &dyn fmt::Display| SafetensorsError::Header { reason: excerpt(&error.to_string()) };
        let text = std::str::from_utf8(text).map_err(|error| header(&error))?;
        // The crate adds offsets without a check; these are checked, and names with them, before it sees the file.
        let places: Places = serde_json::from_str(text).map_err(|error| header(&error))?;
        let mut names = HashSet::new();
        for (name, end) in &places.0 {
            if !names.insert(name) {
                return Err(SafetensorsError::DuplicateTensor { tensor: excerpt(name) });
            }
            let end_bytes = data_offset.saturating_add(*end);
            if end_bytes > file_bytes {
                return Err(SafetensorsError::BeyondEnd { tensor: excerpt(name), end_bytes, file_bytes });
            }
        }
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(layout_error)?;
        Self::from_metadata(&metadata, data_offset)
    }

    fn from_metadata(metadata: &Metadata, data_offset: u64) -> Result<Self, SafetensorsError> {
        let mut tensors = Vec::new();
        for name in metadata.offset_keys() {
            // The keys are those of the tensors.
            let Some(info) = metadata.info(&name) else { continue };
            let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
            tensors.push(SafetensorsTensor {
                dtype: info.dtype.to_string(),
                shape: info.shape.iter().rev().map(|&extent| extent as u64).collect(),
                offset_bytes: data_offset.saturating_add(start),
                size_bytes: end.saturating_sub(start),
                name,
            });
        }
        let texts = metadata.metadata().iter().flatten();
        let mut metadata: Vec<_> = texts.map(|(key, value)| (key.clone(), value.clone())).collect();
        metadata.sort();
        Ok(Self { tensors, metadata })
    }
}

fn layout_error(error: SafeTensorError) -> SafetensorsError {
    match error {
        SafeTensorError::InvalidOffset(tensor) => SafetensorsError::Misplaced { tensor: excerpt(&tensor) },
        SafeTensorError::InvalidHeaderDeserialization(error) => {
            SafetensorsError::Header { reason: excerpt(&error.to_string()) }
        }
        other => SafetensorsError::Layout { reason: other.to_string() },
    }
}

/// Names of tensors and where they end, one for each entry of the header.
struct Places(Vec<(String, u64)>);

impl<'de> Deserialize<'de> for Places {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        struct Place {
            data_offsets: (u64, u64),
        }
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Places;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Places, A::Error> {
                let (mut places, mut has_metadata) = (Vec::new(), false);
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA_KEY {
                        if std::mem::replace(&mut has_metadata, true) {
                            return Err(A::Error::duplicate_field(METADATA_KEY));
                        }
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let place: Place = map.next_value()?;
                    places.push((name, place.data_offsets.1));
                }
                Ok(Places(places))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl SafetensorsFile {
    /// Maps the file at `path` and parses its header. See [`MappedFile`] for what must not happen to it afterwards.
    ///
    /// # Errors
    /// [`SafetensorsError::Open`], or [`SafetensorsError::InFile`] with the path and the fault.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SafetensorsError> {
        let mapping = Arc::new(MappedFile::open(path).map_err(SafetensorsError::Open)?);
        let header = SafetensorsHeader::parse(&mapping)
            .map_err(|source| SafetensorsError::InFile { path: mapping.path().to_owned(), source: Box::new(source) })?;
        Ok(Self { mapping, header })
    }

    /// The tensors, in the order of their data.
    #[must_use]
    pub fn tensors(&self) -> &[SafetensorsTensor] {
        &self.header.tensors
    }

    /// Texts about the file, by key.
    #[must_use]
    pub fn metadata(&self) -> &[(String, String)] {
        &self.header.metadata
    }

    /// The tensor with this name.
    ///
    /// # Errors
    /// [`SafetensorsError::MissingTensor`].
    pub fn tensor(&self, name: &str) -> Result<&SafetensorsTensor, SafetensorsError> {
        let found = self.header.tensors.iter().find(|tensor| tensor.name == name);
        found.ok_or_else(|| SafetensorsError::MissingTensor { tensor: excerpt(name) })
    }

    /// The bytes of a tensor.
    ///
    /// # Errors
    /// [`SafetensorsError::MissingTensor`].
    pub fn tensor_bytes(&self, name: &str) -> Result<&[u8], SafetensorsError> {
        let tensor = self.tensor(name)?;
        // Parsing proved that the range lies inside the mapping, whose length never changes.
        let start = usize::try_from(tensor.offset_bytes).ok();
        let end = usize::try_from(tensor.offset_bytes.saturating_add(tensor.size_bytes)).ok();
        let bytes = start.zip(end).and_then(|(start, end)| self.mapping.get(start..end));
        bytes.ok_or_else(|| SafetensorsError::MissingTensor { tensor: excerpt(name) })
    }

    /// The mapped file, to be kept by whoever uses its bytes.
    #[must_use]
    pub fn mapping(&self) -> Arc<MappedFile> {
        Arc::clone(&self.mapping)
    }

    /// Makes the file a buffer of an engine, in place.
    ///
    /// # Errors
    /// What the engine reports.
    pub fn bind<W: BorrowMut<World>>(&self, engine: &mut Engine<W>) -> Result<SafetensorsBuffer<'_>, ModelError> {
        let buffer = engine.import_buffer("safetensors", self.mapping())?;
        Ok(SafetensorsBuffer { file: self, buffer })
    }
}

/// A file whose bytes are a buffer of an engine. What is made from it belongs to that engine and stays in it.
#[derive(Debug)]
pub struct SafetensorsBuffer<'a> {
    file: &'a SafetensorsFile,
    buffer: BufferId,
}

impl SafetensorsBuffer<'_> {
    /// A tensor that graphs can share: in place if its elements lie at multiples of their size, else in memory of its own.
    ///
    /// # Errors
    /// A tensor that the file does not have, or of a dtype or rank that graphs do not have; or what the engine reports.
    pub fn tensor<W: BorrowMut<World>>(&self, engine: &mut Engine<W>, name: &str) -> Result<TensorId, ModelError> {
        let tensor = self.file.tensor(name)?;
        let (dtype, shape) = (tensor.graph_dtype()?, tensor.graph_shape()?);
        if tensor.offset_bytes.is_multiple_of(dtype.block_bytes()) {
            return Ok(engine.tensor_in(name, dtype, &shape, self.buffer, tensor.offset_bytes)?);
        }
        let bytes = Arc::<[u8]>::from(self.file.tensor_bytes(name)?);
        let buffer = engine.import_buffer(name, Arc::new(bytes))?;
        Ok(engine.tensor_in(name, dtype, &shape, buffer, 0)?)
    }
}
