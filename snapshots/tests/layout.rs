//! The workspace's shape: which crate may import which, where `unsafe` may stand, and that ARCHITECTURE.md speaks of tests that exist.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Crate folder, and the workspace crates that its ordinary dependencies may name (DESIGN "layout").
const ARROWS: &[(&str, &[&str])] = &[
    ("components", &[]),
    ("systems", &["entensor-components"]),
    ("backends/null", &["entensor-components"]),
    ("backends/oracle", &["entensor-components"]),
    ("backends/cpu", &["entensor-components"]),
    ("backends/sim", &["entensor-components"]),
    ("backends/gemm", &["entensor-components"]),
    (
        "engine",
        &[
            "entensor-components",
            "entensor-systems",
            "entensor-null",
            "entensor-oracle",
            "entensor-cpu",
            "entensor-gemm",
        ],
    ),
    ("engine/models", &["entensor", "entensor-components"]),
    ("engine/cli", &["entensor", "entensor-models"]),
    ("snapshots", &["entensor", "entensor-components", "entensor-systems", "entensor-null", "entensor-oracle"]),
    ("snapshots/conformance", &["entensor-components", "entensor-oracle"]),
    ("benches", &["entensor"]),
    ("benches/llamacpp", &[]),
];

/// Names under `[dependencies]` of a manifest.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut names = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.trim() == "[dependencies]";
        } else if inside && let Some((name, _)) = line.split_once(['=', '.']) {
            names.insert(name.trim().to_owned());
        }
    }
    names
}

#[test]
fn crates_import_only_what_the_layout_allows() {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace manifest");
    let members = workspace.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).expect("members");
    let members: BTreeSet<&str> =
        members.split(',').map(|m| m.trim().trim_matches('"')).filter(|m| !m.is_empty()).collect();
    let listed: BTreeSet<&str> = ARROWS.iter().map(|(folder, _)| *folder).collect();
    assert_eq!(members, listed, "every member has its arrows written here");
    for (folder, allowed) in ARROWS {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("a manifest");
        let found = dependencies(&manifest);
        assert!(!found.is_empty() || *folder == "components", "{folder} was read");
        for name in found.iter().filter(|name| name.starts_with("entensor")) {
            assert!(allowed.contains(&name.as_str()), "{folder} must not import {name}");
        }
    }
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn unsafe_stands_only_in_kernels_the_mapping_and_counting_allocators() {
    let mut files = Vec::new();
    rust_files(&root(), &mut files);
    assert!(files.len() > 80, "the workspace was read");
    let mut found = BTreeSet::new();
    // Spelled in two parts so that this file does not find itself.
    let word = concat!("unsa", "fe");
    for path in files {
        let text = fs::read_to_string(&path).expect("a source file");
        let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
        let uses = code.into_iter().any(|line| {
            [" {", " impl", " fn", " trait", " extern"].iter().any(|rest| line.contains(&format!("{word}{rest}")))
        });
        if uses {
            let path = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
            found.insert(path);
        }
    }
    for path in &found {
        let allowed = path.starts_with("backends/cpu/")
            || path.starts_with("backends/gemm/src/")
            || path == "engine/models/src/gguf/file.rs"
            || path.starts_with("engine/models/tests/")
            || path.starts_with("benches/benches/passes/")
            || path.starts_with("benches/benches/plan_vs_ggml/ggml/")
            || path == "benches/benches/policy_vs_peers/gemm_calls.rs"
            || path == "benches/llamacpp/src/engine.rs"
            || path == "benches/src/limits.rs"
            || path == "snapshots/tests/planning_memory.rs";
        assert!(allowed, "{path} holds code that the compiler does not check");
    }
    assert!(found.contains("engine/models/src/gguf/file.rs"), "the search finds what is there: {found:?}");
}

/// It has several of each function and takes the one that suits the processor, so last bits change from machine to machine.
#[test]
fn strict_backends_ask_the_c_library_for_no_function() {
    let mut files = Vec::new();
    for folder in ["backends/cpu/src", "backends/oracle/src", "components/src/dtype"] {
        rust_files(&root().join(folder), &mut files);
    }
    files.retain(|path| !path.to_string_lossy().contains("tests"));
    assert!(files.len() > 60, "the sources were read");
    let names = [
        "exp", "exp2", "exp_m1", "ln", "ln_1p", "log", "log2", "log10", "powf", "sin", "cos", "sin_cos", "tan", "asin",
        "acos", "atan", "atan2", "sinh", "cosh", "tanh", "cbrt", "hypot",
    ];
    let calls = names.map(|name| [format!(".{name}("), format!("f32::{name}"), format!("f64::{name}")]).concat();
    for path in files {
        let text = fs::read_to_string(&path).expect("a source file");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
        for line in code.lines().map(|line| line.split("//").next().unwrap_or("")) {
            let call = calls.iter().find(|call| line.contains(call.as_str()));
            assert!(call.is_none(), "{}: {call:?} in `{}`", path.display(), line.trim());
        }
    }
}

#[test]
fn architecture_names_tests_that_exist() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the map");
    let mut files = Vec::new();
    rust_files(&root(), &mut files);
    let sources: Vec<String> = files.iter().map(|f| fs::read_to_string(f).expect("a source file")).collect();
    let mut named = 0;
    for line in text.lines().filter(|line| line.contains("Guarded by")) {
        let after = line.split("Guarded by").nth(1).unwrap_or("");
        for name in after.split('`').skip(1).step_by(2) {
            named += 1;
            let exists = sources.iter().any(|s| s.contains(&format!("fn {name}(")));
            assert!(exists, "ARCHITECTURE.md names the test `{name}`, which does not exist");
        }
    }
    assert!(named >= 15, "the invariants have guards");
}
