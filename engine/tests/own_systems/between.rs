//! Systems between two passes: what they say counts, and what they cannot say is an error.

use super::*;

#[test]
fn attention_follows_the_flag_and_is_never_lost_to_the_cache() {
    let mut engine = attention_on_host::engine().expect("oracles start");
    attention_on_host::add_to(engine.world_mut());
    let first = add_layers(&mut engine, "first").expect("it is built");
    let expected = run(&mut engine, first).expect("it runs");
    let on_gpu = Arc::clone(engine.plan_of(first.0).expect("it ran"));
    assert_eq!(place(&engine, first.0, "attended.0"), (0, Cause::ExpandDown));
    assert_components_show_the_plan(&mut engine, first.0);

    engine.world_mut().insert_resource(AttentionOnHost);
    assert_eq!(run(&mut engine, first).expect("it runs"), expected);
    for attended in ["attended.0", "attended.1"] {
        assert_eq!(place(&engine, first.0, attended), (1, Cause::User));
    }
    let others = ["layer.0", "y"].map(|node| place(&engine, first.0, node).0);
    assert_eq!(others, [0, 0], "nothing but attention has moved");
    assert_components_show_the_plan(&mut engine, first.0);
    let on_host = Arc::clone(engine.plan_of(first.0).expect("it ran"));
    assert!(on_host.copies_made() > on_gpu.copies_made());
    verify(&on_host).expect("a legal plan");
    let attended = on_host.find("attended.0").expect("it is planned");
    assert_eq!(on_host.why(attended), "a system that the user added between the passes placed it on host");

    // The flag goes: the first plan serves again, and is shown again.
    engine.world_mut().remove_resource::<AttentionOnHost>();
    assert_eq!(run(&mut engine, first).expect("it runs"), expected);
    assert!(Arc::ptr_eq(engine.plan_of(first.0).expect("it ran"), &on_gpu));
    assert_components_show_the_plan(&mut engine, first.0);
    engine.world_mut().insert_resource(AttentionOnHost);
    assert_eq!(run(&mut engine, first).expect("it runs"), expected);
    assert!(Arc::ptr_eq(engine.plan_of(first.0).expect("it ran"), &on_host));
    assert_components_show_the_plan(&mut engine, first.0);

    let counters = engine.counters();
    assert_eq!((counters.planned, counters.cached), (2, 2));
    assert_eq!(counters.reasons, [(PlanReason::First, 1), (PlanReason::Salt, 3)].into());
    for _ in 0..5 {
        assert_eq!(run(&mut engine, first).expect("it runs"), expected);
    }
    let counters = engine.counters();
    assert_eq!((counters.planned, counters.cached), (2, 2), "a steady flag plans nothing");
}

/// Graphs that are alike share plans, but only those of the same salt.
#[test]
fn a_plan_of_another_flag_is_not_shared() {
    let mut engine = attention_on_host::engine().expect("oracles start");
    attention_on_host::add_to(engine.world_mut());
    let mut g = [None; 4];
    for (i, graph) in g.iter_mut().enumerate() {
        if i % 2 == 1 {
            engine.world_mut().insert_resource(AttentionOnHost);
        } else {
            engine.world_mut().remove_resource::<AttentionOnHost>();
        }
        let layers = add_layers(&mut engine, "g").expect("it is built");
        engine.plan(layers.0).expect("it plans");
        assert_eq!(place(&engine, layers.0, "attended.1").0, u32::from(i % 2 == 1), "graph {i}");
        *graph = Some(layers.0);
    }
    let plan = |i: usize| engine.plan_of(g[i].expect("it was added")).expect("it is planned");
    assert!(Arc::ptr_eq(plan(0), plan(2)) && Arc::ptr_eq(plan(1), plan(3)));
    assert_eq!((engine.counters().planned, engine.counters().cached), (2, 2));
}

/// Another graph of the world keeps what its plan says, though the system could have seen its tensors.
#[test]
fn only_the_graph_that_is_planned_is_touched() {
    let mut engine = attention_on_host::engine().expect("oracles start");
    attention_on_host::add_to(engine.world_mut());
    let before = add_layers(&mut engine, "before").expect("it is built");
    engine.plan(before.0).expect("it plans");
    engine.world_mut().insert_resource(AttentionOnHost);
    let after = add_layers(&mut engine, "after").expect("it is built");
    engine.plan(after.0).expect("it plans");
    assert_eq!(place(&engine, after.0, "attended.0"), (1, Cause::User));
    assert_components_show_the_plan(&mut engine, before.0);
    assert_components_show_the_plan(&mut engine, after.0);
}

/// Whoever moves a node is the cause, whether they say so or not; and may give a cause of their own.
#[test]
fn who_moves_a_node_is_the_cause() {
    for gap in 0..3 {
        for (given, shown) in
            [(None, Cause::User), (Some(Cause::User), Cause::User), (Some(Cause::Cache), Cause::Cache)]
        {
            let mut engine = attention_on_host::engine().expect("oracles start");
            let layers = add_layers(&mut engine, "g").expect("it is built");
            let expected = run(&mut engine, layers).expect("it runs");
            add_system(&mut engine, in_gap(gap, moving(&["attended.1"], Some(1), given).run_if(planning)));
            engine.world_mut().insert_resource(PlanSalt(1));
            assert_eq!(run(&mut engine, layers).expect("it runs"), expected, "gap {gap}");
            assert_eq!(place(&engine, layers.0, "attended.1"), (1, shown), "gap {gap}, {given:?}");
            // Its view goes with it, also if it was moved behind `inherit`.
            assert_eq!(place(&engine, layers.0, "reshape_20"), (1, Cause::InheritView), "gap {gap}");
            assert_components_show_the_plan(&mut engine, layers.0);
        }
    }
}

/// A system that only looks changes nothing, although it makes the passes show components to it.
#[test]
fn plans_are_the_same_whether_anybody_looks_or_not() {
    fn look(order: Res<'_, NodeOrder>, tensors: Query<'_, '_, (&BackendId, &Cause)>, mut seen: Local<'_, usize>) {
        *seen += tensors.iter_many(order.entities.iter()).flatten().filter(|(id, _)| id.0.is_some()).count();
    }
    for pinned in [false, true] {
        let plan_with = |looked_at: bool| {
            let mut engine = attention_on_host::engine().expect("oracles start");
            if looked_at {
                for gap in 0..3 {
                    add_system(&mut engine, in_gap(gap, look.run_if(planning)));
                }
            }
            let layers = add_layers(&mut engine, "g").expect("it is built");
            if pinned {
                engine.pin(layers.0, layers.2, Some(BackendIndex(1))).expect("it exists");
            }
            let result = run(&mut engine, layers).expect("it runs");
            assert_components_show_the_plan(&mut engine, layers.0);
            (decisions(engine.plan_of(layers.0).expect("it ran")), result)
        };
        assert_eq!(plan_with(true), plan_with(false));
    }
}

/// What a system sees in each gap is what the passes before it have decided, and not a plan made earlier.
#[test]
fn components_are_up_to_date_between_the_passes() {
    #[derive(Resource, Default)]
    struct Seen(Vec<(usize, Option<BackendIndex>, Cause)>);
    let mut engine = attention_on_host::engine().expect("oracles start");
    engine.world_mut().init_resource::<Seen>();
    let layers = add_layers(&mut engine, "g").expect("it is built");
    engine.plan(layers.0).expect("it plans");
    for gap in 0..3 {
        let look = move |order: Res<'_, NodeOrder>,
                         tensors: Query<'_, '_, (&TensorName, &BackendId, &Cause)>,
                         mut seen: ResMut<'_, Seen>| {
            let found = tensors.iter_many(order.entities.iter()).flatten().find(|(name, ..)| &*name.0 == "reshape_9");
            let (_, id, cause) = found.expect("it is planned");
            seen.0.push((gap, id.0, *cause));
        };
        add_system(&mut engine, in_gap(gap, look.run_if(planning)));
    }
    engine.world_mut().insert_resource(PlanSalt(1));
    engine.plan(layers.0).expect("it plans");
    let open = (None, Cause::Undecided);
    let decided = (Some(BackendIndex(0)), Cause::InheritView);
    let expected = [(0, open.0, open.1), (1, open.0, open.1), (2, decided.0, decided.1)];
    assert_eq!(engine.world().resource::<Seen>().0, expected);
}

fn misplaced(error: EngineError) -> (String, String, String) {
    match error {
        EngineError::Plan { error, .. } => match *error {
            PlanError::Misplaced { node, backend, reason } => (node.to_string(), backend.to_string(), reason.into()),
            error => panic!("{}: {error}", error.kind()),
        },
        error => panic!("{error}"),
    }
}

/// A gpu that cannot run attention, and a graph with a pin, a view, a writer and weights.
fn mixed_engine() -> (Engine, GraphId) {
    let mut gpu = NullConfig::host("gpu");
    gpu.capabilities = gpu_capabilities();
    gpu.refused_ops = [OpKind::SoftMax].into();
    let backends = [NullBackend::new(gpu), NullBackend::new(NullConfig::host("host"))];
    let mut builder = Engine::builder().verify_plans(false);
    for backend in backends {
        builder = builder.backend_instance(Arc::new(backend));
    }
    let mut engine = builder.build().expect("null backends start");
    let gpu = engine.backend_index("gpu").expect("it was added");
    let buffer = engine.create_buffer("weights", gpu, Usage::Weights, 256).expect("256 bytes");
    let w = engine.tensor_in("w", DType::F32, &[8, 8], buffer, 0).expect("it fits");
    let mut g = GraphBuilder::new("g");
    let w = g.shared(&w).expect("one shared tensor");
    let x = g.input("x", DType::F32, &[8, 4]).expect("a small input");
    let ids = g.input("ids", DType::I32, &[4]).expect("a small input");
    let rows = g.scratch("rows", DType::F32, &[8, 16]).expect("a small tensor");
    let product = g.mul_mat(w, x).expect("shapes fit");
    let product = g.name("product", product).expect("a free name");
    let written = g.set_rows(rows, product, ids).expect("shapes fit");
    let written = g.name("written", written).expect("a free name");
    let scores = g.soft_max(written, None, None, 1.0, 0.0).expect("shapes fit");
    let scores = g.name("scores", scores).expect("a free name");
    let pinned = g.relu(scores).expect("shapes fit");
    let pinned = g.output("pinned", pinned).expect("a free name");
    g.pin(pinned, BackendIndex(0)).expect("own tensor");
    let graph = engine.add_graph(g);
    (engine, graph)
}

/// Where a node may not be, it is not put: in release builds too, where no verifier looks at the plan.
#[test]
fn a_node_is_never_put_where_it_cannot_be() {
    let apart = "it writes `rows`, which is elsewhere; move both";
    let cases: [(&'static [&'static str], u32, Option<(&str, &str, &str)>); 6] = [
        (&["scores"], 0, Some(("scores", "gpu", "the op soft_max"))),
        (&["pinned"], 1, Some(("pinned", "host", "it is pinned to `gpu`"))),
        (&["w"], 1, Some(("w", "host", "it lies in buffer `weights` on gpu memory memory"))),
        (&["written"], 1, Some(("written", "host", apart))),
        (&["rows"], 1, Some(("written", "gpu", apart))),
        (&["rows", "written"], 1, None),
    ];
    for (names, to, refused) in cases {
        let (mut engine, graph) = mixed_engine();
        engine.plan(graph).expect("it plans");
        let unmoved = decisions(engine.plan_of(graph).expect("it is planned"));
        let system =
            in_gap(2, moving(names, Some(to), None).run_if(planning).run_if(resource_exists::<AttentionOnHost>));
        add_system(&mut engine, system);
        engine.world_mut().insert_resource(AttentionOnHost);
        let result = engine.plan(graph);
        if let Some((node, backend, reason)) = refused {
            let found = misplaced(result.expect_err("it cannot be there"));
            assert_eq!(found, (node.to_owned(), backend.to_owned(), reason.to_owned()), "{names:?}");
            let status = engine.world().get::<GraphStatus>(graph.0);
            assert!(matches!(status, Some(GraphStatus::Failed { pass: Pass::Split, .. })), "{status:?}");
        } else {
            result.expect("both were moved");
            verify(engine.plan_of(graph).expect("it is planned")).expect("a legal plan");
        }
        // The system stops, and all is as before.
        engine.world_mut().remove_resource::<AttentionOnHost>();
        engine.plan(graph).expect("it plans");
        assert_eq!(decisions(engine.plan_of(graph).expect("it is planned")), unmoved);
    }
}

/// A backend that does not exist decides nothing: in time a pass does, and too late there is an error that names the node.
#[test]
fn a_backend_that_does_not_exist_decides_nothing() {
    for to in [None, Some(2), Some(u32::MAX)] {
        for gap in 0..3 {
            let (mut engine, graph) = mixed_engine();
            engine.plan(graph).expect("it plans");
            let expected = place(&engine, graph, "scores");
            add_system(&mut engine, in_gap(gap, moving(&["scores"], to, Some(Cause::User)).run_if(planning)));
            engine.world_mut().insert_resource(PlanSalt(1));
            let result = engine.plan(graph);
            if gap < 2 {
                result.expect("there was a pass left to decide");
                assert_eq!(place(&engine, graph, "scores").0, expected.0);
                assert_ne!(place(&engine, graph, "scores").1, Cause::User, "the user did not decide");
                assert_components_show_the_plan(&mut engine, graph);
            } else {
                let error = result.expect_err("nobody is left to decide");
                assert_eq!(error.kind(), "Unplaced", "{error}");
                assert!(error.to_string().contains("`scores`"), "{error}");
            }
        }
    }
}

/// A system despawns what is planned: the culprit is named, and others go on.
#[test]
fn a_system_that_despawns_fails_that_graph_alone() {
    for gap in 0..3 {
        for victim in ["w_q.0", "x", "attended.0", "y"] {
            let mut engine = attention_on_host::engine().expect("oracles start");
            let armed = AtomicU32::new(1);
            let despawn =
                move |order: Res<'_, NodeOrder>, names: Query<'_, '_, &TensorName>, mut commands: Commands<'_, '_>| {
                    let is_victim = |entity: &&Entity| names.get(**entity).is_ok_and(|name| &*name.0 == victim);
                    if armed.swap(0, Ordering::Relaxed) == 1 {
                        commands.entity(*order.entities.iter().find(is_victim).expect("it is planned")).despawn();
                    }
                };
            add_system(&mut engine, in_gap(gap, despawn.run_if(planning)));
            let layers = add_layers(&mut engine, "g").expect("it is built");
            let error = engine.plan(layers.0).expect_err("a tensor is gone");
            assert_eq!(error.kind(), "MissingTensor", "gap {gap}, {victim}: {error}");
            assert!(engine.plan_of(layers.0).is_none());
            let again = engine.plan(layers.0).expect_err("it is still gone");
            assert!(matches!(again.kind(), "MissingTensor" | "MissingSource"), "{again}");
            let other = add_layers(&mut engine, "other").expect("it is built");
            run(&mut engine, other).expect("another graph is none the worse");
        }
    }
}

/// What a system edits between the passes came too late for that plan: the next look at the graph sees it.
#[test]
fn an_edit_between_the_passes_is_seen_by_the_next_look() {
    for gap in 0..3 {
        for planned_before in [false, true] {
            let mut engine = attention_on_host::engine().expect("oracles start");
            let layers = add_layers(&mut engine, "g").expect("it is built");
            if planned_before {
                engine.plan(layers.0).expect("it plans");
            }
            let entity = engine.entity(layers.0, layers.2).expect("it exists");
            let pin = move |world: &mut World| {
                if world.get::<Pinned>(entity) == Some(&Pinned(None)) {
                    world.entity_mut(entity).insert(Pinned(Some(BackendIndex(1))));
                }
            };
            add_system(&mut engine, in_gap(gap, pin.run_if(planning)));
            engine.world_mut().insert_resource(PlanSalt(1));
            engine.plan(layers.0).expect("it plans");
            run(&mut engine, layers).expect("it runs");
            assert_eq!(place(&engine, layers.0, "y"), (1, Cause::Pin), "gap {gap}");
            assert!(!engine.plan(layers.0).expect("it is planned"), "and then nothing changes any more");
        }
    }
}

/// The engine is not there for the systems of its own schedule: asking for it is an error, not a panic.
#[test]
fn the_engine_cannot_be_used_from_between_the_passes() {
    #[derive(Resource)]
    struct Answer(Result<bool, EngineError>);
    let mut engine = attention_on_host::engine().expect("oracles start");
    let layers = add_layers(&mut engine, "g").expect("it is built");
    let ask = move |world: &mut World| {
        let answer = Engine::over(world).plan(layers.0);
        world.insert_resource(Answer(answer));
    };
    add_system(&mut engine, in_gap(0, ask.run_if(planning)));
    engine.plan(layers.0).expect("it plans all the same");
    assert_eq!(engine.world().resource::<Answer>().0, Err(EngineError::NotInstalled));
}
