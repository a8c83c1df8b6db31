//! What the backend gives for a split: memory is bound, the steps are walked, and where a run stops is a cursor.
#![expect(unsafe_code, reason = "writes down where locked memory begins")]

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use entensor_components::{
    BackendError, Cursor, HeldSplit, HostLocks, MemoryHandle, MemorySlot, PreparedSplit, Progress, RunLimit, Ticket,
};

use crate::{
    bind,
    crew::Crew,
    run::{Failure, Run},
    tensor::Base,
    timed::Timed,
    walk::{End, Helpers, Task, Word},
};

/// Below this cost (about 30 µs) a run never leaves the calling thread: waking helpers would take as long.
const SOLO_COST: usize = 256 * 1024;

/// A split, made ready.
pub(crate) struct Prepared {
    run: Arc<Run>,
    /// Who helps with it. Nobody with a small one.
    crew: Option<Arc<Crew>>,
    /// Where the last call paused, if it did: work memory is as it left it. Held while a call is under way; a second one waits.
    paused: Mutex<Option<Cursor>>,
}

impl Prepared {
    pub(crate) fn new(run: Run, crew: Option<Arc<Crew>>) -> Self {
        let crew = crew.filter(|_| run.program.cost >= SOLO_COST && run.walk.max_helpers() > 0);
        Self { run: Arc::new(run), crew, paused: Mutex::new(None) }
    }

    /// Runs everything on memory that is bound.
    fn run_whole(&self) -> Result<(), BackendError> {
        let run = &self.run;
        let Some(crew) = &self.crew else { return run.run_alone() };
        run.walk.reset(0, 0);
        match run.walk.lead(&**run, (0, 0), None::<fn(bool) -> Word>, Some(&(&**crew, run))) {
            End::Done => Ok(()),
            End::Failed(failure) => Err(run.error(failure)),
            End::Paused(..) | End::Cancelled => unreachable!("nothing ends a run without a limit"),
        }
    }

    /// Locks memories and writes down where they begin; whether they were there already.
    fn bind<'a>(
        &self,
        memory: &'a [MemoryHandle],
        _alone: &MutexGuard<'_, Option<Cursor>>,
    ) -> Result<(HostLocks<'a>, bool), BackendError> {
        // SAFETY: `paused` is held and the gate is closed with nobody inside, so nobody else looks at the bases.
        let bases = unsafe { &mut *self.run.bases.get() };
        bind::lock(&self.run.program, memory, &mut bases[..self.run.program.slots])
    }

    /// Runs from a place up to a limit. `task` is the run as the calling thread sees it.
    fn run_as(
        &self,
        task: &impl Task<Failure = Failure>,
        memory: &[MemoryHandle],
        from: Cursor,
        limit: &RunLimit<'_>,
    ) -> Result<Progress, BackendError> {
        let run = &self.run;
        let place = (from.step as usize, from.row as usize);
        if !run.walk.has(place.0, place.1) {
            return Err(BackendError::BadCursor { step: from.step, row: from.row });
        }
        if limit.is_cancelled() {
            return Err(BackendError::Cancelled);
        }
        let mut paused = self.alone();
        let (locks, same) = self.bind(memory, &paused)?;
        run.walk.reset(place.0, place.1);
        if paused.take() != Some(from) || !same {
            // Another run of this split, or a failed one, has left something else in work memory.
            run.program.refill(place.0, |step| run.walk.again(step));
        }
        // Whoever has so much time and no more must not wait for others: a helper that loses its core would take it all.
        let helpers = self.crew.as_deref().filter(|_| limit.deadline.is_none()).map(|crew| (crew, run));
        let helpers = helpers.as_ref().map(|helpers| helpers as &dyn Helpers);
        let word = |begun: bool| {
            if limit.is_cancelled() {
                Word::Cancel
            } else if begun && limit.is_over() {
                Word::Pause
            } else {
                Word::GoOn
            }
        };
        let end = run.walk.lead(task, place, Some(word), helpers);
        drop(locks);
        match end {
            End::Done => Ok(Progress::Done(Ticket::Done)),
            End::Paused(step, row) => {
                let cursor = |n| u32::try_from(n).expect("no pause is allowed where a cursor cannot be");
                let at = Cursor { step: cursor(step), row: cursor(row) };
                *paused = Some(at);
                Ok(Progress::Paused(at))
            }
            End::Cancelled => Err(BackendError::Cancelled),
            End::Failed(failure) => Err(run.error(failure)),
        }
    }

    fn alone(&self) -> MutexGuard<'_, Option<Cursor>> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PreparedSplit for Prepared {
    fn submit(&self, memory: &[MemoryHandle]) -> Result<Ticket, BackendError> {
        let mut alone = self.alone();
        let (_locks, _) = self.bind(memory, &alone)?;
        *alone = None;
        self.run_whole().map(|()| Ticket::Done)
    }

    fn run_from(&self, memory: &[MemoryHandle], from: Cursor, limit: &RunLimit<'_>) -> Result<Progress, BackendError> {
        if limit.is_none() && from.is_start() {
            return self.submit(memory).map(Progress::Done);
        }
        self.run_as(&*self.run, memory, from, limit)
    }

    fn run_timed(
        &self,
        memory: &[MemoryHandle],
        from: Cursor,
        limit: &RunLimit<'_>,
        took: &mut dyn FnMut(usize, Duration),
    ) -> Result<Progress, BackendError> {
        let timed = Timed::new(&self.run, took);
        let progress = self.run_as(&timed, memory, from, limit);
        timed.end();
        progress
    }

    fn hold<'a>(&'a self, memory: &'a [MemoryHandle]) -> Result<Option<Box<dyn HeldSplit + 'a>>, BackendError> {
        let mut alone = self.alone();
        let (locks, _) = self.bind(memory, &alone)?;
        *alone = None;
        Ok(Some(Box::new(Held { split: self, _locks: locks, _alone: alone })))
    }
}

/// A split with its memories.
struct Held<'a> {
    split: &'a Prepared,
    _locks: HostLocks<'a>,
    _alone: MutexGuard<'a, Option<Cursor>>,
}

impl Held<'_> {
    /// Where a memory begins, and whether it is written.
    fn base(&self, slot: MemorySlot) -> Option<(Base, bool)> {
        let slot_use = self.split.run.program.uses.iter().find(|slot_use| slot_use.slot == slot)?;
        // SAFETY: `_alone` is held and no run is under way, since that would borrow `self`.
        let bases = unsafe { &*self.split.run.bases.get() };
        Some((bases[slot.0 as usize], slot_use.written))
    }
}

impl HeldSplit for Held<'_> {
    fn run(&mut self) -> Result<(), BackendError> {
        self.split.run_whole()
    }

    fn bytes(&self, slot: MemorySlot) -> Option<&[u8]> {
        let (base, _) = self.base(slot)?;
        // SAFETY: the locks are held, and nothing writes while `self` is borrowed.
        Some(unsafe { std::slice::from_raw_parts(base.bytes, base.len) })
    }

    fn bytes_mut(&mut self, slot: MemorySlot) -> Option<&mut [u8]> {
        let (base, _) = self.base(slot).filter(|(_, written)| *written)?;
        // SAFETY: the lock is an exclusive one, and nothing reads or writes while `self` is borrowed.
        Some(unsafe { std::slice::from_raw_parts_mut(base.bytes, base.len) })
    }
}
