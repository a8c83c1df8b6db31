//! **probe**: asks every backend once about every node, and keeps the answers as bit masks.
//!
//! Reads: node columns, backends. Writes: `MemoryReach`, `SupportMasks`, `OffloadMasks`, `PaddedBytes`,
//! `Refusals`, `WriterFamilies`.
//! Invariants: no later pass calls a backend. A bit is set only where the backend can run the op *and* use every opaque
//! operand and the written root; a planned root and all its writers have the same bits. Leaves and view ops have all bits.
//! Cost: nodes × backends. Source: DESIGN "probe".

use std::borrow::Cow;

use bevy_ecs::prelude::*;
use entensor_components::{OpDesc, Support, TensorDesc};
use smallvec::SmallVec;

use crate::{
    columns::{
        Backends, MemoryReach, NOWHERE, NodeFlags, NodeMemory, NodeTable, Nodes, OffloadMasks, PaddedBytes, Refusals,
        SupportMasks, WriterFamilies, index_u32,
    },
    status::PassResult,
};

/// The pass.
pub fn probe(
    backends: Res<'_, Backends>,
    nodes: Res<'_, Nodes>,
    flags: Res<'_, NodeFlags>,
    memory: Res<'_, NodeMemory>,
    mut reach: ResMut<'_, MemoryReach>,
    mut support: ResMut<'_, SupportMasks>,
    mut offload: ResMut<'_, OffloadMasks>,
    mut padded: ResMut<'_, PaddedBytes>,
    mut refusals: ResMut<'_, Refusals>,
    mut families: ResMut<'_, WriterFamilies>,
) -> PassResult {
    let count = backends.0.len();
    reach.fill(&backends, &memory.buffers);
    support.0.reset(nodes.len(), count, true);
    offload.0.reset(nodes.len(), count, false);
    padded.reset(nodes.len(), count);
    refusals.0.clear();
    families.0.clear();
    for (node, desc) in nodes.descs.iter().enumerate() {
        // A lone backend plans memory for roots, and copies nothing.
        let planned = count > 1 || (nodes.roots.is_root(node) && memory.place(node).is_none());
        for backend in &backends.0 {
            padded.push(if planned { backend.allocation_bytes(desc) } else { 0 });
        }
    }
    let input_at = input_places(&nodes, &flags, count);
    let places = Places { memory: &memory, reach: &reach, nodes: &nodes, input_at, opaque: memory.has_opaque() };
    let nodes = &**nodes;
    let mut operands: SmallVec<[TensorDesc; 8]> = SmallVec::new();
    for node in nodes.computing() {
        let traits = nodes.traits[node];
        operands.clear();
        operands.extend(nodes.sources.of(node).iter().map(|&s| nodes.descs[s as usize]));
        let op = OpDesc { op: &nodes.ops[node], output: nodes.descs[node], operands: &operands };
        for (b, backend) in backends.0.iter().enumerate() {
            let answer = match places.refusal(node, b) {
                Some(reason) => Support::No(Cow::Borrowed(reason)),
                None => backend.support(&op),
            };
            if let Support::No(reason) = answer {
                support.0.set(node, b, false);
                refusals.push(node, b, reason);
            }
            if traits.anchor().is_some() && backend.wants_offload(&op) {
                offload.0.set(node, b, true);
            }
        }
        if traits.writes() && memory.place(nodes.roots.of(node)).is_none() {
            families.0.entry(nodes.roots.root[node]).or_default().push(index_u32(node));
        }
    }
    // The order of a map is nobody's order, but the families are disjoint and the reasons are sorted.
    for (&root, writers) in &families.0 {
        let computed = nodes.traits[root as usize].computes();
        let members: Vec<u32> = computed.then_some(root).into_iter().chain(writers.iter().copied()).collect();
        join_answers(&members, nodes, count, &mut support, &mut refusals);
    }
    if !families.0.is_empty() {
        refusals.sort();
    }
    Ok(nodes.computing.len() * count)
}

/// Nodes that end up on one backend have one answer: who cannot run one of them can run none.
fn join_answers(members: &[u32], nodes: &NodeTable, backends: usize, support: &mut SupportMasks, refusals: &mut Refusals) {
    for backend in 0..backends {
        let Some(&against) = members.iter().find(|&&m| !support.0.get(m as usize, backend)) else { continue };
        let name = &nodes.names[against as usize];
        for &member in members.iter().filter(|&&m| support.0.get(m as usize, backend)) {
            let reason = format!("`{name}`, which shares its memory, cannot run there");
            refusals.push(member as usize, backend, Cow::Owned(reason));
        }
        for &member in members {
            support.0.set(member as usize, backend, false);
        }
    }
}

/// Where the inputs that are roots will be: at their pin, else on the host.
fn input_places(nodes: &Nodes, flags: &NodeFlags, backends: usize) -> Vec<u32> {
    let host = index_u32(backends - 1);
    let mut places: Vec<u32> = flags.0.iter().map(|flags| if flags.input { host } else { NOWHERE }).collect();
    // Contradicting pins are for `assign` to report.
    for (node, pin) in nodes.pins.iter().enumerate() {
        let root = nodes.roots.of(node);
        if let Some(pin) = pin
            && places[root] != NOWHERE
        {
            places[root] = pin.0;
        }
    }
    places
}

/// Where operands and targets lie before anything is decided.
struct Places<'a> {
    memory: &'a NodeMemory,
    reach: &'a MemoryReach,
    nodes: &'a Nodes,
    input_at: Vec<u32>,
    opaque: bool,
}

impl Places<'_> {
    /// Why a backend cannot use the memory of a node's opaque operands, or that which the node writes.
    fn refusal(&self, node: usize, backend: usize) -> Option<&'static str> {
        if self.opaque {
            for &operand in self.nodes.sources.of(node) {
                let root = self.nodes.roots.of(operand as usize);
                if let Some(place) = self.memory.place(root)
                    && self.memory.buffers[place.buffer as usize].opaque
                    && !self.reach.existing(backend, place.buffer)
                {
                    return Some("an operand has a private layout that only its own buffer type understands");
                }
            }
        }
        let root = self.nodes.roots.of(node);
        match self.memory.place(root) {
            Some(place) if self.memory.buffers[place.buffer as usize].memory.is_read_only() => {
                Some("the target is read-only memory")
            }
            Some(place) if !self.reach.existing(backend, place.buffer) => Some("it cannot use the target's memory"),
            None if self.input_at[root] != NOWHERE && self.input_at[root] as usize != backend => {
                Some("the target is an input, which is elsewhere")
            }
            _ => None,
        }
    }
}
