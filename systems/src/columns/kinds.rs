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

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(facts: &[u8], hash: impl Fn(u8) -> u64) -> Kinds {
        let (mut kinds, mut seen) = (Kinds::default(), Seen::default());
        for &fact in facts {
            kinds.add(&mut seen, hash(fact), |_, other| facts[other] == fact);
        }
        kinds
    }

    #[test]
    fn equal_nodes_are_of_one_kind_and_others_never_are() {
        let facts = [3, 1, 3, 2, 1, 1, 3, 7];
        let kinds = kinds(&facts, u64::from);
        assert_eq!(kinds.by_node(), [0, 1, 0, 2, 1, 1, 0, 3]);
        assert_eq!(kinds.firsts().collect::<Vec<_>>(), [0, 1, 3, 7]);
        assert_eq!(kinds.count(), 4);
    }

    /// Facts that share a hash are never taken for each other; at worst equal ones are told apart.
    #[test]
    fn hashes_that_collide_mix_nothing_up() {
        let facts = [3, 1, 3, 2, 1, 3];
        for hash in [|_| 0, |fact| u64::from(fact % 2)] {
            let kinds = kinds(&facts, hash);
            for (a, &fact) in facts.iter().enumerate() {
                let first = kinds.firsts().nth(kinds.of(a)).expect("every kind has a first node");
                assert_eq!(facts[first], fact);
            }
        }
    }
}
