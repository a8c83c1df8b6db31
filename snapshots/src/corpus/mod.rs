//! The corpus: `.graph` files with the shapes of real models on real kinds of machines, written by this module. Planned memory
//! is judged on them, and placement questions are tried on them.
//!
//! One file a family. [`files`] gives every text; the files in `corpus/` are compared with it byte for byte.

mod attention;
mod encoder_decoder;
mod experts;
mod llama;
mod policy;
mod random;
mod residual;
mod sheet;
mod unet;

pub use sheet::CorpusError;

/// A file of the corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorpusFile {
    /// Its name, without `.graph`.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// Its text.
    pub text: String,
}

/// Every file of the corpus, in the order of the table in its README.
///
/// # Errors
/// A family whose shapes do not fit the op table, with the node that does not.
pub fn files() -> Result<Vec<CorpusFile>, CorpusError> {
    let mut files = llama::files()?;
    files.extend(experts::files()?);
    files.push(encoder_decoder::file()?);
    files.extend(unet::files()?);
    files.extend(residual::files()?);
    files.extend(policy::files()?);
    files.extend(random::files());
    Ok(files)
}

/// The README of the folder: a table of all files.
#[must_use]
pub fn readme(files: &[CorpusFile]) -> String {
    let mut text = String::from(
        "# The corpus\n\n\
         Graphs with the shapes of real models on real kinds of machines. Planned memory is judged on them, and placement\n\
         questions can be tried on them: `entensor explain snapshots/corpus/NAME.graph`.\n\n\
         All of it is written by `snapshots/src/corpus`; to write it again:\n\n\
         ```sh\n\
         ENTENSOR_WRITE_CORPUS=1 cargo test -p entensor-snapshots --test corpus the_files_are_what_the_generator_writes\n\
         ```\n\n\
         | file | lines | what it is |\n|---|---:|---|\n",
    );
    for file in files {
        text += &format!("| [{0}]({0}.graph) | {1} | {2} |\n", file.name, file.text.lines().count(), file.about);
    }
    text
}
