//! What the queues of a machine know of each other while a run goes on.

use entensor_components::QueueKind;

use crate::plan::{Plan, Program};

/// An event: the queue that recorded it last, and what that queue knew.
type Recorded = Option<(u32, Vec<Option<usize>>)>;

/// What each queue knows to be finished of each other queue: the last step, per pair. The compute queues of all backends come
/// first, then their copy queues.
pub(super) struct Clocks {
    /// Without asynchronous backends every step is finished before the next one.
    idle: bool,
    backends: usize,
    /// Per backend, whether it has a queue for copies.
    copies_apart: Vec<bool>,
    known: Vec<Vec<Option<usize>>>,
    events: Vec<Recorded>,
    /// Those of the run before.
    previous: Vec<Recorded>,
    /// What each queue knew at its last step.
    used: Vec<Vec<Option<usize>>>,
    /// The host's steps of this run, with what was known at their end.
    finished: Vec<(usize, Vec<Option<usize>>)>,
    /// The same of the run before.
    finished_before: Vec<(usize, Vec<Option<usize>>)>,
}

impl Clocks {
    pub(super) fn new(plan: &Plan, program: &Program) -> Self {
        let idle = !plan.backends.iter().any(|b| b.handle.capabilities().asynchronous);
        let backends = plan.backends.len();
        let apart = |b: &crate::plan::PlanBackend| b.handle.capabilities().asynchronous && b.handle.has_copy_queue();
        Self {
            idle,
            backends,
            copies_apart: plan.backends.iter().map(apart).collect(),
            known: if idle { Vec::new() } else { vec![vec![None; 2 * backends]; 2 * backends] },
            events: vec![None; program.events as usize],
            previous: Vec::new(),
            used: if idle { Vec::new() } else { vec![vec![None; 2 * backends]; 2 * backends] },
            finished: Vec::new(),
            finished_before: Vec::new(),
        }
    }

    /// The number of a backend's queue; of none for a backend that does not exist.
    pub(super) fn queue(&self, backend: u32, queue: QueueKind) -> Option<u32> {
        let apart = *self.copies_apart.get(backend as usize)? && queue == QueueKind::Copy;
        Some(if apart { backend + u32::try_from(self.backends).ok()? } else { backend })
    }

    /// Whose queue it is.
    pub(super) fn backend_of(&self, queue: u32) -> u32 {
        queue % u32::try_from(self.backends.max(1)).unwrap_or(u32::MAX)
    }

    /// Another run begins while this one goes on: what the host learned in it counts only for the steps that it was there for.
    pub(super) fn next_run(&mut self, program: &Program) {
        self.previous = std::mem::replace(&mut self.events, vec![None; program.events as usize]);
        self.finished_before = std::mem::take(&mut self.finished);
        self.known.clone_from(&self.used);
    }

    /// A step stays behind the first few steps of the run before: what the host did there is done.
    pub(super) fn stay_behind(&mut self, queue: u32, steps: usize) {
        let known = self.finished_before.iter().rev().find(|(step, _)| *step < steps);
        if let Some(((_, known), own)) = known.zip(self.known.get_mut(queue as usize)) {
            merge(own, known);
        }
    }

    /// A step of a queue was submitted.
    pub(super) fn submit(&mut self, queue: u32, step: usize) {
        if let Some((used, known)) = self.used.get_mut(queue as usize).zip(self.known.get(queue as usize)) {
            used.clone_from(known);
            used[queue as usize] = Some(step);
        }
    }

    /// Marks a point of a queue; false for an event or a queue that does not exist.
    pub(super) fn record(&mut self, step: usize, backend: u32, queue: QueueKind, event: u32) -> bool {
        let Some(queue) = self.queue(backend, queue) else { return false };
        let mut seen = self.known.get(queue as usize).cloned().unwrap_or_default();
        if let Some(own) = seen.get_mut(queue as usize) {
            *own = Some(step);
        }
        let entry = self.events.get_mut(event as usize);
        entry.map(|entry| *entry = Some((queue, seen))).is_some()
    }

    /// Makes a queue wait for an event; false for one that the other backend has not recorded.
    pub(super) fn wait(&mut self, (backend, queue): (u32, QueueKind), event: u32, of: u32, previous: bool) -> bool {
        let Some(queue) = self.queue(backend, queue) else { return false };
        let events = if previous { &self.previous } else { &self.events };
        let recorded = events.get(event as usize).and_then(Option::as_ref);
        let Some((_, seen)) = recorded.filter(|(by, _)| self.backend_of(*by) == of) else { return false };
        if let Some(known) = self.known.get_mut(queue as usize) {
            merge(known, seen);
        }
        true
    }

    pub(super) fn knows(&self, queue: u32, other: (u32, usize)) -> bool {
        self.idle
            || queue == other.0
            || self.known[queue as usize][other.0 as usize].is_some_and(|done| done >= other.1)
    }

    /// A synchronous step is finished for everybody; so is all that its queue knew.
    pub(super) fn finish(&mut self, queue: u32, step: usize) {
        if self.idle {
            return;
        }
        self.known[queue as usize][queue as usize] = Some(step);
        let knows = self.known[queue as usize].clone();
        for other in &mut self.known {
            merge(other, &knows);
        }
        self.finished.push((step, knows));
    }
}

fn merge(into: &mut [Option<usize>], from: &[Option<usize>]) {
    for (a, b) in into.iter_mut().zip(from) {
        *a = (*a).max(*b);
    }
}
