//! Proves from a timeline that no byte depends on luck.
//!
//! Work is ordered by its lane, by the events it waited for, and by what the host had waited for before it submitted it: vector
//! clocks say what each piece of work knows to be over. Every read must know the write before it, every write the reads and
//! writes before it, "before" being the order of the host's calls. Times play no part, so the answer holds for every schedule.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use crate::timeline::{Lane, Outcome, Timeline, TimelineEntry, Work};

/// What two pieces of work do to the same bytes without an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaceKind {
    /// Reads what the other may not have written yet.
    ReadOfUnfinishedWrite,
    /// Overwrites what the other may still read.
    OverwriteOfUnfinishedRead,
    /// Overwrites what the other may write later.
    OverwriteOfUnfinishedWrite,
}

/// Two pieces of work on the same bytes, and nothing says which comes first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{second}` on {second_lane:?}: {kind:?} of `{first}` on {first_lane:?}, bytes {bytes:?} of memory {memory}")]
pub struct Race {
    /// What is wrong.
    pub kind: RaceKind,
    /// The one that was submitted first.
    pub first: Arc<str>,
    /// Where it ran.
    pub first_lane: Lane,
    /// The other.
    pub second: Arc<str>,
    /// Where that ran.
    pub second_lane: Lane,
    /// Which memory.
    pub memory: u64,
    /// Which bytes of it.
    pub bytes: Range<u64>,
}

/// Per lane, how much of it is known to be over.
type Clock = BTreeMap<Lane, u64>;

fn merge(into: &mut Clock, from: &Clock) {
    for (&lane, &tick) in from {
        let known = into.entry(lane).or_default();
        *known = (*known).max(tick);
    }
}

/// A piece of work as bytes remember it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    lane: Lane,
    tick: u64,
    ticket: u64,
}

#[derive(Clone, Debug, Default)]
struct Segment {
    end: u64,
    writer: Option<Seen>,
    readers: Vec<Seen>,
}

#[derive(Default)]
struct Bytes(BTreeMap<u64, Segment>);

impl Bytes {
    /// Cuts at a place, if a segment lies across it.
    fn cut(&mut self, at: u64) {
        let Some((_, segment)) = self.0.range_mut(..at).next_back().filter(|(_, segment)| segment.end > at) else {
            return;
        };
        let behind = segment.clone();
        segment.end = at;
        self.0.insert(at, behind);
    }

    fn visit(&mut self, bytes: &Range<u64>, mut each: impl FnMut(Range<u64>, &mut Segment)) {
        self.cut(bytes.start);
        self.cut(bytes.end);
        let mut at = bytes.start;
        while at < bytes.end {
            let next = self.0.range(at..bytes.end).next().map_or(bytes.end, |(&start, _)| start);
            if next > at {
                self.0.insert(at, Segment { end: next, ..Segment::default() });
            }
            let segment = self.0.get_mut(&at).expect("there is one now");
            let end = segment.end;
            each(at..end, segment);
            at = end;
        }
    }
}

/// Every pair of accesses whose order is left to luck, once for each pair of works.
///
/// # Errors
/// The races, if there are any.
pub fn check(timeline: &Timeline) -> Result<(), Vec<Race>> {
    let mut checker = Checker::default();
    for entry in &timeline.entries {
        match entry {
            TimelineEntry::Work(work) => checker.work(work),
            TimelineEntry::HostWait { host, ticket } => {
                if let Some(clock) = checker.ends.get(ticket) {
                    let clock = clock.clone();
                    merge(checker.lanes.entry(Lane::Host(*host)).or_default(), &clock);
                }
            }
        }
    }
    if checker.races.is_empty() { Ok(()) } else { Err(checker.races) }
}

#[derive(Default)]
struct Checker {
    lanes: BTreeMap<Lane, Clock>,
    /// What was known at the end of each work.
    ends: BTreeMap<u64, Clock>,
    labels: BTreeMap<u64, Arc<str>>,
    memories: BTreeMap<u64, Bytes>,
    races: Vec<Race>,
}

impl Checker {
    fn work(&mut self, work: &Work) {
        let mut clock = self.lanes.get(&work.lane).cloned().unwrap_or_default();
        let host = self.lanes.get(&Lane::Host(work.host)).cloned().unwrap_or_default();
        merge(&mut clock, &host);
        for wait in &work.waits {
            if let Some(end) = self.ends.get(wait) {
                merge(&mut clock, end);
            }
        }
        let tick = clock.get(&work.lane).copied().unwrap_or(0) + 1;
        clock.insert(work.lane, tick);
        self.labels.insert(work.ticket, Arc::clone(&work.label));
        if work.outcome != Outcome::Dropped {
            let seen = Seen { lane: work.lane, tick, ticket: work.ticket };
            // All reads first: a result computed in place is read before it is written.
            for write in [false, true] {
                for access in work.accesses.iter().filter(|access| access.write == write) {
                    self.access(&clock, seen, access.memory, &access.bytes, write);
                }
            }
        }
        self.ends.insert(work.ticket, clock.clone());
        self.lanes.insert(work.lane, clock);
    }

    fn access(&mut self, clock: &Clock, by: Seen, memory: u64, bytes: &Range<u64>, write: bool) {
        let knows = |other: &Seen| clock.get(&other.lane).is_some_and(|&tick| tick >= other.tick);
        let mut found: Vec<(Seen, Range<u64>, RaceKind)> = Vec::new();
        self.memories.entry(memory).or_default().visit(bytes, |range, segment| {
            if let Some(writer) = segment.writer.filter(|writer| !knows(writer)) {
                let kind = if write { RaceKind::OverwriteOfUnfinishedWrite } else { RaceKind::ReadOfUnfinishedWrite };
                found.push((writer, range.clone(), kind));
            }
            if write {
                for reader in segment.readers.drain(..).filter(|reader| !knows(reader)) {
                    found.push((reader, range.clone(), RaceKind::OverwriteOfUnfinishedRead));
                }
                segment.writer = Some(by);
            } else {
                // Of one lane the last reader stands for all before it.
                segment.readers.retain(|reader| reader.lane != by.lane);
                segment.readers.push(by);
            }
        });
        for (other, bytes, kind) in found {
            let label = |ticket| self.labels.get(&ticket).cloned().unwrap_or_else(|| "?".into());
            let (first, second) = (label(other.ticket), label(by.ticket));
            let is_known = |race: &Race| (race.kind, &race.first, &race.second) == (kind, &first, &second);
            if !self.races.iter().any(is_known) {
                let (first_lane, second_lane) = (other.lane, by.lane);
                self.races.push(Race { kind, first, first_lane, second, second_lane, memory, bytes });
            }
        }
    }
}
