//! Work memory: owned by the backend, lent to whoever works on one of its splits.

use std::sync::{Mutex, PoisonError};

use entensor_components::BackendError;

/// How many f32 a worker needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Of decoded weights.
    pub(crate) weights: usize,
    /// Of decoded activations.
    pub(crate) activations: usize,
}

impl Sizes {
    pub(crate) fn largest(self, other: Self) -> Self {
        Self { weights: self.weights.max(other.weights), activations: self.activations.max(other.activations) }
    }
}

/// The work memory of one worker.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) weights: Vec<f32>,
    pub(crate) activations: Vec<f32>,
}

impl Work {
    fn grow(&mut self, sizes: Sizes) -> Result<(), BackendError> {
        for (memory, size) in [(&mut self.weights, sizes.weights), (&mut self.activations, sizes.activations)] {
            let more = size.saturating_sub(memory.len());
            let size_bytes = (size as u64).saturating_mul(4);
            memory.try_reserve_exact(more).map_err(|_| BackendError::OutOfMemory { size_bytes })?;
            memory.resize(memory.len() + more, 0.0);
        }
        Ok(())
    }
}

/// Work memory that nobody uses at the moment.
#[derive(Debug, Default)]
pub(crate) struct WorkPool(Mutex<Vec<Work>>);

impl WorkPool {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Work>> {
        // Whoever panicked with the lock held has moved whole entries only.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that so many workers find memory of these sizes, unless others have it at the time.
    pub(crate) fn keep(&self, workers: usize, sizes: Sizes) -> Result<(), BackendError> {
        let mut idle = self.idle();
        while idle.len() < workers {
            idle.push(Work::default());
        }
        idle.iter_mut().try_for_each(|work| work.grow(sizes))
    }

    /// Takes memory of these sizes; allocates where all of it is in use.
    pub(crate) fn take(&self, sizes: Sizes) -> Result<Work, BackendError> {
        let mut work = self.idle().pop().unwrap_or_default();
        match work.grow(sizes) {
            Ok(()) => Ok(work),
            Err(error) => {
                self.give_back(work);
                Err(error)
            }
        }
    }

    /// Gives it back.
    pub(crate) fn give_back(&self, work: Work) {
        self.idle().push(work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_lent_and_comes_back() {
        let pool = WorkPool::default();
        let sizes = Sizes { weights: 8, activations: 2 };
        pool.keep(1, sizes).expect("small");
        let first = pool.take(sizes).expect("it is there");
        let address = first.weights.as_ptr();
        let second = pool.take(sizes.largest(Sizes { weights: 3, activations: 5 })).expect("small");
        assert_eq!((second.weights.len(), second.activations.len()), (8, 5));
        pool.give_back(first);
        assert_eq!(pool.take(sizes).expect("it came back").weights.as_ptr(), address);
        let huge = Sizes { weights: usize::MAX / 8, activations: 0 };
        assert!(matches!(pool.take(huge), Err(BackendError::OutOfMemory { .. })));
    }
}
