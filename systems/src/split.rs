//! **split**: cuts the order into runs of one backend each, and decides which tensors are copied where.
//!
//! Reads: node columns, placements, backends. Writes: `Splits`, `Copies`.
//! Invariants: view ops start no split; a copy is made at the start of the first split that reads it, and made again at a later
//! one if any tensor with the same root was written since; the rule depends on the graph alone, never on history.
//! Cost: nodes × operands, each with a look at its copies so far. Source: DESIGN "split"; pass 5 of ggml's
//! `ggml_backend_sched_split_graph`, without its limits and without its history.

use std::{ops::Range, sync::Arc};

use bevy_ecs::{prelude::*, system::SystemParam};
use entensor_components::Usage;
use smallvec::SmallVec;

use crate::{
    columns::{BackendMasks, Backends, MemoryReach, NodeMemory, Nodes, Placements, Refusals, SupportMasks, index_u32},
    error::PlanError,
    status::PassResult,
};

/// A run of nodes on one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The backend.
    pub backend: u32,
    /// The computing nodes, in order: a range of [`crate::NodeTable::computing`].
    pub nodes: Range<u32>,
    /// The copies made at its start: a range of [`Splits::inputs`].
    pub inputs: Range<u32>,
}

/// The runs, in order.
#[derive(Resource, Clone, Debug, Default)]
pub struct Splits {
    /// The runs.
    pub runs: Vec<Split>,
    /// The copies that they make, one run after the other: indices into [`Copies`].
    pub inputs: Vec<u32>,
}

impl Splits {
    /// The copies made at a run's start.
    #[must_use]
    pub fn inputs_of(&self, run: &Split) -> &[u32] {
        &self.inputs[run.inputs.start as usize..run.inputs.end as usize]
    }
}

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

/// What the rules look at.
#[derive(SystemParam)]
pub struct SplitInputsParam<'w> {
    backends: Res<'w, Backends>,
    nodes: Res<'w, Nodes>,
    memory: Res<'w, NodeMemory>,
    reach: Res<'w, MemoryReach>,
    support: Res<'w, SupportMasks>,
    refusals: Res<'w, Refusals>,
}

/// The pass.
pub fn split(
    inputs: SplitInputsParam<'_>,
    mut placements: Placements<'_, '_>,
    mut splits: ResMut<'_, Splits>,
    mut copies: ResMut<'_, Copies>,
) -> PassResult {
    splits.runs.clear();
    splits.inputs.clear();
    copies.0.clear();
    placements.settle();
    placements.check_all(&inputs.nodes)?;
    // Where everybody can use everything, nothing is copied and nobody asks.
    let mut users = BackendMasks::default();
    let everywhere = inputs.reach.is_total();
    if !everywhere {
        users.reset(inputs.nodes.len(), inputs.backends.0.len(), false);
    }
    let asked = if everywhere { 0 } else { inputs.nodes.len() };
    for root in (0..asked).filter(|&node| inputs.nodes.roots.is_root(node)) {
        let at = placements.get(root).expect("`check_all` has seen that every node is placed");
        inputs.reach.copy_users(&mut users, root, at, &inputs.memory);
    }
    let mut cutter = Cutter {
        inputs: &inputs,
        placements: &placements,
        users: (!everywhere).then_some(&users),
        splits: &mut splits,
        copies: &mut copies.0,
        made: Made::new(asked),
        root_writes: vec![0; asked],
        max_inputs: inputs.backends.0.iter().map(|b| b.capabilities().max_inputs.unwrap_or(u64::MAX)).collect(),
    };
    for (position, node) in inputs.nodes.computing().enumerate() {
        cutter.add(index_u32(position), node)?;
    }
    Ok(splits.runs.len())
}

/// The copies made so far, by source.
struct Made {
    /// Per source its newest copy.
    newest: Vec<u32>,
    /// Per copy the one before it of the same source, and how often the root had been written when it was last made.
    copies: Vec<(u32, u32)>,
}

impl Made {
    fn new(nodes: usize) -> Self {
        Self { newest: vec![NO_COPY; nodes], copies: Vec::new() }
    }

    /// A source's copy on a backend.
    fn find(&self, records: &[CopyRecord], source: u32, backend: u32) -> Option<u32> {
        let mut copy = self.newest[source as usize];
        while copy != NO_COPY && records[copy as usize].backend != backend {
            copy = self.copies[copy as usize].0;
        }
        (copy != NO_COPY).then_some(copy)
    }

    /// Notes the next copy, which is of this source.
    fn add(&mut self, source: u32, writes: u32) -> u32 {
        let copy = index_u32(self.copies.len());
        self.copies.push((std::mem::replace(&mut self.newest[source as usize], copy), writes));
        copy
    }
}

const NO_COPY: u32 = u32::MAX;

struct Cutter<'a, 'w, 's> {
    inputs: &'a SplitInputsParam<'w>,
    placements: &'a Placements<'w, 's>,
    /// Per root, the backends that can use its memory where it is; `None` if all can.
    users: Option<&'a BackendMasks>,
    splits: &'a mut Splits,
    copies: &'a mut Vec<CopyRecord>,
    made: Made,
    /// How often each root has been written so far; empty where nothing is copied.
    root_writes: Vec<u32>,
    /// Most copies that a split of each backend may make.
    max_inputs: Vec<u64>,
}

impl Cutter<'_, '_, '_> {
    fn add(&mut self, position: u32, node: usize) -> Result<(), PlanError> {
        let at = self.placements.get(node).expect("`check_all` has seen that every node is placed");
        let backend = index_u32(at);
        self.check_placed(node, at)?;
        let missing = self.missing(node, backend);
        let max = self.max_inputs[at];
        let made = index_u32(self.splits.inputs.len());
        let needs_cut = self.splits.runs.last().is_none_or(|current| {
            let uploads_weight = || missing.iter().any(|&source| self.is_weight(source as usize));
            let inputs = made - current.inputs.start;
            current.backend != backend
                || (!missing.is_empty()
                    && ((inputs > 0 && uploads_weight()) || u64::from(inputs) + missing.len() as u64 > max))
        });
        if needs_cut {
            if missing.len() as u64 > max {
                return Err(PlanError::TooManyInputs {
                    node: Arc::clone(&self.inputs.nodes.names[node]),
                    backend: self.inputs.backends.0[at].name().into(),
                    inputs: missing.len() as u64,
                    max,
                });
            }
            self.splits.runs.push(Split { backend, nodes: position..position, inputs: made..made });
        }
        for source in missing {
            let writes = self.root_writes[self.inputs.nodes.roots.of(source as usize)];
            let copy = match self.made.find(self.copies, source, backend) {
                Some(copy) => {
                    self.made.copies[copy as usize].1 = writes;
                    copy
                }
                None => {
                    self.copies.push(CopyRecord { source, backend });
                    self.made.add(source, writes)
                }
            };
            self.splits.inputs.push(copy);
        }
        let made = index_u32(self.splits.inputs.len());
        if let Some(current) = self.splits.runs.last_mut() {
            current.nodes.end = position + 1;
            current.inputs.end = made;
        }
        if let Some(writes) = self.root_writes.get_mut(self.inputs.nodes.roots.of(node)) {
            *writes += 1;
        }
        Ok(())
    }

    /// Whether a backend can use a node's memory where it is.
    fn can_use(&self, backend: usize, node: usize) -> bool {
        self.users.is_none_or(|users| users.get(self.inputs.nodes.roots.of(node), backend))
    }

    /// Systems between the passes may have moved the node: the masks still hold.
    fn check_placed(&self, node: usize, backend: usize) -> Result<(), PlanError> {
        let inputs = self.inputs;
        let reason = if !inputs.support.0.get(node, backend) {
            inputs.refusals.reason(node, backend)
        } else if !self.can_use(backend, node) {
            "it cannot use the target's memory".into()
        } else {
            return Ok(());
        };
        Err(PlanError::Misplaced {
            node: Arc::clone(&inputs.nodes.names[node]),
            backend: inputs.backends.0[backend].name().into(),
            reason,
        })
    }

    /// Operands that the backend cannot use where they are, and of which it has no copy that is up to date.
    fn missing(&self, node: usize, backend: u32) -> SmallVec<[u32; 4]> {
        let mut missing = SmallVec::new();
        if self.users.is_none() {
            return missing;
        }
        for &source in self.inputs.nodes.sources.of(node) {
            if self.can_use(backend as usize, source as usize) || missing.contains(&source) {
                continue;
            }
            let writes = self.root_writes[self.inputs.nodes.roots.of(source as usize)];
            let copy = self.made.find(self.copies, source, backend);
            if copy.is_none_or(|copy| self.made.copies[copy as usize].1 != writes) {
                missing.push(source);
            }
        }
        missing
    }

    fn is_weight(&self, node: usize) -> bool {
        let buffer = self.inputs.memory.buffer_of(self.inputs.nodes.roots.of(node));
        buffer.is_some_and(|buffer| buffer.usage == Usage::Weights)
    }
}
