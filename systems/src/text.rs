//! The canonical text of each pass: stable names and exact bytes, never entity ids or times. After the first passes only what
//! changed is printed.

use std::fmt::Write as _;

use bevy_ecs::{prelude::*, schedule::ScheduleConfigs, system::ScheduleSystem};
use entensor_components::{Cause, QueueKind};

use crate::{
    allocate::Allocated,
    columns::{Backends, NodeFlags, NodeMemory, NodePlacements, Nodes, OffloadMasks, Planning, SupportMasks},
    liveness::{Holds, Live},
    plan::{Plan, Step},
    publish::GraphPlan,
    split::{Copies, Splits},
    status::{Pass, PlanStatus},
};

/// The texts of the passes of the last run, in order; filled when recording is on.
#[derive(Resource, Clone, Debug, Default)]
pub struct PassTexts {
    /// Pass and text.
    pub texts: Vec<(Pass, String)>,
    placements: Vec<Option<(usize, Cause)>>,
}

impl PassTexts {
    /// All texts up to a pass, each under a heading.
    #[must_use]
    pub fn render(&self, until: Pass) -> String {
        let mut text = String::new();
        for (pass, body) in self.texts.iter().filter(|(pass, _)| *pass <= until) {
            let _ = writeln!(text, "# {}\n{body}", pass.name());
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        text
    }
}

/// A system that renders what a pass changed.
pub(crate) fn record_text(pass: Pass) -> ScheduleConfigs<ScheduleSystem> {
    match pass {
        Pass::Index => record_index.into_configs(),
        Pass::Probe => record_probe.into_configs(),
        Pass::Assign | Pass::Expand | Pass::Upgrade | Pass::Inherit => {
            (move |texts: ResMut<'_, PassTexts>,
                   status: Res<'_, PlanStatus>,
                   nodes: Res<'_, Nodes>,
                   backends: Res<'_, Backends>,
                   placements: Res<'_, NodePlacements>| {
                record_placements(pass, texts, &status, &nodes, &backends, &placements);
            })
            .into_configs()
        }
        Pass::Split => record_split.into_configs(),
        Pass::Liveness => record_liveness.into_configs(),
        Pass::Allocate => record_allocate.into_configs(),
        Pass::Publish => record_publish.into_configs(),
        Pass::Compute => (|| ()).into_configs(),
    }
}

fn ran(status: &PlanStatus, pass: Pass) -> bool {
    match status {
        PlanStatus::Planning => true,
        PlanStatus::Ready => pass == Pass::Publish,
        _ => false,
    }
}

fn record_index(
    status: Res<'_, PlanStatus>,
    nodes: Res<'_, Nodes>,
    flags: Res<'_, NodeFlags>,
    memory: Res<'_, NodeMemory>,
    mut texts: ResMut<'_, PassTexts>,
) {
    // A run that only computes leaves the texts of its plan alone.
    if matches!(*status, PlanStatus::Idle | PlanStatus::Ready | PlanStatus::Computing) {
        return;
    }
    texts.texts.clear();
    texts.placements.clear();
    if !ran(&status, Pass::Index) {
        return;
    }
    let mut text = String::new();
    for i in 0..nodes.len() {
        let _ = write!(text, "{} {} = ", i, nodes.names[i]);
        if i < nodes.leaves {
            let kind = match memory.buffer_of(i) {
                Some(buffer) => format!("tensor in {} ({})", buffer.name, buffer.usage.name()),
                None if flags.0[i].input => "input".into(),
                None => "scratch".into(),
            };
            let _ = write!(text, "{kind}");
        } else {
            let op = nodes.ops[i].to_string();
            let (word, params) = op.split_once(' ').unwrap_or((&op, ""));
            let _ = write!(text, "{word}");
            for &source in nodes.sources.of(i) {
                let _ = write!(text, " {}", nodes.names[source as usize]);
            }
            if !params.is_empty() {
                let _ = write!(text, " {params}");
            }
        }
        let _ = write!(text, " : {}", nodes.descs[i]);
        if !nodes.roots.is_root(i) {
            let _ = write!(text, " in {}+{}", nodes.names[nodes.roots.of(i)], nodes.roots.offset_bytes[i]);
        }
        if flags.0[i].output {
            text.push_str(" output");
        }
        text.push('\n');
    }
    texts.texts.push((Pass::Index, text));
}

fn record_probe(
    status: Res<'_, PlanStatus>,
    nodes: Res<'_, Nodes>,
    backends: Res<'_, Backends>,
    support: Res<'_, SupportMasks>,
    offload: Res<'_, OffloadMasks>,
    mut texts: ResMut<'_, PassTexts>,
) {
    if !ran(&status, Pass::Probe) {
        return;
    }
    let mut text = String::new();
    let count = backends.0.len();
    for i in nodes.computing() {
        let able: Vec<&str> = support.0.iter(i, count).map(|b| backends.0[b].name()).collect();
        let wants: Vec<&str> = offload.0.iter(i, count).map(|b| backends.0[b].name()).collect();
        if able.len() == count && wants.is_empty() {
            continue;
        }
        let _ = write!(text, "{} runs on [{}]", nodes.names[i], able.join(" "));
        if !wants.is_empty() {
            let _ = write!(text, " wanted by [{}]", wants.join(" "));
        }
        text.push('\n');
    }
    texts.texts.push((Pass::Probe, text));
}

fn record_placements(
    pass: Pass,
    mut texts: ResMut<'_, PassTexts>,
    status: &PlanStatus,
    nodes: &Nodes,
    backends: &Backends,
    placements: &NodePlacements,
) {
    if !ran(status, pass) {
        return;
    }
    texts.placements.resize(nodes.len(), None);
    let mut text = String::new();
    for i in 0..nodes.len() {
        let now = placements.get(i).map(|b| (b, placements.cause(i)));
        if now != texts.placements[i] {
            let (place, cause) = now.map_or(("nowhere", Cause::Undecided), |(b, cause)| (backends.0[b].name(), cause));
            let _ = writeln!(text, "{} -> {place} [{cause}]", nodes.names[i]);
            texts.placements[i] = now;
        }
    }
    texts.texts.push((pass, text));
}

fn record_split(
    status: Res<'_, PlanStatus>,
    nodes: Res<'_, Nodes>,
    backends: Res<'_, Backends>,
    splits: Res<'_, Splits>,
    copies: Res<'_, Copies>,
    mut texts: ResMut<'_, PassTexts>,
) {
    if !ran(&status, Pass::Split) {
        return;
    }
    let mut text = String::new();
    for (index, split) in splits.runs.iter().enumerate() {
        let _ = write!(text, "{index} {}:", backends.0[split.backend as usize].name());
        for &node in nodes.computed_by(split) {
            let _ = write!(text, " {}", nodes.names[node as usize]);
        }
        text.push('\n');
        for &copy in splits.inputs_of(split) {
            let _ = writeln!(text, "  copies {}", nodes.names[copies.0[copy as usize].source as usize]);
        }
    }
    texts.texts.push((Pass::Split, text));
}

/// `NAME`, or `BACKEND#NAME#SLOT` for copies and further slots.
fn item_name(
    holds: Holds,
    slot: u32,
    nodes: &Nodes,
    backends: &Backends,
    copies: &Copies,
    places: &NodePlacements,
) -> String {
    let (node, backend) = match holds {
        Holds::Node(node) if slot == 0 => return nodes.names[node as usize].to_string(),
        Holds::Node(node) => (node, places.backends[node as usize]),
        Holds::Copy(copy) => {
            let record = copies.0[copy as usize];
            (record.source, record.backend)
        }
    };
    format!("{}#{}#{slot}", backends.0[backend as usize].name(), nodes.names[node as usize])
}

fn record_liveness(
    status: Res<'_, PlanStatus>,
    nodes: Res<'_, Nodes>,
    backends: Res<'_, Backends>,
    copies: Res<'_, Copies>,
    places: Res<'_, NodePlacements>,
    live: Res<'_, Live>,
    mut texts: ResMut<'_, PassTexts>,
) {
    if !ran(&status, Pass::Liveness) {
        return;
    }
    let name = |item: u32| {
        let item = &live.items[item as usize];
        item_name(item.holds, item.slot, &nodes, &backends, &copies, &places)
    };
    let mut text = String::new();
    for (i, item) in live.items.iter().enumerate() {
        let own = name(crate::columns::index_u32(i));
        let _ = write!(text, "{own}: {} bytes, steps {}..={}", item.size_bytes, item.first, item.last);
        if let Some(operand) = item.in_place_of {
            let _ = write!(text, ", in place of {}", name(operand));
        }
        text.push('\n');
    }
    texts.texts.push((Pass::Liveness, text));
}

fn record_allocate(
    status: Res<'_, PlanStatus>,
    nodes: Res<'_, Nodes>,
    backends: Res<'_, Backends>,
    copies: Res<'_, Copies>,
    places: Res<'_, NodePlacements>,
    live: Res<'_, Live>,
    allocated: Res<'_, Allocated>,
    mut texts: ResMut<'_, PassTexts>,
) {
    if !ran(&status, Pass::Allocate) {
        return;
    }
    let mut text = String::new();
    for (index, buffer) in allocated.buffers.iter().enumerate() {
        let kind = &live.arenas[buffer.arena as usize].buffer_type;
        let _ = writeln!(text, "buffer {index} {kind}: {} bytes", buffer.size_bytes);
    }
    for item in &live.items {
        let place = allocated.places[item.block as usize];
        let name = item_name(item.holds, item.slot, &nodes, &backends, &copies, &places);
        let _ = writeln!(text, "{name} at {}+{}", place.buffer, place.offset_bytes);
    }
    let _ = writeln!(text, "planned {} bytes, lower bound {}", allocated.planned_bytes(), allocated.lower_bound_bytes);
    texts.texts.push((Pass::Allocate, text));
}

fn record_publish(
    status: Res<'_, PlanStatus>,
    planning: Res<'_, Planning>,
    graphs: Query<'_, '_, &GraphPlan>,
    mut texts: ResMut<'_, PassTexts>,
) {
    if !ran(&status, Pass::Publish) {
        return;
    }
    let Ok(graph) = graphs.get(planning.0) else { return };
    texts.texts.push((Pass::Publish, steps_text(&graph.plan)));
}

/// A backend's queue: its name alone where it has one only.
fn queue_name(plan: &Plan, backend: u32, queue: QueueKind) -> String {
    let backend = &plan.backends[backend as usize];
    match queue {
        QueueKind::Copy if backend.handle.has_copy_queue() => format!("{}.{}", backend.name, queue.name()),
        _ => backend.name.to_string(),
    }
}

fn steps_text(plan: &Plan) -> String {
    let mut text = String::new();
    let name = |b: u32| &plan.backends[b as usize].name;
    for (slot, program) in plan.programs.iter().enumerate() {
        if plan.programs.len() > 1 {
            let _ = writeln!(text, "slot {slot}");
        }
        for (index, step) in program.steps.iter().enumerate() {
            let _ = match step {
                Step::Copy { copy, split, from_backend, .. } => {
                    let source = plan.copies[*copy as usize].source;
                    let (from, to) = (name(*from_backend), name(plan.splits[*split as usize].backend));
                    writeln!(text, "{index} copy {} {from} -> {to}", plan.table.names[source as usize])
                }
                Step::Launch { split } => {
                    writeln!(text, "{index} launch {split} on {}", name(plan.splits[*split as usize].backend))
                }
                Step::Record { backend, event, queue } => {
                    writeln!(text, "{index} record {event} on {}", queue_name(plan, *backend, *queue))
                }
                Step::Wait { backend, event, of, queue, previous } => {
                    let queue = queue_name(plan, *backend, *queue);
                    let run = if *previous { ", run before" } else { "" };
                    writeln!(text, "{index} wait on {queue} for {event} of {}{run}", name(*of))
                }
            };
        }
    }
    text
}
