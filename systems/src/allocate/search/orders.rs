//! Jobs placed one after another, each at the lowest place where nothing alive at the same time is.
//!
//! Addresses run through all buffers: buffer `b` begins at `b` × the largest buffer, and no job crosses from one to the next.

use super::{
    BlockPlace, Layout,
    problem::{Job, Problem},
};
use crate::columns::index_u32;

const UNPLACED: u64 = u64::MAX;

/// Where a job may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// The lowest that holds it.
    Lowest,
    /// The smallest that holds it, and above everything only if there is none.
    Smallest,
}

/// A job that has its place.
struct Standing {
    address: u64,
    first: u32,
    last: u32,
    job: u32,
}

/// Layouts by order, with what they need in common.
pub(super) struct Orders<'a> {
    pub(super) problem: &'a Problem,
    /// Where buffers begin.
    span: u64,
    /// Per job its address in the last layout.
    pub(super) addresses: Vec<u64>,
    /// Per buffer how far it is used.
    sizes: Vec<u64>,
    /// Whether so many jobs are alive together that looking at all that stand, in order, is faster than sorting those.
    dense: bool,
    /// The jobs that stand, by address, if so.
    standing: Vec<Standing>,
    /// What is in a job's way: start and end, by start.
    taken: Vec<(u64, u64)>,
    /// What may still be looked at.
    visits: u64,
}

impl<'a> Orders<'a> {
    pub(super) fn new(problem: &'a Problem, visits: u64) -> Self {
        let limits = problem.limits;
        let span = limits.max_bytes.checked_next_multiple_of(limits.align_bytes).unwrap_or(limits.max_bytes);
        let addresses = vec![UNPLACED; problem.jobs.len()];
        let jobs = problem.jobs.len() as u64;
        let together = problem.pairs().map(|pairs| 2 * pairs as u64 / jobs.max(1));
        let dense =
            together.is_none_or(|together| together + sorting(usize::try_from(together).unwrap_or(0)) > jobs / 2);
        let (sizes, standing, taken) = (Vec::new(), Vec::new(), Vec::new());
        Self { problem, span, addresses, sizes, dense, standing, taken, visits }
    }

    /// Whether the budget is used up.
    pub(super) fn spent(&self) -> bool {
        self.visits == 0
    }

    /// The jobs by a key, largest first; equal ones by first step.
    pub(super) fn by(&self, key: impl Fn(&Job) -> u128) -> Vec<u32> {
        let mut keyed: Vec<(u128, u32)> = self.problem.jobs.iter().zip(0..).map(|(job, i)| (!key(job), i)).collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, i)| i).collect()
    }

    /// Places the jobs in this order, and keeps the layout if it is smaller than `total`. Returns the smaller total.
    pub(super) fn try_order(&mut self, order: &[u32], total: u64, best: &mut Option<Layout>) -> u64 {
        match self.place(order, Gap::Lowest, total) {
            Some(found) => {
                *best = Some(self.layout());
                found
            }
            None => total,
        }
    }

    /// Places the jobs in this order. Returns the bytes of all buffers, or nothing as soon as they reach `limit`.
    pub(super) fn place(&mut self, order: &[u32], gap: Gap, limit: u64) -> Option<u64> {
        self.visits = self.visits.saturating_sub(1);
        self.addresses.fill(UNPLACED);
        self.standing.clear();
        self.sizes.clear();
        self.sizes.push(self.problem.permanent_bytes);
        let mut total = self.problem.permanent_bytes;
        for &job in order {
            let address = self.find(job as usize, gap)?;
            self.addresses[job as usize] = address;
            let Job { first, last, size, .. } = self.problem.jobs[job as usize];
            if self.dense {
                let at = self.standing.partition_point(|other| other.address < address);
                self.standing.insert(at, Standing { address, first, last, job });
            }
            let (buffer, offset) = self.split(address);
            let buffer = usize::try_from(buffer).ok()?;
            if self.sizes.len() <= buffer {
                self.sizes.resize(buffer + 1, 0);
            }
            let end = offset + size;
            total = total.checked_add(end.saturating_sub(self.sizes[buffer]))?;
            self.sizes[buffer] = self.sizes[buffer].max(end);
            if total >= limit {
                return None;
            }
        }
        Some(total)
    }

    /// The place for a job among those that stand.
    fn find(&mut self, job: usize, gap: Gap) -> Option<u64> {
        let span = self.span;
        let Self { problem, addresses, taken, standing, dense, .. } = self;
        let (first, last) = (problem.jobs[job].first, problem.jobs[job].last);
        let end_of = |other: usize, address: u64| {
            let start = split(span, address).1;
            address - start + problem.limits.end(start, problem.size_from(other, first))
        };
        taken.clear();
        let mut visits: u64 = 4;
        if *dense {
            visits += standing.len() as u64;
            let together = standing.iter().filter(|other| other.first <= last && other.last >= first);
            taken.extend(together.map(|other| (other.address, end_of(other.job as usize, other.address))));
        } else {
            for other in problem.together(job) {
                visits += 1;
                let address = addresses[other];
                if address != UNPLACED {
                    taken.push((address, end_of(other, address)));
                }
            }
            visits += sorting(taken.len());
            taken.sort_unstable();
        }
        self.visits = self.visits.saturating_sub(visits);
        self.fit_between(self.problem.jobs[job].size, gap)
    }

    /// The place between what is taken.
    fn fit_between(&self, size: u64, gap: Gap) -> Option<u64> {
        let (span, max) = (self.span, self.problem.limits.max_bytes);
        let mut at = self.problem.floor;
        let mut found: Option<(u64, u64)> = None;
        for &(start, end) in &self.taken {
            let free = fit(span, max, at, size)?;
            if free.checked_add(size)? <= start {
                if gap == Gap::Lowest {
                    return Some(free);
                }
                if found.is_none_or(|(len, _)| start - free < len) {
                    found = Some((start - free, free));
                }
            }
            at = at.max(end);
        }
        match found {
            Some((_, address)) => Some(address),
            None => fit(span, max, at, size),
        }
    }

    /// The last layout.
    pub(super) fn layout(&self) -> Layout {
        let place = |&address: &u64| {
            let (buffer, offset_bytes) = self.split(address);
            BlockPlace { buffer: index_u32(usize::try_from(buffer).unwrap_or(usize::MAX)), offset_bytes }
        };
        let mut places: Vec<BlockPlace> = self.addresses.iter().map(place).collect();
        places.extend(self.problem.permanent_places());
        Layout { sizes: self.sizes.clone(), places }
    }

    fn split(&self, address: u64) -> (u64, u64) {
        split(self.span, address)
    }
}

/// What sorting so many costs, in visits.
fn sorting(len: usize) -> u64 {
    len as u64 * u64::from(len.max(1).ilog2()) / 2
}

/// Buffer and offset of an address: mostly there is one buffer, and nothing to divide.
fn split(span: u64, address: u64) -> (u64, u64) {
    if address < span { (0, address) } else { (address / span, address % span) }
}

/// The first address from `at` on where `size` bytes lie in one buffer.
fn fit(span: u64, max: u64, at: u64, size: u64) -> Option<u64> {
    let offset = split(span, at).1;
    if offset + size <= max { Some(at) } else { (at - offset).checked_add(span) }
}
