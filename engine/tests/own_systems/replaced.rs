//! Systems in a pass's place.

use super::*;
use crate::orders::strict;

fn no_change() -> PassResult {
    Ok(0)
}

fn take_out(engine: &mut Engine, pass: Pass) {
    engine.world_mut().schedule_scope(PlanSchedule, |world, schedule| {
        let removed = schedule.remove_systems_in_set(pass, world, ScheduleCleanupPolicy::RemoveSystemsOnly);
        assert_eq!(removed.expect("the pass is there"), 1);
    });
}

/// The first time after it was put there, on a schedule that never ran and on one that did.
#[test]
fn a_replaced_pass_works_from_the_first_time_on() {
    for ran_before in [false, true] {
        for recording in [false, true] {
            let mut engine = own_pass::engine().expect("null backends start");
            if recording {
                let mut schedule = Schedule::new(PlanSchedule);
                add_plan_systems(&mut schedule, Recording::On);
                engine.world_mut().add_schedule(schedule);
            }
            strict(&mut engine);
            let net = own_pass::add_net(&mut engine, "net").expect("it is built");
            if ran_before {
                engine.run_ready(net);
                assert_eq!(place(&engine, net, "active.1"), (0, Cause::ExpandDown));
            }
            let calls = engine.timings().get(Pass::Expand).calls;
            own_pass::replace_expand(engine.world_mut()).expect("the pass is there");
            engine.plan(net).expect("it plans");
            assert_eq!(place(&engine, net, "active.0"), (0, Cause::User), "large enough");
            assert_eq!(place(&engine, net, "active.1"), (1, Cause::User), "too small");
            assert_components_show_the_plan(&mut engine, net);
            verify(engine.plan_of(net).expect("it is planned")).expect("a legal plan");
            assert_eq!(engine.timings().get(Pass::Expand).calls, calls + 1, "it is timed as the pass");
            assert_eq!(engine.timings().get(Pass::Expand).last_changed, 3);
            // And again, for a graph that is alike and for one that is not.
            let (planned, cached) = (engine.counters().planned, engine.counters().cached);
            let alike = own_pass::add_net(&mut engine, "alike").expect("it is built");
            engine.plan(alike).expect("it plans");
            assert_eq!((engine.counters().planned, engine.counters().cached), (planned, cached + 1));
            let other = own_pass::add_net(&mut engine, "other").expect("it is built");
            engine.world_mut().resource_mut::<PlanSalt>().0 += 1;
            engine.plan(other).expect("it plans");
            assert_eq!(place(&engine, other, "active.1"), (1, Cause::User));
        }
    }
}

/// Runs a graph whose inputs nobody cares about.
trait RunReady {
    fn run_ready(&mut self, graph: GraphId);
}

impl RunReady for Engine {
    fn run_ready(&mut self, graph: GraphId) {
        self.plan(graph).expect("it plans");
        match self.run(graph) {
            Ok(()) | Err(EngineError::InputNotWritten { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// What a pass of the user's own reports is noted as the pass's error.
#[test]
fn an_own_pass_fails_as_the_pass_would() {
    fn refuse(nodes: Res<'_, Nodes>) -> PassResult {
        Err(PlanError::Unplaced { node: Arc::clone(&nodes.names[0]) })
    }
    let mut engine = own_pass::engine().expect("null backends start");
    let net = own_pass::add_net(&mut engine, "net").expect("it is built");
    take_out(&mut engine, Pass::Expand);
    add_system(&mut engine, pass_system(Pass::Expand, refuse));
    let error = engine.plan(net).expect_err("the pass refuses");
    assert!(matches!(&error, EngineError::Plan { pass: Pass::Expand, .. }), "{error}");
    assert_eq!(error.kind(), "Unplaced");
    let status = engine.world().get::<GraphStatus>(net.0);
    assert!(matches!(status, Some(GraphStatus::Failed { pass: Pass::Expand, .. })), "{status:?}");
    assert_eq!(engine.timings().get(Pass::Upgrade).calls, 0, "later passes are skipped");
    take_out(&mut engine, Pass::Expand);
    add_system(&mut engine, pass_system(Pass::Expand, own_pass::expand_over_large_nodes));
    engine.plan(net).expect("this one works");
}

/// A pass that nobody replaced: what it would have written is another graph's, or nobody's.
#[test]
fn a_pass_that_is_taken_out_is_missed() {
    for ran_before in [false, true] {
        for pass in Pass::ALL {
            let mut engine = own_pass::engine().expect("null backends start");
            let net = own_pass::add_net(&mut engine, "net").expect("it is built");
            if ran_before {
                engine.run_ready(net);
            }
            take_out(&mut engine, pass);
            engine.world_mut().resource_mut::<PlanSalt>().0 += 1;
            let error = engine.plan(net).expect_err("a pass is missing");
            assert_eq!(error.kind(), "Schedule", "{error}");
            let words = format!("no system is in the set `Pass::{pass:?}`");
            assert!(error.to_string().contains(&words), "{error}");
        }
    }
    // The placement passes may be empty: what one of them does not decide, others do.
    for pass in [Pass::Assign, Pass::Expand, Pass::Upgrade, Pass::Inherit] {
        let mut engine = attention_on_host::engine().expect("oracles start");
        let layers = add_layers(&mut engine, "g").expect("it is built");
        take_out(&mut engine, pass);
        add_system(&mut engine, pass_system(pass, no_change));
        run(&mut engine, layers).expect("it runs");
        verify(engine.plan_of(layers.0).expect("it is planned")).expect("a legal plan");
    }
}

/// An `assign` that knows nothing of columns: it writes components only, for graphs of any size after each other.
#[test]
fn assign_may_be_replaced_by_a_system_over_components() {
    fn all_on_host(
        order: Res<'_, NodeOrder>,
        backends: Res<'_, Backends>,
        mut tensors: Query<'_, '_, (&Op, &mut BackendId, &mut Cause)>,
    ) -> PassResult {
        let host = BackendIndex(u32::try_from(backends.0.len() - 1).expect("few backends"));
        let mut tensors = tensors.iter_many_mut(order.entities.iter());
        while let Some(Ok((op, mut id, mut cause))) = tensors.fetch_next() {
            let decided = op.kind().row().computes();
            (*id, *cause) = (BackendId(decided.then_some(host)), Cause::Undecided);
        }
        Ok(order.entities.len())
    }
    for recording in [Recording::Off, Recording::On] {
        let mut engine = Engine::builder()
            .backend("oracle")
            .backend_instance(Arc::new(OracleBackend::new("host")))
            .verify_plans(true)
            .build()
            .expect("oracles start");
        let mut schedule = Schedule::new(PlanSchedule);
        add_plan_systems(&mut schedule, recording);
        engine.world_mut().add_schedule(schedule);
        take_out(&mut engine, Pass::Assign);
        add_system(&mut engine, pass_system(Pass::Assign, all_on_host));
        for len in [3, 9, 1, 9, 2] {
            let mut g = GraphBuilder::new("chain");
            let x = g.input("x", DType::F32, &[4]).expect("a small input");
            let mut last = x;
            for _ in 0..len {
                last = g.relu(last).expect("shapes fit");
            }
            let y = g.output("y", last).expect("a free name");
            let graph = engine.add_graph(g);
            engine.write(graph, x, &[1.0_f32, -1.0, 2.0, -2.0]).expect("an input");
            engine.run(graph).expect("it runs");
            let mut result = [0.0_f32; 4];
            engine.read(graph, y, &mut result).expect("an output");
            assert_eq!(result, [1.0, 0.0, 2.0, 0.0]);
            assert_eq!(place(&engine, graph, "y"), (1, Cause::User), "{recording:?}");
            assert_components_show_the_plan(&mut engine, graph);
        }
    }
}
