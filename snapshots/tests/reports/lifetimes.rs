//! What lives when, and where: the memory plan against counts that a child could make.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_snapshots::generate::{Limits, Random, case};
use entensor_systems::{Plan, PlanError, Recording, plan_schedule, verify};

use crate::{
    common::{self, Planned, fixtures},
    runs::computes_what_one_host_does,
    tools::{Place, backend_name, between, buffer_sizes, expect, nodes, places, plan, touched},
};

/// Plans of random graphs on random machines, with seed and text.
fn random_plans(seeds: std::ops::Range<u64>) -> impl Iterator<Item = (u64, String, Arc<Plan>)> {
    seeds.filter_map(|seed| {
        let source = case(seed, Limits::default());
        let text = common::parse("case", &source);
        let mut world = World::new();
        let graph = text.spawn(&mut world).ok()?;
        let mut planned = Planned { world, graph, schedule: plan_schedule(Recording::Off) };
        planned.plan();
        Some((seed, source, planned.result().ok()?))
    })
}

/// A tensor is made, or dies.
#[derive(Clone, Copy)]
enum Event {
    Make(usize, u64),
    End(usize),
}

/// A graph in which tensors of these sizes (in elements) live between their events: `arange` makes them without operands, and
/// `sum` is their last use.
fn lifetimes(machine: &str, events: &[Event]) -> String {
    let mut text = format!("{machine}\na = arange stop=1\n");
    let mut sum = "a".to_owned();
    for event in events {
        match event {
            Event::Make(tensor, count) => {
                let _ = writeln!(text, "t{tensor} = arange stop={count}");
            }
            Event::End(tensor) => {
                let _ = writeln!(text, "u{tensor} = sum t{tensor}\na{tensor} = add {sum} u{tensor}");
                sum = format!("a{tensor}");
            }
        }
    }
    let _ = writeln!(text, "y = neg {sum} output");
    text
}

/// lc#11332, sd#791: more memory than one buffer may have is several buffers, none above the limit and no tensor in two; only a
/// tensor above the limit itself is an error, with its bytes.
#[test]
fn report_18_small_buffers_make_many_never_a_torn_tensor() {
    let (mut several, mut too_large) = (0, 0);
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let limit = *random.pick(&[64_u64, 100, 256, 1000]);
        let machine = format!(
            "backend cpu max_buffer={limit} align={} pad={}",
            random.pick(&[1, 4, 32, 64]),
            random.pick(&[1, 8, 60])
        );
        let count = usize::try_from(between(&mut random, 3, 20)).expect("small");
        let mut events: Vec<Event> =
            (0..count).map(|i| Event::Make(i, between(&mut random, 1, limit / 4 + 2))).collect();
        events.extend((0..count).map(Event::End));
        let text = lifetimes(&machine, &events);
        match plan(&text) {
            Ok(plan) => {
                let sizes = buffer_sizes(&plan);
                assert!(sizes.iter().all(|&size| size <= limit), "{sizes:?} above {limit}\n{text}");
                for place in places(&plan) {
                    assert!(place.end() <= sizes[place.buffer as usize], "{place:?}\n{text}");
                }
                several += u32::from(sizes.len() > 3);
                if seed % 20 == 0 {
                    computes_what_one_host_does(&text);
                }
            }
            Err(PlanError::TensorTooLarge { tensor, size_bytes, backend, max_bytes }) => {
                assert!(
                    size_bytes > limit && max_bytes == limit && &*backend == "cpu" && tensor.starts_with('t'),
                    "{text}"
                );
                too_large += 1;
            }
            Err(error) => panic!("{error}\n{text}"),
        }
    }
    assert!(several >= 50 && too_large >= 20, "{several} of several buffers, {too_large} too large");
    // The report's numbers: 200 bytes alive at once, in buffers of 64.
    let tensors: Vec<Event> = (0..5).map(|i| Event::Make(i, 10)).chain((0..5).map(Event::End)).collect();
    let plan = expect(&lifetimes("backend cpu max_buffer=64 align=4", &tensors));
    assert!(buffer_sizes(&plan).len() >= 4 && buffer_sizes(&plan).iter().all(|&size| size <= 64));
}

/// Lifetimes that start and end in turn: a window of tensors that slides on.
fn sliding(count: usize, window: usize, mut size: impl FnMut(usize) -> u64) -> Vec<Event> {
    let mut events = Vec::new();
    for i in 0..count {
        events.push(Event::Make(i, size(i)));
        if i >= window {
            events.push(Event::End(i - window));
        }
    }
    events.extend((count.saturating_sub(window)..count).map(Event::End));
    events
}

/// lc#2993: thousands of interleaved lifetimes plan, whatever their sizes and orders, and holes between them are used again.
#[test]
fn report_26_ten_thousand_interleaved_lifetimes() {
    for window in [1, 2, 7, 100] {
        let planned: Vec<u64> = [500, 10_000]
            .map(|count| expect(&lifetimes("backend cpu", &sliding(count, window, |_| 16))).planned_bytes())
            .into();
        assert_eq!(planned[0], planned[1], "window {window}: equal lifetimes need no more memory for being many");
    }
    for (seed, window) in [(1, 3), (2, 20), (3, 300), (4, 3000)] {
        let mut random = Random::new(seed);
        let plan = expect(&lifetimes("backend cpu", &sliding(10_000, window, |_| between(&mut random, 1, 2000))));
        assert!(
            plan.planned_bytes() <= plan.lower_bound_bytes * 2,
            "{} of {}",
            plan.planned_bytes(),
            plan.lower_bound_bytes
        );
    }
    // Nested: the last made ends first. Random: any that lives may end.
    let nested: Vec<Event> =
        (0..5000).map(|i| Event::Make(i, 8 + i as u64 % 50 * 8)).chain((0..5000).rev().map(Event::End)).collect();
    let plan = expect(&lifetimes("backend cpu", &nested));
    assert!(plan.planned_bytes() <= plan.lower_bound_bytes + 64, "one small tensor's alignment above what is alive");
    let (mut random, mut alive, mut events) = (Random::new(9), Vec::new(), Vec::new());
    for i in 0..10_000 {
        events.push(Event::Make(i, between(&mut random, 1, 300)));
        alive.push(i);
        while alive.len() > 40 || random.percent(48) && !alive.is_empty() {
            let end = usize::try_from(random.below(alive.len() as u64)).expect("small");
            events.push(Event::End(alive.swap_remove(end)));
        }
    }
    events.extend(alive.into_iter().map(Event::End));
    let plan = expect(&lifetimes("backend cpu align=64 pad=48", &events));
    assert!(plan.planned_bytes() <= plan.lower_bound_bytes * 2);
}

/// lc 16679, lc 17884: after chains in place over ever smaller parts, all bytes are free again in one piece: a tensor as large as
/// everything that was used fits without growth.
#[test]
fn report_28_chains_of_shrinking_sizes_leave_one_free_piece() {
    for pad in [1, 7, 64, 500] {
        for align in [4, 32, 256] {
            for chains in 1..=4 {
                for steps in 1..=6 {
                    let mut text = format!("backend cpu align={align} pad={pad}\n");
                    let mut sum = String::new();
                    for c in 0..chains {
                        let mut len = 64 << (c % 3);
                        let _ = writeln!(text, "c{c}_0 = arange stop={len}");
                        for s in 1..=steps {
                            len = (len * 3 / 5).max(1);
                            let _ = writeln!(
                                text,
                                "v{c}_{s} = view c{c}_{} shape=[{len}]\nc{c}_{s} = relu v{c}_{s}",
                                s - 1
                            );
                        }
                    }
                    for c in 0..chains {
                        let _ = writeln!(text, "u{c} = sum c{c}_{steps}");
                        sum = if c == 0 {
                            "u0".into()
                        } else {
                            let _ = writeln!(text, "s{c} = add {sum} u{c}");
                            format!("s{c}")
                        };
                    }
                    let _ = writeln!(text, "last = neg {sum}");
                    let without = expect(&(text.clone() + "run last\n"));
                    // Nothing but the last number is alive when the large tensor comes; it dies into it.
                    let large = without.planned_bytes().saturating_sub(2 * one_number_bytes(pad, align)) / 4;
                    let text =
                        format!("{text}gone = sum last\nbig = arange stop={large}\nends = sum big\nrun ends,gone\n");
                    let plan = expect(&text);
                    assert!(
                        plan.planned_bytes() <= without.planned_bytes() + 2 * one_number_bytes(pad, align),
                        "pad {pad}, align {align}: {} becomes {}\n{text}",
                        without.planned_bytes(),
                        plan.planned_bytes()
                    );
                }
            }
        }
    }
}

/// Bytes of one number.
fn one_number_bytes(pad: u64, align: u64) -> u64 {
    4_u64.next_multiple_of(pad).next_multiple_of(align)
}

/// Each allocation's chain of takings-over, as the allocation that it began with.
fn heads(places: &[Place]) -> Vec<usize> {
    let head = |mut head: usize| {
        while let Some(before) = places[head].in_place_of {
            head = before as usize;
        }
        head
    };
    (0..places.len()).map(head).collect()
}

/// gg#1492: random makings and endings against the most naive model: no byte has two owners, none is out of range, and the
/// lower bound is what a count of live bytes at every step says.
#[test]
fn report_29_allocations_are_what_a_naive_model_allows() {
    let mut random_events = Vec::new();
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let (mut alive, mut events) = (Vec::new(), Vec::new());
        for i in 0..usize::try_from(between(&mut random, 2, 60)).expect("small") {
            events.push(Event::Make(i, *random.pick(&[1, 2, 3, 8, 31, 32, 33, 200])));
            alive.push(i);
            while random.percent(45) && !alive.is_empty() {
                let end = usize::try_from(random.below(alive.len() as u64)).expect("small");
                events.push(Event::End(alive.swap_remove(end)));
            }
        }
        events.extend(alive.into_iter().map(Event::End));
        let machine = format!(
            "backend cpu align={} pad={}{}",
            random.pick(&[1, 4, 32]),
            random.pick(&[1, 5, 64]),
            random.pick(&["", " max_buffer=900", " max_buffer=2000"])
        );
        random_events.push((seed, lifetimes(&machine, &events)));
    }
    let lifetimes = random_events.into_iter().map(|(seed, text)| (seed, text.clone(), expect(&text)));
    let mut compared = 0;
    for (seed, source, plan) in lifetimes.chain(random_plans(0..400)) {
        let (all, sizes) = (places(&plan), buffer_sizes(&plan));
        let heads = heads(&all);
        for (i, a) in all.iter().enumerate() {
            assert!(a.end() <= sizes[a.buffer as usize], "seed {seed}: {a:?} is out of range\n{source}");
            for (j, b) in all.iter().enumerate().skip(i + 1) {
                let together = a.first <= b.last && b.first <= a.last;
                let shares = a.buffer == b.buffer && a.offset_bytes < b.end() && b.offset_bytes < a.end();
                assert!(!together || !shares || heads[i] == heads[j], "seed {seed}: {a:?} and {b:?}\n{source}");
            }
        }
        // Live bytes per memory and step: a chain in place is one piece, as large as what it began with.
        let mut pieces: BTreeMap<usize, (u32, u32)> = BTreeMap::new();
        for (i, place) in all.iter().enumerate() {
            let range = pieces.entry(heads[i]).or_insert((place.first, place.last));
            *range = (range.0.min(place.first), range.1.max(place.last));
        }
        let mut peaks: BTreeMap<(u32, String), u64> = BTreeMap::new();
        for step in 0..touched(&plan).steps.max(1) {
            let mut sums: BTreeMap<(u32, String), u64> = BTreeMap::new();
            for (&head, _) in pieces.iter().filter(|(_, (first, last))| (*first..=*last).contains(&step)) {
                let buffer = &plan.buffers[all[head].buffer as usize];
                *sums.entry((buffer.backend, buffer.buffer_type.to_string())).or_default() += all[head].size_bytes;
            }
            for (arena, sum) in sums {
                let peak = peaks.entry(arena).or_default();
                *peak = sum.max(*peak);
            }
        }
        assert_eq!(plan.lower_bound_bytes, peaks.values().sum::<u64>(), "seed {seed}\n{source}");
        compared += 1;
    }
    assert!(compared >= 300, "{compared} plans");
}

/// gg#731: what a graph makes for itself lives from its first to its last use and not a step longer; inputs live throughout,
/// outputs from their first write to the end. With several slots outputs live throughout, and so do copies where
/// other slots' runs go on meanwhile.
#[test]
fn report_30_temporaries_live_between_first_and_last_use() {
    let fixed = fixtures().into_iter().filter_map(|(name, text)| {
        let plan = Planned::with_schedule(&common::parse(&name, &text), plan_schedule(Recording::Off)).result().ok()?;
        Some((0, text, plan))
    });
    let (mut temporaries, mut copied) = (0, 0);
    for (seed, source, plan) in fixed.chain(random_plans(0..500)) {
        verify(&plan).expect("plans are legal");
        let (nodes, touched) = (nodes(&plan), touched(&plan));
        let mut outputs = vec![false; nodes.len()];
        for node in nodes.iter().filter(|node| node.flags.output) {
            outputs[node.root as usize] = true;
        }
        let end = touched.steps.saturating_sub(1);
        let under_way = plan.backends.iter().any(|backend| backend.handle.capabilities().asynchronous);
        for place in places(&plan) {
            let holder = place.is_copy.then_some(place.backend);
            let used = touched.ranges.get(&(place.node, holder)).copied().unwrap_or((0, 0));
            let is_kept = if place.is_copy { under_way } else { outputs[place.node as usize] };
            let expected = match &nodes[place.node as usize] {
                _ if plan.programs.len() > 1 && is_kept => (0, end),
                node if !place.is_copy && node.flags.input => (0, end),
                _ if !place.is_copy && outputs[place.node as usize] => (used.0, end),
                _ => used,
            };
            assert_eq!(
                (place.first, place.last),
                expected,
                "seed {seed}: {place:?} on {}\n{source}",
                backend_name(&plan, place.backend)
            );
            temporaries += u32::from(expected == used);
            copied += u32::from(place.is_copy && place.slot == 0);
        }
    }
    assert!(temporaries >= 1000 && copied >= 200, "{temporaries} temporaries, {copied} copies");
}
