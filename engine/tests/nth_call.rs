//! Every call of a backend fails once, whichever it is: a typed error, no panic, nothing left behind, and the next run is right.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use entensor::{
    Backend, BackendError, BackendIndex, DType, Engine, EngineError, GraphBuilder, GraphId, RunLimit, RunProgress,
    Tensor, TensorDesc, TensorId, Usage,
    components::{
        BufferKey, Capabilities, Cursor, ImportedBytes, MemoryHandle, MemoryKind, MemoryReport, OpDesc, PreparedSplit,
        Progress, SplitView, StoredIn, Support, Ticket,
    },
    systems::PlanCache,
};
use entensor_oracle::OracleBackend;

/// Calls of all backends of an engine, and which of them fails.
#[derive(Clone, Default)]
struct Calls {
    made: Arc<AtomicU64>,
    /// 1 + the number of the call that fails; 0 for none.
    fails: Arc<AtomicU64>,
}

impl Calls {
    fn call(&self) -> Result<(), BackendError> {
        let number = 1 + self.made.fetch_add(1, Ordering::Relaxed);
        if number == self.fails.load(Ordering::Relaxed) {
            Err(BackendError::Unsupported { ability: "do the n-th call" })
        } else {
            Ok(())
        }
    }
}

/// An oracle whose every fallible call may fail.
struct Faulty {
    oracle: OracleBackend,
    calls: Calls,
}

struct FaultySplit {
    inner: Box<dyn PreparedSplit>,
    calls: Calls,
}

impl PreparedSplit for FaultySplit {
    fn submit(&self, memory: &[MemoryHandle]) -> Result<Ticket, BackendError> {
        self.calls.call()?;
        self.inner.submit(memory)
    }

    fn run_from(&self, memory: &[MemoryHandle], from: Cursor, limit: &RunLimit<'_>) -> Result<Progress, BackendError> {
        self.calls.call()?;
        self.inner.run_from(memory, from, limit)
    }
}

impl Backend for Faulty {
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
        self.calls.call()?;
        self.oracle.create_buffer(size_bytes, usage)
    }

    fn import_host(&self, bytes: Arc<dyn ImportedBytes>) -> Result<BufferKey, BackendError> {
        self.calls.call()?;
        self.oracle.import_host(bytes)
    }

    fn destroy_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        // Whoever destroys cannot do anything about a failure, so the memory goes in any case.
        self.oracle.destroy_buffer(key)?;
        self.calls.call()
    }

    fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        self.calls.call()?;
        self.oracle.memory(key)
    }

    fn write(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        self.calls.call()?;
        self.oracle.write(memory, offset_bytes, bytes)
    }

    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.calls.call()?;
        self.oracle.read(memory, offset_bytes, bytes)
    }

    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        self.calls.call()?;
        Ok(Box::new(FaultySplit { inner: self.oracle.prepare(split)?, calls: self.calls.clone() }))
    }

    fn synchronize(&self) -> Result<(), BackendError> {
        self.calls.call()?;
        self.oracle.synchronize()
    }

    fn memory_report(&self) -> MemoryReport {
        self.oracle.memory_report()
    }
}

struct Setup {
    engine: Engine,
    calls: Calls,
}

fn setup() -> Setup {
    let calls = Calls::default();
    let memory = MemoryKind("device0".into());
    let capabilities =
        Capabilities { reads: vec![memory.clone()], memory, buffer_type: "device0".into(), ..Capabilities::host() };
    let device = Faulty { oracle: OracleBackend::with_capabilities("device", capabilities), calls: calls.clone() };
    let host = Faulty { oracle: OracleBackend::new("host"), calls: calls.clone() };
    let builder = Engine::builder().backend_instance(Arc::new(device)).backend_instance(Arc::new(host));
    Setup { engine: builder.build().expect("oracles start"), calls }
}

fn ours(engine: &Engine) -> Vec<u64> {
    engine.backends().iter().map(|backend| backend.memory_report().ours_bytes).collect()
}

/// What a caller does from the first buffer to the last result.
#[derive(Default)]
struct Session {
    weights: Option<TensorId>,
    graphs: Vec<(GraphId, Tensor, Tensor)>,
}

const COUNT: usize = 8;

impl Session {
    /// Goes on wherever an earlier attempt has failed.
    fn go(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        let weights = match &self.weights {
            Some(weights) => weights.clone(),
            None => {
                let made = engine.weights("w", DType::F32, &[COUNT as u64], &[3.0; COUNT])?;
                self.weights.insert(made).clone()
            }
        };
        // The second is as the first, the third grows the arenas' buffers.
        for (index, repeats) in [1, 1, 64].into_iter().enumerate() {
            if self.graphs.len() <= index {
                let graph = build(engine, &weights, repeats).expect("the graph fits together");
                self.graphs.push(graph);
            }
            let (graph, x, y) = self.graphs[index];
            for value in [1.0_f32, 2.0] {
                engine.write(graph, x, &vec![value; COUNT * repeats])?;
                if value < 2.0 {
                    engine.run(graph)?;
                } else {
                    let no_time = || RunLimit { deadline: Some(std::time::Instant::now()), cancel: None };
                    while engine.run_until(graph, &no_time())? == RunProgress::Paused {}
                }
                let mut result = vec![0.0_f32; COUNT * repeats];
                engine.read(graph, y, &mut result)?;
                assert!(result.iter().all(|found| *found == value * 12.0), "{result:?} for {value}");
            }
        }
        Ok(())
    }
}

/// `x * w * 2 * 2`, in turns on both backends.
fn build(
    engine: &mut Engine,
    weights: &TensorId,
    repeats: usize,
) -> Result<(GraphId, Tensor, Tensor), entensor::BuildError> {
    let mut g = GraphBuilder::new(format!("g{repeats}"));
    let w = g.shared(weights)?;
    let x = g.input("x", DType::F32, &[COUNT as u64, repeats as u64])?;
    let a = g.mul(x, w)?;
    let b = g.scale(a, 2.0)?;
    g.pin(b, BackendIndex(0))?;
    let c = g.scale(b, 2.0)?;
    g.pin(c, BackendIndex(1))?;
    let y = g.output("y", c)?;
    Ok((engine.add_graph(g), x, y))
}

#[test]
fn the_nth_call_fails_for_every_n_and_nothing_is_left_behind() {
    let Setup { mut engine, calls } = setup();
    Session::default().go(&mut engine).expect("nothing fails");
    let total = calls.made.load(Ordering::Relaxed);
    assert!(total > 40, "{total} calls");

    let (mut failed, mut kinds) = (0, std::collections::BTreeMap::new());
    for n in 1..=total {
        let Setup { mut engine, calls } = setup();
        let before = ours(&engine);
        calls.fails.store(n, Ordering::Relaxed);
        let mut session = Session::default();
        // What may be forgotten (a buffer that could not be destroyed) is no failure of the session.
        if let Err(error) = session.go(&mut engine) {
            assert!(error.to_string().contains("the n-th call"), "call {n}: {error}");
            *kinds.entry(error.kind()).or_insert(0) += 1;
            failed += 1;
        }
        session.go(&mut engine).unwrap_or_else(|error| panic!("call {n} failed before: {error}"));
        session.graphs.drain(..).for_each(|(graph, ..)| engine.remove_graph(graph));
        if let Some(weights) = session.weights.take() {
            let stored =
                engine.world().get::<StoredIn>(weights.entity).and_then(|stored| stored.0).expect("in a buffer");
            engine.world_mut().despawn(stored.buffer);
            engine.world_mut().despawn(weights.entity);
        }
        engine.world_mut().resource_mut::<PlanCache>().clear();
        assert_eq!(ours(&engine), before, "call {n} left memory behind");
    }
    println!("{failed} of {total} calls failed the session: {kinds:?}");
    assert!(failed * 10 > total * 8, "{failed} of {total}");
    assert!(["Allocation", "Backend", "Prepare", "Run"].iter().all(|kind| kinds.contains_key(kind)), "{kinds:?}");
}
