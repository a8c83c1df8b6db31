//! What the passes look up many times, gathered once into columns ordered by node index.
//!
//! One column is one resource type, so that a pass's signature says all that it reads and writes. Node indices are the
//! graph's indexed order: leaves first, then everything else, each in creation order.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use bevy_ecs::{prelude::*, system::SystemParam};
use entensor_components::{
    Backend, BackendId, BackendIndex, Cause, DeviceBuffer, MemoryKind, Op, TensorDesc, TensorFlags, Usage,
};

use crate::error::{PlanError, Refusal};

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

/// Entity of each node, and how many of them are leaves.
#[derive(Resource, Clone, Debug, Default)]
pub struct NodeOrder {
    /// Index to entity.
    pub entities: Vec<Entity>,
    /// The first `leaves` entries are leaves.
    pub leaves: usize,
}

/// Name of each node.
#[derive(Resource, Clone, Debug, Default)]
pub struct NodeNames(pub Vec<Arc<str>>);

/// Dtype, shape and strides of each node.
#[derive(Resource, Clone, Debug, Default)]
pub struct NodeDescs(pub Vec<TensorDesc>);

/// Op of each node.
#[derive(Resource, Clone, Debug, Default)]
pub struct NodeOps(pub Vec<Op>);

impl NodeOps {
    /// The nodes that launch work, in order.
    pub fn computing(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        (0..self.0.len()).filter(|&i| self.0[i].row().computes())
    }
}

/// Operands of each node, as node indices.
#[derive(Resource, Clone, Debug, Default)]
pub struct NodeSources {
    starts: Vec<u32>,
    indices: Vec<u32>,
}

impl NodeSources {
    /// Forgets all nodes.
    pub fn clear(&mut self) {
        self.starts.clear();
        self.indices.clear();
        self.starts.push(0);
    }

    /// Adds the next node's operands.
    pub fn push(&mut self, sources: impl IntoIterator<Item = u32>) {
        self.indices.extend(sources);
        self.starts.push(index_u32(self.indices.len()));
    }

    /// The operands of a node.
    #[must_use]
    pub fn of(&self, node: usize) -> &[u32] {
        &self.indices[self.starts[node] as usize..self.starts[node + 1] as usize]
    }
}

/// Whose memory each node is: itself, or the root it views or writes.
#[derive(Resource, Clone, Debug, Default)]
pub struct NodeRoots {
    /// The root's index; the node's own for roots.
    pub root: Vec<u32>,
    /// Bytes from the root's first element.
    pub offset_bytes: Vec<u64>,
}

impl NodeRoots {
    /// The root of a node.
    #[must_use]
    pub fn of(&self, node: usize) -> usize {
        self.root[node] as usize
    }

    /// Whether a node is its own root.
    #[must_use]
    pub fn is_root(&self, node: usize) -> bool {
        self.of(node) == node
    }
}

/// Input and output flags of each node. Wanted nodes count as outputs.
#[derive(Resource, Clone, Debug, Default)]
pub struct NodeFlags(pub Vec<TensorFlags>);

/// The user's wish for each node.
#[derive(Resource, Clone, Debug, Default)]
pub struct NodePins(pub Vec<Option<BackendIndex>>);

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
    /// Per node.
    pub place: Vec<Option<ExistingPlace>>,
    /// The buffers, in order of their first use.
    pub buffers: Vec<ExistingBuffer>,
}

impl NodeMemory {
    /// The existing buffer that a root lies in.
    #[must_use]
    pub fn buffer_of(&self, root: usize) -> Option<&ExistingBuffer> {
        self.place[root].map(|place| &self.buffers[place.buffer as usize])
    }
}

/// One bit per node and backend, for any number of backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendMasks {
    words_per_node: usize,
    words: Vec<u64>,
}

impl BackendMasks {
    /// All bits of all nodes `value`.
    pub fn reset(&mut self, nodes: usize, backends: usize, value: bool) {
        self.words_per_node = backends.div_ceil(64).max(1);
        self.words.clear();
        self.words.resize(nodes * self.words_per_node, 0);
        if value {
            for node in 0..nodes {
                for backend in 0..backends {
                    self.set(node, backend, true);
                }
            }
        }
    }

    /// A bit.
    #[must_use]
    pub fn get(&self, node: usize, backend: usize) -> bool {
        self.words[node * self.words_per_node + backend / 64] >> (backend % 64) & 1 == 1
    }

    /// Sets a bit.
    pub fn set(&mut self, node: usize, backend: usize, value: bool) {
        let word = &mut self.words[node * self.words_per_node + backend / 64];
        if value {
            *word |= 1 << (backend % 64);
        } else {
            *word &= !(1 << (backend % 64));
        }
    }

    /// The set bits of a node below `backends`, lowest first.
    pub fn iter(&self, node: usize, backends: usize) -> impl Iterator<Item = usize> + '_ {
        (0..backends).filter(move |&b| self.get(node, b))
    }
}

/// Which backends can run each node where its operands and target lie; all, for leaves and view ops.
#[derive(Resource, Clone, Debug, Default)]
pub struct SupportMasks(pub BackendMasks);

/// Which backends want a node whose weights are on the host.
#[derive(Resource, Clone, Debug, Default)]
pub struct OffloadMasks(pub BackendMasks);

/// Why backends refused nodes, for messages.
#[derive(Resource, Clone, Debug, Default)]
pub struct Refusals(pub HashMap<(u32, u32), Cow<'static, str>>);

impl Refusals {
    /// Why a backend refused a node.
    #[must_use]
    pub fn reason(&self, node: usize, backend: usize) -> Cow<'static, str> {
        let found = self.0.get(&(index_u32(node), index_u32(backend)));
        found.cloned().unwrap_or(Cow::Borrowed("it cannot use the memory"))
    }

    /// Every backend with its reason.
    #[must_use]
    pub fn all(&self, node: usize, backends: &Backends) -> Vec<Refusal> {
        let names = backends.names().into_iter().enumerate();
        names.map(|(b, backend)| Refusal { backend, reason: self.reason(node, b) }).collect()
    }
}

/// Bytes that each node takes on each backend, padding included.
#[derive(Resource, Clone, Debug, Default)]
pub struct PaddedBytes {
    backends: usize,
    bytes: Vec<u64>,
}

impl PaddedBytes {
    /// Forgets all nodes.
    pub fn reset(&mut self, backends: usize) {
        self.backends = backends;
        self.bytes.clear();
    }

    /// Adds the next value, backends running fastest.
    pub fn push(&mut self, bytes: u64) {
        self.bytes.push(bytes);
    }

    /// Bytes of a node on a backend.
    #[must_use]
    pub fn of(&self, node: usize, backend: usize) -> u64 {
        self.bytes[node * self.backends + backend]
    }
}

/// The writers of each root without memory: they and the root end up on one backend.
#[derive(Resource, Clone, Debug, Default)]
pub struct WriterFamilies(pub HashMap<u32, Vec<u32>>);

impl WriterFamilies {
    /// The writers of a root, in order.
    pub fn of(&self, root: usize) -> impl Iterator<Item = usize> + '_ {
        self.0.get(&index_u32(root)).into_iter().flatten().map(|&w| w as usize)
    }
}

/// The placement answers of the graph being planned, by node index.
#[derive(SystemParam)]
pub struct Placements<'w, 's> {
    order: Res<'w, NodeOrder>,
    backends: Res<'w, Backends>,
    answers: Query<'w, 's, (&'static mut BackendId, &'static mut Cause)>,
}

impl Placements<'_, '_> {
    /// Where a node is, if decided. A backend that does not exist, set by a user's system, decides nothing.
    #[must_use]
    pub fn get(&self, node: usize) -> Option<usize> {
        let (id, _) = self.answers.get(self.order.entities[node]).ok()?;
        id.0.map(|b| b.0 as usize).filter(|&b| b < self.backends.0.len())
    }

    /// Why a node is where it is.
    #[must_use]
    pub fn cause(&self, node: usize) -> Cause {
        self.answers.get(self.order.entities[node]).map_or(Cause::Undecided, |(_, cause)| *cause)
    }

    /// Decides a node. Returns whether that changed anything.
    pub fn set(&mut self, node: usize, backend: usize, cause: Cause) -> bool {
        let Ok((mut id, mut why)) = self.answers.get_mut(self.order.entities[node]) else { return false };
        let answer = BackendId(Some(BackendIndex(index_u32(backend))));
        *why = cause;
        let changed = *id != answer;
        *id = answer;
        changed
    }

    /// Makes every node undecided.
    pub fn clear(&mut self) {
        for &entity in &self.order.entities {
            if let Ok((mut id, mut why)) = self.answers.get_mut(entity) {
                *id = BackendId(None);
                *why = Cause::Undecided;
            }
        }
    }
}

/// The same answers, read-only.
#[derive(SystemParam)]
pub struct PlacementsRef<'w, 's> {
    order: Res<'w, NodeOrder>,
    answers: Query<'w, 's, (&'static BackendId, &'static Cause)>,
}

impl PlacementsRef<'_, '_> {
    /// Where a node is and why.
    #[must_use]
    pub fn get(&self, node: usize) -> Option<(usize, Cause)> {
        let (id, cause) = self.answers.get(self.order.entities[node]).ok()?;
        id.0.map(|b| (b.0 as usize, *cause))
    }

    /// Where every node is; an error if one has been left out.
    ///
    /// # Errors
    /// [`PlanError::Unplaced`] naming the node.
    pub fn all(&self, names: &NodeNames, backends: usize) -> Result<Vec<u32>, PlanError> {
        (0..names.0.len())
            .map(|i| match self.get(i) {
                Some((b, _)) if b < backends => Ok(index_u32(b)),
                _ => Err(PlanError::Unplaced { node: Arc::clone(&names.0[i]) }),
            })
            .collect()
    }
}

/// Node counts are bounded by memory long before they reach 2^32.
pub(crate) fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("a graph has fewer than 2^32 nodes")
}
