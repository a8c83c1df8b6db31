//! A steady run under a profile allocates nothing. One test alone in its process, since it counts allocations.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use entensor::{DType, Engine, GraphBuilder, ProfileConfig};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

#[expect(unsafe_code, reason = "an allocator that counts is the only way to prove that nothing allocates")]
// SAFETY: every call is handed to the system allocator unchanged.
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

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_steady_run_under_a_profile_allocates_nothing() {
    let mut engine = Engine::builder().backend("cpu:threads=2").build().expect("the backend starts");
    let mut g = GraphBuilder::new("layers");
    let x = g.input("x", DType::F32, &[128, 200]).expect("an input");
    let w = g.input("w", DType::F32, &[128, 128]).expect("an input");
    let mut y = x;
    for _ in 0..8 {
        y = g.mul_mat(w, y).expect("shapes fit");
        y = g.silu(y).expect("shapes fit");
    }
    g.output("y", y).expect("a node");
    let graph = engine.add_graph(g);
    engine.write(graph, x, &vec![0.25_f32; 128 * 200]).expect("it fits");
    engine.write(graph, w, &vec![0.01_f32; 128 * 128]).expect("it fits");
    let mut made_in_100_runs = |config: Option<ProfileConfig>| {
        engine.set_profile(config);
        for _ in 0..3 {
            engine.run(graph).expect("it runs");
        }
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..100 {
            engine.run(graph).expect("it runs");
        }
        let made = ALLOCATIONS.load(Ordering::Relaxed) - before;
        if config.is_some() {
            let profile = engine.profile_of(graph).expect("it ran");
            assert!(profile.runs.count == 103 && profile.nodes.iter().any(|node| node.count >= 2), "{profile:?}");
        }
        made
    };
    let plain = made_in_100_runs(None);
    let in_parts = ProfileConfig { short_run: Duration::ZERO, ..ProfileConfig::default() };
    for config in [ProfileConfig::default(), in_parts] {
        assert_eq!(made_in_100_runs(Some(config)), plain);
    }
    assert_eq!(plain, 0);
}
