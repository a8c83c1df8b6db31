//! Where memory exists already: each stored node's place, checked against its buffer and against other places.

use std::sync::Arc;

use bevy_ecs::{entity::EntityHashMap, prelude::*};
use entensor_components::{BufferMemory, BufferName, BufferType, MemoryKind, Opaque, Stored, TensorDesc, Usage};

use super::{ExistingBuffer, GraphNodes, NodeMemory, Nodes, PlanError};
use crate::columns::{ExistingPlace, index_u32};

/// Every buffer of the world.
pub(super) type BufferEntities<'w, 's> = Query<
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

/// Notes where the needed nodes' memory is.
pub(super) fn place(
    all: &GraphNodes,
    needed: Option<&[bool]>,
    nodes: &Nodes,
    buffers: &BufferEntities<'_, '_>,
    memory: &mut NodeMemory,
) -> Result<(), PlanError> {
    memory.reset(nodes.len());
    let mut index_of = EntityHashMap::default();
    // Where nodes were left out, those before a node are counted as it comes.
    let (mut counted, mut left_out) = (0, 0);
    for &(at, stored) in all.stored.iter() {
        let at = at as usize;
        if let Some(needed) = needed {
            if !needed[at] {
                continue;
            }
            left_out += needed[counted..at].iter().filter(|&&needed| !needed).count();
            counted = at;
        }
        let node = at - left_out;
        let place = place_of(&nodes.names[node], nodes.descs[node], stored, buffers, &mut index_of, memory)?;
        memory.set(node, place);
    }
    Ok(())
}

fn place_of(
    tensor: &Arc<str>,
    desc: TensorDesc,
    stored: Stored,
    buffers: &BufferEntities<'_, '_>,
    index_of: &mut EntityHashMap<u32>,
    memory: &mut NodeMemory,
) -> Result<ExistingPlace, PlanError> {
    let index = match memory.buffers.last() {
        // Tensors of one buffer mostly follow each other.
        Some(last) if last.entity == stored.buffer => index_u32(memory.buffers.len() - 1),
        _ => {
            let next = index_u32(memory.buffers.len());
            let index = *index_of.entry(stored.buffer).or_insert(next);
            if index == next {
                let missing = |_| PlanError::MissingBuffer { tensor: Arc::clone(tensor) };
                let (name, buffer_type, usage, kind, opaque, buffer) = buffers.get(stored.buffer).map_err(missing)?;
                memory.buffers.push(ExistingBuffer {
                    entity: stored.buffer,
                    name: Arc::clone(&name.0),
                    kind: kind.clone(),
                    buffer_type: Arc::clone(&buffer_type.0),
                    opaque: opaque.0,
                    usage: *usage,
                    memory: Arc::clone(&buffer.0),
                });
            }
            index
        }
    };
    let buffer = &memory.buffers[index as usize];
    let size_bytes = buffer.memory.size_bytes();
    let end_bytes = desc.span_bytes().and_then(|span| span.checked_add(stored.offset_bytes)).unwrap_or(u64::MAX);
    if end_bytes > size_bytes {
        return Err(PlanError::OutsideBuffer {
            tensor: Arc::clone(tensor),
            buffer: Arc::clone(&buffer.name),
            offset_bytes: stored.offset_bytes,
            end_bytes,
            size_bytes,
        });
    }
    Ok(ExistingPlace { buffer: index, offset_bytes: stored.offset_bytes })
}

/// Which roots lie in existing memory and are written; empty if none is.
fn written(nodes: &Nodes, memory: &NodeMemory) -> Vec<bool> {
    let mut written = Vec::new();
    let mut note = |root: usize| {
        if memory.place(root).is_some() {
            written.resize(nodes.len(), false);
            written[root] = true;
        }
    };
    // Who computes writes its own memory, or as a writer that of its target.
    let computed = memory.placed_behind(nodes.leaves).filter(|&node| nodes.traits[node].computes());
    computed.for_each(&mut note);
    nodes.writers.iter().for_each(|&node| note(nodes.roots.of(node as usize)));
    written
}

/// Memory that is written must be one tensor's: no pass could order the writes with reads through another.
pub(super) fn check_overlaps(nodes: &Nodes, memory: &NodeMemory) -> Result<(), PlanError> {
    let written = written(nodes, memory);
    if written.is_empty() {
        return Ok(());
    }
    let mut places: Vec<(u32, u64, u64, usize)> = Vec::new();
    for node in 0..nodes.len() {
        if let Some(place) = memory.place(node) {
            let end = place.offset_bytes + nodes.descs[node].size_bytes();
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
            let name = |i: usize| Arc::clone(&nodes.names[i]);
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
