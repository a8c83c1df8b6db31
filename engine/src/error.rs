//! What can go wrong at the façade. Inner errors say what; these add where.

use std::sync::Arc;

use entensor_components::{BackendError, DType, OpError, ParamError, Shape, ShapeError, Strides, TensorDesc};
use entensor_systems::{InvalidSchedule, Pass, PlanError, Violation};

use crate::registry::RegistryError;

/// Why a graph could not be built. Nothing reaches a World before its shapes and dtypes fit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The op does not fit its operands.
    #[error("graph `{graph}`, node `{node}`: {source}")]
    Op {
        /// The graph.
        graph: Arc<str>,
        /// The node.
        node: Arc<str>,
        /// Why.
        source: OpError,
    },
    /// A leaf that cannot exist.
    #[error("graph `{graph}`, leaf `{leaf}`: {source}")]
    Leaf {
        /// The graph.
        graph: Arc<str>,
        /// The leaf.
        leaf: Arc<str>,
        /// Why.
        source: ShapeError,
    },
    /// A parameter's text does not fit.
    #[error("graph `{graph}`: {source}")]
    Param {
        /// The graph.
        graph: Arc<str>,
        /// Why.
        source: ParamError,
    },
    /// Two tensors of one name.
    #[error("graph `{graph}` has two tensors named `{name}`; names are unique in a graph")]
    DuplicateName {
        /// The graph.
        graph: Arc<str>,
        /// The name.
        name: Arc<str>,
    },
    /// A wish about a tensor that other graphs use too.
    #[error(
        "graph `{graph}`: `{tensor}` is shared, so it cannot be named, pinned or an output here; read it with `read_tensor`, or pin what uses it"
    )]
    SharedTensor {
        /// The graph.
        graph: Arc<str>,
        /// The tensor.
        tensor: Arc<str>,
    },
    /// An operand of another builder.
    #[error("graph `{graph}`, node `{node}`: operand {operand} was made by another graph builder")]
    ForeignTensor {
        /// The graph.
        graph: Arc<str>,
        /// The node.
        node: Arc<str>,
        /// Which operand.
        operand: usize,
    },
}

/// What can go wrong at the façade.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A backend could not be made from its text.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A graph could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A pass failed, or a step of a run.
    #[error("graph `{graph}`, pass {}: {error}", .pass.name())]
    Plan {
        /// The graph.
        graph: Arc<str>,
        /// The pass.
        pass: Pass,
        /// Why.
        error: Box<PlanError>,
    },
    /// The plan is wrong: a fault of a pass, or of a system between the passes.
    #[error("graph `{graph}`: the verifier rejects the plan: {}", violation_list(.violations))]
    Verify {
        /// The graph.
        graph: Arc<str>,
        /// What is wrong with it.
        violations: Vec<Violation>,
    },
    /// A buffer could not be made, written or read.
    #[error("`{what}`: {source}")]
    Backend {
        /// The buffer or tensor.
        what: Arc<str>,
        /// What the backend reports.
        source: BackendError,
    },
    /// A tensor that cannot exist.
    #[error("tensor `{tensor}`: {source}")]
    Shape {
        /// The tensor.
        tensor: Arc<str>,
        /// Why.
        source: ShapeError,
    },
    /// The World was not set up for graphs.
    #[error("this World has no engine; call `Engine::builder()….build_in(&mut world)` once before `Engine::over`")]
    NotInstalled,
    /// Systems that were added to the plan schedule, or their orders, do not fit together.
    #[error(transparent)]
    Schedule(#[from] InvalidSchedule),
    /// The graph was removed, or never added to this engine.
    #[error("the graph is not in this engine (any more)")]
    UnknownGraph,
    /// The tensor was despawned, or is not of this graph.
    #[error("the tensor is not of this graph, or was despawned")]
    UnknownTensor,
    /// The buffer was despawned.
    #[error("the buffer is not in this engine (any more)")]
    UnknownBuffer,
    /// The backend index or name does not exist.
    #[error("there is no backend `{name}`; there are: {}", .known.join(", "))]
    UnknownBackend {
        /// What was asked for.
        name: String,
        /// What exists.
        known: Vec<String>,
    },
    /// The values are of another type than the tensor.
    #[error("tensor `{tensor}` is {dtype}, but the values are {given}; convert them, or use bytes")]
    WrongDType {
        /// The tensor.
        tensor: Arc<str>,
        /// Its dtype.
        dtype: DType,
        /// The values' type.
        given: &'static str,
    },
    /// The number of values is not the tensor's.
    #[error("tensor `{tensor}` {shape} has {expected} values (or bytes), but {given} were given")]
    WrongLength {
        /// The tensor.
        tensor: Arc<str>,
        /// Its shape.
        shape: Shape,
        /// How many it has.
        expected: u64,
        /// How many were given.
        given: u64,
    },
    /// A tensor with holes in its layout cannot be read or written at once.
    #[error("tensor `{tensor}` is not packed; read or write its root, or apply `cont`")]
    NotPacked {
        /// The tensor.
        tensor: Arc<str>,
    },
    /// A tensor whose memory other tensors use during a run.
    #[error(
        "tensor `{tensor}` is neither a kept input nor an output and has no memory of its own; mark it with `output` when building"
    )]
    NotReadable {
        /// The tensor.
        tensor: Arc<str>,
    },
    /// A write to a computed tensor.
    #[error("tensor `{tensor}` is computed; only inputs and tensors with memory of their own are written")]
    NotWritable {
        /// The tensor.
        tensor: Arc<str>,
    },
    /// An input that holds no value for the run.
    #[error(
        "input `{tensor}` of graph `{graph}` was not written since the graph was planned or another graph used its memory; write it before the run"
    )]
    InputNotWritten {
        /// The graph.
        graph: Arc<str>,
        /// The input.
        tensor: Arc<str>,
    },
    /// An output that is no longer, or not yet, there.
    #[error(
        "tensor `{tensor}`: graph `{graph}` has not run since another graph used its memory; read outputs before running the other"
    )]
    OutputGone {
        /// The graph.
        graph: Arc<str>,
        /// The output.
        tensor: Arc<str>,
    },
    /// A device is lost, and the run with it.
    #[error(
        "graph `{graph}`: the device of `{backend}` was lost: {reason}; {}",
        if *.recovered { "the graph is planned without it from now on: write its inputs and run it again" } else { "make the engine again" }
    )]
    DeviceLost {
        /// The graph.
        graph: Arc<str>,
        /// The backend.
        backend: Arc<str>,
        /// What the driver said.
        reason: Arc<str>,
        /// Whether the engine goes on without it.
        recovered: bool,
    },
    /// Memory that went with its device, and of which there is no copy.
    #[error(
        "graph `{graph}`: the contents of `{tensor}` were lost with the device of `{backend}`; restore buffer `{buffer}` and write them again, or keep a shadow of it next time"
    )]
    StateLost {
        /// The graph.
        graph: Arc<str>,
        /// The tensor.
        tensor: Arc<str>,
        /// Its buffer.
        buffer: Arc<str>,
        /// The backend that it was on.
        backend: Arc<str>,
    },
    /// A run was cancelled, or could not go on after a pause.
    #[error("the run of graph `{graph}` was cancelled; its outputs are gone, and the next run starts over")]
    Cancelled {
        /// The graph.
        graph: Arc<str>,
    },
    /// A buffer whose bytes only its own backend understands.
    #[error("buffer `{buffer}` has a layout that only its backend can read; copy what its tensors were made from")]
    PrivateLayout {
        /// The buffer.
        buffer: Arc<str>,
    },
    /// A tensor at an address, or with strides, that no backend reads.
    #[error("tensor `{tensor}`, strides {strides}, at byte {offset_bytes}: {rule}")]
    BadAddress {
        /// The tensor.
        tensor: Arc<str>,
        /// Where it was to lie.
        offset_bytes: u64,
        /// Its strides.
        strides: Strides,
        /// What must hold.
        rule: &'static str,
    },
    /// A copy between tensors that do not lie in memory in the same way.
    #[error("`{from}` is {from_desc}, `{to}` is {to_desc}: a copy needs the same dtype, shape and strides; convert with a graph")]
    DifferentLayouts {
        /// What was to be copied.
        from: Arc<str>,
        /// How it lies.
        from_desc: TensorDesc,
        /// Where to.
        to: Arc<str>,
        /// How that lies.
        to_desc: TensorDesc,
    },
    /// Two graphs that are no copies of each other.
    #[error("node `{node}`: {rule}; compare a graph with its copy")]
    NotAlike {
        /// The first node that differs.
        node: Arc<str>,
        /// What must hold.
        rule: &'static str,
    },
    /// A run of another engine, or of a graph that is gone.
    #[error("there is no such run of graph `{graph}`")]
    UnknownRun {
        /// The graph.
        graph: Arc<str>,
    },
}

fn violation_list(violations: &[Violation]) -> String {
    violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl EngineError {
    /// Whether a device is lost, wherever that was noticed. [`crate::Engine::check_devices`] goes on without it, if that is not done
    /// already.
    #[must_use]
    pub fn is_device_lost(&self) -> bool {
        let lost = |source: &BackendError| matches!(source, BackendError::DeviceLost { .. });
        match self {
            Self::DeviceLost { .. } => true,
            Self::Backend { source, .. } => lost(source),
            Self::Plan { error, .. } => error.reported().is_some_and(lost),
            _ => false,
        }
    }

    /// A word that tools match on: a plan error's own kind, else the variant's name.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Registry(_) => "Registry",
            Self::Build(_) => "Build",
            Self::Plan { error, .. } => error.kind(),
            Self::Verify { .. } => "Verify",
            Self::Backend { .. } => "Backend",
            Self::Shape { .. } => "Shape",
            Self::NotInstalled => "NotInstalled",
            Self::Schedule(_) => "Schedule",
            Self::UnknownGraph => "UnknownGraph",
            Self::UnknownTensor => "UnknownTensor",
            Self::UnknownBuffer => "UnknownBuffer",
            Self::UnknownBackend { .. } => "UnknownBackend",
            Self::WrongDType { .. } => "WrongDType",
            Self::WrongLength { .. } => "WrongLength",
            Self::NotPacked { .. } => "NotPacked",
            Self::NotReadable { .. } => "NotReadable",
            Self::NotWritable { .. } => "NotWritable",
            Self::InputNotWritten { .. } => "InputNotWritten",
            Self::OutputGone { .. } => "OutputGone",
            Self::DeviceLost { .. } => "DeviceLost",
            Self::StateLost { .. } => "StateLost",
            Self::Cancelled { .. } => "Cancelled",
            Self::PrivateLayout { .. } => "PrivateLayout",
            Self::BadAddress { .. } => "BadAddress",
            Self::DifferentLayouts { .. } => "DifferentLayouts",
            Self::NotAlike { .. } => "NotAlike",
            Self::UnknownRun { .. } => "UnknownRun",
        }
    }
}
