//! Plans that are damaged at random: what the verifier accepts must still compute the same numbers.

mod common;

use std::sync::Arc;

use common::{Planned, place_copies};
use entensor::graph_text::{BackendText, GraphText};
use entensor_components::{
    Backend, Capabilities, DeviceBuffer, MemoryHandle, NodeDesc, SplitDesc, TensorDesc, TensorRef, Usage,
};
use entensor_oracle::OracleBackend;
use entensor_snapshots::generate::{self, Limits, Random};
use entensor_systems::{Plan, Recording, Step, plan_schedule, run_plan, verify_given};

/// A plan, and what its backends are given: per slot, each split written out.
struct Case {
    plan: Plan,
    given: Vec<Vec<SplitDesc>>,
}

impl Case {
    /// What the backends of the first slot are given.
    fn nodes(&mut self) -> impl Iterator<Item = &mut NodeDesc> {
        self.given[0].iter_mut().flat_map(|split| &mut split.nodes)
    }
}

/// A plan on oracles that claim a machine's memories, and refuse nothing.
fn plan_of(text: &GraphText) -> Option<Case> {
    let oracle = |line: &BackendText| {
        let capabilities = Capabilities { asynchronous: false, events: false, ..line.capabilities.clone() };
        Arc::new(OracleBackend::with_capabilities(line.name.to_string(), capabilities)) as Arc<dyn Backend>
    };
    let mut world = bevy_ecs::prelude::World::new();
    let graph = text.spawn_on(&mut world, text.machine().iter().map(oracle).collect()).ok()?;
    let mut planned = Planned { world, graph, schedule: plan_schedule(Recording::Off) };
    planned.plan();
    let plan = planned.result().ok()?;
    drop(planned);
    let plan = Arc::into_inner(plan)?;
    Some(Case { given: plan.write_out(), plan })
}

/// Bytes of small numbers, the same for a name and a seed.
fn contents(name: &str, desc: &TensorDesc) -> Vec<u8> {
    let mut random = Random::new(name.bytes().fold(7, |seed, byte| seed * 31 + u64::from(byte)));
    let is_integer = desc.dtype.row().class == entensor_components::DTypeClass::Integer;
    let count = desc.shape.elements().expect("small");
    let values: Vec<f32> = (0..count)
        .map(|_| if is_integer { random.below(2) as f32 } else { random.below(32) as f32 / 8.0 - 2.0 })
        .collect();
    let mut bytes = vec![0; usize::try_from(desc.size_bytes()).expect("small")];
    (desc.dtype.row().quantize)(&values, &mut bytes);
    bytes
}

/// Runs a plan's first slot on fresh memory, full of bytes that mean nothing; what its outputs and existing memory hold then.
fn results(case: &mut Case) -> Result<Vec<Vec<u8>>, String> {
    let Case { plan, given } = case;
    let owners: Vec<(Arc<dyn Backend>, u64)> = plan
        .buffers
        .iter()
        .map(|b| (Arc::clone(&plan.backends[b.backend as usize].handle), b.size_bytes))
        .chain(plan.existing.iter().map(|b| (Arc::clone(&plan.backends[plan.backends.len() - 1].handle), b.size_bytes)))
        .collect();
    let buffers: Vec<Arc<DeviceBuffer>> = owners
        .iter()
        .map(|(backend, size)| {
            let buffer = DeviceBuffer::create(backend, *size, Usage::Any).map_err(|error| error.to_string())?;
            let rubbish = vec![0x3d; usize::try_from(*size).expect("small")];
            backend.write(buffer.memory(), 0, &rubbish).map_err(|error| error.to_string())?;
            Ok(buffer)
        })
        .collect::<Result<_, String>>()?;
    let memory: Vec<MemoryHandle> = buffers.iter().map(|buffer| buffer.memory().clone()).collect();
    for (program, given) in plan.programs.iter_mut().zip(given) {
        let prepared = given.iter().zip(&plan.splits).map(|(desc, split)| {
            plan.backends[split.backend as usize].handle.prepare(desc).map_err(|error| error.to_string())
        });
        program.prepared = prepared.collect::<Result<_, String>>()?;
    }
    let host = &plan.backends[plan.backends.len() - 1].handle;
    let place = |i: usize| plan.locate(i, 0).expect("every tensor has a place");
    for (i, node) in plan.nodes().enumerate() {
        if node.root as usize == i && (node.existing.is_some() || node.flags.input) {
            let at = place(i);
            let written = host.write(&memory[at.memory.0 as usize], at.offset_bytes, &contents(node.name, &node.desc));
            written.map_err(|error| error.to_string())?;
        }
    }
    run_plan(plan, &memory, 0).map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    for (i, _) in plan.nodes().enumerate().filter(|(_, node)| node.flags.output || node.existing.is_some()) {
        let at = place(i);
        // Holes between rows hold anything.
        if !at.desc.is_packed() {
            continue;
        }
        let mut bytes = vec![0; usize::try_from(at.desc.size_bytes()).expect("small")];
        host.read(&memory[at.memory.0 as usize], at.offset_bytes, &mut bytes).map_err(|error| error.to_string())?;
        found.push(bytes);
    }
    Ok(found)
}

/// Any of the places that runs are given.
fn any_place<'a>(case: &'a mut Case, random: &mut Random) -> Option<&'a mut TensorRef> {
    let Case { plan, given } = case;
    let nodes = given[0].iter_mut().flat_map(|split| &mut split.nodes);
    let mut places: Vec<&mut TensorRef> =
        nodes.flat_map(|node| node.operands.iter_mut().chain([&mut node.output])).collect();
    for step in &mut plan.programs[0].steps {
        if let Step::Copy { from, to, .. } = step {
            places.extend([from, to]);
        }
    }
    let count = places.len() as u64;
    (count > 0).then(|| places.swap_remove(usize::try_from(random.below(count)).expect("small")))
}

fn index(random: &mut Random, len: usize) -> usize {
    usize::try_from(random.below(len as u64)).expect("small")
}

/// Moves an allocation to the place of another, for the plan alone. Returns both places: buffer, offset.
fn move_allocation(plan: &mut Plan, random: &mut Random) -> [(u32, u64); 2] {
    let (a, b) = (index(random, plan.allocations.len()), index(random, plan.allocations.len()));
    let place = |i: usize| (plan.allocations[i].buffer, plan.allocations[i].offset_bytes);
    let (from, to) = (place(a), place(b));
    (plan.allocations[a].buffer, plan.allocations[a].offset_bytes) = to;
    if random.percent(50) {
        plan.allocations[a].in_place_of = u32::try_from(b).ok();
    }
    [from, to]
}

/// A split makes one copy less.
fn forget_copy(plan: &mut Plan, split: u32, copy: u32) {
    let inputs = plan.splits[split as usize].inputs.clone();
    let at = inputs.into_iter().find(|&at| plan.split_inputs[at as usize] == copy).expect("the step was made for it");
    plan.split_inputs.remove(at as usize);
    for split in &mut plan.splits {
        split.inputs.start -= u32::from(split.inputs.start > at);
        split.inputs.end -= u32::from(split.inputs.end > at);
    }
}

/// Damages one thing of the first slot.
fn damage(case: &mut Case, random: &mut Random) {
    match random.below(10) {
        0 | 1 => {
            if let Some(place) = any_place(case, random) {
                place.offset_bytes = random.below(16) * 32;
            }
        }
        2 => {
            let other = any_place(case, random).map(|place| (place.memory, place.offset_bytes));
            if let (Some((memory, offset)), Some(place)) = (other, any_place(case, random)) {
                (place.memory, place.offset_bytes) = (memory, offset);
            }
        }
        3 if case.plan.allocations.len() > 1 => {
            // The plan says where things are, and runs do as it says.
            move_allocation(&mut case.plan, random);
            place_copies(&mut case.plan);
            case.given = case.plan.write_out();
        }
        4 if case.plan.allocations.len() > 1 => {
            // Whatever was there moves, at any time.
            let [from, to] = move_allocation(&mut case.plan, random);
            let moved = |place: &mut TensorRef| {
                if (place.memory.0, place.offset_bytes) == from {
                    (place.memory.0, place.offset_bytes) = to;
                }
            };
            for node in case.given.iter_mut().flatten().flat_map(|split| &mut split.nodes) {
                node.operands.iter_mut().chain([&mut node.output]).for_each(moved);
            }
            for step in case.plan.programs.iter_mut().flat_map(|program| &mut program.steps) {
                if let Step::Copy { from, to, .. } = step {
                    moved(from);
                    moved(to);
                }
            }
        }
        5 if !case.plan.allocations.is_empty() => {
            let allocations = &mut case.plan.allocations;
            let a = index(random, allocations.len());
            allocations[a].last = allocations[a].first;
        }
        6 => {
            // A copy is forgotten by everybody.
            let steps = &mut case.plan.programs[0].steps;
            let copies: Vec<usize> = (0..steps.len()).filter(|&i| matches!(steps[i], Step::Copy { .. })).collect();
            if !copies.is_empty()
                && let Step::Copy { copy, split, .. } = steps.remove(*random.pick(&copies))
            {
                forget_copy(&mut case.plan, split, copy);
            }
        }
        7 if case.plan.programs[0].steps.len() > 1 => {
            let steps = &mut case.plan.programs[0].steps;
            let (a, b) = (index(random, steps.len()), index(random, steps.len()));
            steps.swap(a, b);
        }
        8 => {
            let splits = case.given[0].len();
            if splits > 0 {
                let split = index(random, splits);
                let nodes = &mut case.given[0][split].nodes;
                let (a, b) = (index(random, nodes.len()), index(random, nodes.len()));
                nodes.swap(a, b);
                if random.percent(50) {
                    let start = case.plan.splits[split].nodes.start as usize;
                    case.plan.launches.swap(start + a, start + b);
                }
            }
        }
        _ => {
            let mut several: Vec<_> = case.nodes().filter(|node| node.operands.len() > 1).collect();
            if !several.is_empty() {
                let node = index(random, several.len());
                several[node].operands.swap(0, 1);
            }
        }
    }
}

/// Thousands of damages: each is found, or harmless by the numbers.
#[test]
fn whatever_is_accepted_computes_the_same() {
    let (mut found, mut harmless, mut harmful) = (0, 0, 0);
    for seed in 0..250 {
        let text = common::parse("case", &generate::case(seed, Limits { scratch: false, nodes: 16 })).with_copies(1);
        let Some(mut case) = plan_of(&text) else { continue };
        let Ok(expected) = results(&mut case) else { continue };
        for round in 0..10 {
            let Some(mut case) = plan_of(&text) else { continue };
            let mut random = Random::new(seed * 100 + round);
            damage(&mut case, &mut random);
            match verify_given(&case.plan, &case.given) {
                Err(violations) => {
                    assert!(!violations.is_empty());
                    found += 1;
                    harmful += u32::from(!violations.is_empty() && results_differ(&mut case, &expected));
                }
                Ok(()) => {
                    let result = results(&mut case)
                        .unwrap_or_else(|error| panic!("seed {seed}, round {round}: accepted, but {error}\n{text}"));
                    assert_eq!(result, expected, "seed {seed}, round {round}: accepted, but other numbers\n{text}");
                    harmless += 1;
                }
            }
        }
    }
    println!("{found} found, of them {harmful} with other numbers; {harmless} harmless");
    assert!(found >= 900 && harmful >= 300, "{found} found, {harmful} harmful, {harmless} harmless");
}

/// Whether the damage shows in the numbers; splits out of order cannot be run at all.
fn results_differ(case: &mut Case, expected: &[Vec<u8>]) -> bool {
    results(case).map_or(true, |result| result != expected)
}
