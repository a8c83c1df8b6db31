//! A range of seeds on all cores. The outcome does not depend on how many there are.

use std::{
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use super::{Failure, Summary, Tools, check, keep_panics};

/// Seeds that a thread takes at a time, from a multiple of it on, with new worlds: so a failure comes again in a run that begins
/// there, if it does not in a run of its seed alone.
const PORTION: u64 = 64;

/// Tries every seed of a range, or those at its start that are begun in time; `progress` is told how many are done, now and then.
///
/// # Errors
/// The smallest seed that fails.
pub(crate) fn sweep(
    seeds: Range<u64>,
    threads: usize,
    until: Option<Instant>,
    progress: impl Fn(u64) + Sync,
) -> Result<Summary, Box<Failure>> {
    keep_panics();
    let (portions, done) = (AtomicU64::new(seeds.start / PORTION), AtomicU64::new(0));
    // Seeds above a failure are of no interest; those below it are still tried.
    let end = AtomicU64::new(seeds.end);
    let total = Mutex::new(Summary::default());
    let failure: Mutex<Option<Box<Failure>>> = Mutex::new(None);
    let work = || {
        let mut summary = Summary::default();
        loop {
            // Before a portion is taken: what was taken is done, so that no gap stays.
            if until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            let portion = portions.fetch_add(1, Ordering::Relaxed);
            let Some(first) = portion.checked_mul(PORTION).filter(|&first| first < end.load(Ordering::Relaxed)) else {
                break;
            };
            let (first, behind) = (first.max(seeds.start), first.saturating_add(PORTION).min(seeds.end));
            let mut tools = Tools::new();
            for seed in first..behind {
                if let Err(failed) = check(seed, &mut tools, &mut summary) {
                    end.fetch_min(seed, Ordering::Relaxed);
                    let mut smallest = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    if smallest.as_ref().is_none_or(|smallest| seed < smallest.seed) {
                        *smallest = Some(failed);
                    }
                    break;
                }
            }
            progress(done.fetch_add(behind - first, Ordering::Relaxed) + behind - first);
        }
        total.lock().unwrap_or_else(PoisonError::into_inner).add(&summary);
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(failure) => Err(failure),
        None => Ok(total.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}
