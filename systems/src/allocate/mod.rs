//! **allocate**: gives each block its bytes in a planned buffer.
//!
//! Reads: `Live`, backends. Writes: `Allocated`.
//! Invariants: blocks that are alive in one step never overlap; offsets are aligned; no buffer is larger than its backends'
//! largest; no block is split over two buffers; the same graph gets the same bytes on every machine. Peak bytes are known
//! before anything runs.
//! Cost: one sweep over the steps places everything by best fit (`sweep.rs`) and finds the lower bound on the way. Arenas that
//! this leaves above the bound are searched (`search/`), with an amount of work that is counted, never timed.
//! Source: DESIGN "liveness / allocate"; ggml-alloc (best fit); Pisarchyk and Lee 2020, arXiv:2001.03288 (by size).

mod free_list;
mod search;
mod sweep;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bevy_ecs::prelude::*;

use crate::{
    columns::{Backends, Nodes, index_u32},
    error::PlanError,
    liveness::{Block, Holds, Live},
    split::Copies,
    status::PassResult,
};
use search::{Budget, Goal};
use sweep::Sweep;

/// A buffer that the plan needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBuffer {
    /// Its arena.
    pub arena: u32,
    /// Its place among the arena's buffers.
    pub ordinal: u32,
    /// Its size.
    pub size_bytes: u64,
}

/// A block's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockPlace {
    /// Index into [`Allocated::buffers`].
    pub buffer: u32,
    /// Bytes from its start.
    pub offset_bytes: u64,
}

/// Where everything is.
#[derive(Resource, Clone, Debug, Default)]
pub struct Allocated {
    /// The buffers the plan needs.
    pub buffers: Vec<PlannedBuffer>,
    /// The place of each block.
    pub places: Vec<BlockPlace>,
    /// The largest sum of live bytes over the steps, summed over arenas: no plan with these lifetimes can be smaller.
    pub lower_bound_bytes: u64,
}

impl Allocated {
    /// Bytes of all buffers.
    #[must_use]
    pub fn planned_bytes(&self) -> u64 {
        self.buffers.iter().fold(0, |sum, b| sum.saturating_add(b.size_bytes))
    }
}

/// The pass.
pub fn allocate(
    live: Res<'_, Live>,
    backends: Res<'_, Backends>,
    nodes: Res<'_, Nodes>,
    copies: Res<'_, Copies>,
    mut allocated: ResMut<'_, Allocated>,
    mut sweep: Local<'_, Sweep>,
) -> PassResult {
    place(&live, &mut sweep, &mut allocated).map_err(|block| too_large(block, &live, &backends, &nodes, &copies))?;
    let size_bytes = allocated.planned_bytes();
    if i64::try_from(size_bytes).is_err() {
        return Err(PlanError::TooMuchMemory { size_bytes });
    }
    Ok(allocated.buffers.len())
}

/// Places all blocks.
///
/// # Errors
/// The first block that no buffer may hold.
fn place(live: &Live, sweep: &mut Sweep, allocated: &mut Allocated) -> Result<(), usize> {
    allocated.buffers.clear();
    allocated.lower_bound_bytes = 0;
    sweep.place_all(live, &mut allocated.places)?;
    let share = sweep.share_bytes();
    for (a, arena) in sweep.arenas.iter().enumerate() {
        allocated.lower_bound_bytes = allocated.lower_bound_bytes.saturating_add(arena.bound_bytes());
        // Its own buffers are numbered from zero so far.
        let base = index_u32(allocated.buffers.len());
        let mut sizes = arena.sizes();
        let total = arena.total_bytes();
        let target = arena.target_bytes();
        let goal = Goal { target, scale: target.max(share) };
        if !goal.is_near(total) {
            let mut problem = sweep.problem(a, live, goal);
            if let Some(layout) = search::search(&mut problem, total, Budget::of(arena.blocks)) {
                for (job, &place) in problem.jobs.iter().chain(&problem.permanent).zip(&layout.places) {
                    allocated.places[job.block as usize] = place;
                }
                sizes = layout.sizes;
            }
        }
        if base > 0 && arena.blocks > 0 {
            let of_arena = live.blocks.iter().zip(&mut allocated.places).filter(|(block, _)| block.arena as usize == a);
            of_arena.for_each(|(_, place)| place.buffer += base);
        }
        for (ordinal, size_bytes) in sizes.into_iter().enumerate() {
            allocated.buffers.push(PlannedBuffer { arena: index_u32(a), ordinal: index_u32(ordinal), size_bytes });
        }
    }
    Ok(())
}

fn too_large(block: usize, live: &Live, backends: &Backends, nodes: &Nodes, copies: &Copies) -> PlanError {
    let head = live.items.iter().find(|item| item.block as usize == block && item.in_place_of.is_none());
    let node = head.map(|item| match item.holds {
        Holds::Node(node) => node,
        Holds::Copy(copy) => copies.0[copy as usize].source,
    });
    let Block { arena, size_bytes, .. } = live.blocks[block];
    let arena = &live.arenas[arena as usize];
    if size_bytes <= arena.max_buffer_bytes {
        return PlanError::TooMuchMemory { size_bytes };
    }
    PlanError::TensorTooLarge {
        tensor: node.map_or_else(|| "?".into(), |node| Arc::clone(&nodes.names[node as usize])),
        size_bytes,
        backend: backends.0[arena.owner as usize].name().into(),
        max_bytes: arena.max_buffer_bytes,
    }
}
