//! The protocol of runs and helpers, and how helpers are woken, under every order that threads and memory allow.
//!
//! The two files are compiled with loom's kinds of locks and atomics in place of the standard library's. What chunks compute is a relaxed
//! number each: a read that is not ordered behind its write finds an old value in some order, and the model checker tries it.

#[path = "../src/bell.rs"]
#[allow(dead_code, reason = "the backend uses all of it")]
mod bell;
#[path = "../src/walk.rs"]
#[allow(dead_code, reason = "the backend uses all of it")]
mod walk;

/// What the two files are made of here.
mod sync {
    pub(crate) use loom::sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    };

    /// Nobody spins: whoever has to wait sleeps at once, so that every order of falling asleep and being woken is tried.
    #[derive(Default)]
    pub(crate) struct Patience(());

    impl Patience {
        pub(crate) fn spin(&mut self) -> bool {
            false
        }
    }
}

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize as Plain, Ordering::Relaxed},
    },
};

use bell::{Bell, Help};
use loom::{sync::atomic::AtomicUsize, thread};
use sync::Patience;
use walk::{End, Helpers, StepShape, Task, Walk, Word};

/// Steps of chunks that count how often they ran. Every chunk checks that memory is bound, and that the steps it depends on are done.
struct Model {
    walk: Walk<&'static str>,
    shapes: Vec<StepShape>,
    chunks: Vec<Vec<AtomicUsize>>,
    /// Which run the memory is bound for; 0 for none.
    bound: AtomicUsize,
    /// How often each chunk is to have run when a step that depends on it starts.
    round: AtomicUsize,
    fails: Option<(usize, usize)>,
}

impl Model {
    fn new(shapes: &[StepShape], max_helpers: usize) -> Self {
        Self {
            walk: Walk::new(shapes.iter().copied(), max_helpers),
            shapes: shapes.to_vec(),
            chunks: shapes.iter().map(|shape| (0..shape.chunks).map(|_| AtomicUsize::new(0)).collect()).collect(),
            bound: AtomicUsize::new(0),
            round: AtomicUsize::new(1),
            fails: None,
        }
    }

    /// Binds memory, leads from a place, and takes memory away again.
    fn lead(
        &self,
        from: (usize, usize),
        limit: impl Fn(bool) -> Word,
        helpers: Option<&dyn Helpers>,
    ) -> End<&'static str> {
        assert!(self.walk.has(from.0, from.1), "{from:?} is a place");
        self.bound.store(1, Relaxed);
        self.walk.reset(from.0, from.1);
        let end = self.walk.lead(self, from, Some(limit), helpers);
        self.bound.store(0, Relaxed);
        end
    }

    /// How often each chunk ran, step after step.
    fn counts(&self) -> Vec<usize> {
        self.chunks.iter().flatten().map(|count| count.load(Relaxed)).collect()
    }

    /// Chunks before a place, all steps in a row.
    fn index(&self, step: usize, chunk: usize) -> usize {
        self.shapes[..step].iter().map(|shape| shape.chunks).sum::<usize>() + chunk
    }
}

impl Task for Model {
    type Failure = &'static str;

    fn run_chunk(&self, step: usize, chunk: usize) -> Result<(), &'static str> {
        assert_eq!(self.bound.load(Relaxed), 1, "memory is not bound");
        if self.fails == Some((step, chunk)) {
            return Err("failed");
        }
        let round = self.round.load(Relaxed);
        for count in self.chunks[..self.shapes[step].after].iter().flatten() {
            assert_eq!(count.load(Relaxed), round, "a step that this one depends on is not done");
        }
        self.chunks[step][chunk].fetch_add(1, Relaxed);
        assert_eq!(self.bound.load(Relaxed), 1, "memory was taken away");
        Ok(())
    }

    fn panicked() -> &'static str {
        "panicked"
    }
}

impl Help for Model {
    fn wants_help(&self) -> bool {
        self.walk.wants_help()
    }

    fn help(&self) {
        self.walk.help(self, usize::MAX);
    }
}

/// Helpers that come by themselves, whenever they like, as the jobs of a shared pool do.
struct Jobs;

impl Helpers for Jobs {
    fn are_resting(&self) -> bool {
        false
    }

    fn summon(&self) {}

    fn dismiss(&self) {}

    fn were_late(&self, _patience: &Patience) {}
}

/// Helpers that rest for so many chunks of the caller's whenever one of them was late.
struct Weary {
    rest: usize,
    left: Cell<usize>,
}

impl Helpers for Weary {
    fn are_resting(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }

    fn summon(&self) {}

    fn dismiss(&self) {}

    fn were_late(&self, _patience: &Patience) {
        self.left.set(self.rest + 1);
    }
}

/// Helpers that sleep until they are called.
struct Called<'a>(&'a Bell<Model>, &'a Arc<Model>);

impl Helpers for Called<'_> {
    fn are_resting(&self) -> bool {
        false
    }

    fn were_late(&self, _patience: &Patience) {}

    fn summon(&self) {
        self.0.ring(self.1);
    }

    fn dismiss(&self) {
        self.0.silence(self.1);
    }
}

fn steps(shapes: &[(usize, usize)]) -> Vec<StepShape> {
    shapes.iter().map(|&(chunks, after)| StepShape { chunks, after, ..StepShape::default() }).collect()
}

/// A step whose chunks are claimed two at a time while there are many, and one that depends on it.
fn streams() -> Vec<StepShape> {
    let mut shapes = steps(&[(8, 0), (1, 1)]);
    shapes[0].together = 4;
    shapes
}

/// Runs a model in every order with so many preemptions, or as many as `LOOM_MAX_PREEMPTIONS` says, and says how many orders
/// that were.
fn check(name: &str, preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let orders = Arc::new(Plain::new(0));
    let counted = Arc::clone(&orders);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        model();
    });
    println!("{name}: {} orders", orders.load(Relaxed));
    assert!(orders.load(Relaxed) > 1, "{name}: nothing was interleaved");
}

/// A job that helps once, at any time.
fn job(model: &Arc<Model>) -> thread::JoinHandle<()> {
    let model = Arc::clone(model);
    thread::spawn(move || model.help())
}

fn go_on(_begun: bool) -> Word {
    Word::GoOn
}

/// After as many calls of a limit as it says, a word.
fn after(calls: usize, word: Word) -> impl Fn(bool) -> Word {
    let left = std::cell::Cell::new(calls);
    move |_| {
        if left.get() == 0 {
            return word;
        }
        left.set(left.get() - 1);
        Word::GoOn
    }
}

#[test]
fn a_job_of_a_pool_helps_before_in_or_after_a_run() {
    check("one job, two runs", 2, || {
        let model = Arc::new(Model::new(&steps(&[(2, 0), (1, 1)]), 1));
        let job = job(&model);
        for round in 1..=2 {
            model.round.store(round, Relaxed);
            assert_eq!(model.lead((0, 0), go_on, Some(&Jobs)), End::Done);
            assert_eq!(model.counts(), [round; 3]);
        }
        job.join().expect("it ends");
    });
    check("two jobs, room for one", 1, || {
        let model = Arc::new(Model::new(&steps(&[(2, 0), (2, 1)]), 1));
        let jobs = [job(&model), job(&model)];
        assert_eq!(model.lead((0, 0), go_on, Some(&Jobs)), End::Done);
        assert_eq!(model.counts(), [1; 4]);
        jobs.into_iter().for_each(|job| job.join().expect("it ends"));
    });
}

#[test]
fn a_pause_is_one_place_and_the_run_goes_on_there() {
    for calls in 1..4 {
        check(&format!("a pause before chunk {calls}"), 2, move || {
            let model = Arc::new(Model::new(&steps(&[(2, 0), (2, 1)]), 1));
            let job = job(&model);
            match model.lead((0, 0), after(calls, Word::Pause), Some(&Jobs)) {
                End::Done => {}
                End::Paused(step, chunk) => {
                    let done = model.index(step, chunk);
                    assert!(done >= 1, "no progress");
                    let expected: Vec<usize> = (0..4).map(|index| usize::from(index < done)).collect();
                    assert_eq!(model.counts(), expected, "everything before {step}, {chunk}, nothing behind");
                    assert_eq!(model.lead((step, chunk), go_on, Some(&Jobs)), End::Done);
                }
                end => panic!("{end:?}"),
            }
            assert_eq!(model.counts(), [1; 4]);
            job.join().expect("it ends");
        });
    }
}

/// Chunks that are claimed together are done together: whatever ends a run in the middle of them, they are before the place where it ends.
#[test]
fn a_claim_of_several_chunks_is_never_left_half_done() {
    for calls in 1..4 {
        check(&format!("streams, a pause before claim {calls}"), 1, move || {
            let model = Arc::new(Model::new(&streams(), 1));
            let job = job(&model);
            match model.lead((0, 0), after(calls, Word::Pause), Some(&Jobs)) {
                End::Done => {}
                End::Paused(step, chunk) => {
                    assert!(model.walk.has(step, chunk), "{step}, {chunk} is a place");
                    let done = model.index(step, chunk);
                    let expected: Vec<usize> = (0..9).map(|index| usize::from(index < done)).collect();
                    assert_eq!(model.counts(), expected, "everything before {step}, {chunk}, nothing behind");
                    assert_eq!(model.lead((step, chunk), go_on, Some(&Jobs)), End::Done);
                }
                end => panic!("{end:?}"),
            }
            assert_eq!(model.counts(), [1; 9]);
            job.join().expect("it ends");
        });
    }
    check("streams, a cancel", 1, || {
        let model = Arc::new(Model::new(&streams(), 1));
        let job = job(&model);
        let end = model.lead((0, 0), after(1, Word::Cancel), Some(&Jobs));
        assert!(matches!(end, End::Done | End::Cancelled), "{end:?}");
        let before = model.counts();
        model.round.store(2, Relaxed);
        if before == [1; 9] {
            assert_eq!(model.lead((0, 0), go_on, Some(&Jobs)), End::Done);
            assert_eq!(model.counts(), [2; 9]);
        }
        job.join().expect("it ends");
    });
    for chunk in [0, 1] {
        check(&format!("streams, chunk {chunk} fails"), 1, move || {
            let mut model = Model::new(&streams(), 1);
            model.fails = Some((0, chunk));
            let model = Arc::new(model);
            let job = job(&model);
            assert_eq!(model.lead((0, 0), go_on, Some(&Jobs)), End::Failed("failed"));
            let counts = model.counts();
            assert_eq!(counts[8], 0, "a step behind the failure ran");
            assert_eq!(counts[chunk], 0, "the chunk failed");
            job.join().expect("it ends");
        });
    }
}

#[test]
fn a_step_that_is_held_is_never_left_half_done() {
    for calls in 1..3 {
        check(&format!("held, a pause before chunk {calls}"), 2, move || {
            let mut shapes = steps(&[(3, 0), (1, 1)]);
            shapes[0].held_inside = true;
            let model = Arc::new(Model::new(&shapes, 1));
            let job = job(&model);
            let end = model.lead((0, 0), after(calls, Word::Pause), Some(&Jobs));
            assert!(matches!(end, End::Done | End::Paused(1, 0)), "{end:?}");
            assert_eq!(model.counts()[..3], [1; 3]);
            job.join().expect("it ends");
        });
    }
}

#[test]
fn after_a_cancel_nobody_is_inside_and_the_next_run_is_whole() {
    for calls in 0..3 {
        check(&format!("a cancel before chunk {calls}"), 2, move || {
            let model = Arc::new(Model::new(&steps(&[(2, 0), (1, 0)]), 1));
            let job = job(&model);
            let end = model.lead((0, 0), after(calls, Word::Cancel), Some(&Jobs));
            assert!(matches!(end, End::Done | End::Cancelled), "{end:?}");
            let before = model.counts();
            assert!(before.iter().all(|&count| count <= 1));
            assert_eq!(model.lead((0, 0), go_on, Some(&Jobs)), End::Done);
            assert!(model.counts().iter().zip(before).all(|(&after, before)| after == before + 1));
            job.join().expect("it ends");
        });
    }
}

#[test]
fn a_failure_of_anybody_ends_the_run_once() {
    check("a failing chunk", 3, || {
        let mut model = Model::new(&steps(&[(3, 0), (1, 1)]), 1);
        model.fails = Some((0, 1));
        let model = Arc::new(model);
        let job = job(&model);
        assert_eq!(model.lead((0, 0), go_on, Some(&Jobs)), End::Failed("failed"));
        assert_eq!(model.counts()[3], 0, "a step behind the failure ran");
        job.join().expect("it ends");
    });
}

/// The gate closes and opens again in the middle of a run.
#[test]
fn a_helper_that_was_late_leaves_and_may_come_back() {
    for rest in [0, 1, 2] {
        check(&format!("a rest of {rest} chunks"), 2, move || {
            let model = Arc::new(Model::new(&steps(&[(2, 0), (2, 1)]), 1));
            let job = job(&model);
            let weary = Weary { rest, left: Cell::new(0) };
            assert_eq!(model.lead((0, 0), go_on, Some(&weary)), End::Done);
            assert_eq!(model.counts(), [1; 4]);
            job.join().expect("it ends");
        });
    }
}

/// Helpers that take turns: each takes a few chunks, and comes back as long as there are more.
#[test]
fn a_job_that_takes_turns_takes_part_again() {
    check("turns of one chunk", 2, || {
        let model = Arc::new(Model::new(&steps(&[(2, 0), (2, 1)]), 1));
        let turns = {
            let model = Arc::clone(&model);
            thread::spawn(move || while model.walk.help(&*model, 1) {})
        };
        assert_eq!(model.lead((0, 0), go_on, Some(&Jobs)), End::Done);
        assert_eq!(model.counts(), [1; 4]);
        turns.join().expect("it ends");
    });
}

/// Sleeping helpers: nobody sleeps through the end, and a run needs nobody to wake up.
#[test]
fn the_bell_wakes_who_sleeps_and_lets_them_go() {
    check("a bell, two runs", 2, || {
        let model = Arc::new(Model::new(&steps(&[(2, 0)]), 1));
        let bell = Arc::new(Bell::default());
        let helper = {
            let bell = Arc::clone(&bell);
            thread::spawn(move || bell.serve())
        };
        for round in 1..=2 {
            model.round.store(round, Relaxed);
            assert_eq!(model.lead((0, 0), go_on, Some(&Called(&bell, &model))), End::Done);
            assert_eq!(model.counts(), [round; 2]);
        }
        bell.close();
        helper.join().expect("it goes home");
    });
    check("a bell, two helpers, a pause", 1, || {
        let model = Arc::new(Model::new(&steps(&[(2, 0), (1, 1)]), 2));
        let bell = Arc::new(Bell::default());
        let helpers = [(); 2].map(|()| {
            let bell = Arc::clone(&bell);
            thread::spawn(move || bell.serve())
        });
        let end = model.lead((0, 0), after(1, Word::Pause), Some(&Called(&bell, &model)));
        if let End::Paused(step, chunk) = end {
            assert_eq!(model.lead((step, chunk), go_on, Some(&Called(&bell, &model))), End::Done);
        }
        assert_eq!(model.counts(), [1; 3]);
        bell.close();
        helpers.into_iter().for_each(|helper| helper.join().expect("it goes home"));
    });
}
