//! Layouts of one arena that best fit in the order of steps leaves above the bound.
//!
//! Strategies from cheap to dear, each tried only while the best layout so far is not [near](Goal::is_near) the bound:
//!
//! 1. If the blocks repeat, as those of equal layers do, one repetition on a circle ([`mod@repeat`]): some 10 ns a block.
//! 2. Best fit in the reverse order of steps ([`reversed`]): n·log n, some 50 ns a block.
//! 3. Largest block first, each at the lowest place where nothing alive at the same time is ([`Orders`]): n·log n and one look
//!    at every pair of blocks that are alive together, some 100 ns a block in graphs that are long and narrow. This is what
//!    mostly reaches the bound.
//! 4. Only if still more than [`GOOD`] above it: the same by size × lifetime, by lifetime, and by what lies between; then the
//!    best of these orders again and again, blocks that ended above the bound moving forward each time ([`squeaky`]).
//!
//! Work is counted in blocks and pairs looked at, up to [`Budget`]: a few milliseconds for a graph of a thousand nodes,
//! a few visits a block for a large one. Blocks are placed in an order that depends on nothing but the graph. Pairs need
//! memory, so where too many blocks are alive together only the first two are tried.

mod orders;
mod problem;
pub(super) mod repeat;
mod squeaky;

use super::{BlockPlace, free_list::FreeList};
use orders::Orders;
pub(super) use problem::{Job, Problem};

/// A layout this close to the bound is as good as at it: one part in so many, of the arena or of an even share of the plan. So
/// nobody searches for the last bytes of a few small tensors beside a large arena.
const NEAR: u64 = 1024;
/// Above one part in so many, of the same, the dear strategies are tried.
const GOOD: u64 = 128;

/// How much may be looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Pairs of blocks that are kept in memory.
    pub(super) pairs: usize,
    /// Blocks and pairs that are looked at.
    pub(super) visits: u64,
}

impl Budget {
    /// For so many blocks.
    pub(super) fn of(blocks: usize) -> Self {
        let blocks_u64 = blocks as u64;
        Self { pairs: (1 << 21) + 16 * blocks, visits: (1 << 21).min(blocks_u64 << 13) + 128 * blocks_u64 }
    }
}

/// One strategy's answer: sizes of the buffers, and the place of each job, permanent ones last.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    pub(super) sizes: Vec<u64>,
    pub(super) places: Vec<BlockPlace>,
}

impl Layout {
    pub(super) fn total_bytes(&self) -> u64 {
        self.sizes.iter().fold(0, |sum, size| sum.saturating_add(*size))
    }
}

/// How small a layout could be, and what counts as close.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    /// What no layout can go below.
    pub(super) target: u64,
    /// The target, or an even share of all arenas' if that is more.
    pub(super) scale: u64,
}

impl Goal {
    /// Whether no strategy is worth its time any more.
    pub(super) fn is_near(self, total: u64) -> bool {
        total <= self.target.saturating_add(self.scale / NEAR)
    }

    fn is_good(self, total: u64) -> bool {
        total <= self.target.saturating_add(self.scale / GOOD)
    }
}

/// A layout smaller than `total` bytes, if one is found.
pub(super) fn search(problem: &mut Problem, mut total: u64, budget: Budget) -> Option<Layout> {
    let goal = problem.goal;
    let mut best = repeat::repeat(problem, total);
    total = best.as_ref().map_or(total, Layout::total_bytes);
    if goal.is_near(total) {
        return best;
    }
    best = Some(reversed(problem)).filter(|layout| layout.total_bytes() < total).or(best);
    total = best.as_ref().map_or(total, Layout::total_bytes);
    if goal.is_near(total) || problem.jobs.is_empty() {
        return best;
    }
    problem.find_pairs(budget.pairs);
    let jobs = problem.jobs.len() as u64;
    if problem.pairs().is_none() && jobs.saturating_mul(jobs) / 2 > budget.visits {
        return best;
    }
    // With several buffers the bound is mostly out of reach.
    let several = goal.target > problem.limits.max_bytes;
    let mut orders = Orders::new(problem, if several { budget.visits / 8 } else { budget.visits });
    let by_size = orders.by(|job| u128::from(job.size));
    total = orders.try_order(&by_size, total, &mut best);
    if !goal.is_good(total) {
        squeaky::improve(&mut orders, by_size, total, &mut best);
    }
    best
}

/// Best fit from the last step to the first; of blocks that end together the one that began first comes first.
fn reversed(problem: &Problem) -> Layout {
    let jobs = &problem.jobs;
    let mut order: Vec<(u32, u32)> = jobs.iter().zip(0..).map(|(job, i)| (u32::MAX - job.last, i)).collect();
    order.sort_unstable();
    let mut free = FreeList::default();
    free.reset(problem.limits);
    let permanent: Vec<BlockPlace> = problem.permanent.iter().map(|job| free.take(job.size)).collect();
    let mut layout = Layout { sizes: Vec::new(), places: vec![BlockPlace::default(); jobs.len()] };
    // Jobs are sorted by their first step, so those that have not begun yet are at the end.
    let mut begun = jobs.len();
    for (_, i) in order {
        let job = &jobs[i as usize];
        while begun > 0 && jobs[begun - 1].first > job.last {
            begun -= 1;
            free.free(layout.places[begun], jobs[begun].size, 0);
        }
        layout.places[i as usize] = free.take(job.size);
    }
    layout.places.extend(permanent);
    layout.sizes = free.sizes();
    layout
}
