//! Queues that run beside each other: what shares memory is ordered, whoever runs first.

use std::sync::Arc;

use entensor::{Engine, RunLimit, components::Backend};
use entensor_systems::{GraphPlan, Step};

use crate::machine::{Chain, ChainShape, Expected, Machine, SEEDS};

/// Two devices over one memory, neither waiting for the other by itself: wherever they touch the same bytes there is an event,
/// and every schedule computes the same.
#[test]
fn report_37_two_queues_over_one_memory_are_ordered_where_they_overlap() {
    let mut waits = 0;
    for graph_seed in 0..50 {
        let shape = ChainShape { seed: graph_seed, nodes: 12, copies: 1 };
        let (machine, mut expected) = (Machine::sharing(graph_seed, 2), Expected::new(shape));
        let mut engine = machine.engine();
        let chain = Chain::on(&mut engine, shape, |_| ());
        for round in 0..SEEDS / 50 {
            machine.world.reseed(graph_seed * SEEDS + round);
            assert_eq!(chain.compute(&mut engine, round), Ok(expected.of(round)), "graph {graph_seed}, {round}");
            machine.assert_no_race(round);
        }
        let plan = &engine.world().get::<GraphPlan>(chain.graph.0).expect("planned").plan;
        let is_between_devices =
            |step: &&Step| matches!(step, Step::Wait { backend, of, .. } if backend != of && *backend < 2 && *of < 2);
        waits += plan.programs[0].steps.iter().filter(is_between_devices).count();
    }
    assert!(waits >= 50, "devices wait for each other: {waits}");
}

/// Runs one after the other, five times, in one slot and in four, with the plan kept and made anew.
#[test]
fn report_41_several_copies_compute_what_one_does() {
    for seed in 0..SEEDS {
        let shape = ChainShape { seed: seed % 20, nodes: 10, copies: 4 };
        let (machine, mut expected) = (Machine::of(seed, 2), Expected::new(shape));
        let mut engine = machine.engine();
        let (kept, anew) = (seed % 4 < 2, seed % 2 == 0);
        let chain = Chain::on(&mut engine, shape, |_| ());
        let mut runs = Vec::new();
        for round in 0..5 {
            if !kept {
                engine.world_mut().resource_mut::<entensor_systems::PlanCache>().clear();
                engine.world_mut().resource_mut::<entensor::PlanSalt>().0 += 1;
            }
            if anew {
                chain.write(&mut engine, round).expect("inputs");
                runs.push(engine.run_async(chain.graph).expect("submitted"));
                if kept && round >= 3 {
                    // The run four before is the one that a fifth would overwrite.
                    let old = runs[usize::try_from(round - 3).expect("few")];
                    assert_eq!(chain.read(&engine, old), Ok(expected.of(round - 3)), "seed {seed}");
                }
            } else {
                assert_eq!(chain.compute(&mut engine, round), Ok(expected.of(round)), "seed {seed}");
            }
        }
        if let Some(&last) = runs.last() {
            assert_eq!(chain.read(&engine, last), Ok(expected.of(4)), "seed {seed}");
        }
        engine.synchronize().expect("all went well");
        machine.assert_no_race(seed);
    }
}

/// Two engines, each with a World of its own, on the same devices from two threads.
#[test]
fn report_42_two_worlds_on_one_device_from_two_threads() {
    for seed in 0..SEEDS {
        let machine = Machine::of(seed, 2);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let machine = &machine;
                scope.spawn(move || {
                    let shape = ChainShape { seed: seed + thread, nodes: 8, copies: 2 };
                    let mut expected = Expected::new(shape);
                    let mut engine: Engine = machine.engine();
                    let chain = Chain::on(&mut engine, shape, |_| ());
                    let mut runs = Vec::new();
                    for round in 0..3 {
                        chain.write(&mut engine, round).expect("inputs");
                        runs.push(engine.run_async(chain.graph).expect("submitted"));
                    }
                    for (round, run) in (0..).zip(&runs).skip(1) {
                        assert_eq!(chain.read(&engine, *run), Ok(expected.of(round)), "seed {seed}, thread {thread}");
                    }
                });
            }
        });
        machine.assert_no_race(seed);
        let left: u64 = machine.devices.iter().map(|device| device.memory_report().ours_bytes).sum();
        assert_eq!(left, 0, "both engines are gone, and what they allocated");
        assert_eq!(Arc::strong_count(&machine.host), 1, "nobody keeps a backend");
    }
}

/// A graph whose last run is paused may have older ones under way, and those keep their arena until they are over.
#[test]
fn a_paused_run_hides_no_older_one_from_other_graphs() {
    let no_time = || RunLimit { deadline: Some(std::time::Instant::now()), cancel: None };
    let mut paused = 0;
    for seed in 0..SEEDS {
        let shape = ChainShape { seed: seed % 40, nodes: 9, copies: 2 };
        let machine = Machine::of(seed, 2);
        let mut engine = machine.engine();
        let arena = engine.new_arena();
        let first = Chain::on(&mut engine, shape, |g| {
            g.share_arena(arena);
        });
        let other = Chain::on(&mut engine, ChainShape { seed: seed % 7, copies: 1, ..shape }, |g| {
            g.share_arena(arena);
        });
        let mut expected = Expected::new(ChainShape { seed: seed % 7, copies: 1, ..shape });
        first.write(&mut engine, 1).expect("inputs");
        engine.run_async(first.graph).expect("submitted");
        first.write(&mut engine, 2).expect("inputs");
        engine.run_until(first.graph, &no_time()).expect("nothing fails");
        paused += u64::from(engine.is_paused(first.graph) && engine.in_flight(first.graph) == 2);
        assert_eq!(other.compute(&mut engine, 3), Ok(expected.of(3)), "seed {seed}");
        machine.assert_no_race(seed);
    }
    assert!(paused > SEEDS / 4, "{paused} of {SEEDS} graphs had an older run under way");
}
