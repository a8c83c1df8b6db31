//! The corpus: what its files are, and that every one of them is planned, proved and printed the same twice.

mod common;

use std::{collections::BTreeSet, env, fs};

use common::folder;
use entensor_snapshots::corpus::{CorpusFile, files, readme};

/// More than a person reads through.
const MOST_LINES: usize = 1500;

fn corpus() -> Vec<CorpusFile> {
    files().unwrap_or_else(|error| panic!("{error}"))
}

/// The files and the README, as the generator writes them. `ENTENSOR_WRITE_CORPUS=1` writes them.
#[test]
fn the_files_are_what_the_generator_writes() {
    let files = corpus();
    let texts = files.iter().map(|file| (format!("{}.graph", file.name), file.text.clone()));
    let texts: Vec<(String, String)> = texts.chain([("README.md".to_owned(), readme(&files))]).collect();
    if env::var_os("ENTENSOR_WRITE_CORPUS").is_some() {
        for (name, text) in &texts {
            fs::write(folder("corpus").join(name), text).expect("the folder can be written");
        }
    }
    for (name, text) in &texts {
        let found = fs::read_to_string(folder("corpus").join(name)).unwrap_or_default();
        assert!(found == *text, "corpus/{name} differs from the generator; ENTENSOR_WRITE_CORPUS=1 writes it");
        assert!(text.lines().count() <= MOST_LINES, "{name} has {} lines", text.lines().count());
    }
    let expected: BTreeSet<String> = texts.into_iter().map(|(name, _)| name).collect();
    let found = fs::read_dir(folder("corpus")).expect("the corpus is there");
    let found: BTreeSet<String> =
        found.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(found, expected, "remove what no generator writes");
    assert!(files.len() >= 14);
}
