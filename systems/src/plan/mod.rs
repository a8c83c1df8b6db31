//! The plan: everything that was decided, as columns of plain data, and the steps that a run walks. It needs no World.

mod build;
mod edges;
mod explain;
mod locate;
mod node;

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use entensor_components::{
    Backend, Cause, MemoryHandle, MemoryKind, PreparedSplit, QueueKind, TensorFlags, TensorRef, Usage,
};

pub(crate) use build::build_plan;
pub use node::PlanNode;

use crate::columns::{BackendMasks, ExistingBuffer, NodeMemory, NodeTable, Refusals, index_u32};
use crate::compute::RunState;

/// A backend of the plan.
#[derive(Clone)]
pub struct PlanBackend {
    /// Its name.
    pub name: Arc<str>,
    /// The backend.
    pub handle: Arc<dyn Backend>,
    /// Bytes that the plan allocates on it.
    pub planned_bytes: u64,
}

/// A buffer that exists already and that a run binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanExisting {
    /// Its name.
    pub name: Arc<str>,
    /// Which memory.
    pub kind: MemoryKind,
    /// Its buffer type.
    pub buffer_type: Arc<str>,
    /// Whether its layout is private.
    pub opaque: bool,
    /// Whether it can only be read.
    pub read_only: bool,
    /// What it is used for.
    pub usage: Usage,
    /// Its size.
    pub size_bytes: u64,
}

impl PlanExisting {
    /// What a plan knows of a buffer: not which one it is, so that contexts with other caches share plans.
    pub(crate) fn of(buffer: &ExistingBuffer) -> Self {
        Self {
            name: Arc::clone(&buffer.name),
            kind: buffer.kind.clone(),
            buffer_type: Arc::clone(&buffer.buffer_type),
            opaque: buffer.opaque,
            read_only: buffer.memory.is_read_only(),
            usage: buffer.usage,
            size_bytes: buffer.memory.size_bytes(),
        }
    }
}

/// A split of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanSplit {
    /// Its backend.
    pub backend: u32,
    /// Its computing nodes: a range of [`Plan::launches`].
    pub nodes: Range<u32>,
    /// The copies made at its start: a range of [`Plan::split_inputs`].
    pub inputs: Range<u32>,
}

/// A tensor's copy on another backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanCopy {
    /// The node copied.
    pub source: u32,
    /// The backend that reads it.
    pub backend: u32,
}

/// A buffer that the plan allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanBuffer {
    /// The backend that allocates it.
    pub backend: u32,
    /// Backends of this type share it.
    pub buffer_type: Arc<str>,
    /// Its place among the buffers of its type.
    pub ordinal: u32,
    /// Its size.
    pub size_bytes: u64,
}

/// What an allocation holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// A root node.
    Node(u32),
    /// A copy, by index into [`Plan::copies`].
    Copy(u32),
}

/// A planned tensor's place. Allocations of one thing stand side by side, in the order of their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// What it holds.
    pub held: Held,
    /// Which of the pipelined slots.
    pub slot: u32,
    /// The backend it is for.
    pub backend: u32,
    /// Index into [`Plan::buffers`].
    pub buffer: u32,
    /// Bytes from the buffer's start.
    pub offset_bytes: u64,
    /// Bytes, padding included.
    pub size_bytes: u64,
    /// First step that touches it.
    pub first: u32,
    /// Last step that touches it.
    pub last: u32,
    /// The allocation whose memory it takes over.
    pub in_place_of: Option<u32>,
}

/// One step of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A tensor is copied to another backend's memory.
    Copy {
        /// Index into [`Plan::copies`].
        copy: u32,
        /// For which split.
        split: u32,
        /// Where it is.
        from: TensorRef,
        /// The backend that holds it.
        from_backend: u32,
        /// Where it goes.
        to: TensorRef,
    },
    /// A split is submitted.
    Launch {
        /// Which.
        split: u32,
    },
    /// A point of a backend's queue is marked.
    Record {
        /// Whose queue.
        backend: u32,
        /// Which event of the run.
        event: u32,
        /// Which of its queues.
        queue: QueueKind,
    },
    /// A backend's queue waits for an event of another queue; the host does, for a synchronous backend.
    Wait {
        /// Whose queue waits.
        backend: u32,
        /// Which event of the run.
        event: u32,
        /// Whose event it is.
        of: u32,
        /// Which of its queues waits.
        queue: QueueKind,
        /// Whether the event is one of the run before, in the slot before.
        previous: bool,
    },
}

/// What one pipelined slot runs.
pub struct Program {
    /// The steps, in submission order.
    pub steps: Vec<Step>,
    /// Each split made ready.
    pub prepared: Vec<Box<dyn PreparedSplit>>,
    /// How many events a run records.
    pub events: u32,
    /// Per step, how many steps of the run before it, if that is still under way, must have been submitted: all those of the same
    /// queue, since queues are in order and runs are too, and what the host does to the same bytes. Empty where runs are never
    /// under way together.
    pub behind: Vec<u32>,
}

/// A finished plan: immutable, shared by graphs that are planned alike, run by [`crate::compute`].
///
/// One column a fact, by node index: leaves first, then everything else, in creation order. [`Plan::node`] is a node's row.
pub struct Plan {
    /// The backends, by priority.
    pub backends: Vec<PlanBackend>,
    /// What was known of the nodes before anything was decided.
    pub table: Arc<NodeTable>,
    /// Input and output of each node; wanted nodes are outputs.
    pub flags: Vec<TensorFlags>,
    /// Where memory exists already.
    pub memory: NodeMemory,
    /// Where each node is.
    pub placements: Vec<u32>,
    /// Why.
    pub causes: Vec<Cause>,
    /// Which backends could run each node where its operands lie.
    pub supported: BackendMasks,
    /// Why those that could not refused.
    pub refusals: Refusals,
    /// The nodes that launch work, in order.
    pub launches: Vec<u32>,
    /// The splits, in order.
    pub splits: Vec<PlanSplit>,
    /// The copies that splits make, one split after the other.
    pub split_inputs: Vec<u32>,
    /// The copies.
    pub copies: Vec<PlanCopy>,
    /// Buffers to allocate; the first memories of a run.
    pub buffers: Vec<PlanBuffer>,
    /// Buffers that exist; the memories of a run after those.
    pub existing: Vec<PlanExisting>,
    /// Every planned tensor.
    pub allocations: Vec<Allocation>,
    /// The least that any plan with these lifetimes needs.
    pub lower_bound_bytes: u64,
    /// One program per pipelined slot.
    pub programs: Vec<Program>,
    /// Per node, 1 + the first of its allocations; 0 for views and existing memory.
    pub(crate) allocation_of: Vec<u32>,
    /// Per copy, the first of its allocations.
    pub(crate) allocation_of_copy: Vec<u32>,
    /// Which copy a backend reads instead of a node: node, backend, copy, in that order.
    pub(crate) copy_of: Vec<(u32, u32, u32)>,
    /// The users' number that it was made under.
    pub(crate) salt: u64,
    /// How many pipelined slots were asked for.
    pub(crate) asked_copies: u32,
    /// What runs keep while they are in flight, for the next ones, so that a run allocates nothing.
    pub(crate) spare: Mutex<Vec<RunState>>,
}

impl Plan {
    /// How many nodes there are, leaves included.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.table.len()
    }

    /// How many of them are leaves.
    #[must_use]
    pub fn leaves(&self) -> usize {
        self.table.leaves
    }

    /// The computing nodes of a split, in order.
    #[must_use]
    pub fn split_nodes(&self, split: &PlanSplit) -> &[u32] {
        &self.launches[split.nodes.start as usize..split.nodes.end as usize]
    }

    /// The copies made at a split's start.
    #[must_use]
    pub fn split_inputs(&self, split: &PlanSplit) -> &[u32] {
        &self.split_inputs[split.inputs.start as usize..split.inputs.end as usize]
    }

    /// Bytes that the plan allocates.
    #[must_use]
    pub fn planned_bytes(&self) -> u64 {
        self.buffers.iter().fold(0, |sum, b| sum.saturating_add(b.size_bytes))
    }

    /// Bytes that one run copies between backends.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.split_inputs.iter().fold(0, |sum, &c| sum.saturating_add(self.copy_bytes(self.copies[c as usize])))
    }

    /// Bytes of one copy.
    pub(crate) fn copy_bytes(&self, copy: PlanCopy) -> u64 {
        self.table.descs[copy.source as usize].size_bytes()
    }

    /// How many copies one run makes.
    #[must_use]
    pub fn copies_made(&self) -> usize {
        self.split_inputs.len()
    }

    /// Whether a run writes one of its existing buffers.
    #[must_use]
    pub fn writes_existing(&self, buffer: usize) -> bool {
        let is_there = |&node: &u32| {
            let place = self.memory.place(self.table.roots.of(node as usize));
            place.is_some_and(|place| place.buffer as usize == buffer)
        };
        self.launches.iter().any(is_there)
    }

    /// The node of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.table.names.iter().position(|node| &**node == name)
    }

    /// How many memories a run binds: planned buffers, then existing ones.
    #[must_use]
    pub fn memory_count(&self) -> usize {
        self.buffers.len() + self.existing.len()
    }

    /// Finds anew which allocations hold what, after allocations were added or removed by hand.
    pub fn index_allocations(&mut self) {
        self.allocation_of.clear();
        self.allocation_of.resize(self.table.len(), 0);
        self.allocation_of_copy.clear();
        self.allocation_of_copy.resize(self.copies.len(), u32::MAX);
        for (allocation, index) in self.allocations.iter().zip(0..).filter(|(allocation, _)| allocation.slot == 0) {
            match allocation.held {
                Held::Node(node) => self.allocation_of[node as usize] = index + 1,
                Held::Copy(copy) => self.allocation_of_copy[copy as usize] = index,
            }
        }
    }

    /// Finds anew which steps of a run stay behind which of the run before, after steps were added or removed by hand.
    pub fn index_steps(&mut self) {
        let [first, second, ..] = &self.programs[..] else { return };
        let behind = edges::behind(self, &first.steps, &second.steps);
        for program in &mut self.programs {
            program.behind.clone_from(&behind);
        }
    }

    /// `NAME`, or `BACKEND#NAME#SLOT` for copies and further slots.
    #[must_use]
    pub fn allocation_name(&self, allocation: &Allocation) -> Arc<str> {
        let (node, copied) = match allocation.held {
            Held::Node(node) => (node, false),
            Held::Copy(copy) => (self.copies[copy as usize].source, true),
        };
        let name = &self.table.names[node as usize];
        if copied || allocation.slot > 0 {
            format!("{}#{name}#{}", self.backends[allocation.backend as usize].name, allocation.slot).into()
        } else {
            Arc::clone(name)
        }
    }

    /// Bytes of the plan itself, without what its backends keep for its prepared splits.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let steps: usize = self
            .programs
            .iter()
            .map(|p| size_of_val(&*p.steps) + size_of_val(&*p.prepared) + size_of_val(&*p.behind))
            .sum();
        size_of::<Self>()
            + self.table.size_bytes()
            + size_of_val(&*self.flags)
            + self.memory.size_bytes()
            + size_of_val(&*self.placements)
            + size_of_val(&*self.causes)
            + self.supported.size_bytes()
            + self.refusals.size_bytes()
            + size_of_val(&*self.launches)
            + size_of_val(&*self.splits)
            + size_of_val(&*self.split_inputs)
            + size_of_val(&*self.copies)
            + size_of_val(&*self.existing)
            + size_of_val(&*self.allocations)
            + size_of_val(&*self.allocation_of)
            + size_of_val(&*self.allocation_of_copy)
            + size_of_val(&*self.copy_of)
            + steps
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (nodes, splits) = (self.node_count(), self.splits.len());
        write!(f, "Plan({nodes} nodes, {splits} splits, {} bytes)", self.planned_bytes())
    }
}

/// The memories of one run: the arena's buffers in the plan's order, then the existing buffers.
pub type Binding = Vec<MemoryHandle>;

/// The index of one of the run's existing memories, which stand behind the planned ones.
pub(crate) fn existing_memory(plan: &Plan, buffer: u32) -> u32 {
    index_u32(plan.buffers.len()) + buffer
}
