//! **index**: the wanted nodes and what they need, in creation order, as columns.
//!
//! Reads: the graph and its tensors, the plan cache. Writes: every node column; the status, when an earlier plan fits.
//! Invariants: leaves come first; every operand and every view root has a smaller index than its user; a needed node
//! brings with it every earlier write into the root of any tensor that it reads. Checks what hand-made entities could get
//! wrong: descriptions that are not what the op makes, operands after their users, views of views, memory outside buffers.
//! Cost: linear, two sweeps, no recursion. Source: DESIGN "index"; ggml's graph expansion visits depth-first instead.

use std::sync::Arc;

use bevy_ecs::{entity::EntityHashMap, prelude::*, system::SystemParam};
use entensor_components::{
    BufferMemory, BufferName, BufferType, DType, GraphTensors, InGraph, MemoryKind, Op, OpKind, Opaque, Pinned,
    PipelineCopies, Shape, ShapeError, Sources, Stored, StoredIn, Strides, TensorDesc, TensorFlags, TensorName, Usage,
    ViewSrc, Wanted,
};
use smallvec::SmallVec;

use crate::{
    cache::{PlanCache, plan_key},
    columns::{
        Backends, ExistingBuffer, ExistingPlace, NodeDescs, NodeFlags, NodeMemory, NodeNames, NodeOps, NodeOrder,
        NodePins, NodeRoots, NodeSources, PlanSalt, Planning, index_u32,
    },
    error::PlanError,
    status::{PassResult, PlanCounters, PlanStatus},
};

type TensorItem<'w> = (
    &'w TensorName,
    &'w DType,
    &'w Shape,
    &'w Strides,
    &'w Op,
    &'w Sources,
    &'w ViewSrc,
    &'w TensorFlags,
    &'w Pinned,
    &'w StoredIn,
    &'w InGraph,
);

/// Every tensor of the world.
type Tensors<'w, 's> = Query<'w, 's, TensorItem<'static>>;

/// Every buffer of the world.
type BufferEntities<'w, 's> = Query<
    'w,
    's,
    (
        &'static BufferName,
        &'static BufferType,
        &'static Usage,
        &'static MemoryKind,
        &'static Opaque,
        &'static BufferMemory,
    ),
>;

/// The columns that this pass fills.
#[derive(SystemParam)]
pub struct IndexColumns<'w> {
    order: ResMut<'w, NodeOrder>,
    names: ResMut<'w, NodeNames>,
    descs: ResMut<'w, NodeDescs>,
    ops: ResMut<'w, NodeOps>,
    sources: ResMut<'w, NodeSources>,
    roots: ResMut<'w, NodeRoots>,
    flags: ResMut<'w, NodeFlags>,
    pins: ResMut<'w, NodePins>,
    memory: ResMut<'w, NodeMemory>,
}

/// The pass.
pub fn index(
    planning: Res<'_, Planning>,
    graphs: Query<'_, '_, (&GraphTensors, &Wanted, &PipelineCopies)>,
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
    let (graph, wanted, copies) = graphs.get(planning.0).map_err(|_| PlanError::UnknownGraph)?;
    let items = fetch(planning.0, &graph.0, &tensors)?;
    let positions: EntityHashMap<usize> = graph.0.iter().enumerate().map(|(i, &e)| (e, i)).collect();
    let wanted = wanted_positions(&graph.0, wanted, &items, &positions)?;
    let needed = needed(&items, &positions, &wanted);
    let order = order_of(&graph.0, &items, &positions, &needed, &tensors)?;
    columns.fill(&order, &tensors, &buffers)?;
    for &position in &wanted {
        let node = order.node_of[&graph.0[position]];
        columns.flags.0[node].output = true;
    }
    check_nodes(&columns)?;
    check_overlaps(&columns)?;
    let key = plan_key(&columns.view(), &backends, *salt, copies.0);
    if let Some(plan) = cache.find(key) {
        counters.cached += 1;
        *status = PlanStatus::Cached(plan);
    }
    Ok(columns.order.entities.len())
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

fn fetch<'a>(
    graph: Entity,
    entities: &[Entity],
    tensors: &'a Tensors<'_, '_>,
) -> Result<Vec<TensorItem<'a>>, PlanError> {
    let item = |(position, &entity)| {
        let item = tensors.get(entity).map_err(|_| PlanError::MissingTensor { position })?;
        // Edits of a tensor are counted on its own graph, so another one would miss them.
        if item.10.0.is_some_and(|owner| owner != graph) {
            let name = &item.0.0;
            return Err(PlanError::ForeignSource { node: Arc::clone(name), source_name: Arc::clone(name) });
        }
        Ok(item)
    };
    entities.iter().enumerate().map(item).collect()
}

/// Positions of the wanted tensors; by default every output, else the last node. Without nodes nothing is wanted.
fn wanted_positions(
    graph: &[Entity],
    wanted: &Wanted,
    items: &[TensorItem<'_>],
    positions: &EntityHashMap<usize>,
) -> Result<Vec<usize>, PlanError> {
    if !wanted.0.is_empty() {
        let find = |(position, entity)| positions.get(entity).copied().ok_or(PlanError::UnknownWanted { position });
        return wanted.0.iter().enumerate().map(find).collect();
    }
    let outputs: Vec<_> = (0..graph.len()).filter(|&i| items[i].7.output).collect();
    let last = (0..graph.len()).rev().find(|&i| items[i].4.kind() != OpKind::None);
    Ok(if outputs.is_empty() { last.into_iter().collect() } else { outputs })
}

/// Which tensors a run needs: one backward sweep, since operands and the writes they depend on come earlier.
fn needed(items: &[TensorItem<'_>], positions: &EntityHashMap<usize>, wanted: &[usize]) -> Vec<bool> {
    let mut needed = vec![false; items.len()];
    // Roots that something needed later reads. Shared leaves are keyed by entity, having no position here.
    let mut read_roots = EntityHashMap::<()>::default();
    let mut read_positions = vec![false; items.len()];
    // A wanted tensor is what it is at its place in the order: writes behind it are no part of it.
    for &position in wanted {
        needed[position] = true;
    }
    for i in (0..items.len()).rev() {
        let (_, _, _, _, op, sources, view, ..) = &items[i];
        if op.row().writes.is_some() {
            let written = view.root.is_some_and(|root| match positions.get(&root) {
                Some(&root) => read_positions[root],
                None => read_roots.contains_key(&root),
            });
            needed[i] |= written;
        }
        if !needed[i] {
            continue;
        }
        for &entity in sources.0.iter().chain(view.root.iter()) {
            let Some(&source) = positions.get(&entity) else {
                read_roots.insert(entity, ());
                continue;
            };
            needed[source] = true;
            match items[source].6.root {
                Some(root) => match positions.get(&root) {
                    Some(&root) => read_positions[root] = true,
                    None => drop(read_roots.insert(root, ())),
                },
                None => read_positions[source] = true,
            }
        }
    }
    needed
}

struct Order {
    entities: Vec<Entity>,
    leaves: usize,
    node_of: EntityHashMap<usize>,
}

/// Leaves first, own ones before shared ones, then everything else; checks that operands come first.
fn order_of(
    graph: &[Entity],
    items: &[TensorItem<'_>],
    positions: &EntityHashMap<usize>,
    needed: &[bool],
    tensors: &Tensors<'_, '_>,
) -> Result<Order, PlanError> {
    let is_leaf = |i: usize| items[i].4.kind() == OpKind::None;
    let mut entities: Vec<Entity> = (0..graph.len()).filter(|&i| needed[i] && is_leaf(i)).map(|i| graph[i]).collect();
    let mut seen: EntityHashMap<()> = entities.iter().map(|&e| (e, ())).collect();
    for i in (0..graph.len()).filter(|&i| needed[i]) {
        let (name, _, _, _, _, sources, view, ..) = &items[i];
        for (operand, &entity) in sources.0.iter().chain(view.root.iter()).enumerate() {
            match positions.get(&entity) {
                Some(&source) if source < i => {}
                Some(&source) => {
                    let source_name = Arc::clone(&items[source].0.0);
                    return Err(PlanError::SourceAfterUse { node: Arc::clone(&name.0), source_name });
                }
                None if seen.contains_key(&entity) => {}
                None => {
                    let missing = |_| PlanError::MissingSource { node: Arc::clone(&name.0), operand };
                    let leaf = tensors.get(entity).map_err(missing)?;
                    let wished = leaf.9.0.is_some() || leaf.7.input || leaf.8.0.is_some();
                    let alone = leaf.5.0.is_empty() && leaf.6.root.is_none() && leaf.10.0.is_none();
                    if leaf.4.kind() != OpKind::None || !wished || !alone {
                        let source_name = Arc::clone(&leaf.0.0);
                        return Err(PlanError::ForeignSource { node: Arc::clone(&name.0), source_name });
                    }
                    seen.insert(entity, ());
                    entities.push(entity);
                }
            }
        }
    }
    let leaves = entities.len();
    entities.extend((0..graph.len()).filter(|&i| needed[i] && !is_leaf(i)).map(|i| graph[i]));
    let node_of = entities.iter().enumerate().map(|(i, &e)| (e, i)).collect();
    Ok(Order { entities, leaves, node_of })
}

impl IndexColumns<'_> {
    fn clear(&mut self) {
        self.names.0.clear();
        self.descs.0.clear();
        self.ops.0.clear();
        self.sources.clear();
        self.roots.root.clear();
        self.roots.offset_bytes.clear();
        self.flags.0.clear();
        self.pins.0.clear();
        self.memory.place.clear();
        self.memory.buffers.clear();
    }

    fn fill(
        &mut self,
        order: &Order,
        tensors: &Tensors<'_, '_>,
        buffers: &BufferEntities<'_, '_>,
    ) -> Result<(), PlanError> {
        self.clear();
        self.order.entities.clone_from(&order.entities);
        self.order.leaves = order.leaves;
        let mut buffer_index = EntityHashMap::default();
        for (node, &entity) in order.entities.iter().enumerate() {
            let (name, dtype, shape, strides, op, sources, view, flags, pin, stored, _) =
                tensors.get(entity).map_err(|_| PlanError::MissingTensor { position: node })?;
            let desc = TensorDesc { dtype: *dtype, shape: *shape, strides: *strides };
            self.names.0.push(Arc::clone(&name.0));
            self.descs.0.push(desc);
            self.ops.0.push(op.clone());
            self.sources.push(sources.0.iter().map(|e| index_u32(order.node_of[e])));
            let root = view.root.map_or(node, |e| order.node_of[&e]);
            self.roots.root.push(index_u32(root));
            self.roots.offset_bytes.push(view.offset_bytes);
            self.flags.0.push(*flags);
            self.pins.0.push(pin.0);
            let place = match stored.0 {
                Some(stored) if root == node => {
                    Some(place_of(&name.0, desc, stored, buffers, &mut buffer_index, &mut self.memory)?)
                }
                _ => None,
            };
            self.memory.place.push(place);
        }
        Ok(())
    }

    fn view(&self) -> ColumnsView<'_> {
        ColumnsView {
            names: &self.names,
            descs: &self.descs,
            ops: &self.ops,
            sources: &self.sources,
            roots: &self.roots,
            flags: &self.flags,
            pins: &self.pins,
            memory: &self.memory,
        }
    }
}

/// The columns that identify a plan.
pub(crate) struct ColumnsView<'a> {
    pub(crate) names: &'a NodeNames,
    pub(crate) descs: &'a NodeDescs,
    pub(crate) ops: &'a NodeOps,
    pub(crate) sources: &'a NodeSources,
    pub(crate) roots: &'a NodeRoots,
    pub(crate) flags: &'a NodeFlags,
    pub(crate) pins: &'a NodePins,
    pub(crate) memory: &'a NodeMemory,
}

fn place_of(
    tensor: &Arc<str>,
    desc: TensorDesc,
    stored: Stored,
    buffers: &BufferEntities<'_, '_>,
    index: &mut EntityHashMap<u32>,
    memory: &mut NodeMemory,
) -> Result<ExistingPlace, PlanError> {
    let missing = |_| PlanError::MissingBuffer { tensor: Arc::clone(tensor) };
    let (name, buffer_type, usage, kind, opaque, buffer) = buffers.get(stored.buffer).map_err(missing)?;
    let size_bytes = buffer.0.size_bytes();
    let end_bytes = desc.span_bytes().and_then(|span| span.checked_add(stored.offset_bytes)).unwrap_or(u64::MAX);
    if end_bytes > size_bytes {
        return Err(PlanError::OutsideBuffer {
            tensor: Arc::clone(tensor),
            buffer: Arc::clone(&name.0),
            offset_bytes: stored.offset_bytes,
            end_bytes,
            size_bytes,
        });
    }
    let next = index_u32(memory.buffers.len());
    let buffer = *index.entry(stored.buffer).or_insert_with(|| {
        memory.buffers.push(ExistingBuffer {
            entity: stored.buffer,
            name: Arc::clone(&name.0),
            kind: kind.clone(),
            buffer_type: Arc::clone(&buffer_type.0),
            opaque: opaque.0,
            usage: *usage,
            memory: Arc::clone(&buffer.0),
        });
        next
    });
    Ok(ExistingPlace { buffer, offset_bytes: stored.offset_bytes })
}

/// Memory that is written must be one tensor's: no pass could order the writes with reads through another.
fn check_overlaps(columns: &IndexColumns<'_>) -> Result<(), PlanError> {
    let mut written = vec![false; columns.names.0.len()];
    for node in columns.order.leaves..columns.order.entities.len() {
        if columns.ops.0[node].row().computes() {
            written[columns.roots.of(node)] = true;
        }
    }
    let mut places: Vec<(u32, u64, u64, usize)> = Vec::new();
    for (node, place) in columns.memory.place.iter().enumerate() {
        if let Some(place) = place {
            let end = place.offset_bytes + columns.descs.0[node].size_bytes();
            places.push((place.buffer, place.offset_bytes, end, node));
        }
    }
    places.sort_unstable();
    // The furthest end so far of anything, and of anything written, in the buffer at hand.
    let mut furthest: [Option<(u32, u64, usize)>; 2] = [None; 2];
    for &(buffer, start, end, node) in places.iter().filter(|(_, start, end, _)| start < end) {
        let reaches = |last: Option<(u32, u64, usize)>| last.filter(|&(b, e, _)| b == buffer && e > start);
        let clash = if written[node] { reaches(furthest[0]) } else { reaches(furthest[1]) };
        if let Some((_, _, other)) = clash {
            let (written, other) = if written[node] { (node, other) } else { (other, node) };
            let name = |i: usize| Arc::clone(&columns.names.0[i]);
            return Err(PlanError::OverlappingMemory { written: name(written), other: name(other) });
        }
        for last in furthest.iter_mut().take(1 + usize::from(written[node])) {
            if last.is_none_or(|(b, e, _)| b != buffer || e < end) {
                *last = Some((buffer, end, node));
            }
        }
    }
    Ok(())
}

/// Descriptions must be what the ops make: entities can be spawned and edited by hand.
fn check_nodes(columns: &IndexColumns<'_>) -> Result<(), PlanError> {
    for leaf in 0..columns.order.leaves {
        let name = || Arc::clone(&columns.names.0[leaf]);
        if !columns.roots.is_root(leaf) {
            return Err(PlanError::WrongView { node: name() });
        }
        let desc = columns.descs.0[leaf];
        if desc.span_bytes().is_none_or(|bytes| i64::try_from(bytes).is_err()) {
            let (dtype, shape) = (desc.dtype, desc.shape);
            return Err(PlanError::Shape { tensor: name(), source: ShapeError::Overflow { dtype, shape } });
        }
    }
    for node in columns.order.leaves..columns.order.entities.len() {
        let name = || Arc::clone(&columns.names.0[node]);
        let sources = columns.sources.of(node);
        let operands: SmallVec<[TensorDesc; 4]> = sources.iter().map(|&s| columns.descs.0[s as usize]).collect();
        let result = columns.ops.0[node].result(&operands).map_err(|source| PlanError::Op { node: name(), source })?;
        let declared = columns.descs.0[node];
        if declared != result.desc {
            let (declared, derived) = (Box::new(declared), Box::new(result.desc));
            return Err(PlanError::Inconsistent { node: name(), declared, derived });
        }
        let (root, offset) = match result.view {
            Some(view) => {
                let source = sources[view.operand] as usize;
                (columns.roots.of(source), columns.roots.offset_bytes[source].saturating_add(view.offset_bytes))
            }
            None => (node, 0),
        };
        if columns.roots.of(node) != root || columns.roots.offset_bytes[node] != offset {
            return Err(PlanError::WrongView { node: name() });
        }
    }
    Ok(())
}
