//! Graphs copied into other engines, and compared with what they are copies of.
#![cfg(feature = "cpu")]

use std::sync::Arc;

use entensor::{
    Backend, BackendError, DType, Engine, EngineError, GraphBuilder, GraphId, Tensor, TensorId, Usage, compare_graphs,
    components::{
        BufferKey, Capabilities, HostBuffers, MemoryHandle, MemoryKind, MemoryReport, OpDesc, OpKind, PreparedSplit,
        SplitDesc, SplitView, Support, Ticket, host_io,
    },
};
use entensor_oracle::OracleBackend;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Original {
    engine: Engine,
    graph: GraphId,
    x: Tensor,
    y: Tensor,
    state: TensorId,
}

const BACKENDS: &str = "cpu:threads=1";

/// Weights, a state that is written and read, a view, nodes in place, an input that is written.
fn original() -> Result<Original> {
    let mut engine = Engine::builder().backend(BACKENDS).build()?;
    let values: Vec<f32> = (0..32 * 8).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let w = engine.weights("w", DType::Q8_0, &[32, 8], &values)?;
    let state = engine.state("state", DType::F16, &[8, 4])?;
    let mut g = GraphBuilder::new("original");
    let w = g.shared(&w)?;
    let cache = g.shared(&state)?;
    let x = g.input("x", DType::F32, &[32, 3])?;
    let rows = g.input("rows", DType::I32, &[3])?;
    let product = g.mul_mat(w, x)?;
    let product = g.name("product", product)?;
    let act = g.silu(product)?;
    let act = g.name("act", act)?;
    let stored = g.set_rows(cache, act, rows)?;
    let stored = g.name("stored", stored)?;
    let turned = g.transpose(stored)?;
    let flat = g.cont(turned)?;
    let flat = g.name("flat", flat)?;
    let wide = g.cast(flat, DType::F32)?;
    let wide = g.name("wide", wide)?;
    let soft = g.soft_max(wide, None, None, 1.0, 0.0)?;
    let y = g.output("y", soft)?;
    let graph = engine.add_graph(g);
    let input: Vec<f32> = (0..96).map(|i| (i * 13 % 31) as f32 / 10.0 - 1.5).collect();
    engine.write(graph, x, &input)?;
    engine.write(graph, rows, &[2_i32, 0, 3])?;
    Ok(Original { engine, graph, x, y, state })
}

fn output(engine: &mut Engine, graph: GraphId, y: Tensor) -> Result<Vec<f32>> {
    engine.run(graph)?;
    let mut values = vec![0.0; usize::try_from(y.desc.shape.elements().ok_or("countable")?)?];
    engine.read(graph, y, &mut values)?;
    Ok(values)
}

#[test]
fn a_copy_computes_the_same_and_shares_nothing() -> Result {
    let mut original = original()?;
    let state = vec![half::f16::from_f32(0.25); 32];
    original.engine.write_tensor(&original.state, &state)?;
    let mut other = Engine::builder().backend(BACKENDS).build()?;
    let host = other.host();
    let before: u64 = other.memory().iter().map(|m| m.report.ours_bytes).sum();
    let copy = original.engine.copy_graph(original.graph, &mut other, host)?;
    assert_eq!(copy.buffers.len(), 2, "weights and state");
    // Its inputs came along, and the builder's tensors name those of the copy.
    let copied = output(&mut other, copy.graph, original.y)?;
    let mut untouched = vec![half::f16::ZERO; 32];
    original.engine.read_tensor(&original.state, &mut untouched)?;
    assert_eq!(untouched, state, "the copy wrote a state of its own");
    assert_eq!(output(&mut original.engine, original.graph, original.y)?, copied);
    // And they are apart.
    other.write(copy.graph, original.x, &[0.0_f32; 96])?;
    assert_ne!(output(&mut other, copy.graph, original.y)?, copied);
    assert_eq!(output(&mut original.engine, original.graph, original.y)?, copied);
    copy.remove(&mut other);
    let after: u64 = other.memory().iter().map(|m| m.report.ours_bytes).sum();
    assert_eq!(after, before, "nothing is left");
    Ok(())
}

#[test]
fn a_failed_copy_leaves_nothing() -> Result {
    let original = original()?;
    let small = Capabilities { max_buffer_bytes: 100, ..Capabilities::host() };
    let mut other =
        Engine::builder().backend_instance(Arc::new(OracleBackend::with_capabilities("small", small))).build()?;
    let host = other.host();
    let entities = other.world().entities().len();
    let Err(error) = original.engine.copy_graph(original.graph, &mut other, host) else { return Err("it fits".into()) };
    assert!(matches!(error, EngineError::Backend { source: BackendError::BufferTooLarge { .. }, .. }), "{error}");
    assert_eq!(other.world().entities().len(), entities);
    Ok(())
}

/// Computes like the oracle, on memory of its own kind, but one op of it wrongly.
struct Wrong {
    inner: OracleBackend,
    capabilities: Capabilities,
    buffers: HostBuffers,
    op: OpKind,
}

impl Wrong {
    fn new(op: OpKind) -> Self {
        let capabilities = Capabilities {
            memory: MemoryKind("far".into()),
            reads: vec![MemoryKind("far".into())],
            buffer_type: "far".into(),
            ..Capabilities::host()
        };
        Self { inner: OracleBackend::new("wrong"), capabilities, buffers: HostBuffers::default(), op }
    }
}

struct WrongSplit {
    inner: Box<dyn PreparedSplit>,
    spoiled: Vec<(usize, u64)>,
}

impl PreparedSplit for WrongSplit {
    fn submit(&self, memory: &[MemoryHandle]) -> std::result::Result<Ticket, BackendError> {
        let ticket = self.inner.submit(memory)?;
        for &(slot, offset) in &self.spoiled {
            let mut value = [0; 4];
            host_io::read(&memory[slot], offset, &mut value)?;
            host_io::write(&memory[slot], offset, &(f32::from_le_bytes(value) + 0.5).to_le_bytes())?;
        }
        Ok(ticket)
    }
}

impl Backend for Wrong {
    fn name(&self) -> &str {
        "wrong"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn support(&self, op: &OpDesc<'_>) -> Support {
        self.inner.support(op)
    }

    fn create_buffer(&self, size_bytes: u64, _: Usage) -> std::result::Result<BufferKey, BackendError> {
        self.buffers.create(size_bytes)
    }

    fn destroy_buffer(&self, key: BufferKey) -> std::result::Result<(), BackendError> {
        self.buffers.destroy(key)
    }

    fn memory(&self, key: BufferKey) -> std::result::Result<MemoryHandle, BackendError> {
        self.buffers.memory(key)
    }

    fn write(&self, memory: &MemoryHandle, at: u64, bytes: &[u8]) -> std::result::Result<(), BackendError> {
        host_io::write(memory, at, bytes)
    }

    fn read(&self, memory: &MemoryHandle, at: u64, bytes: &mut [u8]) -> std::result::Result<(), BackendError> {
        host_io::read(memory, at, bytes)
    }

    fn prepare(&self, split: &dyn SplitView) -> std::result::Result<Box<dyn PreparedSplit>, BackendError> {
        let nodes: Vec<_> = (0..split.len()).map(|index| split.node(index)).collect();
        let wrong = nodes.iter().filter(|node| node.op.kind() == self.op);
        let spoiled = wrong.map(|node| (node.output.memory.0 as usize, node.output.offset_bytes)).collect();
        let split = SplitDesc { nodes, memory_slots: split.memory_slots() };
        Ok(Box::new(WrongSplit { inner: self.inner.prepare(&split)?, spoiled }))
    }

    fn memory_report(&self) -> MemoryReport {
        MemoryReport::default()
    }
}

#[test]
fn the_node_that_is_wrong_is_named_and_no_other() -> Result {
    let mut original = original()?;
    let state = vec![half::f16::from_f32(0.5); 32];
    original.engine.write_tensor(&original.state, &state)?;
    for (op, node) in [(OpKind::MulMat, "product"), (OpKind::Silu, "act"), (OpKind::SoftMax, "y")] {
        let mut other = Engine::builder()
            .backend_instance(Arc::new(Wrong::new(op)))
            .backend_instance(Arc::new(OracleBackend::new("host")))
            .build()?;
        let far = other.backend_index("wrong")?;
        let copy = original.engine.copy_graph(original.graph, &mut other, far)?;
        let comparison = compare_graphs((&mut original.engine, original.graph), (&mut other, copy.graph))?;
        let over: Vec<&str> = comparison.nodes.iter().filter(|n| n.is_over()).map(|n| &*n.node).collect();
        assert_eq!(over, [node], "{comparison}");
        assert!(comparison.to_string().ends_with("1 over"), "{comparison}");
        assert_eq!(&*comparison.worst_first()[0].node, node);
        assert_eq!(comparison.nodes.len(), 6);
        // In a whole run the fault goes on to what is made of it.
        let whole = |name: &str| comparison.nodes.iter().find(|n| &*n.node == name).map(|n| n.whole_nmse);
        assert!(whole("y") > Some(1e-6), "{:?}", whole("y"));
        // What the runs wrote is as it was.
        let mut after = vec![half::f16::ZERO; 32];
        original.engine.read_tensor(&original.state, &mut after)?;
        assert_eq!(after, state);
    }
    Ok(())
}

#[test]
fn other_backends_that_are_right_are_within_tolerance() -> Result {
    let mut original = original()?;
    let mut other = Engine::builder().backend("oracle").build()?;
    let host = other.host();
    let copy = original.engine.copy_graph(original.graph, &mut other, host)?;
    let comparison = compare_graphs((&mut original.engine, original.graph), (&mut other, copy.graph))?;
    assert_eq!(comparison.over(), 0, "{comparison}");
    let product = comparison.nodes.iter().find(|n| &*n.node == "product").ok_or("it computes")?;
    assert!(product.nmse > 0.0 && product.max_nmse > product.nmse, "activations were rounded: {product:?}");
    assert_eq!((&*product.backend_a, &*product.backend_b), ("cpu", "oracle"));
    // The original can be run as before.
    output(&mut original.engine, original.graph, original.y)?;
    Ok(())
}

#[test]
fn graphs_that_are_no_copies_are_refused() -> Result {
    let mut original = original()?;
    let mut other = Engine::builder().backend("oracle").build()?;
    let mut g = GraphBuilder::new("another");
    let x = g.input("x", DType::F32, &[4])?;
    let y = g.sqr(x)?;
    g.output("y", y)?;
    let graph = other.add_graph(g);
    other.write(graph, x, &[0.0_f32; 4])?;
    let Err(error) = compare_graphs((&mut original.engine, original.graph), (&mut other, graph)) else {
        return Err("they were compared".into());
    };
    assert_eq!(error.kind(), "NotAlike", "{error}");
    Ok(())
}
