//! The engine: a façade over a World that holds graphs, buffers and backends as entities.

use std::{borrow::BorrowMut, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{Backend, BackendIndex, TensorDesc};
use entensor_systems::{Backends, GraphPlan, PassTimings, Plan, PlanCounters};

use crate::{error::EngineError, setup::EngineBuilder};

/// A graph in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphId(pub Entity);

/// Planned memory that several graphs use in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArenaId(pub Entity);

/// A buffer in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub Entity);

/// A tensor with memory of its own: weights, a cache, state.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorId {
    /// The entity.
    pub entity: Entity,
    /// Its name.
    pub name: Arc<str>,
    /// Dtype, shape and strides.
    pub desc: TensorDesc,
}

/// On a graph: which of its plan's nodes hold what the user wrote.
#[derive(Component, Default)]
pub(crate) struct InputState {
    /// Per plan node, whether what it holds for the next run was written by the user.
    pub(crate) written: Vec<bool>,
    /// A run that goes on with the next call.
    pub(crate) paused: Option<crate::limits::PausedRun>,
}

impl InputState {
    /// A run starts: what it consumes is gone whatever becomes of it. With several slots its bytes may be left, but what users see
    /// must not depend on how many slots there is memory for.
    pub(crate) fn start(&mut self, plan: &Plan) {
        for (written, flags) in self.written.iter_mut().zip(&plan.flags[..plan.leaves()]) {
            *written &= !flags.consumed;
        }
    }
}

/// On a graph: the builder that made it, since only that one's tensors are its own.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BuiltBy(pub(crate) u32);

/// Runs graphs. Owns its World, or works on the caller's.
///
/// ```
/// use entensor::{DType, Engine, GraphBuilder};
///
/// let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
/// let weights = engine.weights("w", DType::F32, &[2, 3], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0])?;
/// let mut g = GraphBuilder::new("layer");
/// let w = g.shared(&weights)?;
/// let x = g.input("x", DType::F32, &[2])?;
/// let y = g.mul_mat(w, x)?;
/// let y = g.output("y", y)?;
/// let graph = engine.add_graph(g);
///
/// engine.write(graph, x, &[3.0_f32, 4.0])?;
/// engine.run(graph)?;
/// let mut result = [0.0_f32; 3];
/// engine.read(graph, y, &mut result)?;
/// assert_eq!(result, [3.0, 4.0, 7.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine<W: BorrowMut<World> = World> {
    world: W,
}

impl Engine {
    /// An engine with the default backend: all cores of this machine.
    ///
    /// # Errors
    /// When the backend does not start.
    pub fn new() -> Result<Self, EngineError> {
        Self::builder().build()
    }

    /// Says how an engine is made.
    #[must_use]
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// Gives the World back.
    #[must_use]
    pub fn into_world(self) -> World {
        self.world
    }
}

impl<'w> Engine<&'w mut World> {
    /// The engine of a World that [`EngineBuilder::build_in`] has set up. Costs nothing: make it anew in every system.
    #[must_use]
    pub fn over(world: &'w mut World) -> Self {
        Self { world }
    }
}

impl<W: BorrowMut<World>> Engine<W> {
    pub(crate) fn new_in(world: W) -> Self {
        Self { world }
    }

    /// The World.
    #[must_use]
    pub fn world(&self) -> &World {
        self.world.borrow()
    }

    /// The World, to add systems and components of the user's own.
    pub fn world_mut(&mut self) -> &mut World {
        self.world.borrow_mut()
    }

    /// The backends, by priority.
    #[must_use]
    pub fn backends(&self) -> &[Arc<dyn Backend>] {
        self.world().get_resource::<Backends>().map_or(&[], |b| &b.0)
    }

    /// The backend of a name.
    ///
    /// # Errors
    /// [`EngineError::UnknownBackend`] lists what exists.
    pub fn backend_index(&self, name: &str) -> Result<BackendIndex, EngineError> {
        let found = self.world().get_resource::<Backends>().and_then(|b| b.find(name));
        found.ok_or_else(|| self.unknown_backend(name.into()))
    }

    pub(crate) fn unknown_backend(&self, name: String) -> EngineError {
        EngineError::UnknownBackend { name, known: self.backends().iter().map(|b| b.name().into()).collect() }
    }

    /// The lowest backend, always on host memory.
    #[must_use]
    pub fn host(&self) -> BackendIndex {
        BackendIndex(u32::try_from(self.backends().len().saturating_sub(1)).unwrap_or(0))
    }

    pub(crate) fn backend(&self, index: BackendIndex) -> Result<Arc<dyn Backend>, EngineError> {
        let found = self.backends().get(index.0 as usize).cloned();
        found.ok_or_else(|| self.unknown_backend(index.0.to_string()))
    }

    /// The graph's plan, if it has one.
    #[must_use]
    pub fn plan_of(&self, graph: GraphId) -> Option<&Arc<Plan>> {
        self.world().get::<GraphPlan>(graph.0).map(|g| &g.plan)
    }

    /// Time and calls of every pass.
    #[must_use]
    pub fn timings(&self) -> PassTimings {
        self.world().get_resource::<PassTimings>().copied().unwrap_or_default()
    }

    /// Sets the figures of [`Self::timings`] to zero.
    pub fn reset_timings(&mut self) {
        if let Some(mut timings) = self.world_mut().get_resource_mut::<PassTimings>() {
            timings.reset();
        }
    }

    /// How often and why graphs were planned.
    #[must_use]
    pub fn counters(&self) -> PlanCounters {
        self.world().get_resource::<PlanCounters>().cloned().unwrap_or_default()
    }
}
