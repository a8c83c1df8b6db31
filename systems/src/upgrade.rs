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
    columns::{
        Backends, NodeDescs, NodeMemory, NodeNames, NodeOps, NodeRoots, NodeSources, Placements, Refusals,
        SupportMasks, WriterFamilies,
    },
    error::PlanError,
    expand::place,
    status::PassResult,
};

/// What the rules look at.
#[derive(SystemParam)]
pub struct UpgradeInputs<'w> {
    backends: Res<'w, Backends>,
    names: Res<'w, NodeNames>,
    descs: Res<'w, NodeDescs>,
    ops: Res<'w, NodeOps>,
    sources: Res<'w, NodeSources>,
    roots: Res<'w, NodeRoots>,
    memory: Res<'w, NodeMemory>,
    support: Res<'w, SupportMasks>,
    refusals: Res<'w, Refusals>,
    families: Res<'w, WriterFamilies>,
}

/// The pass.
pub fn upgrade(inputs: UpgradeInputs<'_>, mut placements: Placements<'_, '_>) -> PassResult {
    let mut changed = 0;
    for node in inputs.ops.computing() {
        match placements.get(node) {
            Some(_) if matches!(placements.cause(node), Cause::Pin | Cause::User) => {}
            Some(backend) => {
                if let Some(better) = inputs.better(node, backend, &placements) {
                    changed += usize::from(placements.set(node, better, Cause::Upgrade));
                }
            }
            None => {
                let backend = inputs.best(node, &placements)?;
                changed += place(node, backend, Cause::Best, &inputs.roots, &inputs.families, &mut placements);
            }
        }
    }
    Ok(changed)
}

impl UpgradeInputs<'_> {
    /// Whether a backend can read an operand where it is, or will be: scratch that nobody decided yet comes to its user.
    fn can_read(&self, backend: usize, operand: usize, placements: &Placements<'_, '_>) -> bool {
        let capabilities = self.backends.0[backend].capabilities();
        let root = self.roots.of(operand);
        if let Some(buffer) = self.memory.buffer_of(root) {
            return capabilities.can_use(&buffer.kind, buffer.opaque, &buffer.buffer_type);
        }
        match placements.get(root) {
            Some(at) => capabilities.reads.contains(&self.backends.0[at].capabilities().memory),
            None => true,
        }
    }

    fn better(&self, node: usize, current: usize, placements: &Placements<'_, '_>) -> Option<usize> {
        if self.families.of(self.roots.of(node)).next().is_some() {
            return None;
        }
        let now = self.backends.0[current].capabilities();
        (0..current).find(|&b| {
            let higher = self.backends.0[b].capabilities();
            higher.buffer_type == now.buffer_type
                && higher.memory == now.memory
                && self.support.0.get(node, b)
                && self.sources.of(node).iter().all(|&s| self.can_read(b, s as usize, placements))
        })
    }

    fn best(&self, node: usize, placements: &Placements<'_, '_>) -> Result<usize, PlanError> {
        let readable =
            |b: usize| self.sources.of(node).iter().filter(|&&s| self.can_read(b, s as usize, placements)).count();
        let able = self.support.0.iter(node, self.backends.0.len());
        // `max_by_key` keeps the last of equals, so walk from the lowest priority up.
        let best = able.collect::<Vec<_>>().into_iter().rev().max_by_key(|&b| readable(b));
        best.ok_or_else(|| PlanError::NoBackend {
            node: Arc::clone(&self.names.0[node]),
            op: self.ops.0[node].kind().name(),
            output: Box::new(self.descs.0[node]),
            refusals: self.refusals.all(node, &self.backends),
        })
    }
}
