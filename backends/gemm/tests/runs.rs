//! Runs of splits: pieces, cancelled runs, busy pools, bad memories, odd addresses.

use std::{
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

use entensor_components::{
    Backend, BackendError, CancelToken, Cursor, DType, MemoryHandle, MemorySlot, NodeDesc, Op, Progress, RunLimit,
    Shape, SplitDesc, Strides, TensorDesc, TensorRef, Ticket, Usage,
};
use entensor_gemm::{GemmBackend, GemmConfig};
use entensor_oracle::OracleBackend;
use rayon::{ThreadPool, ThreadPoolBuilder};

const K: u64 = 128;
const ROWS: u64 = 300;
const COLUMNS: u64 = 64;

fn gemm(threads: usize) -> GemmBackend {
    GemmBackend::new(GemmConfig { threads: Some(threads), ..GemmConfig::default() }).expect("it starts")
}

fn packed(slot: u32, offset_bytes: u64, dtype: DType, shape: [u64; 4]) -> TensorRef {
    let desc = TensorDesc::packed(dtype, Shape(shape)).expect("valid");
    TensorRef { desc, memory: MemorySlot(slot), offset_bytes }
}

fn product(name: &str, weights: TensorRef, x: TensorRef, output: TensorRef) -> NodeDesc {
    NodeDesc { name: name.into(), op: Op::MulMat {}, output, operands: vec![weights, x] }
}

fn memory(backend: &dyn Backend, bytes: &[u8]) -> MemoryHandle {
    let key = backend.create_buffer(bytes.len() as u64, Usage::Compute).expect("small");
    let memory = backend.memory(key).expect("just made");
    backend.write(&memory, 0, bytes).expect("in bounds");
    memory
}

fn contents(backend: &dyn Backend, memory: &MemoryHandle) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(memory.as_host().expect("host").size_bytes()).expect("small")];
    backend.read(memory, 0, &mut bytes).expect("in bounds");
    bytes
}

fn values(count: u64) -> Vec<f32> {
    (0..count).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect()
}

fn encoded(dtype: DType, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(dtype.row_bytes(count).expect("whole blocks")).expect("small")];
    (dtype.row().quantize)(&values(count), &mut bytes);
    bytes
}

/// Two products: the second reads what the first gives. Slot 0 is weights, slot 1 activations and results.
fn chain(dtype: DType) -> (SplitDesc, Vec<u8>, Vec<u8>) {
    let first = packed(0, 0, dtype, [K, ROWS, 1, 1]);
    let second = packed(0, first.desc.size_bytes(), DType::F32, [ROWS, K, 1, 1]);
    let mut weights = encoded(dtype, K * ROWS);
    weights.extend(encoded(DType::F32, K * ROWS));
    let x = packed(1, 0, DType::F32, [K, COLUMNS, 1, 1]);
    let middle = packed(1, x.desc.size_bytes(), DType::F32, [ROWS, COLUMNS, 1, 1]);
    let out = packed(1, middle.offset_bytes + middle.desc.size_bytes(), DType::F32, [K, COLUMNS, 1, 1]);
    let mut written = encoded(DType::F32, K * COLUMNS);
    written.resize(usize::try_from(out.offset_bytes + out.desc.size_bytes()).expect("small"), 0xff);
    let nodes = vec![product("first", first, x, middle), product("second", second, middle, out)];
    (SplitDesc { nodes, memory_slots: 2 }, weights, written)
}

/// What a split leaves in the memory that it writes.
fn run(backend: &dyn Backend, (split, weights, written): &(SplitDesc, Vec<u8>, Vec<u8>)) -> Vec<u8> {
    let memory = [memory(backend, weights), memory(backend, written)];
    let prepared = backend.prepare(split).expect("it is supported");
    assert_eq!(prepared.submit(&memory).expect("it runs"), Ticket::Done);
    contents(backend, &memory[1])
}

#[test]
fn a_chain_is_what_the_oracle_says_on_any_number_of_threads() {
    for dtype in [DType::F32, DType::F16, DType::Bf16, DType::Q8_0] {
        let chain = chain(dtype);
        let alone = run(&gemm(1), &chain);
        for threads in [2, 5] {
            assert!(run(&gemm(threads), &chain) == alone, "{dtype} on {threads} threads");
        }
        let expected = run(&OracleBackend::new("oracle"), &chain);
        let numbers =
            |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect() };
        for (found, expected) in numbers(&alone).iter().zip(numbers(&expected)) {
            assert!((found - expected).abs() <= 1e-3 * expected.abs().max(1.0), "{dtype}: {found}, not {expected}");
        }
    }
}

#[test]
fn a_run_in_pieces_gives_the_same_bits() {
    let chain = chain(DType::F16);
    let whole = run(&gemm(1), &chain);
    for threads in [1, 3] {
        let backend = gemm(threads);
        let prepared = backend.prepare(&chain.0).expect("it is supported");
        let memory = [memory(&backend, &chain.1), memory(&backend, &chain.2)];
        // A deadline that has passed: one piece a call.
        let limit = RunLimit { deadline: Some(Instant::now()), cancel: None };
        let (mut cursor, mut calls) = (Cursor::START, 0);
        loop {
            calls += 1;
            match prepared.run_from(&memory, cursor, &limit).expect("it runs") {
                Progress::Done(ticket) => break assert_eq!(ticket, Ticket::Done),
                Progress::Paused(next) => {
                    assert!(next > cursor, "{next:?} behind {cursor:?}");
                    cursor = next;
                }
            }
        }
        assert!(calls > 1, "four panels and two");
        if threads == 1 {
            assert_eq!(calls, 4 + 2, "ROWS / 96 and K / 96 panels");
        }
        assert!(contents(&backend, &memory[1]) == whole, "{threads} threads");
        // Every place of the grid is one to begin at, if what is before it is done.
        for cursor in [Cursor { step: 0, row: 3 }, Cursor { step: 1, row: 0 }, Cursor { step: 1, row: 1 }] {
            let progress = prepared.run_from(&memory, cursor, &RunLimit::NONE).expect("it goes on");
            assert_eq!(progress, Progress::Done(Ticket::Done));
            assert!(contents(&backend, &memory[1]) == whole, "{cursor:?}");
        }
        for cursor in [Cursor { step: 0, row: 4 }, Cursor { step: 1, row: 2 }, Cursor { step: 2, row: 0 }] {
            let Cursor { step, row } = cursor;
            let result = prepared.run_from(&memory, cursor, &RunLimit::NONE);
            assert_eq!(result, Err(BackendError::BadCursor { step, row }));
        }
    }
}

#[test]
fn a_cancelled_run_says_so_and_the_next_is_right() {
    let chain = chain(DType::Q8_0);
    let backend = gemm(2);
    let whole = run(&backend, &chain);
    let prepared = backend.prepare(&chain.0).expect("it is supported");
    let memory = [memory(&backend, &chain.1), memory(&backend, &chain.2)];
    let token = CancelToken::new();
    token.cancel();
    let limit = RunLimit { deadline: None, cancel: Some(&token) };
    assert_eq!(prepared.run_from(&memory, Cursor::START, &limit), Err(BackendError::Cancelled));
    assert!(contents(&backend, &memory[1]) == chain.2, "nothing was begun");
    // From another thread, at any time of the run.
    for delay in [0, 20, 50, 100, 200, 400] {
        let token = CancelToken::new();
        let result = std::thread::scope(|scope| {
            let canceller = token.clone();
            scope.spawn(move || {
                std::thread::sleep(Duration::from_micros(delay));
                canceller.cancel();
            });
            prepared.run_from(&memory, Cursor::START, &RunLimit { deadline: None, cancel: Some(&token) })
        });
        let done = Progress::Done(Ticket::Done);
        assert!(result == Ok(done) || result == Err(BackendError::Cancelled), "{result:?}");
        assert_eq!(prepared.submit(&memory), Ok(Ticket::Done));
        assert!(contents(&backend, &memory[1]) == whole, "after {delay} µs");
    }
}

fn pool(threads: usize) -> Arc<ThreadPool> {
    Arc::new(ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool"))
}

fn gemm_on(pool: &Arc<ThreadPool>) -> GemmBackend {
    GemmBackend::new(GemmConfig { pool: Some(Arc::clone(pool)), ..GemmConfig::default() }).expect("it starts")
}

#[test]
fn a_busy_pool_delays_no_product() {
    let chain = chain(DType::F16);
    let pool = pool(2);
    let backend = gemm_on(&pool);
    assert_eq!(backend.threads(), 3);
    let whole = run(&gemm(1), &chain);
    // Workers that nobody gets before the run is over.
    let barrier = Arc::new(Barrier::new(3));
    for _ in 0..2 {
        let barrier = Arc::clone(&barrier);
        pool.spawn(move || {
            barrier.wait();
        });
    }
    assert!(run(&backend, &chain) == whole);
    barrier.wait();
    // Late helpers of that run find nothing; those of the next may help.
    for _ in 0..20 {
        assert!(run(&backend, &chain) == whole);
    }
}

#[test]
fn a_product_from_inside_the_pool_does_not_hang() {
    let chain = chain(DType::F16);
    let pool = pool(1);
    let backend = gemm_on(&pool);
    let whole = run(&gemm(1), &chain);
    assert!(pool.install(|| run(&backend, &chain)) == whole);
}

#[test]
fn several_callers_of_one_backend_are_apart() {
    let chains = [DType::F32, DType::F16, DType::Q8_0].map(chain);
    let backend = gemm(2);
    let expected: Vec<Vec<u8>> = chains.iter().map(|chain| run(&backend, chain)).collect();
    std::thread::scope(|scope| {
        for (chain, expected) in chains.iter().zip(&expected) {
            let backend = &backend;
            scope.spawn(move || (0..10).for_each(|_| assert!(run(backend, chain) == *expected)));
        }
    });
}

#[test]
fn weights_in_place_are_read_where_they_lie_or_refused() {
    let chain = chain(DType::F16);
    let backend = gemm(1);
    let whole = run(&backend, &chain);
    let prepared = backend.prepare(&chain.0).expect("it is supported");
    let (mut read, mut refused) = (0, 0);
    for shift in 0..16 {
        struct Shifted(Vec<u8>, usize);
        impl AsRef<[u8]> for Shifted {
            fn as_ref(&self) -> &[u8] {
                &self.0[self.1..]
            }
        }
        let bytes = [vec![0xff; shift], chain.1.clone()].concat();
        let key = match backend.import_host(Arc::new(Shifted(bytes, shift))) {
            Ok(key) => key,
            Err(error) => {
                assert!(matches!(error, BackendError::MisalignedImport { .. }), "{error}");
                refused += 1;
                continue;
            }
        };
        read += 1;
        let memory = [backend.memory(key).expect("just made"), memory(&backend, &chain.2)];
        assert_eq!(prepared.submit(&memory), Ok(Ticket::Done));
        assert!(contents(&backend, &memory[1]) == whole, "shifted by {shift}");
    }
    assert!(read >= 1 && refused >= 8, "{read} read, {refused} refused");
}

#[test]
fn what_does_not_fit_is_a_typed_error() {
    let (split, weights, written) = chain(DType::F32);
    let backend = gemm(1);
    let prepared = backend.prepare(&split).expect("it is supported");
    let (weights, written) = (memory(&backend, &weights), memory(&backend, &written));
    let small = memory(&backend, &[0; 64]);
    let foreign = MemoryHandle::new(Arc::new(5_u8));
    let bad = |memory: &[MemoryHandle]| prepared.submit(memory).expect_err("it does not fit");
    assert!(matches!(bad(std::slice::from_ref(&weights)), BackendError::OutOfBounds { .. }));
    assert!(matches!(bad(&[weights.clone(), small]), BackendError::OutOfBounds { .. }));
    assert_eq!(bad(&[weights.clone(), foreign]), BackendError::ForeignMemory);
    assert_eq!(bad(&[weights.clone(), weights.clone()]), BackendError::AliasedMemory);
    assert_eq!(prepared.submit(&[weights, written]), Ok(Ticket::Done));

    let refused = |node: NodeDesc| match backend.prepare(&SplitDesc { nodes: vec![node], memory_slots: 2 }) {
        Err(BackendError::UnsupportedNode { node, op: "mul_mat" | "relu", reason }) => format!("{node}: {reason}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was prepared"),
    };
    let first = &split.nodes[0];
    let narrow = packed(1, 0, DType::F32, [K, 4, 1, 1]);
    let out = packed(1, 1 << 20, DType::F32, [ROWS, 4, 1, 1]);
    assert_eq!(refused(product("narrow", first.operands[0], narrow, out)), "narrow: 4 columns, fewer than 32");
    let relu = NodeDesc { name: "r".into(), op: Op::Relu {}, output: narrow, operands: vec![narrow] };
    assert_eq!(refused(relu), "r: it multiplies matrices and nothing else");
    let onto = TensorRef { offset_bytes: 64, ..first.output };
    assert!(refused(product("onto", first.operands[0], first.operands[1], onto)).contains("memory of an operand"));
    let odd = TensorRef { offset_bytes: first.output.offset_bytes + 2, ..first.output };
    assert!(refused(product("odd", first.operands[0], first.operands[1], odd)).contains("no whole element"));
    let holes = TensorDesc { strides: Strides([4, 4 * ROWS + 64, 0, 0]), ..first.output.desc };
    let holes = TensorRef { desc: holes, ..first.output };
    assert!(refused(product("holes", first.operands[0], first.operands[1], holes)).contains("not packed"));
}
