//! Best fit in the order of steps, all arenas in one sweep, and the lower bound with it.
//!
//! Per step: what is first used in it gets a place, then what is last used in it is given back. Blocks mostly stand in the order
//! of their first step; those that end with a step are in a list that begins there. Cost: linear in steps and blocks, times
//! the look-up in [`FreeList`].

use super::{
    BlockPlace,
    free_list::{FreeList, Limits},
    search::{Goal, Job, Problem},
};
use crate::{
    columns::index_u32,
    liveness::{Block, Live},
};

const NONE: u32 = u32::MAX;

/// An arena while its blocks come and go.
#[derive(Default)]
pub(super) struct ArenaState {
    free: FreeList,
    limits: Limits,
    /// Sums saturate: a peak that does is an error in the end.
    live_bytes: u64,
    peak_bytes: u64,
    /// The same with blocks as long as their alignment makes them.
    live_aligned: u64,
    peak_aligned: u64,
    /// The most bytes that alignment alone asks for.
    slack: u64,
    /// How many blocks it has.
    pub(super) blocks: usize,
}

impl ArenaState {
    /// The largest sum of live bytes over the steps.
    pub(super) fn bound_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// What no layout goes below: blocks begin aligned, so all but the last one in a buffer take their aligned bytes.
    pub(super) fn target_bytes(&self) -> u64 {
        self.peak_bytes.max(self.peak_aligned.saturating_sub(self.slack))
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.sizes().into_iter().fold(0, u64::saturating_add)
    }

    /// Sizes of its buffers.
    pub(super) fn sizes(&self) -> Vec<u64> {
        let sizes = self.free.sizes();
        // Blocks of no bytes are in a buffer, too.
        if sizes.is_empty() && self.blocks > 0 { vec![0] } else { sizes }
    }

    fn add(&mut self, block: &Block) -> BlockPlace {
        self.blocks += 1;
        self.live_bytes = self.live_bytes.saturating_add(block.size_bytes);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        let aligned = self.limits.end(0, block.size_bytes);
        self.live_aligned = self.live_aligned.saturating_add(aligned);
        self.peak_aligned = self.peak_aligned.max(self.live_aligned);
        self.slack = self.slack.max(aligned - block.size_bytes);
        if block.size_bytes == 0 { BlockPlace::default() } else { self.free.take(block.size_bytes) }
    }

    fn remove(&mut self, place: BlockPlace, size: u64, keep: u64) {
        self.live_bytes = self.live_bytes.saturating_sub(size - keep);
        let aligned = self.limits.end(0, size) - self.limits.end(0, keep);
        self.live_aligned = self.live_aligned.saturating_sub(aligned);
        self.free.free(place, size, keep);
    }
}

/// The sweep, kept so that the next one finds its memory.
#[derive(Default)]
pub struct Sweep {
    pub(super) arenas: Vec<ArenaState>,
    /// The blocks by first step; empty if they stand so already, as they do unless there are copies or scratch leaves.
    order: Vec<u32>,
    /// Per step the first block to go, and per block the next one that goes with it.
    ends: Vec<u32>,
    next: Vec<u32>,
    /// What is still in use of each block, where some shrink.
    left: Vec<u64>,
}

impl Sweep {
    /// A place for every block, in buffers that are numbered by arena.
    ///
    /// # Errors
    /// The first block that no buffer may hold.
    pub(super) fn place_all(&mut self, live: &Live, places: &mut Vec<BlockPlace>) -> Result<(), usize> {
        self.reset(live)?;
        places.clear();
        places.resize(live.blocks.len(), BlockPlace::default());
        let Self { arenas, order, ends, next, left } = self;
        let (blocks, count) = (live.blocks.as_slice(), live.blocks.len());
        let (places, next, ends) = (&mut places[..count], &mut next[..count], ends.as_mut_slice());
        let mut shrinks = live.shrinks.iter().peekable();
        let mut come = 0;
        for step in 0..ends.len() {
            while come < count {
                let i = order.get(come).map_or(come, |&b| b as usize);
                let block = &blocks[i];
                if block.first as usize != step {
                    break;
                }
                places[i] = arenas[block.arena as usize].add(block);
                next[i] = std::mem::replace(&mut ends[block.last as usize], index_u32(i));
                come += 1;
            }
            let mut gone = ends[step];
            while gone != NONE {
                let i = gone as usize;
                let size = left.get(i).copied().unwrap_or(blocks[i].size_bytes);
                arenas[blocks[i].arena as usize].remove(places[i], size, 0);
                gone = next[i];
            }
            while let Some(shrink) = shrinks.next_if(|shrink| shrink.step as usize == step) {
                let i = shrink.block as usize;
                let size = std::mem::replace(&mut left[i], shrink.size_bytes);
                arenas[blocks[i].arena as usize].remove(places[i], size, shrink.size_bytes);
            }
        }
        Ok(())
    }

    /// An even share of what all arenas need at least.
    pub(super) fn share_bytes(&self) -> u64 {
        let all = self.arenas.iter().fold(0_u64, |sum, arena| sum.saturating_add(arena.bound_bytes()));
        all / self.arenas.len().max(1) as u64
    }

    /// The blocks of an arena that have bytes, by first step, after [`Self::place_all`].
    pub(super) fn problem(&self, arena: usize, live: &Live, goal: Goal) -> Problem {
        let mut jobs = Vec::with_capacity(self.arenas[arena].blocks);
        for come in 0..live.blocks.len() {
            let b = self.order.get(come).copied().unwrap_or(index_u32(come));
            let Block { arena: of, size_bytes: size, first, last } = live.blocks[b as usize];
            if of as usize == arena && size > 0 {
                jobs.push(Job { block: b, first, last, size });
            }
        }
        Problem::new(self.arenas[arena].limits, jobs, &live.shrinks, goal)
    }

    fn reset(&mut self, live: &Live) -> Result<(), usize> {
        self.arenas.resize_with(live.arenas.len(), ArenaState::default);
        for (state, arena) in self.arenas.iter_mut().zip(&live.arenas) {
            let limits = Limits::new(arena.align_bytes, arena.max_buffer_bytes);
            let mut free = std::mem::take(&mut state.free);
            free.reset(limits);
            *state = ArenaState { free, limits, ..ArenaState::default() };
        }
        let (mut sorted, mut fits, mut before) = (true, true, 0);
        for block in &live.blocks {
            sorted &= block.first >= before;
            fits &= block.size_bytes <= self.arenas[block.arena as usize].limits.max_bytes;
            before = block.first;
        }
        let fit = |block: &Block| block.size_bytes <= self.arenas[block.arena as usize].limits.max_bytes;
        if let Some(block) = live.blocks.iter().position(|block| !fits && !fit(block)) {
            return Err(block);
        }
        self.order.clear();
        if !sorted {
            self.order.extend(0..index_u32(live.blocks.len()));
            // A few sorted runs, which a stable sort finds.
            self.order.sort_by_key(|&b| live.blocks[b as usize].first);
        }
        self.ends.clear();
        self.ends.resize(live.steps.max(1) as usize, NONE);
        self.next.resize(live.blocks.len(), NONE);
        self.left.clear();
        if !live.shrinks.is_empty() {
            self.left.extend(live.blocks.iter().map(|block| block.size_bytes));
        }
        Ok(())
    }
}
