//! An output file that appears whole, or not at all.

use std::{
    fs::{self, File},
    io::{self, BufWriter},
    path::{Path, PathBuf},
};

use tempfile::NamedTempFile;

use super::error::QuantizeError;

/// A file in the making: it has a name of its own in the folder of the output until it is whole.
pub(super) struct Output {
    /// What the user called it, for messages.
    path: PathBuf,
    /// Where it goes: behind links, so that they stay links.
    target: PathBuf,
    file: NamedTempFile,
}

impl Output {
    /// Makes the file, unless the output is the input or no file.
    pub(super) fn create(path: &Path, input: &Path) -> Result<Self, QuantizeError> {
        let fail = |source| QuantizeError::Create { path: path.to_owned(), source };
        let target = match fs::metadata(path) {
            Ok(there) => {
                if !there.is_file() {
                    let found = if there.is_dir() { "a directory" } else { "a device, pipe or socket" };
                    return Err(QuantizeError::OutputNotAFile { path: path.to_owned(), found });
                }
                if is_same(&there, path, input).map_err(fail)? {
                    return Err(QuantizeError::SameFile { path: path.to_owned() });
                }
                fs::canonicalize(path).map_err(fail)?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(fail(error)),
        };
        if target.file_name().is_none() {
            return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "it names no file")));
        }
        let folder = match target.parent() {
            Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
            Some(folder) => folder,
            None => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".entensor-").suffix(".part");
        // As any new file: the user's mask decides.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.tempfile_in(folder).map_err(fail)?;
        Ok(Self { path: path.to_owned(), target, file })
    }

    /// Where bytes go.
    pub(super) fn writer(&self) -> BufWriter<&File> {
        BufWriter::with_capacity(1 << 20, self.file.as_file())
    }

    /// Puts the file in its place, after all of it is on the disk.
    pub(super) fn finish(self) -> Result<(), QuantizeError> {
        let Self { path, target, file } = self;
        let fail = |source| QuantizeError::Write { path: path.clone(), source };
        // Who may read the old file may read the new one, and nobody else.
        if let Ok(old) = fs::metadata(&target) {
            file.as_file().set_permissions(old.permissions()).map_err(fail)?;
        }
        file.as_file().sync_all().map_err(fail)?;
        let folder = target.parent().map(Path::to_owned);
        file.persist(&target).map_err(|error| fail(error.error))?;
        // The new name is in the folder; not every file system can be asked to keep it at once, and the file is whole anyway.
        if let Some(folder) = folder.filter(|folder| !folder.as_os_str().is_empty())
            && let Ok(folder) = File::open(folder)
        {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

/// Whether two paths name one file, whatever links lead there.
#[cfg(unix)]
fn is_same(output: &fs::Metadata, _: &Path, input: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let input = fs::metadata(input)?;
    Ok((input.dev(), input.ino()) == (output.dev(), output.ino()))
}

/// Whether two paths name one file, whatever links lead there. Windows does not let a mapped file be replaced through another
/// hard link, so that names suffice.
#[cfg(not(unix))]
fn is_same(_: &fs::Metadata, output: &Path, input: &Path) -> io::Result<bool> {
    Ok(fs::canonicalize(input)? == fs::canonicalize(output)?)
}
