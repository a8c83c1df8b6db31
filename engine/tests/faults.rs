//! Faults and edges of the façade: allocations that fail, runs that fail half-way, slots, shared memory.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use entensor::{
    BackendError, BackendIndex, BuildError, DType, Engine, EngineError, GraphBuilder, GraphId, Tensor, TensorDesc,
    Usage,
    components::{
        Backend, BufferKey, Capabilities, MemoryHandle, MemoryKind, MemoryReport, OpDesc, PreparedSplit, SplitView,
        Support, TensorCopies,
    },
};
use entensor_oracle::OracleBackend;

/// The oracle, but compute buffers cannot be made while `left` is 0.
struct Failing {
    oracle: OracleBackend,
    left: Arc<AtomicU64>,
}

impl Backend for Failing {
    fn name(&self) -> &str {
        self.oracle.name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.oracle.capabilities()
    }

    fn support(&self, op: &OpDesc<'_>) -> Support {
        self.oracle.support(op)
    }

    fn allocation_bytes(&self, desc: &TensorDesc) -> u64 {
        self.oracle.allocation_bytes(desc)
    }

    fn create_buffer(&self, size_bytes: u64, usage: Usage) -> Result<BufferKey, BackendError> {
        if usage == Usage::Compute {
            let take = |left: u64| left.checked_sub(1);
            let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
            taken.map_err(|_| BackendError::OutOfMemory { size_bytes })?;
        }
        self.oracle.create_buffer(size_bytes, usage)
    }

    fn destroy_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        self.oracle.destroy_buffer(key)
    }

    fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        self.oracle.memory(key)
    }

    fn write(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        self.oracle.write(memory, offset_bytes, bytes)
    }

    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.oracle.read(memory, offset_bytes, bytes)
    }

    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        self.oracle.prepare(split)
    }

    fn memory_report(&self) -> MemoryReport {
        self.oracle.memory_report()
    }
}

fn oracle() -> Engine {
    Engine::builder().backend("oracle").verify_plans(true).build().expect("the oracle starts")
}

/// `scale(x, 2)` of this many elements.
fn double(
    engine: &mut Engine,
    name: &str,
    count: u64,
    set: impl FnOnce(&mut GraphBuilder),
) -> (GraphId, Tensor, Tensor) {
    let mut g = GraphBuilder::new(name);
    set(&mut g);
    let x = g.input("x", DType::F32, &[count]).expect("a small input");
    let y = g.scale(x, 2.0).expect("shapes fit");
    let y = g.output("y", y).expect("a free name");
    (engine.add_graph(g), x, y)
}

fn run(engine: &mut Engine, (graph, x, y): (GraphId, Tensor, Tensor), values: &[f32]) -> Result<Vec<f32>, EngineError> {
    engine.write(graph, x, values)?;
    engine.run(graph)?;
    let mut result = vec![0.0; values.len()];
    engine.read(graph, y, &mut result)?;
    Ok(result)
}

/// REPORTS 7, 35: the n-th allocation fails, for every n; another graph of the same arena is never bound to other memory.
#[test]
fn a_failed_allocation_harms_no_other_graph_of_the_arena() {
    for allowed in 0..4 {
        let left = Arc::new(AtomicU64::new(allowed));
        let backend = Failing { oracle: OracleBackend::new("failing"), left: Arc::clone(&left) };
        let mut engine = Engine::builder().backend_instance(Arc::new(backend)).build().expect("starts");
        let state = engine.state("state", DType::F32, &[4]).expect("not compute memory");
        engine.write_tensor(&state, &[7.0_f32; 4]).expect("own memory");
        let arena = engine.new_arena();
        let mut make = |name: &str, count| {
            double(&mut engine, name, count, |g| {
                g.share_arena(arena);
                let state = g.shared(&state).expect("one tensor");
                let kept = g.add(state, state).expect("shapes fit");
                g.output("kept", kept).expect("a free name");
            })
        };
        let (small, large) = (make("small", 4), make("large", 4096));
        let first = run(&mut engine, small, &[1.0; 4]);
        let second = run(&mut engine, large, &[1.0; 4096]);
        let third = run(&mut engine, small, &[3.0; 4]);
        for result in [first.map(drop), second.map(drop), third.map(drop)] {
            if let Err(error) = result {
                assert_eq!(error.kind(), "Allocation", "{allowed} allowed: {error}");
            }
        }
        left.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(run(&mut engine, small, &[3.0; 4]), Ok(vec![6.0; 4]), "{allowed} allowed");
        assert_eq!(run(&mut engine, large, &[3.0; 4096]), Ok(vec![6.0; 4096]), "{allowed} allowed");
        let mut kept = [0.0_f32; 4];
        engine.read_tensor(&state, &mut kept).expect("own memory");
        assert_eq!(kept, [7.0; 4], "memory of the user's own was never touched");
    }
}

/// The outgrown buffer is gone before the larger one is asked for.
#[test]
fn growing_an_arena_keeps_no_outgrown_buffer_alive() {
    let mut engine = oracle();
    let arena = engine.new_arena();
    let graphs: Vec<_> = [64, 1024, 65_536]
        .iter()
        .map(|&count| {
            let graph = double(&mut engine, &format!("g{count}"), count, |g| {
                g.share_arena(arena);
            });
            (graph, vec![1.0; usize::try_from(count).expect("small")])
        })
        .collect();
    for (graph, values) in &graphs {
        run(&mut engine, *graph, values).expect("runs");
        let bound = engine.plan_of(graph.0).expect("planned").planned_bytes();
        let ours = engine.backends()[0].memory_report().ours_bytes;
        assert_eq!(ours, bound, "only the largest buffer so far is there");
    }
    for (graph, values) in &graphs {
        assert_eq!(run(&mut engine, *graph, values), Ok(vec![2.0; values.len()]));
    }
}

/// REPORTS 41: with pipelining every run has inputs of its own; what was written for a slot stays with it over a re-plan.
#[test]
fn slots_never_show_old_inputs_or_outputs() {
    let mut engine = oracle();
    let graph = double(&mut engine, "slots", 4, |g| {
        g.pipeline_copies(3);
    });
    for i in 0..7_u8 {
        let value = f32::from(i);
        engine.write(graph.0, graph.1, &[value; 4]).expect("an input");
        if i % 2 == 0 {
            // Makes every graph be looked at again, with the same plan.
            engine.create_buffer(&format!("other{i}"), BackendIndex(0), Usage::Any, 64).expect("64 bytes");
        }
        engine.run(graph.0).expect("x was written for this run");
        engine.create_buffer(&format!("another{i}"), BackendIndex(0), Usage::Any, 64).expect("64 bytes");
        engine.plan(graph.0).expect("planned again");
        let mut result = [0.0_f32; 4];
        engine.read(graph.0, graph.2, &mut result).expect("the last run's output");
        assert_eq!(result, [value * 2.0; 4]);
    }
    let error = engine.run(graph.0).expect_err("nothing was written for this slot");
    assert!(matches!(error, EngineError::InputNotWritten { .. }), "{error}");
}

/// REPORTS 43: after a run that failed there are no outputs to read, and the next run is right.
#[test]
fn a_run_that_fails_leaves_no_outputs() {
    let mut engine = oracle();
    let table = engine.weights("table", DType::F32, &[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).expect("six values");
    let mut g = GraphBuilder::new("lookup");
    let table = g.shared(&table).expect("one tensor");
    let ids = g.input("ids", DType::I32, &[1]).expect("a small input");
    let row = g.get_rows(table, ids).expect("shapes fit");
    let row = g.output("row", row).expect("a free name");
    let graph = engine.add_graph(g);
    let mut result = [0.0_f32; 2];
    engine.write(graph, ids, &[2_i32]).expect("an input");
    engine.run(graph).expect("row 2 exists");
    engine.read(graph, row, &mut result).expect("an output");
    assert_eq!(result, [4.0, 5.0]);
    engine.write(graph, ids, &[3_i32]).expect("ids are checked when they are used");
    let error = engine.run(graph).expect_err("there is no row 3");
    assert!(error.to_string().contains("id 3 at position 0"), "{error}");
    assert!(matches!(engine.read(graph, row, &mut result), Err(EngineError::OutputGone { .. })));
    engine.write(graph, ids, &[0_i32]).expect("an input");
    engine.run(graph).expect("row 0 exists");
    engine.read(graph, row, &mut result).expect("an output");
    assert_eq!(result, [0.0, 1.0]);
}

#[test]
fn tensors_belong_to_one_graph_and_wishes_to_own_tensors() {
    let mut engine = oracle();
    let a = double(&mut engine, "a", 4, |_| ());
    let b = double(&mut engine, "b", 4, |_| ());
    assert_eq!(engine.write(a.0, b.1, &[1.0_f32; 4]), Err(EngineError::UnknownTensor));
    assert_eq!(engine.read(b.0, a.2, &mut [0.0_f32; 4]), Err(EngineError::UnknownTensor));

    let state = engine.state("state", DType::F32, &[4]).expect("16 bytes");
    let mut g = GraphBuilder::new("wishes");
    let shared = g.shared(&state).expect("one tensor");
    assert!(matches!(g.pin(shared, BackendIndex(0)), Err(BuildError::SharedTensor { .. })));
    assert!(matches!(g.output("mine", shared), Err(BuildError::SharedTensor { .. })));
    assert!(matches!(g.name("mine", shared), Err(BuildError::SharedTensor { .. })));
}

#[test]
fn a_despawned_buffer_or_arena_is_noticed() {
    let mut engine = oracle();
    let buffer = engine.create_buffer("b", BackendIndex(0), Usage::Any, 16).expect("16 bytes");
    let state = engine.tensor_in("state", DType::F32, &[4], buffer, 0).expect("fits");
    let mut g = GraphBuilder::new("g");
    let arena = engine.new_arena();
    g.share_arena(arena);
    let state = g.shared(&state).expect("one tensor");
    let y = g.scale(state, 2.0).expect("shapes fit");
    g.output("y", y).expect("a free name");
    let graph = engine.add_graph(g);
    engine.run(graph).expect("runs");
    engine.world_mut().despawn(arena.0);
    engine.run(graph).expect("another arena is made");
    engine.world_mut().despawn(buffer.0);
    assert_eq!(engine.run(graph).expect_err("its memory is gone").kind(), "MissingBuffer");
}

#[test]
fn memory_that_is_written_belongs_to_one_tensor() {
    let mut engine = oracle();
    let buffer = engine.create_buffer("b", BackendIndex(0), Usage::Any, 64).expect("64 bytes");
    let whole = engine.tensor_in("whole", DType::F32, &[4, 4], buffer, 0).expect("fits");
    let part = engine.tensor_in("part", DType::F32, &[4], buffer, 16).expect("fits");
    let build = |writes: bool| {
        let mut g = GraphBuilder::new("g");
        let (whole, part) = (g.shared(&whole).expect("once"), g.shared(&part).expect("once"));
        let sum = g.add(whole, part).expect("shapes fit");
        g.output("sum", sum).expect("a free name");
        if writes {
            let x = g.input("x", DType::F32, &[4]).expect("a small input");
            let written = g.cpy(x, part).expect("shapes fit");
            g.output("written", written).expect("a free name");
        }
        g
    };
    let reads = engine.add_graph(build(false));
    engine.run(reads).expect("what is only read may overlap");
    let writes = engine.add_graph(build(true));
    let error = engine.plan(writes).expect_err("part is written, whole is read");
    assert_eq!(error.kind(), "OverlappingMemory");
    assert!(error.to_string().contains("`part` is written"), "{error}");
}

#[test]
fn removed_graphs_leave_nothing_on_shared_tensors() {
    let memory = MemoryKind("device0".into());
    let capabilities =
        Capabilities { reads: vec![memory.clone()], memory, buffer_type: "device0".into(), ..Capabilities::host() };
    let device: Arc<dyn Backend> = Arc::new(OracleBackend::with_capabilities("device", capabilities));
    let host: Arc<dyn Backend> = Arc::new(OracleBackend::new("host"));
    let mut engine = Engine::builder().backend_instance(device).backend_instance(host).build().expect("start");
    let w = engine.weights("w", DType::F32, &[4], &[1.0; 4]).expect("four values");
    for i in 0..3 {
        let mut g = GraphBuilder::new(format!("g{i}"));
        let shared = g.shared(&w).expect("one tensor");
        let y = g.scale(shared, 2.0).expect("shapes fit");
        g.pin(y, BackendIndex(0)).expect("own tensor");
        g.output("y", y).expect("a free name");
        let graph = engine.add_graph(g);
        engine.run(graph).expect("runs");
        assert_eq!(engine.world().get::<TensorCopies>(w.entity).map(|c| c.0.len()), Some(1));
        engine.remove_graph(graph);
    }
    assert_eq!(engine.world().get::<TensorCopies>(w.entity).map(|c| c.0.len()), Some(0));
}
