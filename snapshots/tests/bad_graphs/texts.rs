//! Texts that read well and ask for what cannot be, or for next to nothing.

use std::sync::Arc;

use bevy_ecs::prelude::*;
use entensor::{
    Engine, EngineError,
    graph_text::{GraphError, GraphText},
};
use entensor_components::{Backend, Capabilities, MemoryKind};
use entensor_null::{NullBackend, NullConfig};
use entensor_oracle::OracleBackend;

use super::{common, outcome, spawn};

fn plan_of(text: &str) -> Result<Arc<entensor_systems::Plan>, entensor_systems::PlanError> {
    outcome(&mut spawn(text))
}

fn null(name: &str, memory: MemoryKind) -> Arc<dyn Backend> {
    let capabilities = Capabilities { reads: vec![memory.clone()], memory, ..Capabilities::host() };
    Arc::new(NullBackend::new(NullConfig { capabilities, ..NullConfig::host(name) }))
}

#[test]
fn machines_that_cannot_be() {
    let device = || null("gpu", MemoryKind("device0".into()));
    let host = || null("cpu", MemoryKind::host());
    let twice = Engine::builder().backend_instance(host()).backend_instance(null("CPU", MemoryKind::host())).build();
    let error = twice.err().expect("two of one name");
    assert_eq!(error.to_string(), "two backends are named `CPU`; give one of them another name");
    let twice = Engine::builder().backend("oracle").backend("oracle").build();
    assert!(matches!(twice, Err(EngineError::Registry(_))));
    for backends in [vec![device()], vec![host(), device()]] {
        let mut builder = Engine::builder();
        for backend in backends {
            builder = builder.backend_instance(backend);
        }
        // Said when the engine is made, or when the first graph is planned.
        let Ok(mut engine) = builder.build() else { continue };
        let mut g = entensor::GraphBuilder::new("g");
        let x = g.input("x", entensor::DType::F32, &[4]).expect("a small input");
        let y = g.relu(x).expect("shapes fit");
        g.output("y", y).expect("a free name");
        let graph = engine.add_graph(g);
        let error = engine.plan(graph).expect_err("nobody can write inputs");
        assert_eq!(error.kind(), "LastNotHost");
        assert!(error.to_string().contains("`gpu`") && error.to_string().contains("must be on host memory"), "{error}");
    }
    let text = common::parse("two", "backend a\nbackend cpu\ninput x f32 [4]\ny = relu x");
    let error = text.spawn_on(&mut World::new(), vec![host()]).expect_err("one is missing");
    assert!(matches!(error, GraphError::BackendCount { declared: 2, given: 1 }), "{error}");
    assert!(error.to_string().contains("give one for each `backend` line"), "{error}");
}

/// Text, the error's kind, and words of its message: the culprit, and what to do.
const REFUSED: &[(&str, &str, &[&str])] = &[
    (
        "backend gpu max_buffer=64\nbackend cpu max_buffer=64\ninput x f32 [17]\ny = relu x",
        "TensorTooLarge",
        &["`x`", "68 bytes", "`cpu`", "64", "make it smaller or pin it elsewhere"],
    ),
    (
        "backend cpu max_buffer=64\ninput x f32 [4]\nb = repeat x shape=[4,5]\ny = sum b",
        "TensorTooLarge",
        &["`b`", "80 bytes", "`cpu`"],
    ),
    (
        "backend gpu max_buffer=64\nbackend cpu\ninput x f32 [17]\ny = relu x pin=gpu",
        "TensorTooLarge",
        &["68 bytes", "`gpu`", "pin it elsewhere"],
    ),
    (
        "backend cpu max_buffer=64 pad=100\ninput x f32 [1]\ny = relu x",
        "TensorTooLarge",
        &["`x`", "100 bytes", "`cpu`"],
    ),
    ("backend cpu max_buffer=0\ninput x f32 [1]\ny = relu x", "TensorTooLarge", &["`x`", "4 bytes"]),
    (
        "backend gpu ops=relu\nbackend cpu ops=relu\ninput x f32 [4]\ny = silu x",
        "NoBackend",
        &["`y`", "silu", "gpu: the op silu", "cpu: the op silu", "add a backend that can"],
    ),
    (
        "backend gpu ops=relu\nbackend cpu\ninput x f32 [4]\ny = silu x pin=gpu",
        "PinUnsupported",
        &["`y`", "silu", "`gpu`", "unpin it or pin it elsewhere"],
    ),
    ("backend cpu\ninput x f32 [4]\nv = view x shape=[2]\ny = relu v\npin x cpu\npin v cpu\nbuffer b on cpu", "", &[]),
    (
        "backend gpu\nbackend cpu\ninput x f32 [4]\nv = view x shape=[2]\ny = relu v\npin x cpu\npin v gpu",
        "PinConflict",
        &["`v`", "`gpu`", "`x`", "`cpu`", "remove one of the pins"],
    ),
    (
        "backend gpu\nbackend cpu\ninput x f32 [4]\nscratch s f32 [4]\na = cpy x s pin=gpu\nb = cpy x s pin=cpu\ny = add a b",
        "PinConflict",
        &["`b`", "`s`", "remove one of the pins"],
    ),
    (
        "backend gpu ops=all,-set_rows\nbackend cpu\nbuffer kv on gpu\ntensor c f32 [4,4] in kv\ninput x f32 [4,1]\ninput r i32 [1]\ny = set_rows c x r",
        "Immovable",
        &["`y`", "set_rows", "`c`", "`kv`", "gpu: the op set_rows", "cpu: it cannot use gpu memory"],
    ),
    (
        "backend gpu max_inputs=1\nbackend cpu\ninput a f32 [4]\ninput b f32 [4]\ny = add a b pin=gpu",
        "TooManyInputs",
        &["`y`", "2 copies", "`gpu`", "at most 1", "pin it elsewhere"],
    ),
    (
        "backend cpu\ninput x f32 [1G,1G]\na = relu x\nb = add a x\ny = add a b output",
        "TooMuchMemory",
        &["smaller shapes or fewer copies"],
    ),
    ("backend cpu\ninput x f32 [1G,1G]\ny = relu x\ncopies 1024", "TooMuchMemory", &["smaller shapes or fewer copies"]),
];

#[test]
fn texts_that_ask_for_what_cannot_be_are_told_what_to_change() {
    for (text, kind, words) in REFUSED {
        let result = plan_of(text);
        let Err(error) = result else {
            assert_eq!(*kind, "", "{text}");
            continue;
        };
        assert_eq!(error.kind(), *kind, "{error}\n{text}");
        for word in *words {
            assert!(error.to_string().contains(word), "`{word}` is not in: {error}\n{text}");
        }
    }
    let error = common::parse(
        "large",
        "backend gpu max_buffer=64\nbackend cpu max_buffer=64\nweight w f32 [17] on cpu\ny = relu w",
    )
    .spawn(&mut World::new())
    .expect_err("no buffer holds it");
    assert!(matches!(&error, GraphError::TooLarge { tensor, .. } if &**tensor == "w"), "{error}");
    assert!(error.to_string().contains("make it smaller or put it elsewhere"), "{error}");
}

/// Text, and how many nodes and splits its plan has: little, and odd, and good.
const ACCEPTED: &[(&str, usize, usize)] = &[
    ("backend cpu", 0, 0),
    ("backend gpu\nbackend cpu\ncopies 3", 0, 0),
    // Leaves that nobody uses are left out, unless they are wanted.
    ("backend cpu\ninput x f32 [4]\nweight w f32 [4] on cpu\nscratch s f32 [4]", 0, 0),
    ("backend cpu\ninput x f32 [4]\nweight w f32 [4] on cpu\nscratch s f32 [4]\nrun x,w,s", 3, 0),
    ("backend cpu\ninput x f32 [4]\ninput idle f32 [4]\nweight w f32 [4] on cpu\ny = relu x", 2, 1),
    ("backend gpu\nbackend cpu\ninput x f32 [4]\ny = relu x\nrun x", 1, 0),
    // Only views: nothing runs, and what is wanted has memory.
    ("backend cpu\ninput x f32 [8]\nv = view x shape=[4]\nu = reshape v shape=[2,2]\nt = transpose u output", 4, 0),
    ("backend gpu\nbackend cpu\nweight w f32 [8] on gpu\nv = view w shape=[4]\nu = reshape v shape=[2,2]", 3, 0),
    ("backend cpu\nscratch s f32 [8]\nv = view s offset=16 shape=[4]", 2, 0),
    // Nothing has no bytes, and is computed all the same.
    ("backend cpu\ninput x f32 [0]\ny = relu x", 2, 1),
    ("backend cpu\ninput x f32 [4,0]\nweight w f32 [4,3] on cpu\ny = mul_mat w x", 3, 1),
    ("backend cpu\ninput x f32 [4,3]\nweight w f32 [4,0] on cpu\ny = mul_mat w x", 3, 1),
    ("backend cpu\ninput x f32 [0,3]\nweight w f32 [0,2] on cpu\ny = mul_mat w x", 3, 1),
    (
        "backend gpu\nbackend cpu\ninput x f32 [0,5]\na = relu x pin=gpu\nb = silu a pin=cpu\ny = add b a pin=gpu\ncopies 4",
        4,
        3,
    ),
    ("backend cpu\ninput x f32 [4,4]\nv = view x shape=[4,0]\nc = cont v\ns = sum c\ny = add s s", 5, 1),
    ("backend cpu max_buffer=0\ninput x f32 [0]\ny = relu x", 2, 1),
    ("backend cpu\nbuffer b on cpu\ntensor t f32 [0,4] in b\ninput x f32 [0,4]\ny = cpy x t", 3, 1),
];

#[test]
fn texts_that_ask_for_next_to_nothing_are_planned_and_run() {
    for (source, nodes, splits) in ACCEPTED {
        let plan = plan_of(source).unwrap_or_else(|error| panic!("{error}\n{source}"));
        assert_eq!((plan.node_count(), plan.splits.len()), (*nodes, *splits), "{source}");
        // The same with real memory and real kernels.
        let text = common::parse("small", source);
        let mut world = World::new();
        let oracle = |line: &entensor::graph_text::BackendText| {
            Arc::new(OracleBackend::with_capabilities(line.name.to_string(), line.capabilities.clone()))
                as Arc<dyn Backend>
        };
        let graph = text.spawn_on(&mut world, text.machine().iter().map(oracle).collect()).expect("it fits");
        let schedule = entensor_systems::plan_schedule(entensor_systems::Recording::Off);
        let mut planned = super::Planned { world, graph, schedule };
        let plan = outcome(&mut planned).unwrap_or_else(|error| panic!("{error}\n{source}"));
        let binding = &planned.world.get::<entensor_systems::GraphPlan>(graph).expect("it is planned").binding;
        for slot in 0..text.copies() {
            entensor_systems::run_plan(&plan, binding, slot).unwrap_or_else(|error| panic!("{error}\n{source}"));
        }
        let captured = GraphText::from_plan("again", &plan);
        assert!(captured.is_ok(), "{source}");
    }
}

/// The number of slots is the user's, and so must not decide how much memory planning itself takes.
#[test]
fn more_slots_than_a_plan_can_hold_are_refused() {
    let mut source = String::from("backend gpu\nbackend cpu\ncopies 1024\ninput x f32 [4]\nn0 = relu x\n");
    for i in 1..2500 {
        source += &format!("n{i} = relu n{} pin={}\n", i - 1, if i % 2 == 0 { "gpu" } else { "cpu" });
    }
    let error = plan_of(&source).expect_err("five million copies and splits");
    assert_eq!(error.kind(), "TooManyCopies", "{error}");
    assert!(error.to_string().contains("1024 pipelined slots") && error.to_string().contains("use fewer copies"));
    let fewer = source.replace("copies 1024", "copies 4");
    assert_eq!(plan_of(&fewer).expect("it fits").programs.len(), 4);
}

/// A private layout is of use only to who understands it and reaches its memory.
#[test]
fn a_private_layout_stays_with_who_can_read_its_memory() {
    let plan = plan_of(
        "backend b0 memory=m0 buffer_type=t\nbackend b1 memory=m1 buffer_type=t\nbackend cpu\nbuffer u on b1 opaque\n\
         tensor w f32 [4,4] in u\ninput x f32 [4]\na = mul_mat w x output",
    );
    let plan = plan.expect("b1 can run it");
    let a = plan.node(plan.find("a").expect("it is wanted"));
    assert_eq!(&*plan.backends[a.backend as usize].name, "b1");
}
