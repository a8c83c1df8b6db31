//! The bytes of an arena while blocks come and go in the order of steps.
//!
//! A buffer is what is in use below its *top*, the holes between, and nothing behind it: bytes that end at the top lower it, so
//! whatever is freed merges with what is free beside it, in the end to nothing. A block goes into the smallest hole that
//! holds it, the lowest of equals, and only then on top: bytes behind the top fit everything and are kept for last.
//!
//! Holes stand in a short list in no order, which for the few that most graphs have is faster than any tree ([`Few`]). With more
//! than [`FEW`] of them, or more than one buffer, everything moves to trees ([`Many`]), where each call is logarithmic in the
//! holes and buffers there are.

use std::collections::{BTreeMap, BTreeSet};

use super::BlockPlace;
use crate::columns::index_u32;

/// As many holes are searched one by one.
const FEW: usize = 48;

/// How large blocks and buffers of an arena may be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    pub(super) align_bytes: u64,
    /// The largest buffer.
    pub(super) max_bytes: u64,
}

impl Limits {
    /// `align_bytes` is a power of two. Offsets stay below 2^63, so that sums of two never overflow: a plan that large is refused
    /// anyhow.
    pub(super) fn new(align_bytes: u64, max_buffer_bytes: u64) -> Self {
        debug_assert!(align_bytes.is_power_of_two());
        Self { align_bytes, max_bytes: max_buffer_bytes.min(i64::MAX.unsigned_abs()) }
    }

    /// Where a block at `offset` of this size, at most the largest buffer's, stops using bytes: aligned, but never behind the
    /// largest buffer's end. The last block of a full buffer may lack the bytes of its alignment: they are not free, they do
    /// not exist.
    pub(super) fn end(self, offset: u64, size: u64) -> u64 {
        let rest = self.align_bytes - 1;
        (offset + ((size + rest) & !rest)).min(self.max_bytes)
    }
}

/// One arena's bytes.
#[derive(Debug, Default)]
pub(super) struct FreeList {
    limits: Limits,
    few: Few,
    many: Option<Box<Many>>,
}

impl FreeList {
    /// Forgets everything, but keeps the memory of the short list.
    pub(super) fn reset(&mut self, limits: Limits) {
        self.limits = limits;
        self.few.holes.clear();
        (self.few.top, self.few.size) = (0, None);
        self.many = None;
    }

    /// A place for a block of `size` bytes.
    #[inline]
    pub(super) fn take(&mut self, size: u64) -> BlockPlace {
        if let Some(many) = &mut self.many {
            return many.take(self.limits, size);
        }
        if let Some(offset_bytes) = self.few.take(self.limits, size) {
            return BlockPlace { buffer: 0, offset_bytes };
        }
        self.many.insert(Box::new(Many::from(&self.few, self.limits))).take(self.limits, size)
    }

    /// Frees what a block of `size` bytes uses, but for its first `keep` bytes.
    #[inline]
    pub(super) fn free(&mut self, place: BlockPlace, size: u64, keep: u64) {
        let end = self.limits.end(place.offset_bytes, size);
        let start = if keep == 0 { place.offset_bytes } else { self.limits.end(place.offset_bytes, keep) };
        if start >= end {
            return;
        }
        match &mut self.many {
            Some(many) => many.free(self.limits, place.buffer, start, end),
            None => {
                self.few.free(start, end);
                if self.few.holes.len() > FEW {
                    self.many = Some(Box::new(Many::from(&self.few, self.limits)));
                }
            }
        }
    }

    /// Sizes of the buffers: where the furthest blocks ended.
    pub(super) fn sizes(&self) -> Vec<u64> {
        match &self.many {
            Some(many) => many.buffers.iter().map(|buffer| buffer.size).collect(),
            None => self.few.size.into_iter().collect(),
        }
    }
}

/// One buffer with few holes.
#[derive(Debug, Default)]
struct Few {
    /// Start and end; never touching each other or the top.
    holes: Vec<(u64, u64)>,
    top: u64,
    /// The buffer's size; none before the first block.
    size: Option<u64>,
}

impl Few {
    /// A place, if one buffer is enough for it.
    fn take(&mut self, limits: Limits, size: u64) -> Option<u64> {
        let (mut best, mut at) = ((u64::MAX, 0), usize::MAX);
        for (i, &(start, end)) in self.holes.iter().enumerate() {
            let found = (end - start, start);
            if found.0 >= size && found < best {
                (best, at) = (found, i);
            }
        }
        if let Some(hole) = self.holes.get_mut(at) {
            let (offset, end) = *hole;
            hole.0 = limits.end(offset, size);
            if hole.0 >= end {
                self.holes.swap_remove(at);
            }
            return Some(offset);
        }
        let offset = self.top;
        let end = offset + size;
        if end > limits.max_bytes {
            return None;
        }
        self.top = limits.end(offset, size);
        self.size = Some(self.size.map_or(end, |size| size.max(end)));
        Some(offset)
    }

    fn free(&mut self, mut start: u64, mut end: u64) {
        // At most one hole ends where this begins, and at most one begins where this ends.
        let mut merged = usize::MAX;
        let mut i = 0;
        while let Some(hole) = self.holes.get_mut(i) {
            if hole.1 != start && hole.0 != end {
                i += 1;
                continue;
            }
            (start, end) = (start.min(hole.0), end.max(hole.1));
            if merged == usize::MAX {
                merged = i;
                i += 1;
            } else {
                self.holes.swap_remove(i);
                break;
            }
        }
        if end == self.top {
            self.top = start;
            if merged < self.holes.len() {
                self.holes.swap_remove(merged);
            }
        } else if let Some(hole) = self.holes.get_mut(merged) {
            *hole = (start, end);
        } else {
            self.holes.push((start, end));
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Filled {
    top: u64,
    size: u64,
}

/// Any number of buffers and holes.
#[derive(Debug, Default)]
struct Many {
    buffers: Vec<Filled>,
    /// (buffer, start) → end.
    by_start: BTreeMap<(u32, u64), u64>,
    /// (bytes, buffer, start).
    by_bytes: BTreeSet<(u64, u32, u64)>,
    /// (bytes from the top to the largest size, buffer).
    by_room: BTreeSet<(u64, u32)>,
}

impl Many {
    fn from(few: &Few, limits: Limits) -> Self {
        let mut many = Self::default();
        if let Some(size) = few.size {
            many.buffers.push(Filled { top: few.top, size });
            many.by_room.insert((limits.max_bytes - few.top, 0));
            for &(start, end) in &few.holes {
                many.by_start.insert((0, start), end);
                many.by_bytes.insert((end - start, 0, start));
            }
        }
        many
    }

    fn take(&mut self, limits: Limits, size: u64) -> BlockPlace {
        if let Some(&(len, buffer, offset_bytes)) = self.by_bytes.range((size, 0, 0)..).next() {
            self.remove(buffer, offset_bytes, offset_bytes + len);
            let (start, end) = (limits.end(offset_bytes, size), offset_bytes + len);
            if start < end {
                self.by_start.insert((buffer, start), end);
                self.by_bytes.insert((end - start, buffer, start));
            }
            return BlockPlace { buffer, offset_bytes };
        }
        let found = self.by_room.range((size, 0)..).next().map(|&(_, buffer)| buffer);
        let buffer = found.unwrap_or_else(|| {
            let buffer = index_u32(self.buffers.len());
            self.buffers.push(Filled::default());
            self.by_room.insert((limits.max_bytes, buffer));
            buffer
        });
        let offset_bytes = self.buffers[buffer as usize].top;
        self.set_top(limits, buffer, limits.end(offset_bytes, size));
        let filled = &mut self.buffers[buffer as usize];
        filled.size = filled.size.max(offset_bytes + size);
        BlockPlace { buffer, offset_bytes }
    }

    fn free(&mut self, limits: Limits, buffer: u32, mut start: u64, mut end: u64) {
        if let Some((&(_, before), &hole_end)) = self.by_start.range((buffer, 0)..(buffer, start)).next_back()
            && hole_end == start
        {
            self.remove(buffer, before, hole_end);
            start = before;
        }
        if let Some(&hole_end) = self.by_start.get(&(buffer, end)) {
            self.remove(buffer, end, hole_end);
            end = hole_end;
        }
        if end == self.buffers[buffer as usize].top {
            self.set_top(limits, buffer, start);
        } else {
            self.by_start.insert((buffer, start), end);
            self.by_bytes.insert((end - start, buffer, start));
        }
    }

    fn remove(&mut self, buffer: u32, start: u64, end: u64) {
        self.by_start.remove(&(buffer, start));
        self.by_bytes.remove(&(end - start, buffer, start));
    }

    fn set_top(&mut self, limits: Limits, buffer: u32, top: u64) {
        let filled = &mut self.buffers[buffer as usize];
        let old = std::mem::replace(&mut filled.top, top);
        self.by_room.remove(&(limits.max_bytes - old, buffer));
        self.by_room.insert((limits.max_bytes - top, buffer));
    }
}
