//! What `probe` learns from the backends, so that no later pass has to ask.

use std::{borrow::Cow, collections::HashMap};

use bevy_ecs::prelude::*;

use super::{Backends, ExistingBuffer, NodeMemory, index_u32};
use crate::error::Refusal;

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
        self.words.resize(nodes * self.words_per_node, if value { u64::MAX } else { 0 });
    }

    /// A row of other masks for as many backends.
    pub fn copy_row(&mut self, node: usize, from: &Self, row: usize) {
        let words = self.words_per_node;
        for word in 0..words {
            self.words[node * words + word] = from.words[row * words + word];
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
    pub fn iter(&self, node: usize, backends: usize) -> impl DoubleEndedIterator<Item = usize> + '_ {
        (0..backends).filter(move |&b| self.get(node, b))
    }

    /// Bytes of the masks.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }
}

/// Which backends can run each node where its operands and target lie; all, for leaves and view ops.
#[derive(Resource, Clone, Debug, Default)]
pub struct SupportMasks(pub BackendMasks);

/// Which backends want a node whose weights are on the host.
#[derive(Resource, Clone, Debug, Default)]
pub struct OffloadMasks(pub BackendMasks);

/// Why backends refused nodes, for messages: node, backend, reason, in that order.
#[derive(Resource, Clone, Debug, Default)]
pub struct Refusals(pub Vec<(u32, u32, Cow<'static, str>)>);

impl Refusals {
    /// Notes a reason.
    pub fn push(&mut self, node: usize, backend: usize, reason: Cow<'static, str>) {
        self.0.push((index_u32(node), index_u32(backend), reason));
    }

    /// Brings the reasons into order. Of several for one node and backend the first one noted stays first.
    pub fn sort(&mut self) {
        self.0.sort_by_key(|&(node, backend, _)| (node, backend));
    }

    /// What refused a node, by backend.
    #[must_use]
    pub fn of(&self, node: usize) -> &[(u32, u32, Cow<'static, str>)] {
        let node = index_u32(node);
        let start = self.0.partition_point(|&(n, ..)| n < node);
        let end = start + self.0[start..].partition_point(|&(n, ..)| n == node);
        &self.0[start..end]
    }

    /// Why a backend refused a node.
    #[must_use]
    pub fn reason(&self, node: usize, backend: usize) -> Cow<'static, str> {
        let found = self.of(node).iter().find(|&&(_, b, _)| b as usize == backend);
        found.map_or(Cow::Borrowed("it cannot use the memory"), |(.., reason)| reason.clone())
    }

    /// Every backend with its reason.
    #[must_use]
    pub fn all(&self, node: usize, backends: &Backends) -> Vec<Refusal> {
        let names = backends.names().into_iter().enumerate();
        names.map(|(b, backend)| Refusal { backend, reason: self.reason(node, b) }).collect()
    }

    /// Bytes of the reasons.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let owned = |reason: &Cow<'static, str>| if let Cow::Owned(text) = reason { text.capacity() } else { 0 };
        size_of_val(&*self.0) + self.0.iter().map(|(.., reason)| owned(reason)).sum::<usize>()
    }
}

/// Bytes that tensors of each layout take on each backend, padding included.
#[derive(Resource, Clone, Debug, Default)]
pub struct PaddedBytes {
    backends: usize,
    bytes: Vec<u64>,
}

impl PaddedBytes {
    /// Forgets all layouts.
    pub fn reset(&mut self, layouts: usize, backends: usize) {
        self.backends = backends;
        self.bytes.clear();
        self.bytes.reserve(layouts * backends);
    }

    /// Adds the next value, backends running fastest.
    pub fn push(&mut self, bytes: u64) {
        self.bytes.push(bytes);
    }

    /// Bytes of a layout on a backend.
    #[must_use]
    pub fn of(&self, layout: usize, backend: usize) -> u64 {
        self.bytes[layout * self.backends + backend]
    }
}

/// The writers of each root without memory: they and the root end up on one backend.
#[derive(Resource, Clone, Debug, Default)]
pub struct WriterFamilies(pub HashMap<u32, Vec<u32>>);

impl WriterFamilies {
    /// The writers of a root, in order.
    #[must_use]
    pub fn of(&self, root: usize) -> &[u32] {
        // Most graphs have none, and then nobody hashes.
        if self.0.is_empty() {
            return &[];
        }
        self.0.get(&index_u32(root)).map_or(&[], Vec::as_slice)
    }
}

/// Which memory each backend can use without a copy.
#[derive(Resource, Clone, Debug, Default)]
pub struct MemoryReach {
    /// Per backend: who can use what is planned on it.
    planned: BackendMasks,
    /// Per existing buffer: who can use it.
    existing: BackendMasks,
    total: bool,
}

impl MemoryReach {
    /// Asks every pair once.
    pub fn fill(&mut self, backends: &Backends, buffers: &[ExistingBuffer]) {
        let count = backends.0.len();
        self.planned.reset(count, count, false);
        self.existing.reset(buffers.len(), count, false);
        self.total = true;
        for (b, backend) in backends.0.iter().enumerate() {
            let capabilities = backend.capabilities();
            for (other, of) in backends.0.iter().enumerate() {
                let can_use = capabilities.reads.contains(&of.capabilities().memory);
                self.planned.set(other, b, can_use);
                self.total &= can_use;
            }
            for (index, buffer) in buffers.iter().enumerate() {
                let can_use = capabilities.can_use(&buffer.kind, buffer.opaque, &buffer.buffer_type);
                self.existing.set(index, b, can_use);
                self.total &= can_use;
            }
        }
    }

    /// Whether a backend can use what is planned on another.
    #[must_use]
    pub fn planned(&self, backend: usize, of: usize) -> bool {
        self.planned.get(of, backend)
    }

    /// Whether a backend can use an existing buffer.
    #[must_use]
    pub fn existing(&self, backend: usize, buffer: u32) -> bool {
        self.existing.get(buffer as usize, backend)
    }

    /// Whether every backend can use all memory that there is or will be.
    #[must_use]
    pub fn is_total(&self) -> bool {
        self.total
    }

    /// Notes who can use a root's memory, which is planned on `at` unless it exists already.
    pub(crate) fn copy_users(&self, users: &mut BackendMasks, root: usize, at: usize, memory: &NodeMemory) {
        match memory.place(root) {
            Some(place) => users.copy_row(root, &self.existing, place.buffer as usize),
            None => users.copy_row(root, &self.planned, at),
        }
    }
}
