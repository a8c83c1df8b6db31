//! What has to hold for every random graph on a random machine, seed by seed: `planning` looks at plans, `numbers` at what they
//! compute, `sweep` spreads a range of seeds over the cores.

mod devices;
mod numbers;
mod planning;
mod summary;
mod sweep;

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Once,
};

use entensor_snapshots::generate::{Limits, case};
use entensor_systems::Recording;
use planning::Planner;

pub(crate) use summary::Summary;
pub(crate) use sweep::sweep;

/// Every so many seeds, the numbers are compared too.
pub(crate) const NUMBERS_EVERY: u64 = 4;

/// Every so many seeds, the text of the passes is compared with that of a new world, instead of one that has planned before.
const NEW_WORLD_EVERY: u64 = 8;

/// The worlds that seeds are tried in. They are used for some seeds in a row, so that what a graph leaves behind would show;
/// every few seeds one of them is new.
struct Tools {
    planner: Planner,
    second: Planner,
    one_host: Planner,
    devices: Planner,
}

impl Tools {
    fn new() -> Self {
        let new = Planner::new;
        let (on, off) = (Recording::On, Recording::Off);
        Self { planner: new(on), second: new(on), one_host: new(off), devices: new(off) }
    }
}

/// A seed that went wrong.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Which.
    pub(crate) seed: u64,
    /// The graph on its machine.
    pub(crate) text: String,
    /// The property that does not hold, or the panic.
    pub(crate) message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}: {}\n--- text\n{}---", self.seed, self.message, self.text)
    }
}

thread_local! {
    /// While a seed is tried on this thread: what a panic says.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Has panics of seeds kept for their report; those of other threads are printed as ever.
fn keep_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let kept = PANIC.with_borrow_mut(|kept| match kept {
                Some(words) => {
                    *words = format!("panic: {panic}");
                    true
                }
                None => false,
            });
            if !kept {
                others(panic);
            }
        }));
    });
}

/// Tries one part of a seed.
fn part(seed: u64, limits: Limits, check: impl FnOnce(&str) -> Result<(), String>) -> Result<(), Box<Failure>> {
    let mut text = String::new();
    PANIC.set(Some(String::new()));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        text = case(seed, limits);
        check(&text)
    }));
    let words = PANIC.take().unwrap_or_default();
    let message = match outcome {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(message)) => message,
        Err(_) => words,
    };
    Err(Box::new(Failure { seed, text, message }))
}

/// Tries a seed, and adds what was done to the summary.
fn check(seed: u64, tools: &mut Tools, summary: &mut Summary) -> Result<(), Box<Failure>> {
    summary.pairs += 1;
    if seed.is_multiple_of(NEW_WORLD_EVERY) {
        tools.second = Planner::new(Recording::On);
        summary.new_worlds += 1;
    }
    part(seed, Limits::default(), |source| planning::check(source, tools, summary))?;
    if seed.is_multiple_of(NUMBERS_EVERY) {
        // What nobody has written has no value to compare, and few nodes have few placements.
        let turn = seed / NUMBERS_EVERY;
        let nodes = if turn.is_multiple_of(2) { 4 } else { 16 };
        part(seed, Limits { scratch: false, nodes }, |source| numbers::check(turn, source, tools, summary))?;
    }
    Ok(())
}
