//! Running a program: one caller, and helpers that come and go.
//!
//! The protocol, and why it cannot hang or race:
//!
//! - Every step has two counters: chunks claimed and chunks done. Whoever walks the steps claims chunks until none is left,
//!   and starts a step only when the steps it depends on have all chunks done. So nobody ever waits for a worker that has
//!   not claimed something, the caller alone can finish everything, and who arrives late finds claimed chunks and passes
//!   on. There is no barrier to join.
//! - A helper may touch the run's memory only between a successful [`Run::join`] and its end. The caller opens the gate
//!   after binding memory, closes it when all steps are done, and returns (and lets go of the locks) only when
//!   everybody who joined has left.
//! - The result of a chunk depends on the chunk alone, and the grid on shapes alone: thread counts never change bits.
#![expect(unsafe_code, reason = "shares the bases of locked memory with helpers")]

use std::{
    cell::UnsafeCell,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use crossbeam_utils::CachePadded;
use entensor_components::{BackendError, MemoryHandle, PreparedSplit, Ticket};

use crate::{
    bind,
    crew::Crew,
    kernels::BadId,
    lower::{Program, Step},
    simd::AnyLevel,
    tensor::{Base, Bases},
    work::WorkMemory,
};

/// Below this cost (about 30 µs) a run never leaves the calling thread: waking helpers would take as long.
const SOLO_COST: usize = 256 * 1024;

/// The gate's lowest bit: open. The rest counts who joined, in twos.
const OPEN: usize = 1;
const ONE_HELPER: usize = 2;

/// Spins before a waiting worker gives its core away.
const SPINS: u32 = 256;

struct Counters {
    claimed: CachePadded<AtomicUsize>,
    done: CachePadded<AtomicUsize>,
}

/// A program with the state of its current run.
pub(crate) struct Run {
    program: Program,
    level: AnyLevel,
    work: WorkMemory,
    /// Written by the submitting thread while the gate is closed and nobody is inside, read by all otherwise.
    bases: UnsafeCell<Box<[Base]>>,
    counters: Box<[Counters]>,
    gate: CachePadded<AtomicUsize>,
    failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
    max_helpers: usize,
}

// SAFETY: `bases` is written by the thread that holds `Prepared::busy` only, before the gate opens (release) and after
// everybody left (acquire); the memory they point to is shared by the rules of `Bases::new`.
unsafe impl Send for Run {}
// SAFETY: as above.
unsafe impl Sync for Run {}

#[derive(Clone, Copy, Debug)]
enum Failure {
    Id(BadId, usize),
    Panic,
}

/// Somebody else failed; stop.
struct Stopped;

/// A chunk that was claimed: counts as done however its kernel ends, so that nobody waits for it forever.
struct Claim<'a> {
    run: &'a Run,
    done: &'a AtomicUsize,
    finished: bool,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.run.fail(Failure::Panic);
        }
        self.done.fetch_add(1, Ordering::Release);
    }
}

impl Run {
    pub(crate) fn new(program: Program, level: AnyLevel, max_helpers: usize) -> Result<Self, BackendError> {
        let work = WorkMemory::new(&program.work_bytes)?;
        let mut bases = vec![Base { bytes: std::ptr::null_mut(), len: 0 }; program.slots].into_boxed_slice().into_vec();
        bases.extend(work.bases());
        let counters = program.steps.iter().map(|_| Counters {
            claimed: CachePadded::new(AtomicUsize::new(0)),
            done: CachePadded::new(AtomicUsize::new(0)),
        });
        Ok(Self {
            counters: counters.collect(),
            program,
            level,
            work,
            bases: UnsafeCell::new(bases.into()),
            gate: CachePadded::new(AtomicUsize::new(0)),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            max_helpers,
        })
    }

    fn fail(&self, failure: Failure) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        self.failed.store(true, Ordering::Release);
    }

    /// Whether a helper would find something to do.
    pub(crate) fn wants_help(&self) -> bool {
        let last = self.counters.last().zip(self.program.steps.last());
        let unclaimed = last.is_some_and(|(counters, step)| counters.claimed.load(Ordering::Relaxed) < step.chunks);
        unclaimed && self.gate.load(Ordering::Relaxed) & OPEN != 0 && !self.failed.load(Ordering::Relaxed)
    }

    fn join(&self) -> bool {
        let enter = |gate| (gate & OPEN != 0 && gate / ONE_HELPER < self.max_helpers).then_some(gate + ONE_HELPER);
        self.gate.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok()
    }

    /// Helps with the run, if it still goes on.
    pub(crate) fn help(&self) {
        struct Leave<'a>(&'a Run);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.gate.fetch_sub(ONE_HELPER, Ordering::Release);
            }
        }
        if self.join() {
            let _leave = Leave(self);
            // Failures are the caller's to report.
            let _ = self.walk();
        }
    }

    /// Waits until all chunks of a step are done.
    fn wait(&self, step: usize) -> Result<(), Stopped> {
        let (done, chunks) = (&self.counters[step].done, self.program.steps[step].chunks);
        let mut spins = 0;
        while done.load(Ordering::Acquire) < chunks {
            if self.failed.load(Ordering::Acquire) {
                return Err(Stopped);
            }
            // What is waited for is at most one chunk of every other worker, so there is nothing to park for.
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        if self.failed.load(Ordering::Acquire) { Err(Stopped) } else { Ok(()) }
    }

    fn run_chunk(&self, index: usize, step: &Step, chunk: usize) -> Result<(), Stopped> {
        let mut claim = Claim { run: self, done: &self.counters[index].done, finished: false };
        // SAFETY: the caller of `walk` is the submitting thread, which bound the bases, or joined before the gate closed;
        // `bind::lock` checked that all places lie inside and holds the locks; chunks are handed out once, and steps that
        // conflict wait for each other.
        let bases = unsafe { Bases::new(&*self.bases.get()) };
        let result = step.kernel.run(self.level, bases, chunk);
        claim.finished = true;
        result.map_err(|bad| {
            self.fail(Failure::Id(bad, step.node));
            Stopped
        })
    }

    /// Walks the steps, taking chunks as long as there are any.
    fn walk(&self) -> Result<(), Stopped> {
        let mut complete = 0;
        for (index, step) in self.program.steps.iter().enumerate() {
            let claimed = &self.counters[index].claimed;
            if claimed.load(Ordering::Relaxed) >= step.chunks {
                continue;
            }
            while complete < step.after {
                self.wait(complete)?;
                complete += 1;
            }
            loop {
                let chunk = claimed.fetch_add(1, Ordering::Relaxed);
                if chunk >= step.chunks {
                    break;
                }
                self.run_chunk(index, step, chunk)?;
            }
        }
        Ok(())
    }

    /// The submitting thread's part: everything, if need be.
    fn lead(&self, crew: Option<&Crew>, run: &Arc<Self>) -> Result<(), Stopped> {
        /// Closes the gate and waits for the helpers inside, also when a kernel panics.
        struct Close<'a>(&'a Run, Option<(&'a Crew, &'a Arc<Run>)>);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                self.0.gate.fetch_and(!OPEN, Ordering::Relaxed);
                if let Some((crew, run)) = self.1 {
                    crew.dismiss(run);
                }
                let mut spins = 0_u32;
                while self.0.gate.load(Ordering::Acquire) != 0 {
                    spins += 1;
                    if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
                }
            }
        }
        let _close = Close(self, crew.map(|crew| (crew, run)));
        if let Some(crew) = crew {
            self.gate.store(OPEN, Ordering::Release);
            crew.summon(run);
        }
        self.walk()?;
        (0..self.program.steps.len()).try_for_each(|step| self.wait(step))
    }

    fn error(&self) -> BackendError {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        match failure {
            Some(Failure::Id(bad, node)) => BackendError::IndexOutOfRange {
                node: Arc::clone(&self.program.names[node]),
                position: bad.position as u64,
                value: bad.value,
                rows: bad.rows as u64,
            },
            Some(Failure::Panic) | None => BackendError::DeviceLost { reason: "a kernel panicked".into() },
        }
    }
}

/// What [`crate::CpuBackend`] gives for a split.
pub(crate) struct Prepared {
    run: Arc<Run>,
    crew: Option<Arc<Crew>>,
    /// One submission at a time: a second one waits.
    busy: Mutex<()>,
}

impl Prepared {
    pub(crate) fn new(run: Run, crew: Option<Arc<Crew>>) -> Self {
        let crew = crew.filter(|_| run.program.cost >= SOLO_COST && run.max_helpers > 0);
        Self { run: Arc::new(run), crew, busy: Mutex::new(()) }
    }
}

impl PreparedSplit for Prepared {
    fn submit(&self, memory: &[MemoryHandle]) -> Result<Ticket, BackendError> {
        let run = &self.run;
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `busy` is held and the gate is closed with nobody inside, so nobody else looks at the bases.
        let bases = unsafe { &mut *run.bases.get() };
        let locks = bind::lock(&run.program.uses, memory, &mut bases[..run.program.slots])?;
        for counters in &run.counters {
            counters.claimed.store(0, Ordering::Relaxed);
            counters.done.store(0, Ordering::Relaxed);
        }
        run.failed.store(false, Ordering::Relaxed);
        let result = run.lead(self.crew.as_deref(), run);
        drop(locks);
        result.map(|()| Ticket::Done).map_err(|Stopped| run.error())
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("program", &self.program).field("work", &self.work).finish_non_exhaustive()
    }
}
