//! First and last step of everything, and what is to be planned at all.

use super::{LivenessInputs, NONE};
use crate::columns::index_u32;

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
    /// Per source its first copy, and per copy the next one of the same source. Empty without copies.
    copy_heads: Vec<u32>,
    copy_next: Vec<u32>,
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

impl LivenessInputs<'_> {
    /// Fills the columns anew.
    pub(super) fn find_uses(&self, uses: &mut Uses) {
        self.find_roles(&mut uses.roles);
        self.list_copies(uses);
        uses.nodes.clear();
        uses.nodes.resize(self.nodes.len(), Span::UNUSED);
        uses.copies.clear();
        uses.copies.resize(self.copies.0.len(), Span::UNUSED);
        let mut step = 0;
        for split in &self.splits.runs {
            for &copy in self.splits.inputs_of(split) {
                let source = self.copies.0[copy as usize].source as usize;
                uses.nodes[self.nodes.roots.of(source)].touch(step);
                uses.copies[copy as usize].touch(step);
                step += 1;
            }
            for &node in self.nodes.computed_by(split) {
                uses.nodes[self.nodes.roots.of(node as usize)].touch(step);
                for &source in self.nodes.sources.of(node as usize) {
                    match self.copy_read(uses, split.backend, source) {
                        Some(copy) => uses.copies[copy as usize].touch(step),
                        None => uses.nodes[self.nodes.roots.of(source as usize)].touch(step),
                    }
                }
                step += 1;
            }
        }
        uses.steps = step;
    }

    /// An output flag on a view protects its root, which has a smaller index.
    fn find_roles(&self, roles: &mut Vec<Role>) {
        roles.clear();
        for (node, flags) in self.flags.0.iter().enumerate() {
            let root = self.nodes.roots.of(node);
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

    fn list_copies(&self, uses: &mut Uses) {
        uses.copy_heads.clear();
        uses.copy_next.clear();
        if self.copies.0.is_empty() {
            return;
        }
        uses.copy_heads.resize(self.nodes.len(), NONE);
        for (c, copy) in self.copies.0.iter().enumerate() {
            let head = &mut uses.copy_heads[copy.source as usize];
            uses.copy_next.push(std::mem::replace(head, index_u32(c)));
        }
    }

    /// The copy that a backend reads instead of a node, if it cannot use the node's memory.
    pub(super) fn copy_read(&self, uses: &Uses, backend: u32, node: u32) -> Option<u32> {
        let mut copy = *uses.copy_heads.get(node as usize)?;
        while copy != NONE && self.copies.0[copy as usize].backend != backend {
            copy = uses.copy_next[copy as usize];
        }
        (copy != NONE).then_some(copy)
    }
}
