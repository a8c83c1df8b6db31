//! The plan: everything that was decided, as plain data, and the steps that a run walks. It needs no World.

use std::sync::{Arc, Mutex};

use entensor_components::{
    Backend, Cause, MemoryHandle, MemoryKind, NodeDesc, Op, PreparedSplit, SplitDesc, TensorDesc, TensorFlags,
    TensorRef, Usage,
};

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

/// A node or leaf of the plan.
#[derive(Clone, Debug)]
pub struct PlanNode {
    /// Its name.
    pub name: Arc<str>,
    /// Its op.
    pub op: Op,
    /// Dtype, shape, strides.
    pub desc: TensorDesc,
    /// Operands.
    pub sources: Vec<u32>,
    /// Whose memory it is; its own index for roots.
    pub root: u32,
    /// Bytes from the root's first element.
    pub offset_bytes: u64,
    /// Input and output; wanted nodes are outputs.
    pub flags: TensorFlags,
    /// The user's wish.
    pub pin: Option<u32>,
    /// Index into [`Plan::existing`] and byte offset, for roots with memory.
    pub existing: Option<(u32, u64)>,
    /// Where it is.
    pub backend: u32,
    /// Why.
    pub cause: Cause,
    /// The split that computes it.
    pub split: Option<u32>,
    /// Which backends could run it where its operands lie.
    pub supported: Vec<bool>,
    /// Why those that could not refused.
    pub refusals: Vec<(u32, String)>,
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
    /// What it is used for.
    pub usage: Usage,
    /// Its size.
    pub size_bytes: u64,
}

/// A split of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanSplit {
    /// Its backend.
    pub backend: u32,
    /// Its computing nodes.
    pub nodes: Vec<u32>,
    /// The copies made at its start.
    pub inputs: Vec<u32>,
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

/// A planned tensor's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// What it holds.
    pub held: Held,
    /// Which of the pipelined slots.
    pub slot: u32,
    /// `NAME`, or `BACKEND#NAME#SLOT` for copies and further slots.
    pub name: Arc<str>,
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
    },
    /// A backend's queue waits for an event of another.
    Wait {
        /// Whose queue waits.
        backend: u32,
        /// Which event of the run.
        event: u32,
        /// Whose event it is.
        of: u32,
    },
}

/// What one pipelined slot runs.
pub struct Program {
    /// The steps, in submission order.
    pub steps: Vec<Step>,
    /// Each split as its backend sees it.
    pub splits: Vec<SplitDesc>,
    /// Each split made ready.
    pub prepared: Vec<Box<dyn PreparedSplit>>,
    /// How many events a run records.
    pub events: u32,
    /// Where each node lies in its own memory; `None` for memory that nothing allocates.
    pub homes: Vec<Option<TensorRef>>,
}

/// A finished plan: immutable, shared by graphs that are planned alike, run by [`crate::compute`].
pub struct Plan {
    /// The backends, by priority.
    pub backends: Vec<PlanBackend>,
    /// Leaves first, then everything else, in creation order.
    pub nodes: Vec<PlanNode>,
    /// How many nodes are leaves.
    pub leaves: usize,
    /// The splits, in order.
    pub splits: Vec<PlanSplit>,
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
    /// Bounce memory for copies between memories that no one backend can use; made by the first run that copies, since a
    /// plan may be made only to be looked at.
    pub(crate) staging: Mutex<Vec<u8>>,
    /// Events of the run in flight, so that a run allocates nothing.
    pub(crate) events: Mutex<Vec<u64>>,
}

impl Plan {
    /// Bytes that the plan allocates.
    #[must_use]
    pub fn planned_bytes(&self) -> u64 {
        self.buffers.iter().fold(0, |sum, b| sum.saturating_add(b.size_bytes))
    }

    /// Bytes that one run copies between backends.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        let makes = self.splits.iter().flat_map(|split| &split.inputs);
        makes.fold(0, |sum, &c| sum.saturating_add(self.copy_bytes(self.copies[c as usize])))
    }

    /// Bytes of one copy.
    pub(crate) fn copy_bytes(&self, copy: PlanCopy) -> u64 {
        self.nodes[copy.source as usize].desc.size_bytes()
    }

    /// How many copies one run makes.
    #[must_use]
    pub fn copies_made(&self) -> usize {
        self.splits.iter().map(|split| split.inputs.len()).sum()
    }

    /// The node of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| &*node.name == name)
    }

    /// How many memories a run binds: planned buffers, then existing ones.
    #[must_use]
    pub fn memory_count(&self) -> usize {
        self.buffers.len() + self.existing.len()
    }

    /// Whether a backend can use a node's memory where it is.
    #[must_use]
    pub fn can_use(&self, backend: u32, node: u32) -> bool {
        let capabilities = self.backends[backend as usize].handle.capabilities();
        let root = &self.nodes[self.nodes[node as usize].root as usize];
        match root.existing {
            Some((buffer, _)) => {
                let buffer = &self.existing[buffer as usize];
                capabilities.can_use(&buffer.kind, buffer.opaque, &buffer.buffer_type)
            }
            None => {
                let at = self.backends[root.backend as usize].handle.capabilities();
                capabilities.reads.contains(&at.memory)
            }
        }
    }

    /// Where a node lies in a slot's run, in its own memory.
    #[must_use]
    pub fn locate(&self, node: usize, slot: u32) -> Option<TensorRef> {
        *self.programs.get(slot as usize)?.homes.get(node)?
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (nodes, splits) = (self.nodes.len(), self.splits.len());
        write!(f, "Plan({nodes} nodes, {splits} splits, {} bytes)", self.planned_bytes())
    }
}

/// Finds where tensors lie, for building programs.
pub(crate) struct Locator<'a> {
    plan: &'a Plan,
    nodes: Vec<Vec<u32>>,
    copies: Vec<Vec<u32>>,
    copy_of: std::collections::HashMap<(u32, u32), u32>,
}

impl<'a> Locator<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Self {
        let mut nodes = vec![Vec::new(); plan.nodes.len()];
        let mut copies = vec![Vec::new(); plan.copies.len()];
        for (i, allocation) in plan.allocations.iter().enumerate() {
            // Allocations of one thing stand in the order of their slots.
            match allocation.held {
                Held::Node(node) => nodes[node as usize].push(crate::columns::index_u32(i)),
                Held::Copy(copy) => copies[copy as usize].push(crate::columns::index_u32(i)),
            }
        }
        let pairs = plan.copies.iter().enumerate();
        let copy_of = pairs.map(|(c, copy)| ((copy.source, copy.backend), crate::columns::index_u32(c))).collect();
        Self { plan, nodes, copies, copy_of }
    }

    fn in_slot(&self, allocations: &[u32], slot: u32) -> Option<&'a Allocation> {
        let index = allocations.get(slot as usize).or_else(|| allocations.first())?;
        Some(&self.plan.allocations[*index as usize])
    }

    /// A tensor in its own memory.
    pub(crate) fn home(&self, node: u32, slot: u32) -> Option<TensorRef> {
        let tensor = &self.plan.nodes[node as usize];
        let root = &self.plan.nodes[tensor.root as usize];
        let (memory, base) = match root.existing {
            Some((buffer, offset)) => (crate::columns::index_u32(self.plan.buffers.len()) + buffer, offset),
            None => {
                let allocation = self.in_slot(&self.nodes[tensor.root as usize], slot)?;
                (allocation.buffer, allocation.offset_bytes)
            }
        };
        Some(TensorRef {
            desc: tensor.desc,
            memory: entensor_components::MemorySlot(memory),
            offset_bytes: base + tensor.offset_bytes,
        })
    }

    /// A copy.
    pub(crate) fn copy(&self, copy: u32, slot: u32) -> Option<TensorRef> {
        let allocation = self.in_slot(&self.copies[copy as usize], slot)?;
        let source = &self.plan.nodes[self.plan.copies[copy as usize].source as usize];
        Some(TensorRef {
            desc: source.desc,
            memory: entensor_components::MemorySlot(allocation.buffer),
            offset_bytes: allocation.offset_bytes,
        })
    }

    /// A tensor as a backend reads it: its copy there if there is one, else its own memory.
    pub(crate) fn read(&self, node: u32, backend: u32, slot: u32) -> Option<TensorRef> {
        match self.copy_of.get(&(node, backend)) {
            Some(&copy) => self.copy(copy, slot),
            None => self.home(node, slot),
        }
    }

    /// A split as its backend sees it.
    pub(crate) fn split(&self, split: &PlanSplit, slot: u32) -> Option<SplitDesc> {
        let nodes = split.nodes.iter().map(|&n| {
            let node = &self.plan.nodes[n as usize];
            let operands = node.sources.iter().map(|&s| self.read(s, split.backend, slot)).collect::<Option<_>>()?;
            Some(NodeDesc { name: Arc::clone(&node.name), op: node.op.clone(), output: self.home(n, slot)?, operands })
        });
        Some(SplitDesc {
            nodes: nodes.collect::<Option<_>>()?,
            memory_slots: crate::columns::index_u32(self.plan.memory_count()),
        })
    }
}

/// The memories of one run: the arena's buffers in the plan's order, then the existing buffers.
pub type Binding = Vec<MemoryHandle>;
