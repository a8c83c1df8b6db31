//! Why a graph cannot be planned or run: structured, with the node, the op, the shapes, the backend and the remedy.

use std::{borrow::Cow, sync::Arc};

use entensor_components::{BackendError, OpError, ShapeError, TensorDesc};

/// A backend's refusal of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The backend.
    pub backend: Arc<str>,
    /// Its reason.
    pub reason: Cow<'static, str>,
}

/// A tensor that is alive at the step where memory peaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveTensor {
    /// Its name.
    pub name: Arc<str>,
    /// Its bytes, padding included.
    pub size_bytes: u64,
}

/// Why a pass failed. The graph's later passes are skipped; other graphs go on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// There is no backend at all.
    #[error("there is no backend; add one, the last of them on host memory")]
    NoBackends,
    /// The last backend is not on host memory.
    #[error("the last backend, `{backend}`, is on {kind} memory; the last must be on host memory")]
    LastNotHost {
        /// The backend.
        backend: Arc<str>,
        /// Its memory.
        kind: Arc<str>,
    },
    /// The entity to plan is no graph, or is gone.
    #[error("the graph does not exist (any more); add it again")]
    UnknownGraph,
    /// A tensor of the graph was despawned or lacks components.
    #[error(
        "tensor {position} of the graph was despawned, or lacks a component of `TensorBundle`; build the graph again"
    )]
    MissingTensor {
        /// Its place in the graph.
        position: usize,
    },
    /// An operand was despawned.
    #[error("node `{node}`: operand {operand} was despawned; build the graph again")]
    MissingSource {
        /// The node.
        node: Arc<str>,
        /// Which operand.
        operand: usize,
    },
    /// An operand is defined after its user, or depends on it.
    #[error("node `{node}`: operand `{source_name}` is defined after it (or is itself); operands come first")]
    SourceAfterUse {
        /// The node.
        node: Arc<str>,
        /// The operand.
        source_name: Arc<str>,
    },
    /// An operand belongs to another graph and is not memory that graphs may share.
    #[error(
        "node `{node}`: operand `{source_name}` is of another graph; graphs share only leaves that belong to none (`InGraph(None)`) and have memory, are inputs or are pinned"
    )]
    ForeignSource {
        /// The node.
        node: Arc<str>,
        /// The operand.
        source_name: Arc<str>,
    },
    /// A wanted tensor is not in the graph.
    #[error("wanted tensor {position} is not in the graph; want tensors that the graph makes")]
    UnknownWanted {
        /// Its place in the list of wanted tensors.
        position: usize,
    },
    /// Dtypes, shapes, strides or the view of a node are not what its op makes of its operands.
    #[error("node `{node}` is declared as {declared}, but its op makes {derived}; insert a description that fits")]
    Inconsistent {
        /// The node.
        node: Arc<str>,
        /// What its components say.
        declared: Box<TensorDesc>,
        /// What the op's rule says.
        derived: Box<TensorDesc>,
    },
    /// A view names the wrong root or offset.
    #[error("node `{node}`: its `ViewSrc` is not the root and offset that its op gives; insert those")]
    WrongView {
        /// The node.
        node: Arc<str>,
    },
    /// A computed tensor is marked as one that the user writes.
    #[error(
        "node `{node}` ({op}) is computed, so it cannot be an input; read an input leaf instead, or take the flag away"
    )]
    ComputedInput {
        /// The node.
        node: Arc<str>,
        /// Its op.
        op: &'static str,
    },
    /// A leaf's description is none that a tensor can have.
    #[error("tensor `{tensor}`: {source}")]
    Shape {
        /// The tensor.
        tensor: Arc<str>,
        /// Why not.
        source: ShapeError,
    },
    /// The op cannot be applied to its operands.
    #[error("node `{node}`: {source}")]
    Op {
        /// The node.
        node: Arc<str>,
        /// Why.
        source: OpError,
    },
    /// A tensor's memory ends outside its buffer.
    #[error(
        "tensor `{tensor}` needs bytes {offset_bytes}..{end_bytes} of buffer `{buffer}`, which has {size_bytes}; use a smaller offset or a larger buffer"
    )]
    OutsideBuffer {
        /// The tensor.
        tensor: Arc<str>,
        /// The buffer.
        buffer: Arc<str>,
        /// Where it starts.
        offset_bytes: u64,
        /// Where it would end.
        end_bytes: u64,
        /// The buffer's size.
        size_bytes: u64,
    },
    /// A tensor names a buffer that is gone.
    #[error("tensor `{tensor}` lies in a buffer that was despawned; load it again")]
    MissingBuffer {
        /// The tensor.
        tensor: Arc<str>,
    },
    /// A pin names a backend that does not exist.
    #[error(
        "tensor `{tensor}` is pinned to backend {index}, but backends count from 0 to {}; pin it to one of these, or unpin it",
        .count.saturating_sub(1)
    )]
    PinUnknown {
        /// The tensor.
        tensor: Arc<str>,
        /// The backend's index.
        index: u32,
        /// How many backends there are.
        count: usize,
    },
    /// A pin on a backend that cannot run the op.
    #[error(
        "node `{node}` ({op}) is pinned to `{backend}`, which cannot run it: {reason}; unpin it or pin it elsewhere"
    )]
    PinUnsupported {
        /// The node.
        node: Arc<str>,
        /// Its op.
        op: &'static str,
        /// The backend.
        backend: Arc<str>,
        /// Why not.
        reason: Cow<'static, str>,
    },
    /// Two wishes, or a wish and existing memory, that cannot both hold.
    #[error("tensor `{tensor}` is pinned to `{backend}`, but {conflict}; remove one of the pins or move the memory")]
    PinConflict {
        /// The tensor.
        tensor: Arc<str>,
        /// The backend of the pin.
        backend: Arc<str>,
        /// What stands against it.
        conflict: String,
    },
    /// Existing memory that no backend able to run the op can use.
    #[error(
        "node `{node}` ({op}) works on `{tensor}`, which lies in buffer `{buffer}`, and no backend can both use that memory and run it; {}; put the buffer where the op runs, or use an op that runs there",
        refusal_list(.refusals)
    )]
    Immovable {
        /// The node.
        node: Arc<str>,
        /// Its op.
        op: &'static str,
        /// The tensor with memory.
        tensor: Arc<str>,
        /// Its buffer.
        buffer: Arc<str>,
        /// Why each backend cannot.
        refusals: Vec<Refusal>,
    },
    /// Memory of a device that the engine was not given.
    #[error(
        "tensor `{tensor}` lies in buffer `{buffer}` on `{device}` memory, which no backend here can use; add that backend"
    )]
    UnknownDevice {
        /// The tensor.
        tensor: Arc<str>,
        /// Its buffer.
        buffer: Arc<str>,
        /// The memory kind.
        device: Arc<str>,
    },
    /// No backend can run a node.
    #[error("node `{node}` ({op} → {output}) can run nowhere: {}; add a backend that can, or use other ops", refusal_list(.refusals))]
    NoBackend {
        /// The node.
        node: Arc<str>,
        /// Its op.
        op: &'static str,
        /// Its result.
        output: Box<TensorDesc>,
        /// Why each backend cannot.
        refusals: Vec<Refusal>,
    },
    /// One node needs more copies than its backend takes in a split.
    #[error(
        "node `{node}` needs {inputs} copies on `{backend}`, which takes at most {max} in a split; pin it elsewhere"
    )]
    TooManyInputs {
        /// The node.
        node: Arc<str>,
        /// The backend.
        backend: Arc<str>,
        /// Copies needed.
        inputs: u64,
        /// Copies taken.
        max: u64,
    },
    /// A tensor does not fit into the largest buffer of its backend.
    #[error(
        "tensor `{tensor}` takes {size_bytes} bytes, above the largest buffer of `{backend}`, {max_bytes}; make it smaller or pin it elsewhere"
    )]
    TensorTooLarge {
        /// The tensor.
        tensor: Arc<str>,
        /// Its bytes, padding included.
        size_bytes: u64,
        /// The backend.
        backend: Arc<str>,
        /// Its largest buffer.
        max_bytes: u64,
    },
    /// Two tensors with memory share bytes, and the graph writes one of them.
    #[error("`{written}` is written, and `{other}` shares bytes of its memory; make one a view of the other")]
    OverlappingMemory {
        /// The tensor that is written.
        written: Arc<str>,
        /// The other.
        other: Arc<str>,
    },
    /// All tensors together take more bytes than can be counted.
    #[error(
        "the planned tensors take {size_bytes} bytes or more, above what any machine has; use smaller shapes or fewer copies"
    )]
    TooMuchMemory {
        /// The sum, as far as it was counted.
        size_bytes: u64,
    },
    /// So many pipelined slots of so many tensors and steps that the plan itself would fill the memory.
    #[error(
        "{copies} pipelined slots of {per_slot} tensors, copies and steps each are more than a plan holds, {most} in all; use fewer copies"
    )]
    TooManyCopies {
        /// Slots asked for.
        copies: u32,
        /// What each of them has of its own.
        per_slot: u64,
        /// The most of all slots together.
        most: u64,
    },
    /// A plan was run without the memories that it needs.
    #[error("the plan needs {needed} memories, but is bound to {bound}; plan the graph again")]
    Unbound {
        /// Memories of the plan.
        needed: usize,
        /// Memories given.
        bound: usize,
    },
    /// Planned memory could not be allocated.
    #[error("{size_bytes} bytes on `{backend}`: {source}; largest at the peak: {}", live_list(.largest))]
    Allocation {
        /// The backend.
        backend: Arc<str>,
        /// The buffer's size.
        size_bytes: u64,
        /// The largest tensors alive at the peak.
        largest: Vec<LiveTensor>,
        /// What the backend reports.
        source: BackendError,
    },
    /// A backend could not make a split ready.
    #[error("split {split} on `{backend}` could not be prepared: {source}")]
    Prepare {
        /// The split.
        split: usize,
        /// The backend.
        backend: Arc<str>,
        /// What the backend reports.
        source: BackendError,
    },
    /// A node has been left without a backend by a system between the passes.
    #[error(
        "node `{node}` has no backend after the placement passes; a system between them removed it, so order it elsewhere"
    )]
    Unplaced {
        /// The node.
        node: Arc<str>,
    },
    /// A system between the passes placed a node where it cannot run.
    #[error("node `{node}` was moved to `{backend}`, which cannot run it: {reason}")]
    Misplaced {
        /// The node.
        node: Arc<str>,
        /// The backend.
        backend: Arc<str>,
        /// Why not.
        reason: Cow<'static, str>,
    },
    /// A step of a run failed.
    #[error("step {step} ({what}) on `{backend}` failed: {source}")]
    Run {
        /// The step.
        step: usize,
        /// The step in words.
        what: String,
        /// The backend.
        backend: Arc<str>,
        /// What the backend reports.
        source: BackendError,
    },
}

fn refusal_list(refusals: &[Refusal]) -> String {
    refusals.iter().map(|r| format!("{}: {}", r.backend, r.reason)).collect::<Vec<_>>().join("; ")
}

fn live_list(tensors: &[LiveTensor]) -> String {
    tensors.iter().map(|t| format!("{} ({} bytes)", t.name, t.size_bytes)).collect::<Vec<_>>().join(", ")
}

impl PlanError {
    /// The variant's name: what tools match on.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NoBackends => "NoBackends",
            Self::LastNotHost { .. } => "LastNotHost",
            Self::UnknownGraph => "UnknownGraph",
            Self::MissingTensor { .. } => "MissingTensor",
            Self::MissingSource { .. } => "MissingSource",
            Self::SourceAfterUse { .. } => "SourceAfterUse",
            Self::ForeignSource { .. } => "ForeignSource",
            Self::UnknownWanted { .. } => "UnknownWanted",
            Self::Inconsistent { .. } => "Inconsistent",
            Self::WrongView { .. } => "WrongView",
            Self::ComputedInput { .. } => "ComputedInput",
            Self::Shape { .. } => "Shape",
            Self::Op { .. } => "Op",
            Self::OutsideBuffer { .. } => "OutsideBuffer",
            Self::MissingBuffer { .. } => "MissingBuffer",
            Self::PinUnknown { .. } => "PinUnknown",
            Self::PinUnsupported { .. } => "PinUnsupported",
            Self::PinConflict { .. } => "PinConflict",
            Self::Immovable { .. } => "Immovable",
            Self::UnknownDevice { .. } => "UnknownDevice",
            Self::NoBackend { .. } => "NoBackend",
            Self::TooManyInputs { .. } => "TooManyInputs",
            Self::TensorTooLarge { .. } => "TensorTooLarge",
            Self::OverlappingMemory { .. } => "OverlappingMemory",
            Self::TooMuchMemory { .. } => "TooMuchMemory",
            Self::TooManyCopies { .. } => "TooManyCopies",
            Self::Unbound { .. } => "Unbound",
            Self::Allocation { .. } => "Allocation",
            Self::Prepare { .. } => "Prepare",
            Self::Unplaced { .. } => "Unplaced",
            Self::Misplaced { .. } => "Misplaced",
            Self::Run { .. } => "Run",
        }
    }

    /// Whether memory ran out: with less to hold, it might do.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(
            self,
            Self::Allocation { source: BackendError::OutOfMemory { .. }, .. }
                | Self::Prepare { source: BackendError::OutOfMemory { .. }, .. }
        )
    }

    /// What a backend reported, if one did.
    #[must_use]
    pub fn reported(&self) -> Option<&BackendError> {
        match self {
            Self::Allocation { source, .. } | Self::Prepare { source, .. } | Self::Run { source, .. } => Some(source),
            _ => None,
        }
    }

    /// The node or tensor the error is about, if it is about one.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::MissingSource { node, .. }
            | Self::SourceAfterUse { node, .. }
            | Self::ForeignSource { node, .. }
            | Self::Inconsistent { node, .. }
            | Self::WrongView { node }
            | Self::ComputedInput { node, .. }
            | Self::Op { node, .. }
            | Self::PinUnsupported { node, .. }
            | Self::Immovable { node, .. }
            | Self::NoBackend { node, .. }
            | Self::TooManyInputs { node, .. }
            | Self::Unplaced { node }
            | Self::Misplaced { node, .. } => Some(node),
            Self::Shape { tensor, .. }
            | Self::OutsideBuffer { tensor, .. }
            | Self::MissingBuffer { tensor }
            | Self::PinUnknown { tensor, .. }
            | Self::PinConflict { tensor, .. }
            | Self::UnknownDevice { tensor, .. }
            | Self::OverlappingMemory { written: tensor, .. }
            | Self::TensorTooLarge { tensor, .. } => Some(tensor),
            _ => None,
        }
    }

    /// The backend the error is about, if it is about one.
    #[must_use]
    pub fn backend(&self) -> Option<&str> {
        match self {
            Self::LastNotHost { backend, .. }
            | Self::PinUnsupported { backend, .. }
            | Self::PinConflict { backend, .. }
            | Self::TooManyInputs { backend, .. }
            | Self::TensorTooLarge { backend, .. }
            | Self::Allocation { backend, .. }
            | Self::Prepare { backend, .. }
            | Self::Misplaced { backend, .. }
            | Self::Run { backend, .. } => Some(backend),
            _ => None,
        }
    }
}
