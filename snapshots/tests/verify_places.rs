//! Damage to where tensors are and how they get there, each found by the verifier for the right reason. More in `verify.rs`.

mod common;

use std::sync::Arc;

use common::{Planned, allocation, fixture, fixtures, place_copies};
use entensor_snapshots::generate::{Limits, case};
use entensor_systems::{Held, Plan, Recording, Step, Violation, plan_schedule, verify, verify_given};

/// A plan that nobody shares, so that it can be damaged.
fn plan_of(text: &entensor::graph_text::GraphText) -> Plan {
    let plan = Planned::with_schedule(text, plan_schedule(Recording::Off)).expect();
    let plan = Arc::into_inner(plan).expect("nobody else holds it");
    verify(&plan).unwrap_or_else(|violations| panic!("{violations:?}\n{text}"));
    plan
}

fn plan_text(text: &str) -> Plan {
    plan_of(&common::parse("text", text))
}

#[track_caller]
fn expect(plan: &Plan, fits: impl Fn(&Violation) -> bool) {
    let violations = verify(plan).expect_err("the damage is found");
    assert!(violations.iter().any(fits), "{violations:?}");
    assert!(violations.iter().all(|violation| !violation.to_string().is_empty()));
}

/// Moves an allocation of a node's own memory, and all that runs are given of it, as a planner would that errs consistently.
fn move_to(plan: &mut Plan, name: &str, buffer: u32, offset_bytes: u64) {
    let index = allocation(plan, name);
    assert!(matches!(plan.allocations[index].held, Held::Node(_)), "{name} is a copy");
    (plan.allocations[index].buffer, plan.allocations[index].offset_bytes) = (buffer, offset_bytes);
    place_copies(plan);
}

const CHAIN: &str =
    "backend cpu\nweight w f32 [8,8] on cpu\ninput x f32 [8,4]\nh = mul_mat w x\ng = mul_mat w h\ny = relu g output\n";

#[test]
fn plans_of_random_graphs_are_accepted() {
    let mut accepted = 0;
    for seed in 0..1500 {
        let text = common::parse("case", &case(seed, Limits::default()));
        let mut world = bevy_ecs::prelude::World::new();
        let Ok(graph) = text.spawn(&mut world) else { continue };
        let mut planned = Planned { world, graph, schedule: plan_schedule(Recording::Off) };
        planned.plan();
        if let Ok(plan) = planned.result() {
            verify(&plan).unwrap_or_else(|violations| panic!("seed {seed}: {violations:?}\n{text}"));
            accepted += 1;
        }
    }
    assert!(accepted >= 700, "{accepted} plans");
}

/// An operand that an op reads twice, once in an order of its own, is not overwritten by the result.
#[test]
fn an_operand_that_is_a_table_too_is_not_computed_in_place() {
    for (node, in_place) in [
        ("y = add_id h h ids", false),
        ("y = add_id h t ids", true),
        ("y = add h h", true),
        ("y = soft_max h h", false),
        ("y = mul_mat h h", false),
    ] {
        let text = format!(
            "backend cpu\ninput x f32 [8,8]\ninput ids i32 [8]\ninput t f32 [8,8]\nh = relu x\n{node}\nz = sum y output\n"
        );
        let plan = plan_text(&text);
        let (h, y) = (allocation(&plan, "h"), allocation(&plan, "y"));
        assert_eq!(plan.allocations[y].in_place_of == u32::try_from(h).ok(), in_place, "{node}");
    }
}

/// A damage that is no damage is accepted: the tool of these tests does not break plans by itself.
#[test]
fn moving_a_tensor_to_free_bytes_is_accepted() {
    let mut plan = plan_text(CHAIN);
    let end = plan.buffers[0].size_bytes;
    plan.buffers[0].size_bytes += 256;
    move_to(&mut plan, "h", 0, end.next_multiple_of(32));
    verify(&plan).expect("it is where it was allocated");
}

#[test]
fn a_result_over_an_operand_that_its_op_reads_is_found() {
    let mut plan = plan_text(CHAIN);
    let (h, g) = (allocation(&plan, "h"), allocation(&plan, "g"));
    plan.allocations[g].in_place_of = u32::try_from(h).ok();
    let (buffer, offset) = (plan.allocations[h].buffer, plan.allocations[h].offset_bytes);
    // The product would read rows that it has written over already.
    move_to(&mut plan, "g", buffer, offset);
    expect(
        &plan,
        |v| matches!(v, Violation::OverwritesOperand { node, operand } if &**node == "g" && &**operand == "h"),
    );
}

#[test]
fn a_result_in_place_at_another_byte_is_found() {
    let mut plan = plan_text("backend cpu align=4\ninput x f32 [8]\na = relu x\nb = silu a\ny = sum b output\n");
    let (a, b) = (allocation(&plan, "a"), allocation(&plan, "b"));
    assert_eq!(plan.allocations[b].in_place_of, u32::try_from(a).ok());
    let end = plan.buffers[0].size_bytes;
    plan.buffers[0].size_bytes += 64;
    move_to(&mut plan, "y", 0, end);
    let offset = plan.allocations[a].offset_bytes;
    move_to(&mut plan, "b", 0, offset + 4);
    expect(
        &plan,
        |v| matches!(v, Violation::OverwritesOperand { node, operand } if &**node == "b" && &**operand == "a"),
    );
}

#[test]
fn an_allocation_without_its_padding_is_found() {
    let mut plan = plan_of(&fixture("max_buffer"));
    let a = allocation(&plan, "a");
    assert_eq!(plan.allocations[a].size_bytes % 512, 0);
    plan.allocations[a].size_bytes = 1000;
    expect(&plan, |v| matches!(v, Violation::TooSmall { size_bytes: 1000, needed_bytes: 1024, .. }));
}

#[test]
fn a_slot_without_memory_of_its_own_is_found() {
    for copies in [true, false] {
        let mut plan = plan_of(&fixture("pipelining"));
        let mut held = plan.allocations.iter().filter(|a| matches!(a.held, Held::Copy(_)) == copies && a.slot == 0);
        let first = held.next().expect("it has both").held;
        let second = plan.allocations.iter().position(|a| a.held == first && a.slot == 1).expect("two slots");
        plan.allocations.remove(second);
        plan.index_allocations();
        // The second slot's runs use the first slot's memory instead.
        place_copies(&mut plan);
        expect(&plan, |v| matches!(v, Violation::MissingSlot { slot: 1, .. }));
    }
}

#[test]
fn an_input_that_is_gone_after_the_run_is_found() {
    let mut plan =
        plan_text("backend cpu\ninput x f32 [8]\na = relu x\nb = sum a\nc = repeat b shape=[8]\ny = sum c output\n");
    let (x, c) = (allocation(&plan, "x"), allocation(&plan, "c"));
    // What reads the input is over when `c` comes, but the next run may read it again.
    plan.allocations[x].last = 0;
    let offset = plan.allocations[x].offset_bytes;
    assert!(plan.allocations[c].size_bytes == plan.allocations[x].size_bytes);
    move_to(&mut plan, "c", 0, offset);
    expect(
        &plan,
        |v| matches!(v, Violation::WrongBytes { node, operand, .. } if &**node == "run" && &**operand == "x"),
    );
}

#[test]
fn an_alignment_that_another_sharer_of_the_memory_needs_is_found() {
    let mut plan = plan_text(
        "backend blas memory=host align=256 ops=mul_mat\nbackend cpu\nweight w f32 [8,8] on cpu\ninput x f32 [8,4]\n\
         h = mul_mat w x\ng = relu h\ny = mul_mat w g output\n",
    );
    let g = allocation(&plan, "g");
    let (buffer, offset) = (plan.allocations[g].buffer, plan.allocations[g].offset_bytes);
    assert_eq!(offset % 256, 0);
    plan.allocations[g].in_place_of = None;
    let end = plan.buffers[buffer as usize].size_bytes.next_multiple_of(256);
    plan.buffers[buffer as usize].size_bytes = end + 512;
    move_to(&mut plan, "g", buffer, end + 32);
    expect(&plan, |v| matches!(v, Violation::Misaligned { align_bytes: 256, .. }));
}

#[test]
fn a_tensor_beside_its_place_is_found_though_writer_and_reader_agree() {
    let mut plan = plan_text(CHAIN);
    let end = plan.buffers[0].size_bytes;
    plan.buffers[0].size_bytes += 256;
    let h = allocation(&plan, "h");
    let old = plan.allocations[h].offset_bytes;
    move_to(&mut plan, "h", 0, end.next_multiple_of(32) + 32);
    let given = plan.write_out();
    plan.allocations[h].offset_bytes = old;
    verify(&plan).expect("the plan itself is right");
    let violations = verify_given(&plan, &given).expect_err("the damage is found");
    let is_h_for = |v: &Violation, by: &str| matches!(v, Violation::WrongPlace { node, tensor, .. } if &**node == by && &**tensor == "h");
    assert!(["h", "g"].iter().all(|by| violations.iter().any(|v| is_h_for(v, by))), "{violations:?}");
}

#[test]
fn a_copy_that_the_wrong_backend_reads_is_found() {
    let mut plan = plan_of(&fixture("two_weights"));
    let mut wrong = 0;
    for step in &mut plan.programs[0].steps {
        if let Step::Copy { from_backend, .. } = step {
            *from_backend = 1 - *from_backend;
            wrong += 1;
        }
    }
    assert_eq!(wrong, 2);
    expect(
        &plan,
        |v| matches!(v, Violation::UnusableMemory { node, backend, .. } if &**node == "x" && &**backend == "gpu"),
    );
    let Step::Copy { from_backend, .. } = &mut plan.programs[0].steps[0] else { panic!("it copies first") };
    *from_backend = 99;
    expect(&plan, |v| matches!(v, Violation::UnusableMemory { backend, .. } if &**backend == "?"));
}

#[test]
fn a_private_layout_that_is_copied_is_found() {
    let mut plan = plan_of(&fixture("refresh"));
    plan.existing[0].opaque = true;
    expect(&plan, |v| matches!(v, Violation::OpaqueCopied { buffer, .. } if **buffer == *plan.existing[0].name));
}

#[test]
fn waits_for_what_nobody_records_are_found() {
    type Damage = fn(&mut Step);
    let damages: &[Damage] = &[
        |step| {
            if let Step::Wait { of, .. } = step {
                *of = 2;
            }
        },
        |step| {
            if let Step::Wait { event, .. } = step {
                *event = 99;
            }
        },
        |step| {
            if let Step::Record { event, .. } = step {
                *event = 99;
            }
        },
        |step| {
            if let Step::Record { backend, .. } = step {
                *backend = 99;
            }
        },
    ];
    for damage in damages {
        let mut plan = plan_of(&fixture("async_events"));
        plan.programs[0].steps.iter_mut().for_each(damage);
        expect(&plan, |v| matches!(v, Violation::WrongEvent { .. }));
    }
}

/// Every allocation of every fixture is moved onto every other one that is alive with it: each overlap is found.
#[test]
fn every_overlap_of_every_fixture_is_found() {
    let mut found = 0;
    for (name, text) in fixtures() {
        let text = common::parse(&name, &text);
        let planned = Planned::with_schedule(&text, plan_schedule(Recording::Off));
        let Ok(plan) = planned.result() else { continue };
        drop(planned);
        let mut plan = Arc::into_inner(plan).expect("nobody else holds it");
        for i in 0..plan.allocations.len() {
            for j in 0..plan.allocations.len() {
                let (a, b) = (plan.allocations[i], plan.allocations[j]);
                let alive = a.first <= b.last && b.first <= a.last && a.buffer == b.buffer;
                let chained = a.in_place_of.is_some() || b.in_place_of.is_some() || a.offset_bytes == b.offset_bytes;
                if i == j || !alive || chained || a.size_bytes == 0 || b.size_bytes == 0 {
                    continue;
                }
                plan.allocations[i].offset_bytes = b.offset_bytes;
                expect(&plan, |v| matches!(v, Violation::Overlap { .. } | Violation::OutOfBounds { .. }));
                plan.allocations[i].offset_bytes = a.offset_bytes;
                found += 1;
            }
        }
    }
    assert!(found >= 100, "{found} overlaps");
}

#[test]
fn a_copy_that_comes_too_late_is_found() {
    for fixture_name in ["two_weights", "refresh", "max_inputs", "pipelining"] {
        let mut plan = plan_of(&fixture(fixture_name));
        let steps = &mut plan.programs[0].steps;
        let copies: Vec<usize> = (0..steps.len()).filter(|&i| matches!(steps[i], Step::Copy { .. })).collect();
        for copy in copies {
            let launch = (copy..plan.programs[0].steps.len())
                .find(|&i| matches!(plan.programs[0].steps[i], Step::Launch { .. }))
                .expect("a copy is made for a launch");
            plan.programs[0].steps[copy..=launch].rotate_left(1);
            expect(&plan, |v| matches!(v, Violation::StepOrder { .. }));
            plan.programs[0].steps[copy..=launch].rotate_right(1);
        }
        verify(&plan).expect("all is as it was");
    }
}

#[test]
fn an_opaque_operand_on_a_backend_that_does_not_understand_it_is_found() {
    let mut plan = plan_of(&fixture("opaque"));
    let h = plan.find("h").expect("it reads the packed weights");
    plan.placements[h] = 0;
    plan.splits[0].backend = 0;
    expect(
        &plan,
        |v| matches!(v, Violation::UnusableMemory { node, backend, .. } if &**node == "h" && &**backend == "gpu"),
    );
    // A view of the weights that claims to be elsewhere.
    let mut plan = plan_of(&fixture("opaque"));
    let w = plan.find("w").expect("the packed weights");
    plan.placements[w] = 2;
    expect(
        &plan,
        |v| matches!(v, Violation::ImmovableMoved { node, backend } if &**node == "w" && &**backend == "cpu"),
    );
}
