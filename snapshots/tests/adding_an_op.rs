//! Adding an op stays cheap: the promise of `components/ADDING-AN-OP.md`, counted in the sources.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

const ROW: &str = "components/src/op/table/elementwise.rs";
const ORACLE: &str = "backends/oracle/src/eval/mod.rs";
const CPU: &str = "backends/cpu/src/lower/nodes.rs";
const GEMM: &str = "backends/gemm/src/support.rs";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Lines of code that speak of an op by name or kind, per file.
fn places(op: &str) -> BTreeMap<String, usize> {
    let mut files = Vec::new();
    for folder in ["components", "systems", "backends", "engine", "snapshots", "benches"] {
        sources(&root().join(folder), &mut files);
    }
    assert!(files.len() > 100, "the sources were read");
    let this = Path::new(file!()).file_name().expect("a file");
    let mut places = BTreeMap::new();
    for path in files.iter().filter(|path| path.file_name() != Some(this)) {
        let text = fs::read_to_string(path).expect("a source file");
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let count = lines.filter(|line| line.to_lowercase().contains(op)).count();
        if count > 0 {
            let path = path.strip_prefix(root()).expect("inside the workspace");
            places.insert(path.to_string_lossy().replace('\\', "/"), count);
        }
    }
    places
}

#[test]
fn a_unary_op_is_a_row_and_a_line_per_backend() {
    let expected = [ROW, ORACLE, CPU, GEMM].map(|file| (file.to_owned(), 1)).into();
    assert_eq!(places("softplus"), expected);
}

#[test]
fn the_page_shows_what_the_files_say() {
    let page = fs::read_to_string(root().join("components/ADDING-AN-OP.md")).expect("the page");
    let blocks: Vec<&str> = page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 3);
    for (file, block) in [ROW, ORACLE, CPU].into_iter().zip(blocks) {
        let text = fs::read_to_string(root().join(file)).expect("a source file");
        for line in block.lines() {
            assert!(text.lines().any(|found| found.trim() == line.trim()), "{file} has no line `{line}`");
        }
    }
    // Files and folders that the page names exist.
    for name in page.split('`').filter(|name| name.contains('/') && !name.contains([' ', '\n'])) {
        assert!(root().join(name).exists(), "{name} does not exist");
    }
}
