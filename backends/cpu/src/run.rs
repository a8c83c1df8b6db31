//! A program with the state of a run: what the caller and its helpers share.
//!
//! The result of a chunk depends on the chunk alone, and the grid on shapes alone: neither thread counts nor cuts change bits.
#![expect(unsafe_code, reason = "shares the bases of locked memory with helpers")]

use std::{
    cell::UnsafeCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use entensor_components::BackendError;

use crate::{
    bell::Help,
    crew::Crew,
    kernels::BadId,
    lower::Program,
    simd::AnyLevel,
    sync::Patience,
    tensor::{Base, Bases},
    walk::{Helpers, Task, Walk},
    work::WorkMemory,
};

/// A program with the state of its current run.
pub(crate) struct Run {
    pub(crate) program: Program,
    level: AnyLevel,
    work: WorkMemory,
    /// Written by the submitting thread while the gate is closed and nobody is inside, read by all otherwise.
    pub(crate) bases: UnsafeCell<Box<[Base]>>,
    pub(crate) walk: Walk<Failure>,
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

    /// Runs steps from the first to the last on this thread alone, which needs none of the walk's counters.
    pub(crate) fn run_alone(&self) -> Result<(), BackendError> {
        for (index, step) in self.program.steps.iter().enumerate() {
            for chunk in 0..step.shape.chunks {
                self.run_chunk(index, chunk).map_err(|failure| self.error(failure))?;
            }
        }
        Ok(())
    }

    /// Helps with so many chunks at most; whether there may be more.
    pub(crate) fn help_with(&self, most_chunks: usize) -> bool {
        // A panic of a kernel must not end the thread or the pool; the run reports it.
        catch_unwind(AssertUnwindSafe(|| self.walk.help(self, most_chunks))).unwrap_or(false)
    }

    pub(crate) fn error(&self, failure: Failure) -> BackendError {
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
        self.help_with(usize::MAX);
    }
}

impl Helpers for (&Crew, &Arc<Run>) {
    fn are_resting(&self) -> bool {
        self.0.is_resting()
    }

    fn were_late(&self, patience: &Patience) {
        self.0.note_wait(patience.waited());
    }

    fn summon(&self) {
        self.0.summon(self.1);
    }

    fn dismiss(&self) {
        self.0.dismiss(self.1);
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("program", &self.program).field("work", &self.work).finish_non_exhaustive()
    }
}
