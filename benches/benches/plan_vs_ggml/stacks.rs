//! Stacks of layers, planned by both in turn.

use std::{error::Error, sync::Arc, time::Instant};

use entensor::{Engine, PlanSalt, systems::PlanCache};
use entensor_benches::{Placement, Stack, layers_for, machine};

use crate::{
    described::describe,
    ggml::{Drawing, Machine, Placed, Protected, Scheduler},
    samples::Samples,
};

/// A machine and how the stack lies on it.
struct Setting {
    name: &'static str,
    backends: usize,
    placement: Placement,
    /// Whether ggml's own processor backend stands beside ours, or mock devices.
    own_cpu: bool,
    /// What ggml 0.25 took for split and allocation at 1 k, 10 k and 93 k nodes, in ns per node.
    recorded: &'static str,
}

const SETTINGS: [Setting; 6] = [
    Setting {
        name: "1, ggml's own",
        backends: 1,
        placement: Placement::Layers,
        own_cpu: true,
        recorded: "87, 122, 470",
    },
    Setting { name: "1", backends: 1, placement: Placement::Layers, own_cpu: false, recorded: "87, 122, 470" },
    Setting {
        name: "2, by layer",
        backends: 2,
        placement: Placement::Layers,
        own_cpu: false,
        recorded: "124, 195, 590",
    },
    Setting { name: "3, by layer", backends: 3, placement: Placement::Layers, own_cpu: false, recorded: "-" },
    Setting {
        name: "2, by node",
        backends: 2,
        placement: Placement::Nodes,
        own_cpu: false,
        recorded: "500, 1 090, 1 010",
    },
    Setting { name: "3, by node", backends: 3, placement: Placement::Nodes, own_cpu: false, recorded: "-" },
];

/// Everything measured of one stack on one machine.
#[derive(Default)]
struct Figures {
    nodes: usize,
    leaves: usize,
    our_build: Samples,
    our_fresh: Samples,
    our_salted: Samples,
    our_unchanged: Samples,
    our_splits: usize,
    our_bytes: u64,
    lower_bound_bytes: u64,
    ggml_build: Samples,
    ggml_plan: Samples,
    ggml_split: Samples,
    ggml_reserve: Samples,
    ggml_first: Samples,
    ggml_splits: usize,
    ggml_bytes: u64,
    ggml_kept_bytes: u64,
}

/// Prints the tables for these sizes. Without mock devices, recorded figures stand for ggml's.
pub(crate) fn run(sizes: &[usize], has_mocks: bool) -> Result<(), Box<dyn Error>> {
    println!("\nns per node, least / middle of the samples\n");
    println!(
        "| backends | nodes + leaves | ours: fresh graph | ggml: split + allocate | ours ÷ ggml | ours: other salt | \
         ours: unchanged (µs) | build: ours | build: ggml | ggml: split | ggml: reserve | ggml: new + first |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    let mut memory = Vec::new();
    for setting in &SETTINGS {
        for &size in sizes {
            let figures = measure(setting, size, !has_mocks && !setting.own_cpu)?;
            print_times(setting, &figures);
            memory.push((setting.name, figures));
        }
    }
    println!("\nplanned bytes\n");
    println!(
        "| backends | nodes | splits: ours | ggml | bytes: ours | ggml | ggml, inputs kept as ours | lower bound | \
         ours ÷ bound | ours ÷ ggml | ours ÷ ggml, inputs kept |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for (name, f) in memory {
        let ratio = |of: u64| match of {
            0 => "-".into(),
            of => format!("{:.3}", f.our_bytes as f64 / of as f64),
        };
        println!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            f.nodes,
            f.our_splits,
            f.ggml_splits,
            f.our_bytes,
            f.ggml_bytes,
            f.ggml_kept_bytes,
            f.lower_bound_bytes,
            ratio(f.lower_bound_bytes),
            ratio(f.ggml_bytes),
            ratio(f.ggml_kept_bytes),
        );
    }
    Ok(())
}

fn print_times(setting: &Setting, f: &Figures) {
    let per_node = |samples: &Samples| samples.per_node(f.nodes);
    let (ggml, ratio) = if f.ggml_splits == 0 {
        (format!("recorded: {}", setting.recorded), "-".into())
    } else {
        (per_node(&f.ggml_plan), f.our_fresh.ratio(&f.ggml_plan))
    };
    println!(
        "| {} | {} + {} | {} | {ggml} | {ratio} | {} | {:.2} / {:.2} | {} | {} | {} | {} | {} |",
        setting.name,
        f.nodes,
        f.leaves,
        per_node(&f.our_fresh),
        per_node(&f.our_salted),
        f.our_unchanged.min_ns() / 1e3,
        f.our_unchanged.median_ns() / 1e3,
        per_node(&f.our_build),
        per_node(&f.ggml_build),
        per_node(&f.ggml_split),
        per_node(&f.ggml_reserve),
        per_node(&f.ggml_first),
    );
}

/// How often each thing is measured.
fn sample_count(nodes: usize) -> usize {
    (400_000 / nodes.max(1)).clamp(7, 60)
}

fn measure(setting: &Setting, size: usize, ours_alone: bool) -> Result<Figures, Box<dyn Error>> {
    let mut engine = machine(setting.backends)?;
    let stack = Stack::new(&mut engine, layers_for(size), setting.placement)?;
    let mut figures = Figures { nodes: stack.nodes(), leaves: stack.leaves(), ..Figures::default() };
    let mut ours = Ours { engine, stack, salt: 0 };
    if ours_alone {
        for _ in 0..sample_count(size) {
            ours.sample(&mut figures)?;
        }
        return Ok(figures);
    }
    // One plan of ours says what the graph is.
    let graph = ours.engine.add_graph(ours.stack.graph()?);
    ours.engine.plan(graph)?;
    let plan = ours.engine.plan_of(graph).cloned().ok_or("no plan")?;
    ours.engine.remove_graph(graph);
    let nodes = describe(&plan).ok_or("memory of no backend")?;
    drop(plan);
    let peer_machine = match setting.own_cpu {
        true => Machine::cpu().ok_or("ggml's processor backend does not start")?,
        false => Machine::mock(ours.engine.backends()),
    };
    let capacity = scheduler_capacity(nodes.len());
    let mut drawing = Drawing::new(&peer_machine, &nodes, Placed::Pins, Protected::Outputs);
    let mut scheduler = Scheduler::new(&peer_machine, capacity, false);
    drawing.draw();
    scheduler.reserve(&drawing).ok_or("ggml cannot reserve the stack")?;
    for _ in 0..sample_count(size) {
        ours.sample(&mut figures)?;
        let start = Instant::now();
        drawing.draw();
        figures.ggml_build.push(start.elapsed());
        figures.ggml_plan.push(scheduler.allocate(&drawing).ok_or("ggml cannot allocate the stack")?);
    }
    figures.ggml_splits = scheduler.splits();
    figures.ggml_bytes = scheduler.planned_bytes();
    for _ in 0..sample_count(size).min(10) {
        drawing.draw();
        figures.ggml_split.push(scheduler.split(&drawing));
        drawing.draw();
        figures.ggml_reserve.push(scheduler.reserve(&drawing).ok_or("ggml cannot reserve the stack")?);
        drawing.draw();
        let start = Instant::now();
        let mut first = Scheduler::new(&peer_machine, capacity, false);
        first.allocate(&drawing).ok_or("ggml cannot allocate the stack")?;
        figures.ggml_first.push(start.elapsed());
    }
    let mut kept = Drawing::new(&peer_machine, &nodes, Placed::Pins, Protected::InputsAndOutputs);
    kept.draw();
    let mut other = Scheduler::new(&peer_machine, capacity, false);
    other.allocate(&kept).ok_or("ggml cannot allocate the stack")?;
    figures.ggml_kept_bytes = other.planned_bytes();
    Ok(figures)
}

/// The graph size that a scheduler is made for: twice the tensors, so that its hash table is half empty.
pub(crate) fn scheduler_capacity(tensors: usize) -> usize {
    2 * tensors
}

struct Ours {
    engine: Engine,
    stack: Stack,
    salt: u64,
}

impl Ours {
    /// Builds the graph, plans it, plans it under another salt, and looks at it once more.
    fn sample(&mut self, figures: &mut Figures) -> Result<(), Box<dyn Error>> {
        self.next_salt();
        let start = Instant::now();
        let graph = self.engine.add_graph(self.stack.graph()?);
        figures.our_build.push(start.elapsed());
        let start = Instant::now();
        self.engine.plan(graph)?;
        figures.our_fresh.push(start.elapsed());
        // Held, so that taking it apart is not counted below: a cache would hold it too.
        let plan = self.engine.plan_of(graph).cloned().ok_or("no plan")?;
        self.next_salt();
        let start = Instant::now();
        self.engine.plan(graph)?;
        figures.our_salted.push(start.elapsed());
        // The first look pays for caches that planning has emptied; games look again every frame.
        self.engine.plan(graph)?;
        let start = Instant::now();
        self.engine.plan(graph)?;
        figures.our_unchanged.push(start.elapsed());
        figures.our_splits = plan.splits.len();
        figures.our_bytes = plan.planned_bytes();
        figures.lower_bound_bytes = plan.lower_bound_bytes;
        self.engine.remove_graph(graph);
        drop::<Arc<_>>(plan);
        Ok(())
    }

    /// No earlier plan fits any more, and none is kept, since plans of the largest graphs would fill the memory.
    fn next_salt(&mut self) {
        self.salt += 1;
        let world = self.engine.world_mut();
        world.insert_resource(PlanSalt(self.salt));
        world.resource_mut::<PlanCache>().clear();
    }
}
