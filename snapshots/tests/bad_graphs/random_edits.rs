//! Random values in random components of random graphs: the planner meets what no test thought of.

use bevy_ecs::prelude::*;
use entensor_components::{
    BackendIndex, DTYPES, GraphTensors, InGraph, OPS, Pinned, PipelineCopies, Shape, Sources, Stored, StoredIn,
    Strides, TensorFlags, ViewSrc, Wanted,
};
use entensor_snapshots::generate::{Limits, Random, case};
use entensor_systems::{PlanError, Recording, plan_schedule};

use super::{Planned, common, outcome};

fn number(random: &mut Random) -> u64 {
    *random.pick(&[
        0,
        1,
        2,
        3,
        4,
        7,
        8,
        32,
        33,
        64,
        1 << 20,
        1 << 31,
        1 << 32,
        1 << 62,
        i64::MAX as u64,
        u64::MAX - 1,
        u64::MAX,
    ])
}

fn numbers(random: &mut Random) -> [u64; 4] {
    let large = random.percent(20);
    std::array::from_fn(|_| if large { number(random) } else { *random.pick(&[0, 1, 2, 4, 8, 32]) })
}

/// Any entity of the world, dead and foreign ones among them.
fn any(random: &mut Random, tensors: &[Entity], graph: Entity) -> Entity {
    match random.below(12) {
        0 => Entity::PLACEHOLDER,
        1 => graph,
        _ => *random.pick(tensors),
    }
}

/// Changes one component of one entity of the graph.
fn edit(world: &mut World, graph: Entity, random: &mut Random) {
    let Some(tensors) = world.get::<GraphTensors>(graph).map(|t| t.0.clone()).filter(|t| !t.is_empty()) else { return };
    let target = *random.pick(&tensors);
    let other = any(random, &tensors, graph);
    let Ok(mut entity) = world.get_entity_mut(target) else { return };
    match random.below(16) {
        0 => {
            entity.insert(Shape(numbers(random)));
        }
        1 => {
            entity.insert(Strides(numbers(random)));
        }
        2 => {
            entity.insert(random.pick(DTYPES).dtype);
        }
        3 => {
            let op = random.pick(OPS).kind.default_op();
            let is_input = entity.get::<TensorFlags>().is_some_and(|flags| flags.input);
            if !is_input {
                entity.insert(op);
            }
        }
        4 | 5 => {
            let count = random.below(4);
            let sources = (0..count).map(|_| any(random, &tensors, graph)).collect();
            entity.insert(Sources(sources));
        }
        6 | 7 => {
            let root = random.percent(70).then_some(other);
            entity.insert(ViewSrc { root, offset_bytes: number(random) });
        }
        8 => {
            let (input, consumed, output) = (random.percent(50), random.percent(30), random.percent(50));
            entity.insert(TensorFlags { input, consumed, output });
        }
        9 => {
            entity.insert(Pinned(random.percent(80).then(|| BackendIndex(random.below(5) as u32))));
        }
        10 => {
            let stored = StoredIn(random.percent(70).then(|| Stored { buffer: other, offset_bytes: number(random) }));
            entity.insert(stored);
        }
        11 => {
            let place = world.get::<StoredIn>(other).copied().unwrap_or_default();
            world.entity_mut(target).insert(place);
        }
        12 => {
            let mut list = tensors.clone();
            let (a, b) = (random.below(list.len() as u64) as usize, random.below(list.len() as u64) as usize);
            match random.below(4) {
                0 => list.swap(a, b),
                1 => drop(list.remove(a)),
                2 => list.push(other),
                _ => list.insert(a, other),
            }
            world.entity_mut(graph).insert(GraphTensors(list));
        }
        13 => {
            let wanted = (0..random.below(4)).map(|_| any(random, &tensors, graph)).collect();
            world.entity_mut(graph).insert(Wanted(wanted));
        }
        14 => {
            let copies = *random.pick(&[0, 1, 2, 3, 1024, u32::MAX]);
            world.entity_mut(graph).insert(PipelineCopies(copies));
        }
        _ => match random.below(3) {
            0 => {
                entity.insert(InGraph(random.percent(50).then_some(other)));
            }
            1 => {
                entity.despawn();
            }
            _ => {
                entity.remove::<Shape>();
            }
        },
    }
}

/// A proved plan, or an error that is not of a system between the passes.
#[test]
fn random_edits_of_components_never_panic() {
    let (mut plans, mut errors) = (0, std::collections::BTreeMap::<&str, u32>::new());
    for seed in 0..2000 {
        let source = case(seed % 500, Limits { scratch: true, nodes: 12 });
        let mut world = World::new();
        let Ok(graph) = common::parse("case", &source).spawn(&mut world) else { continue };
        let mut planned = Planned { world, graph, schedule: plan_schedule(Recording::Off) };
        let mut random = Random::new(seed);
        if random.percent(30) {
            drop(outcome(&mut planned));
        }
        for _ in 0..1 + random.below(3) {
            edit(&mut planned.world, graph, &mut random);
            match outcome(&mut planned) {
                Ok(_) => plans += 1,
                Err(error) => {
                    let own = matches!(error, PlanError::Unplaced { .. } | PlanError::Misplaced { .. });
                    assert!(!own, "seed {seed}: {error}\n{source}");
                    *errors.entry(error.kind()).or_default() += 1;
                }
            }
        }
    }
    println!("{plans} plans, {errors:?}");
    assert!(plans >= 500 && errors.len() >= 12, "{plans} plans, {errors:?}");
}
