//! What was gathered, copied for whoever looks.

use std::sync::Arc;

use bevy_ecs::prelude::Entity;

use super::{Figures, Recorder};

/// A split of a graph's plan.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitProfile {
    /// The backend that runs it.
    pub backend: Arc<str>,
    /// How many nodes it computes.
    pub nodes: u64,
    /// From its start to its end; with pauses left out. On an asynchronous backend from its submission until it is known to be done.
    pub figures: Figures,
}

/// A copy between backends that a run makes.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyProfile {
    /// The node that is copied.
    pub node: Arc<str>,
    /// The backend that it is copied for.
    pub to: Arc<str>,
    /// Its size.
    pub size_bytes: u64,
    /// As of splits.
    pub figures: Figures,
}

/// An op on operands of certain dtypes and shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct OpProfile {
    /// The op with its parameters, its result, and its operands: dtypes, and dims with the fastest axis first.
    pub text: String,
    /// How many nodes of the graph do this.
    pub nodes: u64,
    /// All of them together. Backends may compute several nodes at once; the time is then that of one of them.
    pub figures: Figures,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeProfile {
    /// Its name.
    pub node: Arc<str>,
    /// What it does: an index into [`GraphProfile::ops`].
    pub op: u32,
    /// How often it was timed.
    pub count: u64,
    /// Sum in nanoseconds.
    pub total_ns: u64,
    /// The longest time.
    pub max_ns: u64,
}

/// What is known of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphProfile {
    /// The graph.
    pub graph: Entity,
    /// Its name.
    pub name: Arc<str>,
    /// Whole runs, from submission until they were known to be over, pauses included.
    pub runs: Figures,
    /// In the order of the plan: the first 1024, where the last stands for all behind it, too.
    pub splits: Vec<SplitProfile>,
    /// As of splits.
    pub copies: Vec<CopyProfile>,
    /// In the order in which they first come up. Only of backends that tell how long their steps take.
    pub ops: Vec<OpProfile>,
    /// Every node that computes, in order.
    pub nodes: Vec<NodeProfile>,
}

impl Recorder {
    pub(super) fn report(&self, graph: Entity) -> GraphProfile {
        let record = &*self.lock();
        let splits = record.splits.iter().map(|(backend, nodes, timing)| SplitProfile {
            backend: Arc::clone(backend),
            nodes: *nodes,
            figures: timing.figures(),
        });
        let copies = record.copies.iter().map(|(node, to, size_bytes, timing)| CopyProfile {
            node: Arc::clone(node),
            to: Arc::clone(to),
            size_bytes: *size_bytes,
            figures: timing.figures(),
        });
        let ops = record.kinds.iter().map(|kind| OpProfile {
            text: kind.text.clone(),
            nodes: kind.nodes,
            figures: kind.timing.figures(),
        });
        let nodes = record.nodes.iter().map(|(node, op, times)| NodeProfile {
            node: Arc::clone(node),
            op: *op,
            count: times.count,
            total_ns: times.total_ns,
            max_ns: times.max_ns,
        });
        GraphProfile {
            graph,
            name: Arc::clone(&self.name),
            runs: record.runs.figures(),
            splits: splits.collect(),
            copies: copies.collect(),
            ops: ops.collect(),
            nodes: nodes.collect(),
        }
    }
}
