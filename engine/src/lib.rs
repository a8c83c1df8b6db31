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
mod compare;
mod copy;
mod engine;
mod error;
mod figures;
pub mod graph_text;
mod graphs;
mod io;
mod limits;
mod lost;
mod memory;
mod observe;
mod partial;
mod profile;
mod registry;
mod run;
mod runner;
mod runs;
mod sets;
mod setup;
mod shadow;
mod spawn;
mod views;
mod walk;

pub use builder::{GraphBuilder, Tensor};
pub use compare::{GraphComparison, NodeDifference, compare_graphs, nmse};
pub use copy::GraphCopy;
pub use engine::{ArenaId, BufferId, Engine, GraphId, TensorId};
pub use entensor_components as components;
pub use entensor_components::{
    Backend, BackendConfig, BackendError, BackendIndex, BufferTypeInfo, ByteRows, CancelToken, Cause, DType,
    ImportedBytes, OffloadPolicy, Op, OpKind, PoolOp, RopeMode, RunLimit, Shape, SortOrder, Strides, TensorDesc,
    UpscaleMode, Usage,
};
pub use entensor_systems as systems;
pub use entensor_systems::{
    CopyProfile, Figures, GraphProfile, NodeProfile, OpProfile, Pass, PassTimings, Plan, PlanCounters, PlanError,
    PlanReason, PlanSalt, PlanSystems, Profile, ProfileConfig, SplitProfile, Timing, Violation, planning,
};
pub use error::{BuildError, EngineError};
pub use figures::{BackendFigures, BackendMemory, ComputeBuffer, EXPLAIN_VARIABLE, GraphFigures};
pub use io::Element;
pub use limits::RunProgress;
pub use lost::{DeviceLost, LostDevice, LostState};
pub use observe::{NodeData, NodeObserver, ObservedRun};
pub use registry::{
    AUTO, BackendFactory, BackendSpec, DeviceInfo, HostAllocator, Registry, RegistryEntry, RegistryError,
};
pub use run::Explanation;
pub use runner::Runner;
pub use runs::RunId;
pub use sets::{SetPlace, TensorRequest, TensorSet};
pub use setup::EngineBuilder;

/// The README's program, so that it cannot rot.
#[cfg(all(doctest, feature = "cpu"))]
#[doc = include_str!("../../README.md")]
struct Readme;
