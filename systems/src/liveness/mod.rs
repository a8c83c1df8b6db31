//! **liveness**: when each planned tensor is alive, and which results take over an operand's memory.
//!
//! Reads: splits, copies, node columns, backends. Writes: `Live`.
//! Invariants: steps are the submission order: the copies of a split, then its nodes. Inputs live throughout, or to their last use if
//! runs consume them; outputs (and the roots they view) live from their first write to the end; everything else from its first to its
//! last use. With several slots outputs live throughout, and so do copies where runs may be under way together. A result is
//! computed in place only over an operand of the same description that nobody reads afterwards (`take_over.rs`).
//! Cost: linear in nodes × operands, three sweeps over dense columns, no hashing; copies are found through a list per source.
//! Nothing is allocated when a graph of no more nodes is planned again. Source: DESIGN "liveness / allocate"; ggml-alloc
//! decides the same while it allocates.

mod take_over;
mod uses;

use std::sync::Arc;

use bevy_ecs::{prelude::*, system::SystemParam};
use entensor_components::{MemoryKind, Op, TensorDesc, TensorFlags};

use crate::{
    columns::{Backends, Kinds, NodeFlags, NodeMemory, NodePlacements, NodeSources, Nodes, PaddedBytes, index_u32},
    error::PlanError,
    fallback::PlannedCopies,
    split::{Copies, CopyRecord, Split, Splits},
    status::PassResult,
};
use take_over::take_over;
use uses::Uses;

/// The most tensors, copies and steps that pipelined slots have of their own, all together: about a gibibyte of plan.
const MOST_IN_SLOTS: u64 = 1 << 22;

/// No item.
const NONE: u32 = u32::MAX;

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

/// A block that needs less from some step on: a smaller result has taken over the start of a larger operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shrink {
    /// The last step in which the whole block is in use.
    pub step: u32,
    /// The block.
    pub block: u32,
    /// How many of its first bytes stay in use.
    pub size_bytes: u64,
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
    /// The planned tensors: roots by node index, then copies; the slots of one thing stand together.
    pub items: Vec<LiveItem>,
    /// The blocks, in no particular order.
    pub blocks: Vec<Block>,
    /// What becomes smaller, by step.
    pub shrinks: Vec<Shrink>,
    /// Number of steps.
    pub steps: u32,
    /// How many pipelined slots there are.
    pub slots: u32,
    /// Item of each node's first slot, or [`NONE`].
    node_items: Vec<u32>,
    /// Item of the first copy's first slot.
    copy_items: u32,
}

impl Live {
    /// The item that holds something in a slot; things without slots are in slot 0.
    #[must_use]
    pub fn find(&self, holds: Holds, slot: u32) -> Option<u32> {
        let first = match holds {
            Holds::Node(node) => *self.node_items.get(node as usize)? as usize,
            Holds::Copy(copy) => self.copy_items as usize + copy as usize * self.slots as usize,
        };
        let is = |at: usize, slot: u32| self.items.get(at).is_some_and(|i| i.holds == holds && i.slot == slot);
        let found =
            [(first.checked_add(slot as usize)?, slot), (first, 0)].into_iter().find(|&(at, slot)| is(at, slot));
        found.map(|(at, _)| index_u32(at))
    }

    fn clear(&mut self) {
        self.arenas.clear();
        self.items.clear();
        self.blocks.clear();
        self.shrinks.clear();
        self.node_items.clear();
    }
}

/// What the rules look at.
#[derive(SystemParam)]
pub struct LivenessInputs<'w> {
    backends: Res<'w, Backends>,
    nodes: Res<'w, Nodes>,
    flags: Res<'w, NodeFlags>,
    memory: Res<'w, NodeMemory>,
    padded: Res<'w, PaddedBytes>,
    splits: Res<'w, Splits>,
    copies: Res<'w, Copies>,
    placements: Res<'w, NodePlacements>,
}

impl LivenessInputs<'_> {
    /// Slots are the user's number: it must not fill the memory with a plan's own columns.
    fn check_slots(&self, slots: u32) -> Result<(), PlanError> {
        let kept = self.flags.0.iter().filter(|flags| flags.input || flags.output).count();
        let per_slot = (kept + self.copies.0.len() + self.splits.inputs.len() + self.splits.runs.len()) as u64;
        if slots > 1 && per_slot * u64::from(slots) > MOST_IN_SLOTS {
            return Err(PlanError::TooManyCopies { copies: slots, per_slot, most: MOST_IN_SLOTS });
        }
        Ok(())
    }

    fn columns(&self) -> Columns<'_> {
        Columns {
            layouts: &self.nodes.layouts,
            descs: &self.nodes.descs,
            ops: &self.nodes.ops,
            replaceable: &self.nodes.replaceable,
            computing: &self.nodes.computing,
            sources: &self.nodes.sources,
            roots: &self.nodes.roots.root,
            offsets: &self.nodes.roots.offset_bytes,
            flags: &self.flags.0,
            memory: &self.memory,
            padded: &self.padded,
            under_way: self.backends.0.iter().any(|backend| backend.capabilities().asynchronous),
            splits: &self.splits.runs,
            split_inputs: &self.splits.inputs,
            copies: &self.copies.0,
            node_backends: &self.placements.backends,
        }
    }
}

/// The same as plain slices, which the sweeps index without going through the world.
#[derive(Clone, Copy)]
struct Columns<'a> {
    layouts: &'a Kinds,
    descs: &'a [TensorDesc],
    ops: &'a [Op],
    replaceable: &'a [u8],
    computing: &'a [u32],
    sources: &'a NodeSources,
    roots: &'a [u32],
    offsets: &'a [u64],
    flags: &'a [TensorFlags],
    memory: &'a NodeMemory,
    padded: &'a PaddedBytes,
    /// Whether some backend is asynchronous.
    under_way: bool,
    splits: &'a [Split],
    split_inputs: &'a [u32],
    copies: &'a [CopyRecord],
    node_backends: &'a [u32],
}

/// Columns of one run, kept so that the next run finds their memory.
#[derive(Default)]
pub struct LivenessScratch {
    uses: Uses,
    arena_of: Vec<u32>,
    copy_items: Vec<LiveItem>,
}

/// The pass.
pub fn liveness(
    inputs: LivenessInputs<'_>,
    copies: Res<'_, PlannedCopies>,
    mut live: ResMut<'_, Live>,
    mut scratch: Local<'_, LivenessScratch>,
) -> PassResult {
    live.clear();
    live.slots = copies.0.max(1);
    inputs.check_slots(live.slots)?;
    let LivenessScratch { uses, arena_of, copy_items } = &mut *scratch;
    find_arenas(&inputs.backends, &mut live.arenas, arena_of);
    let columns = inputs.columns();
    columns.find_uses(uses);
    live.steps = uses.steps;
    columns.make_items(uses, arena_of, copy_items, &mut live);
    Ok(live.items.len())
}

fn find_arenas(backends: &Backends, arenas: &mut Vec<Arena>, arena_of: &mut Vec<u32>) {
    arena_of.clear();
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
        let align_bytes = entry.align_bytes.max(capabilities.align_bytes);
        entry.align_bytes = align_bytes.checked_next_power_of_two().unwrap_or(1 << 63);
        entry.max_buffer_bytes = entry.max_buffer_bytes.min(capabilities.max_buffer_bytes);
        arena_of.push(index_u32(arena));
    }
}

impl Columns<'_> {
    /// Items of roots in the order of nodes, which is that of steps: when a result asks for an operand's memory, the operand's
    /// item stands already. Copies come last, but their items are made first, since results may take over those too.
    fn make_items(&self, uses: &mut Uses, arena_of: &[u32], copy_items: &mut Vec<LiveItem>, live: &mut Live) {
        copy_items.clear();
        live.copy_items = NONE;
        if !self.copies.is_empty() {
            live.copy_items = self.count_root_items(uses, live.slots);
            for (c, (copy, &(first, last))) in self.copies.iter().zip(&uses.copies).enumerate() {
                let backend = copy.backend as usize;
                let size_bytes = self.padded.of(self.layouts.of(copy.source as usize), backend);
                let (first, last) = if first == NONE { (0, 0) } else { (first, last) };
                let (first, last) = if self.under_way { Self::in_slots(live, (first, last)) } else { (first, last) };
                let block = Block { arena: arena_of[backend], size_bytes, first, last };
                push_items(copy_items, &mut live.blocks, Holds::Copy(index_u32(c)), live.slots, block);
            }
        }
        // Nearly every plan is in one slot and on one memory: its loop knows.
        if live.slots == 1 && self.copies.is_empty() {
            self.make_root_items::<true>(uses, arena_of, copy_items, live);
        } else {
            self.make_root_items::<false>(uses, arena_of, copy_items, live);
        }
        live.items.extend_from_slice(copy_items);
    }

    /// What exists once per slot is alive throughout: while one slot's run is anywhere in its steps, another's has outputs that nobody
    /// has read yet, and copies that were made already, if runs are ever under way together.
    fn in_slots(live: &Live, (first, last): (u32, u32)) -> (u32, u32) {
        if live.slots > 1 { (0, live.steps.saturating_sub(1)) } else { (first, last) }
    }

    fn make_root_items<const PLAIN: bool>(
        &self,
        uses: &mut Uses,
        arena_of: &[u32],
        copy_items: &[LiveItem],
        live: &mut Live,
    ) {
        let end = uses.steps.saturating_sub(1);
        let nodes = self.roots.len();
        let (flags, node_backends) = (&self.flags[..nodes], &self.node_backends[..nodes]);
        live.node_items.resize(nodes, NONE);
        live.items.reserve(nodes);
        for (node, &root) in self.roots.iter().enumerate() {
            if root as usize != node || self.memory.place(node).is_some() {
                continue;
            }
            let (mut first, last) = uses.steps_of(node);
            if first == NONE && !flags[node].input {
                self.find_first(uses);
                first = uses.steps_of(node).0;
            }
            let TensorFlags { input, consumed, .. } = flags[node];
            let output = uses.protected[node];
            // A slot's inputs are written while older runs go on, so nobody else may use their memory.
            let kept = output || (input && !(consumed && live.slots == 1));
            let (first, last) = (if input { 0 } else { first }, if kept { end } else { last });
            let (first, last) = if !PLAIN && output { Self::in_slots(live, (first, last)) } else { (first, last) };
            let at = live.items.len();
            live.node_items[node] = index_u32(at);
            let backend = node_backends[node];
            let size_bytes = self.padded.of(self.layouts.of(node), backend as usize);
            let block = Block { arena: arena_of[backend as usize], size_bytes, first, last };
            let found = self.operand_to_take_over::<PLAIN>(node, backend, &block, uses, copy_items, live);
            if let Some(operand) = found {
                take_over::<PLAIN>(root, operand, &block, copy_items, live);
                continue;
            }
            let slots = if !PLAIN && (input || output) { live.slots } else { 1 };
            push_items(&mut live.items, &mut live.blocks, Holds::Node(root), slots, block);
        }
    }

    /// How many items the roots get.
    fn count_root_items(&self, uses: &Uses, slots: u32) -> u32 {
        let planned = |&node: &usize| self.roots[node] as usize == node && self.memory.place(node).is_none();
        let slots = |node: usize| if self.flags[node].input || uses.protected[node] { slots } else { 1 };
        (0..self.roots.len()).filter(planned).map(slots).sum()
    }
}

/// A thing's items, one a slot, each in a block of its own.
#[inline]
fn push_items(items: &mut Vec<LiveItem>, blocks: &mut Vec<Block>, holds: Holds, slots: u32, block: Block) {
    let Block { size_bytes, first, last, .. } = block;
    for slot in 0..slots {
        let at = index_u32(blocks.len());
        blocks.push(block);
        items.push(LiveItem { holds, slot, size_bytes, first, last, in_place_of: None, block: at });
    }
}
