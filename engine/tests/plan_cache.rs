//! The plan cache: what tells two plans apart, why graphs are planned again, what is kept under a budget, and memory that is
//! reserved once.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use bevy_ecs::prelude::*;
use entensor::{
    ArenaId, Backend, BackendError, BackendIndex, DType, Engine, GraphBuilder, GraphId, Op, Plan, PlanCounters,
    PlanReason, PlanSalt, Shape, Strides, Tensor, TensorDesc, Usage,
    components::{
        BackendHandle, BufferKey, Capabilities, GraphTensors, MemoryHandle, MemoryKind, MemoryReport, OpDesc, Opaque,
        PipelineCopies, PreparedSplit, SplitView, Support, TensorFlags, TensorName,
    },
    systems::{Backends, CopiesFallback, DEFAULT_PLAN_BYTES, GraphNodes, NodeFacts, NodeTable, PlanCache},
};
use entensor_null::{NullBackend, NullConfig};
use entensor_oracle::OracleBackend;

fn oracle() -> Engine {
    Engine::builder().backend("oracle").verify_plans(true).build().expect("the oracle starts")
}

/// A chain of this many nodes, named after it.
fn chain(engine: &mut Engine, name: &str, nodes: usize) -> (GraphId, Tensor, Tensor) {
    let mut g = GraphBuilder::new(name);
    let x = g.input("x", DType::F32, &[4]).expect("a small input");
    let mut y = x;
    for _ in 0..nodes {
        y = g.relu(y).expect("shapes fit");
    }
    let y = g.output("y", y).expect("a free name");
    (engine.add_graph(g), x, y)
}

fn plan_of(engine: &Engine, graph: GraphId) -> Arc<Plan> {
    Arc::clone(engine.plan_of(graph).expect("it is planned"))
}

/// Plans a new graph of this length. Returns whether a plan was there already.
fn is_kept(engine: &mut Engine, nodes: usize) -> bool {
    let before = engine.counters();
    let graph = chain(engine, "again", nodes).0;
    engine.plan(graph).expect("it plans");
    engine.remove_graph(graph);
    let after = engine.counters();
    assert_eq!(after.planned + after.cached, before.planned + before.cached + 1);
    after.cached > before.cached
}

fn cache(engine: &Engine) -> &PlanCache {
    engine.world().resource::<PlanCache>()
}

#[test]
fn the_plan_not_used_for_longest_goes_first() {
    let mut engine = oracle();
    assert_eq!((cache(&engine).budget_bytes(), cache(&engine).is_empty()), (DEFAULT_PLAN_BYTES, true));
    let graphs = [10, 20, 30, 40].map(|nodes| (nodes, chain(&mut engine, "g", nodes)));
    let mut sizes = Vec::new();
    for (_, (graph, ..)) in graphs {
        engine.plan(graph).expect("it plans");
        sizes.push(plan_of(&engine, graph).size_bytes());
    }
    assert!(sizes.is_sorted() && sizes[0] > 0, "{sizes:?}");
    assert_eq!(cache(&engine).size_bytes(), sizes.iter().sum::<usize>());
    assert_eq!((cache(&engine).len(), cache(&engine).evicted()), (4, 0));

    // A look at the first one makes the second the oldest.
    assert!(is_kept(&mut engine, 10));
    let budget = sizes[0] + sizes[2] + sizes[3];
    engine.world_mut().resource_mut::<PlanCache>().set_budget(budget);
    assert_eq!((cache(&engine).len(), cache(&engine).evicted()), (3, 1), "those above the budget go now");
    assert_eq!((cache(&engine).size_bytes(), cache(&engine).budget_bytes()), (budget, budget));
    for kept in [40, 10, 30] {
        assert!(is_kept(&mut engine, kept), "{kept}");
    }
    // It is made anew, and takes the place of what is the oldest now.
    assert!(!is_kept(&mut engine, 20));
    assert_eq!((cache(&engine).len(), cache(&engine).evicted()), (3, 2));
    assert!(cache(&engine).size_bytes() <= budget);
    for (nodes, kept) in [(20, true), (30, true), (10, true), (40, false)] {
        assert_eq!(is_kept(&mut engine, nodes), kept, "{nodes}");
    }

    // Graphs keep their plans, whatever the cache does.
    let counters = engine.counters();
    engine.world_mut().resource_mut::<PlanCache>().clear();
    assert_eq!((cache(&engine).len(), cache(&engine).size_bytes()), (0, 0));
    for (_, (graph, x, y)) in graphs {
        engine.write(graph, x, &[1.0_f32, -1.0, 2.0, -2.0]).expect("an input");
        engine.run(graph).expect("it runs");
        let mut result = [0.0_f32; 4];
        engine.read(graph, y, &mut result).expect("an output");
        assert_eq!(result, [1.0, 0.0, 2.0, 0.0]);
    }
    assert_eq!(engine.counters().planned, counters.planned);
}

/// A budget that nothing fits into keeps the newest plan, so that a graph that is made again and again is planned once.
#[test]
fn the_newest_plan_stays_whatever_the_budget() {
    let mut engine = oracle();
    engine.world_mut().insert_resource(PlanCache::with_budget(0));
    assert!(!is_kept(&mut engine, 30));
    for _ in 0..5 {
        assert!(is_kept(&mut engine, 30));
    }
    assert_eq!((cache(&engine).len(), cache(&engine).evicted()), (1, 0));
    assert!(!is_kept(&mut engine, 5));
    assert!(!is_kept(&mut engine, 30));
    assert_eq!((cache(&engine).len(), cache(&engine).evicted()), (1, 2));
    assert!(cache(&engine).size_bytes() > 0);
}

#[test]
fn hundreds_of_plans_stay_under_the_budget() {
    let mut engine = oracle();
    let one = {
        let graph = chain(&mut engine, "g", 50).0;
        engine.plan(graph).expect("it plans");
        plan_of(&engine, graph).size_bytes()
    };
    let budget = 20 * one;
    engine.world_mut().insert_resource(PlanCache::with_budget(budget));
    for nodes in 1..300 {
        assert!(!is_kept(&mut engine, nodes));
        let cache = cache(&engine);
        assert!(cache.size_bytes() <= budget && !cache.is_empty(), "{} bytes", cache.size_bytes());
        assert_eq!(cache.len() as u64 + cache.evicted(), nodes as u64);
    }
    assert!(cache(&engine).evicted() > 200);
    assert!(is_kept(&mut engine, 299) && !is_kept(&mut engine, 1));
}

/// Every look at a graph has one reason, and every counter says what it is about.
#[test]
fn every_look_is_counted_by_its_reason() {
    let mut engine = oracle();
    let (graph, x, _) = chain(&mut engine, "g", 3);
    let mut expected = PlanCounters::default();
    let step = |engine: &mut Engine, expected: &PlanCounters| {
        engine.write(graph, x, &[1.0_f32; 4]).expect("an input");
        engine.run(graph).expect("it runs");
        assert_eq!(&engine.counters(), expected);
    };
    // `write` has to know where the input is, so it plans; the run then finds nothing changed.
    expected.planned = 1;
    expected.unchanged = 1;
    expected.reasons.insert(PlanReason::First, 1);
    step(&mut engine, &expected);
    for _ in 0..3 {
        expected.unchanged += 1;
        step(&mut engine, &expected);
    }
    // Something in the graph: the same value again is a look, but no plan.
    let tensor = engine.entity(graph, x).expect("it exists");
    engine.world_mut().entity_mut(tensor).insert(TensorName("x".into()));
    expected.cached = 1;
    expected.unchanged += 1;
    expected.reasons.insert(PlanReason::Graph, 1);
    step(&mut engine, &expected);
    engine.world_mut().entity_mut(tensor).insert(TensorName("renamed".into()));
    expected.planned = 2;
    expected.unchanged += 1;
    expected.reasons.insert(PlanReason::Graph, 2);
    step(&mut engine, &expected);
    // Something that graphs share.
    engine.create_buffer("other", BackendIndex(0), Usage::Any, 64).expect("64 bytes");
    expected.cached += 1;
    expected.unchanged += 1;
    expected.reasons.insert(PlanReason::Shared, 1);
    step(&mut engine, &expected);
    // The users' number, there and back.
    for (salt, planned) in [(7, true), (0, false), (7, false)] {
        engine.world_mut().insert_resource(PlanSalt(salt));
        expected.planned += u64::from(planned);
        expected.cached += u64::from(!planned);
        expected.unchanged += 1;
        *expected.reasons.entry(PlanReason::Salt).or_default() += 1;
        step(&mut engine, &expected);
    }
    // A second graph that is alike has the reason that it is new.
    let second = chain(&mut engine, "second", 3).0;
    engine.plan(second).expect("it plans");
    expected.planned += 1;
    *expected.reasons.entry(PlanReason::First).or_default() += 1;
    assert_eq!(engine.counters(), expected, "its input has another name");
    let third = chain(&mut engine, "third", 3).0;
    engine.plan(third).expect("it plans");
    expected.cached += 1;
    *expected.reasons.entry(PlanReason::First).or_default() += 1;
    assert_eq!(engine.counters(), expected);
    assert_eq!(expected.fallbacks, 0);
}

/// All that a plan of one small graph is made from.
#[derive(Clone)]
struct Baked {
    scale: f32,
    dtype: DType,
    dims: [u64; 2],
    /// Bytes from one row of `x`, which is f32 then, to the next; `None` for packed rows.
    row_stride: Option<u64>,
    /// The byte that a view starts at.
    view_offset: u64,
    swapped: bool,
    pin: Option<u32>,
    output: bool,
    wanted: bool,
    copies: u32,
    salt: u64,
    node_name: &'static str,
    weight_name: &'static str,
    buffer_name: &'static str,
    buffer_on: usize,
    buffer_bytes: u64,
    place_bytes: u64,
    usage: Usage,
    opaque: bool,
    /// Which of two machines: the same but for instances of backends.
    machine: usize,
}

impl Default for Baked {
    fn default() -> Self {
        Self {
            scale: 0.0,
            dtype: DType::F32,
            dims: [8, 4],
            row_stride: None,
            view_offset: 0,
            swapped: false,
            pin: None,
            output: false,
            wanted: false,
            copies: 1,
            salt: 0,
            node_name: "scaled",
            weight_name: "w",
            buffer_name: "weights",
            buffer_on: 1,
            buffer_bytes: 512,
            place_bytes: 0,
            usage: Usage::Weights,
            opaque: false,
            machine: 0,
        }
    }
}

/// Two backends that share no memory; `offload_batch` is a policy that no fact of the graph shows.
fn machine(offload_batch: Option<u64>) -> Vec<Arc<dyn Backend>> {
    let mut gpu = NullConfig::host("gpu");
    let memory = MemoryKind("gpu memory".into());
    gpu.capabilities.reads = vec![memory.clone()];
    gpu.capabilities.memory = memory;
    gpu.capabilities.buffer_type = "gpu".into();
    gpu.capabilities.offload_batch = offload_batch;
    vec![Arc::new(NullBackend::new(gpu)), Arc::new(NullBackend::new(NullConfig::host("host")))]
}

/// Adds the graph and plans it. Each has a buffer of its own: which one it is, is no part of a plan.
fn plan_baked(engine: &mut Engine, machines: &[Vec<Arc<dyn Backend>>; 2], baked: &Baked) -> Arc<Plan> {
    engine.world_mut().insert_resource(Backends(machines[baked.machine].clone()));
    engine.world_mut().insert_resource(PlanSalt(baked.salt));
    let on = BackendIndex(u32::try_from(baked.buffer_on).expect("two backends"));
    let buffer = engine.create_buffer(baked.buffer_name, on, baked.usage, baked.buffer_bytes).expect("some bytes");
    if baked.opaque {
        engine.world_mut().entity_mut(buffer.0).insert(Opaque(true));
    }
    let w = engine.tensor_in(baked.weight_name, DType::F32, &[8, 4], buffer, baked.place_bytes).expect("it fits");
    let mut g = GraphBuilder::new("any name");
    g.pipeline_copies(baked.copies);
    let w = g.shared(&w).expect("one shared tensor");
    let x = g.input("x", baked.dtype, &baked.dims).expect("a small input");
    let scaled = g.scale(x, baked.scale).expect("shapes fit");
    let scaled = g.name(baked.node_name, scaled).expect("a free name");
    if let Some(pin) = baked.pin {
        g.pin(scaled, BackendIndex(pin)).expect("own tensor");
    }
    if baked.output {
        g.output(baked.node_name, scaled).expect("its name");
    }
    let part = g.view(scaled, baked.view_offset, [4, 2, 1, 1], None).expect("it is inside");
    let part = g.relu(part).expect("shapes fit");
    let product = g.mul(w, w).expect("shapes fit");
    let other = g.silu(product).expect("shapes fit");
    let last = if baked.swapped { g.sub(other, product) } else { g.sub(product, other) }.expect("shapes fit");
    let last = g.output("last", last).expect("a free name");
    g.output("part", part).expect("a free name");
    let graph = engine.add_graph(g);
    if let Some(stride) = baked.row_stride {
        let x = engine.entity(graph, x).expect("it exists");
        let strides = Strides([4, stride, stride * 4, stride * 4]);
        engine.world_mut().entity_mut(x).insert(strides);
    }
    if baked.wanted {
        engine.want(graph, &[last, scaled, part]).expect("they exist");
    }
    engine.plan(graph).expect("it plans");
    plan_of(engine, graph)
}

#[test]
fn whatever_is_baked_into_a_plan_tells_plans_apart() {
    let variants: Vec<(&str, Baked)> = vec![
        ("as it is", Baked::default()),
        ("a parameter", Baked { scale: 2.0, ..Baked::default() }),
        ("minus zero", Baked { scale: -0.0, ..Baked::default() }),
        ("the next number", Baked { scale: f32::from_bits(1), ..Baked::default() }),
        ("infinity", Baked { scale: f32::INFINITY, ..Baked::default() }),
        ("minus infinity", Baked { scale: f32::NEG_INFINITY, ..Baked::default() }),
        ("dtype", Baked { dtype: DType::F16, ..Baked::default() }),
        ("shape", Baked { dims: [4, 8], ..Baked::default() }),
        ("strides", Baked { row_stride: Some(64), ..Baked::default() }),
        ("other strides", Baked { row_stride: Some(96), ..Baked::default() }),
        ("view offset", Baked { view_offset: 16, ..Baked::default() }),
        ("operands", Baked { swapped: true, ..Baked::default() }),
        ("a pin", Baked { pin: Some(0), ..Baked::default() }),
        ("another pin", Baked { pin: Some(1), ..Baked::default() }),
        ("a flag", Baked { output: true, ..Baked::default() }),
        ("what is wanted", Baked { wanted: true, ..Baked::default() }),
        ("copies", Baked { copies: 2, ..Baked::default() }),
        ("more copies", Baked { copies: 3, ..Baked::default() }),
        ("salt", Baked { salt: 1, ..Baked::default() }),
        ("a node's name", Baked { node_name: "other", ..Baked::default() }),
        ("a leaf's name", Baked { weight_name: "v", ..Baked::default() }),
        ("a buffer's name", Baked { buffer_name: "others", ..Baked::default() }),
        ("memory kind", Baked { buffer_on: 0, ..Baked::default() }),
        ("a buffer's size", Baked { buffer_bytes: 640, ..Baked::default() }),
        ("a place in a buffer", Baked { place_bytes: 64, ..Baked::default() }),
        ("usage", Baked { usage: Usage::Any, ..Baked::default() }),
        ("a private layout", Baked { opaque: true, ..Baked::default() }),
        ("policy", Baked { machine: 1, ..Baked::default() }),
    ];
    let machines = [machine(None), machine(Some(1))];
    let mut builder = Engine::builder().verify_plans(true);
    for backend in &machines[0] {
        builder = builder.backend_instance(Arc::clone(backend));
    }
    let mut engine = builder.build().expect("null backends start");
    let mut plans: Vec<Arc<Plan>> = Vec::new();
    for (what, baked) in &variants {
        let plan = plan_baked(&mut engine, &machines, baked);
        let same = plans.iter().position(|other| Arc::ptr_eq(other, &plan));
        assert_eq!(same.map(|i| variants[i].0), None, "{what}");
        plans.push(plan);
    }
    assert_eq!((engine.counters().planned, engine.counters().cached), (variants.len() as u64, 0));
    // And graphs that are built alike share: in any order, each with buffers and tensors of its own.
    for (i, (what, baked)) in variants.iter().enumerate().rev() {
        let plan = plan_baked(&mut engine, &machines, baked);
        assert!(Arc::ptr_eq(&plan, &plans[i]), "{what}");
    }
    assert_eq!((engine.counters().planned, engine.counters().cached), (variants.len() as u64, variants.len() as u64));
}

/// Parameters are compared bit by bit: a NaN, which no op takes today, would be equal to itself, and zero not to minus zero.
#[test]
fn parameters_are_compared_by_their_bits() {
    let table = |by: f32| {
        let desc = TensorDesc::packed(DType::F32, Shape([4, 1, 1, 1])).expect("a small tensor");
        let facts = |name: &str, op: Op| NodeFacts {
            name: name.into(),
            desc,
            op,
            root: None,
            offset_bytes: 0,
            flags: TensorFlags::default(),
            pin: None,
        };
        let mut table = NodeTable::with_capacity(2);
        table.push(facts("x", Op::None {}), []);
        table.leaves = 1;
        table.push(facts("y", Op::Scale { by }), [0]);
        table
    };
    let bits = [0, 1, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x7fc0_0001, 0xffc0_0000, 0x3f80_0000];
    for a in bits {
        for b in bits {
            let (one, other) = (table(f32::from_bits(a)), table(f32::from_bits(b)));
            assert_eq!(one == other, a == b, "{a:#x} and {b:#x}");
            assert!(a != b || one.hash() == other.hash());
        }
    }
}

/// A table that `index` gathers from components is the one that the builder left: edited graphs share plans with others too.
#[test]
fn a_graph_by_hand_shares_the_plan_of_one_that_was_built() {
    let mut engine = oracle();
    let built = chain(&mut engine, "built", 5).0;
    engine.plan(built).expect("it plans");
    let gathered = chain(&mut engine, "gathered", 5).0;
    engine.world_mut().entity_mut(gathered.0).remove::<GraphNodes>();
    engine.plan(gathered).expect("it plans");
    assert!(Arc::ptr_eq(&plan_of(&engine, built), &plan_of(&engine, gathered)));
    assert!(engine.world().get::<GraphNodes>(gathered.0).is_some(), "the next time need not gather");
    // Edited and edited back is what it was.
    let nodes = engine.world().get::<GraphTensors>(gathered.0).expect("a graph").0.clone();
    let op = engine.world().get::<Op>(nodes[3]).expect("a tensor").clone();
    engine.world_mut().entity_mut(nodes[3]).insert(Op::Silu {});
    engine.plan(gathered).expect("it plans");
    assert!(!Arc::ptr_eq(&plan_of(&engine, built), &plan_of(&engine, gathered)));
    engine.world_mut().entity_mut(nodes[3]).insert(op);
    engine.plan(gathered).expect("it plans");
    assert!(Arc::ptr_eq(&plan_of(&engine, built), &plan_of(&engine, gathered)));
    assert_eq!((engine.counters().planned, engine.counters().cached), (2, 2));
}

/// A backend that replaces another of its name is another one, for plans and for memory.
#[test]
fn a_backend_that_replaces_another_makes_plans_of_its_own() {
    let mut engine = Engine::builder()
        .backend_instance(Arc::new(OracleBackend::new("host")))
        .verify_plans(true)
        .build()
        .expect("the oracle starts");
    let (graph, x, y) = chain(&mut engine, "g", 3);
    let run = |engine: &mut Engine| {
        engine.write(graph, x, &[1.0_f32, -1.0, 2.0, -2.0]).expect("an input");
        engine.run(graph).expect("it runs");
        let mut result = [0.0_f32; 4];
        engine.read(graph, y, &mut result).expect("an output");
        assert_eq!(result, [1.0, 0.0, 2.0, 0.0]);
        plan_of(engine, graph)
    };
    let first = run(&mut engine);
    let other: Arc<dyn Backend> = Arc::new(OracleBackend::new("host"));
    let world = engine.world_mut();
    world.insert_resource(Backends(vec![Arc::clone(&other)]));
    let entity = world.query_filtered::<Entity, With<BackendHandle>>().single(world).expect("one backend");
    world.entity_mut(entity).insert(BackendHandle(Arc::clone(&other)));
    let second = run(&mut engine);
    assert!(!Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&second.backends[0].handle, &other));
    assert_eq!(other.memory_report().ours_bytes, second.planned_bytes());
    let counters = engine.counters();
    assert_eq!((counters.planned, counters.cached), (2, 0));
    assert_eq!(counters.reasons.get(&PlanReason::Shared), Some(&1));
}

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
