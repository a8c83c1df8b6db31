//! Which nodes are alike: models repeat their layers, and what is known of one node is known of all of its kind.

use std::collections::HashMap;

use rustc_hash::FxBuildHasher;

use super::index_u32;

/// Nodes sorted into kinds.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    of: Vec<u32>,
    first: Vec<u32>,
}

impl Kinds {
    pub(super) fn reserve(&mut self, nodes: usize) {
        self.of.reserve_exact(nodes);
    }

    /// How many kinds there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.first.len()
    }

    /// The kind of a node.
    #[must_use]
    #[inline]
    pub fn of(&self, node: usize) -> usize {
        self.of[node] as usize
    }

    /// The kinds of all nodes.
    #[must_use]
    pub fn by_node(&self) -> &[u32] {
        &self.of
    }

    /// The first node of each kind, in order.
    pub fn firsts(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.first.iter().map(|&node| node as usize)
    }

    /// Bytes of the columns.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        size_of_val(&*self.of) + size_of_val(&*self.first)
    }

    /// Adds the next node: of the kind whose first node is the same as it, or of a new one.
    pub(super) fn add(&mut self, seen: &mut Seen, hash: u64, is_same: impl FnOnce(usize, usize) -> bool) {
        let new = index_u32(self.first.len());
        let kind = *seen.0.entry(hash).or_insert(new);
        // Of kinds that share a hash only the first is found again: the others are told apart once more than needed.
        let known = kind != new && is_same(kind as usize, self.first[kind as usize] as usize);
        if !known {
            self.first.push(index_u32(self.of.len()));
        }
        self.of.push(if known { kind } else { new });
    }
}

/// What has been seen while kinds are told apart.
#[derive(Debug, Default)]
pub(super) struct Seen(HashMap<u64, u32, FxBuildHasher>);
