//! Random graphs on random machines: a proved plan or a typed error, the same one twice, and the same numbers wherever it runs.
//!
//! `ENTENSOR_CASES` sets how many seeds are tried. A failure prints its seed and text.

mod common;

use std::{collections::BTreeMap, env, sync::Arc};

use bevy_ecs::prelude::*;
use common::Planned;
use entensor::graph_text::{GraphText, Origin};
use entensor_components::{
    Backend, BackendError, BufferKey, Capabilities, DType, DTypeClass, ImportedBytes, MemoryHandle, MemoryReport,
    OpDesc, PreparedSplit, SplitView, Support, TensorDesc, Usage,
};
use entensor_null::NullBackend;
use entensor_oracle::OracleBackend;
use entensor_snapshots::generate::{Limits, Random, case};
use entensor_systems::{
    GraphPlan, Plan, PlanError, PlanSalt, PlanStatus, Planning, Recording, plan_schedule, run_plan, verify,
};

fn cases(standard: u64) -> u64 {
    env::var("ENTENSOR_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(standard)
}

fn parse(seed: u64, text: &str) -> GraphText {
    GraphText::parse("case.graph", text).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"))
}

#[test]
fn random_graphs_give_a_proved_plan_or_a_typed_error_and_the_same_twice() {
    let count = cases(2000);
    let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
    let mut planned_count = 0;
    for seed in 0..count {
        let source = case(seed, Limits::default());
        let text = parse(seed, &source);
        assert_eq!(parse(seed, &text.to_string()), text, "seed {seed}");
        let mut world = World::new();
        let Ok(graph) = text.spawn(&mut world) else {
            *errors.entry("memory").or_default() += 1;
            continue;
        };
        let mut planned = Planned { world, graph, schedule: plan_schedule(Recording::On) };
        planned.plan();
        let first = planned.text();
        match planned.result() {
            Ok(plan) => {
                verify(&plan).unwrap_or_else(|violations| panic!("seed {seed}: {violations:?}\n{source}\n{first}"));
                for node in 0..plan.node_count() {
                    assert!(!plan.why(node).is_empty());
                }
                assert!(plan.planned_bytes() >= plan.lower_bound_bytes, "seed {seed}\n{source}\n{first}");
                planned_count += 1;
            }
            Err(error) => {
                assert!(
                    !matches!(error, PlanError::Misplaced { .. } | PlanError::Unplaced { .. }),
                    "seed {seed}: {error}\n{source}"
                );
                *errors.entry(error.kind()).or_default() += 1;
            }
        }
        planned.world.insert_resource(PlanSalt(1));
        planned.plan();
        assert_eq!(planned.text(), first, "seed {seed}\n{source}");
    }
    println!("{planned_count} of {count} planned; errors: {errors:?}");
    assert!(planned_count * 3 > count, "too few cases are plannable: {errors:?}");
}

/// What a machine's line says, with the oracle's numbers.
struct Device {
    claims: NullBackend,
    oracle: OracleBackend,
}

impl Backend for Device {
    fn name(&self) -> &str {
        self.claims.name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.claims.capabilities()
    }

    fn support(&self, op: &OpDesc<'_>) -> Support {
        match self.claims.support(op) {
            Support::Yes => self.oracle.support(op),
            no => no,
        }
    }

    fn create_buffer(&self, size_bytes: u64, usage: Usage) -> Result<BufferKey, BackendError> {
        self.oracle.create_buffer(size_bytes, usage)
    }

    fn import_host(&self, bytes: Arc<dyn ImportedBytes>) -> Result<BufferKey, BackendError> {
        self.oracle.import_host(bytes)
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

fn devices(text: &GraphText) -> Vec<Arc<dyn Backend>> {
    let device = |line: &entensor::graph_text::BackendText| {
        let oracle = OracleBackend::with_capabilities(line.name.to_string(), line.capabilities.clone());
        Arc::new(Device { claims: NullBackend::new(line.null_config()), oracle }) as Arc<dyn Backend>
    };
    text.machine().iter().map(device).collect()
}

/// Bytes of sensible values for a tensor, the same for a name wherever it lies.
fn contents(name: &str, round: u64, desc: &TensorDesc) -> Vec<u8> {
    let elements = desc.shape.elements().expect("small");
    let seed = name.bytes().fold(round, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut random = Random::new(seed);
    let is_integer = desc.dtype.row().class == DTypeClass::Integer;
    // Two rows are what nearly every table has.
    let value =
        |random: &mut Random| if is_integer { random.below(2) as f32 } else { random.below(64) as f32 / 16.0 - 2.0 };
    let values: Vec<f32> = (0..elements).map(|_| value(&mut random)).collect();
    let mut bytes = vec![0; usize::try_from(desc.size_bytes()).expect("small")];
    (desc.dtype.row().quantize)(&values, &mut bytes);
    bytes
}

/// The bytes of a tensor's elements, without the holes between them.
fn elements(desc: &TensorDesc, span: &[u8]) -> Vec<u8> {
    let unit = desc.dtype.block_bytes();
    let [blocks, rows, planes, cubes] = desc.shape.0;
    let blocks = blocks / desc.dtype.block_elements();
    let mut bytes = Vec::new();
    for (d, c) in (0..cubes).flat_map(|d| (0..planes).map(move |c| (d, c))) {
        for (b, a) in (0..rows).flat_map(|b| (0..blocks).map(move |a| (b, a))) {
            let [s0, s1, s2, s3] = desc.strides.0;
            let start = usize::try_from(a * s0 + b * s1 + c * s2 + d * s3).expect("small");
            bytes.extend(&span[start..start + usize::try_from(unit).expect("small")]);
        }
    }
    bytes
}

struct Run {
    world: World,
    graph: Entity,
    plan: Arc<Plan>,
}

impl Run {
    fn new(text: &GraphText) -> Option<Self> {
        let mut world = World::new();
        let graph = text.spawn_on(&mut world, devices(text)).ok()?;
        world.insert_resource(Planning(graph));
        world.insert_resource(PlanStatus::Planning);
        plan_schedule(Recording::Off).run(&mut world);
        let plan = Arc::clone(&world.get::<GraphPlan>(graph)?.plan);
        Some(Self { world, graph, plan })
    }

    fn leaf(&self, node: usize, slot: u32, bytes: &[u8]) {
        let place = self.plan.locate(node, slot).expect("every tensor has a place");
        let memory = &self.memory()[place.memory.0 as usize];
        self.plan.backends[self.plan.node(node).backend as usize]
            .handle
            .write(memory, place.offset_bytes, bytes)
            .expect("it fits");
    }

    fn memory(&self) -> &[MemoryHandle] {
        &self.world.get::<GraphPlan>(self.graph).expect("it is planned").binding
    }

    fn read(&self, node: usize, slot: u32) -> Vec<u8> {
        let place = self.plan.locate(node, slot).expect("every tensor has a place");
        let memory = &self.memory()[place.memory.0 as usize];
        let mut span = vec![0; usize::try_from(place.desc.size_bytes()).expect("small")];
        let backend = &self.plan.backends[self.plan.node(node).backend as usize].handle;
        backend.read(memory, place.offset_bytes, &mut span).expect("it is there");
        elements(&place.desc, &span)
    }

    /// Runs every slot twice, and says what outputs and existing memory hold after each run.
    fn results(&self) -> Vec<(String, Result<Vec<u8>, String>)> {
        let mut results = Vec::new();
        for (i, node) in self.plan.nodes().enumerate().filter(|(_, node)| node.existing.is_some()) {
            self.leaf(i, 0, &contents(node.name, 0, &node.desc));
        }
        let slots = u32::try_from(self.plan.programs.len()).expect("few");
        for run in 0..slots * 2 {
            let slot = run % slots;
            for (i, node) in self.plan.nodes().enumerate().filter(|(_, node)| node.flags.input) {
                self.leaf(i, slot, &contents(node.name, u64::from(run), &node.desc));
            }
            if let Err(PlanError::Run { source, .. }) = run_plan(&self.plan, self.memory(), slot) {
                // Row ids outside their table are the same fault everywhere, and end the run.
                results.push((format!("run {run}"), Err(source.to_string())));
                return results;
            }
            for (i, node) in self.plan.nodes().enumerate().filter(|(_, n)| n.flags.output || n.existing.is_some()) {
                results.push((format!("run {run}: {}", node.name), Ok(self.read(i, slot))));
            }
        }
        results
    }
}

/// The same graph on a machine whose backends are all one host: nothing is copied there, nothing is far away.
fn on_one_host(source: &str) -> String {
    let line = |line: &str| match line.strip_prefix("backend ").and_then(|rest| rest.split(' ').next()) {
        Some(name) => format!("backend {name} memory=host"),
        None => line.to_owned(),
    };
    source.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_legal_placement_gives_the_same_bits() {
    let count = cases(400);
    let (mut compared, mut spread) = (0, 0);
    for seed in 0..count {
        let source = case(seed, Limits { scratch: false, nodes: 16 });
        let text = parse(seed, &source);
        let Some(many) = Run::new(&text) else { continue };
        let one = Run::new(&parse(seed, &on_one_host(&source)));
        let one = one.unwrap_or_else(|| panic!("seed {seed}: the easier machine has no plan\n{source}"));
        assert_eq!(one.plan.copies_made(), 0, "seed {seed}");
        let (many_results, one_results) = (many.results(), one.results());
        assert_eq!(many_results.len(), one_results.len(), "seed {seed}\n{source}");
        for ((name, many), (_, one)) in many_results.iter().zip(&one_results) {
            assert_eq!(many, one, "seed {seed}, {name}\n{source}");
        }
        compared += 1;
        spread += u64::from(many.plan.copies_made() > 0);
    }
    println!("{compared} of {count} compared, {spread} of them with copies between memories");
    assert!(compared * 4 > count && spread * 10 > count, "{compared} compared, {spread} with copies");
}

#[test]
fn generated_cases_hold_what_they_are_for() {
    let mut seen = [0_u32; 6];
    for seed in 0..300 {
        let text = parse(seed, &case(seed, Limits::default()));
        let rows = || {
            text.tensors().iter().filter_map(|t| match &t.origin {
                Origin::Node { op, .. } => Some(op.row()),
                _ => None,
            })
        };
        let found = [
            rows().any(|row| row.view),
            rows().any(|row| row.writes.is_some()),
            text.tensors().iter().any(|t| t.origin == Origin::Scratch),
            text.tensors().iter().any(|t| t.pin.is_some()),
            text.buffers().iter().any(|b| b.opaque),
            text.tensors().iter().any(|t| t.desc.dtype == DType::Q8_0),
        ];
        for (count, found) in seen.iter_mut().zip(found) {
            *count += u32::from(found);
        }
    }
    assert!(seen.iter().all(|&count| count >= 15), "{seen:?}");
}
