//! Entensor runs machine-learning graphs inside simulations and games. Tensors, buffers and splits are `bevy_ecs`
//! entities; the scheduler's passes are ordered systems over their components; one graph may run across several
//! backends.
//!
//! This crate is what users add: the graph builder ([`GraphBuilder`]), the [`Engine`] over a World that the caller may own,
//! the backend [`Registry`] and the `.graph` text ([`graph_text`]). Model files are in `entensor-models`.
//!
//! See [`Engine`] for a first program.
#![forbid(unsafe_code)]

mod builder;
mod engine;
mod error;
pub mod graph_text;
mod graphs;
mod io;
mod limits;
mod memory;
mod registry;
mod run;
mod setup;
mod spawn;

pub use builder::{GraphBuilder, Tensor};
pub use engine::{ArenaId, BufferId, Engine, GraphId, TensorId};
pub use entensor_components as components;
pub use entensor_components::{
    Backend, BackendError, BackendIndex, CancelToken, Cause, DType, ImportedBytes, Op, PoolOp, RopeMode, RunLimit,
    Shape, SortOrder, Strides, TensorDesc, UpscaleMode, Usage,
};
pub use entensor_systems as systems;
pub use entensor_systems::{
    Pass, PassTimings, Plan, PlanCounters, PlanError, PlanReason, PlanSalt, PlanSystems, Violation, planning,
};
pub use error::{BuildError, EngineError};
pub use io::Element;
pub use limits::RunProgress;
pub use registry::{BackendFactory, BackendSpec, Registry, RegistryEntry, RegistryError};
pub use run::Explanation;
pub use setup::EngineBuilder;

/// The README's program, so that it cannot rot.
#[cfg(all(doctest, feature = "cpu"))]
#[doc = include_str!("../../README.md")]
struct Readme;
