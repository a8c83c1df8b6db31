//! Which steps must wait for which, where work of several queues is under way: events between queues.
//!
//! Steps are walked in their order. Bytes remember who wrote and read them last, and queues what they know to be over, as vector clocks;
//! an edge is added where a step touches bytes whose last users its queue does not know to be done. The host, on which
//! synchronous backends run, is a queue too: whatever it has done is over before anything else of the run is submitted.
//!
//! With several pipelined slots the same walk goes on over a second run: edges from the first to the second are what a
//! run has to wait for of the run before it. What exists once per slot never meets there, and slots are alike in everything
//! else, so one pair of runs stands for all. Runs further apart need no edges: a queue gets the steps of older runs first
//! ([`behind`]). What the host knows in the first run it may learn only after the second was submitted, so that counts from the
//! second run's own work on the host; where its queues meet what the host does in the first run, they stay behind that.
//!
//! Cost: n·log n in the operands of nodes, and nothing at all where every backend is synchronous.

use std::collections::BTreeMap;

use entensor_components::{QueueKind, TensorRef};
use smallvec::SmallVec;

use super::{Plan, PlanSplit, Step};
use crate::columns::index_u32;

/// A queue of the machine: the host first, then two a backend.
type Lane = usize;

const HOST: Lane = 0;

/// The lane that a backend's work is in.
pub(super) fn lane(plan: &Plan, backend: u32, queue: QueueKind) -> usize {
    let handle = &plan.backends[backend as usize].handle;
    match queue {
        _ if !handle.capabilities().asynchronous => HOST,
        QueueKind::Copy if handle.has_copy_queue() => 2 + 2 * backend as usize,
        _ => 1 + 2 * backend as usize,
    }
}

/// A step waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge {
    /// The step that waits.
    pub(super) to: u32,
    /// The step that is waited for.
    pub(super) from: u32,
    /// Whether it is one of the run before.
    pub(super) previous: bool,
}

/// The backend and queue of a step.
pub(super) fn queue_of(plan: &Plan, step: &Step) -> (u32, QueueKind) {
    match *step {
        Step::Copy { split, .. } => (plan.splits[split as usize].backend, QueueKind::Copy),
        Step::Launch { split } => (plan.splits[split as usize].backend, QueueKind::Compute),
        Step::Record { backend, queue, .. } | Step::Wait { backend, queue, .. } => (backend, queue),
    }
}

/// The edges that these steps need; the second slot's steps say what a run needs of the run before.
pub(super) fn find(plan: &Plan, first: &[Step], second: Option<&[Step]>) -> Vec<Edge> {
    let walk = Walk::over(plan, first, second);
    let count = index_u32(first.len());
    let of_run = |edge: Edge| match (edge.to < count, edge.from < count) {
        (true, _) => Some(edge),
        (false, true) => Some(Edge { to: edge.to - count, from: edge.from, previous: true }),
        // The second run has within itself the edges of the first.
        (false, false) => None,
    };
    let mut edges: Vec<Edge> = walk.edges.into_iter().filter_map(of_run).collect();
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// How many steps of the run before must have been submitted before each of these: all of the same queue, and what the host
/// does to the same bytes.
pub(super) fn behind(plan: &Plan, first: &[Step], second: &[Step]) -> Vec<u32> {
    let lane_of = |step: &Step| {
        let (backend, queue) = queue_of(plan, step);
        lane(plan, backend, queue)
    };
    let mut ends = vec![0; 1 + 2 * plan.backends.len()];
    for (index, step) in first.iter().enumerate() {
        ends[lane_of(step)] = index_u32(index) + 1;
    }
    let mut behind: Vec<u32> = first.iter().map(|step| ends[lane_of(step)]).collect();
    for (to, from) in Walk::over(plan, first, Some(second)).orders {
        if let Some(steps) = behind.get_mut(to as usize - first.len()) {
            *steps = (*steps).max(from + 1);
        }
    }
    behind
}

/// The last use of some bytes by a lane: 1 + the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    lane: Lane,
    step: u32,
}

#[derive(Clone, Debug, Default)]
struct Segment {
    end: u64,
    writer: Option<Use>,
    readers: SmallVec<[Use; 2]>,
}

/// How far each lane is known to be, by lane.
type Clock = SmallVec<[u32; 8]>;

struct Walk<'a> {
    plan: &'a Plan,
    memories: Vec<BTreeMap<u64, Segment>>,
    /// What each lane knows.
    known: Vec<Clock>,
    /// What was known when each step was done.
    done: Vec<Clock>,
    edges: Vec<Edge>,
    /// Steps of the second run with the host's steps of the first that they stay behind.
    orders: Vec<(u32, u32)>,
    /// What the host knew at its last step in this run.
    host: Clock,
    /// What the step being walked waits for.
    wanted: Vec<Use>,
}

impl<'a> Walk<'a> {
    fn new(plan: &'a Plan, steps: usize) -> Self {
        let lanes = 1 + 2 * plan.backends.len();
        Self {
            plan,
            memories: vec![BTreeMap::new(); plan.memory_count()],
            known: vec![Clock::from_elem(0, lanes); lanes],
            done: Vec::with_capacity(steps),
            edges: Vec::new(),
            orders: Vec::new(),
            host: Clock::from_elem(0, lanes),
            wanted: Vec::new(),
        }
    }

    fn over(plan: &'a Plan, first: &[Step], second: Option<&[Step]>) -> Self {
        let mut walk = Self::new(plan, first.len() + second.map_or(0, <[Step]>::len));
        for (index, step) in first.iter().enumerate() {
            walk.step(index, step, 0);
        }
        walk.host.fill(0);
        for (index, step) in second.into_iter().flatten().enumerate() {
            walk.step(first.len() + index, step, 1);
        }
        walk
    }

    fn step(&mut self, index: usize, step: &Step, slot: u32) {
        let (backend, queue) = queue_of(self.plan, step);
        let lane = lane(self.plan, backend, queue);
        merge(&mut self.known[lane], &self.host);
        self.wanted.clear();
        let by = Use { lane, step: index_u32(index) + 1 };
        match step {
            Step::Copy { from, to, .. } => {
                self.touch(from, false, by);
                self.touch(to, true, by);
            }
            Step::Launch { split } => {
                let plan = self.plan;
                self.nodes(&plan.splits[*split as usize], slot, by);
            }
            Step::Record { .. } | Step::Wait { .. } => {}
        }
        self.add_edges(by);
        self.known[lane][lane] = by.step;
        self.done.push(self.known[lane].clone());
        if lane == HOST {
            self.host.clone_from(&self.known[HOST]);
        }
    }

    fn nodes(&mut self, split: &PlanSplit, slot: u32, by: Use) {
        let plan = self.plan;
        for &node in plan.split_nodes(split) {
            for &source in plan.table.sources.of(node as usize) {
                if let Some(operand) = plan.locate_read(source, split.backend, slot) {
                    self.touch(&operand, false, by);
                }
            }
            if let Some(output) = plan.locate(node as usize, slot) {
                self.touch(&output, true, by);
            }
        }
    }

    fn touch(&mut self, tensor: &TensorRef, write: bool, by: Use) {
        let Self { memories, known, wanted, .. } = self;
        let Some(memory) = memories.get_mut(tensor.memory.0 as usize) else { return };
        let known = &known[by.lane];
        let mut want = |other: Use| {
            if other.lane != by.lane && known[other.lane] < other.step {
                wanted.push(other);
            }
        };
        let (mut at, end) = (tensor.offset_bytes, tensor.offset_bytes.saturating_add(tensor.desc.size_bytes()));
        cut(memory, at);
        cut(memory, end);
        while at < end {
            let next = memory.range(at..end).next().map_or(end, |(&start, _)| start);
            if next > at {
                memory.insert(at, Segment { end: next, ..Segment::default() });
            }
            let Some(segment) = memory.get_mut(&at) else { return };
            segment.writer.into_iter().for_each(&mut want);
            if write {
                segment.readers.drain(..).for_each(&mut want);
                segment.writer = Some(by);
            } else {
                segment.readers.retain(|reader| reader.lane != by.lane);
                segment.readers.push(by);
            }
            at = segment.end;
        }
    }

    /// Latest first: it may know of the others.
    fn add_edges(&mut self, by: Use) {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.sort_unstable_by_key(|other| std::cmp::Reverse(other.step));
        for other in &wanted {
            if self.known[by.lane][other.lane] >= other.step {
                continue;
            }
            if other.lane == HOST {
                // Within a run it is known; the host records no events.
                self.orders.push((by.step - 1, other.step - 1));
            } else {
                self.edges.push(Edge { to: by.step - 1, from: other.step - 1, previous: false });
            }
            let done = self.done[other.step as usize - 1].clone();
            merge(&mut self.known[by.lane], &done);
        }
        self.wanted = wanted;
    }
}

fn merge(into: &mut Clock, from: &Clock) {
    for (a, b) in into.iter_mut().zip(from) {
        *a = (*a).max(*b);
    }
}

/// Cuts the segment that lies across a place.
fn cut(memory: &mut BTreeMap<u64, Segment>, at: u64) {
    let Some((_, segment)) = memory.range_mut(..at).next_back().filter(|(_, segment)| segment.end > at) else { return };
    let behind = segment.clone();
    segment.end = at;
    memory.insert(at, behind);
}
