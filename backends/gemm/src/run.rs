//! Running a split: one caller, and helpers that come and go.
//!
//! - A step is a product, its pieces are chunks. Whoever works takes the next chunk from a counter, and nobody starts a step before the one
//!   in front of it is done. So the caller alone can finish everything, and waits at most for chunks that others have taken.
//! - The **gate** is a lock around the addresses of the run's memory. Helpers hold it shared while they work, and find it empty when they
//!   are late. The caller fills it before it asks for help, and empties it before it lets go of the memory, which waits for those inside.
//! - A pause or a cancelled run takes no more chunks and waits for those taken. As chunks are taken in order, what is done has no holes.
#![expect(unsafe_code, reason = "shares the addresses of locked memory with helpers")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use entensor_components::{
    BackendError, Cursor, HostLocks, MemoryHandle, MemorySlot, PreparedSplit, Progress, RunLimit, SlotUse, Ticket,
};
use rayon::ThreadPool;

use crate::{
    product::{Base, Product},
    work::{Sizes, Work, WorkPool},
};

/// Below so many multiplications (some 100 µs) nobody is asked for help: waking takes as long.
const SOLO_COST: usize = 4 << 20;

/// Spins before a waiting worker gives its core away.
const SPINS: u32 = 256;

/// Who can be asked for help.
#[derive(Clone)]
pub(crate) struct Helpers {
    pub(crate) pool: Arc<ThreadPool>,
    /// How many of its workers may help.
    pub(crate) count: usize,
}

/// The counters of a step: chunks taken and chunks done.
#[derive(Debug, Default)]
struct Counters {
    taken: AtomicUsize,
    done: AtomicUsize,
}

/// A split with the state of its current run.
struct Run {
    steps: Vec<Product>,
    uses: Vec<SlotUse>,
    sizes: Sizes,
    counters: Vec<Counters>,
    /// Nobody takes another chunk.
    stop: AtomicBool,
    /// A kernel panicked.
    failed: AtomicBool,
    /// The addresses of the run's memories by slot; empty between runs.
    gate: RwLock<Vec<Base>>,
    work: Arc<WorkPool>,
}

impl Run {
    /// Takes chunks until none is left or somebody stops the run. `limit` is the caller's.
    ///
    /// # Safety
    /// `bases` holds the locked memories of this run as long as this runs.
    unsafe fn walk(&self, bases: &[Base], work: &mut Work, limit: &RunLimit<'_>, mut is_first: bool) {
        for (step, counters) in self.steps.iter().zip(&self.counters) {
            let chunks = step.chunks();
            loop {
                // A call that is late from the start does one piece all the same.
                if limit.is_cancelled() || (!is_first && limit.is_over()) {
                    self.stop.store(true, Ordering::Release);
                }
                if self.stop.load(Ordering::Acquire) || counters.taken.load(Ordering::Relaxed) >= chunks {
                    break;
                }
                let chunk = counters.taken.fetch_add(1, Ordering::Relaxed);
                if chunk >= chunks {
                    break;
                }
                is_first = false;
                // Only a cancelled run may leave a chunk half done.
                let stop = || limit.is_cancelled();
                // SAFETY: `HostLocks` has checked that the places lie inside; operands and results are apart, each chunk is taken
                // once, and the steps in front of this one are done.
                let kernel = || unsafe { step.run(bases, chunk, work, &stop) };
                if catch_unwind(AssertUnwindSafe(kernel)).is_err() {
                    self.failed.store(true, Ordering::Release);
                    self.stop.store(true, Ordering::Release);
                }
                counters.done.fetch_add(1, Ordering::Release);
            }
            if !self.wait(counters, chunks) {
                return;
            }
        }
    }

    /// Waits until all chunks of a step are done; false where the run was stopped before.
    fn wait(&self, counters: &Counters, chunks: usize) -> bool {
        let mut spins = 0;
        while counters.done.load(Ordering::Acquire) < chunks {
            if self.stop.load(Ordering::Acquire) {
                return false;
            }
            // What is waited for is at most one chunk of every other worker, so there is nothing to park for.
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        true
    }

    /// A helper's part: whatever is left when it comes.
    fn help(&self) {
        // A caller that waits to come in has its work done.
        let Ok(bases) = self.gate.try_read() else { return };
        if bases.is_empty() || self.stop.load(Ordering::Acquire) {
            return;
        }
        let Ok(mut work) = self.work.take(self.sizes) else { return };
        // SAFETY: the gate is held, so the caller keeps the memories locked.
        unsafe { self.walk(&bases, &mut work, &RunLimit::NONE, false) };
        self.work.give_back(work);
    }

    fn open(&self, locks: &mut HostLocks<'_>) {
        let mut bases = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        for used in &self.uses {
            let slot = used.slot.0 as usize;
            if bases.len() <= slot {
                bases.resize(slot + 1, Base { bytes: std::ptr::null_mut(), len: 0 });
            }
            bases[slot] = if used.written {
                let bytes = locks.bytes_mut(used.slot);
                Base { bytes: bytes.as_mut_ptr(), len: bytes.len() }
            } else {
                let bytes = locks.bytes(used.slot);
                Base { bytes: bytes.as_ptr().cast_mut(), len: bytes.len() }
            };
        }
    }

    /// Waits for helpers inside, and leaves nothing for those that are late.
    fn close(&self) {
        self.gate.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The first chunk that is not done; `None` at the end.
    fn cursor(&self) -> Option<Cursor> {
        let is_open = |(step, counters): &(&Product, &Counters)| counters.done.load(Ordering::Acquire) < step.chunks();
        let open = self.steps.iter().zip(&self.counters).position(|pair| is_open(&pair))?;
        let row = self.counters[open].done.load(Ordering::Acquire);
        Some(Cursor { step: u32::try_from(open).ok()?, row: u32::try_from(row).ok()? })
    }

    /// Sets the counters to where a run goes on.
    fn rewind(&self, from: Cursor) -> Result<(), BackendError> {
        let (step, row) = (from.step as usize, from.row as usize);
        let is_place = from.is_start() || self.steps.get(step).is_some_and(|step| row < step.chunks());
        if !is_place {
            return Err(BackendError::BadCursor { step: from.step, row: from.row });
        }
        for (index, (product, counters)) in self.steps.iter().zip(&self.counters).enumerate() {
            let done = match index.cmp(&step) {
                std::cmp::Ordering::Less => product.chunks(),
                std::cmp::Ordering::Equal => row,
                std::cmp::Ordering::Greater => 0,
            };
            counters.taken.store(done, Ordering::Relaxed);
            counters.done.store(done, Ordering::Relaxed);
        }
        self.stop.store(false, Ordering::Relaxed);
        self.failed.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// What [`crate::GemmBackend`] gives for a split.
pub(crate) struct Prepared {
    run: Arc<Run>,
    helpers: Option<Helpers>,
    /// One run at a time: a second one waits.
    busy: Mutex<()>,
}

impl Prepared {
    pub(crate) fn new(steps: Vec<Product>, sizes: Sizes, helpers: Option<Helpers>, work: Arc<WorkPool>) -> Self {
        let mut uses = Vec::new();
        for (place, written) in steps.iter().flat_map(Product::places) {
            let needed_bytes = if place.is_empty() { 0 } else { place.end() as u64 };
            let slot = u32::try_from(place.slot).expect("slots come from `MemorySlot`");
            SlotUse::note(&mut uses, MemorySlot(slot), written, needed_bytes);
        }
        let cost = steps.iter().fold(0_usize, |sum, step| sum.saturating_add(step.cost()));
        let most = steps.iter().map(Product::chunks).max().unwrap_or(0);
        let helpers = helpers.filter(|_| cost >= SOLO_COST && most > 1);
        let run = Run {
            counters: steps.iter().map(|_| Counters::default()).collect(),
            steps,
            uses,
            sizes,
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            gate: RwLock::default(),
            work,
        };
        Self { run: Arc::new(run), helpers, busy: Mutex::new(()) }
    }
}

impl PreparedSplit for Prepared {
    fn submit(&self, memory: &[MemoryHandle]) -> Result<Ticket, BackendError> {
        match self.run_from(memory, Cursor::START, &RunLimit::NONE)? {
            Progress::Done(ticket) => Ok(ticket),
            // Without a limit nobody stops a run.
            Progress::Paused(Cursor { step, row }) => Err(BackendError::BadCursor { step, row }),
        }
    }

    /// A step is a product; its rows are panels of 96 rows of the weights. A run that is cancelled stops between two calls of `gemm`.
    fn run_from(&self, memory: &[MemoryHandle], from: Cursor, limit: &RunLimit<'_>) -> Result<Progress, BackendError> {
        let run = &self.run;
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let mut locks = HostLocks::take(&run.uses, memory)?;
        run.rewind(from)?;
        if limit.is_cancelled() {
            return Err(BackendError::Cancelled);
        }
        let mut work = run.work.take(run.sizes)?;
        run.open(&mut locks);
        if let Some(Helpers { pool, count }) = &self.helpers {
            for _ in 0..*count {
                let run = Arc::clone(run);
                pool.spawn(move || run.help());
            }
        }
        {
            let bases = run.gate.read().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: `locks` holds the memories, and is let go of behind `close`.
            unsafe { run.walk(&bases, &mut work, limit, true) };
        }
        run.close();
        drop(locks);
        run.work.give_back(work);
        if run.failed.load(Ordering::Acquire) {
            return Err(BackendError::DeviceLost { reason: "a kernel panicked".into() });
        }
        match run.cursor() {
            _ if limit.is_cancelled() && run.stop.load(Ordering::Acquire) => Err(BackendError::Cancelled),
            Some(cursor) => Ok(Progress::Paused(cursor)),
            None => Ok(Progress::Done(Ticket::Done)),
        }
    }
}
