//! A plan as tools read it. The keys and their order are a contract.

use entensor::{Pass, PassTimings, Plan, TensorDesc, systems::Allocation};
use serde::Serialize;

/// A whole plan.
#[derive(Serialize)]
pub(crate) struct PlanJson<'a> {
    backends: Vec<BackendJson<'a>>,
    nodes: Vec<NodeJson<'a>>,
    splits: Vec<SplitJson<'a>>,
    copies: Vec<CopyJson<'a>>,
    buffers: Vec<BufferJson<'a>>,
    allocations: Vec<AllocationJson<'a>>,
    peak: PeakJson,
    passes: Vec<PassJson>,
}

/// A backend; 0 is the highest priority.
#[derive(Serialize)]
struct BackendJson<'a> {
    name: &'a str,
    priority: usize,
    planned_bytes: u64,
}

/// A leaf or a node.
#[derive(Serialize)]
struct NodeJson<'a> {
    name: &'a str,
    op: &'static str,
    dtype: &'static str,
    shape: [u64; 4],
    bytes: u64,
    sources: Vec<&'a str>,
    view_of: Option<&'a str>,
    backend: &'a str,
    cause: &'static str,
    why: String,
    split: Option<u32>,
}

/// A run of nodes on one backend; `inputs` are copied to it at its start.
#[derive(Serialize)]
struct SplitJson<'a> {
    index: usize,
    backend: &'a str,
    nodes: Vec<&'a str>,
    inputs: Vec<&'a str>,
}

/// One copy that a run makes.
#[derive(Serialize)]
struct CopyJson<'a> {
    of: &'a str,
    on: &'a str,
    bytes: u64,
    split: usize,
}

/// A buffer that the plan allocates.
#[derive(Serialize)]
struct BufferJson<'a> {
    backend: &'a str,
    bytes: u64,
}

/// A planned tensor's place, and the steps in which it is alive.
#[derive(Serialize)]
struct AllocationJson<'a> {
    name: String,
    backend: &'a str,
    buffer: u32,
    offset: u64,
    bytes: u64,
    first: u32,
    last: u32,
    in_place_of: Option<String>,
}

#[derive(Serialize)]
struct PeakJson {
    planned_bytes: u64,
    lower_bound_bytes: u64,
}

/// How long a pass took, and how much it changed.
#[derive(Serialize)]
struct PassJson {
    name: &'static str,
    ns: u64,
    changed: u64,
}

impl<'a> PlanJson<'a> {
    /// The plan that was made last, with the times of its passes.
    pub(crate) fn new(plan: &'a Plan, timings: &PassTimings) -> Self {
        let backend = |index: u32| plan.backends.get(index as usize).map_or("", |b| &*b.name);
        let node = |index: u32| plan.table.names.get(index as usize).map_or("", |name| &**name);
        let source_of = |copy: u32| plan.copies.get(copy as usize).map(|c| c.source);
        let names = |indices: &[u32]| indices.iter().map(|&i| node(i)).collect::<Vec<_>>();
        let splits = plan.splits.iter().enumerate().map(|(index, split)| SplitJson {
            index,
            backend: backend(split.backend),
            nodes: names(plan.split_nodes(split)),
            inputs: plan.split_inputs(split).iter().filter_map(|&copy| source_of(copy)).map(node).collect(),
        });
        let made = plan.splits.iter().enumerate().flat_map(|(index, split)| {
            let inputs = plan.split_inputs(split).iter().filter_map(|&copy| source_of(copy));
            inputs.map(move |source| (index, split.backend, source))
        });
        let copies = made.map(|(split, on, source)| CopyJson {
            of: node(source),
            on: backend(on),
            bytes: plan.table.descs.get(source as usize).map_or(0, TensorDesc::size_bytes),
            split,
        });
        Self {
            backends: backends(plan),
            nodes: nodes(plan),
            splits: splits.collect(),
            copies: copies.collect(),
            buffers: plan
                .buffers
                .iter()
                .map(|b| BufferJson { backend: backend(b.backend), bytes: b.size_bytes })
                .collect(),
            allocations: plan.allocations.iter().map(|a| allocation(plan, a)).collect(),
            peak: PeakJson { planned_bytes: plan.planned_bytes(), lower_bound_bytes: plan.lower_bound_bytes },
            passes: passes(timings),
        }
    }
}

fn backends(plan: &Plan) -> Vec<BackendJson<'_>> {
    let rows = plan.backends.iter().enumerate();
    rows.map(|(priority, b)| BackendJson { name: &b.name, priority, planned_bytes: b.planned_bytes }).collect()
}

fn nodes(plan: &Plan) -> Vec<NodeJson<'_>> {
    let name = |index: u32| plan.table.names.get(index as usize).map_or("", |name| &**name);
    let rows = plan.nodes().map(|n| NodeJson {
        name: n.name,
        op: n.op.kind().name(),
        dtype: n.desc.dtype.name(),
        shape: n.desc.shape.0,
        bytes: n.desc.size_bytes(),
        sources: n.sources.iter().map(|&source| name(source)).collect(),
        view_of: (n.root != n.index).then(|| name(n.root)),
        backend: plan.backends.get(n.backend as usize).map_or("", |b| &*b.name),
        cause: n.cause.name(),
        why: plan.why(n.index as usize),
        split: plan.split_of(n.index as usize),
    });
    rows.collect()
}

fn allocation<'a>(plan: &'a Plan, a: &Allocation) -> AllocationJson<'a> {
    let in_place_of = a.in_place_of.and_then(|index| plan.allocations.get(index as usize));
    AllocationJson {
        name: plan.allocation_name(a).to_string(),
        backend: plan.backends.get(a.backend as usize).map_or("", |b| &*b.name),
        buffer: a.buffer,
        offset: a.offset_bytes,
        bytes: a.size_bytes,
        first: a.first,
        last: a.last,
        in_place_of: in_place_of.map(|other| plan.allocation_name(other).to_string()),
    }
}

/// The passes that ran, in order.
fn passes(timings: &PassTimings) -> Vec<PassJson> {
    let ran = timings.iter().filter(|(_, timing)| timing.calls > 0);
    let row = |(pass, timing): (Pass, entensor::systems::PassTiming)| PassJson {
        name: pass.name(),
        ns: timing.last_ns,
        changed: timing.last_changed,
    };
    ran.map(row).collect()
}
