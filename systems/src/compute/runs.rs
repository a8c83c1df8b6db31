//! Runs of a graph that may be under way: several at once where its plan has several slots.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bevy_ecs::prelude::*;
use entensor_components::{DeviceBuffer, MemoryHandle, RunLimit};

use super::walk::{Mode, RunState};
use crate::{error::PlanError, plan::Plan, profile::Recorder};

/// Errors of runs that are kept until somebody asks for them; older ones go first.
const MOST_FAILED: usize = 16;

/// What a run is, and how far.
struct Run {
    number: u64,
    plan: Arc<Plan>,
    memory: Vec<MemoryHandle>,
    /// Keeps what it uses alive, whoever despawns it meanwhile.
    existing: Vec<Arc<DeviceBuffer>>,
    slot: u32,
    state: RunState,
    /// Its time was over before it was: it goes on when somebody waits for it or for a later one, and not beside earlier ones.
    paused: bool,
}

impl Run {
    /// What this run may do while somebody waits for the run of a number with a limit: all share the caller's time, and only the one
    /// that is waited for is cancelled.
    fn limit<'a>(&self, number: u64, limit: &RunLimit<'a>) -> RunLimit<'a> {
        RunLimit { cancel: limit.cancel.filter(|_| self.number == number), ..*limit }
    }

    fn abandon(mut self) {
        self.state.abandon(&self.plan);
        self.state.end(&self.plan);
    }
}

/// Lists of runs that are over, for the next ones.
type Spare = (Vec<MemoryHandle>, Vec<Arc<DeviceBuffer>>);

#[derive(Default)]
struct Runs {
    /// Under way, oldest first.
    flight: VecDeque<Run>,
    /// How many there were: the last one's number.
    last: u64,
    last_slot: u32,
    failed: VecDeque<(u64, PlanError)>,
    /// Which run's results each slot holds.
    results: Vec<Option<u64>>,
    /// Takes the times of runs, if somebody wants them.
    recorder: Option<Arc<Recorder>>,
    spare: Vec<Spare>,
}

/// On a graph: its runs. They end in the order in which they were submitted. Removing it, or despawning the graph, takes back what
/// has not begun and waits for the rest.
///
/// All may be called from any thread, and wait there for a call that is under way on another: to end a run that somebody waits for, use
/// its `CancelToken`.
#[derive(Component, Default)]
pub struct GraphRuns(Mutex<Runs>);

impl GraphRuns {
    fn lock(&self) -> MutexGuard<'_, Runs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the times of runs be taken from the next one on, as long as the recorder's profile exists.
    pub fn record(&self, recorder: &Arc<Recorder>) {
        let recorded = &mut self.lock().recorder;
        if !recorded.as_ref().is_some_and(|recorded| Arc::ptr_eq(recorded, recorder)) {
            *recorded = Some(Arc::clone(recorder));
        }
    }

    /// Submits a run in a slot, and gives its number. Waits for the slot's last run if that is still under way; otherwise
    /// blocks for the work of synchronous backends only, up to where one of them has to wait for another backend.
    ///
    /// # Errors
    /// What a step reports; nothing of the run is under way then.
    pub fn submit(
        &self,
        plan: &Arc<Plan>,
        memory: &[MemoryHandle],
        existing: &[Arc<DeviceBuffer>],
        slot: u32,
        limit: &RunLimit<'_>,
    ) -> Result<u64, PlanError> {
        if memory.len() < plan.memory_count() {
            return Err(PlanError::Unbound { needed: plan.memory_count(), bound: memory.len() });
        }
        let mut runs = self.lock();
        runs.free_slot(plan, slot);
        runs.last += 1;
        runs.last_slot = slot;
        let number = runs.last;
        let (mut own_memory, mut own_existing) = runs.spare.pop().unwrap_or_default();
        own_memory.extend_from_slice(memory);
        own_existing.extend_from_slice(existing);
        let state = RunState::start(plan, slot, runs.recorder.as_ref());
        let (memory, existing) = (own_memory, own_existing);
        runs.flight.push_back(Run { number, plan: Arc::clone(plan), memory, existing, slot, state, paused: false });
        runs.advance(0, number, limit);
        runs.retire(Mode::Submit, number, &RunLimit::NONE);
        match runs.outcome(number) {
            Some(Err(error)) => Err(error),
            _ => Ok(number),
        }
    }

    /// Goes on with what is under way, without waiting for devices; whether the run of this number is over. The limit is that run's:
    /// for the work that the host does itself.
    ///
    /// # Errors
    /// What the run failed with, as long as that is kept: for the last few runs that failed.
    pub fn poll(&self, number: u64, limit: &RunLimit<'_>) -> Result<bool, PlanError> {
        let mut runs = self.lock();
        runs.advance(0, number, limit);
        runs.retire(Mode::Try, number, &RunLimit::NONE);
        runs.outcome(number).unwrap_or(Ok(false))
    }

    /// Blocks until the run of this number and all before it are over, or until the limit is reached; says which. The run itself
    /// fails if it is cancelled.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn wait(&self, number: u64, limit: &RunLimit<'_>) -> Result<bool, PlanError> {
        let mut runs = self.lock();
        runs.finish(number, limit);
        runs.outcome(number).unwrap_or(Ok(false))
    }

    /// Blocks until no run is under way. What they failed with stays to be asked for.
    pub fn wait_all(&self) {
        let mut runs = self.lock();
        let last = runs.last;
        runs.finish(last, &RunLimit::NONE);
    }

    /// Blocks until nothing uses a slot's memory.
    pub fn wait_slot(&self, slot: u32) {
        let mut runs = self.lock();
        let last = runs.flight.iter().rev().find(|run| run.slot == slot).map(|run| run.number);
        if let Some(number) = last {
            runs.finish(number, &RunLimit::NONE);
        }
    }

    /// Ends a run: what has not begun is taken back, what has begun is waited for. Runs before and behind it go on. False if it was
    /// over already.
    pub fn cancel(&self, number: u64) -> bool {
        let mut runs = self.lock();
        let Some(at) = runs.flight.iter().position(|run| run.number == number) else { return false };
        let Some(run) = runs.flight.remove(at) else { return false };
        let backend = run.plan.splits.first().map_or(0, |split| split.backend);
        let error = PlanError::Run {
            step: run.state.next(),
            what: "the run".into(),
            backend: Arc::clone(&run.plan.backends[backend as usize].name),
            source: entensor_components::BackendError::Cancelled,
        };
        run.abandon();
        runs.fail(number, error);
        true
    }

    /// Whether it is known that a run failed.
    #[must_use]
    pub fn is_failed(&self, number: u64) -> bool {
        self.lock().failed.iter().any(|(failed, _)| *failed == number)
    }

    /// How many runs are under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.lock().flight.len()
    }

    /// The number of the last run; 0 before the first.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.lock().last
    }

    /// The slot of the last run.
    #[must_use]
    pub fn last_slot(&self) -> u32 {
        self.lock().last_slot
    }

    /// The slot that still holds a finished run's results.
    #[must_use]
    pub fn slot_of(&self, number: u64) -> Option<u32> {
        let slot = self.lock().results.iter().position(|&held| held == Some(number))?;
        u32::try_from(slot).ok()
    }

    /// Notes a run that somebody walked by hand while none was under way: the slot holds its results.
    pub fn note_finished(&self, slot: u32) {
        let mut runs = self.lock();
        runs.last += 1;
        runs.last_slot = slot;
        let (number, at) = (runs.last, slot as usize);
        if runs.results.len() <= at {
            runs.results.resize(at + 1, None);
        }
        runs.results[at] = Some(number);
    }

    /// Forgets which results there are: their memory is others' now.
    pub fn forget_results(&self) {
        self.lock().results.clear();
    }

    /// Whether a run under way uses a buffer that exists outside plans; `written` asks for those that may write it.
    #[must_use]
    pub fn uses(&self, buffer: &Arc<DeviceBuffer>, written: bool) -> bool {
        self.lock().flight.iter().any(|run| {
            let place = run.existing.iter().position(|own| Arc::ptr_eq(own, buffer));
            place.is_some_and(|place| !written || run.plan.writes_existing(place))
        })
    }
}

impl Runs {
    fn outcome(&self, number: u64) -> Option<Result<bool, PlanError>> {
        if let Some((_, error)) = self.failed.iter().find(|(failed, _)| *failed == number) {
            return Some(Err(error.clone()));
        }
        let is_over = self.flight.front().is_none_or(|oldest| number < oldest.number);
        is_over.then_some(Ok(true))
    }

    fn fail(&mut self, number: u64, error: PlanError) {
        if self.failed.len() >= MOST_FAILED {
            self.failed.pop_front();
        }
        self.failed.push_back((number, error));
    }

    /// Goes on with every run from one on, oldest first, one staying behind the other.
    fn advance(&mut self, first: usize, number: u64, limit: &RunLimit<'_>) {
        let mut at = first;
        while at < self.flight.len() {
            let (before, rest) = self.flight.make_contiguous().split_at_mut(at);
            let run = &mut rest[0];
            if run.paused && run.number > number {
                at += 1;
                continue;
            }
            // Only runs of one plan in different slots are under way at once.
            let previous = before.last().map(|run| &run.state);
            let own = run.limit(number, limit);
            match run.state.advance(&run.plan, &run.memory, run.slot, previous, Mode::Try, &own) {
                Ok(all) => {
                    run.paused = !all && run.number == number && limit.is_over();
                    at += 1;
                }
                Err(error) => self.drop_failed(at, error),
            }
        }
    }

    fn drop_failed(&mut self, at: usize, error: PlanError) {
        if let Some(run) = self.flight.remove(at) {
            let number = run.number;
            run.abandon();
            self.fail(number, error);
        }
    }

    /// Takes finished runs off, oldest first, up to a number.
    fn retire(&mut self, mode: Mode, number: u64, limit: &RunLimit<'_>) {
        while let Some(run) = self.flight.front_mut().filter(|run| run.number <= number) {
            let steps = run.plan.programs[run.slot as usize % run.plan.programs.len()].steps.len();
            if run.state.next() < steps {
                return;
            }
            let limit = run.limit(number, limit);
            match run.state.settle(&run.plan, run.slot, mode, &limit) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    self.drop_failed(0, error);
                    continue;
                }
            }
            let Some(run) = self.flight.pop_front() else { return };
            let slot = run.slot as usize;
            if self.results.len() <= slot {
                self.results.resize(slot + 1, None);
            }
            self.results[slot] = Some(run.number);
            let Run { plan, mut memory, mut existing, mut state, .. } = run;
            state.note_time();
            state.end(&plan);
            memory.clear();
            existing.clear();
            self.spare.push((memory, existing));
        }
    }

    /// Waits until the run of this number is over, or its limit is reached.
    fn finish(&mut self, number: u64, limit: &RunLimit<'_>) {
        while let Some(oldest) = self.flight.front_mut().filter(|oldest| oldest.number <= number) {
            let own = oldest.limit(number, limit);
            // The oldest may wait for devices; the others follow it as far as they can.
            match oldest.state.advance(&oldest.plan, &oldest.memory, oldest.slot, None, Mode::Wait, &own) {
                Ok(all) if limit.is_over() => oldest.paused = !all && oldest.number == number,
                Ok(_) => self.advance(1, number, limit),
                Err(error) => {
                    self.drop_failed(0, error);
                    continue;
                }
            }
            let oldest = self.flight.front().map_or(number, |oldest| oldest.number.min(number));
            self.retire(Mode::Wait, oldest, &own);
            if limit.is_over() {
                return;
            }
        }
    }

    /// Waits for whatever stands against a run of this plan in this slot: the slot's last run, and runs of other plans.
    fn free_slot(&mut self, plan: &Arc<Plan>, slot: u32) {
        let stands = |run: &&Run| run.slot == slot || !Arc::ptr_eq(&run.plan, plan);
        if let Some(number) = self.flight.iter().rev().find(stands).map(|run| run.number) {
            self.finish(number, &RunLimit::NONE);
        }
        if let Some(held) = self.results.get_mut(slot as usize) {
            *held = None;
        }
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        while let Some(run) = self.flight.pop_back() {
            run.abandon();
        }
    }
}
