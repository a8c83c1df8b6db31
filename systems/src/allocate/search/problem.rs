//! One arena's blocks as a search looks at them, and which of them are alive together.

use super::Goal;
use crate::{
    allocate::{BlockPlace, free_list::Limits},
    columns::index_u32,
    liveness::Shrink,
};

/// A block of some bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::allocate) struct Job {
    /// Which block.
    pub(in crate::allocate) block: u32,
    pub(in crate::allocate) first: u32,
    pub(in crate::allocate) last: u32,
    pub(in crate::allocate) size: u64,
}

/// The jobs, by first step.
#[derive(Debug)]
pub(in crate::allocate) struct Problem {
    pub(in crate::allocate) limits: Limits,
    pub(in crate::allocate) jobs: Vec<Job>,
    /// Jobs that are alive together with every other: where one buffer holds everything, they lie at its start, which costs
    /// nothing, since any layout can be shifted so.
    pub(in crate::allocate) permanent: Vec<Job>,
    /// Where the next job may lie behind the permanent ones, and how many bytes those use.
    pub(super) floor: u64,
    pub(super) permanent_bytes: u64,
    /// Jobs that become smaller: (job, step, bytes in use after the step), by job and step. Mostly none.
    shrinks: Vec<(u32, u32, u64)>,
    pub(super) goal: Goal,
    /// Per job those that began before it and are alive in its first step: starts into `earlier`.
    starts: Vec<u32>,
    earlier: Vec<u32>,
}

impl Problem {
    pub(in crate::allocate) fn new(limits: Limits, mut jobs: Vec<Job>, shrinks: &[Shrink], goal: Goal) -> Self {
        let mut permanent = Vec::new();
        if goal.target <= limits.max_bytes && shrinks.is_empty() {
            let first_end = jobs.iter().map(|job| job.last).min().unwrap_or(0);
            let last_start = jobs.iter().map(|job| job.first).max().unwrap_or(0);
            jobs.retain(|&job| {
                let comes_and_goes = job.first > first_end || job.last < last_start;
                if !comes_and_goes {
                    permanent.push(job);
                }
                comes_and_goes
            });
            // The last one may end where its bytes end, whatever its alignment.
            permanent.sort_by_key(|job| limits.end(0, job.size) - job.size);
        }
        let (mut floor, mut permanent_bytes) = (0, 0);
        for job in &permanent {
            permanent_bytes = floor + job.size;
            floor = limits.end(floor, job.size);
        }
        let (shrunk, starts, earlier) = (Vec::new(), Vec::new(), Vec::new());
        let mut problem =
            Self { limits, jobs, permanent, floor, permanent_bytes, shrinks: shrunk, goal, starts, earlier };
        if !shrinks.is_empty() {
            let mut job_of: Vec<(u32, u32)> = problem.jobs.iter().zip(0..).map(|(job, i)| (job.block, i)).collect();
            job_of.sort_unstable();
            let found = shrinks.iter().filter_map(|shrink| {
                let at = job_of.binary_search_by_key(&shrink.block, |&(block, _)| block).ok()?;
                Some((job_of[at].1, shrink.step, shrink.size_bytes))
            });
            problem.shrinks.extend(found);
            problem.shrinks.sort_unstable();
        }
        problem
    }

    /// Where the permanent jobs lie.
    pub(super) fn permanent_places(&self) -> impl Iterator<Item = BlockPlace> + '_ {
        let mut end = 0;
        self.permanent.iter().map(move |job| {
            let offset_bytes = end;
            end = self.limits.end(end, job.size);
            BlockPlace { buffer: 0, offset_bytes }
        })
    }

    /// Whether any job becomes smaller.
    pub(super) fn has_shrinks(&self) -> bool {
        !self.shrinks.is_empty()
    }

    /// How many pairs of jobs are alive together, if they have been listed.
    pub(super) fn pairs(&self) -> Option<usize> {
        (self.starts.len() > self.jobs.len()).then_some(self.earlier.len())
    }

    /// Lists pairs of jobs that are alive together, unless there are more than `max`.
    pub(super) fn find_pairs(&mut self, max: usize) {
        let max = max.min(u32::MAX as usize);
        let mut alive: Vec<u32> = Vec::new();
        self.starts.reserve(self.jobs.len() + 1);
        self.starts.push(0);
        for (i, job) in self.jobs.iter().enumerate() {
            alive.retain(|&other| self.jobs[other as usize].last >= job.first);
            if self.earlier.len() + alive.len() > max {
                (self.starts, self.earlier) = (Vec::new(), Vec::new());
                return;
            }
            self.earlier.extend_from_slice(&alive);
            self.starts.push(index_u32(self.earlier.len()));
            alive.push(index_u32(i));
        }
    }

    /// Every job that is alive together with one: those that began earlier, then those that begin while it lives.
    pub(super) fn together(&self, job: usize) -> impl Iterator<Item = usize> + '_ {
        let earlier = &self.earlier[self.starts[job] as usize..self.starts[job + 1] as usize];
        let last = self.jobs[job].last;
        let later = self.jobs[job + 1..].iter().take_while(move |other| other.first <= last);
        earlier.iter().map(|&other| other as usize).chain((job + 1..).zip(later).map(|(other, _)| other))
    }

    fn shrinks_of(&self, job: usize) -> &[(u32, u32, u64)] {
        let start = self.shrinks.partition_point(|&(j, ..)| (j as usize) < job);
        let of_job = &self.shrinks[start..];
        &of_job[..of_job.partition_point(|&(j, ..)| j as usize == job)]
    }

    /// The most bytes that a job uses in `step` or later.
    pub(super) fn size_from(&self, job: usize, step: u32) -> u64 {
        if self.shrinks.is_empty() {
            return self.jobs[job].size;
        }
        let passed = self.shrinks_of(job).iter().take_while(|&&(_, last, _)| last < step);
        passed.last().map_or(self.jobs[job].size, |&(.., size)| size)
    }
}
