//! Which nodes a run needs.

use super::{NodeTable, index_u32};

impl NodeTable {
    /// What is wanted unless somebody says otherwise: every output, else the last node. Without nodes nothing is.
    #[must_use]
    pub fn wanted_by_default(&self) -> Vec<u32> {
        if self.outputs.is_empty() && self.leaves < self.len() {
            return vec![index_u32(self.len() - 1)];
        }
        self.outputs.clone()
    }

    /// Which nodes a run needs: one backward sweep, since operands and the writes they depend on come earlier.
    #[must_use]
    pub fn needed_for(&self, wanted: &[u32]) -> Vec<bool> {
        let mut needed = vec![false; self.len()];
        // Roots that something needed later reads.
        let mut read = vec![false; self.len()];
        // A wanted tensor is what it is at its place in the order: writes behind it are no part of it.
        for &node in wanted {
            needed[node as usize] = true;
        }
        for node in (self.leaves..self.len()).rev() {
            let root = self.roots.of(node);
            // Only a writer computes into memory that is not its own.
            if root != node && read[root] && !needed[node] {
                needed[node] = self.traits[node].writes();
            }
            if !needed[node] {
                continue;
            }
            for &source in self.sources.of(node) {
                needed[source as usize] = true;
                read[self.roots.of(source as usize)] = true;
            }
            needed[root] = true;
            read[root] |= root != node;
        }
        needed
    }
}
