//! Results computed over an operand's memory.
//!
//! The op table says which operands a result may take over "when shapes and layouts agree and nobody else reads" them. So:
//! the descriptions are equal, the operand lies at the start of its root (or is a copy), the root dies in this very step,
//! is no input and no output, lies in the same arena, and every operand that touches the root is one that the table lists
//! and reads exactly the same bytes. A root may be larger than the result (the operand is a view of its start): what is left
//! over is free from the next step on ([`Shrink`]).
//!
//! What exists once per pipelined slot is left alone: a run's result cannot follow memory that each run has another one of.

use super::{
    Block, Columns, Holds, LiveItem, Shrink,
    uses::{Role, Uses},
};
use crate::{columns::index_u32, liveness::Live};

impl Columns<'_> {
    /// The operand item whose memory a result may take over; `block` is what the result would get otherwise.
    pub(super) fn operand_to_take_over(
        &self,
        node: usize,
        backend: u32,
        block: &Block,
        uses: &Uses,
        copy_items: &[LiveItem],
        live: &Live,
    ) -> Option<u32> {
        if !self.traits[node].overwrites() {
            return None;
        }
        let overwrites = self.ops[node].row().overwrites;
        let sources = self.sources.of(node);
        let step = block.first;
        overwrites.iter().find_map(|&o| {
            let source = *sources.get(o)?;
            let root = self.root(source);
            let copy = uses.by_source.find(self.copies, backend, source);
            let item = match copy {
                Some(_) if live.slots > 1 => return None,
                Some(copy) => live.copy_items + copy,
                None => {
                    let sliced = live.slots > 1 && uses.roles[node] == Role::Output;
                    if sliced || uses.roles[root] != Role::Scratch || self.offsets[source as usize] != 0 {
                        return None;
                    }
                    live.node_items[root]
                }
            };
            let old = item_of(item, copy_items, live);
            let old_block = &live.blocks[old.block as usize];
            let dies = old.last == step && old_block.last == step && old.first < step;
            let fits = old.size_bytes >= block.size_bytes && old_block.arena == block.arena;
            let free = dies && fits && self.descs[source as usize] == self.descs[node];
            let alone = || match copy {
                // A copy is what the backend reads instead of this one source.
                Some(_) => sources.iter().enumerate().all(|(i, &s)| s != source || overwrites.contains(&i)),
                None => self.reads_alone(sources, source, root, overwrites),
            };
            (free && alone()).then_some(item)
        })
    }

    /// Whether all operands in the operand's memory read the operand itself, and may do so while it is overwritten.
    fn reads_alone(&self, sources: &[u32], operand: u32, root: usize, overwrites: &[usize]) -> bool {
        let desc = &self.descs[operand as usize];
        sources.iter().enumerate().all(|(i, &source)| {
            let s = source as usize;
            let same = || source == operand || (self.offsets[s] == 0 && self.descs[s] == *desc);
            self.root(source) != root || (overwrites.contains(&i) && same())
        })
    }

    /// The result's item in the operand's block.
    pub(super) fn take_over(&self, node: usize, operand: u32, block: &Block, copy_items: &[LiveItem], live: &mut Live) {
        let old = *item_of(operand, copy_items, live);
        let Block { size_bytes, first, last, .. } = *block;
        live.blocks[old.block as usize].last = last;
        if size_bytes < old.size_bytes {
            live.shrinks.push(Shrink { step: first, block: old.block, size_bytes });
        }
        live.items.push(LiveItem {
            holds: Holds::Node(index_u32(node)),
            slot: 0,
            size_bytes,
            first,
            last,
            in_place_of: Some(operand),
            block: old.block,
        });
    }
}

fn item_of<'a>(item: u32, copy_items: &'a [LiveItem], live: &'a Live) -> &'a LiveItem {
    match item.checked_sub(live.copy_items) {
        Some(copy) => &copy_items[copy as usize],
        None => &live.items[item as usize],
    }
}
