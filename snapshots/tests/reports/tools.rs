//! Plans as the reports look at them: owned rows, so that only this file knows how a plan stores its columns.

use std::{collections::BTreeMap, sync::Arc};

use entensor::graph_text::GraphText;
use entensor_components::{Cause, OpKind, TensorDesc, TensorFlags};
use entensor_snapshots::generate::Random;
use entensor_systems::{Held, Plan, PlanError, Recording, plan_schedule, verify};

use crate::common::{self, Planned};

/// A node or leaf of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) op: OpKind,
    pub(crate) desc: TensorDesc,
    pub(crate) sources: Vec<u32>,
    pub(crate) root: u32,
    pub(crate) flags: TensorFlags,
    pub(crate) existing: Option<u32>,
    pub(crate) backend: u32,
    pub(crate) cause: Cause,
}

impl Node {
    pub(crate) fn computes(&self) -> bool {
        self.op.row().computes()
    }
}

pub(crate) fn nodes(plan: &Plan) -> Vec<Node> {
    let node = |n: entensor_systems::PlanNode<'_>| Node {
        name: Arc::clone(n.name),
        op: n.op.kind(),
        desc: n.desc,
        sources: n.sources.to_vec(),
        root: n.root,
        flags: n.flags,
        existing: n.existing.map(|(buffer, _)| buffer),
        backend: n.backend,
        cause: n.cause,
    };
    plan.nodes().map(node).collect()
}

/// A split of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) backend: u32,
    pub(crate) nodes: Vec<u32>,
    /// The nodes that are copied at its start.
    pub(crate) inputs: Vec<u32>,
}

pub(crate) fn splits(plan: &Plan) -> Vec<Split> {
    let copied = |copy: &u32| plan.copies[*copy as usize].source;
    let split = |s: &entensor_systems::PlanSplit| Split {
        backend: s.backend,
        nodes: plan.split_nodes(s).to_vec(),
        inputs: plan.split_inputs(s).iter().map(copied).collect(),
    };
    plan.splits.iter().map(split).collect()
}

/// A planned tensor's place.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) name: String,
    /// The root node it holds, or the node it is a copy of.
    pub(crate) node: u32,
    pub(crate) is_copy: bool,
    pub(crate) backend: u32,
    pub(crate) slot: u32,
    pub(crate) buffer: u32,
    pub(crate) offset_bytes: u64,
    pub(crate) size_bytes: u64,
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) in_place_of: Option<u32>,
}

impl Place {
    pub(crate) fn end(&self) -> u64 {
        self.offset_bytes + self.size_bytes
    }
}

pub(crate) fn places(plan: &Plan) -> Vec<Place> {
    let place = |a: &entensor_systems::Allocation| {
        let (node, is_copy) = match a.held {
            Held::Node(node) => (node, false),
            Held::Copy(copy) => (plan.copies[copy as usize].source, true),
        };
        Place {
            name: plan.allocation_name(a).to_string(),
            node,
            is_copy,
            backend: a.backend,
            slot: a.slot,
            buffer: a.buffer,
            offset_bytes: a.offset_bytes,
            size_bytes: a.size_bytes,
            first: a.first,
            last: a.last,
            in_place_of: a.in_place_of,
        }
    };
    plan.allocations.iter().map(place).collect()
}

pub(crate) fn buffer_sizes(plan: &Plan) -> Vec<u64> {
    plan.buffers.iter().map(|buffer| buffer.size_bytes).collect()
}

pub(crate) fn backend_name(plan: &Plan, backend: u32) -> &str {
    &plan.backends[backend as usize].name
}

/// Where a node is, by names.
#[track_caller]
pub(crate) fn at(plan: &Plan, node: &str) -> String {
    let index = plan.find(node).unwrap_or_else(|| panic!("no node {node}"));
    backend_name(plan, nodes(plan)[index].backend).to_owned()
}

/// How often a node is copied to which backend in one run.
pub(crate) fn copies(plan: &Plan) -> BTreeMap<(String, String), usize> {
    let (nodes, mut made) = (nodes(plan), BTreeMap::new());
    for split in splits(plan) {
        for input in split.inputs {
            let key = (nodes[input as usize].name.to_string(), backend_name(plan, split.backend).to_owned());
            *made.entry(key).or_default() += 1;
        }
    }
    made
}

/// The steps at which each allocation's contents are touched, found by walking splits, not by asking the plan.
pub(crate) struct Touched {
    /// First and last step of each (node, backend that holds a copy, or none for the node's own memory).
    pub(crate) ranges: BTreeMap<(u32, Option<u32>), (u32, u32)>,
    pub(crate) steps: u32,
}

pub(crate) fn touched(plan: &Plan) -> Touched {
    let (nodes, mut ranges) = (nodes(plan), BTreeMap::<(u32, Option<u32>), (u32, u32)>::new());
    let copied: Vec<(u32, u32)> =
        splits(plan).iter().flat_map(|s| s.inputs.iter().map(|&i| (i, s.backend)).collect::<Vec<_>>()).collect();
    let copied: std::collections::BTreeSet<(u32, u32)> = copied.into_iter().collect();
    let mut touch = |key, step| {
        ranges.entry(key).and_modify(|range: &mut (u32, u32)| range.1 = step).or_insert((step, step));
    };
    let mut step = 0;
    for split in splits(plan) {
        for &input in &split.inputs {
            touch((nodes[input as usize].root, None), step);
            touch((input, Some(split.backend)), step);
            step += 1;
        }
        for &node in &split.nodes {
            touch((nodes[node as usize].root, None), step);
            for &source in &nodes[node as usize].sources {
                if copied.contains(&(source, split.backend)) {
                    touch((source, Some(split.backend)), step);
                } else {
                    touch((nodes[source as usize].root, None), step);
                }
            }
            step += 1;
        }
    }
    Touched { ranges, steps: step }
}

/// The plan of a text, proved.
pub(crate) fn plan(text: &str) -> Result<Arc<Plan>, PlanError> {
    planned(text).1
}

/// The same with the graph that was planned.
pub(crate) fn planned(text: &str) -> (GraphText, Result<Arc<Plan>, PlanError>) {
    let graph = common::parse("report", text);
    let plan = Planned::with_schedule(&graph, plan_schedule(Recording::Off)).result();
    if let Ok(plan) = &plan {
        verify(plan).unwrap_or_else(|violations| panic!("{violations:?}\n{text}"));
    }
    (graph, plan)
}

/// The plan of a text that has one.
#[track_caller]
pub(crate) fn expect(text: &str) -> Arc<Plan> {
    plan(text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", error.kind()))
}

/// Names of `count` backends: accelerators, then the host.
pub(crate) fn machine(count: usize, rest: &str) -> (String, Vec<String>) {
    let names: Vec<String> =
        (0..count).map(|i| if i + 1 == count { "cpu".into() } else { format!("dev{i}") }).collect();
    let lines = names.iter().map(|name| {
        let rest = if name == "cpu" { "" } else { rest };
        format!("backend {name}{rest}\n")
    });
    (lines.collect(), names)
}

/// A number in a range, both ends included.
pub(crate) fn between(random: &mut Random, first: u64, last: u64) -> u64 {
    first + random.below(last - first + 1)
}
