//! What is kept, what goes, and how looks at graphs are counted.

use super::*;

#[test]
fn the_plan_not_used_for_longest_goes_first() {
    let mut engine = oracle();
    assert_eq!((cache(&engine).budget_bytes(), cache(&engine).is_empty()), (DEFAULT_PLAN_BYTES, true));
    let graphs = [10, 20, 30, 40].map(|nodes| (nodes, chain(&mut engine, "g", nodes)));
    let mut sizes = Vec::new();
    for (_, (graph, ..)) in graphs {
        engine.plan(graph).expect("it plans");
        sizes.push(plan_of(&engine, graph).size_bytes());
    }
    assert!(sizes.is_sorted() && sizes[0] > 0, "{sizes:?}");
    assert_eq!(cache(&engine).size_bytes(), sizes.iter().sum::<usize>());
    assert_eq!((cache(&engine).len(), cache(&engine).evicted()), (4, 0));

    // A look at the first one makes the second the oldest.
    assert!(is_kept(&mut engine, 10));
    let budget = sizes[0] + sizes[2] + sizes[3];
    engine.world_mut().resource_mut::<PlanCache>().set_budget(budget);
    assert_eq!((cache(&engine).len(), cache(&engine).evicted()), (3, 1), "those above the budget go now");
    assert_eq!((cache(&engine).size_bytes(), cache(&engine).budget_bytes()), (budget, budget));
    for kept in [40, 10, 30] {
        assert!(is_kept(&mut engine, kept), "{kept}");
    }
    // It is made anew, and takes the place of what is the oldest now.
    assert!(!is_kept(&mut engine, 20));
    assert_eq!((cache(&engine).len(), cache(&engine).evicted()), (3, 2));
    assert!(cache(&engine).size_bytes() <= budget);
    for (nodes, kept) in [(20, true), (30, true), (10, true), (40, false)] {
        assert_eq!(is_kept(&mut engine, nodes), kept, "{nodes}");
    }

    // Graphs keep their plans, whatever the cache does.
    let counters = engine.counters();
    engine.world_mut().resource_mut::<PlanCache>().clear();
    assert_eq!((cache(&engine).len(), cache(&engine).size_bytes()), (0, 0));
    for (_, (graph, x, y)) in graphs {
        engine.write(graph, x, &[1.0_f32, -1.0, 2.0, -2.0]).expect("an input");
        engine.run(graph).expect("it runs");
        let mut result = [0.0_f32; 4];
        engine.read(graph, y, &mut result).expect("an output");
        assert_eq!(result, [1.0, 0.0, 2.0, 0.0]);
    }
    assert_eq!(engine.counters().planned, counters.planned);
}

/// A budget that nothing fits into keeps the newest plan, so that a graph that is made again and again is planned once.
#[test]
fn the_newest_plan_stays_whatever_the_budget() {
    let mut engine = oracle();
    engine.world_mut().insert_resource(PlanCache::with_budget(0));
    assert!(!is_kept(&mut engine, 30));
    for _ in 0..5 {
        assert!(is_kept(&mut engine, 30));
    }
    assert_eq!((cache(&engine).len(), cache(&engine).evicted()), (1, 0));
    assert!(!is_kept(&mut engine, 5));
    assert!(!is_kept(&mut engine, 30));
    assert_eq!((cache(&engine).len(), cache(&engine).evicted()), (1, 2));
    assert!(cache(&engine).size_bytes() > 0);
}

#[test]
fn hundreds_of_plans_stay_under_the_budget() {
    let mut engine = oracle();
    let one = {
        let graph = chain(&mut engine, "g", 50).0;
        engine.plan(graph).expect("it plans");
        plan_of(&engine, graph).size_bytes()
    };
    let budget = 20 * one;
    engine.world_mut().insert_resource(PlanCache::with_budget(budget));
    for nodes in 1..300 {
        assert!(!is_kept(&mut engine, nodes));
        let cache = cache(&engine);
        assert!(cache.size_bytes() <= budget && !cache.is_empty(), "{} bytes", cache.size_bytes());
        assert_eq!(cache.len() as u64 + cache.evicted(), nodes as u64);
    }
    assert!(cache(&engine).evicted() > 200);
    assert!(is_kept(&mut engine, 299) && !is_kept(&mut engine, 1));
}

/// Every look at a graph has one reason, and every counter says what it is about.
#[test]
fn every_look_is_counted_by_its_reason() {
    let mut engine = oracle();
    let (graph, x, _) = chain(&mut engine, "g", 3);
    let mut expected = PlanCounters::default();
    let step = |engine: &mut Engine, expected: &PlanCounters| {
        engine.write(graph, x, &[1.0_f32; 4]).expect("an input");
        engine.run(graph).expect("it runs");
        assert_eq!(&engine.counters(), expected);
    };
    // `write` has to know where the input is, so it plans; the run then finds nothing changed.
    expected.planned = 1;
    expected.unchanged = 1;
    expected.reasons.insert(PlanReason::First, 1);
    step(&mut engine, &expected);
    for _ in 0..3 {
        expected.unchanged += 1;
        step(&mut engine, &expected);
    }
    // Something in the graph: the same value again is a look, but no plan.
    let tensor = engine.entity(graph, x).expect("it exists");
    engine.world_mut().entity_mut(tensor).insert(TensorName("x".into()));
    expected.cached = 1;
    expected.unchanged += 1;
    expected.reasons.insert(PlanReason::Graph, 1);
    step(&mut engine, &expected);
    engine.world_mut().entity_mut(tensor).insert(TensorName("renamed".into()));
    expected.planned = 2;
    expected.unchanged += 1;
    expected.reasons.insert(PlanReason::Graph, 2);
    step(&mut engine, &expected);
    // Something that graphs share.
    engine.create_buffer("other", BackendIndex(0), Usage::Any, 64).expect("64 bytes");
    expected.cached += 1;
    expected.unchanged += 1;
    expected.reasons.insert(PlanReason::Shared, 1);
    step(&mut engine, &expected);
    // The users' number, there and back.
    for (salt, planned) in [(7, true), (0, false), (7, false)] {
        engine.world_mut().insert_resource(PlanSalt(salt));
        expected.planned += u64::from(planned);
        expected.cached += u64::from(!planned);
        expected.unchanged += 1;
        *expected.reasons.entry(PlanReason::Salt).or_default() += 1;
        step(&mut engine, &expected);
    }
    // A second graph that is alike has the reason that it is new.
    let second = chain(&mut engine, "second", 3).0;
    engine.plan(second).expect("it plans");
    expected.planned += 1;
    *expected.reasons.entry(PlanReason::First).or_default() += 1;
    assert_eq!(engine.counters(), expected, "its input has another name");
    let third = chain(&mut engine, "third", 3).0;
    engine.plan(third).expect("it plans");
    expected.cached += 1;
    *expected.reasons.entry(PlanReason::First).or_default() += 1;
    assert_eq!(engine.counters(), expected);
    assert_eq!(expected.fallbacks, 0);
}
