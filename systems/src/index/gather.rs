//! The table of a graph from its tensors' components: for graphs that were made or edited by hand.

use std::sync::Arc;

use bevy_ecs::{entity::EntityHashMap, prelude::*};
use entensor_components::{
    DType, InGraph, Op, OpKind, Pinned, Shape, ShapeError, Sources, StoredIn, Strides, TensorDesc, TensorFlags,
    TensorName, ViewSrc,
};
use smallvec::SmallVec;

use crate::{
    columns::{GraphNodes, NodeFacts, NodeTable, NodeTableBuilder, index_u32},
    error::PlanError,
};

/// What a tensor is.
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
pub(super) type Tensors<'w, 's> = Query<'w, 's, TensorItem<'static>>;

/// Whether the leaves that other graphs may have changed are what they were.
pub(super) fn shared_leaves_are_the_same(kept: &GraphNodes, tensors: &Tensors<'_, '_>) -> bool {
    let stored_at = |leaf: u32| {
        let found = kept.stored.binary_search_by_key(&leaf, |(at, _)| *at).ok()?;
        Some(kept.stored[found].1)
    };
    kept.shared.iter().all(|&leaf| {
        let node = leaf as usize;
        let Ok((name, &dtype, &shape, &strides, op, sources, view, &flags, pin, place, in_graph)) =
            tensors.get(kept.entities[node])
        else {
            return false;
        };
        let table = &kept.table;
        name.0 == table.names[node]
            && TensorDesc { dtype, shape, strides } == table.descs[node]
            && op.kind() == OpKind::None
            && sources.0.is_empty()
            && view.root.is_none()
            && flags == table.flags[node]
            && pin.0 == table.pins[node]
            && place.0 == stored_at(leaf)
            && in_graph.0.is_none()
    })
}

/// Reads every tensor of a graph, and what of others they read.
pub(super) fn gather(
    graph: Entity,
    entities: &[Entity],
    tensors: &Tensors<'_, '_>,
    generation: u64,
    shared_generation: u64,
) -> Result<GraphNodes, PlanError> {
    let items = fetch(graph, entities, tensors)?;
    let positions: EntityHashMap<usize> = entities.iter().enumerate().map(|(i, &e)| (e, i)).collect();
    let order = order_of(entities, &items, &positions, tensors)?;
    let mut table = NodeTableBuilder::with_capacity(order.entities.len());
    let (mut stored, mut shared) = (Vec::new(), Vec::new());
    for (node, &entity) in order.entities.iter().enumerate() {
        let (name, &dtype, &shape, &strides, op, sources, view, &flags, pin, place, in_graph) =
            tensors.get(entity).map_err(|_| PlanError::MissingTensor { position: node })?;
        let index = |e: &Entity| index_u32(order.node_of[e]);
        let facts = NodeFacts {
            name: Arc::clone(&name.0),
            desc: TensorDesc { dtype, shape, strides },
            op: op.clone(),
            root: view.root.as_ref().map(index),
            offset_bytes: view.offset_bytes,
            flags,
            pin: pin.0,
        };
        table.push(facts, sources.0.iter().map(index));
        if let Some(place) = place.0.filter(|_| view.root.is_none()) {
            stored.push((index_u32(node), place));
        }
        if in_graph.0.is_none() {
            shared.push(index_u32(node));
        }
    }
    let table = table.build(order.leaves);
    check_nodes(&table)?;
    Ok(GraphNodes {
        table: Arc::new(table),
        entities: Arc::new(order.entities),
        stored: Arc::new(stored),
        shared: Arc::new(shared),
        generation,
        shared_generation,
    })
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
    tensors: &Tensors<'_, '_>,
) -> Result<Order, PlanError> {
    let is_leaf = |i: usize| items[i].4.kind() == OpKind::None;
    let mut entities: Vec<Entity> = (0..graph.len()).filter(|&i| is_leaf(i)).map(|i| graph[i]).collect();
    let mut seen: EntityHashMap<()> = entities.iter().map(|&e| (e, ())).collect();
    for (i, (name, _, _, _, _, sources, view, ..)) in items.iter().enumerate() {
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
    entities.extend((0..graph.len()).filter(|&i| !is_leaf(i)).map(|i| graph[i]));
    let node_of = entities.iter().enumerate().map(|(i, &e)| (e, i)).collect();
    Ok(Order { entities, leaves, node_of })
}

/// Descriptions must be what the ops make: entities can be spawned and edited by hand.
fn check_nodes(table: &NodeTable) -> Result<(), PlanError> {
    for leaf in 0..table.leaves {
        let name = || Arc::clone(&table.names[leaf]);
        if !table.roots.is_root(leaf) || table.roots.offset_bytes[leaf] != 0 || !table.sources.of(leaf).is_empty() {
            return Err(PlanError::WrongView { node: name() });
        }
        let desc = table.descs[leaf];
        if desc.span_bytes().is_none_or(|bytes| i64::try_from(bytes).is_err()) {
            let (dtype, shape) = (desc.dtype, desc.shape);
            return Err(PlanError::Shape { tensor: name(), source: ShapeError::Overflow { dtype, shape } });
        }
    }
    for node in table.leaves..table.len() {
        let name = || Arc::clone(&table.names[node]);
        if table.flags[node].input {
            return Err(PlanError::ComputedInput { node: name(), op: table.ops[node].kind().name() });
        }
        let sources = table.sources.of(node);
        let operands: SmallVec<[TensorDesc; 4]> = sources.iter().map(|&s| table.descs[s as usize]).collect();
        let result = table.ops[node].result(&operands).map_err(|source| PlanError::Op { node: name(), source })?;
        let declared = table.descs[node];
        if declared != result.desc {
            let (declared, derived) = (Box::new(declared), Box::new(result.desc));
            return Err(PlanError::Inconsistent { node: name(), declared, derived });
        }
        let (root, offset) = match result.view {
            Some(view) => {
                let source = sources[view.operand] as usize;
                (table.roots.of(source), table.roots.offset_bytes[source].saturating_add(view.offset_bytes))
            }
            None => (node, 0),
        };
        if table.roots.of(node) != root || table.roots.offset_bytes[node] != offset {
            return Err(PlanError::WrongView { node: name() });
        }
    }
    Ok(())
}
