//! Graphs as entities: adding, removing, wishes.

use std::borrow::BorrowMut;

use bevy_ecs::prelude::*;
use entensor_components::{BackendIndex, GraphTensors, InGraph, Pinned, Wanted};
use entensor_systems::{NodeMemory, Nodes, OwnArena, Planning, publish};

use crate::{
    builder::{GraphBuilder, Tensor},
    engine::{BuiltBy, Engine, GraphId},
    error::EngineError,
    spawn::spawn_graph,
};

impl<W: BorrowMut<World>> Engine<W> {
    /// Adds a graph: its tensors become entities.
    pub fn add_graph(&mut self, graph: GraphBuilder) -> GraphId {
        GraphId(spawn_graph(self.world_mut(), graph))
    }

    /// Removes a graph with its tensors and its plan. Shared tensors stay.
    pub fn remove_graph(&mut self, graph: GraphId) {
        let world = self.world_mut();
        let tensors = world.get::<GraphTensors>(graph.0).map(|t| t.0.clone()).unwrap_or_default();
        let own = tensors.into_iter().filter(|&t| world.get::<InGraph>(t) == Some(&InGraph(Some(graph.0))));
        let mut doomed: Vec<Entity> = own.collect();
        publish::unpublish(world, graph.0);
        // What the passes left is of no use without the graph, and holds its names and buffers.
        if world.get_resource::<Planning>() == Some(&Planning(graph.0)) {
            world.insert_resource(Nodes::default());
            world.insert_resource(NodeMemory::default());
        }
        let Ok(mut entity) = world.get_entity_mut(graph.0) else { return };
        if let Some(arena) = entity.take::<OwnArena>() {
            doomed.push(arena.0);
        }
        for entity in doomed.into_iter().chain([graph.0]) {
            world.try_despawn(entity).ok();
        }
    }

    /// The entity of a graph's tensor.
    ///
    /// # Errors
    /// A graph or tensor that does not exist.
    pub fn entity(&self, graph: GraphId, tensor: Tensor) -> Result<Entity, EngineError> {
        let tensors = self.world().get::<GraphTensors>(graph.0).ok_or(EngineError::UnknownGraph)?;
        if self.world().get::<BuiltBy>(graph.0) != Some(&BuiltBy(tensor.builder)) {
            return Err(EngineError::UnknownTensor);
        }
        tensors.0.get(tensor.index as usize).copied().ok_or(EngineError::UnknownTensor)
    }

    /// Wishes a tensor onto a backend, or takes the wish back. The graph is planned again before its next run.
    ///
    /// # Errors
    /// A graph or tensor that does not exist.
    pub fn pin(&mut self, graph: GraphId, tensor: Tensor, backend: Option<BackendIndex>) -> Result<(), EngineError> {
        let entity = self.entity(graph, tensor)?;
        let mut entity = self.world_mut().get_entity_mut(entity).map_err(|_| EngineError::UnknownTensor)?;
        entity.insert(Pinned(backend));
        Ok(())
    }

    /// Says which tensors a run must produce; by default all outputs, else the last tensor.
    ///
    /// # Errors
    /// A graph or tensor that does not exist.
    pub fn want(&mut self, graph: GraphId, tensors: &[Tensor]) -> Result<(), EngineError> {
        let wanted = tensors.iter().map(|&t| self.entity(graph, t)).collect::<Result<_, _>>()?;
        let mut graph = self.world_mut().get_entity_mut(graph.0).map_err(|_| EngineError::UnknownGraph)?;
        graph.insert(Wanted(wanted));
        Ok(())
    }
}
