//! The walk over a program: which bytes hold what, who may touch them, and in which order.

use std::{collections::HashMap, sync::Arc};

use entensor_components::{NodeDesc, OpKind, QueueKind, SplitView, TensorRef};

use super::{
    Given, Violation, backend_name,
    bytes::{Bytes, Content},
    queues::Clocks,
};
use crate::plan::{Held, Plan, PlanNode, Program, Step};

struct Walk<'a> {
    plan: &'a Plan,
    /// Where the planned roots lie in this slot: looked up in the plan's data, not through the planner's code.
    homes: HashMap<u32, (u32, u64)>,
    /// Where the copies of a node lie, by node and backend.
    copies: HashMap<(u32, u32), (u32, u64)>,
    memories: Vec<Bytes>,
    clocks: Clocks,
    /// Writes to each root so far.
    versions: Vec<u32>,
    /// Existing roots that no node writes: they may share bytes with each other, and hold what they hold.
    constant: Vec<bool>,
    /// Which scratch roots have been used.
    born: Vec<bool>,
    violations: &'a mut Vec<Violation>,
}

/// Walks one slot's program and reports what goes wrong.
pub(super) fn walk<'a>(
    plan: &'a Plan,
    program: &Program,
    slot: u32,
    given: &Given<'a>,
    violations: &mut Vec<Violation>,
) {
    let (mut homes, mut copies) = (HashMap::new(), HashMap::new());
    for allocation in &plan.allocations {
        let place = (allocation.buffer, allocation.offset_bytes);
        // What is the same in all slots exists in the first one only.
        match allocation.held {
            Held::Node(root) if allocation.slot == slot => drop(homes.insert(root, place)),
            Held::Node(root) => drop(homes.entry(root).or_insert(place)),
            Held::Copy(copy) => {
                let copy = plan.copies[copy as usize];
                if allocation.slot == slot {
                    copies.insert((copy.source, copy.backend), place);
                }
            }
        }
    }
    let mut walk = Walk {
        plan,
        homes,
        copies,
        memories: (0..plan.memory_count()).map(|_| Bytes::default()).collect(),
        clocks: Clocks::new(plan, program),
        versions: vec![0; plan.node_count()],
        constant: constant_roots(plan),
        born: vec![false; plan.node_count()],
        violations,
    };
    walk.place_existing();
    for (step, what) in program.steps.iter().enumerate() {
        match what {
            Step::Copy { copy, split, from, from_backend, to } => {
                walk.copy(step, *copy, plan.splits[*split as usize].backend, from, *from_backend, to);
            }
            Step::Launch { split } => walk.launch(step, *split, &*given(slot, *split as usize)),
            Step::Record { backend, event, queue } => {
                if !walk.clocks.record(step, *backend, *queue, *event) {
                    walk.violations.push(Violation::WrongEvent { step, event: *event });
                }
            }
            // Of the run before nothing is under way here; pairs of runs are looked at by themselves.
            Step::Wait { previous: true, .. } => {}
            Step::Wait { backend, event, of, queue, previous: false } => {
                if !walk.clocks.wait((*backend, *queue), *event, *of, false) {
                    walk.violations.push(Violation::WrongEvent { step, event: *event });
                }
            }
        }
    }
    walk.check_outputs();
}

/// Existing roots that no node writes.
fn constant_roots(plan: &Plan) -> Vec<bool> {
    let mut constant: Vec<bool> = plan.nodes().map(|n| n.existing.is_some()).collect();
    for node in plan.nodes().filter(|n| n.op.row().computes()) {
        constant[node.root as usize] = false;
    }
    constant
}

impl Walk<'_> {
    /// Where a root lies in this slot.
    fn home(&self, root: u32) -> Option<(u32, u64)> {
        if let Some((buffer, offset)) = self.plan.node(root as usize).existing {
            return Some((u32::try_from(self.plan.buffers.len()).ok()? + buffer, offset));
        }
        self.homes.get(&root).copied()
    }

    fn tag(&mut self, memory: u32, start: u64, bytes: u64, root: u32, version: u32, by: Option<(u32, usize)>) {
        self.memories[memory as usize].visit(start, start + bytes, |at, segment| {
            segment.content = Some(Content { root, version, root_byte: at - start });
            segment.writer = by;
            segment.readers.clear();
        });
    }

    /// Before the first step: existing memory and inputs hold their tensors.
    fn place_existing(&mut self) {
        let plan = self.plan;
        for node in plan.nodes() {
            let i = node.index;
            if node.root == i && (node.existing.is_some() || node.flags.input) {
                let Some((memory, offset)) = self.home(i) else {
                    self.violations.push(Violation::OutOfBounds { name: Arc::clone(node.name) });
                    continue;
                };
                self.tag(memory, offset, node.desc.size_bytes(), i, 0, None);
            }
        }
    }

    fn in_bounds(&mut self, name: &Arc<str>, tensor: &TensorRef) -> bool {
        let memory = tensor.memory.0 as usize;
        let size = match self.plan.buffers.get(memory) {
            Some(buffer) => Some(buffer.size_bytes),
            None => memory
                .checked_sub(self.plan.buffers.len())
                .and_then(|i| self.plan.existing.get(i))
                .map(|buffer| buffer.size_bytes),
        };
        let end = tensor.desc.span_bytes().and_then(|span| span.checked_add(tensor.offset_bytes));
        let fits = size.zip(end).is_some_and(|(size, end)| end <= size);
        if !fits {
            self.violations.push(Violation::OutOfBounds { name: Arc::clone(name) });
        }
        fits
    }

    /// Whether a backend can touch a memory of the run.
    fn usable(&self, backend: u32, memory: u32) -> bool {
        let Some(backend) = self.plan.backends.get(backend as usize) else { return false };
        let capabilities = backend.handle.capabilities();
        match self.plan.buffers.get(memory as usize) {
            Some(buffer) => {
                let kind = &self.plan.backends[buffer.backend as usize].handle.capabilities().memory;
                capabilities.reads.contains(kind)
            }
            None => {
                let buffer = self.plan.existing.get((memory as usize).wrapping_sub(self.plan.buffers.len()));
                buffer.is_some_and(|buffer| capabilities.can_use(&buffer.kind, buffer.opaque, &buffer.buffer_type))
            }
        }
    }

    /// A read must find the operand's bytes in the version that the order of creation gives it.
    fn check_read(&mut self, reader: &Arc<str>, operand: u32, tensor: &TensorRef, by: Option<(u32, usize)>) {
        let node = self.plan.node(operand as usize);
        let (root, version) = (node.root, self.versions[node.root as usize]);
        let first_byte = node.offset_bytes;
        if !self.in_bounds(node.name, tensor) {
            return;
        }
        let (start, end) = (tensor.offset_bytes, tensor.offset_bytes + tensor.desc.size_bytes());
        // Constant memory must be read where it is: then it holds what it holds.
        let home = self.home(root).map(|(memory, offset)| (memory, offset + first_byte));
        let constant = self.constant[root as usize] && home == Some((tensor.memory.0, start));
        let mut wrong = None;
        let mut unordered = None;
        let clocks = &self.clocks;
        self.memories[tensor.memory.0 as usize].visit(start, end, |at, segment| {
            let wanted = Content { root, version, root_byte: first_byte + (at - start) };
            if !constant && segment.content != Some(wanted) {
                wrong.get_or_insert(segment.content);
            }
            if let Some(by) = by {
                if let Some(writer) = segment.writer.filter(|&w| !clocks.knows(by.0, w)) {
                    unordered.get_or_insert(writer.0);
                }
                segment.read_by(by);
            }
        });
        if let Some(found) = wrong {
            let found = match found {
                None => "bytes that nobody wrote".into(),
                Some(c) => {
                    let name = self.plan.node(c.root as usize).name;
                    format!("byte {} of `{name}` after {} writes", c.root_byte, c.version)
                }
            };
            let (node, operand) = (Arc::clone(reader), Arc::clone(node.name));
            self.violations.push(Violation::WrongBytes { node, operand, found });
        }
        if let (Some(other), Some(by)) = (unordered, by) {
            self.unordered(by.1, reader, other);
        }
    }

    fn unordered(&mut self, step: usize, name: &Arc<str>, other: u32) {
        let other = backend_name(self.plan, self.clocks.backend_of(other));
        self.violations.push(Violation::Unordered { step, name: Arc::clone(name), other });
    }

    /// Everybody who touched the bytes must be finished before they are written.
    fn check_write(&mut self, name: &Arc<str>, tensor: &TensorRef, by: (u32, usize)) -> bool {
        if !self.in_bounds(name, tensor) {
            return false;
        }
        let (start, end) = (tensor.offset_bytes, tensor.offset_bytes + tensor.desc.size_bytes());
        let mut unordered = None;
        let clocks = &self.clocks;
        self.memories[tensor.memory.0 as usize].visit(start, end, |_, segment| {
            for &other in segment.writer.iter().chain(&segment.readers) {
                if !clocks.knows(by.0, other) {
                    unordered.get_or_insert(other.0);
                }
            }
        });
        if let Some(other) = unordered {
            self.unordered(by.1, name, other);
        }
        true
    }

    /// Where a tensor lies in its own memory in this slot.
    fn own_place(&self, node: u32) -> Option<(u32, u64)> {
        let tensor = self.plan.node(node as usize);
        self.home(tensor.root).map(|(memory, offset)| (memory, offset + tensor.offset_bytes))
    }

    /// What is read or written must be where it was allocated: aligned, padded and alive there.
    fn check_place(&mut self, by: &Arc<str>, node: u32, tensor: &TensorRef, allowed: [Option<(u32, u64)>; 2]) {
        let place = (tensor.memory.0, tensor.offset_bytes);
        if !allowed.contains(&Some(place)) {
            let (by, tensor) = (Arc::clone(by), Arc::clone(self.plan.node(node as usize).name));
            let (memory, offset_bytes) = place;
            self.violations.push(Violation::WrongPlace { node: by, tensor, memory, offset_bytes });
        }
    }

    /// A copy carries whatever its source holds; whether that was right shows when the copy is read.
    fn copy(&mut self, step: usize, copy: u32, backend: u32, from: &TensorRef, from_backend: u32, to: &TensorRef) {
        let source = self.plan.copies[copy as usize].source;
        let by = (self.clocks.queue(backend, QueueKind::Copy).unwrap_or(backend), step);
        let name = Arc::clone(self.plan.node(source as usize).name);
        self.birth(source);
        self.check_place(&name, source, from, [self.own_place(source), None]);
        self.check_place(&name, source, to, [self.copies.get(&(source, backend)).copied(), None]);
        self.check_read(&name, source, from, Some(by));
        let existing = (from.memory.0 as usize).checked_sub(self.plan.buffers.len());
        if let Some(buffer) = existing.and_then(|i| self.plan.existing.get(i)).filter(|buffer| buffer.opaque) {
            let (tensor, buffer) = (Arc::clone(&name), Arc::clone(&buffer.name));
            self.violations.push(Violation::OpaqueCopied { tensor, buffer });
        }
        for (backend, memory) in [(from_backend, from.memory.0), (backend, to.memory.0)] {
            if !self.usable(backend, memory) {
                let (node, backend) = (Arc::clone(&name), backend_name(self.plan, backend));
                self.violations.push(Violation::UnusableMemory { node, backend, memory });
            }
        }
        if from.desc != to.desc || !self.check_write(&name, to, by) {
            self.violations.push(Violation::WrongNode { node: name });
            return;
        }
        let mut contents = Vec::new();
        let (start, end) = (from.offset_bytes, from.offset_bytes + from.desc.size_bytes());
        self.memories[from.memory.0 as usize]
            .visit(start, end, |at, segment| contents.push((at - start, segment.end - start, segment.content)));
        for (s, e, content) in contents {
            self.memories[to.memory.0 as usize].visit(to.offset_bytes + s, to.offset_bytes + e, |at, segment| {
                segment.content = content.map(|c| Content { root_byte: c.root_byte + (at - to.offset_bytes - s), ..c });
                segment.writer = Some(by);
                segment.readers.clear();
            });
        }
        // Copies to synchronous backends are made by the host.
        if !self.plan.backends[backend as usize].handle.capabilities().asynchronous {
            self.clocks.finish(by.0, step);
        }
    }

    /// Scratch memory has no contents to lose: it is what it is from its first use, in its own memory.
    fn birth(&mut self, node: u32) {
        let index = self.plan.node(node as usize).root;
        let root = self.plan.node(index as usize);
        let is_scratch = root.existing.is_none() && !root.flags.input && root.op.kind() == OpKind::None;
        if !is_scratch || std::mem::replace(&mut self.born[index as usize], true) {
            return;
        }
        let Some((memory, start)) = self.home(index) else { return };
        self.memories[memory as usize].visit(start, start + root.desc.size_bytes(), |at, segment| {
            segment.content = Some(Content { root: index, version: 0, root_byte: at - start });
        });
    }

    fn launch(&mut self, step: usize, split: u32, view: &dyn SplitView) {
        let planned = &self.plan.splits[split as usize];
        let by = (planned.backend, step);
        let plan = self.plan;
        for (k, &index) in plan.split_nodes(planned).iter().enumerate() {
            let node = plan.node(index as usize);
            // What the backend was given, not what the walk would have given it.
            let Some(run) = (k < view.len()).then(|| view.node(k)) else {
                self.violations.push(Violation::WrongNode { node: Arc::clone(node.name) });
                continue;
            };
            let same = run.op == *node.op
                && run.output.desc == node.desc
                && run.operands.len() == node.sources.len()
                && run.operands.iter().zip(node.sources).all(|(o, &s)| o.desc == plan.node(s as usize).desc);
            if !same {
                self.violations.push(Violation::WrongNode { node: Arc::clone(node.name) });
                continue;
            }
            for tensor in run.operands.iter().chain([&run.output]) {
                if !self.usable(planned.backend, tensor.memory.0) {
                    let (node, backend) = (Arc::clone(node.name), backend_name(self.plan, planned.backend));
                    self.violations.push(Violation::UnusableMemory { node, backend, memory: tensor.memory.0 });
                }
            }
            self.check_overwriting(index, &run);
            for (operand, &source) in run.operands.iter().zip(node.sources) {
                self.birth(source);
                let copy = self.copies.get(&(source, planned.backend)).copied();
                self.check_place(node.name, source, operand, [self.own_place(source), copy]);
                self.check_read(node.name, source, operand, Some(by));
            }
            self.check_place(node.name, index, &run.output, [self.own_place(index), None]);
            if !self.check_write(node.name, &run.output, by) {
                continue;
            }
            self.write(index, &run.output, by);
        }
        if !self.plan.backends[planned.backend as usize].handle.capabilities().asynchronous {
            self.clocks.finish(planned.backend, step);
        }
    }

    /// A result may lie on an operand only where its op can be computed in place: the same elements at the same bytes. What
    /// shares a root shares memory because the graph says so.
    fn check_overwriting(&mut self, index: u32, run: &NodeDesc) {
        let node = self.plan.node(index as usize);
        let bytes = |t: &TensorRef| (t.offset_bytes, t.offset_bytes.saturating_add(t.desc.size_bytes()));
        let (start, end) = bytes(&run.output);
        for (k, (operand, &source)) in run.operands.iter().zip(node.sources).enumerate() {
            let (first, last) = bytes(operand);
            let meets = operand.memory == run.output.memory && first < end && start < last;
            let in_place = node.op.row().overwrites.contains(&k)
                && operand.desc == run.output.desc
                && operand.offset_bytes == run.output.offset_bytes;
            let source = self.plan.node(source as usize);
            if meets && !in_place && source.root != node.root {
                let (node, operand) = (Arc::clone(node.name), Arc::clone(source.name));
                self.violations.push(Violation::OverwritesOperand { node, operand });
            }
        }
    }

    fn write(&mut self, index: u32, output: &TensorRef, by: (u32, usize)) {
        let node = self.plan.node(index as usize);
        let root = node.root;
        let version = self.versions[root as usize];
        self.versions[root as usize] += 1;
        if root == index {
            self.tag(output.memory.0, output.offset_bytes, node.desc.size_bytes(), root, version + 1, Some(by));
            return;
        }
        // A writer makes the whole root newer, the bytes that it leaves alone too.
        let Some(start) = output.offset_bytes.checked_sub(node.offset_bytes) else { return };
        let end = start + self.plan.node(root as usize).desc.size_bytes();
        self.memories[output.memory.0 as usize].visit(start, end, |_, segment| {
            if let Some(content) = &mut segment.content
                && (content.root, content.version) == (root, version)
            {
                content.version += 1;
                segment.writer = Some(by);
                segment.readers.clear();
            }
        });
    }

    /// After the last step every output must still be there, and every input that the run does not consume: the next run may read it too.
    fn check_outputs(&mut self) {
        let plan = self.plan;
        let is_kept = |node: &PlanNode<'_>| node.flags.output || (node.flags.input && !node.flags.consumed);
        for node in plan.nodes().filter(is_kept) {
            let Some((memory, offset)) = self.home(node.root) else {
                self.violations.push(Violation::OutOfBounds { name: Arc::clone(node.name) });
                continue;
            };
            let tensor = TensorRef {
                desc: node.desc,
                memory: entensor_components::MemorySlot(memory),
                offset_bytes: offset + node.offset_bytes,
            };
            self.birth(node.index);
            self.check_read(&Arc::from("run"), node.index, &tensor, None);
        }
    }
}
