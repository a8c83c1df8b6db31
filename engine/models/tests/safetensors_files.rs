//! Safetensors files: what is read from them, what is refused, and a graph that computes with them.

use entensor::{DType, Engine, GraphBuilder};
use entensor_models::{
    ModelError,
    safetensors::{HEADER_LIMIT_BYTES, SafetensorsError, SafetensorsFile, SafetensorsHeader, SafetensorsTensor},
};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView, serialize};

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A file made by the crate.
fn file(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|&(name, dtype, shape, data)| (name, TensorView::new(dtype, shape.to_vec(), data).expect("a tensor")));
    let texts = [("format".to_owned(), "test".to_owned())];
    serialize(views, Some(texts.into_iter().collect())).expect("a file")
}

/// A file made by hand, which may be wrong.
fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn open(bytes: &[u8]) -> Result<SafetensorsFile, SafetensorsError> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tensors.safetensors");
    std::fs::write(&path, bytes).expect("writable");
    SafetensorsFile::open(&path)
}

#[test]
fn tensors_are_listed_with_their_axes_turned_around() {
    let half: Vec<u8> = [0x3c00_u16, 0x4000, 0x4200].iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let file = open(&file(&[
        ("matrix", Dtype::F32, &[2, 3], &floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
        ("half", Dtype::F16, &[3], &half),
        ("flags", Dtype::BOOL, &[1, 2, 1], &[1, 0]),
        ("scalar", Dtype::F32, &[], &floats(&[7.0])),
    ]))
    .expect("valid");
    let matrix = file.tensor("matrix").expect("there");
    assert_eq!((matrix.dtype.as_str(), &matrix.shape[..], matrix.size_bytes), ("F32", &[3, 2][..], 24));
    assert_eq!(file.tensor_bytes("matrix").expect("there"), floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    assert_eq!(file.tensor("half").and_then(SafetensorsTensor::graph_dtype).expect("known"), DType::F16);
    assert_eq!(file.tensor("scalar").and_then(SafetensorsTensor::graph_shape).expect("one axis"), [1]);
    assert_eq!(file.tensors().len(), 4);
    assert_eq!(file.metadata(), [("format".to_owned(), "test".to_owned())]);
    assert!(matches!(file.tensor("other"), Err(SafetensorsError::MissingTensor { .. })));
}

#[test]
fn graphs_compute_with_them_in_place_or_copied() {
    // The odd bytes put the matrix where no float may lie; `aligned` makes another file without them.
    let matrix = floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let header = r#"{"odd":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"m":{"dtype":"F32","shape":[2,3],"data_offsets":[1,25]}}"#;
    // Spaces behind the header are part of it.
    let padded = format!("{header}{}", " ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut odd = raw(&padded, 1);
    odd.extend_from_slice(&matrix);
    let aligned = file(&[("m", Dtype::F32, &[2, 3], &matrix)]);
    for (bytes, in_place) in [(aligned, true), (odd, false)] {
        let file = open(&bytes).expect("valid");
        assert_eq!(file.tensor("m").expect("there").offset_bytes.is_multiple_of(4), in_place);
        let mut engine = Engine::builder().backend("cpu:threads=1").build().expect("an engine");
        let buffer = file.bind(&mut engine).expect("imported");
        let weights = buffer.tensor(&mut engine, "m").expect("loads");
        let mut g = GraphBuilder::new("product");
        let w = g.shared(&weights).expect("a tensor");
        let x = g.input("x", DType::F32, &[3]).expect("a shape");
        let y = g.mul_mat(w, x).expect("fits");
        let y = g.output("y", y).expect("a name");
        let graph = engine.add_graph(g);
        engine.write(graph, x, &[1.0_f32, 10.0, 100.0]).expect("fits");
        engine.run(graph).expect("runs");
        let mut result = [0.0_f32; 2];
        engine.read(graph, y, &mut result).expect("fits");
        assert_eq!(result, [321.0, 654.0]);
    }
}

#[test]
fn what_graphs_do_not_have_is_refused_by_name() {
    let file = open(&file(&[
        ("double", Dtype::F64, &[1], &[0; 8]),
        ("flag", Dtype::BOOL, &[1], &[0]),
        ("byte", Dtype::U8, &[1], &[0]),
        ("word", Dtype::U32, &[1], &[0; 4]),
        ("deep", Dtype::F32, &[1, 1, 1, 1, 1], &[0; 4]),
    ]))
    .expect("listed all the same");
    let mut engine = Engine::builder().backend("cpu:threads=1").build().expect("an engine");
    let buffer = file.bind(&mut engine).expect("imported");
    for (name, dtype) in [("double", "F64"), ("flag", "BOOL"), ("byte", "U8"), ("word", "U32")] {
        let error = buffer.tensor(&mut engine, name).expect_err(name);
        let ModelError::Safetensors(SafetensorsError::UnsupportedDType { tensor, found }) = &error else {
            panic!("{error:?}")
        };
        assert_eq!((tensor.as_str(), found.as_str()), (name, dtype));
    }
    let deep = buffer.tensor(&mut engine, "deep").expect_err("five axes");
    assert!(matches!(deep, ModelError::Safetensors(SafetensorsError::TooManyAxes { rank: 5, .. })), "{deep:?}");
}

#[test]
fn damaged_files_are_errors_that_say_what_is_wrong() {
    let tensor = |start: u64, end: u64, shape: &str| {
        format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    };
    let parse = |bytes: &[u8]| SafetensorsHeader::parse(bytes).expect_err("damaged");
    assert!(matches!(parse(&[]), SafetensorsError::Truncated { left: 0, .. }));
    assert!(matches!(parse(&[1; 7]), SafetensorsError::Truncated { .. }));
    let large = (HEADER_LIMIT_BYTES + 1).to_le_bytes();
    assert!(matches!(parse(&large), SafetensorsError::HeaderTooLarge { length } if length == HEADER_LIMIT_BYTES + 1));
    assert!(matches!(parse(&[0xff; 16]), SafetensorsError::HeaderTooLarge { .. }));
    assert!(matches!(parse(&100_u64.to_le_bytes()), SafetensorsError::Truncated { needed: 108, left: 8 }));
    for text in [
        "",
        "[]",
        "{",
        "{\"a\":1}",
        "{\"a\":{}}",
        "{\"\u{1}\":",
        "null",
        "{\"__metadata__\":{\"a\":1}}",
        "{\"__metadata__\":{},\"__metadata__\":{}}",
    ] {
        assert!(matches!(parse(&raw(text, 0)), SafetensorsError::Header { .. }), "{text}");
    }
    let mut no_text = raw("{}", 0);
    no_text[8] = 0xff;
    assert!(matches!(parse(&no_text), SafetensorsError::Header { .. }));

    let two = |a: &str, b: &str, data| parse(&raw(&format!(r#"{{"a":{a},"b":{b}}}"#), data));
    let overlap = two(&tensor(0, 8, "[2]"), &tensor(4, 8, "[1]"), 8);
    assert!(matches!(&overlap, SafetensorsError::Misplaced { tensor } if tensor == "b"), "{overlap:?}");
    let gap = two(&tensor(0, 4, "[1]"), &tensor(8, 12, "[1]"), 12);
    assert!(matches!(gap, SafetensorsError::Misplaced { .. }), "{gap:?}");
    let twice = parse(&raw(&format!(r#"{{"a":{0},"a":{0}}}"#, tensor(0, 4, "[1]")), 4));
    assert!(matches!(&twice, SafetensorsError::DuplicateTensor { tensor } if tensor == "a"), "{twice:?}");
    let one = |text: &str, data| parse(&raw(&format!(r#"{{"a":{text}}}"#), data));
    let beyond = one(&tensor(0, 8, "[2]"), 7);
    assert!(matches!(&beyond, SafetensorsError::BeyondEnd { tensor, .. } if tensor == "a"), "{beyond:?}");
    assert!(matches!(one(&tensor(0, u64::MAX, "[2]"), 8), SafetensorsError::BeyondEnd { end_bytes: u64::MAX, .. }));
    assert!(matches!(one(&tensor(8, 0, "[2]"), 8), SafetensorsError::Misplaced { .. }));
    assert!(matches!(one(&tensor(0, 8, "[3]"), 8), SafetensorsError::Layout { .. }));
    assert!(matches!(one(&tensor(0, 4, "[1]"), 5), SafetensorsError::Layout { .. }), "bytes that belong to no tensor");
    let huge = one(&tensor(0, 8, "[4294967296,4294967296,2]"), 8);
    assert!(matches!(huge, SafetensorsError::Layout { .. }), "{huge:?}");
    assert!(matches!(one(r#"{"dtype":"F99","shape":[1],"data_offsets":[0,4]}"#, 4), SafetensorsError::Header { .. }));
    assert!(matches!(one(&tensor(0, 4, "[-1]"), 4), SafetensorsError::Header { .. }));

    // Ends that add up to more than 64 bits hold.
    let wide = u64::MAX / 8 * 4;
    let many = two(&tensor(0, wide, "[2305843009213693951]"), &tensor(wide, u64::MAX - 7, "[2]"), 8);
    assert!(matches!(many, SafetensorsError::BeyondEnd { .. }), "{many:?}");

    let missing = SafetensorsFile::open("no/such.safetensors").expect_err("missing");
    assert!(matches!(missing, SafetensorsError::Open(_)) && missing.to_string().contains("such.safetensors"));
    let inside = open(&raw("{", 0)).expect_err("damaged");
    assert!(matches!(inside, SafetensorsError::InFile { .. }) && inside.to_string().contains("tensors.safetensors"));
}

#[test]
fn files_that_are_cut_anywhere_are_errors() {
    let whole = file(&[("a", Dtype::F32, &[2], &[0; 8]), ("b", Dtype::F16, &[1, 3], &[0; 6])]);
    assert!(SafetensorsHeader::parse(&whole).is_ok());
    for length in 0..whole.len() {
        let error = SafetensorsHeader::parse(&whole[..length]).expect_err("a part is no file");
        assert!(error.to_string().len() > 20, "{length}: {error}");
    }
}

proptest! {
    #[test]
    fn flipped_bytes_never_panic(at in 0..200_usize, byte: u8) {
        let mut bytes = file(&[("a", Dtype::F32, &[2], &[0; 8]), ("b", Dtype::F16, &[1, 3], &[0; 6])]);
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(header) = SafetensorsHeader::parse(&bytes) {
            for tensor in &header.tensors {
                prop_assert!(tensor.offset_bytes + tensor.size_bytes <= bytes.len() as u64);
            }
        }
    }
}
