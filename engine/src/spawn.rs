//! A builder's graph as entities, with the table that planning would gather from them: the builder has checked it already.

use std::sync::Arc;

use bevy_ecs::prelude::*;
use entensor_components::{
    DType, Generation, GraphBundle, GraphTensors, InGraph, Op, OpKind, Pinned, PipelineCopies, Shape, SharedGeneration,
    Sources, Stored, StoredIn, Strides, TensorBundle, TensorDesc, TensorFlags, TensorName, ViewSrc,
};
use entensor_systems::{GraphNodes, GraphStatus, NodeFacts, NodeTableBuilder, UsesArena};

use crate::{
    builder::{GraphBuilder, Node, Origin},
    engine::{BuiltBy, InputState},
};

/// Spawns a graph.
pub(crate) fn spawn_graph(world: &mut World, graph: GraphBuilder) -> Entity {
    let bundle = GraphBundle::new(graph.name);
    let entity = world.spawn((bundle, InputState::default(), BuiltBy(graph.id), GraphStatus::default())).id();
    let entities = spawn_tensors(world, entity, &graph.nodes);
    let nodes = gather(world, graph.nodes, &entities);
    let mut spawned = world.entity_mut(entity);
    spawned.insert((GraphTensors(entities), PipelineCopies(graph.copies)));
    if let Some(arena) = graph.arena {
        spawned.insert(UsesArena(arena));
    }
    if let Some(mut nodes) = nodes {
        nodes.generation = spawned.get::<Generation>().map_or(0, |generation| generation.0);
        spawned.insert(nodes);
    }
    entity
}

fn spawn_tensors(world: &mut World, graph: Entity, nodes: &[Node]) -> Vec<Entity> {
    let mut entities: Vec<Entity> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let (op, sources, root, offset_bytes) = match &node.origin {
            Origin::Shared(shared) => {
                entities.push(*shared);
                continue;
            }
            Origin::Own { op, sources, root, offset_bytes } => (op, sources, root, *offset_bytes),
        };
        let bundle = TensorBundle {
            in_graph: InGraph(Some(graph)),
            op: op.clone(),
            sources: Sources(sources.iter().map(|&s| entities[s as usize]).collect()),
            view_src: ViewSrc { root: root.map(|r| entities[r as usize]), offset_bytes },
            flags: node.flags,
            pinned: Pinned(node.pin),
            ..TensorBundle::leaf(Arc::clone(&node.name), node.desc)
        };
        entities.push(world.spawn(bundle).id());
    }
    entities
}

/// The table of the graph's tensors, leaves first. `None` where a shared leaf is no longer what the builder was told: then
/// planning looks at the entities, and says what is wrong.
fn gather(world: &World, nodes: Vec<Node>, entities: &[Entity]) -> Option<GraphNodes> {
    let mut table = NodeTableBuilder::with_capacity(nodes.len());
    let (mut order, mut stored, mut shared) = (Vec::with_capacity(nodes.len()), Vec::new(), Vec::new());
    let mut node_of = vec![0_u32; nodes.len()];
    for (position, node) in nodes.iter().enumerate() {
        let index = u32::try_from(order.len()).ok()?;
        let facts = match &node.origin {
            Origin::Shared(entity) => {
                let (facts, place) = shared_leaf(world, *entity, node)?;
                stored.extend(place.map(|place| (index, place)));
                shared.push(index);
                facts
            }
            Origin::Own { op, .. } if op.kind() == OpKind::None => facts(node, Op::None {}, None, 0),
            Origin::Own { .. } => continue,
        };
        node_of[position] = index;
        order.push(entities[position]);
        table.push(facts, []);
    }
    let leaves = order.len();
    for (position, mut node) in nodes.into_iter().enumerate() {
        let unset = Origin::Shared(Entity::PLACEHOLDER);
        let Origin::Own { op, sources, root, offset_bytes } = std::mem::replace(&mut node.origin, unset) else {
            continue;
        };
        if op.kind() == OpKind::None {
            continue;
        }
        node_of[position] = u32::try_from(order.len()).ok()?;
        order.push(entities[position]);
        let facts = facts(&node, op, root.map(|root| node_of[root as usize]), offset_bytes);
        table.push(facts, sources.iter().map(|&source| node_of[source as usize]));
    }
    Some(GraphNodes {
        table: Arc::new(table.build(leaves)),
        entities: Arc::new(order),
        stored: Arc::new(stored),
        shared: Arc::new(shared),
        generation: 0,
        shared_generation: world.get_resource::<SharedGeneration>().map_or(0, |generation| generation.0),
    })
}

fn facts(node: &Node, op: Op, root: Option<u32>, offset_bytes: u64) -> NodeFacts {
    NodeFacts {
        name: Arc::clone(&node.name),
        desc: node.desc,
        op,
        root,
        offset_bytes,
        flags: node.flags,
        pin: node.pin,
    }
}

/// What a shared leaf is now, if it still is what the builder was told, and where it lies.
fn shared_leaf(world: &World, entity: Entity, node: &Node) -> Option<(NodeFacts, Option<Stored>)> {
    let entity = world.get_entity(entity).ok()?;
    let desc = TensorDesc {
        dtype: *entity.get::<DType>()?,
        shape: *entity.get::<Shape>()?,
        strides: *entity.get::<Strides>()?,
    };
    let (flags, pin, place) = (*entity.get::<TensorFlags>()?, entity.get::<Pinned>()?.0, entity.get::<StoredIn>()?.0);
    let is_leaf = entity.get::<Op>()?.kind() == OpKind::None
        && entity.get::<Sources>()?.0.is_empty()
        && entity.get::<ViewSrc>()?.root.is_none()
        && entity.get::<InGraph>()?.0.is_none();
    let is_wished = place.is_some() || flags.input || pin.is_some();
    let name = Arc::clone(&entity.get::<TensorName>()?.0);
    let facts = NodeFacts { name, desc, op: Op::None {}, root: None, offset_bytes: 0, flags, pin };
    (is_leaf && is_wished && desc == node.desc).then_some((facts, place))
}
