//! GGUF files on disk, mapped into memory.

use std::fs::{self, File, FileType};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use super::error::{GgufError, excerpt};
use super::header::GgufHeader;
use super::metadata::Metadata;
use super::tensor::Tensors;

/// A whole file, mapped read-only.
///
/// It is `Send + Sync + 'static` and gives its bytes as `AsRef<[u8]>`, so that a backend can import an
/// `Arc<MappedFile>` as host memory without a copy. The mapping lives as long as the last `Arc`.
///
/// # Hazard: the file must not change while it is mapped
/// The operating system does not protect a mapping from other processes (or from this one) that write to the file. Data
/// that change may be read in any mixture of old and new, and reading past the end of a file that was shortened kills the
/// process (`SIGBUS`) on Unix. Replace model files by renaming a new file over the old name, never by
/// writing in place: the mapping then keeps the old file. Windows refuses to shorten a mapped file.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
    path: PathBuf,
}

impl MappedFile {
    /// Maps the regular file at `path`.
    ///
    /// # Errors
    /// [`GgufError::Io`], [`GgufError::NotAFile`] or [`GgufError::EmptyFile`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let io = |source| GgufError::Io { path: path.to_owned(), source };
        // Before opening: opening a pipe would wait for a writer, perhaps forever.
        check_kind(path, fs::metadata(path).map_err(io)?.file_type())?;
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        check_kind(path, metadata.file_type())?;
        if metadata.len() == 0 {
            return Err(GgufError::EmptyFile { path: path.to_owned() });
        }
        #[expect(unsafe_code, reason = "mapping a file is the one thing here that the compiler cannot check")]
        // SAFETY: the file is open and not empty, the mapping is read-only, and it is owned by the value whose borrows
        // give access to it. What no code can enforce, that nobody changes the file meanwhile, is the documented duty
        // of whoever opens it.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self { map, path: path.to_owned() })
    }

    /// The path that the file was opened with.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

/// A GGUF file: its header, and the mapping that holds its tensor data.
///
/// Cloning is cheap for the mapping and copies the header; share an `Arc<GgufFile>` instead.
#[derive(Clone, Debug)]
pub struct GgufFile {
    header: GgufHeader,
    mapping: Arc<MappedFile>,
}

impl GgufFile {
    /// Maps the file at `path` and parses its header. See [`MappedFile`] for what must not happen to it afterwards.
    ///
    /// # Errors
    /// As [`MappedFile::open`], or [`GgufError::InFile`] with the path and the fault.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let mapping = Arc::new(MappedFile::open(path)?);
        let header = GgufHeader::parse(&*mapping)
            .map_err(|source| GgufError::InFile { path: mapping.path().to_owned(), source: Box::new(source) })?;
        Ok(Self { header, mapping })
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &GgufHeader {
        &self.header
    }

    /// The metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.header.metadata
    }

    /// The tensors.
    #[must_use]
    pub fn tensors(&self) -> &Tensors {
        &self.header.tensors
    }

    /// The bytes of the tensor with this name.
    ///
    /// # Errors
    /// [`GgufError::MissingTensor`].
    pub fn tensor_bytes(&self, name: &str) -> Result<&[u8], GgufError> {
        let missing = || GgufError::MissingTensor { tensor: excerpt(name) };
        let range = self.tensors().get(name).ok_or_else(missing)?.byte_range();
        // Parsing proved that the range lies inside the mapping, whose length never changes.
        let range = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        range.and_then(|(start, end)| self.mapping.get(start..end)).ok_or_else(missing)
    }

    /// The mapped file, to be kept by whoever uses its bytes.
    #[must_use]
    pub fn mapping(&self) -> Arc<MappedFile> {
        Arc::clone(&self.mapping)
    }
}

fn check_kind(path: &Path, kind: FileType) -> Result<(), GgufError> {
    if kind.is_file() {
        return Ok(());
    }
    let found = if kind.is_dir() { "a directory" } else { "a device, pipe or socket" };
    Err(GgufError::NotAFile { path: path.to_owned(), found })
}
