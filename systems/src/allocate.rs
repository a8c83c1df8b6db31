//! **allocate**: gives each block its bytes in a planned buffer.
//!
//! Reads: `Live`, backends. Writes: `Allocated`.
//! Invariants: blocks that are alive in one step never overlap; offsets are aligned; no buffer is larger than its backends'
//! largest; no block is split over two buffers. Peak bytes are known before anything runs.
//! Cost: n·log n. Two strategies are tried and the smaller plan kept: best fit in step order, and largest block first for graphs
//! small enough that its quadratic worst case stays below a millisecond or so.
//! Source: DESIGN "liveness / allocate"; ggml-alloc (best fit); Pisarchyk and Lee 2020, arXiv:2001.03288 (by size).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bevy_ecs::prelude::*;

use crate::{
    columns::{Backends, Nodes, index_u32},
    error::PlanError,
    liveness::{Arena, Block, Holds, Live},
    split::Copies,
    status::PassResult,
};

/// Up to this many blocks an arena is also tried largest-first.
const BY_SIZE_MAX_BLOCKS: usize = 2048;

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
) -> PassResult {
    *allocated = Allocated { places: vec![BlockPlace::default(); live.blocks.len()], ..Allocated::default() };
    let mut arena_blocks = vec![Vec::new(); live.arenas.len()];
    for item in live.items.iter().filter(|item| item.in_place_of.is_none()) {
        let block = &live.blocks[item.block as usize];
        let arena = &live.arenas[block.arena as usize];
        if block.size_bytes > arena.max_buffer_bytes {
            let node = match item.holds {
                Holds::Node(node) => node,
                Holds::Copy(copy) => copies.0[copy as usize].source,
            };
            return Err(PlanError::TensorTooLarge {
                tensor: Arc::clone(&nodes.names[node as usize]),
                size_bytes: block.size_bytes,
                backend: backends.0[arena.owner as usize].name().into(),
                max_bytes: arena.max_buffer_bytes,
            });
        }
        arena_blocks[block.arena as usize].push(item.block as usize);
    }
    for (a, blocks) in arena_blocks.iter().enumerate() {
        let arena = &live.arenas[a];
        let mut best = best_fit(arena, &live.blocks, blocks);
        let bound = lower_bound(&live.blocks, blocks);
        if best.total_bytes() > bound && blocks.len() <= BY_SIZE_MAX_BLOCKS {
            let other = by_size(arena, &live.blocks, blocks);
            if other.total_bytes() < best.total_bytes() {
                best = other;
            }
        }
        allocated.lower_bound_bytes = allocated.lower_bound_bytes.saturating_add(bound);
        let base = index_u32(allocated.buffers.len());
        for (&block, place) in blocks.iter().zip(&best.places) {
            allocated.places[block] = BlockPlace { buffer: base + place.buffer, ..*place };
        }
        for (ordinal, &size_bytes) in best.sizes.iter().enumerate() {
            let buffer = PlannedBuffer { arena: index_u32(a), ordinal: index_u32(ordinal), size_bytes };
            allocated.buffers.push(buffer);
        }
    }
    let size_bytes = allocated.planned_bytes();
    if i64::try_from(size_bytes).is_err() {
        return Err(PlanError::TooMuchMemory { size_bytes });
    }
    Ok(allocated.buffers.len())
}

/// One strategy's answer: sizes of the buffers, and the place of each given block.
#[derive(Default)]
struct Layout {
    sizes: Vec<u64>,
    places: Vec<BlockPlace>,
}

impl Layout {
    fn total_bytes(&self) -> u64 {
        self.sizes.iter().fold(0, |sum, size| sum.saturating_add(*size))
    }
}

/// The largest sum of live bytes over the steps.
fn lower_bound(all: &[Block], blocks: &[usize]) -> u64 {
    let mut changes: Vec<(u32, i128)> = Vec::with_capacity(blocks.len() * 2);
    for &b in blocks {
        changes.push((all[b].first, i128::from(all[b].size_bytes)));
        changes.push((all[b].last + 1, -i128::from(all[b].size_bytes)));
    }
    changes.sort_unstable();
    let (mut sum, mut peak) = (0_i128, 0_i128);
    for (_, change) in changes {
        sum += change;
        peak = peak.max(sum);
    }
    u64::try_from(peak).unwrap_or(u64::MAX)
}

/// The buffers of an arena while they fill: free ranges found by size and by place, and how far each may still grow. Every
/// look-up is logarithmic in the number of ranges, however many buffers there are.
#[derive(Default)]
struct FreeList {
    max_buffer_bytes: u64,
    sizes: Vec<u64>,
    /// (buffer, offset) → size.
    by_offset: BTreeMap<(u32, u64), u64>,
    /// (size, buffer, offset).
    by_size: BTreeSet<(u64, u32, u64)>,
    /// Per buffer, from the start of its free tail to the largest size it may have.
    rooms: Vec<u64>,
    /// (room, buffer).
    by_room: BTreeSet<(u64, u32)>,
}

impl FreeList {
    fn size(&self, buffer: u32) -> u64 {
        self.sizes[buffer as usize]
    }

    /// Gives a range back; neighbours merge.
    fn insert(&mut self, buffer: u32, mut offset: u64, mut size: u64) {
        if size == 0 {
            return;
        }
        if let Some((&(_, before), &len)) = self.by_offset.range((buffer, 0)..(buffer, offset)).next_back()
            && before + len == offset
        {
            self.remove(buffer, before, len);
            offset = before;
            size += len;
        }
        if let Some(&len) = self.by_offset.get(&(buffer, offset + size)) {
            self.remove(buffer, offset + size, len);
            size += len;
        }
        self.by_offset.insert((buffer, offset), size);
        self.by_size.insert((size, buffer, offset));
        self.measure(buffer);
    }

    fn remove(&mut self, buffer: u32, offset: u64, size: u64) {
        self.by_offset.remove(&(buffer, offset));
        self.by_size.remove(&(size, buffer, offset));
        self.measure(buffer);
    }

    /// Where the free range at the end of a buffer starts; its end, if it has none.
    fn tail(&self, buffer: u32) -> u64 {
        let last = self.by_offset.range((buffer, 0)..=(buffer, u64::MAX)).next_back();
        let tail = last.filter(|&(&(_, offset), &len)| offset + len == self.size(buffer));
        tail.map_or(self.size(buffer), |(&(_, offset), _)| offset)
    }

    /// Notes how far a buffer may grow, after a change.
    fn measure(&mut self, buffer: u32) {
        let room = self.max_buffer_bytes.saturating_sub(self.tail(buffer));
        let old = std::mem::replace(&mut self.rooms[buffer as usize], room);
        if old != room {
            self.by_room.remove(&(old, buffer));
            self.by_room.insert((room, buffer));
        }
    }

    /// A place for `size` bytes: the smallest free range that holds them, else the end of the buffer with the least sufficient
    /// room, else a new buffer.
    fn take(&mut self, size: u64) -> BlockPlace {
        if let Some(&(len, buffer, offset_bytes)) = self.by_size.range((size, 0, 0)..).next() {
            self.remove(buffer, offset_bytes, len);
            self.insert(buffer, offset_bytes + size, len - size);
            return BlockPlace { buffer, offset_bytes };
        }
        if let Some(&(_, buffer)) = self.by_room.range((size, 0)..).next() {
            let offset_bytes = self.tail(buffer);
            let free = self.size(buffer) - offset_bytes;
            if free > 0 {
                self.remove(buffer, offset_bytes, free);
            }
            self.sizes[buffer as usize] = offset_bytes + size;
            self.measure(buffer);
            return BlockPlace { buffer, offset_bytes };
        }
        let buffer = index_u32(self.sizes.len());
        // A block that just fits may exceed the limit by its alignment; its own bytes do not.
        self.sizes.push(size.min(self.max_buffer_bytes));
        let room = self.max_buffer_bytes - self.size(buffer);
        self.rooms.push(room);
        self.by_room.insert((room, buffer));
        BlockPlace { buffer, offset_bytes: 0 }
    }
}

/// Best fit in the order of first use: freed ranges merge and are taken again, smallest sufficient one first.
fn best_fit(arena: &Arena, all: &[Block], blocks: &[usize]) -> Layout {
    let align = |size: u64| size.checked_next_multiple_of(arena.align_bytes).unwrap_or(size);
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|&i| (all[blocks[i]].first, i));
    let mut ends: BTreeSet<(u32, usize)> = BTreeSet::new();
    let mut free = FreeList { max_buffer_bytes: arena.max_buffer_bytes, ..FreeList::default() };
    let mut places = vec![BlockPlace::default(); blocks.len()];
    for i in order {
        let block = &all[blocks[i]];
        while let Some(&(end, done)) = ends.first().filter(|(end, _)| *end < block.first) {
            ends.remove(&(end, done));
            let BlockPlace { buffer, offset_bytes } = places[done];
            // The last block of a full buffer may lack the bytes of its alignment: they are not free, they do not exist.
            let room = free.size(buffer).saturating_sub(offset_bytes);
            free.insert(buffer, offset_bytes, align(all[blocks[done]].size_bytes).min(room));
        }
        places[i] = free.take(align(block.size_bytes));
        ends.insert((block.last, i));
    }
    Layout { sizes: free.sizes, places }
}

/// Largest block first, each at the lowest place where nothing alive at the same time is.
fn by_size(arena: &Arena, all: &[Block], blocks: &[usize]) -> Layout {
    let align = |size: u64| size.checked_next_multiple_of(arena.align_bytes).unwrap_or(size);
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(all[blocks[i]].size_bytes), all[blocks[i]].first, i));
    let mut layout = Layout { sizes: Vec::new(), places: vec![BlockPlace::default(); blocks.len()] };
    // Per buffer, what is placed, by offset: (offset, end, first step, last step).
    let mut placed: Vec<Vec<(u64, u64, u32, u32)>> = Vec::new();
    for i in order {
        let block = &all[blocks[i]];
        let size = align(block.size_bytes);
        let gap = |taken: &Vec<(u64, u64, u32, u32)>| {
            let mut offset = 0;
            for &(start, end, first, last) in taken {
                if first > block.last || last < block.first {
                    continue;
                }
                if start >= offset && start - offset >= size {
                    break;
                }
                offset = offset.max(end);
            }
            offset
        };
        let found = placed.iter().enumerate().find_map(|(b, taken)| {
            let offset = gap(taken);
            offset.checked_add(size).filter(|&end| end <= arena.max_buffer_bytes).map(|_| (b, offset))
        });
        let (buffer, offset_bytes) = found.unwrap_or_else(|| {
            placed.push(Vec::new());
            layout.sizes.push(0);
            (placed.len() - 1, 0)
        });
        let end = (offset_bytes + size).min(arena.max_buffer_bytes);
        let at = placed[buffer].partition_point(|&(start, ..)| start < offset_bytes);
        placed[buffer].insert(at, (offset_bytes, end, block.first, block.last));
        layout.sizes[buffer] = layout.sizes[buffer].max(end);
        layout.places[i] = BlockPlace { buffer: index_u32(buffer), offset_bytes };
    }
    layout
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(max_buffer_bytes: u64) -> Arena {
        let kind = entensor_components::MemoryKind::host();
        Arena { buffer_type: "host".into(), kind, owner: 0, align_bytes: 32, max_buffer_bytes }
    }

    fn block(size_bytes: u64, first: u32, last: u32) -> Block {
        Block { arena: 0, size_bytes, first, last }
    }

    #[test]
    fn freed_ranges_merge_and_are_used_again() {
        let all = [block(64, 0, 1), block(64, 0, 1), block(64, 0, 9), block(128, 2, 3)];
        let layout = best_fit(&arena(u64::MAX), &all, &[0, 1, 2, 3]);
        assert_eq!(layout.total_bytes(), 192);
        assert_eq!(layout.places[3].offset_bytes, 0);
    }

    #[test]
    fn no_buffer_is_larger_than_the_limit() {
        let all: Vec<Block> = (0..5).map(|_| block(40, 0, 4)).collect();
        for strategy in [best_fit, by_size] {
            let layout = strategy(&arena(64), &all, &[0, 1, 2, 3, 4]);
            assert_eq!(layout.sizes.len(), 5);
            assert!(layout.sizes.iter().all(|&size| size <= 64));
        }
    }

    #[test]
    fn bytes_that_only_alignment_asks_for_are_never_given_away() {
        // 100 bytes align to 128, but the buffer ends at 100: two blocks of 60 do not fit into what the first leaves.
        let arena = Arena { align_bytes: 64, ..arena(100) };
        let all = [block(100, 0, 0), block(60, 1, 1), block(60, 1, 1)];
        for strategy in [best_fit, by_size] {
            let layout = strategy(&arena, &all, &[0, 1, 2]);
            for (place, block) in layout.places.iter().zip(&all) {
                assert!(place.offset_bytes + block.size_bytes <= layout.sizes[place.buffer as usize]);
            }
        }
    }

    #[test]
    fn largest_first_beats_best_fit_where_small_blocks_come_first() {
        let all = [block(32, 0, 3), block(64, 1, 2), block(32, 0, 0), block(96, 3, 4)];
        let blocks = [0, 1, 2, 3];
        let bound = lower_bound(&all, &blocks);
        let best = best_fit(&arena(u64::MAX), &all, &blocks).total_bytes();
        let sized = by_size(&arena(u64::MAX), &all, &blocks).total_bytes();
        assert!(sized.min(best) >= bound);
        assert_eq!(sized.min(best), bound);
    }
}
