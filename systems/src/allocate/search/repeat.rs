//! Layers that repeat: one repetition is laid out on a circle of steps, and every other lies where it does.
//!
//! Models are stacks of equal layers, so their blocks repeat: the same sizes and lifetimes, some steps later. Laid out on a circle
//! as long as a repetition, the blocks of one fit beside those of the repetition before and after, whatever is alive across the
//! seam. What stands before and behind the stack is placed around it. Cost: some nanoseconds a block, where looking at all
//! blocks in an order costs a hundred.

use super::{
    BlockPlace, Layout,
    problem::{Job, Problem},
};

const UNPLACED: u64 = u64::MAX;
/// So many blocks of a repetition are laid out at most: each is compared with each.
const MOST_PLACED: usize = 192;
/// Blocks around the stack may look at so many blocks each, on average over all blocks.
const VISITS_PER_JOB: usize = 16;

/// A stack of equal repetitions among the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stack {
    /// Its first job, and the one behind its last.
    start: usize,
    end: usize,
    /// Jobs of a repetition.
    jobs: usize,
    /// Steps of a repetition.
    steps: u32,
}

/// A layout of one buffer smaller than `total` bytes, if the jobs repeat and it comes out so.
pub(in crate::allocate) fn repeat(problem: &Problem, total: u64) -> Option<Layout> {
    if problem.has_shrinks() || problem.goal.target > problem.limits.max_bytes {
        return None;
    }
    let stack = find(&problem.jobs)?;
    let mut addresses = vec![UNPLACED; problem.jobs.len()];
    // Blocks that hand over to each other round a circle may need two places in turn.
    let orders = [(1, Key::Size), (1, Key::SizeByLife), (2, Key::Size), (2, Key::SizeByLife)];
    orders.into_iter().find_map(|(times, key)| lay_out(problem, stack.longer(times), key, &mut addresses))?;
    surround(problem, stack, &mut addresses)?;
    let mut size = problem.permanent_bytes;
    for (job, address) in problem.jobs.iter().zip(&addresses) {
        size = size.max(address.checked_add(job.size)?);
    }
    // What stands around the stack may reach behind the end of the one buffer.
    if size > problem.limits.max_bytes {
        return None;
    }
    let places = addresses.iter().map(|&offset_bytes| BlockPlace { buffer: 0, offset_bytes });
    (size < total).then(|| Layout { sizes: vec![size], places: places.chain(problem.permanent_places()).collect() })
}

impl Stack {
    /// The same with so many repetitions taken as one.
    fn longer(self, times: u32) -> Self {
        Self { jobs: self.jobs * times as usize, steps: self.steps.saturating_mul(times), ..self }
    }
}

/// What comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Size,
    /// Size × lifetime.
    SizeByLife,
}

/// What a job has in common with those of other repetitions: its size, its lifetime, and the steps since the job before it.
fn facts(jobs: &[Job], job: usize) -> (u64, u32, u32) {
    let Job { first, last, size, .. } = jobs[job];
    (size, last - first, first - jobs[job.saturating_sub(1)].first)
}

/// The stack that fills the middle of the jobs.
fn find(jobs: &[Job]) -> Option<Stack> {
    let middle = jobs.len() / 4..jobs.len() - jobs.len() / 4;
    let period = period(middle.clone().map(|job| {
        let (size, life, steps) = facts(jobs, job);
        (size ^ u64::from(life) << 40 ^ u64::from(steps) << 52).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }))?;
    let alike = |job: usize| facts(jobs, job) == facts(jobs, job + period);
    let mut start = middle.start;
    // The numbers compared so far may be equal by accident.
    let mut end = middle.start;
    while end + period < jobs.len() && alike(end) {
        end += 1;
    }
    while start > 1 && alike(start - 1) {
        start -= 1;
    }
    let steps = jobs[start + period].first - jobs[start].first;
    let stack = Stack { start, end: end + period, jobs: period, steps };
    (steps > 0 && stack.end >= middle.end && stack.end - stack.start >= 2 * period).then_some(stack)
}

/// The smallest period that a sequence has at least twice (Knuth, Morris and Pratt 1977).
fn period(sequence: impl ExactSizeIterator<Item = u64>) -> Option<usize> {
    let sequence: Vec<u64> = sequence.collect();
    // Per place the length of the longest proper prefix that ends there.
    let mut borders: Vec<u32> = Vec::with_capacity(sequence.len());
    borders.push(0);
    let mut border = 0;
    for &number in sequence.get(1..)? {
        while border > 0 && sequence[border] != number {
            border = borders[border - 1] as usize;
        }
        border += usize::from(sequence[border] == number);
        borders.push(crate::columns::index_u32(border));
    }
    let period = sequence.len() - border;
    (period * 2 <= sequence.len()).then_some(period)
}

/// A job of one repetition, on the circle of its steps.
struct OnCircle {
    key: u128,
    size: u64,
    address: u64,
    /// Its first step from the seam.
    begin: u32,
    /// Steps from its first to its last.
    life: u32,
    index: usize,
}

impl OnCircle {
    fn is_alive_with(&self, other: &Self, steps: u32) -> bool {
        let apart = if other.begin >= self.begin { other.begin - self.begin } else { other.begin + steps - self.begin };
        apart <= self.life || apart == 0 || steps - apart <= other.life
    }
}

/// Places the stack's jobs, those of the largest key first, each at the lowest place where nothing alive at the same time on the circle is; or
/// nothing, if that is not near the bound.
fn lay_out(problem: &Problem, stack: Stack, key: Key, addresses: &mut [u64]) -> Option<()> {
    let Stack { start, end, jobs, steps } = stack;
    if jobs > MOST_PLACED || end - start < jobs {
        return None;
    }
    let once = &problem.jobs[start..start + jobs];
    // Who lives longer than the circle is in its own way.
    if once.iter().any(|job| job.last - job.first >= steps) {
        return None;
    }
    let mut order: Vec<OnCircle> = Vec::with_capacity(jobs);
    order.extend(once.iter().zip(0..).map(|(job, index)| OnCircle {
        key: u128::from(job.size) * if key == Key::Size { 1 } else { u128::from(job.last - job.first) + 1 },
        size: job.size,
        address: 0,
        begin: (job.first - once[0].first) % steps,
        life: job.last - job.first,
        index,
    }));
    order.sort_by_key(|job| std::cmp::Reverse(job.key));
    let mut taken = Vec::with_capacity(jobs);
    for placed in 0..jobs {
        taken.clear();
        let (standing, this) = order.split_at_mut(placed);
        let this = &mut this[0];
        for that in standing.iter().filter(|that| this.is_alive_with(that, steps)) {
            taken.push((that.address, problem.limits.end(that.address, that.size)));
        }
        this.address = lowest(problem.floor, this.size, &mut taken);
        if !problem.goal.is_near(this.address.checked_add(this.size)?) {
            return None;
        }
        addresses[start + this.index] = this.address;
    }
    for job in start + jobs..end {
        addresses[job] = addresses[job - jobs];
    }
    Some(())
}

/// Places what stands before and behind the stack, largest first.
fn surround(problem: &Problem, stack: Stack, addresses: &mut [u64]) -> Option<()> {
    let jobs = &problem.jobs;
    let longest = jobs.iter().map(|job| job.last - job.first).max()?;
    let mut order: Vec<usize> = (0..stack.start).chain(stack.end..jobs.len()).collect();
    order.sort_by_key(|&job| std::cmp::Reverse(jobs[job].size));
    let mut visits = VISITS_PER_JOB * jobs.len();
    let mut taken = Vec::new();
    for job in order {
        let Job { first, last, size, .. } = jobs[job];
        taken.clear();
        let earlier = (0..job).rev().take_while(|&other| first - jobs[other].first <= longest);
        let later = (job + 1..jobs.len()).take_while(|&other| jobs[other].first <= last);
        for other in earlier.chain(later) {
            visits = visits.checked_sub(1)?;
            if addresses[other] != UNPLACED && jobs[other].last >= first {
                taken.push((addresses[other], problem.limits.end(addresses[other], jobs[other].size)));
            }
        }
        addresses[job] = lowest(problem.floor, size, &mut taken);
    }
    Some(())
}

/// The lowest address from `floor` on where `size` bytes are not taken.
fn lowest(floor: u64, size: u64, taken: &mut [(u64, u64)]) -> u64 {
    taken.sort_unstable();
    let mut at = floor;
    for &(start, end) in &*taken {
        if at.saturating_add(size) <= start {
            return at;
        }
        at = at.max(end);
    }
    at
}
