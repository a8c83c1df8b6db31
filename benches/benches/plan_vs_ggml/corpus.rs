//! Planned bytes of `.graph` files, ours and ggml's, with our placement in both.

use std::{
    error::Error,
    path::{Path, PathBuf},
    time::Instant,
};

use bevy_ecs::prelude::Entity;
use entensor::{
    Engine, GraphId, PlanSalt,
    components::TensorFlags,
    graph_text::{GraphText, GraphTextError},
    systems::PlanCache,
};

use crate::{
    described::{Described, describe},
    ggml::{Drawing, MAX_COPIES, Machine, Placed, Protected, Scheduler},
    samples::Samples,
    stacks::scheduler_capacity,
};

/// Plans are made this often, and the least time is printed.
const SAMPLES: u64 = 5;

/// One file with one number of copies.
struct Row {
    nodes: usize,
    our_splits: usize,
    ggml_splits: usize,
    our_time: Samples,
    ggml_time: Samples,
    our_bytes: u64,
    our_consumed_bytes: u64,
    lower_bound_bytes: u64,
    ggml_bytes: u64,
    ggml_kept_bytes: u64,
    stand_ins: usize,
}

/// The files of the corpus, by name.
pub(crate) fn files() -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../snapshots/corpus");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>, std::io::Error>>()?;
    files.retain(|file| file.extension().is_some_and(|e| e == "graph"));
    files.sort();
    Ok(files)
}

/// Prints the table of these files.
pub(crate) fn run(files: &[PathBuf]) -> Result<(), Box<dyn Error>> {
    println!(
        "\nplanned bytes of `.graph` files, placed as our plan places them; times are whole plans, the least of {SAMPLES}\n"
    );
    println!(
        "| file | copies | tensors | splits: ours | ggml | bytes: ours | ours, inputs consumed | ggml | ggml, inputs kept | lower bound | \
         ours ÷ bound | both consume inputs: ours ÷ ggml | both keep them: ours ÷ ggml | ours, kept ÷ ggml, consumed | µs: ours | ggml | custom ops in ggml |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let mut ratios = Vec::new();
    for file in files {
        let shown = file.file_stem().unwrap_or_default().to_string_lossy();
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let text = without_padding(GraphText::parse(&file.to_string_lossy(), &text)?)?;
        // ggml knows one copy and its own maximum.
        let counts = if text.copies() == MAX_COPIES { vec![1, MAX_COPIES] } else { vec![1] };
        for copies in counts {
            let row = measure(&text.clone().with_copies(copies)).map_err(|error| format!("{shown}: {error}"))?;
            let ratio = |ours: u64, of: u64| ours as f64 / of.max(1) as f64;
            let bound = ratio(row.our_bytes, row.lower_bound_bytes);
            let consumed = ratio(row.our_consumed_bytes, row.ggml_bytes);
            let kept = ratio(row.our_bytes, row.ggml_kept_bytes);
            let mixed = ratio(row.our_bytes, row.ggml_bytes);
            println!(
                "| {shown} | {copies} | {} | {} | {} | {} | {} | {} | {} | {} | {bound:.3} | {consumed:.3} | {kept:.3} | {mixed:.3} | {:.0} | {:.0} | {} |",
                row.nodes,
                row.our_splits,
                row.ggml_splits,
                row.our_bytes,
                row.our_consumed_bytes,
                row.ggml_bytes,
                row.ggml_kept_bytes,
                row.lower_bound_bytes,
                row.our_time.min_ns() / 1e3,
                row.ggml_time.min_ns() / 1e3,
                row.stand_ins,
            );
            ratios.push([bound, consumed, kept, mixed]);
        }
    }
    let names = [
        "lower bound",
        "ggml, both consume inputs",
        "ggml, both keep inputs",
        "ggml, ours keeps inputs and ggml consumes them",
    ];
    for (column, name) in names.into_iter().enumerate() {
        let of = || ratios.iter().map(|row| row[column]);
        let (mean, worst) = (of().sum::<f64>() / ratios.len().max(1) as f64, of().fold(0.0, f64::max));
        let above = of().filter(|&ratio| ratio > 1.0).count();
        let rows = ratios.len();
        let more = if column == 0 { String::new() } else { format!(", more than ggml in {above} of {rows} rows") };
        println!("ours ÷ {name}: mean {mean:.3}, worst {worst:.3}{more}");
    }
    Ok(())
}

/// The graph on backends that do not pad, in both plans: ggml aborts when a buffer type pads a tensor of most ops.
fn without_padding(text: GraphText) -> Result<GraphText, GraphTextError> {
    if text.machine().iter().all(|backend| backend.capabilities.pad_bytes <= 1) {
        return Ok(text);
    }
    let mut lines = String::new();
    for line in text.to_string().lines() {
        let is_backend = line.starts_with("backend ");
        let words = line.split(' ').filter(|word| !(is_backend && word.starts_with("pad=")));
        lines.push_str(&words.collect::<Vec<_>>().join(" "));
        lines.push('\n');
    }
    GraphText::parse(text.name(), &lines)
}

fn measure(text: &GraphText) -> Result<Row, Box<dyn Error>> {
    // Spawning replaces the backend by those of the text.
    let mut engine = Engine::builder().backend("null").verify_plans(false).build()?;
    let graph = GraphId(text.spawn(engine.world_mut())?);
    let mut our_time = Samples::default();
    for salt in 1..=SAMPLES {
        let world = engine.world_mut();
        world.insert_resource(PlanSalt(salt));
        world.resource_mut::<PlanCache>().clear();
        let start = Instant::now();
        engine.plan(graph)?;
        our_time.push(start.elapsed());
    }
    let plan = engine.plan_of(graph).ok_or("no plan")?;
    let nodes = describe(plan).ok_or("memory of no backend")?;
    let (our_splits, our_bytes, lower_bound_bytes) = (plan.splits.len(), plan.planned_bytes(), plan.lower_bound_bytes);
    let our_consumed_bytes = consumed_bytes(&mut engine, graph)?;
    let machine = Machine::mock(engine.backends());
    let parallel = text.copies() == MAX_COPIES;
    let mut ggml_time = Samples::default();
    let (kept, _) = ggml_plan(&machine, &nodes, parallel, Protected::InputsAndOutputs, &mut Samples::default())?;
    let (ggml, ggml_splits) = ggml_plan(&machine, &nodes, parallel, Protected::Outputs, &mut ggml_time)?;
    Ok(Row {
        nodes: nodes.len(),
        our_splits,
        ggml_splits,
        our_time,
        ggml_time,
        our_bytes,
        our_consumed_bytes,
        lower_bound_bytes,
        ggml_bytes: ggml,
        ggml_kept_bytes: kept,
        stand_ins: nodes.iter().filter(|node| !crate::ggml::has_op(node.op.kind())).count(),
    })
}

/// Bytes of our plan where runs consume inputs, as those of ggml do.
fn consumed_bytes(engine: &mut Engine, graph: GraphId) -> Result<u64, Box<dyn Error>> {
    let world = engine.world_mut();
    let mut inputs = world.query::<(Entity, &TensorFlags)>();
    let inputs: Vec<_> = inputs.iter(world).map(|(tensor, flags)| (tensor, *flags)).collect();
    for (tensor, flags) in inputs.into_iter().filter(|(_, flags)| flags.input) {
        world.entity_mut(tensor).insert(TensorFlags { consumed: true, ..flags });
    }
    engine.plan(graph)?;
    Ok(engine.plan_of(graph).ok_or("no plan")?.planned_bytes())
}

/// Bytes and splits of ggml's plan.
fn ggml_plan(
    machine: &Machine,
    nodes: &[Described],
    parallel: bool,
    protected: Protected,
    time: &mut Samples,
) -> Result<(u64, usize), Box<dyn Error>> {
    let mut drawing = Drawing::new(machine, nodes, Placed::AsOurs, protected);
    let mut scheduler = Scheduler::new(machine, scheduler_capacity(nodes.len()), parallel);
    for _ in 0..SAMPLES {
        drawing.draw();
        time.push(scheduler.allocate(&drawing).ok_or("ggml cannot allocate it")?);
    }
    Ok((scheduler.planned_bytes(), scheduler.splits()))
}
