//! **liveness**: when each planned tensor is alive, and which results take over an operand's memory.
//!
//! Reads: splits, copies, node columns, backends. Writes: `Live`.
//! Invariants: steps are the submission order: the copies of a split, then its nodes. Inputs live throughout; outputs (and the
//! roots they view) live from their first write to the end; everything else from its first to its last use. A result is
//! computed in place only over an operand of the same description that nobody reads afterwards.
//! Cost: linear in nodes × operands. Source: DESIGN "liveness / allocate"; ggml-alloc decides the same while it allocates.

use std::{collections::HashMap, sync::Arc};

use bevy_ecs::{prelude::*, system::SystemParam};
use entensor_components::{MAX_PIPELINE_COPIES, MemoryKind, PipelineCopies, TensorFlags};

use crate::{
    columns::{
        Backends, NodeDescs, NodeFlags, NodeMemory, NodeOps, NodeRoots, NodeSources, PaddedBytes, Planning, index_u32,
    },
    split::{Copies, NodeBackends, Splits},
    status::PassResult,
};

/// What a planned piece of memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Holds {
    /// A root node.
    Node(u32),
    /// A copy: an index into [`Copies`].
    Copy(u32),
}

/// A planned tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveItem {
    /// What it holds.
    pub holds: Holds,
    /// Which of the pipelined slots.
    pub slot: u32,
    /// Its bytes, padding included.
    pub size_bytes: u64,
    /// First step that touches it.
    pub first: u32,
    /// Last step that touches it.
    pub last: u32,
    /// The item whose memory it takes over.
    pub in_place_of: Option<u32>,
    /// Its block.
    pub block: u32,
}

/// Memory that one item after another uses: what the allocator places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its arena.
    pub arena: u32,
    /// Its bytes.
    pub size_bytes: u64,
    /// First step it is alive in.
    pub first: u32,
    /// Last step it is alive in.
    pub last: u32,
}

/// One memory that backends of one buffer type share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// The buffer type.
    pub buffer_type: Arc<str>,
    /// The memory: a buffer type should have one, and where backends declare several, each has an arena of its own.
    pub kind: MemoryKind,
    /// The backend that allocates it: the lowest in priority of that type.
    pub owner: u32,
    /// The strictest alignment of the sharers.
    pub align_bytes: u64,
    /// The smallest of the sharers' largest buffers.
    pub max_buffer_bytes: u64,
}

/// What lives when.
#[derive(Resource, Clone, Debug, Default)]
pub struct Live {
    /// The arenas, by backend order.
    pub arenas: Vec<Arena>,
    /// The planned tensors, in order of their first slot's creation.
    pub items: Vec<LiveItem>,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// Number of steps.
    pub steps: u32,
    /// How many pipelined slots there are.
    pub slots: u32,
    /// Item of each (what, slot).
    pub item_of: HashMap<(Holds, u32), u32>,
}

impl Live {
    /// The item that holds something in a slot; things without slots are in slot 0.
    #[must_use]
    pub fn find(&self, holds: Holds, slot: u32) -> Option<u32> {
        self.item_of.get(&(holds, slot)).or_else(|| self.item_of.get(&(holds, 0))).copied()
    }
}

/// What the rules look at.
#[derive(SystemParam)]
pub struct LivenessInputs<'w> {
    backends: Res<'w, Backends>,
    descs: Res<'w, NodeDescs>,
    ops: Res<'w, NodeOps>,
    sources: Res<'w, NodeSources>,
    roots: Res<'w, NodeRoots>,
    flags: Res<'w, NodeFlags>,
    memory: Res<'w, NodeMemory>,
    padded: Res<'w, PaddedBytes>,
    splits: Res<'w, Splits>,
    copies: Res<'w, Copies>,
    node_backends: Res<'w, NodeBackends>,
}

/// The pass.
pub fn liveness(
    inputs: LivenessInputs<'_>,
    planning: Res<'_, Planning>,
    graphs: Query<'_, '_, &PipelineCopies>,
    mut live: ResMut<'_, Live>,
) -> PassResult {
    let slots = graphs.get(planning.0).map_or(1, |copies| copies.0.clamp(1, MAX_PIPELINE_COPIES));
    let (arenas, arena_of) = arenas(&inputs.backends);
    *live = Live { arenas, slots, ..Live::default() };
    let uses = inputs.uses();
    live.steps = uses.steps;
    let flags = inputs.root_flags();
    inputs.make_items(&uses, &flags, &arena_of, &mut live);
    inputs.take_over(&flags, &mut live);
    Ok(live.items.len())
}

fn arenas(backends: &Backends) -> (Vec<Arena>, Vec<u32>) {
    let mut arenas: Vec<Arena> = Vec::new();
    let mut arena_of = Vec::new();
    for (b, backend) in backends.0.iter().enumerate() {
        let capabilities = backend.capabilities();
        let shared = |a: &Arena| a.buffer_type == capabilities.buffer_type && a.kind == capabilities.memory;
        let found = arenas.iter().position(shared);
        let arena = found.unwrap_or_else(|| {
            arenas.push(Arena {
                buffer_type: Arc::clone(&capabilities.buffer_type),
                kind: capabilities.memory.clone(),
                owner: 0,
                align_bytes: 1,
                max_buffer_bytes: u64::MAX,
            });
            arenas.len() - 1
        });
        let entry = &mut arenas[arena];
        entry.owner = index_u32(b);
        entry.align_bytes = entry.align_bytes.max(capabilities.align_bytes).max(1).next_power_of_two();
        entry.max_buffer_bytes = entry.max_buffer_bytes.min(capabilities.max_buffer_bytes);
        arena_of.push(index_u32(arena));
    }
    (arenas, arena_of)
}

/// First and last step of every root and copy.
struct Uses {
    nodes: Vec<Option<(u32, u32)>>,
    copies: Vec<Option<(u32, u32)>>,
    steps: u32,
}

fn touch(range: &mut Option<(u32, u32)>, step: u32) {
    *range = Some(range.map_or((step, step), |(first, _)| (first, step)));
}

impl LivenessInputs<'_> {
    /// The copy that a backend reads instead of a node, if it cannot use the node's memory.
    fn copy_read(&self, by_source: &HashMap<(u32, u32), u32>, backend: u32, node: u32) -> Option<u32> {
        by_source.get(&(node, backend)).copied()
    }

    fn copies_by_source(&self) -> HashMap<(u32, u32), u32> {
        self.copies.0.iter().enumerate().map(|(c, copy)| ((copy.source, copy.backend), index_u32(c))).collect()
    }

    fn uses(&self) -> Uses {
        let by_source = self.copies_by_source();
        let mut uses =
            Uses { nodes: vec![None; self.descs.0.len()], copies: vec![None; self.copies.0.len()], steps: 0 };
        for split in &self.splits.0 {
            for &copy in &split.inputs {
                let source = self.copies.0[copy as usize].source as usize;
                touch(&mut uses.nodes[self.roots.of(source)], uses.steps);
                touch(&mut uses.copies[copy as usize], uses.steps);
                uses.steps += 1;
            }
            for &node in &split.nodes {
                touch(&mut uses.nodes[self.roots.of(node as usize)], uses.steps);
                for &source in self.sources.of(node as usize) {
                    match self.copy_read(&by_source, split.backend, source) {
                        Some(copy) => touch(&mut uses.copies[copy as usize], uses.steps),
                        None => touch(&mut uses.nodes[self.roots.of(source as usize)], uses.steps),
                    }
                }
                uses.steps += 1;
            }
        }
        uses
    }

    /// Flags that protect a root: its own, and the output flags of its views.
    fn root_flags(&self) -> Vec<TensorFlags> {
        let mut flags = self.flags.0.clone();
        for node in 0..flags.len() {
            let root = self.roots.of(node);
            flags[root].output |= self.flags.0[node].output;
        }
        flags
    }

    fn make_items(&self, uses: &Uses, flags: &[TensorFlags], arena_of: &[u32], live: &mut Live) {
        let end = uses.steps.saturating_sub(1);
        for (node, flags) in flags.iter().enumerate() {
            if !self.roots.is_root(node) || self.memory.place[node].is_some() {
                continue;
            }
            let (first, last) = uses.nodes[node].unwrap_or((0, 0));
            let (first, last) = match flags {
                TensorFlags { input: true, .. } => (0, end),
                TensorFlags { output: true, .. } => (first, end),
                TensorFlags { .. } => (first, last),
            };
            let backend = self.node_backends.0[node] as usize;
            let slots = if flags.input || flags.output { live.slots } else { 1 };
            let bytes = self.padded.of(node, backend);
            push_item(live, Holds::Node(index_u32(node)), slots, arena_of[backend], bytes, first, last);
        }
        for (c, copy) in self.copies.0.iter().enumerate() {
            let (first, last) = uses.copies[c].unwrap_or((0, 0));
            let backend = copy.backend as usize;
            let bytes = self.padded.of(copy.source as usize, backend);
            push_item(live, Holds::Copy(index_u32(c)), live.slots, arena_of[backend], bytes, first, last);
        }
    }

    /// Lets results take over operands that die with them. Blocks join, so chains share one piece of memory.
    fn take_over(&self, flags: &[TensorFlags], live: &mut Live) {
        let by_source = self.copies_by_source();
        let mut step = 0;
        for split in &self.splits.0 {
            step += index_u32(split.inputs.len());
            for &node in &split.nodes {
                let found = self.overwritable(node as usize, split.backend, step, &by_source, flags, live);
                if let (Some(operand), Some(item)) = (found, live.find(Holds::Node(node), 0)) {
                    let block = live.items[operand as usize].block;
                    let last = live.items[item as usize].last;
                    live.items[item as usize].in_place_of = Some(operand);
                    // The item's own block stays behind empty, and is never placed.
                    let own = live.items[item as usize].block as usize;
                    live.blocks[own].size_bytes = 0;
                    live.items[item as usize].block = block;
                    let joined = &mut live.blocks[block as usize];
                    joined.last = joined.last.max(last);
                }
                step += 1;
            }
        }
    }

    fn overwritable(
        &self,
        node: usize,
        backend: u32,
        step: u32,
        by_source: &HashMap<(u32, u32), u32>,
        flags: &[TensorFlags],
        live: &Live,
    ) -> Option<u32> {
        let row = self.ops.0[node].row();
        if !self.roots.is_root(node) {
            return None;
        }
        let item = live.find(Holds::Node(index_u32(node)), 0)?;
        let sources = self.sources.of(node);
        row.overwrites.iter().find_map(|&o| {
            let source = *sources.get(o)?;
            let root = self.roots.of(source as usize);
            let holds = match self.copy_read(by_source, backend, source) {
                Some(copy) => Holds::Copy(copy),
                None => Holds::Node(index_u32(root)),
            };
            let whole = matches!(holds, Holds::Copy(_)) || self.roots.offset_bytes[source as usize] == 0;
            let operand = live.find(holds, 0)?;
            let old = live.items[operand as usize];
            let fits = old.size_bytes >= live.items[item as usize].size_bytes
                && live.blocks[old.block as usize].arena == live.blocks[live.items[item as usize].block as usize].arena;
            // Of things that exist in several slots, each run uses another one; what exists once cannot follow them.
            let one_slot = live.slots == 1 || !(matches!(holds, Holds::Copy(_)) || flags[node].output);
            // Another view of the same memory among the operands would be overwritten while it is read, and so would the
            // operand itself where the op reads it in another order too.
            let alone = sources
                .iter()
                .enumerate()
                .all(|(k, &s)| self.roots.of(s as usize) != root || (s == source && row.overwrites.contains(&k)));
            let dies = old.last == step && live.blocks[old.block as usize].last == step && old.first < step;
            let same = self.descs.0[source as usize] == self.descs.0[node];
            let free = matches!(holds, Holds::Copy(_)) || !(flags[root].input || flags[root].output);
            (whole && fits && alone && dies && same && free && one_slot).then_some(operand)
        })
    }
}

fn push_item(live: &mut Live, holds: Holds, slots: u32, arena: u32, size_bytes: u64, first: u32, last: u32) {
    for slot in 0..slots {
        let block = index_u32(live.blocks.len());
        live.blocks.push(Block { arena, size_bytes, first, last });
        live.item_of.insert((holds, slot), index_u32(live.items.len()));
        live.items.push(LiveItem { holds, slot, size_bytes, first, last, in_place_of: None, block });
    }
}
