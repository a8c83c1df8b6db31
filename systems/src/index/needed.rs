//! Which nodes a run needs, and their table.

use std::sync::Arc;

use bevy_ecs::{entity::EntityHashMap, prelude::*};
use entensor_components::Wanted;

use crate::{
    columns::{GraphNodes, NodeFlags, NodeOrder, NodeTable, NodeTableBuilder, Nodes, index_u32},
    error::PlanError,
};

/// Up to this many wanted tensors are looked for one by one.
const FEW: usize = 4;

/// The wanted nodes; by default every output, else the last node. Without nodes nothing is wanted.
pub(super) fn wanted_nodes(all: &GraphNodes, wanted: &Wanted) -> Result<Vec<u32>, PlanError> {
    let table = &all.table;
    if wanted.0.is_empty() {
        let outputs: Vec<u32> = (0..table.len()).filter(|&i| table.flags[i].output).map(index_u32).collect();
        let last = (table.leaves < table.len()).then(|| index_u32(table.len() - 1));
        return Ok(if outputs.is_empty() { last.into_iter().collect() } else { outputs });
    }
    let unknown = |position| PlanError::UnknownWanted { position };
    let entities = all.entities.iter().enumerate();
    if wanted.0.len() <= FEW {
        let find = |(position, entity): (usize, &Entity)| {
            let found = all.entities.iter().position(|e| e == entity);
            found.map(index_u32).ok_or_else(|| unknown(position))
        };
        return wanted.0.iter().enumerate().map(find).collect();
    }
    let node_of: EntityHashMap<u32> = entities.map(|(node, &entity)| (entity, index_u32(node))).collect();
    let find = |(position, entity)| node_of.get(entity).copied().ok_or_else(|| unknown(position));
    wanted.0.iter().enumerate().map(find).collect()
}

/// Which nodes a run needs: one backward sweep, since operands and the writes they depend on come earlier.
pub(super) fn needed(table: &NodeTable, wanted: &[u32]) -> Vec<bool> {
    let mut needed = vec![false; table.len()];
    // Roots that something needed later reads.
    let mut read = vec![false; table.len()];
    // A wanted tensor is what it is at its place in the order: writes behind it are no part of it.
    for &node in wanted {
        needed[node as usize] = true;
    }
    for node in (table.leaves..table.len()).rev() {
        let root = table.roots.of(node);
        // Only a writer computes into memory that is not its own.
        if root != node && read[root] && !needed[node] {
            needed[node] = table.traits[node].writes();
        }
        if !needed[node] {
            continue;
        }
        for &source in table.sources.of(node) {
            needed[source as usize] = true;
            read[table.roots.of(source as usize)] = true;
        }
        needed[root] = true;
        read[root] |= root != node;
    }
    needed
}

/// Makes the table of the needed nodes: the graph's own where all are needed.
pub(super) fn select(
    all: &GraphNodes,
    needed: &[bool],
    wanted: &[u32],
    nodes: &mut Nodes,
    order: &mut NodeOrder,
    flags: &mut NodeFlags,
) {
    let mut index_of: Vec<u32> = Vec::new();
    if needed.iter().all(|&needed| needed) {
        nodes.0 = Arc::clone(&all.table);
        order.entities = Arc::clone(&all.entities);
    } else {
        let (table, entities, indices) = compact(all, needed);
        nodes.0 = Arc::new(table);
        order.entities = Arc::new(entities);
        index_of = indices;
    }
    flags.0.clone_from(&nodes.flags);
    for &node in wanted {
        let node = index_of.get(node as usize).copied().unwrap_or(node);
        flags.0[node as usize].output = true;
    }
}

/// The needed nodes alone, and the new index of each old one.
fn compact(all: &GraphNodes, needed: &[bool]) -> (NodeTable, Vec<Entity>, Vec<u32>) {
    let count = needed.iter().filter(|&&needed| needed).count();
    let mut table = NodeTableBuilder::with_capacity(count);
    let leaves = needed[..all.table.leaves].iter().filter(|&&needed| needed).count();
    let mut entities = Vec::with_capacity(count);
    let mut index_of = vec![0; needed.len()];
    for node in (0..needed.len()).filter(|&node| needed[node]) {
        index_of[node] = index_u32(entities.len());
        entities.push(all.entities[node]);
        let mut facts = all.table.facts(node);
        facts.root = facts.root.map(|root| index_of[root as usize]);
        table.push(facts, all.table.sources.of(node).iter().map(|&source| index_of[source as usize]));
    }
    (table.build(leaves), entities, index_of)
}
