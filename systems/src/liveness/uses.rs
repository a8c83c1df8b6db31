//! First and last step of everything, and what outputs protect.

use super::{Columns, NONE};
use crate::{
    columns::index_u32,
    split::{CopyRecord, Split},
};

/// The columns that the rules look at.
#[derive(Default)]
pub(super) struct Uses {
    /// First and last step that touch each root; [`NONE`] where no step does.
    first: Vec<u32>,
    last: Vec<u32>,
    /// The same of each copy.
    pub(super) copies: Vec<(u32, u32)>,
    pub(super) steps: u32,
    /// Roots that are outputs or seen through one.
    pub(super) protected: Vec<bool>,
    pub(super) by_source: CopyLists,
}

impl Uses {
    /// First and last step of a root; the first is [`NONE`] for leaves until [`Columns::find_first`] looks for it. What nobody
    /// uses still has a place, in the first step.
    #[inline]
    pub(super) fn steps_of(&self, root: usize) -> (u32, u32) {
        let (first, last) = (self.first[root], self.last[root]);
        if last == NONE { (0, 0) } else { (first, last) }
    }

    /// The last step that touches a root.
    pub(super) fn last_of(&self, root: usize) -> u32 {
        self.last[root]
    }
}

/// Per source its first copy, and per copy the next one of the same source. Empty without copies.
#[derive(Default)]
pub(super) struct CopyLists {
    heads: Vec<u32>,
    next: Vec<u32>,
}

impl CopyLists {
    fn fill(&mut self, copies: &[CopyRecord], nodes: usize) {
        self.heads.clear();
        self.next.clear();
        if copies.is_empty() {
            return;
        }
        self.heads.resize(nodes, NONE);
        for (c, copy) in copies.iter().enumerate() {
            let head = &mut self.heads[copy.source as usize];
            self.next.push(std::mem::replace(head, index_u32(c)));
        }
    }

    /// The copy that a backend reads instead of a node, if it cannot use the node's memory.
    pub(super) fn find(&self, copies: &[CopyRecord], backend: u32, node: u32) -> Option<u32> {
        let mut copy = *self.heads.get(node as usize)?;
        while copy != NONE && copies[copy as usize].backend != backend {
            copy = self.next[copy as usize];
        }
        (copy != NONE).then_some(copy)
    }
}

impl Columns<'_> {
    /// The root of a node.
    pub(super) fn root(&self, node: u32) -> usize {
        self.roots[node as usize] as usize
    }

    fn nodes_of(&self, split: &Split) -> &[u32] {
        &self.computing[split.nodes.start as usize..split.nodes.end as usize]
    }

    fn inputs_of(&self, split: &Split) -> &[u32] {
        &self.split_inputs[split.inputs.start as usize..split.inputs.end as usize]
    }

    /// Fills the columns anew.
    ///
    /// Most roots are computed, so their first step is their own, and every other touch only moves the last step: nothing is read
    /// back. The first steps of scratch leaves, which few graphs have, are left to [`Self::find_first`].
    pub(super) fn find_uses(&self, uses: &mut Uses) {
        let nodes = self.roots.len();
        for steps in [&mut uses.first, &mut uses.last] {
            steps.clear();
            steps.resize(nodes, NONE);
        }
        uses.copies.clear();
        uses.copies.resize(self.copies.len(), (NONE, 0));
        uses.by_source.fill(self.copies, nodes);
        uses.protected.clear();
        uses.protected.resize(nodes, false);
        for (flags, &root) in self.flags.iter().zip(self.roots) {
            if flags.output {
                uses.protected[root as usize] = true;
            }
        }
        if self.copies.is_empty() { self.find_last_on_one_memory(uses) } else { self.find_last(uses) }
    }

    fn find_last_on_one_memory(&self, uses: &mut Uses) {
        let (first, last) = (uses.first.as_mut_slice(), uses.last.as_mut_slice());
        let mut step = 0;
        for split in self.splits {
            for &node in self.nodes_of(split) {
                let root = self.root(node);
                if root == node as usize {
                    first[root] = step;
                }
                last[root] = step;
                for &source in self.sources.of(node as usize) {
                    last[self.root(source)] = step;
                }
                step += 1;
            }
        }
        uses.steps = step;
    }

    fn find_last(&self, uses: &mut Uses) {
        let Uses { first, last, copies, by_source, .. } = uses;
        let touch = |copy: u32, copies: &mut [(u32, u32)], step: u32| {
            let span = &mut copies[copy as usize];
            *span = (span.0.min(step), step);
        };
        let mut step = 0;
        for split in self.splits {
            for &copy in self.inputs_of(split) {
                last[self.root(self.copies[copy as usize].source)] = step;
                touch(copy, copies, step);
                step += 1;
            }
            for &node in self.nodes_of(split) {
                let root = self.root(node);
                if root == node as usize {
                    first[root] = step;
                }
                last[root] = step;
                for &source in self.sources.of(node as usize) {
                    match by_source.find(self.copies, split.backend, source) {
                        Some(copy) => touch(copy, copies, step),
                        None => last[self.root(source)] = step,
                    }
                }
                step += 1;
            }
        }
        uses.steps = step;
    }

    /// The same touches from the last to the first: what is written last comes first.
    #[cold]
    pub(super) fn find_first(&self, uses: &mut Uses) {
        let first = uses.first.as_mut_slice();
        let mut step = uses.steps;
        for split in self.splits.iter().rev() {
            for &node in self.nodes_of(split).iter().rev() {
                step -= 1;
                first[self.root(node)] = step;
                for &source in self.sources.of(node as usize) {
                    if uses.by_source.find(self.copies, split.backend, source).is_none() {
                        first[self.root(source)] = step;
                    }
                }
            }
            for &copy in self.inputs_of(split).iter().rev() {
                step -= 1;
                first[self.root(self.copies[copy as usize].source)] = step;
            }
        }
    }
}
