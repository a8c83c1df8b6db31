//! Random lifetimes on random machines: every layout is proved step by step.

use super::{Random, live, plan};
use crate::{
    columns::index_u32,
    liveness::{Arena, Live, Shrink},
};

/// Lifetimes without any order.
fn random_live(random: &mut Random) -> Live {
    let align = 1 << random.below(13);
    let largest = 1 << random.below(16);
    let max_buffer = match random.below(3) {
        0 => u64::MAX,
        1 => 2 * largest,
        _ => largest * (2 + random.below(20)),
    };
    let steps = 1 + random.below_u32(40);
    let blocks: Vec<(u64, u32, u32)> = (0..random.below(60))
        .map(|_| {
            let first = random.below_u32(steps);
            let reach = if random.below(4) == 0 { steps - first } else { (steps - first).min(4) };
            let bytes = if random.below(20) == 0 { 0 } else { random.heavy(largest) };
            (bytes, first, first + random.below_u32(reach))
        })
        .collect();
    let mut live = live(align, max_buffer, &blocks);
    live.steps = steps;
    for _ in 0..random.below(3) {
        let arena = Arena { align_bytes: 1 << random.below(9), buffer_type: "device".into(), ..live.arenas[0].clone() };
        live.arenas.push(arena);
    }
    let arenas = index_u32(live.arenas.len());
    live.blocks.iter_mut().for_each(|block| block.arena = random.below_u32(arenas));
    if random.below(2) == 0 {
        add_shrinks(random, &mut live);
    }
    live
}

/// Some blocks become smaller, some several times.
fn add_shrinks(random: &mut Random, live: &mut Live) {
    for (i, block) in live.blocks.iter().enumerate() {
        let (mut step, mut size_bytes) = (block.first, block.size_bytes);
        while step < block.last && size_bytes > 0 && random.below(3) == 0 {
            step += random.below_u32(block.last - step);
            size_bytes = random.below(size_bytes);
            live.shrinks.push(Shrink { step, block: index_u32(i), size_bytes });
            step += 1;
        }
    }
    live.shrinks.sort_by_key(|shrink| (shrink.step, shrink.block));
}

/// Reports 18, 26 and 29.
#[test]
fn random_lifetimes_never_overlap() {
    for seed in 0..500 {
        let live = random_live(&mut Random(seed));
        let first = plan(&live);
        let second = plan(&live);
        assert_eq!(first.places, second.places, "seed {seed}");
    }
}

/// Report 26: ten thousand lifetimes that all interleave, sizes over many magnitudes.
#[test]
fn ten_thousand_interleaved_lifetimes() {
    let mut random = Random(26);
    let blocks: Vec<(u64, u32, u32)> = (0..10_000)
        .map(|first| (random.heavy(1 << 16), first, (first + 1 + random.below_u32(400)).min(9_999)))
        .collect();
    let allocated = plan(&live(32, u64::MAX, &blocks));
    let ratio = allocated.planned_bytes() as f64 / allocated.lower_bound_bytes as f64;
    println!("{ratio:.4}");
    assert!(ratio < 1.10, "{ratio}");
}

/// Report 26: nothing but holes. Every second block goes, then blocks come that fit no hole, then some that fit.
#[test]
fn ten_thousand_holes() {
    let mut blocks: Vec<(u64, u32, u32)> =
        (0..10_000).map(|i| (64 + 32 * (i % 7), 0, if i % 2 == 0 { 0 } else { 3 })).collect();
    blocks.extend((0..2_000).map(|_| (512, 1, 3)));
    blocks.extend((0..5_000).map(|i| (64 + 32 * (i % 7), 2, 3)));
    let allocated = plan(&live(32, u64::MAX, &blocks));
    assert!(allocated.planned_bytes() * 10 <= allocated.lower_bound_bytes * 11);
}
