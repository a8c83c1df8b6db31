//! **upgrade**: moves decided nodes to a higher backend on the same memory, and places what is still undecided.
//!
//! Reads: node columns, masks, backends. Writes: `BackendId` and `Cause` of computing nodes.
//! Invariants: pinned nodes, nodes that a user's system placed, and writers into planned memory with their target stay; a move
//! goes only to a backend of the same buffer type that supports the op and can read every operand.
//! Cost: nodes × backends × operands. Source: DESIGN "upgrade"; pass 3 of ggml's `ggml_backend_sched_split_graph`.

use std::sync::Arc;

use bevy_ecs::{prelude::*, system::SystemParam};
use entensor_components::Cause;

use crate::{
    columns::{Backends, MemoryReach, NodeMemory, Nodes, Placements, Refusals, SupportMasks, WriterFamilies},
    error::PlanError,
    expand::place,
    status::PassResult,
};

/// What the rules look at.
#[derive(SystemParam)]
pub struct UpgradeInputs<'w> {
    backends: Res<'w, Backends>,
    nodes: Res<'w, Nodes>,
    memory: Res<'w, NodeMemory>,
    reach: Res<'w, MemoryReach>,
    support: Res<'w, SupportMasks>,
    refusals: Res<'w, Refusals>,
    families: Res<'w, WriterFamilies>,
}

/// The pass.
pub fn upgrade(inputs: UpgradeInputs<'_>, mut placements: Placements<'_, '_>) -> PassResult {
    placements.pull();
    let ranks = inputs.ranks();
    let mut changed = 0;
    for node in inputs.nodes.computing() {
        match placements.get(node) {
            Some(_) if matches!(placements.cause(node), Cause::Pin | Cause::User) => {}
            Some(backend) => {
                if let Some(better) = inputs.better(node, &ranks[backend], &placements) {
                    changed += usize::from(placements.set(node, better, Cause::Upgrade));
                }
            }
            None => {
                let backend = inputs.best(node, &placements)?;
                changed += place(node, backend, Cause::Best, &inputs.nodes, &inputs.families, &mut placements);
            }
        }
    }
    placements.push();
    Ok(changed)
}

impl UpgradeInputs<'_> {
    /// Whether a backend can read an operand where it is, or will be: scratch that nobody decided yet comes to its user.
    fn can_read(&self, backend: usize, operand: usize, placements: &Placements<'_, '_>) -> bool {
        let root = self.nodes.roots.of(operand);
        match (self.memory.place(root), placements.get(root)) {
            (Some(place), _) => self.reach.existing(backend, place.buffer),
            (None, Some(at)) => self.reach.planned(backend, at),
            (None, None) => true,
        }
    }

    /// For each backend, the higher ones on the same memory and of the same buffer type.
    fn ranks(&self) -> Vec<Vec<usize>> {
        let same = |a: usize, b: usize| {
            let (a, b) = (self.backends.0[a].capabilities(), self.backends.0[b].capabilities());
            a.buffer_type == b.buffer_type && a.memory == b.memory
        };
        (0..self.backends.0.len()).map(|b| (0..b).filter(|&higher| same(higher, b)).collect()).collect()
    }

    fn better(&self, node: usize, higher: &[usize], placements: &Placements<'_, '_>) -> Option<usize> {
        if higher.is_empty() || !self.families.of(self.nodes.roots.of(node)).is_empty() {
            return None;
        }
        higher.iter().copied().find(|&b| {
            self.support.0.get(node, b)
                && self.nodes.sources.of(node).iter().all(|&s| self.can_read(b, s as usize, placements))
        })
    }

    fn best(&self, node: usize, placements: &Placements<'_, '_>) -> Result<usize, PlanError> {
        let readable = |b: usize| {
            self.nodes.sources.of(node).iter().filter(|&&s| self.can_read(b, s as usize, placements)).count()
        };
        let able = self.support.0.iter(node, self.backends.0.len());
        // `max_by_key` keeps the last of equals, so walk from the lowest priority up.
        let best = able.rev().max_by_key(|&b| readable(b));
        best.ok_or_else(|| PlanError::NoBackend {
            node: Arc::clone(&self.nodes.names[node]),
            op: self.nodes.ops[node].kind().name(),
            output: Box::new(self.nodes.descs[node]),
            refusals: self.refusals.all(node, &self.backends),
        })
    }
}
