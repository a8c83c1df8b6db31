//! Helpers: threads of our own that sleep between runs, or the workers of a pool that the user shares with us.
//!
//! Nobody waits for a helper to come. Threads of our own are woken without allocating; a shared pool is asked with one
//! job (one allocation), or two for two helpers, and whoever of its workers is free looks in. A worker of a pool looks for other work of its
//! pool every fraction of a millisecond, and comes back when there is none.
//!
//! Where more threads want to run than there are cores, a helper loses its core now and then, for milliseconds, and mostly inside a chunk
//! that the caller then waits for. No wait can be shorter than that, so there are few of them: after each the caller works alone for many
//! times as long as it has waited, for longer each time that helpers come back late. That bounds what helpers can cost, whatever else the
//! machine is doing, and lets a single hiccup be over soon.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rayon::{ThreadPool, Yield};

use crate::{bell::Bell, run::Run};

/// Threads of our own per core of the machine, at most: more of them would only wait for each other.
const MOST_PER_CORE: usize = 16;

/// Chunks that a worker of a shared pool takes before it looks for its pool's own work: some hundred microseconds.
const TURN_CHUNKS: usize = 64;

/// A wait for a helper that no chunk explains: it has lost its core.
const LATE: Duration = Duration::from_micros(500);

/// How many times as long as it waited the caller then works alone.
const ALONE: u32 = 32;

/// For how long at most after the first wait; four times as long after each that soon follows, up to the longest.
const FIRST_ALONE: Duration = Duration::from_millis(64);
const LONGEST_ALONE: Duration = Duration::from_millis(1024);

/// Who can be asked for help.
pub(crate) struct Crew {
    members: Members,
    /// Times below are nanoseconds from here.
    start: Instant,
    /// Until when helpers are left alone; 0 for no time.
    rests_until: AtomicU64,
    /// Until when a wait counts as one of a row.
    row_until: AtomicU64,
    /// The longest rest after the next wait of the row.
    longest_alone: AtomicU64,
}

enum Members {
    Own(OwnThreads),
    Pool {
        pool: Arc<ThreadPool>,
        /// How many of its workers may help.
        helpers: usize,
    },
}

impl Crew {
    /// Starts `helpers` threads of our own, or fewer where that is of no use or the system refuses more.
    pub(crate) fn own(name: &str, helpers: usize) -> Self {
        let bell = Arc::new(Bell::default());
        let spawn = |index| {
            let bell = Arc::clone(&bell);
            std::thread::Builder::new().name(format!("{name} helper {index}")).spawn(move || bell.serve()).ok()
        };
        let threads = (0..helpers.min(cores() * MOST_PER_CORE)).map_while(spawn).collect();
        Self::of(Members::Own(OwnThreads { bell, threads }))
    }

    /// Workers of a pool: up to `helpers` of them at once.
    pub(crate) fn pool(pool: Arc<ThreadPool>, helpers: usize) -> Self {
        Self::of(Members::Pool { pool, helpers })
    }

    fn of(members: Members) -> Self {
        let time = || AtomicU64::new(0);
        Self { members, start: Instant::now(), rests_until: time(), row_until: time(), longest_alone: time() }
    }

    /// How many helpers there can be.
    pub(crate) fn helpers(&self) -> usize {
        match &self.members {
            Members::Own(own) => own.threads.len(),
            Members::Pool { helpers, .. } => *helpers,
        }
    }

    fn now(&self) -> u64 {
        nanoseconds(self.start.elapsed())
    }

    /// Whether helpers had better be left alone. Asks the clock only if there was a reason.
    pub(crate) fn is_resting(&self) -> bool {
        let until = self.rests_until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        if self.now() < until {
            return true;
        }
        self.rests_until.store(0, Ordering::Relaxed);
        false
    }

    /// A caller has waited so long for a helper.
    pub(crate) fn note_wait(&self, waited: Duration) {
        if waited < LATE {
            return;
        }
        // Callers that wait at the same time may overwrite each other's figures: any of them is a fair guess.
        let now = self.now();
        let longest = if now < self.row_until.load(Ordering::Relaxed) {
            self.longest_alone.load(Ordering::Relaxed)
        } else {
            nanoseconds(FIRST_ALONE)
        };
        let alone = nanoseconds(waited.saturating_mul(ALONE)).min(longest);
        let until = now.saturating_add(alone);
        self.longest_alone.store((longest * 4).min(nanoseconds(LONGEST_ALONE)), Ordering::Relaxed);
        self.row_until.store(until.saturating_add(alone), Ordering::Relaxed);
        self.rests_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Asks for help with a run whose gate is open.
    pub(crate) fn summon(&self, run: &Arc<Run>) {
        match &self.members {
            Members::Own(own) => own.bell.ring(run),
            Members::Pool { pool, helpers } if *helpers <= 2 => {
                for _ in 0..*helpers {
                    let run = Arc::clone(run);
                    pool.spawn(move || help_in_turns(&run));
                }
            }
            Members::Pool { pool, .. } => {
                // One allocation for however many workers; those above the limit find the gate full.
                let run = Arc::clone(run);
                pool.spawn_broadcast(move |_| help_in_turns(&run));
            }
        }
    }

    /// Takes back what was asked. Helpers inside leave by themselves.
    pub(crate) fn dismiss(&self, run: &Arc<Run>) {
        match &self.members {
            Members::Own(own) => own.bell.silence(run),
            // Jobs that were not started yet find the gate closed.
            Members::Pool { .. } => {}
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// A worker of a shared pool: helps, and does the pool's own work whenever there is any. Outside of a turn it holds nothing of the run, so
/// that work may take as long as it likes.
fn help_in_turns(run: &Run) {
    while run.help_with(TURN_CHUNKS) {
        while rayon::yield_now() == Some(Yield::Executed) {}
    }
}

/// Threads that end with their backend and the splits it prepared.
pub(crate) struct OwnThreads {
    bell: Arc<Bell<Run>>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for OwnThreads {
    fn drop(&mut self) {
        self.bell.close();
        for thread in self.threads.drain(..) {
            // Helpers catch panics of kernels; there is nothing left to report.
            let _ = thread.join();
        }
    }
}
