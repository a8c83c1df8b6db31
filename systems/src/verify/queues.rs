//! What the queues of a machine know of each other while a run goes on.

use crate::plan::{Plan, Program};

/// What each queue knows to be finished of each other queue: the last step, per pair.
pub(super) struct Clocks {
    /// Without asynchronous backends every step is finished before the next one.
    idle: bool,
    queues: usize,
    known: Vec<Vec<Option<usize>>>,
    /// Of each event, the queue that recorded it last, and what that queue knew.
    events: Vec<Option<(u32, Vec<Option<usize>>)>>,
}

impl Clocks {
    pub(super) fn new(plan: &Plan, program: &Program) -> Self {
        let idle = !plan.backends.iter().any(|b| b.handle.capabilities().asynchronous);
        let queues = plan.backends.len();
        let known = if idle { Vec::new() } else { vec![vec![None; queues]; queues] };
        Self { idle, queues, known, events: vec![None; program.events as usize] }
    }

    /// Marks a point of a queue; false for an event or a queue that does not exist.
    pub(super) fn record(&mut self, step: usize, queue: u32, event: u32) -> bool {
        let mut seen = self.known.get(queue as usize).cloned().unwrap_or_default();
        if let Some(own) = seen.get_mut(queue as usize) {
            *own = Some(step);
        }
        let entry = self.events.get_mut(event as usize).filter(|_| (queue as usize) < self.queues);
        entry.map(|entry| *entry = Some((queue, seen))).is_some()
    }

    /// Makes a queue wait for an event; false for one that the other queue has not recorded.
    pub(super) fn wait(&mut self, queue: u32, event: u32, of: u32) -> bool {
        let recorded = self.events.get(event as usize).and_then(Option::as_ref);
        let Some((_, seen)) = recorded.filter(|(by, _)| *by == of) else { return false };
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
    }
}

fn merge(into: &mut [Option<usize>], from: &[Option<usize>]) {
    for (a, b) in into.iter_mut().zip(from) {
        *a = (*a).max(*b);
    }
}
