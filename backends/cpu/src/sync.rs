//! What `walk` and `bell` are made of. The model checker compiles those two files with a module of this name that has its own
//! kinds of the same things, so they take nothing of the kind from anywhere else.

pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
};

/// How often a helper of our own looks for the next run before it sleeps: splits of one graph follow each other closely, and waking
/// takes longer than that.
pub(crate) const LOOKOUT_SPINS: u32 = 500;

/// Spins before a waiting worker gives its core away.
const SPINS: u32 = 256;

/// A short break in a loop that waits for somebody who is at work.
#[derive(Default)]
pub(crate) struct Patience(u32);

impl Patience {
    pub(crate) fn wait(&mut self) {
        if self.0 < SPINS {
            self.0 += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}
