//! How a caller and its helpers walk the steps of a run, and how they stop. What a chunk computes is not known here.
//!
//! The protocol, and why it cannot hang or race:
//!
//! - Every step has two counters: chunks claimed and chunks done. Whoever walks the steps claims chunks until none is left,
//!   and starts a step only when the steps it depends on have all chunks done. So nobody ever waits for a worker that has
//!   not claimed something, the caller alone can finish everything, and who arrives late finds claimed chunks and passes
//!   on. There is no barrier to join.
//! - Who waits spins a few microseconds and then sleeps, so that its core is free for whom it waits for. A sleeper marks the counter that
//!   it waits for, in the same word as the count, and whoever completes the count sees the mark and wakes it.
//! - A helper may touch the run's memory only between a successful join and its end. The caller opens the gate
//!   after binding memory, closes it when all steps are done or the run is halted, and returns only when everybody who joined has left.
//! - Chunks are claimed in order, and a step's first only after the last of the step before. So when everybody has left, what is done
//!   is everything before one place, and that is where the run can go on.
//! - Only the caller looks at clocks and tokens, each time before it claims chunks, and tells the others with a word that they read before
//!   theirs. After that nobody claims anything, but for steps that must not be left half done, which whoever is in them finishes.
//! - A helper that lost its core inside a chunk holds up everybody. So the caller may close the gate in the middle of a run, too: helpers leave
//!   before they claim again, and the caller goes on alone until it opens the gate again.

use std::{cell::Cell, ops::Range, sync::PoisonError};

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, Patience};

/// The gate's lowest bit: open. The rest counts who joined, in twos.
const OPEN: usize = 1;
const ONE_HELPER: usize = 2;

/// The highest bit of a count that somebody waits for: he sleeps.
const ASLEEP: usize = 1 << (usize::BITS - 1);

/// What a walker is told. Larger words stand.
const GO_ON: usize = 0;
const PAUSE: usize = 1;
const CANCEL: usize = 2;
const FAIL: usize = 3;

/// A step, as far as walking it goes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepShape {
    pub(crate) chunks: usize,
    /// Neighbouring chunks that may be claimed at once while many are left: where memory is read, a walker is faster in one stream than in
    /// pieces of what another reads. 0 counts as 1.
    pub(crate) together: usize,
    /// All steps before this one must be complete when the step starts.
    pub(crate) after: usize,
    /// No pause before its first chunk.
    pub(crate) held_before: bool,
    /// No pause between its chunks.
    pub(crate) held_inside: bool,
}

/// What is walked.
pub(crate) trait Task {
    /// Why it may fail.
    type Failure;

    /// Computes a chunk of a step.
    fn run_chunk(&self, step: usize, chunk: usize) -> Result<(), Self::Failure>;

    /// What a panic of a chunk is reported as.
    fn panicked() -> Self::Failure;
}

/// Who can be asked for help.
pub(crate) trait Helpers {
    /// Whether they had better be left alone for now. Asked before each chunk that the caller takes without them.
    fn are_resting(&self) -> bool;

    /// Asks them. The gate is open.
    fn summon(&self);

    /// Takes that back. The gate is closed, and helpers inside leave by themselves.
    fn dismiss(&self);

    /// The caller slept until a helper was done with its chunk; [`Self::are_resting`] may think otherwise now.
    fn were_late(&self, patience: &Patience);
}

/// What a limit says before a chunk is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    GoOn,
    Pause,
    Cancel,
}

/// How a walk ended. Nobody is inside any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End<F> {
    Done,
    /// Everything before this chunk of this step is done, and nothing behind it was begun.
    Paused(usize, usize),
    Cancelled,
    Failed(F),
}

/// Somebody gave a word; stop.
struct Stopped;

struct Step {
    shape: StepShape,
    claimed: CachePadded<AtomicUsize>,
    /// And whether somebody sleeps until all are.
    done: CachePadded<AtomicUsize>,
}

impl Step {
    fn set(&self, chunks: usize) {
        self.claimed.store(chunks, Ordering::Relaxed);
        self.done.store(chunks, Ordering::Relaxed);
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) & !ASLEEP >= self.shape.chunks
    }

    /// Whether the run may be left before the next chunk of this step.
    fn may_pause(&self) -> bool {
        let held =
            if self.claimed.load(Ordering::Relaxed) == 0 { self.shape.held_before } else { self.shape.held_inside };
        !held
    }
}

/// The state of a walk.
pub(crate) struct Walk<F> {
    steps: Box<[Step]>,
    gate: CachePadded<AtomicUsize>,
    word: CachePadded<AtomicUsize>,
    failure: Mutex<Option<F>>,
    /// Held to fall asleep and to wake, so that nobody is woken before he sleeps.
    bed: Mutex<()>,
    wake: Condvar,
    max_helpers: usize,
}

/// Chunks that were claimed: they count as done however they end, so that nobody waits for them forever.
struct Claim<'a, T: Task> {
    walk: &'a Walk<T::Failure>,
    step: &'a Step,
    chunks: Range<usize>,
    finished: bool,
}

impl<T: Task> Drop for Claim<'_, T> {
    fn drop(&mut self) {
        if !self.finished {
            self.walk.fail(T::panicked());
        }
        let before = self.step.done.fetch_add(self.chunks.len(), Ordering::AcqRel);
        if before & ASLEEP != 0 && (before & !ASLEEP) + self.chunks.len() >= self.step.shape.chunks {
            self.walk.wake();
        }
    }
}

/// Who walks: the caller, or a helper.
trait Walker {
    /// Before chunks are claimed. False to leave.
    fn goes_on<F>(&self, walk: &Walk<F>, index: usize, step: &Step) -> bool;

    /// How many chunks it may claim at once.
    fn most_chunks(&self) -> usize;

    /// After chunks were claimed.
    fn took(&self, chunks: usize);

    /// After a wait in which it slept.
    fn slept<F>(&self, walk: &Walk<F>, patience: &Patience);
}

/// A helper with chunks left that it takes before it looks for other work.
struct Guest {
    chunks: Cell<usize>,
}

impl Walker for Guest {
    fn goes_on<F>(&self, walk: &Walk<F>, _index: usize, _step: &Step) -> bool {
        self.chunks.get() > 0 && walk.gate.load(Ordering::Relaxed) & OPEN != 0
    }

    fn most_chunks(&self) -> usize {
        self.chunks.get()
    }

    fn took(&self, chunks: usize) {
        self.chunks.set(self.chunks.get().saturating_sub(chunks));
    }

    fn slept<F>(&self, _walk: &Walk<F>, _patience: &Patience) {}
}

/// The caller, with whom it may ask for help, and what ends its part.
struct Leader<'a, L> {
    from: (usize, usize),
    limit: Option<L>,
    helpers: Option<&'a dyn Helpers>,
    /// Whether the gate is open.
    is_open: Cell<bool>,
}

impl<L> Leader<'_, L> {
    fn ask_for_help<F>(&self, walk: &Walk<F>) {
        if let Some(helpers) = self.helpers.filter(|helpers| !helpers.are_resting()) {
            self.is_open.set(true);
            walk.gate.fetch_or(OPEN, Ordering::Release);
            helpers.summon();
        }
    }

    fn close<F>(&self, walk: &Walk<F>) {
        if self.is_open.replace(false) {
            walk.gate.fetch_and(!OPEN, Ordering::Relaxed);
            if let Some(helpers) = self.helpers {
                helpers.dismiss();
            }
        }
    }
}

impl<L: Fn(bool) -> Word> Walker for Leader<'_, L> {
    fn goes_on<F>(&self, walk: &Walk<F>, index: usize, step: &Step) -> bool {
        if let Some(limit) = &self.limit {
            let begun =
                index > self.from.0 || index == self.from.0 && step.claimed.load(Ordering::Relaxed) > self.from.1;
            match limit(begun) {
                Word::Pause if begun => walk.tell(PAUSE),
                Word::Pause | Word::GoOn => {}
                Word::Cancel => walk.tell(CANCEL),
            }
        }
        if self.helpers.is_some() && !self.is_open.get() {
            self.ask_for_help(walk);
        }
        true
    }

    /// Nobody breaks the stream of a caller without helpers, so it looks at its limit before every chunk.
    fn most_chunks(&self) -> usize {
        if self.helpers.is_some() { usize::MAX } else { 1 }
    }

    fn took(&self, _chunks: usize) {}

    fn slept<F>(&self, walk: &Walk<F>, patience: &Patience) {
        if let Some(helpers) = self.helpers {
            helpers.were_late(patience);
            if helpers.are_resting() {
                self.close(walk);
            }
        }
    }
}

impl<F> Walk<F> {
    pub(crate) fn new(steps: impl IntoIterator<Item = StepShape>, max_helpers: usize) -> Self {
        let step = |shape| Step {
            shape,
            claimed: CachePadded::new(AtomicUsize::new(0)),
            done: CachePadded::new(AtomicUsize::new(0)),
        };
        Self {
            steps: steps.into_iter().map(step).collect(),
            gate: CachePadded::new(AtomicUsize::new(0)),
            word: CachePadded::new(AtomicUsize::new(GO_ON)),
            failure: Mutex::new(None),
            bed: Mutex::new(()),
            wake: Condvar::new(),
            max_helpers,
        }
    }

    pub(crate) fn max_helpers(&self) -> usize {
        self.max_helpers
    }

    /// Whether a run can go on here: the start, or a place where [`Self::lead`] may have paused.
    pub(crate) fn has(&self, step: usize, chunk: usize) -> bool {
        let held = |at: &Step| if chunk == 0 { at.shape.held_before } else { at.shape.held_inside };
        let inside = |at: &Step| chunk < at.shape.chunks && !held(at);
        (step, chunk) == (0, 0) || self.steps.get(step).is_some_and(inside)
    }

    /// Puts the walk at a place. Nobody is inside.
    pub(crate) fn reset(&self, step: usize, chunk: usize) {
        for (index, at) in self.steps.iter().enumerate() {
            at.set(match index.cmp(&step) {
                std::cmp::Ordering::Less => at.shape.chunks,
                std::cmp::Ordering::Equal => chunk,
                std::cmp::Ordering::Greater => 0,
            });
        }
        self.word.store(GO_ON, Ordering::Relaxed);
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// After [`Self::reset`]: a step that is done over, from its first chunk on. The run does not pause before the place that it was put at.
    pub(crate) fn again(&self, step: usize) {
        self.steps[step].set(0);
    }

    fn tell(&self, word: usize) {
        self.word.fetch_max(word, Ordering::Release);
    }

    fn fail(&self, failure: F) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        self.tell(FAIL);
    }

    /// Whether a helper would find something to do.
    pub(crate) fn wants_help(&self) -> bool {
        let unclaimed = self.steps.last().is_some_and(|last| last.claimed.load(Ordering::Relaxed) < last.shape.chunks);
        unclaimed && self.gate.load(Ordering::Relaxed) & OPEN != 0 && self.word.load(Ordering::Relaxed) == GO_ON
    }

    fn join(&self) -> bool {
        let enter = |gate| (gate & OPEN != 0 && gate / ONE_HELPER < self.max_helpers).then_some(gate + ONE_HELPER);
        self.gate.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok()
    }

    fn wake(&self) {
        // Who waits holds this from his last look at the count until he sleeps.
        drop(self.bed());
        self.wake.notify_all();
    }

    fn bed(&self) -> MutexGuard<'_, ()> {
        self.bed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until a count is complete, after marking it: whoever completes it wakes all.
    fn sleep(&self, count: &AtomicUsize, is_complete: impl Fn(usize) -> bool) {
        let mut bed = self.bed();
        while !is_complete(count.fetch_or(ASLEEP, Ordering::AcqRel) & !ASLEEP) {
            bed = self.wake.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Helps with the run, if it still goes on, for so many chunks at most. Whether there may be more.
    pub(crate) fn help<T: Task<Failure = F>>(&self, task: &T, most_chunks: usize) -> bool {
        struct Leave<'a, F>(&'a Walk<F>);
        impl<F> Drop for Leave<'_, F> {
            fn drop(&mut self) {
                let before = self.0.gate.fetch_sub(ONE_HELPER, Ordering::AcqRel);
                if before == ASLEEP + ONE_HELPER {
                    self.0.wake();
                }
            }
        }
        if !self.join() {
            return false;
        }
        let leave = Leave(self);
        let guest = Guest { chunks: Cell::new(most_chunks) };
        // How it ended is the caller's to report.
        let _ = self.walk(task, &guest);
        drop(leave);
        guest.chunks.get() == 0 && self.wants_help()
    }

    /// Waits until all chunks of a step are done. They are claimed, and who claimed them finishes them, so this ends whatever is said
    /// meanwhile.
    fn wait(&self, step: &Step, walker: &impl Walker) -> Result<(), Stopped> {
        let mut patience = Patience::default();
        while !step.is_done() {
            if self.word.load(Ordering::Acquire) > PAUSE {
                return Err(Stopped);
            }
            if !patience.spin() {
                self.sleep(&step.done, |done| done >= step.shape.chunks);
                walker.slept(self, &patience);
            }
        }
        if self.word.load(Ordering::Acquire) > PAUSE { Err(Stopped) } else { Ok(()) }
    }

    /// Claims chunks of a step, a share of what is left; none, if nothing is.
    fn claim(&self, step: &Step, walker: &impl Walker) -> Range<usize> {
        let StepShape { chunks, together, .. } = step.shape;
        let left = chunks.saturating_sub(step.claimed.load(Ordering::Relaxed));
        // Half of an equal share, so that all end at nearly the same time.
        let share = left / (2 * (self.max_helpers + 1));
        let count = share.min(together).min(walker.most_chunks()).max(1);
        let first = step.claimed.fetch_add(count, Ordering::Relaxed);
        let claimed = first..(first + count).min(chunks);
        walker.took(claimed.len());
        claimed
    }

    fn run_chunks<T: Task<Failure = F>>(&self, task: &T, index: usize, chunks: Range<usize>) -> Result<(), Stopped> {
        let mut claim = Claim::<T> { walk: self, step: &self.steps[index], chunks: chunks.clone(), finished: false };
        let result = chunks.into_iter().try_for_each(|chunk| task.run_chunk(index, chunk));
        claim.finished = true;
        result.map_err(|failure| {
            self.fail(failure);
            Stopped
        })
    }

    /// Walks the steps, taking chunks as long as there are any.
    fn walk<T: Task<Failure = F>>(&self, task: &T, walker: &impl Walker) -> Result<(), Stopped> {
        let mut complete = 0;
        for (index, step) in self.steps.iter().enumerate() {
            let chunks = step.shape.chunks;
            if step.claimed.load(Ordering::Relaxed) >= chunks {
                continue;
            }
            while complete < step.shape.after {
                self.wait(&self.steps[complete], walker)?;
                complete += 1;
            }
            loop {
                if !walker.goes_on(self, index, step) {
                    return Err(Stopped);
                }
                match self.word.load(Ordering::Relaxed) {
                    GO_ON => {}
                    PAUSE if !step.may_pause() => {}
                    _ => return Err(Stopped),
                }
                let claimed = self.claim(step, walker);
                if claimed.is_empty() {
                    break;
                }
                self.run_chunks(task, index, claimed)?;
            }
        }
        Ok(())
    }

    /// Waits until all helpers inside have left. The gate is closed.
    fn see_off(&self) {
        let mut patience = Patience::default();
        while self.gate.load(Ordering::Acquire) & !ASLEEP != 0 {
            if !patience.spin() {
                self.sleep(&self.gate, |gate| gate == 0);
            }
        }
        self.gate.store(0, Ordering::Relaxed);
    }

    /// The caller's part from where [`Self::reset`] put the walk: everything, if need be. `limit` is asked before each chunk that the
    /// caller takes, and whether anything behind that place was taken yet; a pause before that is none.
    pub(crate) fn lead<T: Task<Failure = F>>(
        &self,
        task: &T,
        from: (usize, usize),
        limit: Option<impl Fn(bool) -> Word>,
        helpers: Option<&dyn Helpers>,
    ) -> End<F> {
        /// Closes the gate and waits for the helpers inside, also when a chunk panics.
        struct Close<'a, F, L>(&'a Walk<F>, &'a Leader<'a, L>);
        impl<F, L> Drop for Close<'_, F, L> {
            fn drop(&mut self) {
                self.1.close(self.0);
                self.0.see_off();
            }
        }
        let leader = Leader { from, limit, helpers, is_open: Cell::new(false) };
        let close = Close(self, &leader);
        leader.ask_for_help(self);
        let walked = self.walk(task, &leader);
        let all = walked.and_then(|()| self.steps.iter().try_for_each(|step| self.wait(step, &leader)));
        drop(close);
        if all.is_ok() {
            return End::Done;
        }
        match self.word.load(Ordering::Acquire) {
            FAIL => {
                let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
                End::Failed(failure.unwrap_or_else(T::panicked))
            }
            CANCEL => End::Cancelled,
            _ => {
                let unclaimed = |step: &Step| step.claimed.load(Ordering::Relaxed) < step.shape.chunks;
                match self.steps.iter().position(unclaimed) {
                    Some(step) => End::Paused(step, self.steps[step].claimed.load(Ordering::Relaxed)),
                    // Others took the last chunks while the caller stopped.
                    None => End::Done,
                }
            }
        }
    }
}
