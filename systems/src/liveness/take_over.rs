//! Results computed over an operand's memory.
//!
//! The op table says which operands a result may take over "when shapes and layouts agree and nobody else reads" them. So:
//! the descriptions are equal, the operand lies at the start of its root (or is a copy), the root dies in this very step,
//! is no input and no output, lies in the same arena, and every operand that touches the root is one that the table lists
//! and reads exactly the same bytes. A root may be larger than the result (the operand is a view of its start): what is left
//! over is free from the next step on ([`Shrink`]).
//!
//! What exists once per pipelined slot is left alone: a run's result cannot follow memory that each run has another one of.

use entensor_components::TensorFlags;

use super::{Block, Columns, Holds, Live, LiveItem, NONE, Shrink, uses::Uses};

impl Columns<'_> {
    /// The operand item whose memory a result may take over; `block` is what the result would get otherwise. `PLAIN` plans are
    /// in one slot and without copies.
    #[inline]
    pub(super) fn operand_to_take_over<const PLAIN: bool>(
        &self,
        node: usize,
        backend: u32,
        block: &Block,
        uses: &Uses,
        copy_items: &[LiveItem],
        live: &Live,
    ) -> Option<u32> {
        let replaceable = self.replaceable[node];
        if replaceable == 0 || (!PLAIN && live.slots > 1 && uses.protected[node]) {
            return None;
        }
        let overwrites = self.ops[node].row().overwrites;
        let sources = self.sources.of(node);
        overwrites.iter().filter(|&&o| replaceable >> o & 1 == 1).find_map(|&o| {
            let source = sources[o];
            let copy = if PLAIN { None } else { uses.by_source.find(self.copies, backend, source) };
            match copy {
                Some(copy) => self.copy_to_take_over(node, copy, block, overwrites, copy_items, live),
                None => self.root_to_take_over(node, source, block, overwrites, uses, live),
            }
        })
    }

    #[inline]
    fn root_to_take_over(
        &self,
        node: usize,
        source: u32,
        block: &Block,
        overwrites: &[usize],
        uses: &Uses,
        live: &Live,
    ) -> Option<u32> {
        let root = self.root(source);
        if uses.last_of(root) != block.first {
            return None;
        }
        let item = live.node_items[root];
        let old = live.items.get(item as usize).filter(|_| item != NONE)?;
        let TensorFlags { input, consumed, .. } = self.flags[root];
        let ours = !input || (consumed && live.slots == 1);
        let whole = self.offsets[source as usize] == 0;
        // What the user wrote was there before the first step.
        let free = ours && !uses.protected[root] && whole && self.fits(block, old, input, live);
        (free && self.reads_alone(node, source, root, overwrites)).then_some(item)
    }

    /// A copy is what the backend reads instead of this one source.
    fn copy_to_take_over(
        &self,
        node: usize,
        copy: u32,
        block: &Block,
        overwrites: &[usize],
        copy_items: &[LiveItem],
        live: &Live,
    ) -> Option<u32> {
        if live.slots > 1 {
            return None;
        }
        let old = &copy_items[copy as usize];
        let source = self.copies[copy as usize].source;
        let dies = old.last == block.first;
        let sources = self.sources.of(node);
        let alone = || sources.iter().enumerate().all(|(i, &s)| s != source || overwrites.contains(&i));
        (dies && self.fits(block, old, false, live) && alone()).then_some(live.copy_items + copy)
    }

    /// Whether the memory of an operand that dies here holds the result, and has been there before (always, if it was there `before`
    /// the run).
    fn fits(&self, block: &Block, old: &LiveItem, before: bool, live: &Live) -> bool {
        (before || old.first < block.first)
            && old.size_bytes >= block.size_bytes
            && live.blocks[old.block as usize].arena == block.arena
    }

    /// Whether all operands in the operand's memory read the operand itself, and may do so while it is overwritten.
    fn reads_alone(&self, node: usize, operand: u32, root: usize, overwrites: &[usize]) -> bool {
        let (sources, desc) = (self.sources.of(node), &self.descs[operand as usize]);
        sources.len() == 1
            || sources.iter().enumerate().all(|(i, &source)| {
                let s = source as usize;
                let same = || source == operand || (self.offsets[s] == 0 && self.descs[s] == *desc);
                self.root(source) != root || (overwrites.contains(&i) && same())
            })
    }
}

/// The result's item in the operand's block.
#[inline]
pub(super) fn take_over<const PLAIN: bool>(
    node: u32,
    operand: u32,
    block: &Block,
    copy_items: &[LiveItem],
    live: &mut Live,
) {
    let old = match operand.checked_sub(live.copy_items) {
        Some(copy) if !PLAIN => &copy_items[copy as usize],
        _ => &live.items[operand as usize],
    };
    let LiveItem { size_bytes: old_bytes, block: old_block, .. } = *old;
    let Block { size_bytes, first, last, .. } = *block;
    live.blocks[old_block as usize].last = last;
    if size_bytes < old_bytes {
        live.shrinks.push(Shrink { step: first, block: old_block, size_bytes });
    }
    live.items.push(LiveItem {
        holds: Holds::Node(node),
        slot: 0,
        size_bytes,
        first,
        last,
        in_place_of: Some(operand),
        block: old_block,
    });
}
