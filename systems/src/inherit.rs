//! **inherit**: views go where their root is, scratch memory where its first user is.
//!
//! Reads: ops, sources, roots. Writes: `BackendId` and `Cause` of leaves and view ops that are undecided.
//! Invariants: afterwards every node has a backend, and a view has its root's.
//! Cost: linear. Source: DESIGN "inherit"; pass 4 of ggml's `ggml_backend_sched_split_graph`.

use bevy_ecs::prelude::*;
use entensor_components::Cause;

use crate::{
    columns::{Backends, Nodes, Placements},
    status::PassResult,
};

/// The pass.
pub fn inherit(backends: Res<'_, Backends>, nodes: Res<'_, Nodes>, mut placements: Placements<'_, '_>) -> PassResult {
    placements.pull();
    let mut changed = 0;
    // Most graphs have no scratch leaves, and then nobody has to look for their users.
    let undecided = |node: usize| nodes.roots.is_root(node) && placements.get(node).is_none();
    if (0..nodes.len()).any(undecided) {
        for node in nodes.computing() {
            let Some(backend) = placements.get(node) else { continue };
            for &source in nodes.sources.of(node) {
                let root = nodes.roots.of(source as usize);
                if placements.get(root).is_none() {
                    changed += usize::from(placements.set(root, backend, Cause::InheritUser));
                }
            }
        }
    }
    for node in 0..nodes.len() {
        if placements.get(node).is_some() {
            continue;
        }
        let root = nodes.roots.of(node);
        if root == node {
            // Memory that nothing computes on, wanted for itself: the user reads it on the host.
            changed += usize::from(placements.set(node, backends.0.len() - 1, Cause::InheritUser));
        } else if let Some(backend) = placements.get(root) {
            changed += usize::from(placements.set(node, backend, Cause::InheritView));
        }
    }
    placements.push();
    Ok(changed)
}
