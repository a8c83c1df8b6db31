//! Which backend takes a node whose operands lie elsewhere, at what cost, and in which words it says so.

use std::{fmt::Write as _, sync::Arc};

use bevy_ecs::prelude::*;
use entensor::DType;
use entensor_components::{Cause, OPS, Op, OpRow, TensorDesc};
use entensor_snapshots::generate::{Limits, Random, case};
use entensor_systems::{PlanError, Recording, plan_schedule};

use crate::{
    common::{self, Planned, fixtures},
    plain_rules::plain,
    tools::{Node, at, backend_name, between, copies, expect, machine, nodes, plan, planned, splits},
};

/// One case of each op of several operands: parameters and operands that fit it.
fn sample(row: &OpRow) -> Option<(Op, Vec<TensorDesc>)> {
    row.test_samples().into_iter().filter(|sample| sample.operands.len() >= 2).find_map(|sample| {
        let descs: Option<Vec<TensorDesc>> = sample
            .operands
            .iter()
            .zip(row.operands)
            .map(|(operand, row)| {
                let dtypes = [DType::F32, DType::I32, DType::F16];
                let dtype = dtypes.into_iter().find(|&dtype| row.dtypes.contains(dtype))?;
                TensorDesc::packed(dtype, operand.shape).ok().filter(|desc| !desc.shape.is_empty())
            })
            .collect();
        let descs = descs?;
        sample.op.result(&descs).ok().map(|_| (sample.op.clone(), descs))
    })
}

/// lc 25832: one small weight on the host does not take an op to the host whose other operands are on the accelerator, for any
/// op and any operand that is not what the op is about.
#[test]
fn report_12_a_small_host_weight_does_not_move_an_op() {
    let mut tried = 0;
    for row in OPS.iter().filter(|row| row.computes() && row.operands.len() >= 2) {
        let Some((op, descs)) = sample(row) else { continue };
        for side in (0..descs.len()).filter(|&side| Some(side) != row.anchor && Some(side) != row.writes) {
            for accelerators in 1..=2 {
                let (mut text, _) = machine(accelerators + 1, "");
                text += "buffer big on dev0 usage=any\n";
                for (i, desc) in descs.iter().enumerate() {
                    let _ = match i == side {
                        true => writeln!(text, "weight t{i} {} {} on cpu", desc.dtype, desc.shape),
                        false => writeln!(text, "tensor t{i} {} {} in big", desc.dtype, desc.shape),
                    };
                }
                let _ = write!(text, "y = {}", row.name);
                for i in 0..descs.len() {
                    let _ = write!(text, " t{i}");
                }
                if let Some((_, params)) = op.to_string().split_once(' ') {
                    let _ = write!(text, " {params}");
                }
                let plan = expect(&(text + " output\n"));
                assert_eq!(at(&plan, "y"), "dev0", "{} with operand {side} on the host", row.name);
                tried += 1;
            }
        }
    }
    assert!(tried >= 40, "only {tried} cases");
    // In a run of large tensors, only the 16 bytes move.
    for node in ["z = add h s", "z = mul h s", "z = add h s\nz2 = mul z s"] {
        let text = format!(
            "backend gpu offload_batch=32\nbackend cpu\nweight w f32 [4,4] on gpu\nweight s f32 [4] on cpu\n\
             input x f32 [4,6553600]\nh = mul_mat w x\n{node}\n"
        );
        let plan = expect(&text);
        assert_eq!(at(&plan, "z"), "gpu");
        assert_eq!(copies(&plan).get(&("s".into(), "gpu".into())), Some(&1));
        assert_eq!(plan.copied_bytes(), 16 + 4 * 4 * 6_553_600, "the input, and the weight");
    }
}

/// Random graphs of products, sums and functions, with weights anywhere.
fn network(seed: u64) -> String {
    let mut random = Random::new(seed);
    let count = usize::try_from(between(&mut random, 1, 4)).expect("small");
    let (mut text, mut names) = (String::new(), Vec::new());
    for i in 0..count {
        let last = i + 1 == count;
        let name = if last { "cpu".to_owned() } else { format!("dev{i}") };
        let _ = write!(text, "backend {name}");
        if !last {
            text += *random.pick(&["", "", " memory=host", " reads=host", " memory=shared reads=host"]);
            let refused: Vec<&str> =
                ["mul_mat", "add", "relu", "mul", "rms_norm"].into_iter().filter(|_| random.percent(25)).collect();
            if !refused.is_empty() {
                let _ = write!(text, " ops=all,-{}", refused.join(",-"));
            }
            if random.percent(30) {
                text += *random.pick(&[" offload_batch=1", " offload_batch=4", " offload_batch=32"]);
            }
            if random.percent(20) {
                text += *random.pick(&[" max_inputs=2", " max_inputs=5"]);
            }
        }
        if random.percent(25) {
            text += " buffer_type=other";
        }
        text += "\n";
        names.push(name);
    }
    let batch = *random.pick(&[1, 2, 4, 40]);
    let _ = writeln!(text, "input x f32 [8,{batch}]");
    let mut tensors = vec!["x".to_owned()];
    for i in 0..between(&mut random, 2, 24) {
        let recent = &tensors[tensors.len().saturating_sub(4)..];
        let (a, b) = (random.pick(recent).clone(), random.pick(recent).clone());
        let home = random.pick(&names).clone();
        let _ = match random.below(6) {
            0 | 1 => writeln!(text, "weight w{i} f32 [8,8] on {home}\nt{i} = mul_mat w{i} {a}"),
            2 => writeln!(text, "weight s{i} f32 [8] on {home}\nt{i} = mul {a} s{i}"),
            3 => writeln!(text, "t{i} = add {a} {b}"),
            4 => writeln!(text, "t{i} = relu {a}"),
            _ => writeln!(text, "t{i} = rms_norm {a}"),
        };
        tensors.push(format!("t{i}"));
    }
    let _ = writeln!(text, "run {}", tensors[1..].join(","));
    text
}

/// lc#6210: accelerators leave a run on the host alone, and no better rule may cost more splits or bytes than the plain ones do.
#[test]
fn report_13_accelerators_pick_nothing_out_of_a_host_run() {
    for accelerators in 1..=3 {
        for rest in
            ["", " ops=add,mul,relu", " ops=add,mul,relu reads=host", " ops=rms_norm reads=host offload_batch=1"]
        {
            for length in [3, 10, 60] {
                let (mut text, _) = machine(accelerators + 1, rest);
                text += "input x f32 [8,4]\n";
                let mut last = "x".to_owned();
                for i in 0..length {
                    let _ = match i % 5 {
                        0 => writeln!(text, "weight w{i} f32 [8,8] on cpu\nt{i} = mul_mat w{i} {last}"),
                        1 => writeln!(text, "t{i} = rms_norm {last}"),
                        2 => writeln!(text, "weight s{i} f32 [8] on cpu\nt{i} = mul {last} s{i}"),
                        3 => writeln!(text, "t{i} = relu {last}"),
                        _ => writeln!(text, "t{i} = add {last} {last}"),
                    };
                    last = format!("t{i}");
                }
                let plan = expect(&text);
                assert_eq!((splits(&plan).len(), plan.copied_bytes()), (1, 0), "{text}");
                assert!(nodes(&plan).iter().all(|node| backend_name(&plan, node.backend) == "cpu" || !node.computes()));
            }
        }
    }
    let (mut compared, mut spread) = (0, 0);
    for seed in 0..2000 {
        let source = network(seed);
        let (graph, plan) = planned(&source);
        let (Ok(plan), Some(plain)) = (plan, plain(&graph)) else { continue };
        assert!(
            splits(&plan).len() <= plain.splits && plan.copied_bytes() <= plain.copied_bytes,
            "seed {seed}: {} splits and {} bytes, plainly {} and {}\n{source}",
            splits(&plan).len(),
            plan.copied_bytes(),
            plain.splits,
            plain.copied_bytes
        );
        compared += 1;
        spread += u32::from(plain.splits > 1);
    }
    assert!(compared >= 1000 && spread >= 500, "{compared} compared, {spread} with several splits");
}

/// lc#13024: a weight that does not fit into a device's largest buffer is not offloaded to it, by one byte or by far, padding
/// counted; a device where it fits takes it.
#[test]
fn report_14_what_does_not_fit_is_not_offloaded() {
    for rows in [1_u64, 7, 64, 1000] {
        for pad in [1_u64, 64, 500] {
            let padded = (rows * 32).next_multiple_of(pad);
            for limit in [padded - 1, padded, padded + 1, padded * 2, padded / 2, 1] {
                for (second, its_limit) in [
                    ("", 0),
                    ("backend spare offload_batch=4 pad=PAD max_buffer=LIMIT\n", padded),
                    ("backend spare offload_batch=4 pad=PAD max_buffer=LIMIT\n", padded - 1),
                ] {
                    let second = second.replace("PAD", &pad.to_string()).replace("LIMIT", &its_limit.to_string());
                    // The operand and the result are small: only the weight may be too large.
                    let text = format!(
                        "backend gpu offload_batch=4 pad={pad} max_buffer={limit}\n{second}backend cpu\n\
                         weight w f32 [8,{rows}] on cpu\ninput x f32 [8,4]\ny = mul_mat w x\n"
                    );
                    let outcome = plan(&text);
                    let expected = match () {
                        () if padded <= limit => "gpu",
                        () if padded <= its_limit => "spare",
                        () => "cpu",
                    };
                    match outcome {
                        Ok(plan) => assert_eq!(at(&plan, "y"), expected, "{text}"),
                        // The weight fits where it goes, its neighbours need not.
                        Err(PlanError::TensorTooLarge { tensor, backend, .. }) => {
                            assert!(&*tensor != "w" && *backend == *expected && expected != "cpu", "{text}");
                        }
                        Err(error) => panic!("{error}\n{text}"),
                    }
                }
            }
        }
    }
    // Of a view, only the view's bytes are uploaded.
    let text = "backend gpu offload_batch=1 max_buffer=256\nbackend cpu\nweight w f32 [8,64] on cpu\ninput x f32 [8,4]\n\
                v = view w shape=[8,ROWS]\ny = mul_mat v x\n";
    assert_eq!(at(&expect(&text.replace("ROWS", "8")), "y"), "gpu");
    assert_eq!(at(&expect(&text.replace("ROWS", "9")), "y"), "cpu");
}

/// koboldcpp#737, lc#3860: every node says why it is where it is, with the numbers and names that decided.
#[test]
fn report_15_every_node_says_why_it_is_there() {
    for threshold in [1, 2, 32, 33] {
        for batch in [1, 2, 31, 32, 33, 64] {
            let text = format!(
                "backend gpu offload_batch={threshold}\nbackend cpu\nweight w f32 [8,8] on cpu\nweight e f32 [8,8,2] on cpu\n\
                 weight t f32 [8,4] on cpu\ninput x f32 [8,{batch}]\ninput z f32 [8,1,{batch}]\ninput ids i32 [1,{batch}]\ninput rows i32 [{batch}]\n\
                 y = mul_mat w x output\nm = mul_mat_id e z ids output\nr = get_rows t rows output\n"
            );
            let plan = expect(&text);
            let why = |name: &str| plan.why(plan.find(name).expect("it is there"));
            for name in ["y", "m"] {
                if batch < threshold {
                    let words = format!("batch {batch} below offload threshold {threshold} of gpu");
                    assert!(why(name).contains(&words), "{name}: {}", why(name));
                    assert_eq!(at(&plan, name), "cpu");
                } else {
                    let words = format!("batch {batch} reaches offload threshold {threshold} of gpu, although weights");
                    assert!(why(name).contains(&words), "{name}: {}", why(name));
                    assert_eq!(at(&plan, name), "gpu");
                }
            }
            assert!(why("r").contains("looking up rows is never worth an upload to gpu"), "{}", why("r"));
            assert_eq!(at(&plan, "r"), "cpu");
        }
    }
    let refused = expect(
        "backend gpu ops=all,-mul_mat dtypes=all,-f16 offload_batch=1\nbackend cpu\nweight w f32 [8,8] on cpu\ninput x f32 [8,4]\ny = mul_mat w x",
    );
    let why = refused.why(refused.find("y").expect("it is there"));
    assert!(why.contains("gpu refuses it (the op mul_mat)"), "{why}");
    // Every cause that a plan holds has words of its own, with a name in it.
    let mut causes = std::collections::BTreeMap::new();
    let random = (0..400).map(|seed| (format!("seed {seed}"), case(seed, Limits::default())));
    for (name, text) in fixtures().into_iter().chain(random) {
        let graph = common::parse(&name, &text);
        let mut world = World::new();
        let Ok(entity) = graph.spawn(&mut world) else { continue };
        let mut planned = Planned { world, graph: entity, schedule: plan_schedule(Recording::Off) };
        planned.plan();
        let Ok(plan) = planned.result() else { continue };
        for (i, node) in nodes(&plan).iter().enumerate() {
            let why = plan.why(i);
            let root = &plan_name(&plan, node.root);
            let names = [backend_name(&plan, node.backend), root].map(|name| why.contains(name));
            let buffer = node_buffer(&plan, node).is_some_and(|buffer| why.contains(&*buffer));
            let operand = node.sources.iter().any(|&source| why.contains(&plan_name(&plan, source)));
            assert!(
                names.contains(&true) || buffer || operand || node.cause == Cause::Input,
                "{name}: {} because {why}",
                node.name
            );
            causes.entry(node.cause).or_insert(why);
        }
    }
    let sentences: std::collections::BTreeSet<&String> = causes.values().collect();
    assert_eq!(sentences.len(), causes.len());
    assert!(causes.len() >= 13, "{causes:?}");
}

pub(crate) fn plan_name(plan: &entensor_systems::Plan, node: u32) -> String {
    nodes(plan)[node as usize].name.to_string()
}

fn node_buffer(plan: &entensor_systems::Plan, node: &Node) -> Option<Arc<str>> {
    let root = &nodes(plan)[node.root as usize];
    root.existing.map(|buffer| Arc::clone(&plan.existing[buffer as usize].name))
}
