//! Best fit in the order of steps, all arenas in one sweep, and the lower bound with it.
//!
//! Per step: what was last used in the step before is given back, then what is first used in it gets a place. Both are found
//! through lists that start at the step, so nothing is sorted. Cost: linear in steps and blocks, times the look-up in
//! [`FreeList`].

use super::{
    BlockPlace,
    free_list::{FreeList, Limits},
    search::{Job, Problem},
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
    live_bytes: u128,
    peak_bytes: u128,
    /// The same with blocks as long as their alignment makes them.
    live_aligned: u128,
    peak_aligned: u128,
    /// The most bytes that alignment alone asks for.
    slack: u64,
    /// How many blocks it has.
    pub(super) blocks: usize,
}

impl ArenaState {
    /// The largest sum of live bytes over the steps.
    pub(super) fn bound_bytes(&self) -> u64 {
        u64::try_from(self.peak_bytes).unwrap_or(u64::MAX)
    }

    /// What no layout goes below: blocks begin aligned, so all but the last one in a buffer take their aligned bytes.
    pub(super) fn target_bytes(&self) -> u64 {
        let aligned = self.peak_aligned.saturating_sub(u128::from(self.slack));
        u64::try_from(self.peak_bytes.max(aligned)).unwrap_or(u64::MAX)
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
        self.live_bytes += u128::from(block.size_bytes);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        let aligned = self.limits.end(0, block.size_bytes);
        self.live_aligned += u128::from(aligned);
        self.peak_aligned = self.peak_aligned.max(self.live_aligned);
        self.slack = self.slack.max(aligned - block.size_bytes);
        if block.size_bytes == 0 { BlockPlace::default() } else { self.free.take(block.size_bytes) }
    }

    fn remove(&mut self, place: BlockPlace, size: u64, keep: u64) {
        self.live_bytes -= u128::from(size - keep);
        self.live_aligned -= u128::from(self.limits.end(0, size) - self.limits.end(0, keep));
        self.free.free(place, size, keep);
    }
}

/// The sweep, kept so that the next one finds its memory.
#[derive(Default)]
pub struct Sweep {
    pub(super) arenas: Vec<ArenaState>,
    /// Per step its first block to come and its first block to go, then per block the next one.
    starts: Vec<u32>,
    ends: Vec<u32>,
    next_start: Vec<u32>,
    next_end: Vec<u32>,
    /// What is still in use of each block, where some shrink.
    left: Vec<u64>,
}

impl Sweep {
    /// A place for every block, in buffers that are numbered by arena.
    pub(super) fn place_all(&mut self, live: &Live, places: &mut Vec<BlockPlace>) {
        self.reset(live);
        places.clear();
        places.resize(live.blocks.len(), BlockPlace::default());
        let mut shrinks = live.shrinks.iter().peekable();
        for step in 0..self.starts.len() {
            if let Some(before) = step.checked_sub(1) {
                let mut b = self.ends[before];
                while b != NONE {
                    let i = b as usize;
                    let block = &live.blocks[i];
                    let size = self.left.get(i).copied().unwrap_or(block.size_bytes);
                    self.arenas[block.arena as usize].remove(places[i], size, 0);
                    b = self.next_end[i];
                }
                while let Some(shrink) = shrinks.next_if(|shrink| shrink.step as usize == before) {
                    let i = shrink.block as usize;
                    let size = std::mem::replace(&mut self.left[i], shrink.size_bytes);
                    self.arenas[live.blocks[i].arena as usize].remove(places[i], size, shrink.size_bytes);
                }
            }
            let mut b = self.starts[step];
            while b != NONE {
                let i = b as usize;
                let block = &live.blocks[i];
                places[i] = self.arenas[block.arena as usize].add(block);
                let end = &mut self.ends[block.last as usize];
                self.next_end[i] = std::mem::replace(end, b);
                b = self.next_start[i];
            }
        }
    }

    /// The blocks of an arena that have bytes, by first step, as the last [`Self::place_all`] found them.
    pub(super) fn problem(&self, arena: usize, live: &Live) -> Problem {
        let mut jobs = Vec::with_capacity(self.arenas[arena].blocks);
        for &start in &self.starts {
            let mut b = start;
            while b != NONE {
                let Block { arena: of, size_bytes: size, first, last } = live.blocks[b as usize];
                if of as usize == arena && size > 0 {
                    jobs.push(Job { block: b, first, last, size });
                }
                b = self.next_start[b as usize];
            }
        }
        let state = &self.arenas[arena];
        Problem::new(state.limits, jobs, &live.shrinks, state.target_bytes())
    }

    fn reset(&mut self, live: &Live) {
        self.arenas.resize_with(live.arenas.len(), ArenaState::default);
        for (state, arena) in self.arenas.iter_mut().zip(&live.arenas) {
            let limits = Limits::new(arena.align_bytes, arena.max_buffer_bytes);
            let mut free = std::mem::take(&mut state.free);
            free.reset(limits);
            *state = ArenaState { free, limits, ..ArenaState::default() };
        }
        let steps = live.steps.max(1) as usize;
        for heads in [&mut self.starts, &mut self.ends] {
            heads.clear();
            heads.resize(steps, NONE);
        }
        for next in [&mut self.next_start, &mut self.next_end] {
            next.clear();
            next.resize(live.blocks.len(), NONE);
        }
        // From the last to the first, so that each list is in the order of blocks.
        for (b, block) in live.blocks.iter().enumerate().rev() {
            let start = &mut self.starts[block.first as usize];
            self.next_start[b] = std::mem::replace(start, index_u32(b));
        }
        self.left.clear();
        if !live.shrinks.is_empty() {
            self.left.extend(live.blocks.iter().map(|block| block.size_bytes));
        }
    }
}
