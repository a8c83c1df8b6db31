//! Orders that learn: jobs that end above the bound move forward, and everything is placed again ("squeaky wheel", Joslin and
//! Clements 1999).

use super::{
    Layout,
    orders::{Gap, Orders},
};

/// After so many orders without a smaller layout another beginning is tried.
const PATIENCE: u32 = 24;

/// Looks for layouts smaller than `total` until the budget is spent or one is near the bound.
pub(super) fn improve(orders: &mut Orders<'_>, by_size: Vec<u32>, mut total: u64, best: &mut Option<Layout>) {
    let lifetime = |job: &super::problem::Job| u128::from(job.last - job.first) + 1;
    let size = |job: &super::problem::Job| u128::from(job.size);
    let beginnings = [
        (by_size.clone(), Gap::Lowest),
        (orders.by(|job| size(job) * size(job) * lifetime(job)), Gap::Lowest),
        (orders.by(|job| size(job) * lifetime(job)), Gap::Lowest),
        (by_size, Gap::Smallest),
        (orders.by(lifetime), Gap::Lowest),
    ];
    let goal = orders.problem.goal;
    let mut random = Random(beginnings.len() as u64);
    let mut round = 0;
    while !orders.spent() && !goal.is_near(total) {
        let (beginning, gap) = &beginnings[round % beginnings.len()];
        total = climb(orders, beginning, *gap, total, best, &mut random);
        round += 1;
    }
}

fn climb(
    orders: &mut Orders<'_>,
    beginning: &[u32],
    gap: Gap,
    mut total: u64,
    best: &mut Option<Layout>,
    random: &mut Random,
) -> u64 {
    let goal = orders.problem.goal;
    // Rank and job.
    let mut ranked: Vec<(u64, u32)> = (0..).step_by(1 << 10).zip(beginning.iter().copied()).collect();
    let mut order = beginning.to_vec();
    let mut patience = PATIENCE;
    while patience > 0 && !orders.spent() && !goal.is_near(total) {
        patience -= 1;
        // Orders that get worse are placed to their end, too: what squeaks then shows where to go.
        if let Some(found) = orders.place(&order, gap, u64::MAX)
            && found < total
        {
            *best = Some(orders.layout());
            total = found;
            patience = PATIENCE;
        }
        for (rank, (key, job)) in (0_u64..).zip(&mut ranked) {
            let end = orders.addresses[*job as usize].saturating_add(orders.problem.jobs[*job as usize].size);
            *key = rank << 10;
            if end > goal.target {
                *key = rank * (200 + random.below(700));
            }
        }
        ranked.sort_unstable();
        order.clear();
        order.extend(ranked.iter().map(|&(_, job)| job));
    }
    total
}

/// A small generator of random numbers (splitmix64), from a fixed seed: the same graph always gets the same layout.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}
