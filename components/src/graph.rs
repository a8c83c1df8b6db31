//! The components of graphs, splits, buffers and backends.

use std::sync::Arc;

use bevy_ecs::prelude::*;

use crate::{
    backend::{Backend, DeviceBuffer},
    generation::{Generation, bump_generation, bump_own_generation},
    memory::{MemoryKind, Usage},
    tensor::BackendIndex,
};

/// The graph's name, for messages and profilers.
#[derive(Component, Clone, Debug, PartialEq, Eq)]
#[component(immutable)]
pub struct GraphName(pub Arc<str>);

/// The graph's tensors in creation order, which is the order of writes and of the reads around them.
#[derive(Component, Clone, Debug, Default, PartialEq, Eq)]
#[component(immutable, on_insert = bump_own_generation, on_remove = bump_own_generation)]
pub struct GraphTensors(#[entities] pub Vec<Entity>);

/// The tensors that a run must produce.
#[derive(Component, Clone, Debug, Default, PartialEq, Eq)]
#[component(immutable, on_insert = bump_own_generation, on_remove = bump_own_generation)]
pub struct Wanted(#[entities] pub Vec<Entity>);

/// Most times that inputs, outputs and copies can exist.
pub const MAX_PIPELINE_COPIES: u32 = 1024;

/// How many times inputs, outputs and copies exist, so that runs can overlap; from 1 to
/// [`MAX_PIPELINE_COPIES`], and taken for the nearest of these.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq)]
#[component(immutable, on_insert = bump_own_generation, on_remove = bump_own_generation)]
pub struct PipelineCopies(pub u32);

impl Default for PipelineCopies {
    fn default() -> Self {
        Self(1)
    }
}

/// Everything a graph has from birth.
#[derive(Bundle, Clone, Debug)]
pub struct GraphBundle {
    /// Its name.
    pub name: GraphName,
    /// Its tensors.
    pub tensors: GraphTensors,
    /// What a run must produce.
    pub wanted: Wanted,
    /// Pipelining.
    pub copies: PipelineCopies,
    /// Counts changes.
    pub generation: Generation,
}

impl GraphBundle {
    /// An empty graph.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: GraphName(name.into()),
            tensors: GraphTensors::default(),
            wanted: Wanted::default(),
            copies: PipelineCopies::default(),
            generation: Generation::default(),
        }
    }
}

/// On a buffer entity: its name.
#[derive(Component, Clone, Debug, PartialEq, Eq)]
#[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
pub struct BufferName(pub Arc<str>);

/// On a buffer entity: backends of one buffer type share arenas.
#[derive(Component, Clone, Debug, PartialEq, Eq, Hash)]
#[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
pub struct BufferType(pub Arc<str>);

/// On a buffer entity: its size.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq)]
#[component(immutable)]
pub struct SizeBytes(pub u64);

/// On a buffer entity: whether only its own buffer type understands the layout.
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
pub struct Opaque(pub bool);

/// On a buffer entity: the memory itself, alive as long as anything uses it.
#[derive(Component, Clone, Debug)]
#[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
pub struct BufferMemory(pub Arc<DeviceBuffer>);

/// Everything a buffer has from birth.
#[derive(Bundle, Clone, Debug)]
pub struct BufferBundle {
    /// Its name.
    pub name: BufferName,
    /// Its type.
    pub buffer_type: BufferType,
    /// Its size.
    pub size_bytes: SizeBytes,
    /// What it is used for.
    pub usage: Usage,
    /// Which memory it is.
    pub kind: MemoryKind,
    /// Whether its layout is private.
    pub opaque: Opaque,
    /// The memory.
    pub memory: BufferMemory,
}

impl BufferBundle {
    /// The components of a buffer that a backend made.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, usage: Usage, buffer: Arc<DeviceBuffer>) -> Self {
        let info = buffer.buffer_type();
        Self {
            name: BufferName(name.into()),
            buffer_type: BufferType(Arc::clone(&info.name)),
            size_bytes: SizeBytes(buffer.size_bytes()),
            usage,
            kind: info.memory.clone(),
            opaque: Opaque(info.opaque),
            memory: BufferMemory(buffer),
        }
    }
}

/// On a split entity: whose it is and its place in the order.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitOf {
    /// The graph.
    #[entities]
    pub graph: Entity,
    /// Its place.
    pub index: u32,
}

/// On a split entity: the nodes it runs, as positions in the graph's indexed order.
#[derive(Component, Clone, Debug, PartialEq, Eq)]
pub struct SplitNodes(#[entities] pub Vec<Entity>);

/// On a split entity: the tensors that are copied to its backend at its start.
#[derive(Component, Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitInputs(#[entities] pub Vec<Entity>);

/// On a backend entity: its name.
#[derive(Component, Clone, Debug, PartialEq, Eq)]
#[component(immutable)]
pub struct BackendName(pub Arc<str>);

/// On a backend entity: its place in the list.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq)]
#[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
pub struct Priority(pub BackendIndex);

/// On a backend entity: the backend.
#[derive(Component, Clone)]
#[component(immutable, on_insert = bump_generation, on_remove = bump_generation)]
pub struct BackendHandle(pub Arc<dyn Backend>);
