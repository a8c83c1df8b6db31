//! First and last step of everything, and what is to be planned at all.

use super::{Columns, NONE};
use crate::{columns::index_u32, split::CopyRecord};

/// First and last step that touch something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    first: u32,
    last: u32,
}

impl Span {
    /// Nothing has touched it.
    const UNUSED: Self = Self { first: u32::MAX, last: 0 };

    fn touch(&mut self, step: u32) {
        self.first = self.first.min(step);
        self.last = step;
    }

    /// What nobody uses still has a place, in the first step.
    pub(super) fn steps(self) -> (u32, u32) {
        if self.first == u32::MAX { (0, 0) } else { (self.first, self.last) }
    }
}

/// Whether a node's memory is planned, and what protects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A view, or in memory that exists.
    Elsewhere,
    /// Free after its last use.
    Scratch,
    /// Stable throughout.
    Input,
    /// Kept to the end: itself or a view of it is an output.
    Output,
}

/// The columns that the rules look at.
#[derive(Default)]
pub(super) struct Uses {
    pub(super) roles: Vec<Role>,
    pub(super) nodes: Vec<Span>,
    pub(super) copies: Vec<Span>,
    pub(super) steps: u32,
    pub(super) by_source: CopyLists,
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

impl Uses {
    /// How many items the roots get.
    pub(super) fn root_items(&self, slots: u32) -> u32 {
        let items = |role: &Role| match role {
            Role::Elsewhere => 0,
            Role::Scratch => 1,
            Role::Input | Role::Output => slots,
        };
        self.roles.iter().map(items).sum()
    }
}

impl Columns<'_> {
    /// Fills the columns anew.
    pub(super) fn find_uses(&self, uses: &mut Uses) {
        let Uses { roles, nodes, copies, steps, by_source } = uses;
        self.find_roles(roles);
        by_source.fill(self.copies, self.roots.len());
        nodes.clear();
        nodes.resize(self.roots.len(), Span::UNUSED);
        copies.clear();
        copies.resize(self.copies.len(), Span::UNUSED);
        let (nodes, copies) = (nodes.as_mut_slice(), copies.as_mut_slice());
        let mut step = 0;
        for split in self.splits {
            for &copy in &self.split_inputs[split.inputs.start as usize..split.inputs.end as usize] {
                let source = self.copies[copy as usize].source;
                nodes[self.root(source)].touch(step);
                copies[copy as usize].touch(step);
                step += 1;
            }
            for &node in &self.computing[split.nodes.start as usize..split.nodes.end as usize] {
                nodes[self.root(node)].touch(step);
                for &source in self.sources.of(node as usize) {
                    match by_source.find(self.copies, split.backend, source) {
                        Some(copy) => copies[copy as usize].touch(step),
                        None => nodes[self.root(source)].touch(step),
                    }
                }
                step += 1;
            }
        }
        *steps = step;
    }

    /// An output flag on a view protects its root, which has a smaller index.
    fn find_roles(&self, roles: &mut Vec<Role>) {
        roles.clear();
        for (node, flags) in self.flags.iter().enumerate() {
            let root = self.roots[node] as usize;
            if root != node {
                roles.push(Role::Elsewhere);
                if flags.output && roles[root] == Role::Scratch {
                    roles[root] = Role::Output;
                }
            } else if self.memory.place(node).is_some() {
                roles.push(Role::Elsewhere);
            } else {
                roles.push(if flags.input {
                    Role::Input
                } else if flags.output {
                    Role::Output
                } else {
                    Role::Scratch
                });
            }
        }
    }

    /// The root of a node.
    pub(super) fn root(&self, node: u32) -> usize {
        self.roots[node as usize] as usize
    }
}
