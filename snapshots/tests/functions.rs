//! The table of ggml's backend layer in ARCHITECTURE.md: families, functions, what they became here, and the tests that show it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// What the table must speak of.
const FAMILIES: [&str; 13] = [
    "buffer type",
    "buffer",
    "multi-buffer",
    "backend",
    "async",
    "events",
    "registry",
    "CPU",
    "HBM",
    "scheduler",
    "callback",
    "graph copy",
    "compare",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(folder: &Path, texts: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            sources(&path, texts);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            texts.push(fs::read_to_string(path).expect("a source file"));
        }
    }
}

/// The cells of the table's rows.
fn rows(text: &str) -> Vec<[String; 4]> {
    let section = text.split("## ggml's backend layer, function by function").nth(1).expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let row = |line: &str| {
        let cells: Vec<String> =
            line.trim().trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
        <[String; 4]>::try_from(cells).unwrap_or_else(|cells| panic!("four cells: {cells:?}"))
    };
    section.lines().filter(|line| line.starts_with("| ")).skip(1).map(row).collect()
}

fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Names of functions in a cell: `PREFIX*`: a, b; or a name by itself.
fn functions(cell: &str) -> Vec<String> {
    let mut names = Vec::new();
    for part in cell.split("; ") {
        let name = quoted(part).next().unwrap_or_else(|| panic!("a name: {part}"));
        match name.strip_suffix('*') {
            None => names.push(name.to_owned()),
            Some(prefix) => {
                let rest = part.split("`: ").nth(1).unwrap_or_else(|| panic!("functions of {name}: {part}"));
                names.extend(rest.split(", ").map(|rest| format!("{prefix}{rest}")));
            }
        }
    }
    names
}

/// Whether a word stands in a text, and not as a part of another.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

fn declares(text: &str, name: &str) -> bool {
    ["struct", "enum", "trait", "const", "fn", "type"].iter().any(|kind| has_word(text, &format!("{kind} {name}")))
}

/// Whether something that the table names is there: a type, a function, a method of a type or trait, a command, a backend text.
fn exists(item: &str, sources: &[String]) -> bool {
    if let Some(command) = item.strip_prefix("entensor ") {
        return root().join(format!("engine/cli/src/commands/{command}.rs")).is_file();
    }
    if let Some((backend, flag)) = item.split_once(':').filter(|_| !item.contains("::")) {
        let text = fs::read_to_string(root().join("engine/src/registry/builtin.rs")).expect("the registry");
        return text.contains(&format!("\"{backend}\"")) && text.contains(&format!("\"{flag}\""));
    }
    let Some((of, method)) = item.split_once("::") else {
        return sources.iter().any(|text| declares(text, item));
    };
    let has_type = |text: &String| {
        text.lines().any(|line| {
            let begins = |kind: &str| line.starts_with(kind) || line.starts_with(&format!("pub {kind}"));
            (begins("impl") || begins("trait") || begins("struct") || begins("enum")) && has_word(line, of)
        })
    };
    sources.iter().filter(|text| has_type(text)).any(|text| has_word(text, &format!("fn {method}")))
}

fn is_test(name: &str, sources: &[String]) -> bool {
    let head = format!("fn {name}()");
    sources.iter().any(|text| {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines.iter().enumerate().any(|(at, line)| {
            line.starts_with(&head) && lines[at.saturating_sub(4)..at].iter().any(|line| line.contains("#[test]"))
        })
    })
}

#[test]
fn the_table_of_functions_names_what_exists() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the map");
    let mut all = Vec::new();
    sources(&root(), &mut all);
    let mut families: BTreeMap<String, usize> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for [family, ggml, here, shown] in rows(&text) {
        for function in functions(&ggml) {
            assert!(function.starts_with("ggml_"), "{function} is no function of ggml");
            assert!(seen.insert(function.clone()), "{function} stands in two rows");
            *families.entry(family.clone()).or_default() += 1;
        }
        assert!(quoted(&here).count() > 0, "{family}: nothing became of {ggml}");
        for item in quoted(&here) {
            assert!(exists(item, &all), "{family}: `{item}` does not exist");
        }
        assert!(quoted(&shown).count() > 0, "{family}: nothing shows {here}");
        for test in quoted(&shown) {
            assert!(is_test(test, &all), "{family}: there is no test `{test}`");
        }
    }
    println!("{} functions: {families:?}", seen.len());
    let known: BTreeSet<&str> = families.keys().map(String::as_str).collect();
    assert_eq!(known, BTreeSet::from(FAMILIES), "every family has a row, and no other");
    assert!(seen.len() >= 100, "{} functions", seen.len());
}

/// The test above would notice what is not there.
#[test]
fn what_does_not_exist_is_missed() {
    let mut all = Vec::new();
    sources(&root(), &mut all);
    // Spelled in parts, so that this file does not hold what it looks for.
    for there in ["Backend::fill", "DeviceBuffer", "entensor compare", "cpu:hbm", "Engine::tensor_set"] {
        assert!(exists(there, &all), "{there}");
    }
    let absent = [
        concat!("Backend::fi", "lls").to_owned(),
        concat!("Engine::no_such_", "method").to_owned(),
        concat!("Devices", "Buffer").to_owned(),
        "entensor nonsense".to_owned(),
        "cpu:tape".to_owned(),
        concat!("Readback::tensor_", "set").to_owned(),
    ];
    for absent in absent {
        assert!(!exists(&absent, &all), "{absent}");
    }
    assert!(is_test("what_does_not_exist_is_missed", &all) && !is_test("quoted", &all));
    assert_eq!(functions("`a_*`: b, c; `d`"), ["a_b", "a_c", "d"]);
    assert!(has_word("fn fill(", "fn fill") && !has_word("fn fill_bytes(", "fn fill"));
}
