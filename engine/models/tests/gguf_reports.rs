//! Field reports of malformed GGUF files, each as a test of its whole kind.

mod common;

use common::Raw;
use entensor_components::DType;
use entensor_models::gguf::{GgufBuilder, GgufError, GgufHeader, GgufTensor, ValueKind, ValueRef, ValueType};
use proptest::prelude::*;

const F32: u32 = 0;
const Q4_1: u32 = 3;
const Q8_0: u32 = 8;

/// No error path may need more memory than this, whatever the file claims.
const MEMORY_LIMIT_BYTES: u64 = 64 << 10;

macro_rules! assert_error {
    ($bytes:expr, $pattern:pat $(if $guard:expr)?) => {{
        let found = GgufHeader::parse($bytes).map(|header| header.tensors.len());
        assert!(matches!(&found, Err($pattern) $(if $guard)?), "{found:?}");
        let message = found.expect_err("matched above").to_string();
        assert!(message.len() > 20, "{message}");
    }};
}

/// A small file with every kind of value; its last tensor ends where the file does.
fn sample() -> Vec<u8> {
    GgufBuilder::new()
        .alignment(32)
        .value("a.u8", 7u8)
        .value("a.bool", true)
        .value("a.f32", 1.5f32)
        .value("a.text", "größe")
        .value("a.strings", vec!["one", "", "drei"])
        .value("a.numbers", vec![1i32, -2, 3])
        .value("a.bools", vec![true, false])
        .value("a.i64", -5i64)
        .tensor("first", DType::F32, &[2, 3], vec![1; 24])
        .tensor("second", DType::Q4_1, &[32, 8], vec![2; 160])
        .build()
        .expect("a valid file")
}

/// lc#27203: sizes that wrap around 64 bits.
#[test]
fn report_49_products_of_dimensions_overflow() {
    let max = i64::MAX as u64;
    for dims in
        [&[max, 2][..], &[1 << 32, 1 << 32], &[1 << 62, 4, 1, 1], &[u64::MAX], &[1, 1, 1, 1 << 63], &[1 << 16; 4]]
    {
        for dtype in [F32, Q4_1, Q8_0] {
            let bytes = Raw::new(1, 0).tensor("big", dims, dtype, 0).data(64);
            assert_error!(&bytes, GgufError::Overflow { tensor, .. } if tensor == "big");
        }
    }
    // The elements fit, their bytes do not.
    let bytes = Raw::new(1, 0).tensor("big", &[1 << 62], F32, 0).data(64);
    assert_error!(&bytes, GgufError::Overflow { what: "size", .. });
    // Both fit, the end of the tensor does not.
    for offset in [u64::MAX - 31, 1 << 63, (1 << 63) - 32] {
        let bytes = Raw::new(1, 0).tensor("far", &[64], F32, offset).data(64);
        assert_error!(&bytes, GgufError::Overflow { what: "offset", .. });
    }
}

proptest! {
    /// lc#18674: what is accepted agrees with arithmetic in 128 bits, for sizes and for offsets.
    #[test]
    fn report_50_sizes_and_ends_agree_with_u128(
        dims in prop::collection::vec(prop_oneof![8 => 1..9u64, 1 => any::<u64>(), 1 => (0..64u32).prop_map(|bits| 1 << bits)], 1..=4),
        offset in prop_oneof![4 => (0..40u64).prop_map(|n| n * 32), 1 => any::<u64>().prop_map(|n| n & !31), 1 => any::<u64>()],
    ) {
        let bytes = Raw::new(1, 0).tensor("t", &dims, F32, offset).data(2048);
        let (file, data) = (bytes.len() as u128, bytes.len() as u128 - 2048);
        let size = dims.iter().fold(4u128, |product, &extent| product.saturating_mul(extent.into()));
        let end = data + u128::from(offset) + size.min(u128::MAX / 2);
        let found = GgufHeader::parse(&bytes);
        let fits = !dims.contains(&0) && offset % 32 == 0 && end <= file;
        prop_assert_eq!(found.is_ok(), fits, "{:?}", found);
        match found {
            Ok(header) => {
                let tensor = header.tensors.get("t").expect("the only tensor");
                prop_assert_eq!(u128::from(tensor.size_bytes), size);
                prop_assert_eq!(u128::from(tensor.byte_range().end), end);
            }
            Err(GgufError::Overflow { .. }) => prop_assert!(end > i64::MAX as u128),
            Err(GgufError::BeyondEnd { end_bytes, .. }) => prop_assert_eq!(u128::from(end_bytes), end),
            Err(GgufError::Misaligned { .. }) => prop_assert!(offset % 32 != 0),
            Err(GgufError::ZeroDimension { .. }) => prop_assert!(dims.contains(&0)),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}

/// gguf-tools#25: numbers of dimensions, with and without the bytes for them.
#[test]
fn report_51_numbers_of_dimensions() {
    for n_dims in [0, 5, 9, 255, 1 << 31, u32::MAX] {
        let raw = Raw::new(1, 0).string("t").u32(n_dims);
        let bytes = (0..16).fold(raw, |raw, _| raw.u64(1)).data(64);
        assert_error!(&bytes, GgufError::InvalidDims { n_dims: found, .. } if *found == n_dims);
    }
    for n_dims in 1..=4 {
        let bytes = Raw::new(1, 0).tensor("t", &[2, 2, 2, 2][..n_dims], F32, 0).data(64);
        let header = GgufHeader::parse(&bytes).expect("up to four dimensions");
        let tensor = header.tensors.get("t").expect("the only tensor");
        assert_eq!((tensor.n_dims as usize, tensor.elements()), (n_dims, 1 << n_dims));
    }
}

/// lc#24884: names and keys that are empty, long or there twice; dimensions of nothing.
#[test]
fn report_52_names_keys_and_zero_dimensions() {
    assert_error!(&Raw::new(0, 1).string("").u32(4).u32(1).data(64), GgufError::EmptyKey { index: 0 });
    let twice = Raw::new(0, 2).string("k").u32(4).u32(1).string("k").u32(0).bytes(&[1]).data(64);
    assert_error!(&twice, GgufError::DuplicateKey { key } if key == "k");
    let long = "k".repeat(1 << 16);
    assert_error!(&Raw::new(0, 1).string(&long).u32(4).u32(1).data(64), GgufError::KeyTooLong { length: 65536, .. });

    for axis in 0..4 {
        let mut dims = [32, 2, 2, 2];
        dims[axis] = 0;
        for dtype in [F32, Q4_1, Q8_0] {
            let bytes = Raw::new(1, 0).tensor("t", &dims, dtype, 0).data(2048);
            assert_error!(&bytes, GgufError::ZeroDimension { axis: found, .. } if *found as usize == axis);
        }
    }
    assert_error!(&Raw::new(1, 0).tensor("", &[1], F32, 0).data(64), GgufError::EmptyName { index: 0 });
    let twice = Raw::new(2, 0).tensor("t", &[1], F32, 0).tensor("t", &[1], F32, 32).data(64);
    assert_error!(&twice, GgufError::DuplicateTensor { tensor } if tensor == "t");
    for length in [64, 65, 1000] {
        let bytes = Raw::new(1, 0).tensor(&"n".repeat(length), &[1], F32, 0).data(64);
        assert_error!(&bytes, GgufError::NameTooLong { length: found, .. } if *found as usize == length);
    }
    let longest = Raw::new(1, 0).tensor(&"n".repeat(63), &[1], F32, 0).data(64);
    GgufHeader::parse(&longest).expect("63 bytes are allowed");
}

/// gg#1516: a small file that claims gigabytes, in every place where there is something to claim.
#[test]
fn report_53_small_files_do_not_reserve_what_they_claim() {
    for claim in [1u64 << 20, 1 << 31, 1 << 33, 1 << 40, 1 << 60, i64::MAX as u64, u64::MAX] {
        let mut files = vec![
            Raw::new(claim, 0),
            Raw::new(0, claim),
            Raw::new(0, 1).u64(claim),
            Raw::new(1, 0).u64(claim),
            Raw::new(0, 1).string("k").u32(8).u64(claim),
        ];
        for element in (0..=12).filter(|&element| element != 9) {
            files.push(Raw::new(0, 1).string("k").u32(9).u32(element).u64(claim));
        }
        // One honest string, then a length that is not.
        files.push(Raw::new(0, 1).string("k").u32(9).u32(8).u64(2).string("a").u64(claim));
        for mut file in files {
            file.0.resize(160, 1);
            let mut found = None;
            let memory = allocation_counter::measure(|| found = Some(GgufHeader::parse(&file.0)));
            assert!(matches!(found, Some(Err(_))), "{found:?}");
            assert!(memory.bytes_max < MEMORY_LIMIT_BYTES, "{memory:?}");
        }
    }
}

/// lc#26318: alignments that are no power of two, too large, or of another type.
#[test]
fn report_54_alignments() {
    let file = |ty: u32, value: &[u8]| Raw::new(0, 1).string("general.alignment").u32(ty).bytes(value).data(64);
    for alignment in [0, 1, 2, 3, 4, 7, 24, 33, 1 << 22, 1 << 31, u32::MAX] {
        let found = u64::from(alignment);
        assert_error!(&file(4, &alignment.to_le_bytes()), GgufError::InvalidAlignment { alignment } if *alignment == found);
    }
    for ty in [0, 1, 2, 3, 5, 6, 7, 10, 11, 12] {
        let found = ValueType::from_id(ty).expect("a type");
        let value = &32u64.to_le_bytes()[..found.size_bytes() as usize];
        let value = if ty == 7 { &[1][..] } else { value };
        assert_error!(&file(ty, value), GgufError::AlignmentType { found: kind } if *kind == ValueKind::Scalar(found));
    }
    assert_error!(
        &Raw::new(0, 1).string("general.alignment").u32(8).string("32").data(64),
        GgufError::AlignmentType { .. }
    );
    for alignment in [8u32, 16, 32, 64, 4096, 1 << 21] {
        let bytes = GgufBuilder::new().alignment(alignment).tensor("t", DType::F32, &[1], vec![0; 4]).build();
        let header = GgufHeader::parse(bytes.expect("valid")).expect("valid");
        assert_eq!(header.alignment, u64::from(alignment));
        assert!(header.tensors.iter().all(|tensor| tensor.offset_bytes % u64::from(alignment) == 0));
    }
    let bytes = Raw::new(1, 0).tensor("t", &[1], F32, 8).data(64);
    assert_error!(&bytes, GgufError::Misaligned { alignment: 32, .. });
}

/// Magic, version, byte order and counts that are no GGUF file's.
#[test]
fn report_55_headers_of_other_files() {
    let file = |magic: &[u8; 4], version: u32| Raw(magic.to_vec()).u32(version).u64(0).u64(0).data(64);
    for magic in [b"GGML", b"vers", b"PK\x03\x04", b"\0\0\0\0", b"gguf", b"GGUE"] {
        assert_error!(&file(magic, 3), GgufError::BadMagic { found } if found == magic);
    }
    for version in [0, 1, 4, 100, u32::MAX] {
        assert_error!(&file(b"GGUF", version), GgufError::UnsupportedVersion { version: found } if *found == version);
    }
    for version in [1u32, 2, 3, 4, 300] {
        assert_error!(&file(b"GGUF", version.swap_bytes()), GgufError::ByteSwapped);
    }
    assert_error!(&file(b"FUGG", 3u32.swap_bytes()), GgufError::ByteSwapped);
    for version in [2, 3] {
        assert_eq!(GgufHeader::parse(file(b"GGUF", version)).expect("supported").version, version);
    }
    for count in [u64::MAX, i64::MIN as u64, 1 << 32] {
        assert_error!(&Raw::new(count, 0).data(64), GgufError::CountTooLarge { what: "tensors", .. });
        assert_error!(&Raw::new(0, count).data(64), GgufError::CountTooLarge { what: "metadata entries", .. });
    }
}

/// A valid file cut short anywhere is an error, and says so.
#[test]
fn report_55_truncated_at_every_byte() {
    let bytes = sample();
    let header = GgufHeader::parse(&bytes).expect("valid");
    for length in 0..bytes.len() {
        let found = GgufHeader::parse(&bytes[..length]).map(|header| header.tensors.len());
        let cut = matches!(
            found,
            Err(GgufError::Truncated { .. } | GgufError::CountTooLarge { .. } | GgufError::BeyondEnd { .. })
        );
        assert!(cut, "{length}: {found:?}");
        assert!(length < header.data_offset as usize || matches!(found, Err(GgufError::BeyondEnd { .. })));
    }
}

/// Reads everything that a header offers, and checks what it promises.
fn read_all(header: &GgufHeader, file_bytes: u64) {
    for (key, value) in header.metadata.iter() {
        assert!(!key.is_empty() && header.metadata.contains(key));
        match value {
            ValueRef::Strings(strings) => assert_eq!(strings.iter().count(), strings.len()),
            ValueRef::Numbers(numbers) => assert_eq!(numbers.iter().count(), numbers.len()),
            ValueRef::Number(_) | ValueRef::Str(_) => {}
        }
    }
    let mut ranges: Vec<_> = header.tensors.iter().map(GgufTensor::byte_range).collect();
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.iter().all(|range| range.end <= file_bytes && range.start % header.alignment == 0));
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
}

/// Any one byte of the header may be anything: an error or a legal file, and no memory beyond the file's size.
#[test]
fn flipped_bytes_never_panic() {
    let bytes = sample();
    let data = GgufHeader::parse(&bytes).expect("valid").data_offset as usize;
    for position in 0..data {
        for value in (0..8).map(|bit| bytes[position] ^ 1 << bit).chain([0, 0x7F, 0x80, 0xFF]) {
            let mut flipped = bytes.clone();
            flipped[position] = value;
            let memory = allocation_counter::measure(|| {
                if let Ok(header) = GgufHeader::parse(&flipped) {
                    read_all(&header, flipped.len() as u64);
                }
            });
            assert!(memory.bytes_max < MEMORY_LIMIT_BYTES, "{position} {value}: {memory:?}");
        }
    }
}

proptest! {
    /// Noise after a legal start.
    #[test]
    fn noise_never_panics(tensors in 0..4u64, entries in 0..4u64, noise in prop::collection::vec(prop_oneof![3 => 0..13u8, 1 => any::<u8>()], 0..400)) {
        let bytes = Raw::new(tensors, entries).bytes(&noise).0;
        if let Ok(header) = GgufHeader::parse(&bytes) {
            read_all(&header, bytes.len() as u64);
        }
    }

    /// Several bytes of a valid file changed at once.
    #[test]
    fn damaged_files_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        let mut bytes = sample();
        for (position, value) in changes {
            let position = position.index(bytes.len());
            bytes[position] = value;
        }
        if let Ok(header) = GgufHeader::parse(&bytes) {
            read_all(&header, bytes.len() as u64);
        }
    }
}

/// Values of the format that are refused one by one.
#[test]
fn malformed_values_name_their_key() {
    let entry = || Raw::new(0, 1).string("the.key");
    assert_error!(&entry().u32(7).bytes(&[2]).data(64), GgufError::InvalidBool { found: 2, key } if key == "the.key");
    assert_error!(&entry().u32(9).u32(7).u64(3).bytes(&[0, 1, 9]).data(64), GgufError::InvalidBool { found: 9, .. });
    assert_error!(&entry().u32(9).u32(9).u64(1).u32(4).u64(0).data(64), GgufError::NestedArray { key } if key == "the.key");
    for id in [13, 14, u32::MAX] {
        assert_error!(&entry().u32(id).u64(0).data(64), GgufError::UnknownValueType { id: found, .. } if *found == id);
        assert_error!(&entry().u32(9).u32(id).u64(0).data(64), GgufError::UnknownValueType { id: found, .. } if *found == id);
    }
    assert_error!(&entry().u32(8).u64(2).bytes(b"\xC3\x28").data(64), GgufError::InvalidUtf8 { .. });
    assert_error!(&Raw::new(0, 1).u64(1).bytes(&[0xFF]).u32(4).u32(1).data(64), GgufError::InvalidUtf8 { .. });
    assert_error!(
        &Raw::new(1, 0).u64(1).bytes(&[0x80]).u32(1).u64(1).u32(0).u64(0).data(64),
        GgufError::InvalidUtf8 { .. }
    );
}

/// Dtypes, blocks and places in the file that are refused tensor by tensor.
#[test]
fn malformed_tensors_are_named() {
    let one = |dims: &[u64], dtype| Raw::new(1, 0).tensor("the.tensor", dims, dtype, 0).data(256);
    assert_error!(&one(&[32], 12_345), GgufError::UnknownDType { id: 12_345, tensor } if tensor == "the.tensor");
    let message = GgufHeader::parse(one(&[32], 12_345)).expect_err("unknown").to_string();
    assert!(message.contains("q4_1 (3)") && message.contains("f32 (0)"), "{message}");
    for columns in [1, 31, 33, 255, 257] {
        assert_error!(&one(&[columns], Q4_1), GgufError::PartialBlock { elements, .. } if *elements == columns);
        assert_error!(&one(&[columns, 32], Q8_0), GgufError::PartialBlock { dtype: "q8_0", .. });
    }
    assert_error!(&one(&[65], F32), GgufError::BeyondEnd { .. });
    let overlap = Raw::new(2, 0).tensor("b", &[9], F32, 32).tensor("a", &[9], F32, 0).data(256);
    assert_error!(&overlap, GgufError::Overlap { first, second } if first == "a" && second == "b");
    let same = Raw::new(2, 0).tensor("a", &[1], F32, 0).tensor("b", &[1], F32, 0).data(256);
    assert_error!(&same, GgufError::Overlap { .. });
}
