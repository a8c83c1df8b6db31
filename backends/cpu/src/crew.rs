//! Helpers: threads of our own that sleep between runs, or the workers of a pool that the user shares with us.
//!
//! Nobody waits for a helper to come. Threads of our own are woken without allocating; a shared pool is asked with one
//! job (one allocation), or two for two helpers, and whoever of its workers is free looks in. A worker of a pool looks for other work of its
//! pool every fraction of a millisecond, and comes back when there is none.
//!
//! Where more threads want to run than there are cores, a helper loses its core now and then, for milliseconds, and mostly inside a chunk
//! that the caller then waits for. No wait can be shorter than that, so there are few of them: after each the caller works alone for a while,
//! and for how long depends on how long the helper was there before. Long company makes good for a wait, which then was a hiccup and is soon
//! over; where waits follow each other, others want the core all the time, and the caller works alone for many times as long as it has waited
//! ([`Lateness`]).

use std::{
    sync::{
        Arc, Mutex, PoisonError,
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

/// Company that lasted so many times as long as the wait that ended it was worth that wait: it was a hiccup.
const WORTH: u64 = 8;

/// How many times as long as it waited the caller then works alone: after a hiccup, and after company that was not worth it.
const ALONE_AFTER_HICCUP: u64 = 8;
const ALONE: u64 = 128;

/// For how long at most after a first wait; four times as long each time that company was not worth it, up to the longest.
const FIRST_ALONE: Duration = Duration::from_millis(64);
const LONGEST_ALONE: Duration = Duration::from_millis(1024);

/// What waits for helpers have come to. Times are nanoseconds from the start of the crew. Company is counted by the clock, so time between
/// runs counts, too: after a pause a wait is a hiccup until there is another.
#[derive(Clone, Copy, Debug, Default)]
struct Lateness {
    /// Until when the caller works alone.
    until: u64,
    /// For how long at most; 0 before the first wait.
    longest: u64,
}

impl Lateness {
    /// Notes a wait that is over now; until when the caller works alone.
    fn note(&mut self, now: u64, waited: Duration) -> u64 {
        let (first, most) = (nanoseconds(FIRST_ALONE), nanoseconds(LONGEST_ALONE));
        let waited = nanoseconds(waited);
        // What began before the caller went on alone is the same wait, seen by somebody else.
        if let Some(company) = now.saturating_sub(waited).checked_sub(self.until) {
            let alone = if self.longest > 0 && company < WORTH.saturating_mul(waited) {
                self.longest = (self.longest * 4).min(most);
                ALONE
            } else {
                self.longest = first;
                ALONE_AFTER_HICCUP
            };
            self.until = now.saturating_add(waited.saturating_mul(alone).min(self.longest));
        }
        self.until
    }
}

/// Who can be asked for help.
pub(crate) struct Crew {
    members: Members,
    /// Times below are nanoseconds from here.
    start: Instant,
    /// Until when helpers are left alone; 0 for no time.
    rests_until: AtomicU64,
    lateness: Mutex<Lateness>,
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
        Self { members, start: Instant::now(), rests_until: AtomicU64::new(0), lateness: Mutex::default() }
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
        // Unless a wait was noted since.
        self.rests_until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed).is_err()
    }

    /// A caller has waited so long for a helper.
    pub(crate) fn note_wait(&self, waited: Duration) {
        if waited < LATE {
            return;
        }
        // Figures are good at any time, so a panic elsewhere cannot have spoilt them.
        let mut lateness = self.lateness.lock().unwrap_or_else(PoisonError::into_inner);
        self.rests_until.fetch_max(lateness.note(self.now(), waited), Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The share of a minute that is lost by waits of one length, each of which begins so long after the last rest.
    fn lost(wait_ms: u64, gap_ms: u64) -> f64 {
        let (mut lateness, mut now, mut waited) = (Lateness::default(), 0, 0);
        while now < 60_000 * MS {
            now += (gap_ms + wait_ms) * MS;
            waited += wait_ms * MS;
            now = lateness.note(now, Duration::from_millis(wait_ms));
        }
        waited as f64 / now as f64
    }

    #[test]
    fn late_helpers_cost_little_however_late_they_are() {
        for (wait_ms, company_ms, most) in [
            (1, 0, 0.01),
            (4, 1, 0.01),
            (4, 30, 0.01),
            (20, 50, 0.021),
            (40, 30, 0.04),
            (70, 1, 0.07),
            (200, 1, 0.17),
            // Company that is worth it.
            (4, 40, 0.053),
            (4, 100, 0.03),
        ] {
            let lost = lost(wait_ms, company_ms);
            assert!(lost <= most, "waits of {wait_ms} ms, {company_ms} ms after each rest: {lost}");
        }
    }

    #[test]
    fn a_hiccup_is_soon_over_and_counts_once() {
        let mut lateness = Lateness::default();
        let until = lateness.note(1000 * MS, Duration::from_millis(100));
        assert_eq!(until, 1064 * MS);
        // Another caller waited for the same helper.
        assert_eq!(lateness.note(1001 * MS, Duration::from_millis(90)), until);
        // A second wait soon after makes the next rest longer, a late one does not.
        assert_eq!(lateness.note(1170 * MS, Duration::from_millis(100)), (1170 + 256) * MS);
        assert_eq!(lateness.note(1430 * MS, Duration::from_millis(1)), (1430 + 128) * MS);
        assert_eq!(lateness.note(2000 * MS, Duration::from_millis(1)), 2008 * MS);
        assert_eq!(lateness.note(2011 * MS, Duration::from_millis(11)), 2008 * MS, "it began before the last was over");
        assert_eq!(lateness.note(2020 * MS, Duration::from_millis(4)), 2276 * MS, "too little company since");
    }
}
