//! Running a program: memory is bound, the steps are walked by the caller and its helpers, and where they stop is a cursor.
//!
//! The result of a chunk depends on the chunk alone, and the grid on shapes alone: neither thread counts nor cuts change bits.
#![expect(unsafe_code, reason = "shares the bases of locked memory with helpers")]

use std::{
    cell::UnsafeCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use entensor_components::{BackendError, Cursor, MemoryHandle, PreparedSplit, Progress, RunLimit, Ticket};

use crate::{
    bell::Help,
    bind,
    crew::Crew,
    kernels::BadId,
    lower::Program,
    simd::AnyLevel,
    tensor::{Base, Bases},
    timed::Timed,
    walk::{End, Helpers, Task, Walk, Word},
    work::WorkMemory,
};

/// Below this cost (about 30 µs) a run never leaves the calling thread: waking helpers would take as long.
const SOLO_COST: usize = 256 * 1024;

/// A program with the state of its current run.
pub(crate) struct Run {
    program: Program,
    level: AnyLevel,
    work: WorkMemory,
    /// Written by the submitting thread while the gate is closed and nobody is inside, read by all otherwise.
    bases: UnsafeCell<Box<[Base]>>,
    walk: Walk<Failure>,
}

// SAFETY: `bases` is written by the thread that holds `Prepared::paused` only, before the gate opens (release) and after
// everybody left (acquire); the memory they point to is shared by the rules of `Bases::new`.
unsafe impl Send for Run {}
// SAFETY: as above.
unsafe impl Sync for Run {}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    Id(BadId, usize),
    Panic,
}

impl Run {
    /// The node that a step belongs to.
    pub(crate) fn node(&self, step: usize) -> usize {
        self.program.steps[step].node
    }

    pub(crate) fn new(program: Program, level: AnyLevel, max_helpers: usize) -> Result<Self, BackendError> {
        let work = WorkMemory::new(&program.work_bytes)?;
        let mut bases = vec![Base { bytes: std::ptr::null_mut(), len: 0, repacked: false }; program.slots]
            .into_boxed_slice()
            .into_vec();
        bases.extend(work.bases());
        let walk = Walk::new(program.steps.iter().map(|step| step.shape), max_helpers);
        Ok(Self { program, level, work, bases: UnsafeCell::new(bases.into()), walk })
    }

    fn error(&self, failure: Failure) -> BackendError {
        match failure {
            Failure::Id(bad, node) => BackendError::IndexOutOfRange {
                node: Arc::clone(&self.program.names[node]),
                position: bad.position as u64,
                value: bad.value,
                rows: bad.rows as u64,
            },
            Failure::Panic => BackendError::DeviceLost { reason: "a kernel panicked".into() },
        }
    }
}

impl Task for Run {
    type Failure = Failure;

    fn run_chunk(&self, step: usize, chunk: usize) -> Result<(), Failure> {
        let step = &self.program.steps[step];
        // SAFETY: the caller of `walk` is the submitting thread, which bound the bases, or joined before the gate closed;
        // `bind::lock` checked that all places lie inside and holds the locks; chunks are handed out once, and steps that
        // conflict wait for each other.
        let bases = unsafe { Bases::new(&*self.bases.get()) };
        step.kernel.run(self.level, bases, chunk).map_err(|bad| Failure::Id(bad, step.node))
    }

    fn panicked() -> Failure {
        Failure::Panic
    }
}

impl Help for Run {
    fn wants_help(&self) -> bool {
        self.walk.wants_help()
    }

    fn help(&self) {
        // A panic of a kernel must not end the thread or the pool; the run reports it.
        let _ = catch_unwind(AssertUnwindSafe(|| self.walk.help(self)));
    }
}

impl Helpers for (&Crew, &Arc<Run>) {
    fn summon(&self) {
        self.0.summon(self.1);
    }

    fn dismiss(&self) {
        self.0.dismiss(self.1);
    }
}

/// What [`crate::CpuBackend`] gives for a split.
pub(crate) struct Prepared {
    run: Arc<Run>,
    crew: Option<Arc<Crew>>,
    /// Where the last call paused, if it did: work memory is as it left it. Held while a call is under way; a second one waits.
    paused: Mutex<Option<Cursor>>,
}

impl Prepared {
    pub(crate) fn new(run: Run, crew: Option<Arc<Crew>>) -> Self {
        let crew = crew.filter(|_| run.program.cost >= SOLO_COST && run.walk.max_helpers() > 0);
        Self { run: Arc::new(run), crew, paused: Mutex::new(None) }
    }
}

impl PreparedSplit for Prepared {
    fn submit(&self, memory: &[MemoryHandle]) -> Result<Ticket, BackendError> {
        match self.run_from(memory, Cursor::START, &RunLimit::NONE)? {
            Progress::Done(ticket) => Ok(ticket),
            Progress::Paused(_) => unreachable!("nothing pauses a run without a limit"),
        }
    }

    fn run_from(&self, memory: &[MemoryHandle], from: Cursor, limit: &RunLimit<'_>) -> Result<Progress, BackendError> {
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
}

impl Prepared {
    /// `task` is the run as the calling thread sees it.
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
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `paused` is held and the gate is closed with nobody inside, so nobody else looks at the bases.
        let bases = unsafe { &mut *run.bases.get() };
        let (locks, same) = bind::lock(&run.program, memory, &mut bases[..run.program.slots])?;
        run.walk.reset(place.0, place.1);
        if paused.take() != Some(from) || !same {
            // Another run of this split, or a failed one, has left something else in work memory.
            run.program.refill(place.0, |step| run.walk.again(step));
        }
        let helpers = self.crew.as_deref().map(|crew| (crew, run));
        // Who has no time does one chunk, and nobody is woken for it.
        let helpers = helpers.as_ref().filter(|_| !limit.is_over()).map(|helpers| helpers as &dyn Helpers);
        let end = if limit.is_none() {
            run.walk.lead(task, place, None::<fn(bool) -> Word>, helpers)
        } else {
            let word = |begun: bool| {
                if limit.is_cancelled() {
                    Word::Cancel
                } else if begun && limit.is_over() {
                    Word::Pause
                } else {
                    Word::GoOn
                }
            };
            run.walk.lead(task, place, Some(word), helpers)
        };
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
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("program", &self.program).field("work", &self.work).finish_non_exhaustive()
    }
}
