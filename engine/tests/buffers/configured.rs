//! What callers choose of a backend: the type of planned memory, and the work that it takes from the host.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use entensor::{
    Backend, BackendConfig, BackendError, Cause, DType, Engine, EngineError, GraphBuilder, OffloadPolicy, OpKind,
    Usage,
    components::{
        BufferKey, BufferTypeInfo, Capabilities, MemoryHandle, MemoryKind, MemoryReport, OpDesc, PreparedSplit,
        SplitView, Support,
    },
};
use entensor_oracle::OracleBackend;

/// What tensors of the second type begin at, and what their sizes are a multiple of.
const UNIT_BYTES: u64 = 256;

/// An oracle with three types of buffers; notes which of them it made.
struct Types {
    oracle: OracleBackend,
    made: Mutex<Vec<(String, u64, Usage)>>,
    ordinary: AtomicU64,
}

impl Backend for Types {
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
        self.ordinary.fetch_add(1, Ordering::Relaxed);
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

    fn buffer_types(&self) -> Vec<BufferTypeInfo> {
        let ordinary = BufferTypeInfo::of(self.capabilities());
        let coarse = BufferTypeInfo {
            name: "coarse".into(),
            align_bytes: UNIT_BYTES,
            pad_bytes: UNIT_BYTES,
            max_buffer_bytes: 1 << 20,
            ..ordinary.clone()
        };
        let far = BufferTypeInfo { name: "far".into(), memory: MemoryKind("far".into()), ..ordinary.clone() };
        let private = BufferTypeInfo { name: "private".into(), opaque: true, ..ordinary.clone() };
        vec![ordinary, coarse, far, private]
    }

    fn create_buffer_of(&self, buffer_type: &str, size_bytes: u64, usage: Usage) -> Result<BufferKey, BackendError> {
        if let Ok(mut made) = self.made.lock() {
            made.push((buffer_type.into(), size_bytes, usage));
        }
        self.oracle.create_buffer(size_bytes, usage)
    }
}

fn types() -> Arc<Types> {
    Arc::new(Types { oracle: OracleBackend::new("host"), made: Mutex::default(), ordinary: AtomicU64::new(0) })
}

fn of_type(buffer_type: &str) -> BackendConfig {
    BackendConfig { buffer_type: Some(buffer_type.into()), ..BackendConfig::default() }
}

fn refusal(buffer_type: &str) -> String {
    let builder = Engine::builder().backend_instance(types()).configure("host", of_type(buffer_type));
    builder.build().err().expect("not to be planned with").to_string()
}

#[test]
fn planned_memory_is_of_the_type_that_the_caller_chose() {
    let backend = types();
    let builder = Engine::builder().verify_plans(true).backend_instance(Arc::clone(&backend) as Arc<dyn Backend>);
    let mut engine = builder.configure("HOST", of_type("coarse")).build().expect("it makes that type");
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, &[3]).expect("a small input");
    let z = g.input("z", DType::F32, &[3]).expect("a small input");
    let y = g.add(x, z).expect("shapes fit");
    let y = g.output("y", y).expect("a free name");
    let graph = engine.add_graph(g);
    engine.write(graph, x, &[1.0_f32, 2.0, 3.0]).expect("an input");
    engine.write(graph, z, &[4.0_f32, 5.0, 6.0]).expect("an input");
    engine.run(graph).expect("it runs");
    let mut result = [0.0_f32; 3];
    engine.read(graph, y, &mut result).expect("an output");
    assert_eq!(result, [5.0, 7.0, 9.0]);

    // Each of the three tensors has a place of the type's own unit; nothing was made of the other type.
    let made = backend.made.lock().expect("nobody panicked").clone();
    assert_eq!(made, [("coarse".to_owned(), 3 * UNIT_BYTES, Usage::Compute)]);
    assert_eq!(backend.ordinary.load(Ordering::Relaxed), 0);
    let buffers = engine.compute_buffers(graph).expect("planned");
    assert!(buffers.len() == 1 && *buffers[0].buffer_type == *"coarse");
    assert_eq!(&*engine.backends()[0].buffer_types()[0].name, "coarse");
    assert_eq!(engine.backends()[0].buffer_types().len(), 4, "the others can still be asked for");

    // Larger than a buffer of the type may be.
    let error = engine.create_buffer("large", engine.host(), Usage::Any, 2 << 20).expect_err("too large");
    assert!(matches!(error, EngineError::Backend { source: BackendError::BufferTooLarge { .. }, .. }), "{error}");
}

#[test]
fn what_cannot_be_planned_with_is_refused() {
    assert!(refusal("none").contains("it makes: host, coarse, far, private"), "{}", refusal("none"));
    assert!(refusal("private").contains("its layout is private"), "{}", refusal("private"));
    assert!(refusal("far").contains("does not compute on that memory"), "{}", refusal("far"));
    let unknown = Engine::builder().backend_instance(types()).configure("gpu", of_type("coarse")).build();
    let text = unknown.err().expect("there is no gpu").to_string();
    assert!(text.contains("there is no backend `gpu`; there are: host"), "{text}");
}

/// Where a product of eight columns with weights on the host runs, and why.
fn product_with(policy: Option<OffloadPolicy>) -> (u32, Cause, String) {
    let memory = MemoryKind("device0".into());
    let capabilities = Capabilities {
        reads: vec![memory.clone()],
        memory,
        buffer_type: "device0".into(),
        offload_batch: Some(32),
        ..Capabilities::host()
    };
    let device: Arc<dyn Backend> = Arc::new(OracleBackend::with_capabilities("device", capabilities));
    let host: Arc<dyn Backend> = Arc::new(OracleBackend::new("host"));
    let builder = Engine::builder().verify_plans(true).backend_instance(device).backend_instance(host);
    let config = BackendConfig { offload: policy, ..BackendConfig::default() };
    let mut engine = builder.configure("device", config).build().expect("oracles start");
    let w = engine.weights("w", DType::F32, &[4, 4], &[1.0; 16]).expect("16 values");
    let mut g = GraphBuilder::new("g");
    let w = g.shared(&w).expect("one tensor");
    let x = g.input("x", DType::F32, &[4, 8]).expect("a small input");
    let y = g.mul_mat(w, x).expect("shapes fit");
    let y = g.output("y", y).expect("a free name");
    let graph = engine.add_graph(g);
    engine.write(graph, x, &[1.0_f32; 32]).expect("an input");
    engine.run(graph).expect("it runs");
    let mut result = [0.0_f32; 32];
    engine.read(graph, y, &mut result).expect("an output");
    assert_eq!(result, [4.0; 32]);
    let plan = engine.plan_of(graph).expect("planned");
    let node = plan.find("y").expect("it is named");
    (plan.placements[node], plan.causes[node], plan.why(node))
}

#[test]
fn callers_choose_what_is_offloaded() {
    let (backend, cause, why) = product_with(None);
    assert_eq!((backend, cause), (1, Cause::Weights), "{why}");
    assert!(why.contains("batch 8 below offload threshold 32 of device"), "{why}");
    let (backend, cause, why) = product_with(Some(OffloadPolicy::from_batch(8)));
    assert_eq!((backend, cause), (0, Cause::Offload), "{why}");
    assert!(why.contains("batch 8 reaches offload threshold 8 of device"), "{why}");
    let (backend, _, why) = product_with(Some(OffloadPolicy::never()));
    assert_eq!(backend, 1);
    assert!(why.contains("device takes no work from the host"), "{why}");
    // One op apart from the others.
    let policy = OffloadPolicy::from_batch(1).with_op(OpKind::MulMat, Some(9));
    let (backend, _, why) = product_with(Some(policy));
    assert_eq!(backend, 1);
    assert!(why.contains("batch 8 below offload threshold 9 of device"), "{why}");
    let policy = OffloadPolicy::never().with_op(OpKind::MulMat, Some(2));
    assert_eq!(product_with(Some(policy)).0, 0);
}
