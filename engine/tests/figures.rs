//! Figures of plans and memory, compute buffers, and tensors at addresses of the user's choice.
#![cfg(feature = "cpu")]

use std::sync::Arc;

use entensor::{
    BackendError, DType, Engine, EngineError, GraphBuilder, Shape, Strides, TensorDesc, Usage,
    components::{Capabilities, MemoryKind},
};
use entensor_oracle::OracleBackend;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A backend with memory of its own above the host.
fn two_memories() -> Result<Engine> {
    let far = MemoryKind("far".into());
    let capabilities = Capabilities {
        reads: vec![far.clone()],
        memory: far,
        buffer_type: "far".into(),
        offload_batch: Some(1),
        ..Capabilities::host()
    };
    let far = Arc::new(OracleBackend::with_capabilities("far", capabilities));
    Ok(Engine::builder().backend_instance(far).backend_instance(Arc::new(OracleBackend::new("host"))).build()?)
}

#[test]
fn figures_are_those_of_the_plan() -> Result {
    let mut engine = two_memories()?;
    let w = engine.weights("w", DType::F32, &[4, 4], &[0.5; 16])?;
    let mut g = GraphBuilder::new("figures");
    let w = g.shared(&w)?;
    let x = g.input("x", DType::F32, &[4, 2])?;
    let y = g.mul_mat(w, x)?;
    let y = g.output("y", y)?;
    let graph = engine.add_graph(g);
    let figures = engine.figures(graph)?;
    assert_eq!((figures.nodes, figures.splits, figures.copies, figures.slots), (1, 1, 2, 1), "{figures:?}");
    assert_eq!(figures.copied_bytes, 4 * (16 + 8));
    let [far, host] = &figures.backends[..] else { return Err("two backends".into()) };
    assert_eq!((&*far.backend, far.nodes, far.splits, far.copies, far.copied_bytes), ("far", 1, 1, 2, 96));
    assert_eq!((&*host.backend, host.nodes, host.splits, host.copies), ("host", 0, 0, 0));
    assert_eq!(far.planned_bytes + host.planned_bytes, figures.planned_bytes);
    assert!(far.planned_bytes >= 96 + 32 && host.planned_bytes >= 32 && figures.lower_bound_bytes > 0);

    let text = engine.debug_text(graph)?;
    for part in
        ["graph `figures`: 1 nodes, 1 splits, 2 copies", "split 0 on far", "copy w from host", "y = mul_mat w x"]
    {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
    engine.write(graph, x, &[1.0_f32; 8])?;
    engine.run(graph)?;
    let memory = engine.memory();
    let [on_far, on_host] = &memory[..] else { return Err("two backends".into()) };
    assert_eq!((on_host.weights_bytes, on_far.weights_bytes), (64, 0));
    assert_eq!((on_far.compute_bytes, on_host.compute_bytes), (far.planned_bytes, host.planned_bytes));
    assert_eq!(on_host.report.ours_bytes, 64 + host.planned_bytes);

    // What a backend computed can be looked at where it lies.
    let buffers = engine.compute_buffers(graph)?;
    assert_eq!(buffers.iter().map(|b| &*b.backend).collect::<Vec<_>>(), ["far", "host"]);
    let mut bytes = vec![0; usize::try_from(buffers[0].buffer.size_bytes())?];
    buffers[0].buffer.backend().read(buffers[0].buffer.memory(), 0, &mut bytes)?;
    let mut result = [0.0_f32; 8];
    engine.read(graph, y, &mut result)?;
    let place = engine.plan_of(graph).and_then(|plan| plan.locate(plan.find("y")?, 0)).ok_or("planned")?;
    let at = usize::try_from(place.offset_bytes)?;
    assert_eq!(bytes[at..at + 4], result[0].to_le_bytes());
    Ok(())
}

#[test]
fn tensors_are_placed_at_addresses_and_views_share_memory() -> Result {
    let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    let buffer = engine.create_buffer("memory", engine.host(), Usage::Any, 256)?;
    let whole = engine.tensor_in("whole", DType::F32, &[8, 4], buffer, 64)?;
    let values: Vec<f32> = (0..32).map(|i| i as f32).collect();
    engine.write_tensor(&whole, &values)?;
    // Column 2 of every row, as a row of its own; and rows 1 and 2.
    let column = engine.view_tensor("column", &whole, Shape([4, 1, 1, 1]), Strides([32, 128, 128, 128]), 8)?;
    let middle = engine.view_tensor("middle", &whole, Shape([8, 2, 1, 1]), Strides([4, 32, 64, 64]), 32)?;
    let mut read = [0.0_f32; 16];
    engine.read_tensor(&middle, &mut read)?;
    assert_eq!(read[..], values[8..24]);
    let mut g = GraphBuilder::new("views");
    let (c, m) = (g.shared(&column)?, g.shared(&middle)?);
    let c = g.scale(c, 10.0)?;
    let c = g.output("c", c)?;
    let m = g.sum_rows(m)?;
    let m = g.output("m", m)?;
    let graph = engine.add_graph(g);
    engine.run(graph)?;
    let (mut columns, mut sums) = ([0.0_f32; 4], [0.0_f32; 2]);
    engine.read(graph, c, &mut columns)?;
    engine.read(graph, m, &mut sums)?;
    assert_eq!((columns, sums), ([20.0, 100.0, 180.0, 260.0], [92.0, 156.0]));
    Ok(())
}

#[test]
fn addresses_and_layouts_are_checked() -> Result {
    let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    let buffer = engine.create_buffer("memory", engine.host(), Usage::Any, 256)?;
    let packed = |dtype, shape| TensorDesc::packed(dtype, Shape(shape));
    let with = |desc: TensorDesc, strides| TensorDesc { strides: Strides(strides), ..desc };
    let floats = packed(DType::F32, [8, 2, 1, 1])?;
    let blocks = packed(DType::Q8_0, [64, 2, 1, 1])?;
    let mut fails = |desc, offset| engine.place_tensor("t", desc, buffer, offset).expect_err("it is refused");
    let beyond =
        |error: EngineError| matches!(error, EngineError::Backend { source: BackendError::OutOfBounds { .. }, .. });
    assert!(beyond(fails(floats, 196)));
    assert!(beyond(fails(floats, u64::MAX - 3)));
    assert!(beyond(fails(with(floats, [4, 256, 0, 0]), 0)));
    for (desc, offset, rule) in [
        (floats, 2, "address"),
        (blocks, 1, "address"),
        (with(floats, [6, 32, 0, 0]), 0, "strides"),
        (with(floats, [4, 34, 0, 0]), 0, "strides"),
        (with(blocks, [68, 136, 0, 0]), 0, "blocks of a row"),
    ] {
        let error = fails(desc, offset);
        assert!(error.kind() == "BadAddress" && error.to_string().contains(rule), "{error}");
    }
    let huge = TensorDesc { shape: Shape([8, u64::MAX / 4, 1, 1]), ..floats };
    assert_eq!(fails(huge, 0).kind(), "Shape");
    assert_eq!(fails(with(floats, [4, u64::MAX - 3, 0, 0]), 0).kind(), "Shape");
    assert!(engine.place_tensor("fits", blocks, buffer, 120).is_ok());
    assert!(engine.place_tensor("axes of one", with(floats, [4, 32, 3, 5]), buffer, 192).is_ok());

    let whole = engine.tensor_in("whole", DType::F32, &[8], buffer, 16)?;
    let mut view = |shape, strides, at| engine.view_tensor("v", &whole, Shape(shape), Strides(strides), at);
    assert!(view([4, 1, 1, 1], [4, 16, 16, 16], 16).is_ok());
    assert!(beyond(view([4, 1, 1, 1], [4, 16, 16, 16], 20).expect_err("one too many")));
    assert!(beyond(view([4, 1, 1, 1], [12, 48, 48, 48], 0).expect_err("too far apart")));
    assert!(beyond(view([1, 1, 1, 1], [4, 4, 4, 4], u64::MAX - 3).expect_err("far away")));
    engine.world_mut().despawn(whole.entity);
    let gone = engine.view_tensor("v", &whole, Shape([1, 1, 1, 1]), Strides([4, 4, 4, 4]), 0);
    assert_eq!(gone, Err(EngineError::UnknownTensor));
    engine.world_mut().despawn(buffer.0);
    assert_eq!(engine.place_tensor("t", floats, buffer, 0), Err(EngineError::UnknownBuffer));
    Ok(())
}
