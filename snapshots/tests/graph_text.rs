//! The `.graph` text: round trips, faults with their places, other machines, and text from running worlds.

mod common;

use bevy_ecs::prelude::*;
use common::{Planned, fixture, fixtures};
use entensor::graph_text::{GraphError, GraphText, GraphTextProblem};
use entensor_components::{GraphTensors, TensorName};
use proptest::prelude::*;

#[test]
fn printing_and_reading_round_trip() {
    for (name, text) in fixtures() {
        let text = common::parse(&name, &text);
        let printed = text.to_string();
        let again = common::parse(&name, &printed);
        assert_eq!(again, text, "{name}");
        assert_eq!(again.to_string(), printed, "{name}: the canonical text is a fixed point");
    }
}

#[test]
fn a_spawned_graph_is_captured_as_the_text_it_came_from() {
    for (name, text) in fixtures() {
        let text = common::parse(&name, &text);
        let mut world = World::new();
        let graph = text.spawn(&mut world).expect("fixtures fit their machines");
        let captured = GraphText::from_graph(&world, graph).expect("text made it, so text can say it");
        // A real backend's refusals have no words; all else of the machine comes back.
        for (captured, declared) in captured.machine().iter().zip(text.machine()) {
            assert_eq!(captured.capabilities, declared.capabilities, "{name}");
        }
        assert_eq!(captured.with_machine(&text).expect("the names are the same"), text, "{name}");
    }
}

#[test]
fn a_plan_is_captured_as_the_graph_that_it_needs() {
    for (name, text) in fixtures() {
        let text = common::parse(&name, &text);
        let Ok(plan) = Planned::new(&text).result() else { continue };
        let captured = GraphText::from_plan(&name, &plan).expect("text made it, so text can say it");
        let again = Planned::new(&captured.with_machine(&text).expect("the names are the same"));
        let plan_again = again.expect();
        let places = |plan: &entensor_systems::Plan| {
            plan.nodes().map(|n| (n.name.to_string(), n.backend, n.cause)).collect::<Vec<_>>()
        };
        assert_eq!(places(&plan_again), places(&plan), "{name}");
        assert_eq!(plan_again.splits, plan.splits, "{name}");
        assert_eq!(plan_again.planned_bytes(), plan.planned_bytes(), "{name}");
    }
}

#[test]
fn another_machine_takes_the_graph() {
    let text = fixture("offload");
    let machine =
        GraphText::parse("m.graph", "backend a\nbackend b memory=host\nbackend host").expect("a machine is a text");
    let moved = text.with_machine(&machine).expect("host weights go to the host");
    assert_eq!(moved.machine(), machine.machine());
    assert!(moved.to_string().contains("weight w f32 [64,64] on host\n"), "{moved}");
    assert_eq!(common::parse("offload", &moved.to_string()), moved);
    Planned::new(&moved).expect();
    let error = fixture("kv_cache").with_machine(&machine).expect_err("there is no gpu");
    assert!(matches!(&error, GraphError::NotOnMachine { backend, .. } if &**backend == "gpu"), "{error}");
    assert_eq!(
        error.to_string(),
        "buffer `kv` is on backend `gpu`, which the other machine lacks; add a `backend gpu` line there, or change the graph"
    );
}

#[test]
fn names_that_text_cannot_hold_are_made_fit_and_stay_unique() {
    let mut world = World::new();
    let graph = fixture("one_node").spawn(&mut world).expect("it fits");
    let tensors = world.get::<GraphTensors>(graph).expect("it has tensors").0.clone();
    world.entity_mut(tensors[0]).insert(TensorName("a b#1".into()));
    world.entity_mut(tensors[1]).insert(TensorName("a_b_1".into()));
    let captured = GraphText::from_graph(&world, graph).expect("names are no obstacle");
    assert_eq!(captured.tensors().iter().map(|t| &*t.name).collect::<Vec<_>>(), ["a_b_1", "a_b_1.2"]);
    assert_eq!(common::parse("one_node", &captured.to_string()), captured);
    assert!(world.despawn(tensors[0]));
    assert!(matches!(GraphText::from_graph(&world, graph), Err(GraphError::Gone { .. })));
    assert!(matches!(GraphText::from_graph(&world, tensors[1]), Err(GraphError::Gone { .. })));
}

#[test]
fn weights_above_the_largest_buffer_go_to_several() {
    let text = "backend gpu max_buffer=600 align=256\nbackend cpu\n";
    let weights: String = (0..3).map(|i| format!("weight w{i} f32 [64] on gpu\n")).collect();
    let text =
        common::parse("chunks", &format!("{text}{weights}input x f32 [64]\na = add x w0\nb = add a w1\nc = add b w2"));
    let planned = Planned::new(&text);
    let names: Vec<String> = planned.expect().existing.iter().map(|b| format!("{} {}", b.name, b.size_bytes)).collect();
    assert_eq!(names, ["gpu.weights 512", "gpu.weights.1 256"]);
    let captured = GraphText::from_graph(&planned.world, planned.graph).expect("weights are weights again");
    assert_eq!(captured, text);
    let large = common::parse("large", "backend gpu max_buffer=600\nbackend cpu\nweight w f32 [1K] on gpu");
    assert!(matches!(
        large.spawn(&mut World::new()),
        Err(GraphError::TooLarge { size_bytes: 4096, max_bytes: 600, .. })
    ));
}

/// Text, line:column, and words of the message.
const FAULTS: &[(&str, &str, &str)] = &[
    ("", "1:1", "add a line `backend cpu memory=host`"),
    ("input x f32 [4]", "1:1", "there is no backend"),
    ("backend gpu memory=device0", "1:9", "the last must have memory=host"),
    ("backend a\nbackend A", "2:9", "backend `A` is defined a second time, first in line 1"),
    ("backend cpu speed=9", "1:13", "unknown word `speed=9`"),
    ("backend cpu events events", "1:20", "`events` is given a second time"),
    ("backend cpu align=48", "1:19", "a power of two"),
    ("backend cpu align=2G", "1:19", "a power of two up to 1G"),
    ("backend cpu pad=0", "1:17", "from 1 to 1G"),
    ("backend cpu max_buffer=-1", "1:24", "a number, such as 512 or 4K"),
    ("backend cpu ops=all,-frob", "1:21", "unknown op `frob`; use one of add, "),
    ("backend cpu ops=all,-view", "1:21", "every backend supports view ops"),
    ("backend cpu ops=add,-mul", "1:21", "`all,-OP,…` or `OP,…`"),
    ("backend cpu dtypes=f32", "1:20", "`all` or `all,-T,…`"),
    ("backend cpu dtypes=all,-q4_X", "1:24", "unknown dtype `q4_X`"),
    ("backend", "1:8", "the backend's name is missing"),
    ("backend a=b", "1:9", "`a=b` is no name"),
    ("backend cpu\nfoo x", "2:1", "unknown word `foo`; start a line with `backend`"),
    ("backend cpu\ny=relu x", "2:1", "spaces around `=`"),
    ("backend cpu\nbuffer b on gpu", "2:13", "backend `gpu` is not defined before this line; there are cpu"),
    ("backend cpu\nbuffer b in cpu", "2:10", "write `buffer NAME on BACKEND"),
    ("backend cpu\nbuffer b on cpu usage=much", "2:23", "`weights`, `any` or `compute`"),
    ("backend cpu\ntensor t f32 [4] in b", "2:21", "define a buffer first"),
    ("backend cpu\ninput x q9_9 [4]", "2:9", "unknown dtype `q9_9`; use one of f32"),
    ("backend cpu\ninput x f32 4", "2:13", "one to four numbers"),
    ("backend cpu\ninput x f32 [1,2,3,4,5]", "2:13", "one to four numbers"),
    ("backend cpu\ninput x q8_0 [33]", "2:14", "must be a multiple of 32"),
    ("backend cpu\ninput x f32 [16G,16G]", "2:13", "use smaller axes"),
    ("backend cpu\ninput x f32", "2:12", "the shape is missing"),
    ("backend cpu\ninput x f32 [4] f32", "2:17", "unknown word `f32`"),
    ("backend cpu\ninput output f32 [4]", "2:7", "not the word `output`"),
    ("backend cpu\ninput x f32 [4]\ninput x f32 [4]", "3:7", "tensor `x` is defined a second time, first in line 2"),
    ("backend cpu\ninput x f32 [4]\ny = frob x", "3:5", "unknown op `frob`"),
    ("backend cpu\ninput x f32 [4]\ny = none", "3:5", "unknown op `none`"),
    ("backend cpu\ny = relu z", "2:10", "tensor `z` is not defined before this line"),
    ("backend cpu\ninput x f32 [4]\ny = add x", "3:5", "`add` takes 2 operands (a, b), not 1"),
    ("backend cpu\ninput x f32 [4]\ny = scale x by=two", "3:16", "a number, such as 0.125 or inf"),
    ("backend cpu\ninput x f32 [4]\ny = scale x by=2 by=3", "3:18", "`by` is given a second time"),
    ("backend cpu\ninput x f32 [4]\ny = scale x frob=2", "3:13", "`scale` has no parameter `frob`; it has by"),
    ("backend cpu\ninput x f32 [4]\ny = relu x shape=[4]", "3:12", "`relu` has no parameter `shape`; it has none"),
    ("backend cpu\ninput x f32 [4]\ny = view x shape=[8]", "3:5", "the view must lie inside its source"),
    ("backend cpu\ninput x f32 [4]\ny = relu x output now", "3:19", "unknown word `now`"),
    ("backend cpu\ninput x f32 [4]\ny = relu x pin=gpu", "3:16", "backend `gpu` is not defined"),
    ("backend cpu\ninput a f32 [4,4]\ninput b f32 [8,4]\ny = mul_mat a b", "4:5", "the same first axis"),
    ("backend cpu\ninput x f32 [4]\ny = roll x shifts=[1,2]", "3:19", "four whole numbers, such as [0,-1,0,0]"),
    ("backend cpu\ninput x f32 [4]\ny = upscale x ne=[8] mode=cubic", "3:27", "`nearest` or `bilinear`"),
    ("backend cpu\ninput x f32 [4]\ny = upscale x ne=[8] align_corners=1", "3:36", "`true` or `false`"),
    ("backend cpu\ninput x f32 [4]\ny = cast x dtype=i32", "3:5", "not of integers"),
    ("backend cpu\na = arange step=0", "2:5", "must not be 0"),
    ("backend cpu\ninput x f32 [4]\npin x cpu\npin x cpu", "4:5", "`pin x` is given a second time"),
    ("backend cpu\ncopies 0", "2:8", "a number from 1 to 1024"),
    ("backend cpu\ncopies 2\ncopies 2", "3:1", "`copies` is given a second time"),
    ("backend cpu\nrun x", "2:5", "tensor `x` is not defined"),
    ("backend cpu\ninput x f32 [4]\nrun x\nrun x", "4:1", "`run` is given a second time"),
    ("backend cpu\ninput x f32 [4]\nrun x, x", "3:8", "`x` is given a second time"),
    ("backend cpu\nrun", "2:4", "what to run is missing"),
];

#[test]
fn faults_name_file_line_column_and_the_fix() {
    for &(text, place, words) in FAULTS {
        let error = GraphText::parse("dir/f.graph", text).expect_err(text);
        let message = error.to_string();
        if !words.is_empty() {
            assert!(message.starts_with(&format!("dir/f.graph:{place}: ")), "{text:?}: {message}");
        }
        assert!(message.contains(words), "{text:?}: {message}");
    }
    let error = GraphText::parse("f", "backend cpu\ninput x f32 [4]\ny = add x x x").expect_err("three operands");
    assert!(matches!(*error.problem, GraphTextProblem::Op(_)), "{error}");
}

#[test]
fn blanks_comments_and_suffixes_are_free() {
    let text = GraphText::parse(
        "f",
        "\n  backend cpu max_buffer=4K # host\r\n\tinput x f32 [ 1K , 2 ]\ny = relu x\nrun x , y,\n",
    );
    let text = text.expect("all of it is allowed");
    assert_eq!(text.to_string(), "backend cpu max_buffer=4096\ninput x f32 [1024,2]\ny = relu x\nrun x,y\n");
    // ggml's dtypes can be refused before the dtype table has them.
    let text = GraphText::parse("f", "backend cpu dtypes=all,-q6_K,-iq3_s ops=mul_mat,add,view").expect("allowed");
    assert_eq!(text.to_string(), "backend cpu ops=add,mul_mat dtypes=all,-iq3_s,-q6_K\n");
}

/// A fixture with some of its characters replaced, removed or doubled.
fn mutated() -> impl Strategy<Value = String> {
    let texts: Vec<String> = fixtures().into_iter().map(|(_, text)| text).collect();
    let edits = proptest::collection::vec((any::<prop::sample::Index>(), 0..4_u8, "[ -~äK#=,\\[\\]\n]"), 1..6);
    (proptest::sample::select(texts), edits).prop_map(|(text, edits)| {
        let mut chars: Vec<char> = text.chars().collect();
        for (at, edit, with) in edits {
            if chars.is_empty() {
                break;
            }
            let at = at.index(chars.len());
            match edit {
                0 => drop(chars.remove(at)),
                1 => chars.extend(with.chars()),
                2 => chars.splice(at..at, with.chars()).for_each(drop),
                _ => chars.splice(at..=at, with.chars()).for_each(drop),
            }
        }
        chars.into_iter().collect()
    })
}

/// Whatever can be read round-trips, and can be spawned and planned or says why not.
fn never_panics(text: &str) {
    match GraphText::parse("any.graph", text) {
        Ok(graph) => {
            let printed = graph.to_string();
            assert_eq!(GraphText::parse("any.graph", &printed).as_ref(), Ok(&graph), "{printed}");
            let mut world = World::new();
            if let Ok(entity) = graph.spawn(&mut world) {
                let schedule = entensor_systems::plan_schedule(entensor_systems::Recording::On);
                let mut planned = Planned { world, graph: entity, schedule };
                planned.plan();
                if let Ok(plan) = planned.result() {
                    entensor_systems::verify(&plan).expect("plans are legal");
                }
            }
        }
        Err(error) => assert!(error.to_string().starts_with("any.graph:"), "{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        never_panics(&text);
    }

    #[test]
    fn texts_of_known_words_never_panic(
        words in proptest::collection::vec(
            proptest::sample::select(vec![
                "backend", "buffer", "tensor", "weight", "input", "scratch", "pin", "copies", "run", "cpu", "x", "y", "=",
                "relu", "view", "f32", "q8_0", "[32]", "[0,4]", "on", "in", "output", "shape=[16]", "offset=4", "memory=host",
                "ops=all,-relu", "18446744073709551615", "[18446744073709551615]", "pad=17179869183G", "align=8G", "\n", "\n",
            ]),
            0..60,
        )
    ) {
        never_panics(&words.join(" "));
    }

    #[test]
    fn damaged_fixtures_never_panic(text in mutated()) {
        never_panics(&text);
    }
}
