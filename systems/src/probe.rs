//! **probe**: asks every backend once about every node, and keeps the answers as bit masks.
//!
//! Reads: node columns, backends. Writes: `SupportMasks`, `OffloadMasks`, `PaddedBytes`, `Refusals`, `WriterFamilies`.
//! Invariants: no later pass calls a backend. A bit is set only where the backend can run the op *and* use every opaque
//! operand and the written root; a planned root and all its writers have the same bits. Leaves and view ops have all bits.
//! Cost: nodes × backends. Source: DESIGN "probe".

use std::borrow::Cow;

use bevy_ecs::prelude::*;
use entensor_components::{OpDesc, Support, TensorDesc};
use smallvec::SmallVec;

use crate::{
    columns::{
        Backends, NodeDescs, NodeFlags, NodeMemory, NodeNames, NodeOps, NodePins, NodeRoots, NodeSources, OffloadMasks,
        PaddedBytes, Refusals, SupportMasks, WriterFamilies, index_u32,
    },
    status::PassResult,
};

/// The pass.
pub fn probe(
    backends: Res<'_, Backends>,
    names: Res<'_, NodeNames>,
    descs: Res<'_, NodeDescs>,
    ops: Res<'_, NodeOps>,
    sources: Res<'_, NodeSources>,
    roots: Res<'_, NodeRoots>,
    flags: Res<'_, NodeFlags>,
    pins: Res<'_, NodePins>,
    memory: Res<'_, NodeMemory>,
    mut support: ResMut<'_, SupportMasks>,
    mut offload: ResMut<'_, OffloadMasks>,
    mut padded: ResMut<'_, PaddedBytes>,
    mut refusals: ResMut<'_, Refusals>,
    mut families: ResMut<'_, WriterFamilies>,
) -> PassResult {
    let (nodes, count) = (descs.0.len(), backends.0.len());
    support.0.reset(nodes, count, true);
    offload.0.reset(nodes, count, false);
    padded.reset(count);
    refusals.0.clear();
    let mut asked = 0;
    families.0.clear();
    let input_at = input_places(&roots, &flags, &pins, count);
    for node in 0..nodes {
        for backend in &backends.0 {
            padded.push(backend.allocation_bytes(&descs.0[node]));
        }
        let row = ops.0[node].row();
        if !row.computes() {
            continue;
        }
        let operand_nodes = sources.of(node);
        let operands: SmallVec<[TensorDesc; 4]> = operand_nodes.iter().map(|&s| descs.0[s as usize]).collect();
        let op = OpDesc { op: &ops.0[node], output: descs.0[node], operands: &operands };
        for (b, backend) in backends.0.iter().enumerate() {
            asked += 1;
            let answer = match memory_refusal(node, b, operand_nodes, &backends, &roots, &input_at, &memory) {
                Some(reason) => Support::No(Cow::Borrowed(reason)),
                None => backend.support(&op),
            };
            if let Support::No(reason) = answer {
                support.0.set(node, b, false);
                refusals.0.insert((index_u32(node), index_u32(b)), reason);
            }
            offload.0.set(node, b, row.anchor.is_some() && backend.wants_offload(&op));
        }
        if row.writes.is_some() && memory.place[roots.of(node)].is_none() {
            families.0.entry(index_u32(roots.of(node))).or_default().push(index_u32(node));
        }
    }
    for (&root, writers) in &families.0 {
        let computed = ops.0[root as usize].row().computes();
        let members: Vec<u32> = computed.then_some(root).into_iter().chain(writers.iter().copied()).collect();
        join_answers(&members, &names, count, &mut support, &mut refusals);
    }
    Ok(asked)
}

/// Nodes that end up on one backend have one answer: who cannot run one of them can run none.
fn join_answers(
    members: &[u32],
    names: &NodeNames,
    backends: usize,
    support: &mut SupportMasks,
    refusals: &mut Refusals,
) {
    for backend in 0..backends {
        let Some(&against) = members.iter().find(|&&m| !support.0.get(m as usize, backend)) else { continue };
        let name = &names.0[against as usize];
        for &member in members.iter().filter(|&&m| support.0.get(m as usize, backend)) {
            let reason = format!("`{name}`, which shares its memory, cannot run there");
            refusals.0.insert((member, index_u32(backend)), Cow::Owned(reason));
        }
        for &member in members {
            support.0.set(member as usize, backend, false);
        }
    }
}

/// Where the inputs that are roots will be: at their pin, else on the host.
fn input_places(roots: &NodeRoots, flags: &NodeFlags, pins: &NodePins, backends: usize) -> Vec<Option<usize>> {
    let mut places: Vec<Option<usize>> = flags.0.iter().map(|flags| flags.input.then_some(backends - 1)).collect();
    // Contradicting pins are for `assign` to report.
    for (node, pin) in pins.0.iter().enumerate() {
        if let (Some(pin), Some(place)) = (pin, &mut places[roots.of(node)]) {
            *place = pin.0 as usize;
        }
    }
    places
}

/// Why a backend cannot use the memory of a node's opaque operands, or that which the node writes.
fn memory_refusal(
    node: usize,
    backend: usize,
    operands: &[u32],
    backends: &Backends,
    roots: &NodeRoots,
    input_at: &[Option<usize>],
    memory: &NodeMemory,
) -> Option<&'static str> {
    let capabilities = backends.0[backend].capabilities();
    for &operand in operands {
        if let Some(buffer) = memory.buffer_of(roots.of(operand as usize))
            && buffer.opaque
            && !capabilities.can_use(&buffer.kind, true, &buffer.buffer_type)
        {
            return Some("an operand has a private layout that only its own buffer type understands");
        }
    }
    let root = roots.of(node);
    match memory.buffer_of(root) {
        Some(buffer) if buffer.memory.is_read_only() => Some("the target is read-only memory"),
        Some(buffer) if !capabilities.can_use(&buffer.kind, buffer.opaque, &buffer.buffer_type) => {
            Some("it cannot use the target's memory")
        }
        None if input_at[root].is_some_and(|at| at != backend) => Some("the target is an input, which is elsewhere"),
        _ => None,
    }
}
