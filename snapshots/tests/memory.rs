//! Lifetimes and what is computed in place: what the plans of small graphs say, and random graphs against a naive count.

mod common;

use std::collections::BTreeMap;

use common::Planned;
use entensor::graph_text::GraphText;
use entensor_snapshots::generate::{Limits, case};
use entensor_systems::{
    Allocation, Held, Plan, PlanStatus, Planning, Recording,
    liveness::{Holds, Live},
    plan_schedule, verify,
};

/// The proved plan of a text.
fn plan(text: &str) -> std::sync::Arc<Plan> {
    let plan = Planned::new(&common::parse("case", text)).expect();
    verify(&plan).unwrap_or_else(|violations| panic!("{violations:?}\n{text}"));
    plan
}

fn allocation<'a>(plan: &'a Plan, name: &str) -> &'a Allocation {
    &plan.allocations[common::allocation(plan, name)]
}

/// The name of the allocation that a node is computed over.
fn over(plan: &Plan, name: &str) -> Option<String> {
    allocation(plan, name)
        .in_place_of
        .map(|operand| plan.allocation_name(&plan.allocations[operand as usize]).to_string())
}

#[test]
fn results_are_computed_over_operands_that_die() {
    let plan = plan(
        "backend cpu\ninput x f32 [64,4]\na = relu x\nb = add a x\nc = mul b b\nd = add x c\nkept = scale d by=2 output\ny = relu kept output",
    );
    assert_eq!(over(&plan, "a"), None, "inputs are stable");
    assert_eq!(over(&plan, "b").as_deref(), Some("a"));
    assert_eq!(over(&plan, "c").as_deref(), Some("b"), "twice the same operand");
    assert_eq!(over(&plan, "d").as_deref(), Some("c"), "the second operand");
    assert_eq!(over(&plan, "kept").as_deref(), Some("d"));
    assert_eq!(over(&plan, "y"), None, "outputs are kept");
    assert_eq!(plan.planned_bytes(), 3 * 1024);
}

/// Report 28: the root is larger than the result that takes over its start, and the rest serves others.
#[test]
fn a_result_over_the_start_of_a_larger_tensor_gives_the_rest_back() {
    let plan = plan(
        "backend cpu\ninput x f32 [64,16]\nbig = relu x\npart = view big shape=[64,4]\nsmall = relu part\n\
         rest = repeat small shape=[64,12]\nwhole = concat small rest dim=1\ny = add whole x output",
    );
    assert_eq!(over(&plan, "small").as_deref(), Some("big"));
    let (big, rest) = (allocation(&plan, "big"), allocation(&plan, "rest"));
    assert_eq!((rest.buffer, rest.offset_bytes), (big.buffer, big.offset_bytes + 1024));
    assert_eq!((plan.planned_bytes(), plan.lower_bound_bytes), (3 * 4096, 3 * 4096));
}

#[test]
fn operands_that_are_read_elsewhere_are_not_overwritten() {
    let text = |last: &str| {
        plan(&format!("backend cpu\ninput x f32 [64,4]\ninput ids i32 [4,1]\na = relu x\n{last} output\n"))
    };
    // A row of the operand, read for every row of the result.
    assert_eq!(over(&text("row = view a shape=[64,1]\ny = add a row"), "y"), None);
    // All of it through another view of the same place: element by element, that is the operand itself.
    assert_eq!(over(&text("same = view a shape=[64,4]\ny = add a same"), "y").as_deref(), Some("a"));
    // The end of the operand only.
    assert_eq!(over(&text("end = view a offset=256 shape=[64,3]\ny = relu end"), "y"), None);
    // Any row may be added to any other.
    let rows = text("r = reshape a shape=[64,4,1]\ny = add_id r a ids");
    assert_eq!(over(&rows, "y"), None);
    let other = text("r = reshape a shape=[64,4,1]\nb = scale x by=2\ny = add_id r b ids");
    assert_eq!(over(&other, "y").as_deref(), Some("a"));
    // Another shape.
    assert_eq!(over(&text("t = transpose a\nc = cont t\nr = reshape c shape=[64,4]\ny = relu r"), "c"), None);
}

#[test]
fn copies_are_taken_over_unless_runs_overlap() {
    let text = "backend gpu ops=mul_mat,relu\nbackend cpu\nweight w f32 [32,32] on gpu\ninput x f32 [32,4]\n\
                h = mul_mat w x\na = silu h\nb = silu a\ny = scale b by=2 output\n";
    let once = plan(text);
    assert_eq!(over(&once, "a").as_deref(), Some("cpu#h#0"));
    assert_eq!(over(&once, "y").as_deref(), Some("b"));
    let twice = plan(&format!("{text}copies 2\n"));
    assert_eq!(over(&twice, "a"), None, "each run has its own copy, but all have one `a`");
    assert_eq!(over(&twice, "b").as_deref(), Some("a"));
    assert_eq!(over(&twice, "y"), None, "each run has its own output");
}

/// Report 18.
#[test]
fn report_18_tensors_lie_in_one_buffer_each() {
    let text = "backend gpu max_buffer=64 align=8\nbackend cpu\nweight w f32 [4,4] on gpu\ninput x f32 [4,3]\n\
                a = mul_mat w x\nb = mul_mat w a\nc = add a b\nd = mul_mat w c\ne = mul b d\nf = add a e\ny = add f c output\n";
    let plan = plan(text);
    let gpu: Vec<u64> = plan.buffers.iter().filter(|b| b.backend == 0).map(|b| b.size_bytes).collect();
    assert!(gpu.len() > 1, "{gpu:?}");
    for allocation in &plan.allocations {
        assert!(allocation.offset_bytes + allocation.size_bytes <= plan.buffers[allocation.buffer as usize].size_bytes);
    }
    assert!(gpu.iter().all(|&bytes| bytes <= 64), "{gpu:?}");
}

/// Whether it is a copy, and which node or copy.
fn key(held: Held) -> (bool, u32) {
    match held {
        Held::Node(node) => (false, node),
        Held::Copy(copy) => (true, copy),
    }
}

/// First and last step of everything, from splits and operands alone.
fn naive_spans(plan: &Plan) -> BTreeMap<(bool, u32), (u32, u32)> {
    let mut spans = BTreeMap::new();
    let mut touch = |held: Held, step: u32| {
        let span = spans.entry(key(held)).or_insert((step, step));
        span.1 = step;
    };
    let root = |node: u32| plan.node(node as usize).root;
    let mut step = 0;
    for split in &plan.splits {
        for &copy in plan.split_inputs(split) {
            touch(Held::Copy(copy), step);
            touch(Held::Node(root(plan.copies[copy as usize].source)), step);
            step += 1;
        }
        for &node in plan.split_nodes(split) {
            touch(Held::Node(root(node)), step);
            for &source in plan.node(node as usize).sources {
                let copy = plan.copies.iter().position(|c| (c.source, c.backend) == (source, split.backend));
                touch(copy.map_or(Held::Node(root(source)), |copy| Held::Copy(copy as u32)), step);
            }
            step += 1;
        }
    }
    let end = step.saturating_sub(1);
    for (node, held) in plan.nodes().enumerate() {
        let span = spans.entry((false, held.root)).or_insert((0, 0));
        if held.flags.output {
            span.1 = end;
        }
        if held.flags.input && held.root as usize == node {
            *span = (0, end);
        }
    }
    spans
}

/// Report 30: on random graphs and machines, nothing lives before its first or after its last use, and everything is found
/// under what it holds, in each slot.
#[test]
fn report_30_everything_lives_from_its_first_to_its_last_use() {
    let (mut planned, mut in_place) = (0, 0);
    for seed in 0..600 {
        let source = case(seed, Limits::default());
        let text = GraphText::parse("case.graph", &source).expect("generated texts are right");
        let mut world = bevy_ecs::world::World::new();
        let Ok(graph) = text.spawn(&mut world) else { continue };
        let mut case = Planned { world, graph, schedule: plan_schedule(Recording::Off) };
        case.world.insert_resource(Planning(graph));
        case.world.insert_resource(PlanStatus::Planning);
        case.plan();
        let Ok(plan) = case.result() else { continue };
        let spans = naive_spans(&plan);
        let under_way = plan.backends.iter().any(|backend| backend.handle.capabilities().asynchronous);
        for (i, allocation) in plan.allocations.iter().enumerate() {
            let (name, found) = (plan.allocation_name(allocation), (allocation.first, allocation.last));
            // Of several slots outputs live throughout, and copies too where other slots' runs go on meanwhile.
            let is_copy = matches!(allocation.held, Held::Copy(_));
            let is_slotted =
                plan.allocations.iter().any(|a| a.held == allocation.held && a.slot > 0) && (!is_copy || under_way);
            let end = plan.allocations.iter().map(|a| a.last).max().unwrap_or(0);
            let expected = if is_slotted { Some((0, end)) } else { spans.get(&key(allocation.held)).copied() };
            assert_eq!(Some(found), expected, "seed {seed}: `{name}`\n{source}");
            if let Some(operand) = allocation.in_place_of {
                let operand = &plan.allocations[operand as usize];
                let place = |a: &Allocation| (a.buffer, a.offset_bytes, a.slot);
                assert_eq!(place(operand), place(allocation), "seed {seed}\n{source}");
                assert_eq!(operand.last, allocation.first, "seed {seed}\n{source}");
                assert!(operand.size_bytes >= allocation.size_bytes, "seed {seed}\n{source}");
                in_place += 1;
            }
            let live = case.world.resource::<Live>();
            let holds = match allocation.held {
                Held::Node(node) => Holds::Node(node),
                Held::Copy(copy) => Holds::Copy(copy),
            };
            assert_eq!(live.find(holds, allocation.slot), Some(i as u32), "seed {seed}: `{name}`");
            let first_slot = live.find(holds, 1000);
            assert_eq!(first_slot.map(|item| live.items[item as usize].slot), Some(0), "seed {seed}");
        }
        planned += 1;
    }
    assert!(planned > 200 && in_place > 200, "{planned} plans, {in_place} in place");
}
