//! **index**: the wanted nodes and what they need, in creation order, as one table.
//!
//! Reads: the graph and its tensors, the plan cache. Writes: `Nodes`, `NodeOrder`, `NodeFlags`, `NodeMemory`, `PlannedCopies`,
//! `Gathered`; the status, when an earlier plan fits.
//! Invariants: leaves come first; every operand and every view root has a smaller index than its user; a needed node
//! brings with it every earlier write into the root of any tensor that it reads. Checks what hand-made entities could get
//! wrong: descriptions that are not what the op makes, operands after their users, views of views, memory outside buffers.
//! Cost: linear, no recursion. A graph whose table is up to date ([`GraphNodes`]) is not gathered again: then one backward sweep
//! is all. Source: DESIGN "index"; ggml's graph expansion visits depth-first instead.

mod gather;
mod memory;
mod needed;

use std::sync::Arc;

use bevy_ecs::{prelude::*, system::SystemParam};
use entensor_components::{Generation, GraphTensors, MAX_PIPELINE_COPIES, PipelineCopies, SharedGeneration, Wanted};

use crate::{
    cache::{PlanCache, PlanKey},
    columns::{Backends, ExistingBuffer, GraphNodes, NodeFlags, NodeMemory, NodeOrder, Nodes, PlanSalt, Planning},
    error::PlanError,
    fallback::{FellBack, PlannedCopies},
    status::{PassResult, PlanCounters, PlanStatus},
};
use gather::Tensors;
use memory::BufferEntities;

/// What the pass leaves on the graph, once its plan is published, so that the next time need not gather it.
#[derive(Resource, Clone, Debug, Default)]
pub struct Gathered(pub(crate) GraphNodes);

/// The columns that this pass fills.
#[derive(SystemParam)]
pub struct IndexColumns<'w> {
    nodes: ResMut<'w, Nodes>,
    order: ResMut<'w, NodeOrder>,
    flags: ResMut<'w, NodeFlags>,
    memory: ResMut<'w, NodeMemory>,
    gathered: ResMut<'w, Gathered>,
    copies: ResMut<'w, PlannedCopies>,
}

/// What the graph is.
type Graphs<'w, 's> = Query<
    'w,
    's,
    (
        &'static GraphTensors,
        &'static Wanted,
        &'static PipelineCopies,
        &'static Generation,
        Option<&'static GraphNodes>,
        Option<&'static FellBack>,
    ),
>;

/// The pass.
pub fn index(
    planning: Res<'_, Planning>,
    graphs: Graphs<'_, '_>,
    shared: Res<'_, SharedGeneration>,
    tensors: Tensors<'_, '_>,
    buffers: BufferEntities<'_, '_>,
    backends: Res<'_, Backends>,
    salt: Res<'_, PlanSalt>,
    mut cache: ResMut<'_, PlanCache>,
    mut counters: ResMut<'_, PlanCounters>,
    mut status: ResMut<'_, PlanStatus>,
    mut columns: IndexColumns<'_>,
) -> PassResult {
    check_backends(&backends)?;
    let (graph, wanted, copies, generation, kept, fell) =
        graphs.get(planning.0).map_err(|_| PlanError::UnknownGraph)?;
    columns.copies.0 = FellBack::copies(fell, *generation, *copies).clamp(1, MAX_PIPELINE_COPIES);
    let kept = kept.filter(|kept| kept.generation == generation.0);
    let is_current =
        |kept: &&GraphNodes| kept.shared_generation == shared.0 || gather::shared_leaves_are_the_same(kept, &tensors);
    let all = match kept.filter(is_current) {
        Some(kept) => GraphNodes { shared_generation: shared.0, ..kept.clone() },
        None => gather::gather(planning.0, &graph.0, &tensors, generation.0, shared.0)?,
    };
    let by_default = wanted.0.is_empty();
    let wanted = needed::wanted_nodes(&all, wanted)?;
    let needed = needed::needed(&all.table, by_default, &wanted);
    let needed = needed.as_deref();
    needed::select(&all, needed, &wanted, &mut columns.nodes, &mut columns.order, &mut columns.flags);
    memory::place(&all, needed, &columns.nodes, &buffers, &mut columns.memory)?;
    memory::check_overlaps(&columns.nodes, &columns.memory)?;
    columns.gathered.0 = all;
    let key = PlanKey {
        nodes: &columns.nodes.0,
        flags: &columns.flags.0,
        memory: &columns.memory,
        backends: &backends,
        salt: salt.0,
        copies: columns.copies.0,
    };
    if let Some(plan) = cache.find(&key) {
        counters.cached += 1;
        *status = PlanStatus::Cached(plan);
    }
    Ok(columns.nodes.len())
}

fn check_backends(backends: &Backends) -> Result<(), PlanError> {
    let last = backends.0.last().ok_or(PlanError::NoBackends)?;
    let kind = &last.capabilities().memory;
    if kind.is_host() {
        Ok(())
    } else {
        Err(PlanError::LastNotHost { backend: last.name().into(), kind: Arc::clone(&kind.0) })
    }
}
