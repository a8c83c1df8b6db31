//! Where nodes go: weights on unknown devices, ops that only one backend has, pins, private layouts, experts.

use std::{fmt::Write as _, sync::Arc};

use bevy_ecs::prelude::*;
use entensor::{BackendIndex, DType, Engine, GraphBuilder, Usage};
use entensor_components::{OPS, Op, OpRow, Shape, TensorDesc};
use entensor_snapshots::generate::{Limits, Random, case};
use entensor_systems::{Backends, PlanError, Recording, plan_schedule, verify};

use crate::{
    common::{self, Planned},
    devices::{Log, machine_of},
    offload::plan_name,
    runs::computes_what_one_host_does,
    tools::{at, copies, expect, machine, nodes, plan, splits},
};

/// Uses of a tensor `w` that lies on a device: as anchor, beside it, through views, written, and wanted for itself.
const USES: [&str; 6] = [
    "y = mul_mat w x",
    "y = add x w",
    "v = view w shape=[8,2]\ny = add x v",
    "v = reshape w shape=[4,16]\nu = transpose v\nc = cont u\ny = relu c",
    "y = cpy x w",
    "run w",
];

/// wc#3372: memory of a device that the engine was not given is an error that names tensor, buffer and device, whoever uses it
/// and however; a backend that reads that memory makes it a plan.
#[test]
fn report_08_memory_of_an_unknown_device_is_named() {
    for backends in 2..=4 {
        for gone in 0..backends - 1 {
            for uses in USES {
                for declaration in ["weight w f32 [8,8] on GONE", "buffer b on GONE opaque\ntensor w f32 [8,8] in b"] {
                    let (lines, names) = machine(backends, "");
                    let shape = if uses.contains("cpy") || uses.contains("add x w") { "[8,8]" } else { "[8,2]" };
                    let shape = if uses == USES[5] { "[8,8]" } else { shape };
                    let text = format!("{lines}{declaration}\ninput x f32 {shape}\n{uses}\n");
                    let text = common::parse("gone", &text.replace("GONE", &names[gone]));
                    let mut world = World::new();
                    let graph = text.spawn(&mut world).expect("it fits");
                    let removed = world.resource_mut::<Backends>().0.remove(gone);
                    let mut planned = Planned { world, graph, schedule: plan_schedule(Recording::Off) };
                    planned.plan();
                    let error = planned.result().expect_err("its device is not there");
                    let buffer =
                        if declaration.contains("opaque") { "b".into() } else { format!("{}.weights", names[gone]) };
                    assert!(
                        matches!(&error, PlanError::UnknownDevice { tensor, buffer: b, device }
                            if &**tensor == "w" && **b == *buffer && **device == *names[gone]),
                        "{uses}: {error}"
                    );
                    assert!(error.to_string().contains("add that backend"), "{error}");
                    planned.world.resource_mut::<Backends>().0.insert(gone, removed);
                    planned.plan();
                    verify(&planned.expect()).expect("with its device there is a plan");
                }
            }
        }
    }
    // Another backend that reads the device's memory is as good.
    let text = common::parse(
        "reader",
        "backend a\nbackend b reads=a\nbackend cpu\nweight w f32 [8,8] on a\ninput x f32 [8,2]\ny = mul_mat w x",
    );
    let mut world = World::new();
    let graph = text.spawn(&mut world).expect("it fits");
    world.resource_mut::<Backends>().0.remove(0);
    let mut planned = Planned { world, graph, schedule: plan_schedule(Recording::Off) };
    planned.plan();
    assert_eq!(at(&planned.expect(), "y"), "b");
}

/// Ops that make a tensor of the same kind from one operand, with parameters that do nothing special.
fn unary_ops() -> Vec<&'static OpRow> {
    let desc = TensorDesc::packed(DType::F32, Shape([32, 4, 1, 1])).expect("small");
    let fits = |row: &&OpRow| {
        let result = row.kind.default_op().result(&[desc]);
        row.computes() && row.operands.len() == 1 && result.is_ok_and(|result| result.desc == desc)
    };
    OPS.iter().filter(fits).collect()
}

/// lc 15118: ops that only the host supports, between ops of accelerators: they run on the host, and nothing is copied but
/// what goes in and what comes out.
#[test]
fn report_09_what_only_the_host_supports_runs_there_between_two_copies() {
    let rows = unary_ops();
    assert!(rows.len() >= 15, "{} unary ops", rows.len());
    for (i, row) in rows.iter().enumerate() {
        for accelerators in 1..=3 {
            for length in 1..=3 {
                let refused = format!(" ops=all,-{}", row.name);
                let (mut text, _) = machine(accelerators + 1, &refused);
                text += "weight a f32 [32,32] on dev0\nweight b f32 [32,32] on dev0\ninput x f32 [32,4]\n";
                text += "h = mul_mat a x\n";
                let mut last = "h".to_owned();
                for k in 0..length {
                    let _ = writeln!(text, "p{k} = {} {last}", row.name);
                    last = format!("p{k}");
                }
                let _ = writeln!(text, "y = mul_mat b {last} output");
                let plan = expect(&text);
                for k in 0..length {
                    assert_eq!(at(&plan, &format!("p{k}")), "cpu", "{}", row.name);
                }
                let made: Vec<_> = copies(&plan).into_iter().collect();
                let copy = |node: &str, to: &str| ((node.to_owned(), to.to_owned()), 1);
                let mut wanted = vec![copy("h", "cpu"), copy(&last, "dev0"), copy("x", "dev0")];
                wanted.sort();
                assert_eq!(made, wanted, "{text}");
                if length == 2 && accelerators == 1 && i % 4 == 0 {
                    computes_what_one_host_does(&text);
                }
                // Memory that both can use needs no copy, and changes no placement.
                let shared = text
                    .replace("backend dev0", "backend dev0 reads=host")
                    .replace("backend cpu", "backend cpu reads=dev0");
                let plan = expect(&shared);
                assert_eq!(at(&plan, "p0"), "cpu");
                assert_eq!(copies(&plan), std::collections::BTreeMap::new());
            }
        }
    }
}

/// lc#17232: a pin holds in every run, by what the backends were really given, and nothing is planned again.
#[test]
fn report_10_pins_hold_in_every_run_and_nothing_is_planned_again() {
    for backends in 2..=4_u32 {
        for pinned in 0..backends {
            for copies in [1, 3] {
                let log = Arc::new(Log::default());
                let (lines, names) = machine(backends as usize, "");
                let mut builder = Engine::builder().verify_plans(true);
                for backend in machine_of(&lines, &log) {
                    builder = builder.backend_instance(backend);
                }
                let mut engine = builder.build().expect("oracles start");
                let mut g = GraphBuilder::new("pinned");
                g.pipeline_copies(copies);
                let x = g.input("x", DType::F32, &[4]).expect("a small input");
                let a = g.scale(x, 2.0).expect("shapes fit");
                let p = g.relu(a).expect("shapes fit");
                let p = g.name("p", p).expect("a free name");
                g.pin(p, BackendIndex(pinned)).expect("own tensor");
                let y = g.add(p, a).expect("shapes fit");
                let y = g.output("y", y).expect("a free name");
                let graph = engine.add_graph(g);
                engine.plan(graph).expect("it plans");
                log.take_ran();
                for run in 0..10_u8 {
                    engine.write(graph, x, &[f32::from(run); 4]).expect("an input");
                    engine.run(graph).expect("it runs");
                    let mut result = [0.0_f32; 4];
                    engine.read(graph, y, &mut result).expect("an output");
                    assert_eq!(result, [f32::from(run) * 4.0; 4]);
                    let ran = log.take_ran();
                    let by: Vec<&String> =
                        ran.iter().filter(|(_, nodes)| nodes.iter().any(|n| &**n == "p")).map(|(b, _)| b).collect();
                    assert_eq!(by, [&names[pinned as usize]], "run {run}");
                }
                let counters = engine.counters();
                assert_eq!((counters.planned, counters.cached, counters.unchanged), (1, 0, 10));
            }
        }
    }
}

/// Copies whose bytes lie in an opaque buffer of another backend's.
fn opaque_copies(plan: &entensor_systems::Plan) -> Vec<String> {
    let nodes = nodes(plan);
    let opaque = |node: &u32| {
        let root = &nodes[nodes[*node as usize].root as usize];
        root.existing.is_some_and(|buffer| plan.existing[buffer as usize].opaque)
    };
    splits(plan)
        .iter()
        .flat_map(|split| split.inputs.clone())
        .filter(opaque)
        .map(|n| nodes[n as usize].name.to_string())
        .collect()
}

/// lc#11120: a layout that only one backend understands is never copied byte by byte: its readers go there, or there is an
/// error that says so.
#[test]
fn report_11_opaque_memory_is_never_copied() {
    let mut seen = 0;
    for seed in 0..1500 {
        let source = case(seed, Limits::default());
        if !source.contains(" opaque") {
            continue;
        }
        let graph = common::parse("case", &source);
        let mut world = World::new();
        let Ok(entity) = graph.spawn(&mut world) else { continue };
        let mut planned = Planned { world, graph: entity, schedule: plan_schedule(Recording::Off) };
        planned.plan();
        let Ok(plan) = planned.result() else { continue };
        assert_eq!(opaque_copies(&plan), Vec::<String>::new(), "seed {seed}\n{source}");
        seen += u32::from(plan.existing.iter().any(|buffer| buffer.opaque));
    }
    assert!(seen >= 30, "only {seen} plans use opaque memory");
    // Directly, through a view, as an operand beside others, offloaded, and pinned away.
    let machine = "backend gpu reads=host offload_batch=1\nbackend amx memory=host buffer_type=amx ops=AMX\nbackend cpu\n\
                   buffer packed on amx usage=weights opaque\ntensor w f32 [8,8] in packed\ninput x f32 [8,4]\n";
    for (ops, node) in [
        ("mul_mat", "y = mul_mat w x"),
        ("add", "y = add x w"),
        ("add", "v = view w shape=[8,4]\ny = add x v"),
        ("all,-relu", "h = mul_mat w x\ny = add h w"),
    ] {
        let shape = if node.contains("add x w") || node.contains("add h w") { "[8,8]" } else { "[8,4]" };
        let text = machine.replace("AMX", ops).replace("[8,4]", shape) + node;
        let plan = expect(&text);
        assert_eq!((at(&plan, "y").as_str(), opaque_copies(&plan).len()), ("amx", 0), "{text}");
        computes_what_one_host_does(&text.replace(" opaque", ""));
        let error = self::plan(&format!("{text} pin=cpu")).expect_err("the host cannot read that layout");
        assert!(error.to_string().contains("private layout"), "{error}");
    }
    let error =
        plan(&(machine.replace("AMX", "mul_mat") + "v = reshape w shape=[8,8]\ny = relu v")).expect_err("nobody can");
    assert!(matches!(error, PlanError::NoBackend { .. } | PlanError::Immovable { .. }), "{error}");
    assert!(error.to_string().contains("private layout") && error.to_string().contains("amx: "), "{error}");
}

/// wc#2573: a pin on a view is a pin on its memory, and every node is still placed, or an error says which wishes cannot both be.
#[test]
fn report_16_a_pinned_view_leaves_nothing_unplaced() {
    let views = ["view ROOT shape=[8,4]", "reshape ROOT shape=[4,8]", "permute ROOT axes=[1,0,2,3]", "transpose ROOT"];
    let roots = [
        "input root f32 [8,4]",
        "scratch root f32 [8,4]",
        "weight root f32 [8,4] on dev0",
        "weight root f32 [8,4] on cpu",
        "input x f32 [8,4]\nroot = relu x",
        "weight w f32 [8,8] on dev0\ninput x f32 [8,4]\nroot = mul_mat w x",
        "input x f32 [8,4]\nscratch s f32 [8,4]\nroot = cpy x s",
    ];
    let mut planned_count = 0;
    for root in roots {
        for view in views {
            for second in ["", "v2 = reshape v shape=[32]\n"] {
                for backends in 2..=3 {
                    let (lines, names) = machine(backends, "");
                    for pinned in &names {
                        let node = view.replace("ROOT", "root");
                        // A transposed view can only be reshaped once it is packed.
                        if !second.is_empty() && (view.starts_with("permute") || view.starts_with("transpose")) {
                            continue;
                        }
                        let pin = if second.is_empty() { "v" } else { "v2" };
                        let text = format!(
                            "{lines}{root}\nv = {node}\n{second}c = cont {pin}\na = relu c\nd = silu root\nrun a,d\npin {pin} {pinned}\n"
                        );
                        match plan(&text) {
                            Ok(plan) => {
                                assert_eq!(
                                    (at(&plan, pin), at(&plan, "root")),
                                    (pinned.clone(), pinned.clone()),
                                    "{text}"
                                );
                                planned_count += 1;
                            }
                            Err(error) => {
                                let fits = matches!(&error, PlanError::PinConflict { tensor, .. } if &**tensor == pin);
                                assert!(fits && root.contains("weight root"), "{}: {error}\n{text}", error.kind());
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(planned_count >= 100, "{planned_count} plans");
    // Random graphs with a pin on each of their views.
    for seed in 0..300 {
        let source = case(seed, Limits { scratch: true, nodes: 16 });
        let graph = common::parse("case", &source);
        let views = graph.tensors().iter().filter(|t| {
            let row = match &t.origin {
                entensor::graph_text::Origin::Node { op, .. } => op.row(),
                _ => return false,
            };
            row.view && t.pin.is_none()
        });
        for view in views.take(2) {
            for backend in graph.machine() {
                let text = common::parse(
                    "pinned",
                    &format!("{source}pin {} {}\n", view.name, backend.name)
                        .replace(&format!("pin {} {}\npin {} ", view.name, backend.name, view.name), "pin "),
                );
                let mut world = World::new();
                let Ok(entity) = text.spawn(&mut world) else { continue };
                let mut planned = Planned { world, graph: entity, schedule: plan_schedule(Recording::Off) };
                planned.plan();
                match planned.result() {
                    Ok(plan) => verify(&plan).unwrap_or_else(|violations| panic!("{violations:?}\n{text}")),
                    Err(error) => assert!(
                        !matches!(error, PlanError::Unplaced { .. } | PlanError::Misplaced { .. }),
                        "{error}\n{text}"
                    ),
                }
            }
        }
    }
}

/// lc#15346, lc#15488: ids that the host produces and that are copied at the start of the very split that uses them choose the
/// right experts, wherever the experts are.
#[test]
fn report_17_ids_made_on_the_host_choose_the_right_experts() {
    for (experts, used, tokens) in [(2_u64, 1_u64, 1_u64), (4, 2, 3), (8, 3, 5), (16, 1, 9)] {
        for home in [0_u32, 1] {
            for copies in [1, 2] {
                let log = Arc::new(Log::default());
                let lines = "backend gpu ops=all,-top_k,-argsort,-soft_max\nbackend cpu\n";
                let mut builder = Engine::builder().verify_plans(true);
                for backend in machine_of(lines, &log) {
                    builder = builder.backend_instance(backend);
                }
                let mut engine = builder.build().expect("oracles start");
                let bytes = 4 * 2 * 3 * experts;
                let buffer =
                    engine.create_buffer("experts", BackendIndex(home), Usage::Weights, bytes).expect("it fits");
                let weights = engine.tensor_in("experts", DType::F32, &[2, 3, experts], buffer, 0).expect("it fits");
                // Expert e answers e + 1, whatever the row.
                let values: Vec<f32> = (0..experts).flat_map(|e| [(e + 1) as f32 * 0.5; 6]).collect();
                engine.write_tensor(&weights, &values).expect("own memory");
                let mut g = GraphBuilder::new("experts");
                g.pipeline_copies(copies);
                let weights = g.shared(&weights).expect("one tensor");
                let scores = g.input("scores", DType::F32, &[experts, tokens]).expect("a small input");
                let x = g.input("x", DType::F32, &[2, 1, tokens]).expect("a small input");
                let ids = g.op(Op::TopK { k: used as u32 }, &[scores]).expect("shapes fit");
                let ids = g.name("ids", ids).expect("a free name");
                let y = g.mul_mat_id(weights, x, ids).expect("shapes fit");
                g.pin(y, BackendIndex(0)).expect("own tensor");
                let y = g.output("y", y).expect("a free name");
                let chosen = g.output("chosen", ids);
                assert!(chosen.is_ok());
                let graph = engine.add_graph(g);
                engine.write(graph, x, &vec![1.0_f32; (2 * tokens) as usize]).expect("an input");
                let mut random = Random::new(experts * 100 + u64::from(home));
                for run in 0..6 {
                    let scored: Vec<f32> = (0..experts * tokens).map(|_| random.below(1 << 20) as f32).collect();
                    engine.write(graph, scores, &scored).expect("an input");
                    engine.write(graph, x, &vec![1.0_f32; (2 * tokens) as usize]).expect("an input");
                    engine.run(graph).expect("it runs");
                    let plan = engine.plan_of(graph).expect("it ran");
                    assert_eq!((at(plan, "chosen").as_str(), at(plan, "y").as_str()), ("cpu", "gpu"));
                    let last = splits(plan).pop().expect("there is a split");
                    assert!(last.inputs.iter().any(|&i| plan_name(plan, i) == "chosen"), "copied where they are used");
                    let mut result = vec![0.0_f32; (3 * used * tokens) as usize];
                    engine.read(graph, y, &mut result).expect("an output");
                    for token in 0..tokens {
                        let row = &scored[(token * experts) as usize..((token + 1) * experts) as usize];
                        let mut order: Vec<usize> = (0..row.len()).collect();
                        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
                        let mut expected: Vec<f32> = order[..used as usize].iter().map(|&e| (e + 1) as f32).collect();
                        let start = (token * used * 3) as usize;
                        let mut answers: Vec<f32> = (0..used as usize).map(|u| result[start + u * 3]).collect();
                        // Which of the best comes first is the op's affair.
                        expected.sort_by(f32::total_cmp);
                        answers.sort_by(f32::total_cmp);
                        assert_eq!(answers, expected, "run {run}, token {token}");
                    }
                }
            }
        }
    }
}
