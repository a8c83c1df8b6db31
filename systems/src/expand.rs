//! **expand**: four sweeps that let runs grow over undecided nodes.
//!
//! Reads: ops, masks, backends. Writes: `BackendId` and `Cause` of undecided computing nodes.
//! Invariants: only undecided nodes change; a node takes a carried backend only if its support bit is set; an unsupported node
//! does not stop the carry; leaves and view ops neither take nor give one.
//! Cost: at most four linear sweeps; none once everything is decided. Source: DESIGN "expand"; pass 2 of ggml's `ggml_backend_sched_split_graph`.

use bevy_ecs::prelude::*;
use entensor_components::Cause;

use crate::{
    columns::{Backends, Nodes, Placements, SupportMasks, WriterFamilies},
    status::PassResult,
};

/// The pass.
pub fn expand(
    backends: Res<'_, Backends>,
    nodes: Res<'_, Nodes>,
    families: Res<'_, WriterFamilies>,
    support: Res<'_, SupportMasks>,
    mut placements: Placements<'_, '_>,
) -> PassResult {
    let host = backends.0.len() - 1;
    placements.pull();
    let mut changed = 0;
    let computing = &*nodes.computing;
    // How many nodes the last sweep left undecided.
    let mut left = computing.len();
    for (backwards, with_host, cause) in [
        (false, false, Cause::ExpandDown),
        (true, false, Cause::ExpandUp),
        (false, true, Cause::RestDown),
        (true, true, Cause::RestUp),
    ] {
        // Without accelerators there is nothing for the first two to carry.
        if left == 0 || (!with_host && host == 0) {
            continue;
        }
        left = 0;
        let mut carried = None;
        for k in 0..computing.len() {
            let node = computing[if backwards { computing.len() - 1 - k } else { k }] as usize;
            if let Some(backend) = placements.get(node) {
                carried = (with_host || backend != host).then_some(backend);
                continue;
            }
            match carried.filter(|&b| support.0.get(node, b)) {
                Some(backend) => changed += place(node, backend, cause, &nodes, &families, &mut placements),
                None => left += 1,
            }
        }
    }
    placements.push();
    Ok(changed)
}

/// Decides a node; with it the writers of its memory, and for a writer into planned memory its target.
pub(crate) fn place(
    node: usize,
    backend: usize,
    cause: Cause,
    nodes: &Nodes,
    families: &WriterFamilies,
    placements: &mut Placements<'_, '_>,
) -> usize {
    let mut changed = usize::from(placements.set(node, backend, cause));
    if families.0.is_empty() {
        return changed;
    }
    let root = nodes.roots.of(node);
    let writers = families.of(root);
    // Views are decided by `inherit`, and existing memory by `assign`: only families stand and fall together.
    let target = (!writers.is_empty()).then_some(root);
    for other in target.into_iter().chain(writers.iter().map(|&writer| writer as usize)) {
        if placements.get(other).is_none() {
            changed += usize::from(placements.set(other, backend, cause));
        }
    }
    changed
}
