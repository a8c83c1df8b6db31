//! A graph as ggml gets it, taken from a plan of ours: the same nodes in the same order. The one place here that knows what
//! plans look like.

use std::sync::Arc;

use entensor::{
    Op, Plan, TensorDesc, Usage,
    components::{Backend, OpKind},
    systems::PlanNode,
};

/// A leaf or node.
pub(crate) struct Described {
    pub(crate) op: Op,
    pub(crate) desc: TensorDesc,
    pub(crate) sources: Vec<u32>,
    pub(crate) is_input: bool,
    pub(crate) is_output: bool,
    /// Where the user wants it.
    pub(crate) pin: Option<usize>,
    /// Where the plan has it.
    pub(crate) backend: usize,
    /// For leaves with memory: whose buffer type it is of, and which.
    pub(crate) memory: Option<Memory>,
    /// Bytes from the first element of its root.
    pub(crate) offset_bytes: u64,
}

/// The buffer of a leaf.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) backend: usize,
    pub(crate) opaque: bool,
    pub(crate) is_weights: bool,
}

impl Described {
    pub(crate) fn is_leaf(&self) -> bool {
        self.op.kind() == OpKind::None
    }
}

/// What a plan was made for, leaves first. `None` when it uses memory that no backend of it has.
pub(crate) fn describe(plan: &Plan) -> Option<Vec<Described>> {
    let backends: Vec<&Arc<dyn Backend>> = plan.backends.iter().map(|b| &b.handle).collect();
    let memory_of = |buffer: u32| {
        let buffer = &plan.existing[buffer as usize];
        let in_memory = |b: &&Arc<dyn Backend>| b.capabilities().memory == buffer.kind;
        let is_home = |b: &&Arc<dyn Backend>| in_memory(b) && b.capabilities().buffer_type == buffer.buffer_type;
        let backend = backends.iter().position(is_home).or_else(|| backends.iter().position(in_memory))?;
        Some(Memory { backend, opaque: buffer.opaque, is_weights: buffer.usage == Usage::Weights })
    };
    let describe = |node: PlanNode<'_>| {
        let memory = match node.existing {
            Some((buffer, _)) => Some(memory_of(buffer)?),
            None => None,
        };
        Some(Described {
            op: node.op.clone(),
            desc: node.desc,
            sources: node.sources.to_vec(),
            is_input: node.flags.input,
            is_output: node.flags.output,
            pin: node.pin.map(|pin| pin as usize),
            backend: node.backend as usize,
            memory,
            offset_bytes: node.offset_bytes,
        })
    };
    plan.nodes().map(describe).collect()
}
