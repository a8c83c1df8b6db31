//! Runners: the same results as runs, inputs and outputs in order, mistakes as typed errors, and engines that go on as if nothing had been.

use std::ops::ControlFlow;

use entensor::{DType, Engine, EngineError, GraphBuilder, GraphId, NodeData, NodeObserver, Tensor, systems::PlanNode};

fn numbers(len: u64, seed: u64) -> Vec<f32> {
    (0..len).map(|i| ((i * 37 + seed * 11) % 101) as f32 / 101.0 - 0.5).collect()
}

/// A net of three layers on a backend, and whatever a second one takes of it.
fn net(engine: &mut Engine, rows: u64, pinned: Option<&str>) -> (GraphId, Tensor, Tensor, Tensor) {
    let mut parts = Vec::new();
    for (index, shape) in [[24, 64], [64, 64], [64, 8_u64]].into_iter().enumerate() {
        let seed = index as u64;
        let values = numbers(shape[0] * shape[1], seed);
        let weights = engine.weights(&format!("w{index}"), DType::F32, &shape, &values).expect("fits");
        let values = numbers(shape[1], seed + 5);
        parts.push((weights, engine.weights(&format!("b{index}"), DType::F32, &shape[1..], &values).expect("fits")));
    }
    let mut g = GraphBuilder::new("net");
    let x = g.input("x", DType::F32, &[24, rows]).expect("new");
    let (mut last, mut hidden) = (x, x);
    for (index, (weights, bias)) in parts.iter().enumerate() {
        let (weights, bias) = (g.shared(weights).expect("one"), g.shared(bias).expect("one"));
        let product = g.mul_mat(weights, last).expect("fits");
        let sum = g.add(product, bias).expect("fits");
        last = if index == 2 { g.tanh(sum).expect("fits") } else { g.relu(sum).expect("fits") };
        if index == 1 {
            hidden = g.name("hidden", last).expect("new");
            last = hidden;
        }
    }
    let y = g.output("y", last).expect("new");
    let graph = engine.add_graph(g);
    if let Some(backend) = pinned {
        let backend = engine.backend_index(backend).expect("there is one");
        engine.pin(graph, hidden, Some(backend)).expect("there is one");
    }
    (graph, x, y, hidden)
}

fn engine(backends: &[&str]) -> Engine {
    let mut builder = Engine::builder();
    for backend in backends {
        builder = builder.backend(*backend);
    }
    builder.build().expect("they start")
}

#[test]
fn a_runner_computes_what_runs_compute() {
    for (backends, pinned, is_held) in [
        (&["cpu:threads=1"][..], None, true),
        (&["cpu:threads=2"], None, true),
        (&["oracle"], None, false),
        (&["cpu:threads=1", "oracle"], Some("oracle"), false),
    ] {
        let mut engine = engine(backends);
        let (graph, x, y, _) = net(&mut engine, 40, pinned);
        let mut expected = Vec::new();
        for seed in 0..3 {
            engine.write(graph, x, &numbers(24 * 40, seed)).expect("an input");
            engine.run(graph).expect("runs");
            let mut values = vec![0.0_f32; 8 * 40];
            engine.read(graph, y, &mut values).expect("an output");
            expected.push(values);
        }
        let mut values = vec![0.0_f32; 8 * 40];
        engine
            .with_runner(graph, |runner| {
                assert_eq!(runner.is_held(), is_held, "{backends:?}");
                // What was written before is still there.
                runner.run()?;
                runner.read(y, &mut values)?;
                assert_eq!(values, expected[2], "{backends:?}");
                for (seed, expected) in (0..3).zip(&expected) {
                    runner.write(x, &numbers(24 * 40, seed))?;
                    runner.run()?;
                    runner.read(y, &mut values)?;
                    assert_eq!(&values, expected, "{backends:?}");
                }
                runner.write(x, &numbers(24 * 40, 1))?;
                runner.run()
            })
            .expect("runs");
        engine.read(graph, y, &mut values).expect("the last run's");
        assert_eq!(values, expected[1], "{backends:?}");
        engine.run(graph).expect("its input is still written");
        engine.read(graph, y, &mut values).expect("an output");
        assert_eq!(values, expected[1], "{backends:?}");
    }
}

#[test]
fn mistakes_are_typed_errors_and_a_runner_goes_on() {
    let mut engine = engine(&["cpu:threads=1"]);
    let (graph, x, y, hidden) = net(&mut engine, 2, None);
    let (_, foreign, ..) = net(&mut Engine::builder().backend("cpu:threads=1").build().expect("starts"), 2, None);
    let mut values = [0.0_f32; 16];
    engine
        .with_runner(graph, |runner| {
            assert!(matches!(runner.run(), Err(EngineError::InputNotWritten { .. })));
            assert!(matches!(runner.read(y, &mut values), Err(EngineError::OutputGone { .. })));
            assert!(matches!(runner.write(x, &[0.0_f32; 3]), Err(EngineError::WrongLength { .. })));
            assert!(matches!(runner.write(x, &[0_i32; 48]), Err(EngineError::WrongDType { .. })));
            assert!(matches!(runner.write(y, &[0.0_f32; 16]), Err(EngineError::NotWritable { .. })));
            assert!(matches!(runner.write(foreign, &[0.0_f32; 48]), Err(EngineError::UnknownTensor)));
            assert!(matches!(runner.read(hidden, &mut [0.0_f32; 128]), Err(EngineError::NotReadable { .. })));
            runner.write(x, &[0.5_f32; 48])?;
            runner.run()?;
            runner.read(y, &mut values)
        })
        .expect("all is well in the end");
    assert!(values.iter().all(|value| value.is_finite()));
    // An error of the closure's own leaves nothing locked.
    let failed: Result<(), _> = engine.with_runner(graph, |_| Err(EngineError::UnknownTensor));
    assert!(matches!(failed, Err(EngineError::UnknownTensor)));
    engine.run(graph).expect("runs");
    engine.remove_graph(graph);
    assert!(matches!(engine.with_runner(graph, |_| Ok(())), Err(EngineError::UnknownGraph)));
}

#[test]
fn inputs_that_runs_consume_are_written_for_each() {
    let mut engine = engine(&["cpu:threads=1"]);
    let mut g = GraphBuilder::new("consuming");
    let x = g.consumed_input("x", DType::F32, &[4]).expect("new");
    let y = g.scale(x, 2.0).expect("fits");
    let y = g.output("y", y).expect("new");
    let graph = engine.add_graph(g);
    let mut values = [0.0_f32; 4];
    engine
        .with_runner(graph, |runner| {
            for round in 1..4 {
                runner.write(x, &[round as f32; 4])?;
                runner.run()?;
                runner.read(y, &mut values)?;
                assert_eq!(values, [2.0 * round as f32; 4]);
                assert!(matches!(runner.run(), Err(EngineError::InputNotWritten { .. })));
            }
            Ok(())
        })
        .expect("runs");
    assert!(matches!(engine.run(graph), Err(EngineError::InputNotWritten { .. })));
}

/// What is fused is still there for who looks at it.
#[test]
fn observers_see_what_lies_inside_of_a_chain() {
    struct Look(Vec<(String, Vec<f32>)>);
    impl NodeObserver for Look {
        fn wants(&mut self, _node: &PlanNode<'_>) -> bool {
            true
        }
        fn see(&mut self, node: &NodeData<'_>) -> ControlFlow<()> {
            self.0.push((node.node.name.to_string(), node.to_f32()));
            ControlFlow::Continue(())
        }
    }
    let mut seen = Vec::new();
    for backend in ["cpu:threads=1", "oracle"] {
        let mut engine = engine(&[backend]);
        let (graph, x, ..) = net(&mut engine, 40, None);
        engine.write(graph, x, &numbers(24 * 40, 3)).expect("an input");
        let mut look = Look(Vec::new());
        engine.run_observed(graph, &mut look).expect("runs");
        assert_eq!(look.0.len(), 9);
        seen.push(look.0);
    }
    for ((name, ours), (_, theirs)) in seen[0].iter().zip(&seen[1]) {
        let most = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(most < 1e-5, "{name} is off by {most}");
    }
}

#[test]
fn consumed_inputs_and_panics_leave_no_stale_results() {
    let mut engine = Engine::builder().backend("cpu:threads=1").build().expect("the host is there");
    let mut g = GraphBuilder::new("g");
    let x = g.consumed_input("x", DType::F32, &[4]).expect("a small input");
    let y = g.scale(x, 2.0).expect("shapes fit");
    let y = g.output("y", y).expect("a free name");
    let graph = engine.add_graph(g);
    let ran = engine.with_runner(graph, |runner| {
        let mut result = [0.0_f32; 4];
        runner.write(x, &[1.0_f32; 4])?;
        runner.run()?;
        runner.read(y, &mut result)?;
        assert_eq!(result, [2.0; 4]);
        runner.write(x, &[3.0_f32; 4])?;
        assert_eq!(runner.read(y, &mut result).expect_err("written over").kind(), "OutputGone");
        runner.run()?;
        runner.read(y, &mut result)?;
        assert_eq!(result, [6.0; 4]);
        Ok(())
    });
    assert_eq!(ran, Ok(()));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        engine.with_runner(graph, |runner| -> Result<(), entensor::EngineError> {
            runner.write(x, &[5.0_f32; 4])?;
            runner.run()?;
            panic!("the caller's own");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(engine.read(graph, y, &mut [0.0_f32; 4]).expect_err("nobody knows").kind(), "OutputGone");
    assert_eq!(engine.run(graph).expect_err("it was consumed").kind(), "InputNotWritten");
    engine.write(graph, x, &[7.0_f32; 4]).expect("an input");
    engine.run(graph).expect("it runs");
    let mut result = [0.0_f32; 4];
    engine.read(graph, y, &mut result).expect("an output");
    assert_eq!(result, [14.0; 4]);
}
