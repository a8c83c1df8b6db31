//! How long nodes take, as the calling thread sees it.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use crate::{
    run::{Failure, Run},
    walk::Task,
};

/// A run whose caller looks at the clock whenever it takes a chunk of another step than before: what lies between two looks, waiting for
/// helpers included, is the step's that it was in. A step of which helpers take every chunk counts with the one before it.
pub(crate) struct Timed<'a> {
    run: &'a Run,
    /// The step of the last chunk, and since when.
    last: Cell<Option<(usize, Instant)>>,
    took: RefCell<&'a mut dyn FnMut(usize, Duration)>,
}

impl<'a> Timed<'a> {
    pub(crate) fn new(run: &'a Run, took: &'a mut dyn FnMut(usize, Duration)) -> Self {
        Self { run, last: Cell::new(None), took: RefCell::new(took) }
    }

    /// The caller is in this step now, or in none.
    fn come_to(&self, step: Option<usize>) {
        let last = self.last.get();
        if last.map(|(last, _)| last) == step {
            return;
        }
        let now = Instant::now();
        if let Some((last, since)) = last {
            (self.took.borrow_mut())(self.run.node(last), now - since);
        }
        self.last.set(step.map(|step| (step, now)));
    }

    /// The call is over.
    pub(crate) fn end(self) {
        self.come_to(None);
    }
}

impl Task for Timed<'_> {
    type Failure = Failure;

    fn run_chunk(&self, step: usize, chunk: usize) -> Result<(), Failure> {
        self.come_to(Some(step));
        self.run.run_chunk(step, chunk)
    }

    fn panicked() -> Failure {
        Run::panicked()
    }
}
