//! Helpers that come, do not come, come late, or call us from inside their own pool: never a hang, never another bit.

mod common;

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use common::{block, contents, cpu, floats, memory, node, reductions, tensor};
use entensor_components::{Backend, BackendError, DType, MemoryHandle, Op, SplitDesc};
use entensor_cpu::{CpuBackend, CpuConfig};

/// Wide enough to ask for help.
const WIDTH: u64 = 256;
const TOKENS: u64 = 48;

fn pool(threads: usize) -> Arc<rayon::ThreadPool> {
    Arc::new(rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads start"))
}

fn on_pool(pool: &Arc<rayon::ThreadPool>, threads: Option<usize>) -> CpuBackend {
    let config = CpuConfig { pool: Some(Arc::clone(pool)), threads, ..CpuConfig::default() };
    CpuBackend::new(config).expect("the CPU is there")
}

/// Memory after `runs` submissions.
fn run(backend: &CpuBackend, repeats: usize, runs: usize) -> Vec<u8> {
    let (split, read, written) = block(WIDTH, TOKENS, repeats);
    let memories = [memory(backend, &read), memory(backend, &written)];
    let prepared = backend.prepare(&split).expect("valid");
    for _ in 0..runs {
        prepared.submit(&memories).expect("runs");
    }
    contents(backend, &memories[1])
}

#[test]
fn many_runs_with_any_number_of_threads_give_the_same_bits() {
    let expected = run(&cpu(1), 3, 40);
    for threads in [2, 3, 4, 9] {
        assert_eq!(run(&cpu(threads), 3, 40), expected, "{threads} threads");
        let shared = pool(threads);
        assert_eq!(run(&on_pool(&shared, None), 3, 40), expected, "a pool of {threads}");
        assert_eq!(run(&on_pool(&shared, Some(2)), 3, 40), expected, "one helper from a pool of {threads}");
    }
}

/// Steps that share work memory, beside each other and one after the other.
#[test]
fn sorts_and_sums_side_by_side_give_the_same_bits() {
    let result = |backend: &dyn Backend, width, rows| {
        let (split, read, written) = reductions(width, rows);
        let memories = [memory(backend, &read), memory(backend, &written)];
        let prepared = backend.prepare(&split).expect("valid");
        (0..10).for_each(|_| assert!(prepared.submit(&memories).is_ok()));
        contents(backend, &memories[1])
    };
    for (width, rows) in [(40_000, 2), (1000, 150), (16, 9000)] {
        let expected = result(&cpu(1), width, rows);
        for threads in [2, 3, 4, 9] {
            assert!(result(&cpu(threads), width, rows) == expected, "{threads} threads, {width} × {rows}");
        }
    }
}

#[test]
fn small_splits_by_the_thousand() {
    let backend = cpu(4);
    let (split, read, written) = block(32, 2, 1);
    let memories = [memory(&backend, &read), memory(&backend, &written)];
    let prepared = backend.prepare(&split).expect("valid");
    for _ in 0..20_000 {
        prepared.submit(&memories).expect("runs");
    }
}

#[test]
fn a_busy_pool_delays_nothing() {
    let shared = pool(2);
    let release = Arc::new(AtomicBool::new(false));
    let started = Arc::new(Barrier::new(3));
    for _ in 0..2 {
        let (release, started) = (Arc::clone(&release), Arc::clone(&started));
        shared.spawn(move || {
            started.wait();
            while !release.load(Ordering::Acquire) {
                thread::yield_now();
            }
        });
    }
    started.wait();
    let backend = on_pool(&shared, None);
    let expected = run(&cpu(1), 2, 3);
    assert_eq!(run(&backend, 2, 3), expected);
    // The jobs of finished runs are still queued; they find closed gates, of splits that are gone but for them.
    release.store(true, Ordering::Release);
    shared.install(|| ());
    assert_eq!(run(&backend, 2, 3), expected);
}

#[test]
fn any_number_of_threads_works() {
    let expected = run(&cpu(1), 2, 3);
    for threads in [0, 1, 10_000, usize::MAX] {
        let backend = cpu(threads);
        assert!(backend.threads() >= 1 && backend.threads() <= threads.max(1), "{threads} asked for");
        assert_eq!(run(&backend, 2, 3), expected, "{threads} threads");
        let shared = pool(2);
        assert_eq!(run(&on_pool(&shared, Some(threads)), 2, 3), expected, "{threads} threads with a pool");
    }
}

/// Workers that wait for the caller, from before the run until after it: it finishes alone.
#[test]
fn workers_that_wait_for_the_caller_hang_nothing() {
    let shared = pool(2);
    let backend = on_pool(&shared, None);
    let expected = run(&cpu(1), 2, 3);
    let both = Barrier::new(3);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                shared.install(|| {
                    both.wait();
                    both.wait();
                });
            });
        }
        both.wait();
        assert_eq!(run(&backend, 2, 3), expected);
        both.wait();
    });
}

#[test]
fn backends_share_a_pool() {
    let shared = pool(2);
    let expected = run(&cpu(1), 2, 10);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(run(&on_pool(&shared, None), 2, 10), expected));
        }
    });
}

#[test]
fn called_from_inside_the_pool() {
    let expected = run(&cpu(1), 2, 5);
    for workers in [1, 2, 4] {
        let shared = pool(workers);
        let backend = on_pool(&shared, None);
        // From one worker, and from all of them at once.
        assert_eq!(shared.install(|| run(&backend, 2, 5)), expected);
        for result in shared.broadcast(|_| run(&backend, 2, 5)) {
            assert_eq!(result, expected);
        }
    }
}

#[test]
fn one_split_submitted_from_several_threads_runs_once_at_a_time() {
    let backend = cpu(3);
    let x = tensor(0, 0, DType::F32, &[100_000]);
    let one = tensor(1, 0, DType::F32, &[1]);
    let split = SplitDesc { nodes: vec![node("count", Op::Add {}, &[x, one], x)], memory_slots: 2 };
    let prepared = backend.prepare(&split).expect("valid");
    let memories = [memory(&backend, &[0; 400_000]), memory(&backend, &1.0_f32.to_le_bytes())];
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| assert!(prepared.submit(&memories).is_ok())));
        }
    });
    let bytes = contents(&backend, &memories[0]);
    assert!(bytes.as_chunks::<4>().0.iter().all(|b| f32::from_le_bytes(*b) == 200.0));
}

#[test]
fn splits_over_the_same_memories_in_other_orders_do_not_deadlock() {
    let backend = cpu(2);
    let memories = [memory(&backend, &floats(64)), memory(&backend, &floats(64))];
    let copy = |from: u32, to: u32| {
        let (from, to) = (tensor(from, 0, DType::F32, &[64]), tensor(to, 0, DType::F32, &[64]));
        let split = SplitDesc { nodes: vec![node("copy", Op::Cpy {}, &[from, to], to)], memory_slots: 2 };
        backend.prepare(&split).expect("valid")
    };
    let splits = [copy(0, 1), copy(1, 0)];
    thread::scope(|scope| {
        for split in &splits {
            scope.spawn(|| (0..5_000).for_each(|_| assert!(split.submit(&memories).is_ok())));
        }
    });
}

#[test]
fn what_memories_may_be_bound() {
    let backend = cpu(1);
    let (a, b) = (tensor(0, 0, DType::F32, &[16]), tensor(1, 0, DType::F32, &[16]));
    let out = tensor(2, 64, DType::F32, &[16]);
    let split = SplitDesc { nodes: vec![node("sum", Op::Add {}, &[a, b], out)], memory_slots: 4 };
    let prepared = backend.prepare(&split).expect("valid");
    let large = || memory(&backend, &floats(32));
    let (x, y) = (large(), large());
    let foreign = MemoryHandle::new(Arc::new("not ours"));
    let small = memory(&backend, &floats(16));
    let imported = backend.import_host(Arc::new(floats(32))).expect("imports");
    let imported = backend.memory(imported).expect("just made");
    let submit = |memories: &[&MemoryHandle]| {
        let memories: Vec<MemoryHandle> = memories.iter().map(|&m| m.clone()).collect();
        prepared.submit(&memories).map(|_| ())
    };
    assert_eq!(submit(&[&x, &x, &y]), Ok(()), "one memory may be read from two slots");
    assert_eq!(submit(&[&imported, &x, &y, &foreign]), Ok(()), "slots without use are not looked at");
    assert_eq!(submit(&[&x, &y, &y]), Err(BackendError::AliasedMemory));
    assert_eq!(submit(&[&x, &foreign, &y]), Err(BackendError::ForeignMemory));
    assert_eq!(submit(&[&x, &y, &imported]), Err(BackendError::ReadOnly));
    assert!(matches!(submit(&[&x, &y, &small]), Err(BackendError::OutOfBounds { len_bytes: 128, size_bytes: 64, .. })));
    assert!(matches!(submit(&[&x, &y]), Err(BackendError::OutOfBounds { .. })));
}

#[test]
fn a_bad_id_stops_the_run_before_later_nodes_write() {
    let backend = cpu(4);
    let big = tensor(1, 0, DType::F32, &[256, 512]);
    let table = tensor(0, 64, DType::F32, &[256, 8]);
    let ids = tensor(0, 0, DType::I32, &[4]);
    let rows = tensor(1, big.desc.size_bytes(), DType::F32, &[256, 4]);
    let nodes = vec![
        node("before", Op::Scale { by: 2.0 }, &[big], big),
        node("pick", Op::GetRows {}, &[table, ids], rows),
        node("after", Op::Scale { by: 2.0 }, &[big], big),
    ];
    let prepared = backend.prepare(&SplitDesc { nodes, memory_slots: 2 }).expect("valid");
    let mut read: Vec<u8> = [0, 7, 8, -1_i32].into_iter().flat_map(i32::to_le_bytes).collect();
    read.extend(floats(12 + 256 * 8));
    let written = floats(256 * 512 + 256 * 4);
    for _ in 0..50 {
        let memories = [memory(&backend, &read), memory(&backend, &written)];
        let error = prepared.submit(&memories).expect_err("8 is out of range");
        assert_eq!(error, BackendError::IndexOutOfRange { node: "pick".into(), position: 2, value: 8, rows: 8 });
        let after = contents(&backend, &memories[1]);
        let value = |bytes: &[u8], i: usize| f32::from_le_bytes(bytes[i * 4..][..4].try_into().expect("4 bytes"));
        for i in 0..256 * 512 {
            let times = value(&after, i) / value(&written, i);
            assert!(times.is_nan() || times == 2.0 || times == 1.0, "element {i} was doubled twice");
        }
        assert_eq!(after[256 * 512 * 4..], written[256 * 512 * 4..], "rows were written");
        // The next run is not haunted by the failure.
        backend.write(&memories[0], 0, &[0; 16]).expect("in bounds");
        prepared.submit(&memories).expect("ids are fine now");
    }
}
