//! The walk over a slot's steps: submits what can be submitted, and pauses where the host would have to wait.

use std::{
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use entensor_components::{Backend, BackendError, Cursor, MemoryHandle, Progress, QueueKind, RunLimit, Ticket};

use crate::{
    error::PlanError,
    plan::{Plan, Step},
    profile::{Recorder, Watch},
};

/// Whether the walk may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No device is even asked how far it is.
    Submit,
    /// It pauses where it would have to.
    Try,
    /// It waits.
    Wait,
}

/// How often a wait for a device looks whether it was cancelled.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Work that may be under way.
#[derive(Clone, Copy, Debug)]
struct Submitted {
    step: usize,
    backend: u32,
    ticket: Ticket,
    /// When, if that is wanted.
    since: Option<Instant>,
}

/// How far a run is: what it submitted, and the events that it recorded. Kept by the plan between runs, so that a run
/// allocates nothing.
#[derive(Debug, Default)]
pub struct RunState {
    /// By event; `None` until it is recorded.
    events: Vec<Option<u64>>,
    submitted: Vec<Submitted>,
    /// How many of these are known to be done.
    done: usize,
    /// The next step.
    next: usize,
    /// The place in that step.
    cursor: Cursor,
    /// Takes the run's times, if they are wanted.
    watch: Option<Watch>,
}

impl RunState {
    /// The state of a run that has not begun.
    pub(super) fn start(plan: &Plan, slot: u32, recorder: Option<&Arc<Recorder>>) -> Self {
        let mut state = plan.spare.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        let events = plan.programs[slot as usize % plan.programs.len()].events;
        state.events.clear();
        state.events.resize(events as usize, None);
        state.submitted.clear();
        (state.done, state.next, state.cursor) = (0, 0, Cursor::START);
        state.watch = recorder.and_then(|recorder| Watch::start(recorder, plan));
        state
    }

    /// Gives the state back for another run.
    pub(super) fn end(mut self, plan: &Plan) {
        self.watch = None;
        let mut spare = plan.spare.lock().unwrap_or_else(PoisonError::into_inner);
        // No more than can be under way at once.
        if spare.len() < plan.programs.len().max(2) {
            spare.push(self);
        }
    }

    /// The run is over, and had no error: its time counts.
    pub(super) fn note_time(&mut self) {
        if let Some(watch) = self.watch.take() {
            watch.end();
        }
    }

    /// The first step that was not submitted yet.
    pub(super) fn next(&self) -> usize {
        self.next
    }

    /// Submits what can be submitted. True when all is. A run that is submitted while `previous` goes on stays behind it in every
    /// queue, the host's own work included: that order is part of the plan's proof.
    pub(super) fn advance(
        &mut self,
        plan: &Plan,
        memory: &[MemoryHandle],
        slot: u32,
        previous: Option<&Self>,
        mode: Mode,
        limit: &RunLimit<'_>,
    ) -> Result<bool, PlanError> {
        let program = &plan.programs[slot as usize % plan.programs.len()];
        // A copy was made, or a split run or submitted: every call does something, however short its time.
        let mut worked = false;
        while let Some(step) = program.steps.get(self.next) {
            if worked && limit.is_over() {
                return Ok(false);
            }
            let behind = program.behind.get(self.next).map_or(program.steps.len(), |&behind| behind as usize);
            if previous.is_some_and(|previous| previous.next < behind) {
                return Ok(false);
            }
            let since = self.watch.as_ref().and_then(Watch::now);
            let result = match step {
                _ if limit.is_cancelled() => Err(BackendError::Cancelled),
                Step::Copy { split, from, from_backend, to, .. } => {
                    let to_backend = plan.splits[*split as usize].backend;
                    let (source, target) = (&memory[from.memory.0 as usize], &memory[to.memory.0 as usize]);
                    let of = handle(plan, *from_backend);
                    let bytes = from.desc.size_bytes();
                    let copied = handle(plan, to_backend).copy_from(
                        target,
                        to.offset_bytes,
                        of,
                        source,
                        from.offset_bytes,
                        bytes,
                    );
                    copied.map(|ticket| self.note(step, to_backend, ticket, since))
                }
                Step::Launch { split } => {
                    let prepared = &*program.prepared[*split as usize];
                    let backend = plan.splits[*split as usize].backend;
                    let is_asynchronous = handle(plan, backend).capabilities().asynchronous;
                    // What has been paused goes on where it was.
                    let is_whole = limit.is_none() && since.is_none() && self.cursor.is_start();
                    if is_asynchronous || is_whole {
                        prepared.submit(memory).map(|ticket| self.note(step, backend, ticket, since))
                    } else {
                        let ran = match (&self.watch, since) {
                            (Some(watch), Some(_)) => {
                                let first = plan.splits[*split as usize].nodes.start as usize;
                                let mut took = |node: usize, time| watch.node(first + node, time);
                                prepared.run_timed(memory, self.cursor, limit, &mut took)
                            }
                            _ => prepared.run_from(memory, self.cursor, limit),
                        };
                        match ran {
                            Ok(Progress::Done(ticket)) => {
                                self.cursor = Cursor::START;
                                self.note(step, backend, ticket, since);
                                Ok(())
                            }
                            Ok(Progress::Paused(cursor)) => {
                                self.cursor = cursor;
                                if let (Some(watch), Some(since)) = (&mut self.watch, since) {
                                    watch.piece(since);
                                }
                                return Ok(false);
                            }
                            Err(error) => Err(error),
                        }
                    }
                }
                Step::Record { backend, event, queue } => {
                    let recorded = handle(plan, *backend).record_on(*queue);
                    recorded.map(|id| {
                        if let Some(entry) = self.events.get_mut(*event as usize) {
                            *entry = Some(id);
                        }
                    })
                }
                Step::Wait { backend, event, of, queue, previous: is_previous } => {
                    // A run before this one that is over has nothing under way.
                    let events = if *is_previous { previous.map(|p| &p.events) } else { Some(&self.events) };
                    match events.map(|events| events.get(*event as usize).copied().flatten()) {
                        None => Ok(()),
                        // Not submitted yet: the run before has to go on first.
                        Some(None) => return Ok(false),
                        Some(Some(id)) => match wait(plan, (*backend, *queue), *of, id, mode, limit) {
                            Ok(true) => Ok(()),
                            Ok(false) => return Ok(false),
                            Err(error) => Err(error),
                        },
                    }
                }
            };
            result.map_err(|source| failed(plan, self.next, step, source))?;
            worked |= matches!(step, Step::Copy { .. } | Step::Launch { .. });
            self.next += 1;
        }
        Ok(true)
    }

    fn note(&mut self, step: &Step, backend: u32, ticket: Ticket, since: Option<Instant>) {
        if ticket != Ticket::Done {
            self.submitted.push(Submitted { step: self.next, backend, ticket, since });
        } else if let (Some(watch), Some(since)) = (&mut self.watch, since) {
            watch.step(step, since);
        }
    }

    /// Whether everything that was submitted is done. The first of its errors, in the order of the steps.
    pub(super) fn settle(
        &mut self,
        plan: &Plan,
        slot: u32,
        mode: Mode,
        limit: &RunLimit<'_>,
    ) -> Result<bool, PlanError> {
        let program = &plan.programs[slot as usize % plan.programs.len()];
        while let Some(&Submitted { step, backend, ticket, since }) = self.submitted.get(self.done) {
            let done = reached(handle(plan, backend), ticket, mode, limit);
            if !done.map_err(|source| failed(plan, step, &program.steps[step], source))? {
                return Ok(false);
            }
            if let (Some(watch), Some(since)) = (&mut self.watch, since) {
                watch.step(&program.steps[step], since);
            }
            self.done += 1;
        }
        Ok(true)
    }

    /// Takes back what has not begun and waits for the rest: afterwards nothing touches the run's memories any more.
    pub(super) fn abandon(&mut self, plan: &Plan) {
        let left = self.submitted.get(self.done..).unwrap_or_default();
        // Latest first: what waits for something that was taken back has been taken back before.
        for submitted in left.iter().rev() {
            // What a lost device says to this is said already.
            let _ = handle(plan, submitted.backend).cancel(submitted.ticket);
        }
        for submitted in left {
            let _ = handle(plan, submitted.backend).wait_for(submitted.ticket, None);
        }
        self.done = self.submitted.len();
    }
}

fn handle(plan: &Plan, backend: u32) -> &dyn Backend {
    &*plan.backends[backend as usize].handle
}

/// A queue waits, or the host does for a synchronous backend; false where it may not.
fn wait(
    plan: &Plan,
    (backend, queue): (u32, QueueKind),
    of: u32,
    event: u64,
    mode: Mode,
    limit: &RunLimit<'_>,
) -> Result<bool, BackendError> {
    let (waiter, of) = (handle(plan, backend), handle(plan, of));
    if !waiter.capabilities().asynchronous && !reached(of, Ticket::Pending(event), mode, limit)? {
        return Ok(false);
    }
    waiter.wait_on(queue, of, event).map(|()| true)
}

/// Whether a ticket is done; waits for it as far as mode and limit allow.
fn reached(of: &dyn Backend, ticket: Ticket, mode: Mode, limit: &RunLimit<'_>) -> Result<bool, BackendError> {
    match mode {
        Mode::Submit => return Ok(ticket == Ticket::Done),
        Mode::Try => return of.poll(ticket),
        Mode::Wait if limit.is_none() => return of.wait_for(ticket, None),
        Mode::Wait => {}
    }
    loop {
        let left = limit.deadline.map_or(LOOK_EVERY, |end| end.saturating_duration_since(Instant::now()));
        let done = if left.is_zero() { of.poll(ticket)? } else { of.wait_for(ticket, Some(left.min(LOOK_EVERY)))? };
        if done {
            return Ok(true);
        }
        if limit.is_cancelled() {
            return Err(BackendError::Cancelled);
        }
        if limit.is_over() {
            return Ok(false);
        }
    }
}

fn failed(plan: &Plan, step: usize, what: &Step, source: BackendError) -> PlanError {
    let name = |b: u32| Arc::clone(&plan.backends[b as usize].name);
    let (what, backend) = match what {
        Step::Copy { copy, split, .. } => {
            let node = &plan.table.names[plan.copies[*copy as usize].source as usize];
            (format!("copy of `{node}`"), plan.splits[*split as usize].backend)
        }
        Step::Launch { split } => (format!("split {split}"), plan.splits[*split as usize].backend),
        Step::Record { backend, .. } => ("record an event".into(), *backend),
        Step::Wait { backend, .. } => ("wait for an event".into(), *backend),
    };
    PlanError::Run { step, what, backend: name(backend), source }
}
