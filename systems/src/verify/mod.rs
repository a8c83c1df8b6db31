//! **verify**: proves a finished plan, sharing no code with the passes that made it.
//!
//! It takes the plan as data and asks again: does the backend say that it can run this, is the memory usable there, does every
//! read find exactly the bytes that its producer last wrote ([`memory`]), are buffers large enough, aligned and disjoint, and is
//! memory that passes from one queue to another ordered by events. It returns every violation, each with names.
//!
//! Cost: n·log n for the walk; runs in all tests, in debug builds, and on request in release.

mod bytes;
mod memory;
mod overlaps;

use std::sync::Arc;

use entensor_components::{OpDesc, TensorDesc};

use crate::plan::{Plan, Program, Step};

/// One thing that is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A node is on a backend that refuses it.
    #[error("`{node}` is on `{backend}`, which refuses it")]
    Unsupported {
        /// The node.
        node: Arc<str>,
        /// The backend.
        backend: Arc<str>,
    },
    /// A pin was not followed.
    #[error("`{node}` is pinned to backend {wanted}, but is on {found}")]
    PinIgnored {
        /// The node.
        node: Arc<str>,
        /// The pin.
        wanted: u32,
        /// The answer.
        found: u32,
    },
    /// A tensor with memory is on a backend that cannot use that memory.
    #[error("`{node}` is on `{backend}`, which cannot use its memory")]
    ImmovableMoved {
        /// The node.
        node: Arc<str>,
        /// The backend.
        backend: Arc<str>,
    },
    /// A view is not where its root is, or a result is not on its split's backend.
    #[error("`{node}` is on backend {found}, but belongs on {wanted}")]
    WrongBackend {
        /// The node.
        node: Arc<str>,
        /// Where it is.
        found: u32,
        /// Where it should be.
        wanted: u32,
    },
    /// Splits do not hold every computing node once, in order.
    #[error("`{node}` is missing from the splits, there twice, or out of order")]
    SplitOrder {
        /// The node.
        node: Arc<str>,
    },
    /// A split makes more copies than its backend takes.
    #[error("split {split} makes {inputs} copies, above the limit {max}")]
    TooManyInputs {
        /// The split.
        split: usize,
        /// Copies made.
        inputs: usize,
        /// The limit.
        max: u64,
    },
    /// A split is not launched once, in order, after its copies.
    #[error("step {step}: split or copy out of order")]
    StepOrder {
        /// The step.
        step: usize,
    },
    /// What the backend is given is not the node.
    #[error("`{node}`: what the backend runs is not what the plan says")]
    WrongNode {
        /// The node.
        node: Arc<str>,
    },
    /// A node reads or writes memory that its backend cannot use.
    #[error("`{node}` on `{backend}` touches memory {memory}, which that backend cannot use")]
    UnusableMemory {
        /// The node.
        node: Arc<str>,
        /// The backend.
        backend: Arc<str>,
        /// The memory.
        memory: u32,
    },
    /// A read does not find the bytes that were last written.
    #[error("`{node}` reads `{operand}` and finds {found}")]
    WrongBytes {
        /// The reader, or `run` for outputs at the end.
        node: Arc<str>,
        /// What it reads.
        operand: Arc<str>,
        /// What is there.
        found: String,
    },
    /// Two allocations that are alive in one step share bytes.
    #[error("`{first}` and `{second}` share bytes while both are alive")]
    Overlap {
        /// One.
        first: Arc<str>,
        /// The other.
        second: Arc<str>,
    },
    /// An allocation or tensor ends outside its memory.
    #[error("`{name}` ends outside its memory")]
    OutOfBounds {
        /// Whose.
        name: Arc<str>,
    },
    /// An allocation is not aligned as its backend asks.
    #[error("`{name}` at offset {offset_bytes} is not aligned to {align_bytes}")]
    Misaligned {
        /// Whose.
        name: Arc<str>,
        /// Where.
        offset_bytes: u64,
        /// The alignment.
        align_bytes: u64,
    },
    /// A buffer is larger than a backend that uses it allows.
    #[error("buffer {buffer} of {size_bytes} bytes is above the largest of `{backend}`")]
    BufferTooLarge {
        /// The buffer.
        buffer: usize,
        /// Its size.
        size_bytes: u64,
        /// The backend.
        backend: Arc<str>,
    },
    /// Memory passes from one queue to another without an event.
    #[error("step {step}: `{name}` touches bytes that the queue of `{other}` has not finished with")]
    Unordered {
        /// The step.
        step: usize,
        /// Who.
        name: Arc<str>,
        /// The other queue's backend.
        other: Arc<str>,
    },
}

/// Everything that is wrong with a plan.
///
/// # Errors
/// The violations, when there is at least one.
pub fn verify(plan: &Plan) -> Result<(), Vec<Violation>> {
    let mut violations = Vec::new();
    check_placement(plan, &mut violations);
    check_splits(plan, &mut violations);
    check_buffers(plan, &mut violations);
    overlaps::check(plan, &mut violations);
    for (slot, program) in plan.programs.iter().enumerate() {
        check_steps(plan, program, &mut violations);
        // The walk relies on splits and steps being well formed.
        if violations.is_empty() {
            memory::walk(plan, program, u32::try_from(slot).unwrap_or(0), &mut violations);
        }
    }
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

pub(crate) fn backend_name(plan: &Plan, backend: u32) -> Arc<str> {
    plan.backends.get(backend as usize).map_or_else(|| "?".into(), |b| Arc::clone(&b.name))
}

fn check_placement(plan: &Plan, violations: &mut Vec<Violation>) {
    for node in plan.nodes() {
        let row = node.op.row();
        let Some(backend) = plan.backends.get(node.backend as usize) else {
            violations.push(Violation::Unsupported { node: Arc::clone(node.name), backend: "?".into() });
            continue;
        };
        let capabilities = backend.handle.capabilities();
        let root = plan.node(node.root as usize);
        if row.computes() {
            let operands: Vec<TensorDesc> = node.sources.iter().map(|&s| plan.node(s as usize).desc).collect();
            let op = OpDesc { op: node.op, output: node.desc, operands: &operands };
            if !backend.handle.support(&op).is_yes() {
                let backend = Arc::clone(&backend.name);
                violations.push(Violation::Unsupported { node: Arc::clone(node.name), backend });
            }
        }
        if let Some(wanted) = node.pin
            && node.backend != wanted
        {
            violations.push(Violation::PinIgnored { node: Arc::clone(node.name), wanted, found: node.backend });
        }
        match root.existing {
            Some((buffer, _)) => {
                let buffer = &plan.existing[buffer as usize];
                if !capabilities.can_use(&buffer.kind, buffer.opaque, &buffer.buffer_type) {
                    let backend = Arc::clone(&backend.name);
                    violations.push(Violation::ImmovableMoved { node: Arc::clone(node.name), backend });
                }
            }
            None if (row.view || row.writes.is_some()) && node.backend != root.backend => {
                let (found, wanted) = (node.backend, root.backend);
                violations.push(Violation::WrongBackend { node: Arc::clone(node.name), found, wanted });
            }
            None => {}
        }
    }
}

fn check_splits(plan: &Plan, violations: &mut Vec<Violation>) {
    let mut expected = plan.nodes().filter(|n| n.op.row().computes()).map(|n| n.index);
    for (index, split) in plan.splits.iter().enumerate() {
        let max = plan.backends[split.backend as usize].handle.capabilities().max_inputs.unwrap_or(u64::MAX);
        if split.inputs.len() as u64 > max {
            violations.push(Violation::TooManyInputs { split: index, inputs: split.inputs.len(), max });
        }
        for &node in plan.split_nodes(split) {
            let name = || Arc::clone(plan.node(node as usize).name);
            if expected.next() != Some(node) {
                violations.push(Violation::SplitOrder { node: name() });
            }
            let found = plan.node(node as usize).backend;
            if found != split.backend {
                violations.push(Violation::WrongBackend { node: name(), found, wanted: split.backend });
            }
        }
    }
    if let Some(left) = expected.next() {
        violations.push(Violation::SplitOrder { node: Arc::clone(plan.node(left as usize).name) });
    }
}

fn check_buffers(plan: &Plan, violations: &mut Vec<Violation>) {
    for (index, buffer) in plan.buffers.iter().enumerate() {
        for backend in &plan.backends {
            let capabilities = backend.handle.capabilities();
            let owner = plan.backends.get(buffer.backend as usize).map(|owner| owner.handle.capabilities());
            let shares = capabilities.buffer_type == buffer.buffer_type
                && owner.is_some_and(|owner| owner.memory == capabilities.memory);
            if shares && buffer.size_bytes > capabilities.max_buffer_bytes {
                let backend = Arc::clone(&backend.name);
                violations.push(Violation::BufferTooLarge { buffer: index, size_bytes: buffer.size_bytes, backend });
            }
        }
    }
    for allocation in &plan.allocations {
        let name = || plan.allocation_name(allocation);
        let capabilities = plan.backends[allocation.backend as usize].handle.capabilities();
        let align_bytes = capabilities.align_bytes.max(1);
        let offset_bytes = allocation.offset_bytes;
        if !offset_bytes.is_multiple_of(align_bytes) {
            violations.push(Violation::Misaligned { name: name(), offset_bytes, align_bytes });
        }
        let end = offset_bytes.saturating_add(allocation.size_bytes);
        if plan.buffers.get(allocation.buffer as usize).is_none_or(|buffer| end > buffer.size_bytes) {
            violations.push(Violation::OutOfBounds { name: name() });
        }
    }
}

fn check_steps(plan: &Plan, program: &Program, violations: &mut Vec<Violation>) {
    let mut next_split = 0_u32;
    let mut copied: Vec<u32> = Vec::new();
    for (step, what) in program.steps.iter().enumerate() {
        match what {
            Step::Copy { copy, split, .. } => {
                if *split != next_split {
                    violations.push(Violation::StepOrder { step });
                }
                copied.push(*copy);
            }
            Step::Launch { split } => {
                let fits = *split == next_split
                    && plan.splits.get(*split as usize).is_some_and(|s| plan.split_inputs(s) == copied);
                if !fits {
                    violations.push(Violation::StepOrder { step });
                }
                copied.clear();
                next_split += 1;
            }
            Step::Record { .. } | Step::Wait { .. } => {}
        }
    }
    if next_split as usize != plan.splits.len() || program.prepared.len() != plan.splits.len() {
        violations.push(Violation::StepOrder { step: program.steps.len() });
    }
}
