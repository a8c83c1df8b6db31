//! The order of the passes and of systems between them is declared, or it is an error.

use super::*;

/// Errors where an order is missing.
pub(crate) fn strict(engine: &mut Engine) {
    let settings = ScheduleBuildSettings {
        ambiguity_detection: LogLevel::Error,
        hierarchy_detection: LogLevel::Error,
        ..Default::default()
    };
    engine.world_mut().schedule_scope(PlanSchedule, |_, schedule| {
        schedule.set_build_settings(settings);
    });
}

#[test]
fn the_order_of_the_examples_is_declared_and_what_is_not_declared_is_found() {
    for recording in [false, true] {
        let builder = Engine::builder().backend("oracle");
        let builder = if recording { builder.record_passes() } else { builder };
        let mut engine = builder.build().expect("the oracle starts");
        strict(&mut engine);
        attention_on_host::add_to(engine.world_mut());
        own_pass::replace_expand(engine.world_mut()).expect("the pass is there");
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, &[2]).expect("a small input");
        g.relu(x).expect("shapes fit");
        let graph = engine.add_graph(g);
        engine.plan(graph).expect("every order is declared");

        // Two systems in one gap, each in order with the passes, but not with each other.
        #[derive(SystemSet, Clone, Debug, PartialEq, Eq, Hash)]
        struct Second;
        add_system(&mut engine, in_gap(0, moving(&["x"], Some(0), None).in_set(Second)));
        engine.world_mut().insert_resource(PlanSalt(9));
        let error = engine.plan(graph).expect_err("who moves a node last is not said");
        let EngineError::Schedule(InvalidSchedule { reason }) = &error else { panic!("{error}") };
        assert!(reason.contains("conflicting data access"), "{reason}");
        assert!(error.to_string().contains("check the systems and orders"), "{error}");
        assert!(matches!(engine.plan(graph), Err(EngineError::Schedule(_))), "it stays so");
        // Said, it is.
        engine.world_mut().schedule_scope(PlanSchedule, |_, schedule| {
            schedule.configure_sets(Second.after(attention_on_host::keep_attention_on_host));
        });
        engine.plan(graph).expect("every order is declared");
    }
}

#[test]
fn orders_that_cannot_be_are_an_error_before_anything_runs() {
    let mut engine = attention_on_host::engine().expect("oracles start");
    let layers = add_layers(&mut engine, "g").expect("it is built");
    #[derive(SystemSet, Clone, Debug, PartialEq, Eq, Hash)]
    struct Wrong;
    let system = moving(&["y"], Some(1), None).after(PlanSystems::Split).before(PlanSystems::Assign).in_set(Wrong);
    add_system(&mut engine, system);
    let error = engine.plan(layers.0).expect_err("there is no such place");
    assert_eq!(error.kind(), "Schedule", "{error}");
    assert!(engine.plan_of(layers.0).is_none());
    assert_eq!(engine.timings().get(Pass::Index).calls, 0);
}
