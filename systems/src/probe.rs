//! **probe**: asks every backend once about every kind of node, and keeps the answers as bit masks.
//!
//! Reads: node columns, backends. Writes: `MemoryReach`, `SupportMasks`, `OffloadMasks`, `PaddedBytes`,
//! `Refusals`, `WriterFamilies`.
//! Invariants: no later pass calls a backend. A bit is set only where the backend can run the op *and* use every opaque
//! operand and the written root; a planned root and all its writers have the same bits. Leaves and view ops have all bits.
//! Cost: kinds of nodes × backends calls, and a look at every node. Source: DESIGN "probe".

use std::{borrow::Cow, cell::OnceCell};

use bevy_ecs::{prelude::*, system::SystemParam};
use entensor_components::{OpDesc, Support, TensorDesc};
use smallvec::SmallVec;

use crate::{
    columns::{
        BackendMasks, Backends, MemoryReach, NOWHERE, NodeFlags, NodeMemory, NodeTable, Nodes, OffloadMasks,
        PaddedBytes, Refusals, SupportMasks, WriterFamilies, index_u32,
    },
    status::PassResult,
};

/// What is asked about.
#[derive(SystemParam)]
pub struct ProbeInputs<'w> {
    backends: Res<'w, Backends>,
    nodes: Res<'w, Nodes>,
    flags: Res<'w, NodeFlags>,
    memory: Res<'w, NodeMemory>,
}

/// What backends say about each kind of node, kept so that the next graph finds its memory.
#[derive(Default)]
pub struct KindAnswers {
    support: BackendMasks,
    offload: BackendMasks,
    /// Kind, backend and reason, in order.
    refusals: Refusals,
    /// Kinds that some backend refuses, or wants to be offloaded to it.
    remarkable: Vec<bool>,
}

/// The pass.
pub fn probe(
    inputs: ProbeInputs<'_>,
    mut reach: ResMut<'_, MemoryReach>,
    mut support: ResMut<'_, SupportMasks>,
    mut offload: ResMut<'_, OffloadMasks>,
    mut padded: ResMut<'_, PaddedBytes>,
    mut refusals: ResMut<'_, Refusals>,
    mut families: ResMut<'_, WriterFamilies>,
    mut answers: Local<'_, KindAnswers>,
) -> PassResult {
    let ProbeInputs { backends, nodes, flags, memory } = inputs;
    let (nodes, count) = (&**nodes, backends.0.len());
    reach.fill(&backends, &memory.buffers);
    support.0.reset(nodes.len(), count, true);
    offload.0.reset(nodes.len(), count, false);
    padded.reset(nodes.layouts.count(), count);
    refusals.0.clear();
    families.0.clear();
    for node in nodes.layouts.firsts() {
        backends.0.iter().for_each(|backend| padded.push(backend.allocation_bytes(&nodes.descs[node])));
    }
    answers.ask(&backends, nodes);
    let input_at = OnceCell::new();
    let host = index_u32(count - 1);
    let places = Places { backends: &backends, memory: &memory, reach: &reach, nodes, flags: &flags, input_at, host };
    let opaque = memory.has_opaque();
    for node in nodes.computing() {
        let (kind, root) = (nodes.kinds.of(node), nodes.roots.of(node));
        // What is planned for a node is where the node is; what it writes, or what the user gave it, may lie anywhere.
        let anywhere = root == node && !opaque && memory.place(node).is_none();
        if anywhere && !answers.remarkable[kind] {
            continue;
        }
        support.0.copy_row(node, &answers.support, kind);
        offload.0.copy_row(node, &answers.offload, kind);
        for backend in 0..count {
            let place = if anywhere { None } else { places.refusal(node, backend, opaque) };
            let refused = || (!answers.support.get(kind, backend)).then(|| answers.refusals.reason(kind, backend));
            if let Some(reason) = place.or_else(refused) {
                support.0.set(node, backend, false);
                refusals.push(node, backend, reason);
            }
        }
        if nodes.traits[node].writes() && memory.place(root).is_none() {
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

impl KindAnswers {
    fn ask(&mut self, backends: &Backends, nodes: &NodeTable) {
        let (kinds, count) = (nodes.kinds.count(), backends.0.len());
        self.support.reset(kinds, count, true);
        self.offload.reset(kinds, count, false);
        self.refusals.0.clear();
        self.remarkable.clear();
        self.remarkable.resize(kinds, false);
        let mut operands: SmallVec<[TensorDesc; 8]> = SmallVec::new();
        for (kind, node) in nodes.kinds.firsts().enumerate() {
            let traits = nodes.traits[node];
            if !traits.computes() {
                continue;
            }
            operands.clear();
            operands.extend(nodes.sources.of(node).iter().map(|&s| nodes.descs[s as usize]));
            let op = OpDesc { op: &nodes.ops[node], output: nodes.descs[node], operands: &operands };
            for (b, backend) in backends.0.iter().enumerate() {
                if let Support::No(reason) = backend.support(&op) {
                    self.support.set(kind, b, false);
                    self.refusals.push(kind, b, reason);
                    self.remarkable[kind] = true;
                }
                if traits.anchor().is_some() && backend.wants_offload(&op) {
                    self.offload.set(kind, b, true);
                    self.remarkable[kind] = true;
                }
            }
        }
    }
}

/// Nodes that end up on one backend have one answer: who cannot run one of them can run none.
fn join_answers(
    members: &[u32],
    nodes: &NodeTable,
    backends: usize,
    support: &mut SupportMasks,
    refusals: &mut Refusals,
) {
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
fn input_places(nodes: &NodeTable, flags: &NodeFlags, host: u32) -> Vec<u32> {
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
    backends: &'a Backends,
    memory: &'a NodeMemory,
    reach: &'a MemoryReach,
    nodes: &'a NodeTable,
    flags: &'a NodeFlags,
    /// Mostly nobody writes into what may be an input, and nobody asks.
    input_at: OnceCell<Vec<u32>>,
    host: u32,
}

impl Places<'_> {
    /// Why a backend cannot use the memory of a node's opaque operands, or that which the node writes.
    fn refusal(&self, node: usize, backend: usize, opaque: bool) -> Option<Cow<'static, str>> {
        if opaque && let Some(reason) = self.opaque_refusal(node, backend) {
            return Some(reason);
        }
        let root = self.nodes.roots.of(node);
        let reason = match self.memory.place(root) {
            Some(place) if self.memory.buffers[place.buffer as usize].memory.is_read_only() => {
                "the target is read-only memory"
            }
            Some(place) if !self.reach.existing(backend, place.buffer) => "it cannot use the target's memory",
            None => {
                let input_at = self.input_at.get_or_init(|| input_places(self.nodes, self.flags, self.host));
                let elsewhere = input_at[root] != NOWHERE && input_at[root] as usize != backend;
                return elsewhere.then_some(Cow::Borrowed("the target is an input, which is elsewhere"));
            }
            _ => return None,
        };
        Some(Cow::Borrowed(reason))
    }

    /// Why a backend cannot run a node on memory with a private layout.
    fn opaque_refusal(&self, node: usize, backend: usize) -> Option<Cow<'static, str>> {
        let private = |root: usize| {
            let place = self.memory.place(root)?;
            let buffer = &self.memory.buffers[place.buffer as usize];
            buffer.opaque.then_some((place.buffer, buffer))
        };
        let handle = &self.backends.0[backend];
        let sources = self.nodes.sources.of(node);
        for (index, &operand) in sources.iter().enumerate() {
            let root = self.nodes.roots.of(operand as usize);
            let Some((place, buffer)) = private(root) else { continue };
            if !self.reach.existing(backend, place) {
                return Some("an operand has a private layout that only its own buffer type understands".into());
            }
            let operands: SmallVec<[TensorDesc; 8]> = sources.iter().map(|&s| self.nodes.descs[s as usize]).collect();
            let op = OpDesc { op: &self.nodes.ops[node], output: self.nodes.descs[node], operands: &operands };
            if let Support::No(reason) = handle.reads_opaque(&op, index, root == operand as usize, &buffer.buffer_type)
            {
                let name = &self.nodes.names[operand as usize];
                return Some(format!("operand `{name}`: {reason}").into());
            }
        }
        let root = self.nodes.roots.of(node);
        let own = &handle.capabilities().buffer_type;
        private(root)
            .filter(|(_, buffer)| *buffer.buffer_type != **own)
            .map(|_| "the target has a private layout that it does not write".into())
    }
}
