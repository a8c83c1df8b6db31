//! Each pass of planning by itself, from the figures that the engine keeps: `plan/<pass>`, for graphs that were just added. Before
//! them, what plans and the look at an unchanged graph allocate. The machine has two null backends, and layers alternate between
//! them.
//!
//! With the variable `ENTENSOR_NODES` set to a number it plans one graph of so many nodes instead, once, and prints the time and the
//! peak of resident memory.

mod counting;

use std::{error::Error, time::Duration, time::Instant};

use counting::allocations;
use criterion::{BenchmarkId, Criterion, Throughput};
use entensor::{Engine, GraphId, Pass, PlanSalt, systems::PlanCache};
use entensor_benches::{Placement, Stack, layers_for, machine, results};

const SIZES: [usize; 3] = [1_000, 10_000, 100_000];

const PASSES: [Pass; 10] = [
    Pass::Index,
    Pass::Probe,
    Pass::Assign,
    Pass::Expand,
    Pass::Upgrade,
    Pass::Inherit,
    Pass::Split,
    Pass::Liveness,
    Pass::Allocate,
    Pass::Publish,
];

/// A stack in an engine.
struct Subject {
    engine: Engine,
    stack: Stack,
    graph: GraphId,
    nodes: usize,
    salt: u64,
}

impl Subject {
    fn new(nodes: usize) -> Result<Self, Box<dyn Error>> {
        let mut engine = machine(2)?;
        let stack = Stack::new(&mut engine, layers_for(nodes), Placement::Layers)?;
        let graph = engine.add_graph(stack.graph()?);
        let nodes = stack.nodes();
        Ok(Self { engine, stack, graph, nodes, salt: 0 })
    }

    /// Adds the graph anew, and forgets what was planned.
    fn renew(&mut self) {
        self.engine.remove_graph(self.graph);
        self.graph = self.engine.add_graph(self.stack.graph().expect("its shapes fit"));
        self.forget();
    }

    /// Makes the plan useless, and forgets it.
    fn forget(&mut self) {
        self.salt += 1;
        let world = self.engine.world_mut();
        world.insert_resource(PlanSalt(self.salt));
        world.resource_mut::<PlanCache>().clear();
    }

    fn plan(&mut self) {
        self.engine.plan(self.graph).expect("the stack is legal");
    }
}

fn passes(c: &mut Criterion) -> Result<(), Box<dyn Error>> {
    let mut subjects = SIZES.iter().map(|&nodes| Subject::new(nodes)).collect::<Result<Vec<_>, _>>()?;
    for subject in &mut subjects {
        // The first plan grows what later ones use again.
        subject.plan();
        subject.renew();
        let fresh = allocations(|| subject.plan());
        subject.forget();
        let salted = allocations(|| subject.plan());
        let unchanged = allocations(|| subject.plan());
        for (what, (count, bytes)) in
            [("a new graph", fresh), ("another salt", salted), ("an unchanged graph", unchanged)]
        {
            let (nodes, per_node) = (subject.nodes, count as f64 / subject.nodes as f64);
            println!("{nodes:>6} nodes: {what} makes {count} allocations ({per_node:.2} a node) of {bytes} bytes");
        }
    }
    for pass in PASSES {
        let mut group = c.benchmark_group(format!("plan/{}", pass.name()));
        group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800));
        for subject in &mut subjects {
            group.throughput(Throughput::Elements(subject.nodes as u64));
            let mut least = u64::MAX;
            group.bench_function(BenchmarkId::from_parameter(subject.nodes), |b| {
                b.iter_custom(|count| {
                    let mut total = Duration::ZERO;
                    for _ in 0..count {
                        subject.renew();
                        subject.plan();
                        let ns = subject.engine.timings().get(pass).last_ns;
                        least = least.min(ns);
                        total += Duration::from_nanos(ns);
                    }
                    total
                });
            });
            if least < u64::MAX {
                println!(
                    "{:>6} nodes {:<9} {:7.1} ns a node",
                    subject.nodes,
                    pass.name(),
                    least as f64 / subject.nodes as f64
                );
            }
        }
        group.finish();
    }
    Ok(())
}

/// The peak of resident memory in MiB, where the system tells.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib / 1024)
}

fn shown_peak() -> String {
    peak_mib().map_or_else(|| "unknown".into(), |mib| format!("{mib} MiB"))
}

/// One large graph, once.
fn once(nodes: usize) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let mut subject = Subject::new(nodes)?;
    let (built, before) = (start.elapsed(), shown_peak());
    let per_node = |time: Duration| time.as_nanos() as f64 / subject.nodes as f64;
    println!("{} nodes: built in {built:.2?} ({:.0} ns a node), peak {before}", subject.nodes, per_node(built));
    let start = Instant::now();
    let counted = allocations(|| subject.plan());
    let planned = start.elapsed();
    println!(
        "planned in {planned:.2?} ({:.0} ns a node) with {} allocations of {} bytes, peak {}",
        planned.as_nanos() as f64 / subject.nodes as f64,
        counted.0,
        counted.1,
        shown_peak()
    );
    for (pass, timing) in subject.engine.timings().iter().filter(|(_, timing)| timing.calls > 0) {
        println!("{:<9} {:7.1} ns a node", pass.name(), timing.last_ns as f64 / subject.nodes as f64);
    }
    let unchanged = allocations(|| subject.plan());
    let start = Instant::now();
    subject.plan();
    println!("unchanged: {:.2?}, {} allocations", start.elapsed(), unchanged.0);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    if results::recorded("passes", "")? {
        return Ok(());
    }
    if let Ok(nodes) = std::env::var("ENTENSOR_NODES") {
        return once(nodes.parse().map_err(|_| format!("ENTENSOR_NODES={nodes} is no number of nodes"))?);
    }
    let mut criterion = Criterion::default().configure_from_args();
    passes(&mut criterion)?;
    criterion.final_summary();
    Ok(())
}
