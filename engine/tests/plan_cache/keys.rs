//! What tells plans apart, and what does not.

use super::*;

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
    consumed: bool,
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
            consumed: false,
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
    let x = if baked.consumed { GraphBuilder::consumed_input } else { GraphBuilder::input };
    let x = x(&mut g, "x", baked.dtype, &baked.dims).expect("a small input");
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
        ("an input that runs consume", Baked { consumed: true, ..Baked::default() }),
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
        let mut table = NodeTableBuilder::with_capacity(2);
        table.push(facts("x", Op::None {}), []);
        table.push(facts("y", Op::Scale { by }), [0]);
        table.build(1)
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
