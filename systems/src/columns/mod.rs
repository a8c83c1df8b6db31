//! What the passes look up many times, gathered once into columns ordered by node index.
//!
//! What a pass writes is a resource type of its own, so that signatures say all that passes read and write; what only `index`
//! writes is one, [`Nodes`]. Node indices are the graph's indexed order: leaves first, then everything else, each in creation order.

mod kinds;
mod masks;
mod placements;
mod table;

use std::sync::Arc;

use bevy_ecs::prelude::*;
use entensor_components::{Backend, BackendIndex, DeviceBuffer, MemoryKind, TensorFlags, Usage};

pub use kinds::Kinds;
pub use masks::*;
pub use placements::*;
pub use table::*;

/// The graph that this run of the schedule plans and computes.
#[derive(Resource, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planning(pub Entity);

/// The engine's backends in order of priority; the last is on host memory.
#[derive(Resource, Clone, Default)]
pub struct Backends(pub Vec<Arc<dyn Backend>>);

impl Backends {
    /// The names, in order.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        self.0.iter().map(|b| Arc::from(b.name())).collect()
    }

    /// The backend of this name, ignoring case.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<BackendIndex> {
        let found = self.0.iter().position(|b| b.name().eq_ignore_ascii_case(name))?;
        Some(BackendIndex(u32::try_from(found).ok()?))
    }
}

/// A number that users' own systems set, so that a cached plan never ignores what they did.
#[derive(Resource, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlanSalt(pub u64);

/// Entity of each node.
#[derive(Resource, Clone, Debug, Default)]
pub struct NodeOrder {
    /// Index to entity.
    pub entities: Arc<Vec<Entity>>,
}

/// Input and output flags of each node. Wanted nodes count as outputs.
#[derive(Resource, Clone, Debug, Default)]
pub struct NodeFlags(pub Vec<TensorFlags>);

/// A buffer that exists already.
#[derive(Clone, Debug)]
pub struct ExistingBuffer {
    /// Its entity.
    pub entity: Entity,
    /// Its name.
    pub name: Arc<str>,
    /// Which memory it is.
    pub kind: MemoryKind,
    /// Its buffer type.
    pub buffer_type: Arc<str>,
    /// Whether only its own buffer type understands the layout.
    pub opaque: bool,
    /// What it is used for.
    pub usage: Usage,
    /// The memory.
    pub memory: Arc<DeviceBuffer>,
}

/// A place in an existing buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExistingPlace {
    /// Index into [`NodeMemory::buffers`].
    pub buffer: u32,
    /// Bytes from its start.
    pub offset_bytes: u64,
}

/// Existing memory of each node that is a root; views and writers ask their root.
#[derive(Resource, Clone, Debug, Default)]
pub struct NodeMemory {
    /// Per node, 1 + index into `places`; 0 for planned memory.
    of: Vec<u32>,
    places: Vec<ExistingPlace>,
    /// The buffers, in order of their first use.
    pub buffers: Vec<ExistingBuffer>,
}

impl NodeMemory {
    /// Forgets everything; so many nodes have no memory yet.
    pub(crate) fn reset(&mut self, nodes: usize) {
        self.of.clear();
        self.of.resize(nodes, 0);
        self.places.clear();
        self.buffers.clear();
    }

    /// Says where a root lies.
    pub(crate) fn set(&mut self, root: usize, place: ExistingPlace) {
        self.places.push(place);
        self.of[root] = index_u32(self.places.len());
    }

    /// The nodes at or behind one that have memory.
    pub(crate) fn placed_behind(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        (node..self.of.len()).filter(|&node| self.of[node] > 0)
    }

    /// Where a root lies, if its memory exists already.
    #[must_use]
    pub fn place(&self, root: usize) -> Option<ExistingPlace> {
        let of = self.of[root] as usize;
        (of > 0).then(|| self.places[of - 1])
    }

    /// The places alone.
    pub(crate) fn without_buffers(&self) -> Self {
        Self { of: self.of.clone(), places: self.places.clone(), buffers: Vec::new() }
    }

    /// Whether any of the buffers has a layout of its own.
    pub(crate) fn has_opaque(&self) -> bool {
        self.buffers.iter().any(|buffer| buffer.opaque)
    }

    /// Whether the same roots lie at the same places of equally numbered buffers.
    pub(crate) fn same_places(&self, other: &Self) -> bool {
        self.of == other.of && self.places == other.places
    }

    /// Bytes of the columns.
    pub(crate) fn size_bytes(&self) -> usize {
        size_of_val(&*self.of) + size_of_val(&*self.places)
    }

    /// The existing buffer that a root lies in.
    #[must_use]
    pub fn buffer_of(&self, root: usize) -> Option<&ExistingBuffer> {
        self.place(root).map(|place| &self.buffers[place.buffer as usize])
    }
}

/// Node counts are bounded by memory long before they reach 2^32.
pub(crate) fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("a graph has fewer than 2^32 nodes")
}
