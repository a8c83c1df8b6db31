//! Limits, alignment, chains that shrink, and what has no bytes.

use super::{live, nets, plan};
use crate::{
    allocate::{Allocated, BlockPlace, Sweep, place},
    liveness::{Live, Shrink},
};

/// Report 18.
#[test]
fn no_buffer_is_above_the_limit_and_no_block_in_two() {
    let allocated = plan(&live(32, 64, &[(40, 0, 4); 5]));
    assert_eq!(allocated.buffers.len(), 5);
    assert_eq!(allocated.planned_bytes(), 200);
    // Two fit into each.
    let allocated = plan(&live(32, 64, &[(32, 0, 4); 5]));
    assert_eq!(allocated.buffers.iter().map(|b| b.size_bytes).collect::<Vec<_>>(), [64, 64, 32]);
}

/// Report 18: lifetimes that end leave whole buffers to others.
#[test]
fn buffers_are_used_again() {
    let blocks: Vec<(u64, u32, u32)> = (0..40).map(|i| (40 + u64::from(i % 3), i / 4, i / 4)).collect();
    let allocated = plan(&live(32, 64, &blocks));
    assert_eq!(allocated.buffers.len(), 4);
}

#[test]
fn bytes_that_only_alignment_asks_for_are_never_given_away() {
    // 100 bytes align to 128, but the buffer ends at 100: two blocks of 60 do not fit into what the first leaves.
    let allocated = plan(&live(64, 100, &[(100, 0, 0), (60, 1, 1), (60, 1, 1)]));
    assert_eq!(allocated.planned_bytes(), 160);
}

#[test]
fn every_alignment_is_kept() {
    for align in (0..=12).map(|bits| 1 << bits) {
        let live = nets::llama(nets::Llama { layers: 3, ..nets::SMOL }).live(align, u64::MAX);
        let allocated = plan(&live);
        assert!(allocated.planned_bytes() < allocated.lower_bound_bytes + 12 * align);
    }
}

#[test]
fn freed_ranges_merge_and_are_used_again() {
    let allocated = plan(&live(32, u64::MAX, &[(64, 0, 1), (64, 0, 1), (64, 0, 9), (128, 2, 3)]));
    assert_eq!(allocated.planned_bytes(), 192);
}

/// Report 28: what a shrinking chain gives back is free from the next step on, and merges with what lies beside it.
#[test]
fn chains_that_shrink_give_their_ends_back() {
    let mut live = live(32, u64::MAX, &[(1024, 0, 9), (512, 3, 9), (256, 6, 9), (128, 9, 9)]);
    for (step, size_bytes) in [(2, 512), (5, 256), (8, 100)] {
        live.shrinks.push(Shrink { step, block: 0, size_bytes });
    }
    let allocated = plan(&live);
    assert_eq!((allocated.planned_bytes(), allocated.lower_bound_bytes), (1024, 1024));
    // One step earlier, it is not free yet.
    live.blocks[1].first = 2;
    assert_eq!(plan(&live).lower_bound_bytes, 1536);
}

#[test]
fn a_chain_may_shrink_to_nothing() {
    let mut live = live(32, u64::MAX, &[(64, 0, 5), (64, 1, 5)]);
    live.shrinks.push(Shrink { step: 0, block: 0, size_bytes: 0 });
    assert_eq!(plan(&live).planned_bytes(), 64);
}

#[test]
fn blocks_of_no_bytes_have_a_place() {
    let allocated = plan(&live(32, 64, &[(0, 0, 1), (0, 1, 1)]));
    assert_eq!((allocated.buffers.len(), allocated.planned_bytes()), (1, 0));
    let allocated = plan(&live(32, 50, &[(50, 0, 1), (0, 0, 1)]));
    assert_eq!(allocated.places, [BlockPlace::default(); 2]);
    assert!(plan(&Live::default()).buffers.is_empty());
}

/// Blocks that are alive throughout lie at the start, and cost the others nothing.
#[test]
fn inputs_stand_aside() {
    let mut blocks = vec![(4, 0, 9), (100, 0, 9), (2048, 0, 9)];
    blocks.extend((0..9).map(|step| (1000 + 8 * u64::from(step), step, step + 1)));
    let allocated = plan(&live(1, u64::MAX, &blocks));
    assert_eq!(allocated.planned_bytes(), allocated.lower_bound_bytes);
}

#[test]
fn sums_beyond_64_bits_saturate() {
    let too_large = i64::MAX.unsigned_abs() + 1;
    for align in [1, 32, 1 << 40, 1 << 63] {
        let mut allocated = Allocated::default();
        let one = place(&live(align, u64::MAX, &[(8, 0, 0), (too_large, 0, 0)]), &mut Sweep::default(), &mut allocated);
        assert_eq!(one, Err(1), "no offset may be so large");
        for blocks in [&[(1 << 62, 0, 0); 9][..], &[(i64::MAX.unsigned_abs(), 0, 1); 3]] {
            let many = place(&live(align, u64::MAX, blocks), &mut Sweep::default(), &mut allocated);
            assert_eq!(many, Ok(()));
            assert!(allocated.planned_bytes() > i64::MAX.unsigned_abs(), "the pass says that this is too much");
        }
    }
    // One after another they fit.
    let blocks: Vec<(u64, u32, u32)> = (0..9).map(|step| (1 << 62, step, step)).collect();
    assert_eq!(plan(&live(32, u64::MAX, &blocks)).planned_bytes(), 1 << 62);
}
