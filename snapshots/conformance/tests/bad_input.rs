//! What users and engines may get wrong about buffers, on every backend: a typed error, never a panic, and nothing is done by halves.

mod common;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use common::cpu;
use entensor_components::{
    Backend, BackendError, ByteRows, Capabilities, DType, ImportedBytes, MemoryHandle, Readback, Shape, TensorDesc,
    Ticket, Usage,
};
use entensor_cpu::{REPACKED, Simd};
use entensor_gemm::{GemmBackend, GemmConfig};
use entensor_null::{NullBackend, NullConfig};
use entensor_oracle::OracleBackend;
use entensor_sim::{SimConfig, SimWorld};

const SIZE_BYTES: u64 = 64;

/// A backend, and one of its buffer types.
struct Subject {
    backend: Arc<dyn Backend>,
    buffer_type: Arc<str>,
}

/// Every backend with every type of buffer that it makes.
fn subjects() -> Vec<Subject> {
    // Without a limit it would have room for anything.
    let capabilities = Capabilities { max_buffer_bytes: 1 << 40, ..Capabilities::host() };
    let null = NullConfig { capabilities, ..NullConfig::host("null") };
    let gemm = GemmBackend::new(GemmConfig { threads: Some(1), ..GemmConfig::default() }).expect("it starts");
    let world = SimWorld::new(3);
    let inner = || Arc::new(OracleBackend::new("inner"));
    let backends: Vec<Arc<dyn Backend>> = vec![
        Arc::new(NullBackend::new(null)),
        Arc::new(OracleBackend::new("oracle")),
        Arc::new(cpu(1, Simd::Detect)),
        Arc::new(gemm),
        world.device(SimConfig::host("sim-host", inner())),
        world.device(SimConfig::device("sim-device", inner())),
    ];
    let types = |backend: Arc<dyn Backend>| {
        let subject = |buffer_type| Subject { backend: Arc::clone(&backend), buffer_type };
        backend.buffer_types().into_iter().map(|info| subject(info.name)).collect::<Vec<_>>()
    };
    backends.into_iter().flat_map(types).collect()
}

impl Subject {
    fn memory(&self) -> MemoryHandle {
        let key = self.backend.create_buffer_of(&self.buffer_type, SIZE_BYTES, Usage::Any).expect("small");
        self.backend.memory(key).expect("just made")
    }

    /// The bytes, which start as 0, 1, 2, …
    fn bytes(&self, memory: &MemoryHandle) -> Vec<u8> {
        let mut bytes = vec![0; SIZE_BYTES as usize];
        self.backend.read(memory, 0, &mut bytes).expect("in bounds");
        bytes
    }
}

type Attempt = fn(&dyn Backend, &MemoryHandle) -> Result<(), BackendError>;

/// What is wrong, how it is tried, and the error that it is.
const ATTEMPTS: &[(&str, Attempt, fn(&BackendError) -> bool)] = {
    const fn outside(error: &BackendError) -> bool {
        matches!(error, BackendError::OutOfBounds { size_bytes: SIZE_BYTES, .. })
    }
    const fn bad_rows(error: &BackendError) -> bool {
        matches!(error, BackendError::BadRows { .. })
    }
    const fn host_too_small(error: &BackendError) -> bool {
        matches!(error, BackendError::HostTooSmall { .. })
    }
    &[
        ("a write beyond the end", |b, m| b.write(m, 61, &[9; 4]), outside),
        ("a write far away", |b, m| b.write(m, u64::MAX, &[9; 4]), outside),
        ("a write of too much", |b, m| b.write(m, 0, &[9; 65]), outside),
        ("an empty write beyond the end", |b, m| b.write(m, 65, &[]), outside),
        ("a read beyond the end", |b, m| b.read(m, 61, &mut [0; 4]), outside),
        ("a read far away", |b, m| b.read(m, u64::MAX - 1, &mut [0; 4]), outside),
        ("a read of too much", |b, m| b.read(m, 0, &mut [0; 65]), outside),
        ("a fill beyond the end", |b, m| b.fill(m, 8, 57, 9), outside),
        ("a fill far away", |b, m| b.fill(m, u64::MAX, 2, 9), |e| matches!(e, BackendError::OutOfBounds { .. })),
        ("an empty fill beyond the end", |b, m| b.fill(m, 65, 0, 9), outside),
        ("an asynchronous write beyond the end", |b, m| b.write_async(m, 61, &[9; 4]).map(drop), outside),
        ("an asynchronous read beyond the end", |b, m| b.read_async(m, 61, &Readback::new(4)?).map(drop), outside),
        ("rows beyond the end", |b, m| b.write_rows(m, 1, &ByteRows::new(4, 16, 16), &[9; 64]), outside),
        ("the last row beyond the end", |b, m| b.write_rows(m, 0, &ByteRows::new(3, 5, 30), &[9; 15]), outside),
        (
            "rows that are read beyond the end",
            |b, m| b.read_rows(m, 0, &ByteRows::new(3, 5, 30), &mut [0; 15]),
            outside,
        ),
        (
            "rows that nobody can count",
            |b, m| b.write_rows(m, 0, &ByteRows::new(u64::MAX, 2, u64::MAX), &[9; 8]),
            bad_rows,
        ),
        ("rows that overlap", |b, m| b.write_rows(m, 0, &ByteRows::new(3, 5, 4), &[9; 15]), bad_rows),
        (
            "rows that overlap where they are read to",
            |b, m| b.read_rows(m, 0, &ByteRows { host_stride_bytes: 4, ..ByteRows::new(3, 5, 5) }, &mut [0; 15]),
            bad_rows,
        ),
        ("fewer bytes than rows", |b, m| b.write_rows(m, 0, &ByteRows::new(3, 5, 8), &[9; 14]), host_too_small),
        ("less room than rows", |b, m| b.read_rows(m, 0, &ByteRows::new(3, 5, 8), &mut [0; 14]), host_too_small),
        (
            "asynchronous rows that overlap",
            |b, m| b.write_rows_async(m, 0, &ByteRows::new(3, 5, 4), &[9; 15]).map(drop),
            bad_rows,
        ),
        (
            "asynchronous rows beyond the end",
            |b, m| b.write_rows_async(m, 0, &ByteRows::new(3, 5, 30), &[9; 15]).map(drop),
            outside,
        ),
        (
            "asynchronous reads of rows beyond the end",
            |b, m| b.read_rows_async(m, 0, &ByteRows::new(3, 5, 30)).map(drop),
            outside,
        ),
        (
            "memory of nobody",
            |b, _| b.write(&MemoryHandle::new(Arc::new(5_u8)), 0, &[9]),
            |e| matches!(e, BackendError::ForeignMemory),
        ),
        (
            "a read of memory of nobody",
            |b, _| b.read(&MemoryHandle::new(Arc::new("?")), 0, &mut [0]),
            |e| matches!(e, BackendError::ForeignMemory),
        ),
        (
            "a fill of memory of nobody",
            |b, _| b.fill(&MemoryHandle::new(Arc::new(5_u8)), 0, 1, 9),
            |e| matches!(e, BackendError::ForeignMemory),
        ),
        (
            "rows of memory of nobody",
            |b, _| b.read_rows(&MemoryHandle::new(Arc::new(5_u8)), 0, &ByteRows::new(1, 1, 1), &mut [0]),
            |e| matches!(e, BackendError::ForeignMemory),
        ),
        (
            "a tensor in memory of nobody",
            |b, _| {
                let desc = TensorDesc::packed(DType::F32, Shape([2, 1, 1, 1])).expect("small");
                b.init_tensor(&MemoryHandle::new(Arc::new(5_u8)), 0, &desc, 64)
            },
            |e| matches!(e, BackendError::ForeignMemory),
        ),
        ("a copy beyond the end", |b, m| b.copy_from(m, 60, b, m, 0, 8).map(drop), outside),
        ("a copy from beyond the end", |b, m| b.copy_from(m, 0, b, m, 60, 8).map(drop), outside),
        (
            "a copy from memory of nobody",
            |b, m| b.copy_from(m, 0, b, &MemoryHandle::new(Arc::new(5_u8)), 0, 8).map(drop),
            |e| matches!(e, BackendError::ForeignMemory),
        ),
        (
            "a type that it does not make",
            |b, _| b.create_buffer_of("tape", 1, Usage::Any).map(drop),
            |e| matches!(e, BackendError::UnknownBufferType { .. }),
        ),
        (
            "more memory than there is",
            |b, _| b.create_buffer(u64::MAX - 7, Usage::Any).map(drop),
            |e| matches!(e, BackendError::OutOfMemory { .. } | BackendError::BufferTooLarge { .. }),
        ),
        (
            "an event of another backend",
            |b, _| b.query(1 << 40).map(drop),
            |e| matches!(e, BackendError::UnknownEvent { event: 0x100_0000_0000, .. }),
        ),
        (
            "waiting for another backend's event",
            |b, _| b.wait(b, 1 << 40),
            |e| matches!(e, BackendError::UnknownEvent { .. }),
        ),
        (
            "a ticket of another backend",
            |b, _| b.poll(Ticket::Pending(1 << 40)).map(drop),
            |e| matches!(e, BackendError::UnknownEvent { .. }),
        ),
    ]
};

#[test]
fn every_mistake_about_memory_is_a_typed_error() {
    let start: Vec<u8> = (0..SIZE_BYTES as u8).collect();
    let mut tried = 0;
    for subject in subjects() {
        let (backend, name) = (&*subject.backend, format!("{} {}", subject.backend.name(), subject.buffer_type));
        let memory = subject.memory();
        backend.write(&memory, 0, &start).expect("in bounds");
        let before = subject.bytes(&memory);
        for (what, attempt, expected) in ATTEMPTS {
            let outcome = catch_unwind(AssertUnwindSafe(|| attempt(backend, &memory)));
            let error = outcome.unwrap_or_else(|_| panic!("{name}: {what} panics"));
            let error = error.err().unwrap_or_else(|| panic!("{name}: {what} is no error"));
            assert!(expected(&error), "{name}: {what}: {error:?}");
            assert!(!error.to_string().is_empty());
            backend.synchronize().expect("it is there");
            assert_eq!(subject.bytes(&memory), before, "{name}: {what} wrote something all the same");
            tried += 1;
        }
    }
    println!("{tried} mistakes were refused");
    assert!(tried >= 7 * ATTEMPTS.len());
}

#[test]
fn a_key_is_good_until_its_buffer_is_gone() {
    for subject in subjects() {
        let (backend, name) = (&*subject.backend, subject.backend.name());
        let create = |size| backend.create_buffer_of(&subject.buffer_type, size, Usage::Any).expect("small");
        let key = create(SIZE_BYTES);
        let memory = backend.memory(key).expect("live");
        backend.destroy_buffer(key).expect("live");
        assert_eq!(backend.destroy_buffer(key), Err(BackendError::StaleBuffer), "{name}: freed twice");
        assert_eq!(backend.memory(key).map(|_| ()), Err(BackendError::StaleBuffer), "{name}: used after it was freed");
        assert_eq!(backend.reset_buffer(key), Err(BackendError::StaleBuffer), "{name}: reset after it was freed");
        // The place is taken by another buffer, and the old key is not its key.
        let other = create(SIZE_BYTES);
        assert_ne!(other, key);
        assert_eq!(backend.memory(key).map(|_| ()), Err(BackendError::StaleBuffer), "{name}");
        // Whoever holds the memory holds it.
        backend.write(&memory, 0, &[1; SIZE_BYTES as usize]).expect("the handle keeps it alive");
        let report = backend.memory_report();
        assert!(report.ours_bytes >= SIZE_BYTES && report.peak_bytes >= report.ours_bytes, "{name}: {report:?}");
    }
}

/// Bytes that begin somewhere behind a multiple of 8.
struct From(Vec<u64>, usize);

impl AsRef<[u8]> for From {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[self.1..]
    }
}

#[test]
fn imported_memory_is_aligned_and_read_only() {
    let mut imported = 0;
    for subject in subjects() {
        let (backend, name) = (&*subject.backend, subject.backend.name());
        let import = |past| backend.import_host(Arc::new(From(vec![7; 8], past)) as Arc<dyn ImportedBytes>);
        if !backend.capabilities().imports_host && !matches!(name, "null") {
            assert!(matches!(import(0), Err(BackendError::Unsupported { .. })), "{name}");
            continue;
        }
        imported += 1;
        for past in 1..8 {
            let expected = BackendError::MisalignedImport { past_bytes: past as u64, align_bytes: 8 };
            assert_eq!(import(past), Err(expected), "{name}");
        }
        let key = import(0).expect("aligned");
        let memory = backend.memory(key).expect("just made");
        let rows = ByteRows::new(2, 4, 8);
        assert_eq!(backend.write(&memory, 0, &[0; 8]), Err(BackendError::ReadOnly), "{name}");
        assert_eq!(backend.write(&memory, 0, &[]), Err(BackendError::ReadOnly), "{name}");
        assert_eq!(backend.fill(&memory, 0, 8, 0), Err(BackendError::ReadOnly), "{name}");
        assert_eq!(backend.write_rows(&memory, 0, &rows, &[0; 8]), Err(BackendError::ReadOnly), "{name}");
        assert!(matches!(backend.read(&memory, 57, &mut [0; 8]), Err(BackendError::OutOfBounds { .. })), "{name}");
        let mut back = [1; 8];
        backend.read_rows(&memory, 0, &rows, &mut back).expect("in bounds");
        assert_eq!(back, if name == "null" { [0; 8] } else { [7, 0, 0, 0, 7, 0, 0, 0] }, "{name}");
        backend.destroy_buffer(key).expect("live");
    }
    assert!(imported >= 5);
}

#[test]
fn memory_of_another_kind_of_backend_is_foreign() {
    let subjects = subjects();
    let mut foreign = 0;
    for subject in &subjects {
        for other in &subjects {
            let (memory, name) = (other.memory(), subject.backend.name());
            // Ordinary host memory, and what a backend makes itself, may be used.
            let own = subject.backend.name() == other.backend.name();
            let known = own || (memory.as_host().is_some() && !matches!(name, "null" | "sim-device"));
            let outcome = subject.backend.read(&memory, 0, &mut [0; 4]);
            assert_eq!(outcome.is_ok(), known, "{name} reads memory of {}: {outcome:?}", other.backend.name());
            foreign += usize::from(!known);
            if !known {
                assert!(matches!(outcome, Err(BackendError::ForeignMemory)));
                assert!(matches!(subject.backend.write(&memory, 0, &[0]), Err(BackendError::ForeignMemory)));
            }
        }
    }
    assert!(foreign >= 10, "{foreign}");
}

#[test]
fn tickets_and_events_belong_to_the_device_that_gave_them() {
    let world = SimWorld::new(5);
    let device = |name: &str| world.device(SimConfig::device(name, Arc::new(OracleBackend::new("inner"))));
    let (a, b) = (device("a"), device("b"));
    let key = a.create_buffer(SIZE_BYTES, Usage::Any).expect("small");
    let memory = a.memory(key).expect("just made");
    let ticket = a.write_async(&memory, 0, &[1; 8]).expect("in bounds");
    let event = a.record().expect("it is there");
    let unknown = |outcome: Result<bool, BackendError>| {
        assert!(
            matches!(&outcome, Err(BackendError::UnknownEvent { backend, .. }) if **backend == *"b"),
            "{outcome:?}"
        );
    };
    unknown(b.poll(ticket));
    unknown(b.wait_for(ticket, None));
    unknown(b.query(event));
    unknown(b.cancel(ticket).map(|()| true));
    unknown(b.elapsed(event, event).map(|_| true));
    // Waiting for it in a queue is what it is for; as an event of `b` it is unknown there too.
    unknown(a.wait(&*b, event).map(|()| true));
    b.wait(&*a, event).expect("an event of a");
    assert!(a.wait_for(ticket, None).expect("it is there") && a.query(event).is_ok());
}

/// Everything about buffers that goes right, so that nothing above is refused for another reason.
#[test]
fn zero_bytes_fills_rows_and_padding() {
    for subject in subjects() {
        let (backend, name) = (&*subject.backend, format!("{} {}", subject.backend.name(), subject.buffer_type));
        let keeps = subject.backend.name() != "null";
        let empty = backend.create_buffer_of(&subject.buffer_type, 0, Usage::Compute).expect("nothing");
        let nothing = backend.memory(empty).expect("just made");
        backend.write(&nothing, 0, &[]).expect("nothing to write");
        backend.read(&nothing, 0, &mut []).expect("nothing to read");
        backend.fill(&nothing, 0, 0, 1).expect("nothing to fill");
        backend.write_rows(&nothing, 0, &ByteRows::new(0, 8, 8), &[]).expect("no rows");
        assert!(matches!(backend.write(&nothing, 0, &[1]), Err(BackendError::OutOfBounds { .. })), "{name}");
        backend.destroy_buffer(empty).expect("live");

        let memory = subject.memory();
        let expect = |expected: &[u8]| {
            if keeps {
                assert_eq!(subject.bytes(&memory), expected, "{name}");
            }
        };
        expect(&[0; 64]);
        backend.fill(&memory, 0, 64, 5).expect("in bounds");
        backend.fill(&memory, 64, 0, 6).expect("an empty range at the end");
        backend.fill(&memory, 10, 3, 7).expect("in bounds");
        let mut bytes = [5; 64];
        bytes[10..13].fill(7);
        expect(&bytes);
        // Rows at two distances, and one row everywhere.
        backend.write_rows(&memory, 1, &ByteRows::new(3, 2, 20), &[1, 2, 3, 4, 5, 6]).expect("in bounds");
        let everywhere = ByteRows { host_stride_bytes: 0, ..ByteRows::new(2, 2, 30) };
        let ticket = backend.write_rows_async(&memory, 32, &everywhere, &[8, 9]).expect("in bounds");
        assert!(backend.wait_for(ticket, None).expect("it is there"));
        for (at, row) in [(1, [1, 2]), (21, [3, 4]), (41, [5, 6]), (32, [8, 9]), (62, [8, 9])] {
            bytes[at..at + 2].copy_from_slice(&row);
        }
        expect(&bytes);
        let (ticket, rows) = backend.read_rows_async(&memory, 1, &ByteRows::new(3, 2, 20)).expect("in bounds");
        assert!(backend.wait_for(ticket, None).expect("it is there"));
        let mut back = [0; 6];
        rows.take(&mut back).expect("room for three rows");
        assert!(!keeps || back == [1, 2, 3, 4, 5, 6], "{name}");
        assert!(matches!(rows.take(&mut [0; 5]), Err(BackendError::HostTooSmall { .. })), "{name}");
        // A tensor of 12 bytes that has 16: the padding is zeroed, and nothing else.
        let desc = TensorDesc::packed(DType::F32, Shape([3, 1, 1, 1])).expect("small");
        backend.init_tensor(&memory, 16, &desc, 16).expect("in bounds");
        bytes[28..32].fill(0);
        expect(&bytes);
        backend.init_tensor(&memory, 0, &desc, 12).expect("in bounds");
        expect(&bytes);
        let beyond = backend.init_tensor(&memory, 52, &desc, 16);
        assert!(matches!(beyond, Err(BackendError::OutOfBounds { .. })), "{name}: {beyond:?}");
    }
    assert!(subjects().iter().any(|subject| *subject.buffer_type == *REPACKED));
}
