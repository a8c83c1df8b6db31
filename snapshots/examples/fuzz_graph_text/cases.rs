//! One case of the fuzzer: a damaged text is read, spawned, planned, proved, explained and printed, as far as it goes.

use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Mutex,
    time::{Duration, Instant},
};

use bevy_ecs::prelude::*;
use entensor::graph_text::GraphText;
use entensor_snapshots::mutate::mutated;
use entensor_systems::{GraphPlan, Pass, PlanStatus, Planning, Recording, plan_schedule, text::PassTexts, verify};

/// Tensors times slots above which a case is read and printed, but not planned: a few bytes ask for any amount.
const MAX_SLOTS: usize = 40_000;

/// The texts that cases start from: every fixture and every graph of the corpus.
pub(crate) fn texts() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [root.join("fixtures"), root.join("corpus")];
    let files = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let mut paths: Vec<_> =
        files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "graph")).collect();
    paths.sort();
    paths.iter().filter_map(|path| fs::read_to_string(path).ok()).collect()
}

/// What became of many cases.
#[derive(Default)]
pub(crate) struct Summary {
    pub(crate) cases: u64,
    pub(crate) planned: u64,
    /// By the word of what refused them.
    pub(crate) refused: BTreeMap<&'static str, u64>,
    /// The slowest case.
    pub(crate) slowest: (Duration, u64),
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} cases: {} planned and proved; refused:", self.cases, self.planned)?;
        self.refused.iter().try_for_each(|(kind, count)| write!(f, " {kind} {count}"))?;
        write!(f, "; slowest {} ms (seed {})", self.slowest.0.as_millis(), self.slowest.1)
    }
}

/// A case that went wrong.
pub(crate) struct Failure {
    pub(crate) seed: u64,
    pub(crate) text: String,
    pub(crate) message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}: {}\n--- text\n{}\n---", self.seed, self.message, self.text)
    }
}

static PANIC: Mutex<String> = Mutex::new(String::new());

/// Runs a case and adds it to the summary.
pub(crate) fn run(seed: u64, texts: &[String], summary: &mut Summary) -> Result<(), Box<Failure>> {
    let text = mutated(seed, texts);
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| match seed % 8 {
        0 => case(&text, seed),
        _ => case(&text, seed)
            .and_then(|kind| if kind == "text" { case(&without_faults(&text), seed) } else { Ok(kind) }),
    }));
    summary.slowest = summary.slowest.max((start.elapsed(), seed));
    summary.cases += 1;
    let message = match outcome {
        Ok(Ok("planned")) => {
            summary.planned += 1;
            return Ok(());
        }
        Ok(Ok(kind)) => {
            *summary.refused.entry(kind).or_default() += 1;
            return Ok(());
        }
        Ok(Err(message)) => message,
        Err(_) => std::mem::take(&mut *PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner)),
    };
    Err(Box::new(Failure { seed, text, message }))
}

/// Keeps the words of a panic for the report, instead of printing them at once.
pub(crate) fn keep_panics() {
    std::panic::set_hook(Box::new(|panic| {
        *PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = format!("panic: {panic}");
    }));
}

/// Leaves out the lines that have faults, so that what is odd and legal gets further.
fn without_faults(text: &str) -> String {
    let mut lines: Vec<&str> = text.split('\n').collect();
    while let Err(error) = GraphText::parse("fuzz.graph", &lines.join("\n")) {
        let line = error.line as usize;
        if line == 0 || line > lines.len() || lines.len() > 400 {
            break;
        }
        lines.remove(line - 1);
    }
    lines.join("\n")
}

/// How far a text goes: `planned`, or what refused it. An error is a fault of ours.
fn case(text: &str, seed: u64) -> Result<&'static str, String> {
    let graph = match GraphText::parse("fuzz.graph", text) {
        Ok(graph) => graph,
        Err(error) if error.to_string().starts_with("fuzz.graph:") => return Ok("text"),
        Err(error) => return Err(format!("a fault without a place: {error}")),
    };
    let printed = graph.to_string();
    if GraphText::parse("fuzz.graph", &printed).as_ref() != Ok(&graph) {
        return Err(format!("reading what was printed gives another graph:\n{printed}"));
    }
    if graph.tensors().len() * graph.copies() as usize > MAX_SLOTS {
        return Ok("size");
    }
    let mut world = World::new();
    let Ok(entity) = graph.spawn(&mut world) else { return Ok("memory") };
    world.insert_resource(Planning(entity));
    world.insert_resource(PlanStatus::Planning);
    let recording = if seed.is_multiple_of(4) { Recording::On } else { Recording::Off };
    plan_schedule(recording).run(&mut world);
    let texts = world.resource::<PassTexts>().render(Pass::Publish);
    match world.resource::<PlanStatus>() {
        PlanStatus::Ready => {}
        PlanStatus::Failed { error, .. } if matches!(error.kind(), "Unplaced" | "Misplaced" | "Run") => {
            return Err(format!("no system stands between the passes: {error}\n{texts}"));
        }
        PlanStatus::Failed { error, .. } if error.to_string().len() < 20 => return Err(format!("no words: {error}")),
        PlanStatus::Failed { error, .. } => return Ok(error.kind()),
        status => return Err(format!("planning ended as {status:?}")),
    }
    let plan =
        world.get::<GraphPlan>(entity).map(|graph| std::sync::Arc::clone(&graph.plan)).ok_or("ready without a plan")?;
    verify(&plan).map_err(|violations| format!("{violations:?}\n{texts}"))?;
    if plan.planned_bytes() < plan.lower_bound_bytes {
        return Err(format!("{} planned bytes, but {} live\n{texts}", plan.planned_bytes(), plan.lower_bound_bytes));
    }
    let captured = GraphText::from_plan("fuzz", &plan).map_err(|error| format!("no text of the plan: {error}"))?;
    let again = GraphText::parse("fuzz.graph", &captured.to_string());
    if again.as_ref() != Ok(&captured) {
        return Err(format!("the plan's text is no graph: {again:?}\n{captured}"));
    }
    let captured = GraphText::from_graph(&world, entity).map_err(|error| format!("no text of the graph: {error}"))?;
    if captured.tensors().len() != graph.tensors().len() {
        return Err(format!("the graph has changed:\n{captured}"));
    }
    let unexplained = (0..captured_nodes(&plan)).find(|&node| plan.why(node).is_empty());
    unexplained.map_or(Ok("planned"), |node| Err(format!("node {node} does not say why")))
}

fn captured_nodes(plan: &entensor_systems::Plan) -> usize {
    plan.node_count()
}
