//! **split**: cuts the order into runs of one backend each, and decides which tensors are copied where.
//!
//! Reads: node columns, placements, backends. Writes: `Splits`, `Copies`.
//! Invariants: view ops start no split; a copy is made at the start of the first split that reads it, and made again at a later
//! one if any tensor with the same root was written since; the rule depends on the graph alone, never on history.
//! Cost: nodes × operands, each with one hash look-up. Source: DESIGN "split"; pass 5 of ggml's
//! `ggml_backend_sched_split_graph`, without its limits and without its history.

use std::{collections::HashMap, sync::Arc};

use bevy_ecs::{prelude::*, system::SystemParam};
use entensor_components::Usage;
use smallvec::SmallVec;

use crate::{
    columns::{
        Backends, NodeMemory, NodeNames, NodeOps, NodeRoots, NodeSources, PlacementsRef, Refusals, SupportMasks,
        index_u32,
    },
    error::PlanError,
    status::PassResult,
};

/// A run of nodes on one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The backend.
    pub backend: u32,
    /// The computing nodes, in order.
    pub nodes: Vec<u32>,
    /// The copies made at its start: indices into [`Copies`].
    pub inputs: Vec<u32>,
}

/// The runs, in order.
#[derive(Resource, Clone, Debug, Default)]
pub struct Splits(pub Vec<Split>);

/// A tensor's copy on a backend that cannot use its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRecord {
    /// The node copied.
    pub source: u32,
    /// The backend that reads the copy.
    pub backend: u32,
}

/// The copies: one per source and backend.
#[derive(Resource, Clone, Debug, Default)]
pub struct Copies(pub Vec<CopyRecord>);

/// Where every node is, by index: the placement components, gathered for the passes after them.
#[derive(Resource, Clone, Debug, Default)]
pub struct NodeBackends(pub Vec<u32>);

impl NodeBackends {
    /// Whether a backend can use a node's memory where it is.
    pub(crate) fn can_use(
        &self,
        backend: usize,
        node: usize,
        backends: &Backends,
        roots: &NodeRoots,
        memory: &NodeMemory,
    ) -> bool {
        let capabilities = backends.0[backend].capabilities();
        let root = roots.of(node);
        match memory.buffer_of(root) {
            Some(buffer) => capabilities.can_use(&buffer.kind, buffer.opaque, &buffer.buffer_type),
            None => capabilities.reads.contains(&backends.0[self.0[root] as usize].capabilities().memory),
        }
    }
}

/// What the rules look at.
#[derive(SystemParam)]
pub struct SplitInputsParam<'w> {
    backends: Res<'w, Backends>,
    names: Res<'w, NodeNames>,
    ops: Res<'w, NodeOps>,
    sources: Res<'w, NodeSources>,
    roots: Res<'w, NodeRoots>,
    memory: Res<'w, NodeMemory>,
    support: Res<'w, SupportMasks>,
    refusals: Res<'w, Refusals>,
}

/// The pass.
pub fn split(
    inputs: SplitInputsParam<'_>,
    placements: PlacementsRef<'_, '_>,
    mut node_backends: ResMut<'_, NodeBackends>,
    mut splits: ResMut<'_, Splits>,
    mut copies: ResMut<'_, Copies>,
) -> PassResult {
    splits.0.clear();
    copies.0.clear();
    node_backends.0 = placements.all(&inputs.names, inputs.backends.0.len())?;
    let mut cutter = Cutter {
        inputs: &inputs,
        node_backends: &node_backends,
        splits: &mut splits.0,
        copies: &mut copies.0,
        made: HashMap::new(),
        root_writes: vec![0; inputs.names.0.len()],
    };
    for node in inputs.ops.computing() {
        cutter.add(node)?;
    }
    Ok(splits.0.len())
}

struct Cutter<'a> {
    inputs: &'a SplitInputsParam<'a>,
    node_backends: &'a NodeBackends,
    splits: &'a mut Vec<Split>,
    copies: &'a mut Vec<CopyRecord>,
    /// (source, backend) → (copy, writes of the root when it was last made).
    made: HashMap<(u32, u32), (u32, u32)>,
    /// How often each root has been written so far.
    root_writes: Vec<u32>,
}

impl Cutter<'_> {
    fn add(&mut self, node: usize) -> Result<(), PlanError> {
        let backend = self.node_backends.0[node];
        self.check_placed(node, backend as usize)?;
        let missing = self.missing(node, backend);
        let max = self.inputs.backends.0[backend as usize].capabilities().max_inputs.unwrap_or(u64::MAX);
        let needs_cut = self.splits.last().is_none_or(|current| {
            let uploads_weight = || missing.iter().any(|&source| self.is_weight(source as usize));
            current.backend != backend
                || (!current.inputs.is_empty() && uploads_weight())
                || (!missing.is_empty() && (current.inputs.len() + missing.len()) as u64 > max)
        });
        if needs_cut {
            if missing.len() as u64 > max {
                return Err(PlanError::TooManyInputs {
                    node: Arc::clone(&self.inputs.names.0[node]),
                    backend: self.inputs.backends.0[backend as usize].name().into(),
                    inputs: missing.len() as u64,
                    max,
                });
            }
            self.splits.push(Split { backend, nodes: Vec::new(), inputs: Vec::new() });
        }
        for source in missing {
            let writes = self.root_writes[self.inputs.roots.of(source as usize)];
            let next = index_u32(self.copies.len());
            let entry = self.made.entry((source, backend)).or_insert((next, writes));
            entry.1 = writes;
            let copy = entry.0;
            if copy == next {
                self.copies.push(CopyRecord { source, backend });
            }
            if let Some(current) = self.splits.last_mut() {
                current.inputs.push(copy);
            }
        }
        if let Some(current) = self.splits.last_mut() {
            current.nodes.push(index_u32(node));
        }
        self.root_writes[self.inputs.roots.of(node)] += 1;
        Ok(())
    }

    /// Systems between the passes may have moved the node: the masks still hold.
    fn check_placed(&self, node: usize, backend: usize) -> Result<(), PlanError> {
        let inputs = self.inputs;
        let reason = if !inputs.support.0.get(node, backend) {
            inputs.refusals.reason(node, backend)
        } else if !self.node_backends.can_use(backend, node, &inputs.backends, &inputs.roots, &inputs.memory) {
            "it cannot use the target's memory".into()
        } else {
            return Ok(());
        };
        Err(PlanError::Misplaced {
            node: Arc::clone(&inputs.names.0[node]),
            backend: inputs.backends.0[backend].name().into(),
            reason,
        })
    }

    /// Operands that the backend cannot use where they are, and of which it has no copy that is up to date.
    fn missing(&self, node: usize, backend: u32) -> SmallVec<[u32; 4]> {
        let mut missing = SmallVec::new();
        for &source in self.inputs.sources.of(node) {
            let inputs = self.inputs;
            let usable = self.node_backends.can_use(
                backend as usize,
                source as usize,
                &inputs.backends,
                &inputs.roots,
                &inputs.memory,
            );
            let writes = self.root_writes[inputs.roots.of(source as usize)];
            let fresh = || self.made.get(&(source, backend)).is_some_and(|&(_, at)| at == writes);
            if !usable && !missing.contains(&source) && !fresh() {
                missing.push(source);
            }
        }
        missing
    }

    fn is_weight(&self, node: usize) -> bool {
        let buffer = self.inputs.memory.buffer_of(self.inputs.roots.of(node));
        buffer.is_some_and(|buffer| buffer.usage == Usage::Weights)
    }
}
