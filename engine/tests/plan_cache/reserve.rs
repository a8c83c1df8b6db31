//! Memory that is reserved once, and too little of it for several slots.

use super::*;

/// An oracle that counts its allocations, and lacks memory when told to.
struct Counting {
    oracle: OracleBackend,
    allocations: AtomicU64,
    most_bytes: Mutex<u64>,
}

impl Counting {
    fn new(name: &str) -> Arc<Self> {
        let oracle = OracleBackend::new(name);
        Arc::new(Self { oracle, allocations: AtomicU64::new(0), most_bytes: Mutex::new(u64::MAX) })
    }

    fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    /// From now on buffers above this size are refused.
    fn limit(&self, most_bytes: u64) {
        *self.most_bytes.lock().unwrap_or_else(PoisonError::into_inner) = most_bytes;
    }
}

impl Backend for Counting {
    fn name(&self) -> &str {
        self.oracle.name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.oracle.capabilities()
    }

    fn support(&self, op: &OpDesc<'_>) -> Support {
        self.oracle.support(op)
    }

    fn create_buffer(&self, size_bytes: u64, usage: Usage) -> Result<BufferKey, BackendError> {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        if size_bytes > *self.most_bytes.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(BackendError::OutOfMemory { size_bytes });
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

/// `relu(x) + x` over this many rows, in an arena.
fn rows(engine: &mut Engine, rows: u64, arena: ArenaId, copies: u32) -> (GraphId, Tensor, Tensor) {
    let mut g = GraphBuilder::new(format!("{rows} rows"));
    g.share_arena(arena).pipeline_copies(copies);
    let x = g.input("x", DType::F32, &[8, rows]).expect("a small input");
    let y = g.relu(x).expect("shapes fit");
    let y = g.add(y, x).expect("shapes fit");
    let y = g.output("y", y).expect("a free name");
    (engine.add_graph(g), x, y)
}

fn run_rows(engine: &mut Engine, (graph, x, y): (GraphId, Tensor, Tensor)) {
    let len = usize::try_from(x.shape()[0] * x.shape()[1]).expect("small");
    engine.write(graph, x, &vec![3.0_f32; len]).expect("an input");
    engine.run(graph).expect("it runs");
    let mut result = vec![0.0_f32; len];
    engine.read(graph, y, &mut result).expect("an output");
    assert!(result.iter().all(|&value| value == 6.0));
}

#[test]
fn what_is_smaller_than_reserved_for_allocates_nothing() {
    let backend = Counting::new("host");
    let mut engine = Engine::builder()
        .backend_instance(Arc::<Counting>::clone(&backend))
        .verify_plans(true)
        .build()
        .expect("it starts");
    let arena = engine.new_arena();
    let large = rows(&mut engine, 512, arena, 1);
    engine.reserve(large.0).expect("there is memory");
    let (allocations, bytes) = (backend.allocations(), backend.memory_report().ours_bytes);
    assert!(allocations > 0 && bytes >= 512 * 8 * 4 * 2);
    assert_eq!(engine.counters().planned, 1);
    for count in [1, 511, 3, 512, 100, 1, 3] {
        let small = rows(&mut engine, count, arena, 1);
        for _ in 0..3 {
            run_rows(&mut engine, small);
        }
        engine.remove_graph(small.0);
    }
    // One plan a shape: 1, 3, 100, 511 and 512 rows.
    assert_eq!((engine.counters().planned, engine.counters().cached), (5, 3));
    run_rows(&mut engine, large);
    engine.reserve(large.0).expect("it is reserved already");
    assert_eq!((backend.allocations(), backend.memory_report().ours_bytes), (allocations, bytes));
    // More than was reserved for is paid for once.
    let larger = rows(&mut engine, 513, arena, 1);
    run_rows(&mut engine, larger);
    assert!(backend.allocations() > allocations);
    let grown = backend.allocations();
    run_rows(&mut engine, large);
    run_rows(&mut engine, larger);
    assert_eq!(backend.allocations(), grown);
}

/// With several slots asked for and memory for one only, a warning says so; it is not tried at every run, but when asked again.
#[test]
fn several_copies_without_memory_are_one_copy_and_a_warning() {
    let backend = Counting::new("host");
    let mut engine = Engine::builder()
        .backend_instance(Arc::<Counting>::clone(&backend))
        .verify_plans(true)
        .build()
        .expect("it starts");
    let arena = engine.new_arena();
    let single = rows(&mut engine, 64, arena, 1);
    engine.plan(single.0).expect("there is memory");
    let single_bytes = plan_of(&engine, single.0).planned_bytes();
    engine.remove_graph(single.0);
    backend.limit(single_bytes);
    let mut engine = Engine::builder()
        .backend_instance(Arc::<Counting>::clone(&backend))
        .verify_plans(true)
        .build()
        .expect("it starts");
    let arena = engine.new_arena();
    let graph = rows(&mut engine, 64, arena, 3);
    let messages = |engine: &Engine| {
        let messages = engine.world().resource::<Messages<CopiesFallback>>();
        messages.iter_current_update_messages().cloned().collect::<Vec<_>>()
    };
    for _ in 0..5 {
        run_rows(&mut engine, graph);
    }
    let told = messages(&engine);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((told[0].graph, told[0].asked, told[0].error.kind()), (graph.0.0, 3, "Allocation"));
    let text = told[0].error.to_string();
    assert!(text.contains("on `host`") && text.contains("largest at the peak: ") && text.contains("bytes"), "{text}");
    assert_eq!(plan_of(&engine, graph.0).programs.len(), 1);
    assert_eq!(plan_of(&engine, graph.0).planned_bytes(), single_bytes);
    assert_eq!((engine.counters().planned, engine.counters().fallbacks), (2, 1));
    assert_eq!(cache(&engine).len(), 1, "a plan that nobody can run is not kept");

    // Memory is there again, and the wish is said again.
    backend.limit(u64::MAX);
    run_rows(&mut engine, graph);
    assert_eq!(plan_of(&engine, graph.0).programs.len(), 1, "nobody asked");
    engine.world_mut().entity_mut(graph.0.0).insert(PipelineCopies(3));
    for _ in 0..4 {
        run_rows(&mut engine, graph);
    }
    assert_eq!(plan_of(&engine, graph.0).programs.len(), 3);
    assert_eq!((messages(&engine).len(), engine.counters().fallbacks), (1, 1));

    // Where not even one fits, that is the error, and no warning.
    backend.limit(single_bytes - 1);
    let mut engine = Engine::builder()
        .backend_instance(Arc::<Counting>::clone(&backend))
        .verify_plans(true)
        .build()
        .expect("it starts");
    let arena = engine.new_arena();
    let graph = rows(&mut engine, 64, arena, 1);
    assert_eq!(engine.plan(graph.0).expect_err("there is no memory").kind(), "Allocation");
    assert!(messages(&engine).is_empty());
    assert_eq!(engine.counters().fallbacks, 0);
}
