//! Nothing is of fixed size: inputs, splits, nodes, backends; and what cannot be allocated is an error, not an end.

use std::{fmt::Write as _, sync::Arc, thread};

use entensor::{DType, Engine, GraphBuilder, graph_text::GraphText};
use entensor_components::{
    BackendError, DType as ElementType, GraphTensors, Op, Pinned, Shape, Sources, StoredIn, Strides, TensorFlags,
    TensorName, ViewSrc,
};
use entensor_snapshots::generate::{Limits, case};
use entensor_systems::PlanError;

use crate::{
    common::{self, Planned, fixtures},
    devices::{Call, Log, Watched, machine_of},
    runs::{Run, computes_what_one_host_does},
    tools::{buffer_sizes, copies, expect, machine, nodes, plan, splits},
};

/// A chain on `dev0` in which every node reads one tensor from elsewhere: inputs, weights on the other backends, and results
/// of other backends in turn.
fn foreign_inputs(backends: usize, foreign: usize, only_inputs: bool) -> String {
    let (mut text, names) = machine(backends, "");
    text += "weight w f32 [8,8] on dev0\ninput x f32 [8,2]\n";
    for i in 0..foreign {
        let other = &names[1 + i % (backends - 1)];
        let _ = match i % 3 {
            1 if !only_inputs => writeln!(text, "weight f{i} f32 [8,2] on {other}"),
            2 if !only_inputs => writeln!(text, "input g{i} f32 [8,2]\nf{i} = relu g{i} pin={other}"),
            _ => writeln!(text, "input f{i} f32 [8,2]"),
        };
    }
    text += "h = mul_mat w x\n";
    let mut last = "h".to_owned();
    for i in 0..foreign {
        let _ = writeln!(text, "h{i} = add {last} f{i} pin=dev0");
        last = format!("h{i}");
    }
    let _ = writeln!(text, "y = relu {last} pin=dev0 output");
    text
}

/// lc#6136, lc#24657: however many tensors a group of nodes reads from elsewhere, on any number of backends and copies, the
/// group is planned as one split, or as several where a backend takes only so many.
#[test]
fn report_01_any_number_of_foreign_inputs() {
    for backends in 2..=4 {
        for foreign in [0, 1, 10, 30, 31, 32, 64, 200, 1000] {
            for copies_of in [1, 4] {
                for limit in [None, Some(1), Some(2), Some(7), Some(30)] {
                    let mut text = foreign_inputs(backends, foreign, false) + &format!("copies {copies_of}\n");
                    if let Some(limit) = limit {
                        text = text.replacen("backend dev0", &format!("backend dev0 max_inputs={limit}"), 1);
                    }
                    let plan = expect(&text);
                    let made = copies(&plan);
                    let to_dev0 = made.keys().filter(|(_, to)| to == "dev0").count();
                    assert_eq!(to_dev0, foreign + 1, "every foreign tensor and x");
                    assert!(
                        made.values().all(|&times| times == 1),
                        "nothing is written twice, so nothing copied twice"
                    );
                    let most = splits(&plan).iter().map(|s| s.inputs.len()).max();
                    assert!(most <= Some(limit.unwrap_or(u64::MAX).min(5000) as usize), "{most:?} of {limit:?}");
                }
            }
        }
    }
    // What needs no cut gets none: one split, whatever the number.
    for foreign in [1, 30, 31, 200, 5000] {
        let plan = expect(&foreign_inputs(2, foreign, true));
        assert_eq!(splits(&plan).len(), 1, "{foreign} foreign inputs");
    }
}

/// The same with real numbers, and a limit that one node alone exceeds: an error that names it and the numbers.
#[test]
fn report_01_foreign_inputs_arrive_and_too_many_for_one_node_are_named() {
    for (backends, foreign, copies) in [(2, 200, 1), (3, 200, 4), (4, 31, 4)] {
        computes_what_one_host_does(&(foreign_inputs(backends, foreign, false) + &format!("copies {copies}\n")));
    }
    let text = foreign_inputs(3, 4, false);
    let error = plan(&text.replacen("backend dev0", "backend dev0 max_inputs=0", 1)).expect_err("x has to get there");
    assert!(matches!(&error, PlanError::TooManyInputs { inputs: 1, max: 0, .. }), "{error}");
    assert_eq!(error.node(), Some("h"));
    assert!(error.to_string().contains("pin it elsewhere"), "{error}");
}

/// `count` nodes, each on the next backend.
fn alternating(count: usize, devices: usize, by_pin: bool, rest: &str) -> String {
    let ops = ["relu", "silu", "neg"];
    let (mut text, names) = machine(devices, rest);
    if !by_pin {
        for (name, op) in names.iter().zip(ops) {
            text = text.replacen(&format!("backend {name}"), &format!("backend {name} ops={op}"), 1);
        }
    }
    text += "input x f32 [8]\n";
    let mut last = "x".to_owned();
    for i in 0..count {
        let pin = if by_pin { format!(" pin={}", names[i % devices]) } else { String::new() };
        let _ = writeln!(text, "t{i} = {} {last}{pin}", ops[i % devices]);
        last = format!("t{i}");
    }
    text
}

/// lc#9044: a backend that changes at every node makes as many splits as nodes, and memory that does not grow with them.
#[test]
fn report_02_every_node_on_another_backend() {
    for (devices, by_pin, rest) in [(2, true, ""), (3, true, " events async"), (2, false, ""), (3, false, "")] {
        let mut bytes = Vec::new();
        for count in [2, 3, 50, 1000, 20_000] {
            if count == 20_000 && devices == 3 && !by_pin {
                continue;
            }
            let plan = expect(&alternating(count, devices, by_pin, rest));
            assert_eq!(splits(&plan).len(), count);
            assert!(splits(&plan).iter().all(|split| split.nodes.len() == 1));
            if count >= 50 {
                bytes.push(plan.planned_bytes());
            }
        }
        assert!(bytes.windows(2).all(|pair| pair[0] == pair[1]), "a longer chain needs more memory: {bytes:?}");
    }
    computes_what_one_host_does(&alternating(300, 3, true, ""));
}

/// Large graphs of different shapes, each of about `count` nodes.
fn large(shape: &str, count: usize) -> String {
    let mut text = "backend dev0\nbackend cpu\nweight w f32 [4,4] on dev0\ninput x f32 [4,4]\n".to_owned();
    let mut line = |line: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{line}");
    };
    match shape {
        "chain" => (0..count).for_each(|i| match i {
            0 => line(format_args!("t0 = mul_mat w x")),
            _ => line(format_args!("t{i} = relu t{}", i - 1)),
        }),
        "ladder" => (0..count).for_each(|i| match i {
            0 | 1 => line(format_args!("t{i} = mul_mat w x")),
            _ => line(format_args!("t{i} = add t{} t{}", i - 1, i - 2)),
        }),
        "fan" => {
            line(format_args!("t0 = mul_mat w x"));
            (1..count / 2).for_each(|i| line(format_args!("f{i} = relu t0")));
            (1..count / 2).for_each(|i| line(format_args!("t{i} = add t{} f{i}", i - 1)));
        }
        "views" => (0..count).for_each(|i| match i {
            0 => line(format_args!("t0 = mul_mat w x")),
            _ => line(format_args!("t{i} = transpose t{}", i - 1)),
        }),
        "writes" => {
            line(format_args!("scratch s f32 [4,4]"));
            (0..count).for_each(|i| line(format_args!("t{i} = cpy x s")));
        }
        "skips" => {
            // A U of skip connections: every tensor of the first half lives until its turn comes.
            (0..count).for_each(|i| match i {
                0 => line(format_args!("t0 = mul_mat w x")),
                _ if i < count / 2 => line(format_args!("t{i} = silu t{}", i - 1)),
                _ => line(format_args!("t{i} = add t{} t{}", i - 1, count - 1 - i)),
            });
        }
        _ => panic!("no shape {shape}"),
    }
    text
}

const SHAPES: [&str; 6] = ["chain", "ladder", "fan", "views", "writes", "skips"];

/// Plans a large graph in a thread whose stack could not hold a recursion over its depth; says how many nodes compute, how many kinds
/// there are of them, and how often backends were asked.
fn plan_large(shape: &'static str, count: usize) -> (usize, usize, u64) {
    let work = move || {
        let text = common::parse(shape, &large(shape, count));
        let log = Arc::new(Log::default());
        let backends = text.machine().iter().map(|line| Watched::null(line, &log)).collect();
        let mut world = bevy_ecs::prelude::World::new();
        let graph = text.spawn_on(&mut world, backends).expect("it fits");
        let schedule = entensor_systems::plan_schedule(entensor_systems::Recording::Off);
        let mut planned = Planned { world, graph, schedule };
        planned.plan();
        let plan = planned.expect();
        entensor_systems::verify(&plan).unwrap_or_else(|violations| panic!("{shape}: {} violations", violations.len()));
        let computing = nodes(&plan).iter().filter(|node| node.computes()).count();
        let kinds = plan.table.kinds.firsts().filter(|&node| plan.table.traits[node].computes()).count();
        (computing, kinds, log.count(Call::Support))
    };
    let thread = thread::Builder::new().stack_size(512 << 10).spawn(work).expect("a thread");
    thread.join().expect("the stack holds it")
}

/// lc#8950, gg#251: large graphs of every shape plan and verify without recursion, and ask each backend once per kind of node.
#[test]
fn report_03_large_graphs_plan_without_recursion() {
    for shape in SHAPES {
        let (computing, kinds, asked) = plan_large(shape, 100_000);
        let least = if shape == "views" { 1 } else { 99_990 };
        assert!(computing >= least, "{shape}: {computing} nodes");
        assert!((1..=8).contains(&kinds), "{shape}: {kinds} kinds of a few ops on tensors of a few shapes");
        // `probe` asks each of two backends about every kind, and the verifier the node's own about every node.
        assert_eq!(asked, (2 * kinds + computing) as u64, "{shape}");
    }
}

/// The same at a million nodes, one shape at a time, with the peak of memory that the system saw. Alone in its process.
#[test]
#[ignore = "minutes; run alone, in release: `cargo test --release --test reports -- --ignored --exact capacity::report_03_a_million_nodes`"]
fn report_03_a_million_nodes() {
    for shape in SHAPES {
        let start = std::time::Instant::now();
        let (computing, ..) = plan_large(shape, 1_000_000);
        let ns = start.elapsed().as_nanos() / 1_000_000;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak_kib: Option<u64> = peak.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok());
        println!(
            "{shape}: {computing} nodes, {ns} ns a node with reading, planning and proving, peak {peak_kib:?} KiB"
        );
        assert!(peak_kib.is_none_or(|kib| kib < 4 << 20), "{shape}: more than 4 GiB: {peak_kib:?} KiB");
    }
}

/// A stack of `depth` layers of this batch.
fn layers(
    engine: &mut Engine,
    name: &str,
    depth: usize,
    batch: u64,
) -> (entensor::GraphId, entensor::Tensor, entensor::Tensor) {
    let mut g = GraphBuilder::new(name);
    let x = g.input("x", DType::F32, &[4, batch]).expect("a small input");
    let (mut y, mut kept) = (x, Vec::new());
    for _ in 0..depth {
        y = g.scale(y, 0.5).expect("shapes fit");
        kept.push(y);
        y = g.add(y, x).expect("shapes fit");
    }
    for skip in kept {
        y = g.add(y, skip).expect("shapes fit");
    }
    let y = g.output("y", y).expect("a free name");
    (engine.add_graph(g), x, y)
}

/// lc#16555, lc#28614: there is no size hint to exceed. Graphs of any size and order of sizes run in one engine and one arena.
#[test]
fn report_04_graphs_grow_without_any_hint() {
    let mut engine = Engine::builder().backend("oracle").verify_plans(true).build().expect("the oracle starts");
    for (i, (depth, batch)) in
        [(1, 1), (2, 1), (10, 1), (10, 8), (100, 2), (1, 2000), (1500, 2), (3, 3)].into_iter().enumerate()
    {
        let (graph, x, y) = layers(&mut engine, &format!("g{i}"), depth, batch);
        let values = vec![1.0_f32; (4 * batch) as usize];
        engine.write(graph, x, &values).expect("an input");
        engine.run(graph).unwrap_or_else(|error| panic!("depth {depth}, batch {batch}: {error}"));
        let mut result = vec![0.0_f32; values.len()];
        engine.read(graph, y, &mut result).expect("an output");
        let (mut last, mut expected) = (1.0_f32, 0.0);
        for _ in 0..depth {
            expected += last * 0.5;
            last = last * 0.5 + 1.0;
        }
        expected += last;
        assert!(
            result.iter().all(|r| (r - expected).abs() <= expected * 1e-3),
            "depth {depth}: {} is not {expected}",
            result[0]
        );
    }
}

/// pie-project/pie#461: an engine that has planned nothing holds no device memory, whatever was added to it; planned memory
/// goes with its graph.
#[test]
fn report_05_an_idle_engine_holds_nothing() {
    for backends in 1..=3 {
        let (lines, _) = machine(backends, "");
        let log = Arc::new(Log::default());
        let mut builder = Engine::builder();
        for backend in machine_of(&lines, &log) {
            builder = builder.backend_instance(backend);
        }
        let mut engine = builder.build().expect("oracles start");
        let held = |engine: &Engine| engine.backends().iter().map(|b| b.memory_report().ours_bytes).sum::<u64>();
        assert_eq!(held(&engine), 0);
        let graphs: Vec<_> = [1, 10, 1000].map(|depth| layers(&mut engine, &format!("g{depth}"), depth, 16)).into();
        assert_eq!(held(&engine), 0, "graphs that nobody planned have no memory");
        let mut sum = 0;
        for &(graph, ..) in &graphs {
            engine.plan(graph).expect("it plans");
            sum += engine.plan_of(graph).expect("planned").planned_bytes();
            assert_eq!(held(&engine), sum, "what plans ask for, and nothing beside it");
        }
        for (graph, ..) in graphs {
            engine.remove_graph(graph);
        }
        assert_eq!(held(&engine), 0, "memory goes with its graph");
        assert_eq!(log.all_alive_bytes(), 0);
    }
}

/// All that a graph's tensors are made from.
fn baked(run: &Run) -> String {
    let world = &run.world;
    let tensors = &world.get::<GraphTensors>(run.graph).expect("a graph").0;
    let mut text = String::new();
    for &tensor in tensors {
        let tensor = world.entity(tensor);
        let parts = tensor.get_components::<(
            &TensorName,
            &ElementType,
            &Shape,
            &Strides,
            &Op,
            &Sources,
            &ViewSrc,
            &TensorFlags,
            &Pinned,
            &StoredIn,
        )>();
        let _ = writeln!(text, "{:?}", parts.expect("a tensor has them all"));
    }
    text
}

/// gg#892, lc#15434: planning and running a graph twice, with everything forgotten in between or not, gives the same numbers
/// and leaves the graph as it was, byte for byte.
#[test]
fn report_06_the_same_graph_twice() {
    let random = (0..120).map(|seed| (format!("seed {seed}"), case(seed, Limits { scratch: false, nodes: 16 })));
    let mut compared = 0;
    for (name, text) in fixtures().into_iter().chain(random) {
        let graph = common::parse(&name, &text);
        if graph.tensors().iter().any(|t| t.desc.size_bytes() > 1 << 20) {
            continue;
        }
        let Ok(mut run) = Run::new(&graph) else { continue };
        let before = baked(&run);
        let Ok(first) = run.plan() else {
            assert_eq!(baked(&run), before, "{name}: a failed plan edits nothing");
            continue;
        };
        let (sizes, results) = (buffer_sizes(&first), run.results());
        assert_eq!(baked(&run), before, "{name}");
        for reset in [true, false, true] {
            if reset {
                run.reset();
            } else {
                run.distrust();
            }
            let again = run.plan().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!Arc::ptr_eq(&first, &again), "{name}: a new plan was made");
            assert_eq!(buffer_sizes(&again), sizes, "{name}");
            assert_eq!(splits(&again), splits(&first), "{name}");
            assert_eq!(run.results(), results, "{name}");
            assert_eq!(baked(&run), before, "{name}");
        }
        assert_eq!(
            GraphText::from_graph(&run.world, run.graph).map(|text| text.tensors().len()),
            Ok(graph.tensors().len())
        );
        compared += 1;
    }
    assert!(compared >= 60, "only {compared} graphs were compared");
}

/// lc#22472: whatever a backend reports for whichever allocation, the plan fails with an error that says where and what, and
/// the next plan of the same graph is whole.
#[test]
fn report_07_a_failed_allocation_is_an_error_and_the_next_plan_works() {
    let faults = [
        BackendError::OutOfMemory { size_bytes: 1 },
        BackendError::BufferTooLarge { size_bytes: 2, max_bytes: 1 },
        BackendError::DeviceLost { reason: "unplugged".into() },
        BackendError::StaleBuffer,
    ];
    let mut failed = 0;
    for (name, text) in fixtures() {
        let graph = common::parse(&name, &text);
        let Ok(mut fresh) = Run::new(&graph) else { continue };
        let Ok(plan) = fresh.plan() else { continue };
        let expected =
            if graph.tensors().iter().any(|t| t.desc.size_bytes() > 1 << 20) { None } else { Some(fresh.results()) };
        for (i, fault) in faults.iter().enumerate() {
            for allowed in 0..buffer_sizes(&plan).len() as u64 {
                let mut run = Run::new(&graph).expect("it fitted before");
                run.log.fail_once(Call::Allocate, allowed, fault.clone());
                let first = run.plan();
                // Several slots fall back to one, until something changes.
                let falls_back = graph.copies() > 1 && matches!(fault, BackendError::OutOfMemory { .. });
                if falls_back {
                    let plan = first.unwrap_or_else(|error| panic!("{name}: {error}"));
                    assert_eq!(plan.programs.len(), 1, "{name}");
                } else {
                    let error = first.err().unwrap_or_else(|| panic!("{name}: allocation {allowed} fails"));
                    assert!(
                        matches!(&error, PlanError::Allocation { source, .. } if source == fault),
                        "{name}: {error}"
                    );
                    assert!(error.backend().is_some_and(|backend| error.to_string().contains(backend)), "{error}");
                    assert!(error.to_string().contains(&fault.to_string()), "{error}");
                }
                let again = run.plan().unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(run.log.all_alive_bytes(), again.planned_bytes(), "{name}: nothing is left over");
                assert_eq!(again.programs.len() == 1, falls_back || graph.copies() == 1, "{name}");
                if i == 0
                    && let Some(expected) = &expected
                    && graph.copies() == 1
                {
                    assert_eq!(&run.results(), expected, "{name}");
                }
                failed += 1;
            }
        }
    }
    assert!(failed >= 100, "only {failed} allocations failed");
}
