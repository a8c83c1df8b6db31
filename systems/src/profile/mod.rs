//! **profile**: how long passes, runs, and their splits, copies and ops take, as data of fixed size.
//!
//! There is a [`Profile`] in the World while somebody wants one; without it no clock is asked but for [`PassTimings`](crate::PassTimings).
//! What it holds is made when a graph first runs under it; after that recording allocates nothing.
//! Cost of a run that is timed as a whole: some looks at the clock and entries of two histograms, 0.25 µs on a slow core. Of a run that is timed in
//! parts: 0.1 µs for each part; graphs whose runs are short are timed so every n-th run only.

mod figures;
mod record;
mod report;

use std::{sync::Arc, time::Duration};

use bevy_ecs::prelude::*;
use rustc_hash::FxHashMap;

pub use figures::{Figures, Timing};
pub use record::Recorder;
pub(crate) use record::Watch;
pub use report::{CopyProfile, GraphProfile, NodeProfile, OpProfile, SplitProfile};

use crate::{plan::Plan, status::Pass};

/// How a [`Profile`] takes its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileConfig {
    /// Graphs whose runs take less than this, on average so far, are short.
    pub short_run: Duration,
    /// Splits, copies and ops of short graphs are timed in every run of this number; in each run of all others. At least 1.
    pub every: u32,
    /// Graphs that are kept; the one that did not run for longest goes first. At least 1.
    pub graphs: usize,
}

impl Default for ProfileConfig {
    fn default() -> Self {
        Self { short_run: Duration::from_micros(50), every: 64, graphs: 64 }
    }
}

struct Entry {
    recorder: Arc<Recorder>,
    /// By the clock below: when it was first and last run.
    first: u64,
    last: u64,
}

/// Times of everything that runs in this World. Insert it to begin, remove it to end; [`Self::reset`] forgets what was gathered.
#[derive(Resource)]
pub struct Profile {
    config: ProfileConfig,
    passes: [Timing; Pass::ALL.len()],
    graphs: FxHashMap<Entity, Entry>,
    clock: u64,
}

impl Default for Profile {
    fn default() -> Self {
        Self::new(ProfileConfig::default())
    }
}

impl Profile {
    /// A profile without any times.
    #[must_use]
    pub fn new(config: ProfileConfig) -> Self {
        let passes = std::array::from_fn(|_| Timing::coarse());
        Self { config, passes, graphs: FxHashMap::default(), clock: 0 }
    }

    /// How times are taken.
    #[must_use]
    pub fn config(&self) -> ProfileConfig {
        self.config
    }

    /// Times of a pass.
    #[must_use]
    pub fn pass(&self, pass: Pass) -> Figures {
        self.passes[pass as usize].figures()
    }

    pub(crate) fn record_pass(&mut self, pass: Pass, ns: u64) {
        self.passes[pass as usize].record(ns);
    }

    /// What is known of a graph: of its present plan, or of its last one if it has not run since. `None` before its first run.
    #[must_use]
    pub fn graph(&self, graph: Entity) -> Option<GraphProfile> {
        self.graphs.get(&graph).map(|entry| entry.recorder.report(graph))
    }

    /// All graphs that are kept, in the order in which they first ran. Makes copies: for looking, not for each frame.
    #[must_use]
    pub fn graphs(&self) -> Vec<GraphProfile> {
        let mut entries: Vec<_> = self.graphs.iter().collect();
        entries.sort_by_key(|(_, entry)| entry.first);
        entries.into_iter().map(|(&graph, entry)| entry.recorder.report(graph)).collect()
    }

    /// Forgets all times, and keeps the memory that they took.
    pub fn reset(&mut self) {
        self.passes.iter_mut().for_each(Timing::reset);
        self.graphs.values().for_each(|entry| entry.recorder.reset());
    }

    /// What takes the times of a graph's runs of this plan. Another plan begins anew.
    pub(crate) fn recorder(&mut self, graph: Entity, name: &Arc<str>, plan: &Arc<Plan>) -> &Arc<Recorder> {
        self.clock += 1;
        let now = self.clock;
        if !self.graphs.contains_key(&graph) && self.graphs.len() >= self.config.graphs.max(1) {
            let oldest = self.graphs.iter().min_by_key(|(_, entry)| entry.last).map(|(&graph, _)| graph);
            if let Some(oldest) = oldest {
                self.forget(oldest);
            }
        }
        let config = &self.config;
        let make = || Arc::new(Recorder::new(name, plan, config));
        let entry = self.graphs.entry(graph).or_insert_with(|| Entry { recorder: make(), first: now, last: now });
        if !entry.recorder.is_of(plan) {
            entry.recorder.stop();
            entry.recorder = make();
        }
        entry.last = now;
        &entry.recorder
    }

    fn forget(&mut self, graph: Entity) {
        if let Some(entry) = self.graphs.remove(&graph) {
            entry.recorder.stop();
        }
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        // Runs that are under way, and who runs a graph without the schedule, have recorders of their own.
        self.graphs.values().for_each(|entry| entry.recorder.stop());
    }
}
