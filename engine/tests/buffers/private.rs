//! Weights in a private layout, planned and run.

use entensor::{BackendError, DType, Engine, EngineError, GraphBuilder, TensorId, Usage};

const ROWS: u64 = 20;
const COLUMNS: u64 = 64;

/// An engine with weights in a buffer of a type, and their bytes.
fn engine_with(buffer_type: &str, dtype: DType) -> (Engine, TensorId, Vec<u8>) {
    let mut engine = Engine::builder().backend("cpu:threads=2").verify_plans(true).build().expect("a cpu");
    let values: Vec<f32> = (0..ROWS * COLUMNS).map(|i| (i * 31 % 97) as f32 / 48.0 - 1.0).collect();
    let mut bytes = vec![0; (dtype.row_bytes(COLUMNS).expect("whole blocks") * ROWS) as usize];
    (dtype.row().quantize)(&values, &mut bytes);
    let host = engine.host();
    let buffer =
        engine.create_buffer_of("weights", host, buffer_type, Usage::Weights, bytes.len() as u64).expect("small");
    let weights = engine.tensor_in("w", dtype, &[COLUMNS, ROWS], buffer, 0).expect("fits");
    engine.write_tensor(&weights, &bytes).expect("writable");
    (engine, weights, bytes)
}

fn product(engine: &mut Engine, weights: &TensorId) -> Result<Vec<f32>, EngineError> {
    let mut g = GraphBuilder::new("product");
    let w = g.shared(weights)?;
    let x = g.input("x", DType::F32, &[COLUMNS, 3])?;
    let y = g.mul_mat(w, x)?;
    let y = g.output("y", y)?;
    let graph = engine.add_graph(g);
    let values: Vec<f32> = (0..COLUMNS * 3).map(|i| (i % 13) as f32 - 6.0).collect();
    engine.write(graph, x, &values)?;
    engine.run(graph)?;
    let mut result = vec![0.0_f32; (ROWS * 3) as usize];
    engine.read(graph, y, &mut result)?;
    Ok(result)
}

#[test]
fn products_of_private_weights_are_those_of_plain_ones() {
    for dtype in [DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::F32] {
        let (mut plain, weights, _) = engine_with("host", dtype);
        let expected = product(&mut plain, &weights).expect("runs");
        let (mut private, weights, bytes) = engine_with("cpu-repacked", dtype);
        if dtype == DType::F32 {
            // It has no such layout, so nothing reads it in that memory, and the error says so.
            let error = product(&mut private, &weights).expect_err("nobody reads it there");
            assert!(error.to_string().contains("private layout"), "{error}");
            continue;
        }
        assert_eq!(product(&mut private, &weights).expect("runs"), expected, "{dtype}");
        let mut back = vec![0_u8; bytes.len()];
        private.read_tensor(&weights, &mut back).expect("converted back");
        assert_eq!(back, bytes, "{dtype}");
        let mut part = [0; 50];
        private.read_bytes(&weights, 101, &mut part).expect("inside");
        assert_eq!(part, bytes[101..151], "{dtype}");
    }
}

#[test]
fn nothing_but_products_is_planned_on_private_weights() {
    let (mut engine, weights, _) = engine_with("cpu-repacked", DType::Q8_0);
    let mut g = GraphBuilder::new("rows");
    let w = g.shared(&weights).expect("one tensor");
    let ids = g.input("ids", DType::I32, &[2]).expect("small");
    let rows = g.get_rows(w, ids).expect("shapes fit");
    g.output("rows", rows).expect("a free name");
    let graph = engine.add_graph(g);
    let error = engine.plan(graph).expect_err("get_rows does not read it").to_string();
    for word in ["`rows`", "operand `w`", "get_rows", "a private layout, which mul_mat and mul_mat_id read"] {
        assert!(error.contains(word), "{word}: {error}");
    }
    let mut g = GraphBuilder::new("view");
    let w = g.shared(&weights).expect("one tensor");
    let half = g.view(w, 8 * 68, [COLUMNS, 8, 1, 1], None).expect("inside");
    let x = g.input("x", DType::F32, &[COLUMNS]).expect("small");
    let y = g.mul_mat(half, x).expect("shapes fit");
    g.output("y", y).expect("a free name");
    let graph = engine.add_graph(g);
    let error = engine.plan(graph).expect_err("a view").to_string();
    assert!(error.contains("a view into weights"), "{error}");
    // The engine and its other graphs go on.
    assert!(product(&mut engine, &weights).is_ok());
}

#[test]
fn a_reset_buffer_takes_other_tensors() {
    let (mut engine, weights, bytes) = engine_with("cpu-repacked", DType::Q8_0);
    let stored = engine.world().get::<entensor::components::StoredIn>(weights.entity).and_then(|stored| stored.0);
    let buffer = entensor::BufferId(stored.expect("it has memory").buffer);
    let other = |engine: &mut Engine| engine.tensor_in("other", DType::Q4_1, &[COLUMNS, 16], buffer, 0);
    match other(&mut engine) {
        Err(EngineError::Backend { source: BackendError::LayoutConflict { offset_bytes: 0, .. }, .. }) => {}
        other => panic!("{other:?}"),
    }
    engine.reset_buffer(buffer).expect("live");
    let mut back = vec![0_u8; bytes.len()];
    engine.read_tensor(&weights, &mut back).expect("the bytes stay");
    assert_eq!(back, bytes);
    other(&mut engine).expect("its memory is free");
}
