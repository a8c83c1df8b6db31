//! **probe**: asks every backend once about every node, and keeps the answers as bit masks.
//!
//! Reads: node columns, backends. Writes: `SupportMasks`, `OffloadMasks`, `PaddedBytes`, `Refusals`, `WriterFamilies`.
//! Invariants: no later pass calls a backend. A bit is set only where the backend can run the op *and* use every opaque
//! operand and the written root; all writers of one planned root have the same bits. Leaves and view ops have all bits.
//! Cost: nodes × backends. Source: DESIGN "probe".

use std::borrow::Cow;

use bevy_ecs::prelude::*;
use entensor_components::{OpDesc, Support, TensorDesc};
use smallvec::SmallVec;

use crate::{
    columns::{
        Backends, NodeDescs, NodeFlags, NodeMemory, NodeOps, NodeRoots, NodeSources, OffloadMasks, PaddedBytes,
        Refusals, SupportMasks, WriterFamilies, index_u32,
    },
    status::PassResult,
};

/// The pass.
pub fn probe(
    backends: Res<'_, Backends>,
    descs: Res<'_, NodeDescs>,
    ops: Res<'_, NodeOps>,
    sources: Res<'_, NodeSources>,
    roots: Res<'_, NodeRoots>,
    flags: Res<'_, NodeFlags>,
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
            let answer = match memory_refusal(node, b, operand_nodes, &backends, &roots, &flags, &memory, row.writes) {
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
    // Writers of one planned root end up on one backend, so their answers are one.
    for writers in families.0.values() {
        let first = writers[0] as usize;
        for &writer in &writers[1..] {
            support.0.intersect(first, writer as usize);
        }
        for &writer in &writers[1..] {
            support.0.intersect(writer as usize, first);
        }
    }
    Ok(asked)
}

/// Why a backend cannot use the memory of a node's opaque operands or written root.
fn memory_refusal(
    node: usize,
    backend: usize,
    operands: &[u32],
    backends: &Backends,
    roots: &NodeRoots,
    flags: &NodeFlags,
    memory: &NodeMemory,
    writes: Option<usize>,
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
    writes?;
    let root = roots.of(node);
    match memory.buffer_of(root) {
        Some(buffer) if buffer.memory.is_read_only() => Some("the target is read-only memory"),
        Some(buffer) if !capabilities.can_use(&buffer.kind, buffer.opaque, &buffer.buffer_type) => {
            Some("it cannot use the target's memory")
        }
        None if flags.0[root].input && backend + 1 != backends.0.len() => {
            Some("the target is an input, which is on the host")
        }
        _ => None,
    }
}
