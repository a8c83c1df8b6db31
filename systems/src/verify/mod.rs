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
mod pipeline;
mod queues;
mod violation;

use std::sync::Arc;

use entensor_components::{OpDesc, SplitDesc, SplitView, TensorDesc};

pub use violation::Violation;

use crate::plan::{Held, Plan, PlanBackend, PlanExisting, Program, Step};

/// Everything that is wrong with a plan.
///
/// # Errors
/// The violations, when there is at least one.
pub fn verify(plan: &Plan) -> Result<(), Vec<Violation>> {
    let given =
        |slot: u32, split: usize| -> Box<dyn SplitView + '_> { Box::new(plan.split_view(&plan.splits[split], slot)) };
    check(plan, &given)
}

/// The same for splits that backends were given in another way than by [`Plan::split_view`]: per slot, each split written out.
///
/// # Errors
/// The violations, when there is at least one.
pub fn verify_given(plan: &Plan, given: &[Vec<SplitDesc>]) -> Result<(), Vec<Violation>> {
    let given = |slot: u32, split: usize| -> Box<dyn SplitView + '_> {
        let written = given.get(slot as usize).and_then(|splits| splits.get(split));
        Box::new(written.cloned().unwrap_or_default())
    };
    check(plan, &given)
}

/// What a backend was given: slot, split.
type Given<'a> = dyn Fn(u32, usize) -> Box<dyn SplitView + 'a> + 'a;

fn check<'a>(plan: &'a Plan, given: &Given<'a>) -> Result<(), Vec<Violation>> {
    let mut violations = Vec::new();
    check_placement(plan, &mut violations);
    check_splits(plan, &mut violations);
    check_buffers(plan, &mut violations);
    check_slots(plan, &mut violations);
    overlaps::check(plan, &mut violations);
    for (slot, program) in plan.programs.iter().enumerate() {
        check_steps(plan, program, &mut violations);
        // The walk relies on splits and steps being well formed.
        if violations.is_empty() {
            memory::walk(plan, program, u32::try_from(slot).unwrap_or(0), given, &mut violations);
        }
    }
    let under_way = plan.backends.iter().any(|backend| backend.handle.capabilities().asynchronous);
    for slot in 0..if under_way && plan.programs.len() > 1 { plan.programs.len() } else { 0 } {
        if violations.is_empty() {
            pipeline::walk(plan, slot, given, &mut violations);
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
            let reads = |(index, &source): (usize, &u32)| {
                let operand = plan.node(source as usize);
                let private =
                    plan.node(operand.root as usize).existing.map(|(buffer, _)| &plan.existing[buffer as usize]);
                // Who cannot use the memory at all reads a copy, and the walk finds what is wrong with that.
                let can_use = |buffer: &&PlanExisting| {
                    backend.handle.capabilities().can_use(&buffer.kind, true, &buffer.buffer_type)
                };
                private.filter(|buffer| buffer.opaque).filter(can_use).is_none_or(|buffer| {
                    let is_whole = operand.root == source;
                    backend.handle.reads_opaque(&op, index, is_whole, &buffer.buffer_type).is_yes()
                })
            };
            if !backend.handle.support(&op).is_yes() || !node.sources.iter().enumerate().all(reads) {
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

/// Backends that use a buffer as their own: those of its type and memory.
fn sharers(plan: &Plan, buffer: usize) -> impl Iterator<Item = &PlanBackend> {
    let owner = plan.buffers.get(buffer).and_then(|buffer| plan.backends.get(buffer.backend as usize));
    let owner = owner.map(|owner| owner.handle.capabilities());
    let shares = move |backend: &&PlanBackend| {
        let capabilities = backend.handle.capabilities();
        owner.is_some_and(|owner| {
            owner.memory == capabilities.memory && plan.buffers[buffer].buffer_type == capabilities.buffer_type
        })
    };
    plan.backends.iter().filter(shares)
}

fn check_buffers(plan: &Plan, violations: &mut Vec<Violation>) {
    let mut align = vec![1; plan.buffers.len()];
    for (index, buffer) in plan.buffers.iter().enumerate() {
        for backend in sharers(plan, index) {
            let capabilities = backend.handle.capabilities();
            align[index] = capabilities.align_bytes.max(align[index]);
            if buffer.size_bytes > capabilities.max_buffer_bytes {
                let backend = Arc::clone(&backend.name);
                violations.push(Violation::BufferTooLarge { buffer: index, size_bytes: buffer.size_bytes, backend });
            }
        }
    }
    for allocation in &plan.allocations {
        let name = || plan.allocation_name(allocation);
        let backend = &plan.backends[allocation.backend as usize].handle;
        let shared = align.get(allocation.buffer as usize).copied().unwrap_or(1);
        let align_bytes = backend.capabilities().align_bytes.max(shared).max(1);
        let (offset_bytes, size_bytes) = (allocation.offset_bytes, allocation.size_bytes);
        if !offset_bytes.is_multiple_of(align_bytes) {
            violations.push(Violation::Misaligned { name: name(), offset_bytes, align_bytes });
        }
        let end = offset_bytes.saturating_add(size_bytes);
        if plan.buffers.get(allocation.buffer as usize).is_none_or(|buffer| end > buffer.size_bytes) {
            violations.push(Violation::OutOfBounds { name: name() });
        }
        let node = match allocation.held {
            Held::Node(node) => node,
            Held::Copy(copy) => plan.copies[copy as usize].source,
        };
        let needed_bytes = backend.allocation_bytes(&plan.node(node as usize).desc);
        if size_bytes < needed_bytes {
            violations.push(Violation::TooSmall { name: name(), size_bytes, needed_bytes });
        }
    }
}

/// What several runs at once would share: inputs, outputs and copies have memory in every slot.
fn check_slots(plan: &Plan, violations: &mut Vec<Violation>) {
    let mut kept = vec![false; plan.node_count()];
    for node in plan.nodes() {
        kept[node.root as usize] |= node.flags.output;
    }
    let slots = plan.programs.len();
    let mut nodes = vec![0; plan.node_count()];
    let mut copies = vec![0; plan.copies.len()];
    for allocation in plan.allocations.iter().filter(|allocation| (allocation.slot as usize) < slots) {
        match allocation.held {
            Held::Node(node) => nodes[node as usize] += 1,
            Held::Copy(copy) => copies[copy as usize] += 1,
        }
    }
    let mut expect = |found: usize, slots: usize, node: usize| {
        if found < slots {
            let slot = u32::try_from(found).unwrap_or(u32::MAX);
            violations.push(Violation::MissingSlot { name: Arc::clone(plan.node(node).name), slot });
        }
    };
    for (i, node) in plan.nodes().enumerate() {
        let planned = node.root as usize == i && node.existing.is_none();
        if planned {
            let slots = if node.flags.input || kept[i] { slots } else { 1 };
            expect(nodes[i], slots, i);
        }
    }
    for (copy, &found) in plan.copies.iter().zip(&copies) {
        expect(found, slots, copy.source as usize);
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
