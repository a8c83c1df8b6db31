//! Two runs under way at once, in neighbouring slots: what they share must pass from one to the other over events.

use std::sync::Arc;

use entensor_components::{QueueKind, TensorRef};

use super::{Given, Violation, backend_name, bytes::Bytes, queues::Clocks};
use crate::plan::{Plan, Program, Step};

/// Walks the program of a slot, and then that of the next one as if the first were not over.
pub(super) fn walk<'a>(plan: &'a Plan, slot: usize, given: &Given<'a>, violations: &mut Vec<Violation>) {
    let next = (slot + 1) % plan.programs.len();
    let mut pair = Pair {
        plan,
        memories: (0..plan.memory_count()).map(|_| Bytes::default()).collect(),
        clocks: Clocks::new(plan, &plan.programs[slot]),
        unordered: Vec::new(),
    };
    pair.run(&plan.programs[slot], slot, 0, given, &mut Vec::new());
    // Within one run the other walk looks.
    pair.unordered.clear();
    pair.clocks.next_run(&plan.programs[next]);
    pair.run(&plan.programs[next], next, plan.programs[slot].steps.len(), given, violations);
    for (step, name, queue) in std::mem::take(&mut pair.unordered) {
        let other = backend_name(plan, pair.clocks.backend_of(queue));
        violations.push(Violation::Unordered { step, name, other });
    }
}

struct Pair<'a> {
    plan: &'a Plan,
    memories: Vec<Bytes>,
    clocks: Clocks,
    unordered: Vec<(usize, Arc<str>, u32)>,
}

impl<'a> Pair<'a> {
    fn run(
        &mut self,
        program: &Program,
        slot: usize,
        before: usize,
        given: &Given<'a>,
        violations: &mut Vec<Violation>,
    ) {
        for (step, what) in program.steps.iter().enumerate() {
            let at = before + step;
            let behind = program.behind.get(step).filter(|_| before > 0).map_or(0, |&behind| behind as usize);
            match what {
                Step::Copy { copy, split, from, to, .. } => {
                    let backend = self.plan.splits[*split as usize].backend;
                    let queue = self.clocks.queue(backend, QueueKind::Copy).unwrap_or(backend);
                    self.clocks.stay_behind(queue, behind);
                    let name = Arc::clone(&self.plan.table.names[self.plan.copies[*copy as usize].source as usize]);
                    self.touch(&name, from, false, (queue, at));
                    self.touch(&name, to, true, (queue, at));
                    self.finish(backend, queue, at);
                }
                Step::Launch { split } => {
                    let backend = self.plan.splits[*split as usize].backend;
                    self.clocks.stay_behind(backend, behind);
                    let view = given(u32::try_from(slot).unwrap_or(0), *split as usize);
                    for node in (0..view.len()).map(|index| view.node(index)) {
                        node.operands.iter().for_each(|operand| self.touch(&node.name, operand, false, (backend, at)));
                        self.touch(&node.name, &node.output, true, (backend, at));
                    }
                    self.finish(backend, backend, at);
                }
                Step::Record { backend, event, queue } => {
                    self.clocks.record(at, *backend, *queue, *event);
                }
                Step::Wait { backend, event, of, queue, previous } => {
                    // The first run of all has none before it.
                    let known = self.clocks.wait((*backend, *queue), *event, *of, *previous);
                    if !known && (before > 0 || !previous) {
                        violations.push(Violation::WrongEvent { step, event: *event });
                    }
                }
            }
        }
    }

    /// Submits a step; what a synchronous backend has done is over for everybody in the run.
    fn finish(&mut self, backend: u32, queue: u32, step: usize) {
        self.clocks.submit(queue, step);
        if !self.plan.backends[backend as usize].handle.capabilities().asynchronous {
            self.clocks.finish(queue, step);
        }
    }

    fn touch(&mut self, name: &Arc<str>, tensor: &TensorRef, write: bool, by: (u32, usize)) {
        let Self { memories, clocks, unordered, .. } = self;
        let Some(memory) = memories.get_mut(tensor.memory.0 as usize) else { return };
        let end = tensor.offset_bytes.saturating_add(tensor.desc.size_bytes());
        memory.visit(tensor.offset_bytes, end, |_, segment| {
            let readers = if write { &segment.readers[..] } else { &[] };
            for &other in segment.writer.iter().chain(readers) {
                if !clocks.knows(by.0, other)
                    && !unordered.iter().any(|(step, _, queue)| (*step, *queue) == (by.1, other.0))
                {
                    unordered.push((by.1, Arc::clone(name), other.0));
                }
            }
            if write {
                segment.writer = Some(by);
                segment.readers.clear();
            } else {
                segment.read_by(by);
            }
        });
    }
}
