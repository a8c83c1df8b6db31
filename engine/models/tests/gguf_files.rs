//! Reading and writing GGUF files: values, tensors, mappings.

use std::sync::Arc;

use entensor_components::{DTYPES, DType};
use entensor_models::gguf::{
    GgufBuilder, GgufError, GgufFile, GgufHeader, GgufOutline, GgufWriter, MappedFile, Number, OptionalKey, ValueRef,
};
use proptest::prelude::*;

#[test]
fn values_of_every_type_come_back() {
    let bytes = GgufBuilder::new()
        .value("u8", u8::MAX)
        .value("i8", i8::MIN)
        .value("u16", u16::MAX)
        .value("i16", i16::MIN)
        .value("u32", u32::MAX)
        .value("i32", i32::MIN)
        .value("u64", u64::MAX)
        .value("i64", i64::MIN)
        .value("f32", 0.1f32)
        .value("f64", 0.1f64)
        .value("bool", true)
        .value("str", "naïve 🙂\0")
        .value("strs", vec!["", "a", "", "bc", ""])
        .value("i16s", vec![-1i16, 2])
        .value("u64s", vec![u64::MAX])
        .value("f32s", vec![0.5f32, -0.0])
        .value("bools", vec![true, false, true])
        .value("none", Vec::<u8>::new())
        .value("no_strs", Vec::<String>::new())
        .build()
        .expect("valid");
    let header = GgufHeader::parse(&bytes).expect("valid");
    let metadata = &header.metadata;
    assert_eq!((header.version, metadata.len(), header.tensors.is_empty()), (3, 19, true));

    for (key, value) in [("u8", 255), ("u16", 65_535), ("u32", u32::MAX)] {
        assert_eq!(metadata.get_u32(key).expect(key), value);
        assert_eq!(metadata.get_u64(key).expect(key), u64::from(value));
    }
    assert_eq!(metadata.get_u64("u64").expect("u64"), u64::MAX);
    for (key, value) in [("i8", -128), ("i16", -32_768), ("i32", i32::MIN.into()), ("i64", i64::MIN)] {
        assert_eq!(metadata.get_i64(key).expect(key), value);
        assert!(
            matches!(metadata.get_u64(key), Err(GgufError::OutOfRange { value: found, .. }) if found == value.into())
        );
    }
    assert!(matches!(metadata.get_u32("u64"), Err(GgufError::OutOfRange { .. })));
    assert_eq!(metadata.get_f32("f32").expect("f32"), 0.1);
    assert_eq!(metadata.get_f32("f64").expect("f64"), 0.1);
    assert!(metadata.get_bool("bool").expect("bool"));
    assert_eq!(metadata.get_str("str").expect("str"), "naïve 🙂\0");

    let strings = metadata.strings("strs").expect("strs");
    assert_eq!(strings.iter().collect::<Vec<_>>(), ["", "a", "", "bc", ""]);
    assert_eq!((strings.get(3), strings.get(5), strings.get(usize::MAX)), (Some("bc"), None, None));
    assert_eq!(metadata.integers("i16s").expect("i16s").collect::<Vec<_>>(), [-1, 2]);
    assert_eq!(metadata.integers("u64s").expect("u64s").collect::<Vec<_>>(), [i128::from(u64::MAX)]);
    assert_eq!(metadata.floats("f32s").expect("f32s").collect::<Vec<_>>(), [0.5, 0.0]);
    let Some(ValueRef::Numbers(bools)) = metadata.get("bools") else { panic!("an array") };
    assert_eq!((bools.get(1), bools.get(3), bools.len()), (Some(Number::Bool(false)), None, 3));
    for (key, length) in [("strs", 5), ("u64s", 1), ("none", 0), ("no_strs", 0)] {
        assert_eq!(metadata.array_len(key).expect(key), length);
    }
    let keys: Vec<&str> = metadata.iter().map(|(key, _)| key).collect();
    assert_eq!((keys[0], keys[11], keys[18]), ("u8", "str", "no_strs"));
}

#[test]
fn getters_say_what_is_missing_or_wrong() {
    let bytes = GgufBuilder::new().value("n", 1u32).value("s", "x").value("l", vec!["x"]).build().expect("valid");
    let metadata = GgufHeader::parse(&bytes).expect("valid").metadata;
    assert!(matches!(metadata.get_u32("m"), Err(GgufError::MissingKey { key }) if key == "m"));
    assert!(metadata.get_u32("m").optional().expect("absent is fine").is_none());
    assert!(metadata.get_u32("s").optional().is_err());
    let wrong = [
        metadata.get_str("n").err(),
        metadata.get_bool("n").err(),
        metadata.get_f32("n").err(),
        metadata.get_u32("s").err(),
        metadata.get_u64("l").err(),
        metadata.array_len("s").err(),
        metadata.strings("n").err(),
        metadata.integers("l").err(),
        metadata.floats("l").err(),
    ];
    for error in wrong {
        assert!(matches!(error, Some(GgufError::WrongType { .. })), "{error:?}");
    }
    let message = metadata.get_u64("l").expect_err("an array").to_string();
    assert_eq!(message, "metadata key \"l\" should be a u64, found an array of 1 string; convert the file again");
}

proptest! {
    /// What is built is what is read.
    #[test]
    fn tensors_come_back(
        shapes in prop::collection::vec((0..DTYPES.len(), 1..4u64, prop::collection::vec(1..4u64, 0..=3), any::<u8>()), 0..6),
        alignment in prop::sample::select(&[8u32, 32, 256][..]),
    ) {
        let mut builder = GgufBuilder::new().alignment(alignment);
        let mut expected = Vec::new();
        for (i, (row, blocks, rest, fill)) in shapes.into_iter().enumerate() {
            let row = &DTYPES[row];
            let shape = [vec![blocks * row.block_elements], rest].concat();
            let size = blocks * row.block_bytes * shape[1..].iter().product::<u64>();
            let data = vec![fill; size as usize];
            builder = builder.tensor(format!("t{i}"), row.dtype, &shape, data.clone());
            expected.push((row.dtype, shape, data));
        }
        let bytes = builder.build().expect("valid");
        let header = GgufHeader::parse(&bytes).expect("valid");
        prop_assert_eq!(header.tensors.len(), expected.len());
        for (i, (tensor, (dtype, shape, data))) in header.tensors.iter().zip(expected).enumerate() {
            prop_assert_eq!(&tensor.name, &format!("t{i}"));
            prop_assert_eq!(header.tensors.get(&tensor.name), Some(tensor));
            prop_assert_eq!((tensor.dtype, tensor.n_dims as usize), (dtype, shape.len()));
            prop_assert_eq!(&tensor.shape[..shape.len()], &shape[..]);
            prop_assert!(tensor.shape[shape.len()..].iter().all(|&extent| extent == 1));
            let range = tensor.byte_range();
            prop_assert_eq!(&bytes[range.start as usize..range.end as usize], &data[..]);
        }
    }
}

#[test]
fn the_builder_refuses_what_the_reader_would() {
    let tensor = |shape: &[u64], bytes| GgufBuilder::new().tensor("t", DType::Q4_1, shape, vec![0; bytes]).build();
    assert!(matches!(tensor(&[32], 19), Err(GgufError::DataSize { expected: 20, found: 19, .. })));
    assert!(matches!(tensor(&[], 0), Err(GgufError::InvalidDims { n_dims: 0, .. })));
    assert!(matches!(tensor(&[1; 5], 0), Err(GgufError::InvalidDims { n_dims: 5, .. })));
    assert!(matches!(tensor(&[31], 20), Err(GgufError::PartialBlock { .. })));
    assert!(matches!(tensor(&[1 << 40, 1 << 40], 0), Err(GgufError::Overflow { .. })));
    for alignment in [0, 3, 1 << 31] {
        let built = GgufBuilder::new().alignment(alignment).tensor("t", DType::F32, &[1], vec![0; 4]).build();
        assert!(matches!(built, Err(GgufError::InvalidAlignment { .. })), "{built:?}");
    }
    assert!(matches!(GgufBuilder::new().value("k", 1u8).value("k", 2u8).build(), Err(GgufError::DuplicateKey { .. })));
    assert!(matches!(GgufBuilder::new().value("", 1u8).build(), Err(GgufError::EmptyKey { .. })));
}

#[test]
fn pieces_make_the_file_that_the_builder_makes() {
    let data: Vec<u8> = (0..200).collect();
    let built = GgufBuilder::new()
        .alignment(64)
        .value("key", "value")
        .tensor("a", DType::F32, &[25, 1], data[..100].to_vec())
        .tensor("b", DType::F32, &[25], data[100..].to_vec());
    let built = built.build().expect("valid");
    let outline = || {
        let mut outline = GgufOutline::new();
        outline.alignment(64);
        outline.value("key", "value");
        outline.tensor("a", DType::F32, &[25, 1]).expect("valid");
        outline.tensor("b", DType::F32, &[25]).expect("valid");
        outline
    };
    for piece in [1, 7, 100] {
        let mut writer = outline().start(Vec::new()).expect("valid");
        for tensor in data.chunks(100) {
            tensor.chunks(piece).for_each(|bytes| writer.write(bytes).expect("there is room"));
        }
        assert!(writer.finish().expect("complete") == built, "{piece}");
    }
    let mut writer = outline().start(Vec::new()).expect("valid");
    writer.write(&data[..60]).expect("there is room");
    let error = writer.write(&data[60..101]).expect_err("one too many");
    assert!(matches!(&error, GgufError::DataSize { tensor, expected: 100, found: 101 } if tensor == "a"), "{error}");
    let error = writer.finish().expect_err("data are missing");
    assert!(matches!(error, GgufError::DataSize { expected: 100, found: 60, .. }), "{error}");
    let mut twice = outline();
    twice.tensor("a", DType::F32, &[1]).expect("valid");
    assert!(matches!(twice.start(Vec::new()), Err(GgufError::DuplicateTensor { .. })));
    let mut nothing = GgufOutline::new().start(Vec::new()).expect("valid");
    assert!(nothing.write(&[]).is_ok() && nothing.write(&[0]).is_err());
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    assert!(matches!(outline().start(Full), Err(GgufError::Write(_))));
}

#[test]
fn metadata_are_copied_byte_for_byte_but_for_what_changes() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("small.gguf");
    let bytes = GgufBuilder::new()
        .alignment(8)
        .value("first", f32::from_bits(0x7fa0_0001))
        .value("changed", "old")
        .value("last", vec!["", "x"])
        .build()
        .expect("valid");
    std::fs::write(&path, &bytes).expect("writable");
    let file = GgufFile::open(&path).expect("valid");
    let same = GgufOutline::with_metadata_of(&file, &[]).start(Vec::new()).and_then(GgufWriter::finish);
    assert!(same.expect("valid") == bytes);
    let changes = [("added", 1_u8.into()), ("changed", "new".into())];
    let changed = GgufOutline::with_metadata_of(&file, &changes).start(Vec::new()).and_then(GgufWriter::finish);
    let changed = GgufHeader::parse(changed.expect("valid")).expect("valid");
    let keys: Vec<&str> = changed.metadata.iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["general.alignment", "first", "changed", "last", "added"]);
    assert_eq!((changed.metadata.get_str("changed").ok(), changed.alignment), (Some("new"), 8));
}

#[test]
fn files_are_mapped_and_outlive_their_header() {
    fn importable<T: AsRef<[u8]> + Send + Sync + 'static>(_: &Arc<T>) {}

    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("small.gguf");
    let bytes = GgufBuilder::new().tensor("t", DType::F32, &[2], vec![7; 8]).build().expect("valid");
    std::fs::write(&path, &bytes).expect("writable");
    let file = GgufFile::open(&path).expect("valid");
    assert_eq!(file.tensor_bytes("t").expect("there"), [7; 8]);
    assert!(matches!(file.tensor_bytes("u"), Err(GgufError::MissingTensor { tensor }) if tensor == "u"));
    let mapping: Arc<MappedFile> = file.mapping();
    importable(&mapping);
    drop(file);
    assert_eq!((mapping.as_ref().as_ref(), mapping.path()), (&bytes[..], path.as_path()));
}

#[test]
fn what_is_no_model_file_is_refused_with_its_path() {
    let directory = tempfile::tempdir().expect("a directory");
    let error = GgufFile::open(directory.path()).expect_err("a directory");
    assert!(matches!(error, GgufError::NotAFile { found: "a directory", .. }), "{error}");
    let missing = GgufFile::open(directory.path().join("none.gguf")).expect_err("missing");
    assert!(matches!(missing, GgufError::Io { .. }) && missing.to_string().contains("none.gguf"), "{missing}");
    let empty = directory.path().join("empty.gguf");
    std::fs::write(&empty, []).expect("writable");
    assert!(matches!(GgufFile::open(&empty), Err(GgufError::EmptyFile { .. })));
    let pointer = directory.path().join("pointer.gguf");
    std::fs::write(&pointer, "version https://git-lfs.github.com/spec/v1\n").expect("writable");
    let error = GgufFile::open(&pointer).expect_err("a pointer");
    assert!(matches!(&error, GgufError::InFile { source, .. } if matches!(**source, GgufError::BadMagic { .. })));
    assert!(error.to_string().contains("git lfs pull") && error.to_string().contains("pointer.gguf"), "{error}");
    #[cfg(unix)]
    assert!(matches!(GgufFile::open("/dev/null"), Err(GgufError::NotAFile { .. })));
}
