//! Inputs that runs consume: less memory, written before every run, never read where others have been since.

use entensor::{DType, Engine, EngineError, GraphBuilder, GraphId, Tensor};

const LEN: usize = 64;

/// `y = relu(silu(x)) + x`, whose plan holds one tensor less where `x` is consumed.
fn graph(engine: &mut Engine, consumed: bool, copies: u32) -> (GraphId, Tensor, Tensor) {
    let mut g = GraphBuilder::new("g");
    g.pipeline_copies(copies);
    let dims = [LEN as u64];
    let x = if consumed { g.consumed_input("x", DType::F32, &dims) } else { g.input("x", DType::F32, &dims) };
    let x = x.expect("a small input");
    let silu = g.silu(x).expect("fits");
    let sum = g.add(silu, x).expect("fits");
    let y = g.relu(sum).expect("fits");
    g.output("y", y).expect("a new name");
    (engine.add_graph(g), x, y)
}

fn engine() -> Engine {
    Engine::builder().backend("cpu:threads=1").verify_plans(true).build().expect("the host is always there")
}

#[test]
fn a_consumed_input_gives_its_memory_to_a_result() {
    let mut engine = engine();
    let mut planned_bytes = |consumed| {
        let (graph, ..) = graph(&mut engine, consumed, 1);
        engine.plan(graph).expect("legal");
        let plan = engine.plan_of(graph).expect("planned");
        assert_eq!(plan.planned_bytes(), plan.lower_bound_bytes);
        plan.planned_bytes()
    };
    let tensor_bytes = 4 * LEN as u64;
    assert_eq!(planned_bytes(false), 2 * tensor_bytes);
    assert_eq!(planned_bytes(true), 2 * tensor_bytes, "`x` is read beside `silu(x)`");
    let mut g = GraphBuilder::new("chain");
    let x = g.consumed_input("x", DType::F32, &[LEN as u64]).expect("a small input");
    let y = g.silu(x).expect("fits");
    g.output("y", y).expect("a new name");
    let chain = engine.add_graph(g);
    engine.plan(chain).expect("legal");
    assert_eq!(engine.plan_of(chain).expect("planned").planned_bytes(), tensor_bytes);
}

#[test]
fn every_run_wants_its_consumed_inputs_written_and_gives_what_kept_ones_give() {
    for copies in [1, 2, 4] {
        let (mut kept_engine, mut engine) = (engine(), engine());
        let (kept_graph, kept_x, kept_y) = graph(&mut kept_engine, false, copies);
        let (graph, x, y) = graph(&mut engine, true, copies);
        for round in 0..5_u8 {
            let unwritten = engine.run(graph).expect_err("nothing was written for this run");
            assert!(matches!(unwritten, EngineError::InputNotWritten { .. }), "{unwritten}");
            let values: Vec<f32> = (0..LEN).map(|i| i as f32 / 7.0 - f32::from(round)).collect();
            kept_engine.write(kept_graph, kept_x, &values).expect("an input");
            kept_engine.run(kept_graph).expect("runs");
            engine.write(graph, x, &values).expect("an input");
            engine.run(graph).expect("runs");
            let (mut expected, mut found) = ([0.0_f32; LEN], [0.0_f32; LEN]);
            kept_engine.read(kept_graph, kept_y, &mut expected).expect("an output");
            engine.read(graph, y, &mut found).expect("an output");
            assert_eq!(found, expected, "copies {copies}, round {round}");
            let gone = engine.read(graph, x, &mut found).expect_err("others have used its memory");
            assert!(matches!(gone, EngineError::NotReadable { .. }), "{gone}");
            kept_engine.read(kept_graph, kept_x, &mut found).expect("a kept input stays");
            assert_eq!(found[..], values[..]);
        }
    }
}

/// A consumed input that is wanted itself stays, as every output does.
#[test]
fn a_consumed_input_that_is_wanted_stays() {
    let mut engine = engine();
    let mut g = GraphBuilder::new("g");
    let x = g.consumed_input("x", DType::F32, &[LEN as u64]).expect("a small input");
    let y = g.silu(x).expect("fits");
    g.output("y", y).expect("a new name");
    let graph = engine.add_graph(g);
    engine.want(graph, &[x, y]).expect("both exist");
    let values = [0.5_f32; LEN];
    engine.write(graph, x, &values).expect("an input");
    engine.run(graph).expect("runs");
    let mut found = [0.0_f32; LEN];
    engine.read(graph, x, &mut found).expect("wanted");
    assert_eq!(found, values);
}
