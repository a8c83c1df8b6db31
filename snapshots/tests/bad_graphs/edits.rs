//! Components edited by hand, each into something that no graph may hold.

use std::sync::atomic::{AtomicBool, Ordering};

use bevy_ecs::prelude::*;
use entensor_components::{
    BackendIndex, DType, GraphTensors, InGraph, Op, Pinned, PipelineCopies, Shape, Sources, Stored, StoredIn, Strides,
    TensorBundle, TensorDesc, TensorFlags, ViewSrc, Wanted,
};
use entensor_systems::{Backends, Plan, PlanError};

use super::{
    BASE, Planned,
    despawns::{GAPS, in_gap},
    outcome, spawn, tensor,
};

fn sources(planned: &mut Planned, node: &str, sources: &[&str]) {
    let sources = sources.iter().map(|name| tensor(planned, name)).collect();
    edit(planned, node, Sources(sources));
}

fn edit(planned: &mut Planned, node: &str, bundle: impl Bundle) {
    let entity = tensor(planned, node);
    planned.world.entity_mut(entity).insert(bundle);
}

fn on_graph(planned: &mut Planned, bundle: impl Bundle) {
    planned.world.entity_mut(planned.graph).insert(bundle);
}

fn view_of(planned: &mut Planned, node: &str, root: Option<&str>, offset_bytes: u64) {
    let root = root.map(|root| tensor(planned, root));
    edit(planned, node, ViewSrc { root, offset_bytes });
}

fn stored(planned: &mut Planned, node: &str, of: &str, offset_bytes: u64) {
    let of = tensor(planned, of);
    let buffer = planned.world.get::<StoredIn>(of).expect("it has").0.expect("it has memory").buffer;
    edit(planned, node, StoredIn(Some(Stored { buffer, offset_bytes })));
}

type Edit = fn(&mut Planned);

/// What is edited, how, the error's kind, and words that the message must hold: the culprit, and what to do.
const EDITS: &[(&str, Edit, &str, &[&str])] = &[
    ("a node that reads itself", |p| sources(p, "s", &["s", "h"]), "SourceAfterUse", &["`s`", "operands come first"]),
    ("a cycle of two", |p| sources(p, "s", &["y", "h"]), "SourceAfterUse", &["`s`", "`y`", "operands come first"]),
    ("a cycle through a view", |p| sources(p, "h", &["w", "v"]), "SourceAfterUse", &["`h`", "`v`"]),
    ("a long cycle", |p| sources(p, "h", &["w", "y"]), "SourceAfterUse", &["`h`", "`y`"]),
    ("a view of a later root", |p| view_of(p, "v", Some("s"), 0), "SourceAfterUse", &["`v`", "`s`"]),
    (
        "a source that is no tensor",
        |p| edit(p, "r", Sources([p.graph].into_iter().collect())),
        "MissingSource",
        &["`r`", "operand 0", "build the graph again"],
    ),
    (
        "a source that never was",
        |p| edit(p, "r", Sources([Entity::PLACEHOLDER].into_iter().collect())),
        "MissingSource",
        &["`r`", "operand 0"],
    ),
    (
        "a source of no graph without memory",
        |p| {
            let desc = TensorDesc::packed(DType::F32, Shape([8, 2, 1, 1])).expect("small");
            let lonely = p.world.spawn(TensorBundle::leaf("lonely".into(), desc)).id();
            edit(p, "r", Sources([lonely].into_iter().collect()));
        },
        "ForeignSource",
        &["`r`", "`lonely`", "graphs share only leaves"],
    ),
    (
        "a tensor of another graph",
        |p| {
            let y = tensor(p, "y");
            let other = p.world.spawn_empty().id();
            p.world.entity_mut(y).insert(InGraph(Some(other)));
        },
        "ForeignSource",
        &["`y`", "graphs share only leaves"],
    ),
    (
        "a list with something that is no tensor",
        |p| {
            let mut tensors = p.world.get::<GraphTensors>(p.graph).expect("a graph").clone();
            tensors.0.push(p.graph);
            p.world.entity_mut(p.graph).insert(tensors);
        },
        "MissingTensor",
        &["tensor 10", "build the graph again"],
    ),
    (
        "a tensor without its shape",
        |p| {
            let y = tensor(p, "y");
            p.world.entity_mut(y).remove::<Shape>();
        },
        "MissingTensor",
        &["tensor 9", "TensorBundle"],
    ),
    (
        "a wanted entity that is no tensor",
        |p| on_graph(p, Wanted(vec![p.graph])),
        "UnknownWanted",
        &["wanted tensor 0", "want tensors that the graph makes"],
    ),
    ("too few operands", |p| sources(p, "s", &["h"]), "Op", &["`s`", "takes 2 operands", "not 1"]),
    ("no operands", |p| sources(p, "r", &[]), "Op", &["`r`", "1 operand"]),
    ("too many operands", |p| sources(p, "r", &["v", "v"]), "Op", &["`r`", "1 operand"]),
    ("an operand of the wrong dtype", |p| edit(p, "x", DType::I32), "Op", &["`h`", "i32"]),
    ("an operand of the wrong shape", |p| edit(p, "x", Shape([7, 4, 1, 1])), "Op", &["`h`", "first axis", "[7,4]"]),
    ("a result of the wrong shape", |p| edit(p, "y", Shape([9, 4, 1, 1])), "Inconsistent", &["`y`", "[9,4]", "[8,4]"]),
    (
        "a result of the wrong dtype",
        |p| edit(p, "y", DType::F16),
        "Inconsistent",
        &["`y`", "f16", "insert a description"],
    ),
    (
        "a result with strides",
        |p| edit(p, "y", Strides([4, 4, 4, 4])),
        "Inconsistent",
        &["`y`", "insert a description"],
    ),
    (
        "a leaf above all numbers",
        |p| edit(p, "rows", (Shape([u64::MAX, 4, 1, 1]), Strides([4, u64::MAX, 1, 1]))),
        "Shape",
        &["`rows`", "use smaller axes"],
    ),
    ("another op", |p| edit(p, "r", Op::SumRows {}), "Inconsistent", &["`r`", "[1,2]"]),
    (
        "a view outside its source",
        |p| edit(p, "v", Op::View { offset: 1 << 20, shape: Shape([8, 2, 1, 1]), strides: None }),
        "Op",
        &["`v`", "inside its source"],
    ),
    (
        "a view at the end of all numbers",
        |p| edit(p, "v", Op::View { offset: u64::MAX, shape: Shape([8, 2, 1, 1]), strides: None }),
        "Op",
        &["`v`"],
    ),
    ("a view that claims none", |p| view_of(p, "v", None, 0), "WrongView", &["`v`", "`ViewSrc`", "insert"]),
    ("a view with another offset", |p| view_of(p, "v", Some("h"), 4), "WrongView", &["`v`", "`ViewSrc`"]),
    ("a view with another root", |p| view_of(p, "v", Some("x"), 0), "WrongView", &["`v`", "`ViewSrc`"]),
    ("no view that claims to be one", |p| view_of(p, "r", Some("h"), 0), "WrongView", &["`r`", "`ViewSrc`"]),
    ("a leaf that claims to be a view", |p| view_of(p, "x", Some("w"), 0), "WrongView", &["`x`", "`ViewSrc`"]),
    ("a writer away from its target", |p| view_of(p, "set", Some("w"), 0), "WrongView", &["`set`", "`ViewSrc`"]),
    (
        "memory behind its buffer",
        |p| stored(p, "w", "w", 4),
        "OutsideBuffer",
        &["`w`", "4..260", "`gpu.weights`", "256", "smaller offset or a larger buffer"],
    ),
    ("memory at the end of all numbers", |p| stored(p, "w", "w", u64::MAX), "OutsideBuffer", &["`w`", "`gpu.weights`"]),
    (
        "memory in something that is no buffer",
        |p| edit(p, "w", StoredIn(Some(Stored { buffer: p.graph, offset_bytes: 0 }))),
        "MissingBuffer",
        &["`w`", "load it again"],
    ),
    (
        "two tensors in one place, one written",
        |p| stored(p, "w", "cache", 0),
        "OverlappingMemory",
        &["`cache`", "`w`", "make one a view"],
    ),
    ("an unknown backend", |p| edit(p, "s", Pinned(Some(BackendIndex(9)))), "PinUnknown", &["`s`", "9", "from 0 to 1"]),
    (
        "the last of all backends",
        |p| edit(p, "s", Pinned(Some(BackendIndex(u32::MAX)))),
        "PinUnknown",
        &["`s`", "4294967295"],
    ),
    (
        "a pin away from memory",
        |p| edit(p, "w", Pinned(Some(BackendIndex(1)))),
        "PinConflict",
        &["`w`", "`cpu`", "`gpu.weights`", "remove one of the pins"],
    ),
    ("no backend at all", |p| p.world.resource_mut::<Backends>().0.clear(), "NoBackends", &["add one", "host memory"]),
    (
        "a machine without its host",
        |p| drop(p.world.resource_mut::<Backends>().0.pop()),
        "LastNotHost",
        &["`gpu`", "the last must be on host memory"],
    ),
    (
        "a host that is not the last",
        |p| p.world.resource_mut::<Backends>().0.reverse(),
        "LastNotHost",
        &["`gpu`", "gpu memory", "the last must be on host memory"],
    ),
];

/// Each edit is answered before the first plan, and after a good one; taken back, the graph plans as if nothing had been.
#[test]
fn edited_components_are_named_with_what_to_do() {
    for (what, edit, kind, words) in EDITS {
        for planned_before in [false, true] {
            let mut planned = spawn(BASE);
            if planned_before {
                outcome(&mut planned).expect("it is good");
            }
            edit(&mut planned);
            let error = outcome(&mut planned).expect_err(what);
            assert_eq!(error.kind(), *kind, "{what}: {error}");
            let message = error.to_string();
            for word in *words {
                assert!(message.contains(word), "{what}: `{word}` is not in: {message}");
            }
            // The old plan is never taken for one of what is there now.
            assert_eq!(outcome(&mut planned).expect_err(what), error, "{what}");
        }
    }
}

/// Edits that are odd and legal: a plan that is proved, or an error of the planner's own.
#[test]
fn odd_edits_give_a_plan_or_an_error() {
    let edits: &[(&str, Edit, bool)] = &[
        ("no copies", |p| on_graph(p, PipelineCopies(0)), true),
        ("all copies", |p| on_graph(p, PipelineCopies(u32::MAX)), true),
        ("nothing wanted", |p| on_graph(p, Wanted(vec![])), true),
        (
            "one thing wanted twice",
            |p| {
                let y = tensor(p, "y");
                p.world.entity_mut(p.graph).insert(Wanted(vec![y, y]));
            },
            true,
        ),
        (
            "a tensor listed twice",
            |p| {
                let mut tensors = p.world.get::<GraphTensors>(p.graph).expect("a graph").clone();
                tensors.0.extend(tensors.0.clone());
                p.world.entity_mut(p.graph).insert(tensors);
            },
            false,
        ),
        (
            "the order reversed",
            |p| {
                let mut tensors = p.world.get::<GraphTensors>(p.graph).expect("a graph").clone();
                tensors.0.reverse();
                p.world.entity_mut(p.graph).insert(tensors);
            },
            false,
        ),
        ("an empty graph", |p| on_graph(p, (GraphTensors(vec![]), Wanted(vec![]))), true),
        (
            "an input that is an output",
            |p| edit(p, "x", TensorFlags { input: true, output: true, ..TensorFlags::default() }),
            true,
        ),
        (
            "weights that are an input",
            |p| edit(p, "w", TensorFlags { input: true, output: true, ..TensorFlags::default() }),
            false,
        ),
        ("a leaf with operands", |p| sources(p, "x", &["w", "cache"]), false),
        ("a node without its op", |p| edit(p, "h", Op::None {}), false),
        ("an empty leaf with huge strides", |p| edit(p, "rows", (Shape([0, 1, 1, 1]), Strides([u64::MAX; 4]))), false),
        ("a leaf whose rows are all one", |p| edit(p, "x", Strides([4, 0, 0, 0])), false),
        (
            "names that are all one",
            |p| {
                for name in ["h", "v", "r", "s"] {
                    edit(p, name, entensor_components::TensorName("y".into()));
                }
            },
            true,
        ),
        (
            "two backends of one name",
            |p| {
                let backends = &mut p.world.resource_mut::<Backends>().0;
                let host = std::sync::Arc::clone(&backends[1]);
                backends.insert(1, host);
            },
            true,
        ),
    ];
    for (what, edit, plans) in edits {
        for planned_before in [false, true] {
            let mut planned = spawn(BASE);
            if planned_before {
                outcome(&mut planned).expect("it is good");
            }
            edit(&mut planned);
            match outcome(&mut planned) {
                Ok(_) => {}
                Err(error) => {
                    assert!(!plans, "{what}: {error}");
                    let own = matches!(
                        error,
                        PlanError::Unplaced { .. } | PlanError::Misplaced { .. } | PlanError::Run { .. }
                    );
                    assert!(!own, "{what}: {error}");
                }
            }
        }
    }
}

/// A leaf is no view, so it has no place in another's memory either.
#[test]
fn a_leaf_with_an_offset_is_refused() {
    for offset_bytes in [1, 4, u64::MAX] {
        for leaf in ["x", "w", "cache", "rows"] {
            let mut planned = spawn(BASE);
            view_of(&mut planned, leaf, None, offset_bytes);
            let error = outcome(&mut planned).expect_err("a leaf is its own root");
            assert_eq!(error.kind(), "WrongView", "{error}");
            assert_eq!(error.node(), Some(leaf));
        }
    }
}

/// What an op makes is not what the user writes: a computed node that is marked as an input is refused by name.
#[test]
fn a_computed_input_is_refused() {
    for node in ["h", "v", "r", "set", "s", "y"] {
        for output in [false, true] {
            let mut planned = spawn(BASE);
            edit(&mut planned, node, TensorFlags { input: true, output, ..TensorFlags::default() });
            let error = outcome(&mut planned).expect_err("it is computed");
            assert_eq!(error.node(), Some(node), "{error}");
        }
    }
}

/// What a system edits between the passes comes too late for that plan, but not for the next one.
#[test]
fn edits_between_two_passes_are_in_the_next_plan() {
    for gap in 1..GAPS {
        let mut planned = spawn(BASE);
        let (s, armed) = (tensor(&planned, "s"), AtomicBool::new(true));
        planned.schedule.add_systems(in_gap(gap, move |world| {
            if armed.swap(false, Ordering::Relaxed) {
                world.entity_mut(s).insert(Pinned(Some(BackendIndex(1))));
            }
        }));
        let pin = |plan: &Plan| plan.node(plan.find("s").expect("it is wanted")).pin;
        assert_eq!(pin(&outcome(&mut planned).expect("it is good")), None, "gap {gap}");
        assert_eq!(pin(&outcome(&mut planned).expect("it may be there")), Some(1), "gap {gap}");
    }
}
