//! Golden files: the canonical text of every pass for every fixture, exact to the byte, and the order of the passes.
//!
//! A golden that changed is written beside the old one as `.snap.new`; `INSTA_UPDATE=always` accepts all.

mod common;

use std::{collections::BTreeSet, fmt::Write as _, fs};

use bevy_ecs::{
    prelude::*,
    schedule::{LogLevel, ScheduleBuildSettings},
};
use common::{Planned, fixture, fixtures, folder};
use entensor_components::{BackendId, BackendIndex, Cause, GraphTensors, TensorName};
use entensor_systems::{
    PlanCounters, PlanSalt, PlanStatus, PlanSystems, Planning, Recording, add_plan_systems, plan_schedule, planning,
    verify,
};

const PASS_LIST: &str = "passes";
const USERS_SYSTEM: &str = "users_system";
const EXPLANATIONS: &str = "explanations";

/// Goldens that are no fixture's; the last is that of `tests/corpus.rs`.
const OTHER_GOLDENS: [&str; 4] = [PASS_LIST, USERS_SYSTEM, EXPLANATIONS, "corpus"];

fn golden(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(folder("golden"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

#[test]
fn every_fixture_plans_as_its_golden_says() {
    for (name, text) in fixtures() {
        golden(&name, &Planned::new(&common::parse(&name, &text)).text());
    }
}

#[test]
fn every_golden_has_its_fixture() {
    let mut expected: BTreeSet<String> = fixtures().into_iter().map(|(name, _)| format!("{name}.snap")).collect();
    expected.extend(OTHER_GOLDENS.map(|name| format!("{name}.snap")));
    let found = fs::read_dir(folder("golden")).expect("the goldens are there");
    let found: BTreeSet<String> =
        found.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(found, expected, "remove goldens that no fixture makes, and accept those that are new");
}

/// Every cause stands in a golden: most in `every_cause`, the users' own in [`USERS_SYSTEM`].
#[test]
fn every_cause_has_a_golden() {
    let goldens = fs::read_dir(folder("golden")).expect("the goldens are there");
    let texts: Vec<String> =
        goldens.map(|entry| fs::read_to_string(entry.expect("readable").path()).expect("readable")).collect();
    for cause in Cause::ALL {
        let word = format!(" [{cause}]\n");
        assert!(texts.iter().any(|text| text.contains(&word)), "no golden shows the cause `{cause}`; add a fixture");
    }
    let own = [Cause::Undecided, Cause::User];
    let planned = Planned::new(&fixture("every_cause"));
    let plan = planned.expect();
    let found: BTreeSet<&str> = plan.nodes().map(|node| node.cause.name()).collect();
    let expected = Cause::ALL.into_iter().filter(|cause| !own.contains(cause)).map(Cause::name);
    assert_eq!(found, expected.collect(), "{}", planned.text());
}

/// Every cause, and every reason to stay below a higher backend, in the words that `explain` prints.
#[test]
fn explanations_are_those_of_the_golden() {
    let mut text = String::new();
    for (name, source) in fixtures() {
        let Ok(plan) = Planned::new(&common::parse(&name, &source)).result() else { continue };
        let _ = writeln!(text, "# {name}");
        for (i, node) in plan.nodes().enumerate() {
            let backend = &plan.backends[node.backend as usize].name;
            let _ = writeln!(text, "{} -> {backend} [{}]: {}", node.name, node.cause, plan.why(i));
        }
        text.push('\n');
    }
    golden(EXPLANATIONS, &text);
}

#[test]
fn planning_twice_gives_the_same_text() {
    for (name, text) in fixtures() {
        let text = common::parse(&name, &text);
        assert_eq!(Planned::new(&text).text(), Planned::new(&text).text(), "{name}");
        // In one world, with a salt that keeps the cache from answering.
        let mut planned = Planned::new(&text);
        let first = planned.text();
        planned.world.insert_resource(PlanSalt(1));
        planned.plan();
        assert_eq!(planned.text(), first, "{name}");
    }
}

#[test]
fn every_plan_is_proved() {
    for (name, text) in fixtures() {
        if let Ok(plan) = Planned::new(&common::parse(&name, &text)).result() {
            verify(&plan).unwrap_or_else(|violations| panic!("{name}: {violations:?}"));
        }
    }
}

#[test]
fn an_unchanged_graph_takes_its_plan_from_the_cache() {
    let mut planned = Planned::new(&fixture("kv_cache"));
    let first = planned.expect();
    planned.plan();
    assert!(std::sync::Arc::ptr_eq(&first, &planned.expect()));
    let counters = planned.world.resource::<PlanCounters>();
    assert_eq!((counters.planned, counters.cached), (1, 1));
    // Users' systems between the passes set the salt: then it is another plan.
    planned.world.insert_resource(PlanSalt(7));
    planned.plan();
    let counters = planned.world.resource::<PlanCounters>();
    assert_eq!((counters.planned, counters.cached), (2, 1));
}

#[test]
fn the_passes_run_in_the_order_of_the_list() {
    let mut schedule = plan_schedule(Recording::Off);
    let mut world = World::new();
    schedule.initialize(&mut world).expect("the schedule builds");
    let systems = schedule.systems().expect("it is initialized");
    let names: Vec<String> = systems.map(|(_, system)| system.name().to_string()).collect();
    golden(PASS_LIST, &(names.join("\n") + "\n"));
}

#[test]
fn no_two_passes_are_ambiguously_ordered() {
    for recording in [Recording::Off, Recording::On] {
        let mut schedule = plan_schedule(recording);
        schedule.set_build_settings(ScheduleBuildSettings {
            ambiguity_detection: LogLevel::Error,
            hierarchy_detection: LogLevel::Error,
            ..Default::default()
        });
        schedule.initialize(&mut World::new()).expect("no ambiguity");
    }
}

/// Moves the undecided node `b`, as a user's own system might.
fn move_node(planning: Res<'_, Planning>, graphs: Query<'_, '_, &GraphTensors>, mut nodes: Nodes<'_, '_>) -> Result {
    for &entity in &graphs.get(planning.0)?.0 {
        let (name, mut id, mut cause) = nodes.get_mut(entity)?;
        if &*name.0 == "b" {
            assert_eq!(id.0, None, "it runs behind `assign`, which leaves this node open, and before `expand`");
            *id = BackendId(Some(BackendIndex(1)));
            *cause = Cause::User;
        }
    }
    Ok(())
}

type Nodes<'w, 's> = Query<'w, 's, (&'static TensorName, &'static mut BackendId, &'static mut Cause)>;

#[test]
fn a_users_system_between_two_passes_is_honoured() {
    // `fast` could run all of it on the same memory, and would take what the user did not place.
    let text = common::parse(
        "user",
        "backend fast memory=host\nbackend cpu\ninput x f32 [8]\na = relu x\nb = relu a\ny = relu b",
    );
    let mut schedule = plan_schedule(Recording::On);
    schedule.add_systems(move_node.after(PlanSystems::Assign).before(PlanSystems::Expand).run_if(planning));
    let mut planned = Planned::with_schedule(&text, schedule);
    let plan = planned.expect();
    let place = |name| {
        let node = plan.node(plan.find(name).expect("it is planned"));
        (node.backend, node.cause)
    };
    assert_eq!(place("b"), (1, Cause::User), "{}", planned.text());
    assert_eq!(place("a"), (0, Cause::Upgrade), "{}", planned.text());
    verify(&plan).expect("a legal plan");
    // Nothing is asked: the condition keeps the system from running.
    planned.world.insert_resource(PlanStatus::Idle);
    planned.schedule.run(&mut planned.world);
}

/// Takes back what `assign` decided about `rows`, and places `moved`.
fn decide_otherwise(
    planning: Res<'_, Planning>,
    graphs: Query<'_, '_, &GraphTensors>,
    mut nodes: Nodes<'_, '_>,
) -> Result {
    for &entity in &graphs.get(planning.0)?.0 {
        let (name, mut id, mut cause) = nodes.get_mut(entity)?;
        match &*name.0 {
            "rows" => (*id, *cause) = (BackendId(None), Cause::Undecided),
            "moved" => (*id, *cause) = (BackendId(Some(BackendIndex(2))), Cause::User),
            _ => {}
        }
    }
    Ok(())
}

/// What users' systems decide is printed as what the passes decide: a decision of their own, and one that they take back.
#[test]
fn a_users_system_between_two_passes_has_a_golden() {
    let text = common::parse(
        "user",
        "backend lookup memory=host ops=get_rows\nbackend gpu ops=all,-get_rows\nbackend cpu ops=all,-get_rows\n\
         weight table f32 [32,8] on cpu\nweight w f32 [32,32] on gpu\ninput ids i32 [4]\nrows = get_rows table ids\n\
         product = mul_mat w rows\nmoved = relu product\nlast = silu moved output",
    );
    let mut schedule = plan_schedule(Recording::On);
    schedule.add_systems(decide_otherwise.after(PlanSystems::Assign).before(PlanSystems::Expand).run_if(planning));
    let planned = Planned::with_schedule(&text, schedule);
    let plan = planned.expect();
    verify(&plan).expect("a legal plan");
    let moved = plan.find("moved").expect("it is planned");
    assert_eq!(plan.why(moved), "a system that the user added between the passes placed it on cpu");
    golden(USERS_SYSTEM, &planned.text());
}

#[test]
fn a_users_system_that_places_a_node_where_it_cannot_run_is_a_typed_error() {
    let text =
        "backend fast memory=host\nbackend slow memory=host ops=all,-relu\nbackend cpu\ninput x f32 [8]\nb = relu x";
    let mut schedule = plan_schedule(Recording::On);
    schedule.add_systems(move_node.after(PlanSystems::Assign).before(PlanSystems::Expand).run_if(planning));
    let error = Planned::with_schedule(&common::parse("user", text), schedule).result().expect_err("it cannot run");
    assert_eq!((error.kind(), error.node(), error.backend()), ("Misplaced", Some("b"), Some("slow")), "{error}");
}

#[test]
fn the_passes_can_be_added_to_a_schedule_of_the_users_own() {
    let mut schedule = Schedule::default();
    add_plan_systems(&mut schedule, Recording::On);
    let planned = Planned::with_schedule(&fixture("one_node"), schedule);
    assert_eq!(planned.expect().splits.len(), 1);
}
