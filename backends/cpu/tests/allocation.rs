//! A submission allocates nothing once it is warm, on one thread and with helpers.
#![expect(unsafe_code, reason = "a global allocator that counts")]

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use common::{block, cpu, memory, reductions};
use entensor_components::{Backend, Cursor, Progress, RunLimit};
use entensor_cpu::{CpuBackend, CpuConfig};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system's doing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_warm_submission_allocates_nothing() {
    // One test in this file: another thread's allocations would count.
    let sizes = [(1, 64, 4), (1, 256, 64), (2, 64, 4), (3, 256, 64)];
    let blocks = sizes.map(|(threads, width, tokens)| (threads, width, tokens, block(width, tokens, 2)));
    // Long rows too: sorts that recurse.
    let sizes = [(1, 64, 4), (1, 5000, 2), (3, 1000, 20)];
    let sorts = sizes.map(|(threads, width, rows)| (threads, width, rows, reductions(width, rows)));
    for (threads, width, tokens, (split, read, written)) in blocks.into_iter().chain(sorts) {
        let backend = cpu(threads);
        let memories = [memory(&backend, &read), memory(&backend, &written)];
        let prepared = backend.prepare(&split).expect("valid");
        // On a busy machine a helper may join for the first time late, and a thread's first steps allocate. What must hold
        // is that a steady state is reached.
        let mut fewest = usize::MAX;
        for _ in 0..20 {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            for _ in 0..50 {
                prepared.submit(&memories).expect("runs");
            }
            fewest = fewest.min(ALLOCATIONS.load(Ordering::Relaxed) - before);
        }
        assert_eq!(fewest, 0, "{threads} threads, {width} × {tokens}");
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let mut at = Cursor::START;
        let limit = || RunLimit { deadline: Some(Instant::now()), cancel: None };
        while let Progress::Paused(next) = prepared.run_from(&memories, at, &limit()).expect("runs") {
            at = next;
        }
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before, "in pieces, {threads} threads, {width} × {tokens}");
    }
    // Asking a shared pool takes a job or two, however large the pool is.
    for workers in [1, 2, 8] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(workers).build().expect("threads start");
        let config = CpuConfig { pool: Some(Arc::new(pool)), ..CpuConfig::default() };
        let backend = CpuBackend::new(config).expect("the CPU is there");
        let (split, read, written) = block(256, 64, 2);
        let memories = [memory(&backend, &read), memory(&backend, &written)];
        let prepared = backend.prepare(&split).expect("valid");
        for _ in 0..20 {
            prepared.submit(&memories).expect("runs");
        }
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..64 {
            prepared.submit(&memories).expect("runs");
        }
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        // The pool's queues grow now and then on top.
        assert!(allocations <= 2 * 64 + 16, "{allocations} allocations for 64 runs with {workers} workers");
    }
}
