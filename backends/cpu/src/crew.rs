//! Helpers: threads of our own that sleep between runs, or the workers of a pool that the user shares with us.
//!
//! Nobody waits for a helper to come. Threads of our own are woken without allocating; a shared pool is asked with one
//! job (one allocation), or two for two helpers, and whoever of its workers is free looks in.

use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use rayon::ThreadPool;

use crate::run::Run;

/// How long a helper of our own looks out for the next run before it sleeps: splits of one graph follow each other
/// closely, and waking takes longer than that.
const LOOKOUT_SPINS: u32 = 500;

/// Who can be asked for help.
pub(crate) enum Crew {
    Own(OwnThreads),
    Pool {
        pool: Arc<ThreadPool>,
        /// How many of its workers may help.
        helpers: usize,
    },
}

impl Crew {
    /// Starts `helpers` threads of our own, or fewer where the system refuses more.
    pub(crate) fn own(name: &str, helpers: usize) -> Self {
        let bell = Arc::new(Bell::default());
        let spawn = |index| {
            let bell = Arc::clone(&bell);
            std::thread::Builder::new().name(format!("{name} helper {index}")).spawn(move || bell.serve()).ok()
        };
        let threads = (0..helpers).map_while(spawn).collect();
        Self::Own(OwnThreads { bell, threads })
    }

    /// How many helpers there can be.
    pub(crate) fn helpers(&self) -> usize {
        match self {
            Self::Own(own) => own.threads.len(),
            Self::Pool { helpers, .. } => *helpers,
        }
    }

    /// Asks for help with a run whose gate is open.
    pub(crate) fn summon(&self, run: &Arc<Run>) {
        match self {
            Self::Own(own) => own.bell.ring(run),
            Self::Pool { pool, helpers } if *helpers <= 2 => {
                for _ in 0..*helpers {
                    let run = Arc::clone(run);
                    pool.spawn(move || help(&run));
                }
            }
            Self::Pool { pool, .. } => {
                // One allocation for however many workers; those above the limit find the gate full.
                let run = Arc::clone(run);
                pool.spawn_broadcast(move |_| help(&run));
            }
        }
    }

    /// Takes back what was asked. Helpers inside leave by themselves.
    pub(crate) fn dismiss(&self, run: &Arc<Run>) {
        match self {
            Self::Own(own) => own.bell.silence(run),
            // Jobs that were not started yet find the gate closed.
            Self::Pool { .. } => {}
        }
    }
}

/// Helps, and keeps a panic of a kernel from ending the thread or the pool: the run reports it.
fn help(run: &Run) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.help()));
}

/// Threads that end with their backend and the splits it prepared.
pub(crate) struct OwnThreads {
    bell: Arc<Bell>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for OwnThreads {
    fn drop(&mut self) {
        self.bell.state().closing = true;
        self.bell.rung.notify_all();
        self.bell.rings.fetch_add(1, Ordering::Release);
        for thread in self.threads.drain(..) {
            // Helpers catch panics of kernels; there is nothing left to report.
            let _ = thread.join();
        }
    }
}

/// Runs that want help.
#[derive(Default)]
struct Bell {
    state: Mutex<BellState>,
    rung: Condvar,
    /// Changes with every ring, so that helpers can look out without a lock.
    rings: AtomicUsize,
}

#[derive(Default)]
struct BellState {
    runs: Vec<Arc<Run>>,
    sleepers: usize,
    closing: bool,
}

impl Bell {
    fn state(&self) -> std::sync::MutexGuard<'_, BellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, run: &Arc<Run>) {
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

    fn silence(&self, run: &Arc<Run>) {
        let mut state = self.state();
        if let Some(index) = state.runs.iter().position(|r| Arc::ptr_eq(r, run)) {
            state.runs.swap_remove(index);
        }
    }

    /// A helper's life.
    fn serve(&self) {
        let mut heard = self.rings.load(Ordering::Acquire);
        while let Some(run) = self.next_run(&mut heard) {
            help(&run);
            drop(run);
            for _ in 0..LOOKOUT_SPINS {
                if self.rings.load(Ordering::Acquire) != heard {
                    break;
                }
                std::hint::spin_loop();
            }
        }
    }

    /// Sleeps until a run wants help; `None` when it is time to go.
    fn next_run(&self, heard: &mut usize) -> Option<Arc<Run>> {
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
