//! How much memory planning takes. One test alone in its process, since it counts what the process allocates.

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fmt::Write as _,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
};

use bevy_ecs::prelude::*;
use common::Planned;
use entensor_systems::{GraphNodes, Nodes, PlanCache, Recording, plan_schedule, publish};

static CALLS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

struct Counting;

fn note(bytes: i64) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
    CALLS.fetch_add(u64::from(bytes > 0), Ordering::Relaxed);
}

/// Layouts are never above `isize::MAX`.
fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[expect(unsafe_code, reason = "an allocator that counts is the only way to know what planning takes")]
// SAFETY: every call is handed to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(signed(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(-signed(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(signed(size) - signed(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Layers over three backends, with views, a cache and copies between backends: some of everything.
fn layers(nodes: usize) -> String {
    let mut text = "backend a\nbackend b\nbackend cpu\nbuffer kv on cpu\ntensor cache f32 [16,64] in kv\n\
                    weight w f32 [16,16] on a\nweight v f32 [16,16] on b\ninput x f32 [16,4]\ninput rows i32 [4]\n"
        .to_owned();
    let mut last = "x".to_owned();
    for i in 0..nodes / 7 {
        let weight = if i / 50 % 2 == 0 { "w" } else { "v" };
        let _ = writeln!(
            text,
            "p{i} = mul_mat {weight} {last}\nq{i} = silu p{i}\nr{i} = reshape q{i} shape=[4,16]\ns{i} = relu r{i}\n\
             t{i} = reshape s{i} shape=[16,4]\nu{i} = add t{i} p{i}\ny{i} = add u{i} {last}"
        );
        if i % 100 == 0 {
            let _ = writeln!(
                text,
                "set{i} = set_rows cache y{i} rows\nwindow{i} = view cache shape=[16,4]\nz{i} = add y{i} window{i}"
            );
            last = format!("z{i}");
        } else {
            last = format!("y{i}");
        }
    }
    text
}

/// Most bytes above what the graph itself takes, bytes that stay with the plan, and allocations, of planning so many nodes.
fn measure(nodes: usize) -> (i64, i64, u64) {
    let text = common::parse("layers", &layers(nodes));
    let mut world = World::new();
    let graph = text.spawn(&mut world).expect("it fits");
    drop(text);
    let mut planned = Planned { world, graph, schedule: plan_schedule(Recording::Off) };
    let (before, calls) = (LIVE.load(Ordering::Relaxed), CALLS.load(Ordering::Relaxed));
    PEAK.store(before, Ordering::Relaxed);
    planned.plan();
    let size_bytes = planned.expect().size_bytes();
    let (peak, kept) = (PEAK.load(Ordering::Relaxed) - before, LIVE.load(Ordering::Relaxed) - before);
    let calls = CALLS.load(Ordering::Relaxed) - calls;
    // The plan goes with its graph and the cache.
    publish::unpublish(&mut planned.world, graph);
    planned.world.resource_mut::<PlanCache>().clear();
    assert!(LIVE.load(Ordering::Relaxed) - before < kept, "the plan stays behind");
    // What it shared with the graph and the passes is counted as the plan's: whoever keeps it keeps that.
    planned.world.entity_mut(graph).remove::<GraphNodes>();
    planned.world.insert_resource(Nodes::default());
    let freed = kept - (LIVE.load(Ordering::Relaxed) - before);
    let said = signed(size_bytes);
    println!("{nodes} nodes: the plan says {said} bytes, and {freed} are free without it");
    assert!(said <= 2 * freed && freed <= 2 * said, "the plan says {said} bytes, and {freed} are free without it");
    (peak, kept, calls)
}

/// gg#251, pie-project/pie#461: the memory that planning takes, and the number of allocations, grow with the graph and not
/// faster; at a million nodes it is below 4 GB.
#[test]
fn report_05_memory_while_planning_is_linear_in_the_graph() {
    let mut last: Option<(i64, u64)> = None;
    // Fourfold, so that doubling columns are as full each time.
    for nodes in [2_000, 8_000, 32_000, 128_000] {
        let (peak, kept, calls) = measure(nodes);
        let per_node = peak / i64::try_from(nodes).expect("small");
        println!("{nodes} nodes: peak {peak} bytes ({per_node} a node), kept {kept}, {calls} allocations");
        assert!(per_node < 4000, "{per_node} bytes a node are more than 4 GB for a million");
        if let Some((last_peak, last_calls)) = last {
            assert!(peak <= last_peak * 9 / 2, "{nodes} nodes take {peak} bytes, a quarter of them {last_peak}");
            assert!(
                calls <= last_calls * 9 / 2,
                "{nodes} nodes make {calls} allocations, a quarter of them {last_calls}"
            );
        }
        last = Some((peak, calls));
    }
}
