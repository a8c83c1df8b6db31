//! Layers that repeat, with and without something before, behind and among them.

use super::{Random, live, plan};
use crate::{
    allocate::free_list::Limits,
    allocate::search::{Goal, Job, Problem, repeat},
    liveness::Live,
};

/// Blocks of one layer, each with its first step in the layer and how long it lives, in any order.
fn layer(random: &mut Random, steps: u32) -> Vec<(u64, u32, u32)> {
    let blocks = 2 + random.below(12);
    (0..blocks).map(|_| (random.heavy(1 << 14), random.below_u32(steps), random.below_u32(steps))).collect()
}

/// A stack of such layers between blocks that belong to none.
fn stack(random: &mut Random) -> Live {
    let steps = 4 + random.below_u32(20);
    let (layer, layers) = (layer(random, steps), 3 + random.below_u32(12));
    let (before, behind) = (random.below_u32(6), random.below_u32(6));
    let end = before + layers * steps + behind;
    let mut blocks = Vec::new();
    for start in (0..layers).map(|index| before + index * steps) {
        blocks.extend(layer.iter().map(|&(size, first, life)| (size, start + first, (start + first + life).min(end))));
    }
    for _ in 0..random.below(5) {
        let first =
            if random.below(2) == 0 { random.below_u32(before + 1) } else { end - random.below_u32(behind + 1) };
        blocks.push((random.heavy(1 << 14), first, (first + random.below_u32(2 * steps)).min(end)));
    }
    for _ in 0..random.below(3) {
        blocks.push((random.heavy(1 << 12), 0, end));
    }
    blocks.sort_by_key(|&(_, first, _)| first);
    live(1 << random.below(7), u64::MAX, &blocks)
}

fn problem(live: &Live) -> (Problem, u64) {
    let jobs =
        (0..).zip(&live.blocks).map(|(block, b)| Job { block, first: b.first, last: b.last, size: b.size_bytes });
    let limits = Limits::new(live.arenas[0].align_bytes, u64::MAX);
    let aligned = |b: &crate::liveness::Block| limits.end(0, b.size_bytes);
    let target = (0..live.steps)
        .map(|step| live.blocks.iter().filter(|b| b.first <= step && step <= b.last).map(aligned).sum::<u64>())
        .max()
        .unwrap_or(0);
    (Problem::new(limits, jobs.collect(), &live.shrinks, Goal { target, scale: target }), target)
}

#[test]
fn repeating_layers_never_overlap() {
    let mut repeated = 0;
    for seed in 0..600 {
        let live = stack(&mut Random(seed));
        let allocated = plan(&live);
        let (problem, target) = problem(&live);
        let Some(layout) = repeat::repeat(&problem, u64::MAX) else { continue };
        repeated += 1;
        // What is alive together is apart, whether or not the pass took this layout.
        let jobs: Vec<&Job> = problem.jobs.iter().chain(&problem.permanent).collect();
        for (i, (a, at)) in jobs.iter().zip(&layout.places).enumerate() {
            assert!(at.offset_bytes.is_multiple_of(live.arenas[0].align_bytes), "seed {seed}: {at:?}");
            assert!(at.offset_bytes + a.size <= layout.sizes[0], "seed {seed}: {at:?} ends outside");
            for (b, other) in jobs[..i].iter().zip(&layout.places) {
                let apart = a.last < b.first
                    || b.last < a.first
                    || at.offset_bytes + a.size <= other.offset_bytes
                    || other.offset_bytes + b.size <= at.offset_bytes;
                assert!(apart, "seed {seed}: {a:?} at {at:?} meets {b:?} at {other:?}");
            }
        }
        assert!(allocated.planned_bytes() <= layout.sizes[0].max(target + target / 1024), "seed {seed}");
    }
    println!("{repeated} of 600 stacks are laid out as a circle");
    assert!(repeated >= 200, "{repeated}");
}

/// Blocks that hand over to each other need two places in turn.
#[test]
fn layers_may_take_turns() {
    let blocks: Vec<(u64, u32, u32)> = (0..60).map(|i| (64, i, i + 1)).collect();
    let live = live(32, u64::MAX, &blocks);
    let (problem, target) = problem(&live);
    let layout = repeat::repeat(&problem, u64::MAX).expect("two layers as one fit");
    assert_eq!((layout.sizes[0], target), (128, 128));
}

#[test]
fn what_does_not_repeat_is_no_stack() {
    let mut random = Random(3);
    let blocks: Vec<(u64, u32, u32)> =
        (0..200).map(|first| (random.heavy(1 << 16), first, first + random.below_u32(9))).collect();
    assert!(repeat::repeat(&problem(&live(32, u64::MAX, &blocks)).0, u64::MAX).is_none());
    for few in 0..4_u32 {
        let blocks: Vec<(u64, u32, u32)> = (0..few).map(|first| (64, first, first + 1)).collect();
        let (problem, _) = problem(&live(32, u64::MAX, &blocks));
        assert!(repeat::repeat(&problem, u64::MAX).is_none_or(|layout| layout.sizes[0] <= 128));
    }
}
