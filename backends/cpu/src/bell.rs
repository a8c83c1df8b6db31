//! How runs wake helpers that sleep, without an allocation.

use std::sync::{Arc, PoisonError};

use crate::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, Patience};

/// A run, as its helpers see it.
pub(crate) trait Help {
    /// Whether a helper would find something to do.
    fn wants_help(&self) -> bool;

    /// Helps as long as there is something to do; does nothing if the run is over.
    fn help(&self);
}

/// Runs that want help.
pub(crate) struct Bell<R> {
    state: Mutex<State<R>>,
    rung: Condvar,
    /// Changes with every ring, so that helpers can look out without a lock.
    rings: AtomicUsize,
}

struct State<R> {
    runs: Vec<Arc<R>>,
    sleepers: usize,
    closing: bool,
}

impl<R> Default for Bell<R> {
    fn default() -> Self {
        let state = State { runs: Vec::new(), sleepers: 0, closing: false };
        Self { state: Mutex::new(state), rung: Condvar::new(), rings: AtomicUsize::new(0) }
    }
}

impl<R: Help> Bell<R> {
    fn state(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes who sleeps for a run.
    pub(crate) fn ring(&self, run: &Arc<R>) {
        let sleepers = {
            let mut state = self.state();
            state.runs.push(Arc::clone(run));
            state.sleepers
        };
        self.rings.fetch_add(1, Ordering::Release);
        if sleepers > 0 {
            self.rung.notify_all();
        }
    }

    /// Wakes nobody for this run any more. Helpers inside leave by themselves.
    pub(crate) fn silence(&self, run: &Arc<R>) {
        let mut state = self.state();
        if let Some(index) = state.runs.iter().position(|r| Arc::ptr_eq(r, run)) {
            state.runs.swap_remove(index);
        }
    }

    /// Sends all helpers home.
    pub(crate) fn close(&self) {
        self.state().closing = true;
        self.rung.notify_all();
        self.rings.fetch_add(1, Ordering::Release);
    }

    /// A helper's life.
    pub(crate) fn serve(&self) {
        let mut heard = self.rings.load(Ordering::Acquire);
        while let Some(run) = self.next_run(&mut heard) {
            run.help();
            drop(run);
            // The next run mostly follows soon.
            let mut patience = Patience::default();
            while self.rings.load(Ordering::Acquire) == heard && patience.spin() {}
        }
    }

    /// Sleeps until a run wants help; `None` when it is time to go.
    fn next_run(&self, heard: &mut usize) -> Option<Arc<R>> {
        let mut state = self.state();
        loop {
            if state.closing {
                return None;
            }
            *heard = self.rings.load(Ordering::Acquire);
            if let Some(run) = state.runs.iter().find(|run| run.wants_help()) {
                return Some(Arc::clone(run));
            }
            state.sleepers += 1;
            state = self.rung.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.sleepers -= 1;
        }
    }
}
