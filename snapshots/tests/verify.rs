//! The verifier accepts every plan of the planner, and rejects plans that were damaged, each for the right reason.

mod common;

use std::sync::Arc;

use common::{Planned, allocation, fixture, fixtures};
use entensor_components::{BackendIndex, MemorySlot, SplitDesc};
use entensor_systems::{Held, NodeTableBuilder, Plan, Step, Violation, verify, verify_given};

/// A plan that nobody shares, so that it can be damaged.
fn plan_of(name: &str) -> Plan {
    let plan = Planned::new(&fixture(name)).expect();
    // The world, its cache and its graph are gone with `Planned`.
    let plan = Arc::into_inner(plan).expect("nobody else holds it");
    verify(&plan).unwrap_or_else(|violations| panic!("{name}: {violations:?}"));
    plan
}

#[track_caller]
fn expect(plan: &Plan, fits: impl Fn(&Violation) -> bool) {
    is_found(verify(plan), fits);
}

/// The same where backends were given something else than the plan says.
#[track_caller]
fn expect_given(plan: &Plan, given: &[Vec<SplitDesc>], fits: impl Fn(&Violation) -> bool) {
    verify(plan).expect("the plan itself is right");
    is_found(verify_given(plan, given), fits);
}

#[track_caller]
fn is_found(result: Result<(), Vec<Violation>>, fits: impl Fn(&Violation) -> bool) {
    let violations = result.expect_err("the damage is found");
    assert!(violations.iter().any(fits), "{violations:?}");
    assert!(violations.iter().all(|violation| !violation.to_string().is_empty()));
}

fn node(plan: &Plan, name: &str) -> usize {
    plan.find(name).unwrap_or_else(|| panic!("no node {name}"))
}

fn is_copy(step: &Step) -> bool {
    matches!(step, Step::Copy { .. })
}

#[test]
fn every_fixture_is_accepted() {
    let plans = fixtures().into_iter().filter_map(|(name, text)| {
        let plan = Planned::new(&common::parse(&name, &text)).result().ok()?;
        Some((name, plan))
    });
    let mut count = 0;
    for (name, plan) in plans {
        verify(&plan).unwrap_or_else(|violations| panic!("{name}: {violations:?}"));
        count += 1;
    }
    assert!(count >= 14, "only {count} fixtures can be planned");
}

#[test]
fn overlapping_allocations_are_found() {
    let mut plan = plan_of("one_backend");
    let (x, h) = (allocation(&plan, "x"), allocation(&plan, "h"));
    plan.allocations[h].offset_bytes = plan.allocations[x].offset_bytes;
    expect(&plan, |v| matches!(v, Violation::Overlap { .. }));
}

#[test]
fn an_in_place_result_whose_operand_is_read_later_is_found() {
    let mut plan = plan_of("in_place");
    let c = allocation(&plan, "c");
    plan.allocations[c].last += 1;
    expect(&plan, |v| matches!(v, Violation::Overlap { .. }));
}

#[test]
fn a_dropped_copy_is_found() {
    let mut plan = plan_of("two_weights");
    let steps = &mut plan.programs[0].steps;
    let first = steps.iter().position(is_copy).expect("it copies");
    steps.remove(first);
    expect(&plan, |v| matches!(v, Violation::StepOrder { .. }));
}

#[test]
fn a_copy_that_neither_split_nor_step_knows_any_more_is_found() {
    let mut plan = plan_of("two_weights");
    plan.splits[1].inputs = 0..0;
    plan.programs[0].steps.retain(|step| !matches!(step, Step::Copy { split: 1, .. }));
    expect(&plan, |v| matches!(v, Violation::WrongBytes { node, operand, .. } if &**node == "y" && &**operand == "a1"));
}

#[test]
fn swapped_copies_are_found() {
    let mut plan = plan_of("max_inputs");
    let steps = &mut plan.programs[0].steps;
    assert!(is_copy(&steps[0]) && is_copy(&steps[1]));
    steps.swap(0, 1);
    expect(&plan, |v| matches!(v, Violation::StepOrder { step: 2 }));
}

#[test]
fn a_stale_copy_is_found() {
    let mut plan = plan_of("refresh");
    plan.splits[2].inputs = 0..0;
    plan.programs[0].steps.retain(|step| !matches!(step, Step::Copy { split: 2, .. }));
    expect(
        &plan,
        |v| matches!(v, Violation::WrongBytes { node, operand, .. } if &**node == "b" && &**operand == "window"),
    );
}

#[test]
fn a_node_on_another_backend_than_its_split_is_found() {
    let mut plan = plan_of("two_weights");
    let y = node(&plan, "a0");
    plan.placements[y] = 1;
    expect(&plan, |v| matches!(v, Violation::WrongBackend { found: 1, wanted: 0, .. }));
}

#[test]
fn a_view_away_from_its_root_is_found() {
    let mut plan = plan_of("view_chain");
    let q = node(&plan, "q");
    plan.placements[q] = 1;
    expect(&plan, |v| matches!(v, Violation::WrongBackend { node, .. } if &**node == "q"));
}

#[test]
fn a_node_where_it_is_refused_is_found() {
    let mut plan = plan_of("unsupported_op");
    let p = node(&plan, "p");
    plan.placements[p] = 0;
    plan.splits[1].backend = 0;
    expect(&plan, |v| matches!(v, Violation::Unsupported { node, backend } if &**node == "p" && &**backend == "gpu"));
}

#[test]
fn a_cache_that_moved_is_found() {
    let mut plan = plan_of("kv_cache");
    let cache = node(&plan, "k_cache");
    plan.placements[cache] = 1;
    expect(&plan, |v| matches!(v, Violation::ImmovableMoved { .. }));
}

#[test]
fn an_ignored_pin_is_found() {
    let mut plan = plan_of("pins");
    let b = node(&plan, "b");
    let mut table = NodeTableBuilder::with_capacity(plan.node_count());
    for node in plan.nodes() {
        let mut facts = plan.table.facts(node.index as usize);
        if node.index as usize == b {
            facts.pin = Some(BackendIndex(0));
        }
        table.push(facts, node.sources.iter().copied());
    }
    plan.table = Arc::new(table.build(plan.leaves()));
    expect(&plan, |v| matches!(v, Violation::PinIgnored { wanted: 0, found: 1, .. }));
}

#[test]
fn a_misaligned_allocation_is_found() {
    let mut plan = plan_of("one_node");
    let y = allocation(&plan, "y");
    plan.allocations[y].offset_bytes += 4;
    plan.buffers[0].size_bytes += 32;
    expect(&plan, |v| matches!(v, Violation::Misaligned { align_bytes: 32, .. }));
}

#[test]
fn a_buffer_that_is_too_small_is_found() {
    let mut plan = plan_of("one_node");
    plan.buffers[0].size_bytes -= 1;
    expect(&plan, |v| matches!(v, Violation::OutOfBounds { .. }));
}

#[test]
fn a_step_outside_its_memory_is_found() {
    let plan = plan_of("one_node");
    let mut given = plan.write_out();
    given[0][0].nodes[0].output.offset_bytes += 64;
    expect_given(&plan, &given, |v| matches!(v, Violation::OutOfBounds { .. }));
}

#[test]
fn a_buffer_above_the_limit_is_found() {
    let mut plan = plan_of("max_buffer");
    plan.buffers[0].size_bytes = 4096;
    expect(&plan, |v| matches!(v, Violation::BufferTooLarge { .. }));
}

#[test]
fn a_lost_output_is_found() {
    let plan = plan_of("offload");
    let mut given = plan.write_out();
    // `ab` is written where the wanted `b` has been.
    let b = plan.locate(node(&plan, "b"), 0).expect("it has a place");
    let last = given[0][2].nodes.last_mut().expect("it runs nodes");
    last.output.offset_bytes = b.offset_bytes;
    expect_given(
        &plan,
        &given,
        |v| matches!(v, Violation::WrongBytes { node, operand, .. } if &**node == "run" && &**operand == "b"),
    );
}

#[test]
fn memory_that_a_backend_cannot_use_is_found() {
    let plan = plan_of("two_weights");
    let host = plan.allocations[allocation(&plan, "x")].buffer;
    // The copy is left out, and the node reads the host's memory itself.
    let x = plan.locate(node(&plan, "x"), 0).expect("it has a place");
    assert_eq!(x.memory, MemorySlot(host));
    let mut given = plan.write_out();
    given[0][0].nodes[0].operands[1] = x;
    expect_given(&plan, &given, |v| matches!(v, Violation::UnusableMemory { node, .. } if &**node == "h0"));
}

#[test]
fn a_missing_event_edge_is_found() {
    let mut plan = plan_of("async_events");
    plan.programs[0].steps.retain(|step| !matches!(step, Step::Record { event: 1, .. } | Step::Wait { event: 1, .. }));
    expect(&plan, |v| matches!(v, Violation::Unordered { other, .. } if &**other == "gpu1"));
}

#[test]
fn a_wait_before_its_record_is_found() {
    let mut plan = plan_of("async_events");
    let steps = &mut plan.programs[0].steps;
    let record = steps.iter().position(|step| matches!(step, Step::Record { event: 0, .. })).expect("it records");
    steps.swap(record, record + 1);
    expect(&plan, |v| matches!(v, Violation::Unordered { other, .. } if &**other == "gpu0"));
}

#[test]
fn nodes_out_of_order_are_found() {
    let mut plan = plan_of("one_backend");
    plan.launches.swap(1, 2);
    expect(&plan, |v| matches!(v, Violation::SplitOrder { .. }));
}

#[test]
fn a_node_that_no_split_runs_is_found() {
    let mut plan = plan_of("one_backend");
    plan.splits[0].nodes.end -= 1;
    expect(&plan, |v| matches!(v, Violation::SplitOrder { node } if &**node == "y"));
}

#[test]
fn a_split_that_runs_something_else_is_found() {
    let plan = plan_of("one_backend");
    let mut given = plan.write_out();
    let nodes = &mut given[0][0].nodes;
    nodes[0].op = nodes[3].op.clone();
    expect_given(&plan, &given, |v| matches!(v, Violation::WrongNode { node } if &**node == "n"));
}

#[test]
fn more_copies_than_a_backend_takes_are_found() {
    let mut plan = plan_of("max_inputs");
    plan.splits[0].inputs.end = plan.splits[1].inputs.end;
    expect(&plan, |v| matches!(v, Violation::TooManyInputs { inputs: 4, max: 2, .. }));
}

#[test]
fn slots_that_share_memory_are_found() {
    let mut plan = plan_of("pipelining");
    let copies: Vec<usize> =
        (0..plan.allocations.len()).filter(|&i| matches!(plan.allocations[i].held, Held::Copy(0))).collect();
    plan.allocations[copies[1]].offset_bytes = plan.allocations[copies[0]].offset_bytes;
    expect(&plan, |v| matches!(v, Violation::Overlap { .. }));
}

/// What backends are given is looked at itself: whole splits, nodes and operands that are missing there are found.
#[test]
fn what_a_backend_is_not_given_is_found() {
    type Damage = fn(&mut Vec<Vec<SplitDesc>>);
    let damages: [Damage; 4] = [
        Vec::clear,
        |given| given[0].truncate(1),
        |given| given[0][1].nodes.truncate(1),
        |given| given[0][1].nodes[0].operands.truncate(1),
    ];
    let plan = plan_of("two_weights");
    verify_given(&plan, &plan.write_out()).expect("backends are given what the plan says");
    for damage in damages {
        let mut given = plan.write_out();
        damage(&mut given);
        expect_given(&plan, &given, |v| matches!(v, Violation::WrongNode { .. }));
    }
}
