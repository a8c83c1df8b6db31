//! What `walk` and `bell` are made of. The model checker compiles those two files with a module of this name that has its own
//! kinds of the same things, so they take nothing of the kind from anywhere else.

pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
};
use std::time::{Duration, Instant};

/// How long somebody spins who waits for others at work, or for the next run: splits of one graph follow each other closely, and waking
/// takes about as long as this. Whoever waits longer gives its core away.
const SPIN_TIME: Duration = Duration::from_micros(30);

/// Spins between two looks at the clock: under a microsecond.
const SPINS: u32 = 32;

/// A wait for something that mostly comes soon.
#[derive(Default)]
pub(crate) struct Patience {
    spins: u32,
    since: Option<Instant>,
}

impl Patience {
    /// A short break; false when it is time to sleep.
    pub(crate) fn spin(&mut self) -> bool {
        std::hint::spin_loop();
        self.spins += 1;
        if !self.spins.is_multiple_of(SPINS) {
            return true;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        since.elapsed() < SPIN_TIME
    }

    /// How long it has been, once that is more than a moment.
    pub(crate) fn waited(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}
