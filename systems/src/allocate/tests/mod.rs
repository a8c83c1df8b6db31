//! Layouts of networks, of random lifetimes and of hand-made corners.

mod corners;
mod free_list;
mod net;
mod nets;
mod properties;
mod quality;
mod repeats;

use std::collections::BTreeMap;

use super::{Allocated, Sweep};
use crate::liveness::{Arena, Block, Live, Shrink};

/// A small generator of random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn below_u32(&mut self, end: u32) -> u32 {
        u32::try_from(self.below(end.into())).expect("below a u32")
    }

    /// Small numbers often, large ones seldom.
    fn heavy(&mut self, max: u64) -> u64 {
        let bits = self.below(u64::from(max.ilog2()) + 1);
        (1 << bits) + self.below(1 << bits)
    }
}

/// One arena of host memory, and these blocks: bytes, first and last step.
fn live(align_bytes: u64, max_buffer_bytes: u64, blocks: &[(u64, u32, u32)]) -> Live {
    let mut live = Live::default();
    let kind = entensor_components::MemoryKind::host();
    live.arenas.push(Arena { buffer_type: "host".into(), kind, owner: 0, align_bytes, max_buffer_bytes });
    live.steps = blocks.iter().map(|&(_, _, last)| last + 1).max().unwrap_or(0);
    let block = |&(size_bytes, first, last): &(u64, u32, u32)| Block { arena: 0, size_bytes, first, last };
    live.blocks.extend(blocks.iter().map(block));
    live
}

/// The layout, proved.
fn plan(live: &Live) -> Allocated {
    let mut allocated = Allocated::default();
    super::place(live, &mut Sweep::default(), &mut allocated).expect("the plan is not too large");
    prove(live, &allocated);
    allocated
}

/// Bytes of a block in a step, after what has been given back before.
fn bytes_in(live: &Live, block: usize, step: u32) -> u64 {
    let of_block = |shrink: &&Shrink| shrink.block as usize == block && shrink.step < step;
    let left = live.shrinks.iter().rfind(of_block).map(|shrink| shrink.size_bytes);
    left.unwrap_or(live.blocks[block].size_bytes)
}

/// Checks a layout step by step, in the plainest way.
fn prove(live: &Live, allocated: &Allocated) {
    for buffer in &allocated.buffers {
        assert!(buffer.size_bytes <= live.arenas[buffer.arena as usize].max_buffer_bytes, "{buffer:?}");
    }
    let mut ends = vec![0; allocated.buffers.len()];
    for (block, place) in live.blocks.iter().zip(&allocated.places) {
        let buffer = &allocated.buffers[place.buffer as usize];
        assert_eq!(buffer.arena, block.arena);
        let end = place.offset_bytes + block.size_bytes;
        assert!(end <= buffer.size_bytes, "{block:?} at {place:?} ends outside {buffer:?}");
        assert!(place.offset_bytes.is_multiple_of(live.arenas[block.arena as usize].align_bytes), "{place:?}");
        ends[place.buffer as usize] = end.max(ends[place.buffer as usize]);
    }
    for (end, buffer) in ends.iter().zip(&allocated.buffers) {
        assert_eq!(*end, buffer.size_bytes, "no byte of a buffer is without use");
    }
    let mut bounds = vec![0_u64; live.arenas.len()];
    for step in 0..live.steps.max(1) {
        let mut sums = vec![0; live.arenas.len()];
        // (buffer, start) → end.
        let mut alive: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        for (i, block) in live.blocks.iter().enumerate().filter(|(_, b)| b.first <= step && step <= b.last) {
            let bytes = bytes_in(live, i, step);
            sums[block.arena as usize] += bytes;
            let place = allocated.places[i];
            let (start, end) = (place.offset_bytes, place.offset_bytes + bytes);
            if bytes == 0 {
                continue;
            }
            let before = alive.range(..(place.buffer, end)).next_back();
            let clear = before.is_none_or(|(&(buffer, _), &end)| buffer != place.buffer || end <= start);
            assert!(clear, "step {step}: {block:?} at {place:?} meets {before:?}");
            alive.insert((place.buffer, start), end);
        }
        for (bound, sum) in bounds.iter_mut().zip(sums) {
            *bound = sum.max(*bound);
        }
    }
    assert_eq!(allocated.lower_bound_bytes, bounds.iter().sum::<u64>(), "the largest sum of live bytes");
    assert!(allocated.planned_bytes() >= allocated.lower_bound_bytes);
}
