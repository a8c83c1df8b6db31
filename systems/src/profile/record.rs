//! What takes the times of one graph's runs.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use entensor_components::{Op, TensorDesc};

use super::{ProfileConfig, figures::Timing};
use crate::{
    columns::index_u32,
    plan::{Plan, Step},
};

/// Splits, and copies, that have statistics of their own; those behind share the last one.
const MOST_ALONE: usize = 1024;

/// Nanoseconds, as many as fit.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A node's own figures: too many for a histogram each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeTimes {
    pub(super) count: u64,
    pub(super) total_ns: u64,
    pub(super) max_ns: u64,
}

/// Nodes that compute the same: op, parameters, and what its operands and its result look like.
#[derive(Debug)]
pub(super) struct Kind {
    /// The first node of it.
    pub(super) text: String,
    pub(super) nodes: u64,
    pub(super) timing: Timing,
}

/// What was gathered, and what it is about: names are kept, so that no plan is kept alive.
#[derive(Debug)]
pub(super) struct Record {
    /// Runs since the last reset.
    begun: u64,
    pub(super) runs: Timing,
    pub(super) splits: Vec<(Arc<str>, u64, Timing)>,
    /// What is copied, to which backend, and its bytes.
    pub(super) copies: Vec<(Arc<str>, Arc<str>, u64, Timing)>,
    pub(super) kinds: Vec<Kind>,
    /// Of each node that launches work: its name, its kind, its times.
    pub(super) nodes: Vec<(Arc<str>, u32, NodeTimes)>,
}

/// Takes the times of one graph's runs of one plan.
#[derive(Debug)]
pub struct Recorder {
    pub(super) name: Arc<str>,
    plan: Weak<Plan>,
    is_on: AtomicBool,
    short_run_ns: u64,
    every: u64,
    record: Mutex<Record>,
}

impl Recorder {
    pub(super) fn new(name: &Arc<str>, plan: &Arc<Plan>, config: &ProfileConfig) -> Self {
        Self {
            name: Arc::clone(name),
            plan: Arc::downgrade(plan),
            is_on: AtomicBool::new(true),
            short_run_ns: nanoseconds(config.short_run),
            every: u64::from(config.every.max(1)),
            record: Mutex::new(Record::new(plan)),
        }
    }

    pub(super) fn is_of(&self, plan: &Plan) -> bool {
        std::ptr::eq(self.plan.as_ptr(), plan)
    }

    /// Nothing is recorded from now on.
    pub(super) fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reset(&self) {
        let record = &mut *self.lock();
        record.begun = 0;
        record.runs.reset();
        record.splits.iter_mut().for_each(|(.., timing)| timing.reset());
        record.copies.iter_mut().for_each(|(.., timing)| timing.reset());
        record.kinds.iter_mut().for_each(|kind| kind.timing.reset());
        record.nodes.iter_mut().for_each(|(.., times)| *times = NodeTimes::default());
    }
}

impl Record {
    fn new(plan: &Plan) -> Self {
        let backend = |backend: u32| Arc::clone(&plan.backends[backend as usize].name);
        let splits = plan.splits.iter().take(MOST_ALONE);
        let splits =
            splits.map(|split| (backend(split.backend), plan.split_nodes(split).len() as u64, Timing::coarse()));
        let copies = plan.copies.iter().take(MOST_ALONE);
        let copies = copies.map(|&copy| {
            let name = Arc::clone(&plan.table.names[copy.source as usize]);
            (name, backend(copy.backend), plan.copy_bytes(copy), Timing::coarse())
        });
        let (splits, copies) = (splits.collect(), copies.collect());
        let mut kinds: Vec<Kind> = Vec::new();
        let mut places: HashMap<String, u32> = HashMap::new();
        let nodes = plan.launches.iter().map(|&node| {
            let row = plan.node(node as usize);
            let operands = row.sources.iter().map(|&source| plan.table.descs[source as usize]);
            let text = describe(row.op, &row.desc, operands);
            let kind = *places.entry(text).or_insert_with_key(|text| {
                kinds.push(Kind { text: text.clone(), nodes: 0, timing: Timing::coarse() });
                index_u32(kinds.len() - 1)
            });
            kinds[kind as usize].nodes += 1;
            (Arc::clone(row.name), kind, NodeTimes::default())
        });
        let nodes = nodes.collect();
        Self { begun: 0, runs: Timing::fine(), splits, copies, kinds, nodes }
    }

    fn node(&mut self, launch: usize, ns: u64) {
        let Some((_, kind, times)) = self.nodes.get_mut(launch) else { return };
        times.count += 1;
        times.total_ns = times.total_ns.saturating_add(ns);
        times.max_ns = times.max_ns.max(ns);
        self.kinds[*kind as usize].timing.record(ns);
    }
}

/// `mul_mat(f32 [1536,1]) of q4_1 [576,1536], f32 [576,1]`.
fn describe(op: &Op, result: &TensorDesc, operands: impl Iterator<Item = TensorDesc>) -> String {
    let one = |desc: &TensorDesc| {
        let used = desc.shape.0.iter().rposition(|&dim| dim != 1).map_or(1, |last| last + 1);
        let dims: Vec<String> = desc.shape.0[..used].iter().map(u64::to_string).collect();
        format!("{} [{}]", desc.dtype, dims.join(","))
    };
    let operands: Vec<String> = operands.map(|desc| one(&desc)).collect();
    format!("{op} {} of {}", one(result), operands.join(", "))
}

/// A run that is timed: kept in its state.
#[derive(Debug)]
pub(crate) struct Watch {
    recorder: Arc<Recorder>,
    start: Instant,
    /// Parts are timed, too.
    in_parts: bool,
    /// Of a split that was paused: its pieces so far.
    pieces_ns: u64,
}

impl Watch {
    /// Begins a run; `None` if nobody wants to know.
    pub(crate) fn start(recorder: &Arc<Recorder>, plan: &Plan) -> Option<Self> {
        if !recorder.is_on.load(Ordering::Relaxed) || !recorder.is_of(plan) {
            return None;
        }
        let in_parts = {
            let record = &mut *recorder.lock();
            record.begun += 1;
            record.runs.mean_ns() >= recorder.short_run_ns || (record.begun - 1).is_multiple_of(recorder.every)
        };
        Some(Self { recorder: Arc::clone(recorder), start: Instant::now(), in_parts, pieces_ns: 0 })
    }

    /// The time now, if parts are timed.
    pub(crate) fn now(&self) -> Option<Instant> {
        self.in_parts.then(Instant::now)
    }

    /// A piece of a split came to a pause.
    pub(crate) fn piece(&mut self, since: Instant) {
        self.pieces_ns = self.pieces_ns.saturating_add(nanoseconds(since.elapsed()));
    }

    /// A split or copy is done that was begun, or went on, at this time.
    pub(crate) fn step(&mut self, step: &Step, since: Instant) {
        let ns = nanoseconds(since.elapsed()).saturating_add(std::mem::take(&mut self.pieces_ns));
        let record = &mut *self.recorder.lock();
        let timing = match step {
            Step::Launch { split } => last_of(&mut record.splits, *split).map(|(.., timing)| timing),
            Step::Copy { copy, .. } => last_of(&mut record.copies, *copy).map(|(.., timing)| timing),
            Step::Record { .. } | Step::Wait { .. } => None,
        };
        if let Some(timing) = timing {
            timing.record(ns);
        }
    }

    /// The node with this place among those that launch work took so long.
    pub(crate) fn node(&self, launch: usize, time: Duration) {
        self.recorder.lock().node(launch, nanoseconds(time));
    }

    /// The run is over.
    pub(crate) fn end(self) {
        self.recorder.lock().runs.record(nanoseconds(self.start.elapsed()));
    }
}

fn last_of<T>(column: &mut [T], index: u32) -> Option<&mut T> {
    let last = column.len().checked_sub(1)?;
    column.get_mut((index as usize).min(last))
}
