//! The times of a command, as a table for people and as JSON.

use entensor::{Engine, Figures, GraphProfile, Pass, Profile};
use serde::Serialize;

use crate::figures::{Align, Table, millis};

/// Most ops that the table for people shows of a graph.
const MOST_OPS: usize = 16;

/// Statistics of one kind, all in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct FiguresJson {
    count: u64,
    total_ns: u64,
    mean_ns: f64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
}

impl From<Figures> for FiguresJson {
    fn from(figures: Figures) -> Self {
        let Figures { count, total_ns, mean_ns, p50_ns, p99_ns, max_ns } = figures;
        Self { count, total_ns, mean_ns, p50_ns, p99_ns, max_ns }
    }
}

#[derive(Debug, Serialize)]
struct PassJson {
    pass: &'static str,
    #[serde(flatten)]
    figures: FiguresJson,
}

#[derive(Debug, Serialize)]
struct SplitJson {
    backend: String,
    nodes: u64,
    #[serde(flatten)]
    figures: FiguresJson,
}

#[derive(Debug, Serialize)]
struct CopyJson {
    node: String,
    to: String,
    size_bytes: u64,
    #[serde(flatten)]
    figures: FiguresJson,
}

#[derive(Debug, Serialize)]
struct OpJson {
    op: String,
    nodes: u64,
    #[serde(flatten)]
    figures: FiguresJson,
}

#[derive(Debug, Serialize)]
struct NodeJson {
    node: String,
    /// Index into the ops.
    op: u32,
    count: u64,
    total_ns: u64,
    max_ns: u64,
}

#[derive(Debug, Serialize)]
struct GraphJson {
    graph: String,
    runs: FiguresJson,
    splits: Vec<SplitJson>,
    copies: Vec<CopyJson>,
    ops: Vec<OpJson>,
    nodes: Vec<NodeJson>,
}

/// Everything that was timed.
#[derive(Debug, Serialize)]
pub(crate) struct ProfileJson {
    passes: Vec<PassJson>,
    graphs: Vec<GraphJson>,
}

impl ProfileJson {
    /// What an engine has gathered; `None` if it was not asked to.
    pub(crate) fn of(engine: &Engine) -> Option<Self> {
        engine.profile().map(Self::new)
    }

    fn new(profile: &Profile) -> Self {
        let passes = Pass::ALL.into_iter().map(|pass| (pass, profile.pass(pass)));
        let passes = passes.filter(|(_, figures)| figures.count > 0);
        let passes = passes.map(|(pass, figures)| PassJson { pass: pass.name(), figures: figures.into() });
        Self { passes: passes.collect(), graphs: profile.graphs().into_iter().map(GraphJson::new).collect() }
    }

    /// Tables for people: of each graph its run, and the ops that take most of it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for graph in &self.graphs {
            let mut table = Table::new(&[
                ("part", Align::Left),
                ("nodes", Align::Right),
                ("count", Align::Right),
                ("total ms", Align::Right),
                ("mean µs", Align::Right),
                ("p50", Align::Right),
                ("p99", Align::Right),
                ("max", Align::Right),
            ]);
            let mut row = |part: String, nodes: Option<u64>, figures: &FiguresJson| {
                let micros = |ns: u64| format!("{:.1}", millis(ns) * 1e3);
                let nodes = nodes.map_or(String::new(), |nodes| nodes.to_string());
                let mean = format!("{:.1}", figures.mean_ns / 1e3);
                let total = format!("{:.2}", millis(figures.total_ns));
                let FiguresJson { count, p50_ns, p99_ns, max_ns, .. } = *figures;
                let [p50, p99, max] = [p50_ns, p99_ns, max_ns].map(micros);
                table.row([part, nodes, count.to_string(), total, mean, p50, p99, max]);
            };
            row("run".into(), None, &graph.runs);
            for (number, split) in graph.splits.iter().enumerate() {
                row(format!("split {number} on {}", split.backend), Some(split.nodes), &split.figures);
            }
            for copy in &graph.copies {
                row(format!("copy of {} to {}", copy.node, copy.to), None, &copy.figures);
            }
            let mut ops: Vec<_> = graph.ops.iter().filter(|op| op.figures.count > 0).collect();
            ops.sort_by_key(|op| std::cmp::Reverse(op.figures.total_ns));
            for op in ops.iter().take(MOST_OPS) {
                row(op.op.clone(), Some(op.nodes), &op.figures);
            }
            text += &format!("{}\n{table}", graph.graph);
            if ops.len() > MOST_OPS {
                text += &format!("and {} more kinds of ops; --json has all\n", ops.len() - MOST_OPS);
            }
            text.push('\n');
        }
        text
    }
}

impl GraphJson {
    fn new(graph: GraphProfile) -> Self {
        let splits = graph.splits.into_iter().map(|split| SplitJson {
            backend: split.backend.to_string(),
            nodes: split.nodes,
            figures: split.figures.into(),
        });
        let copies = graph.copies.into_iter().map(|copy| CopyJson {
            node: copy.node.to_string(),
            to: copy.to.to_string(),
            size_bytes: copy.size_bytes,
            figures: copy.figures.into(),
        });
        let ops = graph.ops.into_iter();
        let ops = ops.map(|op| OpJson { op: op.text, nodes: op.nodes, figures: op.figures.into() });
        let nodes = graph.nodes.into_iter().map(|node| NodeJson {
            node: node.node.to_string(),
            op: node.op,
            count: node.count,
            total_ns: node.total_ns,
            max_ns: node.max_ns,
        });
        Self {
            graph: graph.name.to_string(),
            runs: graph.runs.into(),
            splits: splits.collect(),
            copies: copies.collect(),
            ops: ops.collect(),
            nodes: nodes.collect(),
        }
    }
}
