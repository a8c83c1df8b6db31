//! What happened: who ran what when, which bytes it touched, and what it had waited for.

use std::{ops::Range, sync::Arc};

use entensor_components::QueueKind;

/// Who ran something: what it ran before it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// A thread of the host, counted in the order in which they first used the world.
    Host(u32),
    /// A device's queue, devices counted in the order in which they were made.
    Queue(u32, QueueKind),
}

/// Bytes that work touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Which memory, numbered for the world.
    pub memory: u64,
    /// Which bytes of it.
    pub bytes: Range<u64>,
    /// Whether it writes them.
    pub write: bool,
}

/// What became of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It waits in its queue.
    Queued,
    /// It ran, or tried to.
    Ran,
    /// It never ran: it was cancelled, or its device is lost.
    Dropped,
}

/// One piece of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Its number: ticket and event.
    pub ticket: u64,
    /// Who ran it.
    pub lane: Lane,
    /// What it was: node names, or the kind of copy.
    pub label: Arc<str>,
    /// The tickets that it waited for, beside what was before it in its lane.
    pub waits: Vec<u64>,
    /// The thread that submitted it: all that the thread had waited for until then was over.
    pub host: u32,
    /// What it touched.
    pub accesses: Vec<Access>,
    /// Virtual time of its beginning.
    pub start_ns: u64,
    /// Virtual time of its end.
    pub end_ns: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// One entry, in the order in which the host submitted and waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimelineEntry {
    /// Work was submitted, or done by the host itself.
    Work(Work),
    /// A thread waited until work was over.
    HostWait {
        /// The thread.
        host: u32,
        /// The work.
        ticket: u64,
    },
}

/// Everything since recording began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The entries, in the order of the host's calls.
    pub entries: Vec<TimelineEntry>,
}

impl Timeline {
    /// The pieces of work, in the order of their submission.
    pub fn works(&self) -> impl Iterator<Item = &Work> {
        self.entries.iter().filter_map(|entry| match entry {
            TimelineEntry::Work(work) => Some(work),
            TimelineEntry::HostWait { .. } => None,
        })
    }

    /// The work of one lane that ran.
    pub fn ran(&self, lane: Lane) -> impl Iterator<Item = &Work> {
        self.works().filter(move |work| work.lane == lane && work.outcome == Outcome::Ran)
    }

    /// When the last work ended.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.works().map(|work| work.end_ns).max().unwrap_or(0)
    }

    /// How long two lanes were busy at the same time.
    #[must_use]
    pub fn overlap_ns(&self, a: Lane, b: Lane) -> u64 {
        let (mut sum, others) = (0, self.ran(b).collect::<Vec<_>>());
        for work in self.ran(a) {
            for other in &others {
                let (start, end) = (work.start_ns.max(other.start_ns), work.end_ns.min(other.end_ns));
                sum += end.saturating_sub(start);
            }
        }
        sum
    }
}
