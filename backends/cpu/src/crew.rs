//! Helpers: threads of our own that sleep between runs, or the workers of a pool that the user shares with us.
//!
//! Nobody waits for a helper to come. Threads of our own are woken without allocating; a shared pool is asked with one
//! job (one allocation), or two for two helpers, and whoever of its workers is free looks in.

use std::{sync::Arc, thread::JoinHandle};

use rayon::ThreadPool;

use crate::{
    bell::{Bell, Help},
    run::Run,
};

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
                    pool.spawn(move || run.help());
                }
            }
            Self::Pool { pool, .. } => {
                // One allocation for however many workers; those above the limit find the gate full.
                let run = Arc::clone(run);
                pool.spawn_broadcast(move |_| run.help());
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
