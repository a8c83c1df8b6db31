//! `quantize` and `compare-logits`, end to end: what is in the files, what stays, what is refused.

mod common;

use std::path::Path;

use common::{Files, Tiny, command, entensor};
use entensor::{
    DType,
    components::{DTYPES, DTypeClass},
};
use entensor_models::gguf::{GgufBuilder, GgufFile};

/// Two files and options.
fn quantize(input: &Path, output: &Path, args: &[&str]) -> common::Ran {
    let output = output.to_str().expect("UTF-8");
    entensor("quantize", input, &[&[output], args].concat())
}

fn weights() -> impl Iterator<Item = &'static str> {
    DTYPES.iter().filter(|row| row.class != DTypeClass::Integer).map(|row| row.name)
}

fn values(seed: usize, count: u64) -> Vec<f32> {
    (0..count as usize).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 2.0).collect()
}

fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.row_bytes(values.len() as u64).expect("whole blocks") as usize];
    (dtype.row().quantize)(values, &mut bytes);
    bytes
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let elements = bytes.len() as u64 / dtype.block_bytes() * dtype.block_elements();
    let mut values = vec![0.0; elements as usize];
    (dtype.row().dequantize)(bytes, &mut values);
    values
}

/// Matrices of rows that all block types, some, or none divide, vectors, and integers.
fn mixed() -> GgufBuilder {
    let tensor = |file: GgufBuilder, name: &str, dtype: DType, dims: &[u64]| {
        let data = encode(dtype, &values(name.len(), dims.iter().product()));
        file.tensor(name, dtype, dims, data)
    };
    let file = GgufBuilder::new()
        .alignment(64)
        .value("general.architecture", "none")
        .value("general.file_type", 9_u8)
        .value("general.name", "naïve \u{1f642}\0")
        .value("numbers", vec![f32::from_bits(0x7fa0_0001), -0.0])
        .value("flags", vec![true, false])
        .value("words", vec!["", "a", "ü"]);
    let file = tensor(file, "z.first", DType::F32, &[512, 3]);
    let file = tensor(file, "norm", DType::F32, &[96]);
    let file = tensor(file, "half_norm", DType::F16, &[512, 1, 1]);
    let file = tensor(file, "a.second", DType::F16, &[256, 2, 3, 2]);
    let file = tensor(file, "narrow", DType::F32, &[96, 4]);
    let file = tensor(file, "odd", DType::F32, &[33, 2]);
    let file = tensor(file, "positions", DType::I32, &[64, 2]);
    tensor(file, "blocks", DType::Q8_0, &[256, 5])
}

/// What is expected of a tensor: the values of the input, encoded anew unless the dtype is the same.
fn check_tensor(input: &GgufFile, output: &GgufFile, name: &str, dtype: DType) {
    let (before, after) = (input.tensors().get(name).expect(name), output.tensors().get(name).expect(name));
    assert_eq!(after.dtype, dtype, "{name}");
    assert_eq!((after.shape, after.n_dims), (before.shape, before.n_dims), "{name}");
    let source = input.tensor_bytes(name).expect(name);
    let expected = match before.dtype == dtype {
        true => source.to_vec(),
        false => encode(dtype, &decode(before.dtype, source)),
    };
    assert!(output.tensor_bytes(name).expect(name) == expected, "{name} as {dtype}");
}

#[test]
fn every_dtype_is_written_with_names_order_shapes_and_metadata_kept() {
    let files = Files::new();
    let path = files.write("in.gguf", mixed().build().expect("valid"));
    let input = GgufFile::open(&path).expect("valid");
    for name in weights() {
        let dtype = DType::from_name(name).expect("of the table");
        let out = files.path().join(format!("{name}.gguf"));
        let ran = quantize(&path, &out, &["--dtype", name]);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?}");
        assert!(ran.stderr.contains("bits per weight"), "{ran:?}");
        let output = GgufFile::open(&out).expect("valid");
        assert_eq!((output.header().version, output.header().alignment), (3, 64));
        let names = |file: &GgufFile| file.tensors().iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&output), names(&input));
        for whole in ["z.first", "a.second", "blocks"] {
            check_tensor(&input, &output, whole, dtype);
        }
        for vector in ["norm", "half_norm"] {
            check_tensor(&input, &output, vector, DType::F32);
        }
        check_tensor(&input, &output, "positions", DType::I32);
        for partial in ["narrow", "odd"] {
            let tensor = output.tensors().get(partial).expect(partial);
            let fits = tensor.shape[0].is_multiple_of(dtype.block_elements());
            assert_eq!(tensor.dtype == dtype, fits, "{partial}");
            check_tensor(&input, &output, partial, tensor.dtype);
            assert_eq!(ran.stderr.contains(&format!("{partial}: rows of")), !fits, "{ran:?}");
        }
        let again = name != "q8_0";
        assert_eq!(ran.stderr.contains("1 tensors were quantized before"), again, "{ran:?}");
        check_metadata(&input, &output);
    }
}

/// All entries byte for byte, but two.
fn check_metadata(input: &GgufFile, output: &GgufFile) {
    let entries = |file: &GgufFile| -> Vec<(String, Vec<u8>)> {
        let mapping = file.mapping();
        let places = file.metadata().places();
        places.map(|(key, place)| (key.into(), mapping[place.start as usize..place.end as usize].to_vec())).collect()
    };
    let (before, after) = (entries(input), entries(output));
    assert_eq!(after.len(), before.len() + 1);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.0, after.0);
        assert!(before.1 == after.1 || before.0 == "general.file_type", "{}", before.0);
    }
    assert_eq!(after.last().map(|entry| entry.0.as_str()), Some("general.quantization_version"));
    assert_eq!(output.metadata().get_u32("general.quantization_version").expect("added"), 2);
}

#[test]
fn file_types_are_those_of_the_format() {
    let files = Files::new();
    let path = files.write("in.gguf", Tiny::default().build());
    for (name, id) in [("f32", 0), ("f16", 1), ("q4_1", 3), ("q8_0", 7)] {
        let out = files.path().join("out.gguf");
        quantize(&path, &out, &["--dtype", name]).ok();
        let output = GgufFile::open(&out).expect("valid");
        assert_eq!(output.metadata().get_u32("general.file_type").expect("added"), id);
    }
}

#[test]
fn quantized_models_run_and_stay_close() {
    let files = Files::new();
    let path = files.write("in.gguf", Tiny::default().build());
    // The same values without activations rounded for the sake of blocks.
    let plain = files.path().join("plain.gguf");
    quantize(&path, &plain, &["--dtype", "f32"]).ok();
    let mut last = f64::INFINITY;
    for (name, most) in [("q4_1", 0.3), ("q8_0", 0.03), ("f16", 0.003), ("f32", 0.0)] {
        let out = files.path().join(format!("{name}.gguf"));
        quantize(&path, &out, &["--dtype", name]).ok();
        entensor("run", &out, &["-p", "the sea", "-n", "4"]).ok();
        let args = [out.to_str().expect("UTF-8"), "-p", "the ship and the sea", "--json"];
        let report = entensor("compare-logits", &plain, &args).json();
        let mean = report["mean_difference"].as_f64().expect("a number");
        assert!(mean <= most && mean <= last, "{name}: {mean}");
        last = mean;
    }
}

#[test]
fn threads_change_no_byte() {
    let files = Files::new();
    let path = files.write("in.gguf", mixed().build().expect("valid"));
    let mut first = None;
    for threads in ["1", "2", "5"] {
        let out = files.path().join("out.gguf");
        quantize(&path, &out, &["--dtype", "q4_1", "--threads", threads]).ok();
        let bytes = std::fs::read(&out).expect("there");
        assert!(first.get_or_insert_with(|| bytes.clone()) == &bytes, "{threads}");
    }
}

#[test]
fn a_rule_for_everything_leaves_a_model_that_runs() {
    let files = Files::new();
    let path = files.write("in.gguf", Tiny::default().build());
    let out = files.path().join("out.gguf");
    quantize(&path, &out, &["--dtype", "q8_0", "--keep", "*=q8_0"]).ok();
    entensor("run", &out, &["-p", "a", "-n", "2"]).ok();
    // What was asked for is in no tensor, so the file does not claim it.
    quantize(&path, &out, &["--dtype", "q5_0", "--keep", "*=keep"]).ok();
    let q5_0 = 8;
    assert_ne!(GgufFile::open(&out).expect("valid").metadata().get_u32("general.file_type").expect("set"), q5_0);
}

#[cfg(unix)]
#[test]
fn a_replaced_file_keeps_its_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let files = Files::new();
    let path = files.write("in.gguf", Tiny::default().build());
    let out = files.write("out.gguf", b"old");
    std::fs::set_permissions(&out, PermissionsExt::from_mode(0o600)).expect("ours");
    quantize(&path, &out, &["--dtype", "f16"]).ok();
    assert_eq!(std::fs::metadata(&out).expect("there").permissions().mode() & 0o777, 0o600);
}

#[test]
fn rules_decide_by_name_and_the_first_counts() {
    let files = Files::new();
    let path = files.write("in.gguf", mixed().build().expect("valid"));
    let input = GgufFile::open(&path).expect("valid");
    let out = files.path().join("out.gguf");
    let rules = ["a.*=keep", "?.*=f16", "norm=f16", "*norm=f16", "positions=f16", "odd=q8_0"];
    let rules = rules.into_iter().flat_map(|rule| ["--keep", rule]);
    let args: Vec<&str> = ["--dtype", "q4_1"].into_iter().chain(rules).collect();
    let ran = quantize(&path, &out, &args);
    assert_eq!(ran.code, 0, "{ran:?}");
    let output = GgufFile::open(&out).expect("valid");
    for (name, dtype) in [
        ("a.second", DType::F16),
        ("z.first", DType::F16),
        ("norm", DType::F16),
        ("half_norm", DType::F32),
        ("narrow", DType::Q4_1),
        ("positions", DType::I32),
        ("odd", DType::F16),
        ("blocks", DType::Q4_1),
    ] {
        check_tensor(&input, &output, name, dtype);
    }
    assert!(ran.stderr.contains("odd: rows of 33 are no whole q8_0 blocks of 32; it is f16 now"), "{ran:?}");
}

#[test]
fn bad_rules_and_dtypes_are_refused_before_anything_is_written() {
    let files = Files::new();
    let path = files.write("in.gguf", mixed().build().expect("valid"));
    let out = files.path().join("out.gguf");
    for (args, words) in [
        (&["--dtype", "q4_1", "--keep", "z.frist=f16"][..], &["z.frist", "inspect"][..]),
        (&["--dtype", "q4_1", "--keep", "z.first"], &["PATTERN=DTYPE"]),
        (&["--dtype", "q4_1", "--keep", "=f16"], &["pattern"]),
        (&["--dtype", "q4_1", "--keep", "z.first=i32"], &["i32", "q8_0", "keep"]),
        (&["--dtype", "q4_1", "--keep", "z.first=q99"], &["q99", "q8_0"]),
        (&["--dtype", "i32"], &["i32", "q8_0"]),
        (&["--dtype", "q99"], &["q99", "q8_0"]),
        (&["--dtype", "q4_1", "--threads", "0"], &["1..=256"]),
        (&[], &["--dtype"]),
    ] {
        let error = quantize(&path, &out, args).failed(2);
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert!(!out.exists());
    }
    assert_alone(&files, &["in.gguf"]);
}

/// These files are in the folder, and no others.
fn assert_alone(files: &Files, expected: &[&str]) {
    let entries = std::fs::read_dir(files.path()).expect("readable");
    let mut names: Vec<_> = entries.map(|entry| entry.expect("readable").file_name()).collect();
    names.sort();
    assert_eq!(names, expected);
}

#[test]
fn failures_leave_the_old_file_and_nothing_else() {
    let files = Files::new();
    let mut data = values(1, 512 * 40);
    data[512 * 39 + 7] = f32::NAN;
    let bad = GgufBuilder::new().tensor("weights", DType::F32, &[512, 40], encode(DType::F32, &data));
    let path = files.write("bad.gguf", bad.build().expect("valid"));
    let out = files.write("out.gguf", "precious");
    let error = quantize(&path, &out, &["--dtype", "q8_0"]).failed(1);
    assert!(error.contains("element 19975 of tensor \"weights\" is NaN"), "{error}");
    assert_eq!(std::fs::read(&out).expect("there"), b"precious");
    assert_alone(&files, &["bad.gguf", "out.gguf"]);
    // What failed for one dtype works for another, and replaces the file.
    quantize(&path, &out, &["--dtype", "f16"]).ok();
    assert!(GgufFile::open(&out).is_ok());
    assert_alone(&files, &["bad.gguf", "out.gguf"]);
}

#[test]
fn truncated_inputs_leave_nothing() {
    let files = Files::new();
    let bytes = Tiny::default().build();
    for length in [0, 3, 24, 1000, bytes.len() / 2, bytes.len() - 65] {
        let path = files.write("cut.gguf", &bytes[..length]);
        let ran = quantize(&path, &files.path().join("out.gguf"), &["--dtype", "f16"]);
        assert!(matches!(ran.code, 1 | 2) && ran.stderr.contains("error: "), "{length}: {ran:?}");
        assert_alone(&files, &["cut.gguf"]);
    }
}

#[test]
fn outputs_that_cannot_be_are_refused() {
    let files = Files::new();
    let path = files.write("in.gguf", Tiny::default().build());
    let before = std::fs::read(&path).expect("there");
    let folder = files.path().to_owned();
    for (output, words) in [
        (path.clone(), "is the input file itself"),
        (folder.join(".").join("in.gguf"), "is the input file itself"),
        (folder.clone(), "is a directory"),
        (folder.join("absent").join("out.gguf"), "check that the folder exists"),
        (folder.join("in.gguf").join("out.gguf"), "check that the folder exists"),
        (folder.join(".."), "is a directory"),
    ] {
        let error = quantize(&path, &output, &["--dtype", "f16"]).failed(2);
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(std::fs::read(&path).expect("there"), before);
    assert_alone(&files, &["in.gguf"]);
}

#[cfg(unix)]
#[test]
fn links_are_followed_to_the_file_that_they_name() {
    let files = Files::new();
    let path = files.write("in.gguf", Tiny::default().build());
    let (soft, hard) = (files.path().join("soft.gguf"), files.path().join("hard.gguf"));
    std::os::unix::fs::symlink(&path, &soft).expect("links can be made");
    std::fs::hard_link(&path, &hard).expect("links can be made");
    for link in [&soft, &hard] {
        let error = quantize(&path, link, &["--dtype", "f16"]).failed(2);
        assert!(error.contains("is the input file itself"), "{error}");
    }
    let error = quantize(&path, Path::new("/dev/null"), &["--dtype", "f16"]).failed(2);
    assert!(error.contains("device"), "{error}");
    // A link to an older output stays a link.
    let old = files.write("old.gguf", "old");
    let link = files.path().join("link.gguf");
    std::os::unix::fs::symlink(&old, &link).expect("links can be made");
    quantize(&path, &link, &["--dtype", "f16"]).ok();
    assert!(link.is_symlink() && GgufFile::open(&old).is_ok());
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&old).expect("there"));
    let plain = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).expect("there"));
    assert_eq!(mode, plain, "as any new file");
    assert_alone(&files, &["hard.gguf", "in.gguf", "link.gguf", "old.gguf", "soft.gguf"]);
}

/// A limit on the size of files stands for a disk that is full: it stops writing in the middle.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_old_file_and_nothing_else() {
    let files = Files::new();
    let path = files.write("in.gguf", Tiny::default().build());
    let out = files.write("out.gguf", "precious");
    let script = "trap '' XFSZ; ulimit -f 32; exec \"$@\"";
    let output = std::process::Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(command().get_program())
        .arg("quantize")
        .args([&path, &out])
        .args(["--dtype", "f32"])
        .output()
        .expect("the shell starts");
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("cannot write") && error.contains("free some space"), "{error}");
    assert_eq!(std::fs::read(&out).expect("there"), b"precious");
    assert_alone(&files, &["in.gguf", "out.gguf"]);
}
