//! The oracle as several devices, and what a plan computes on them.

use std::sync::Arc;

use entensor::graph_text::{BackendText, GraphText};
use entensor_components::{
    Backend, BackendError, BackendIndex, BufferKey, Capabilities, DTypeClass, GraphTensors, ImportedBytes,
    MemoryHandle, MemoryReport, OpDesc, Pinned, PipelineCopies, PreparedSplit, SplitView, Support, TensorDesc,
    TensorFlags, Usage,
};
use entensor_null::NullBackend;
use entensor_oracle::OracleBackend;
use entensor_snapshots::generate::Random;
use entensor_systems::{GraphPlan, Plan, PlanError, run_plan};

use super::planning::Planner;

/// What a machine's line says, with the oracle's numbers.
struct Device {
    claims: NullBackend,
    oracle: OracleBackend,
}

impl Device {
    fn of(line: &BackendText) -> Arc<dyn Backend> {
        let oracle = OracleBackend::with_capabilities(line.name.to_string(), line.capabilities.clone());
        Arc::new(Self { claims: NullBackend::new(line.null_config()), oracle })
    }
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

/// What one run left: outputs and existing tensors, by name; or the fault of the data that ended it.
pub(super) type Outcome = Result<Vec<(Arc<str>, Vec<u8>)>, String>;

/// A graph on the oracle's devices.
pub(super) struct Machine<'a> {
    pub(super) planner: &'a mut Planner,
}

impl<'a> Machine<'a> {
    /// `None` when existing memory does not fit.
    pub(super) fn new(planner: &'a mut Planner, text: &GraphText) -> Option<Self> {
        planner.spawn(text, text.machine().iter().map(Device::of).collect()).ok()?;
        Some(Self { planner })
    }

    /// Pins tensors, by their place in the text, and says how many slots there are.
    pub(super) fn set(&mut self, pins: &[Option<u32>], copies: u32) {
        let Planner { world, graph, .. } = &mut *self.planner;
        let tensors = world.get::<GraphTensors>(*graph).expect("it was spawned").0.clone();
        for (tensor, pin) in tensors.into_iter().zip(pins) {
            let pinned = Pinned(pin.map(BackendIndex));
            if world.get::<Pinned>(tensor) != Some(&pinned) {
                world.entity_mut(tensor).insert(pinned);
            }
        }
        if world.get::<PipelineCopies>(*graph) != Some(&PipelineCopies(copies)) {
            world.entity_mut(*graph).insert(PipelineCopies(copies));
        }
    }

    /// Has runs consume every input, or none.
    pub(super) fn consume_inputs(&mut self, consumed: bool) {
        let Planner { world, graph, .. } = &mut *self.planner;
        let tensors = world.get::<GraphTensors>(*graph).expect("it was spawned").0.clone();
        for tensor in tensors {
            let flags = *world.get::<TensorFlags>(tensor).expect("a tensor has all its components");
            if flags.input {
                world.entity_mut(tensor).insert(TensorFlags { consumed, ..flags });
            }
        }
    }

    fn memory(&self) -> &[MemoryHandle] {
        &self.planner.world.get::<GraphPlan>(self.planner.graph).expect("it is planned").binding
    }

    fn write(&self, plan: &Plan, node: usize, slot: u32, bytes: &[u8]) -> Result<(), String> {
        let place = plan.locate(node, slot).ok_or_else(|| format!("`{}` has no place", plan.node(node).name))?;
        let backend = &plan.backends[plan.node(node).backend as usize].handle;
        let written = backend.write(&self.memory()[place.memory.0 as usize], place.offset_bytes, bytes);
        written.map_err(|error| format!("`{}` cannot be written: {error}", plan.node(node).name))
    }

    fn read(&self, plan: &Plan, node: usize, slot: u32) -> Result<Vec<u8>, String> {
        let place = plan.locate(node, slot).ok_or_else(|| format!("`{}` has no place", plan.node(node).name))?;
        let mut span = vec![0; usize::try_from(place.desc.size_bytes()).expect("small")];
        let backend = &plan.backends[plan.node(node).backend as usize].handle;
        let read = backend.read(&self.memory()[place.memory.0 as usize], place.offset_bytes, &mut span);
        read.map_err(|error| format!("`{}` cannot be read: {error}", plan.node(node).name))?;
        Ok(elements(&place.desc, &span))
    }

    /// Fills planned memory with what no run should see.
    fn spoil(&self, plan: &Plan) -> Result<(), String> {
        for (buffer, memory) in plan.buffers.iter().zip(self.memory()) {
            let bytes = vec![0xa5; usize::try_from(buffer.size_bytes).expect("small")];
            let spoiled = plan.backends[buffer.backend as usize].handle.write(memory, 0, &bytes);
            spoiled.map_err(|error| format!("planned memory cannot be written: {error}"))?;
        }
        Ok(())
    }

    /// Runs the slots in turn, from the same existing memory and with inputs of each run's own, and says what each run leaves.
    pub(super) fn results(&self, plan: &Plan, runs: u32) -> Result<Vec<Outcome>, String> {
        self.spoil(plan)?;
        for (i, node) in plan.nodes().enumerate().filter(|(_, node)| node.existing.is_some()) {
            // Views share their root's bytes.
            if node.root as usize == i {
                self.write(plan, i, 0, &contents(node.name, 0, &node.desc))?;
            }
        }
        let slots = u32::try_from(plan.programs.len()).expect("few");
        let mut outcomes = Vec::new();
        for run in 0..runs {
            let slot = run % slots;
            for (i, node) in plan.nodes().enumerate().filter(|(_, node)| node.flags.input) {
                self.write(plan, i, slot, &contents(node.name, u64::from(run), &node.desc))?;
            }
            match run_plan(plan, self.memory(), slot) {
                Ok(()) => {}
                // Row ids outside their table are the same fault everywhere, and end the run.
                Err(PlanError::Run { source, .. }) => {
                    outcomes.push(Err(source.to_string()));
                    break;
                }
                Err(error) => return Err(format!("a planned graph does not run: {error}")),
            }
            let seen = plan.nodes().enumerate().filter(|(_, node)| node.flags.output || node.existing.is_some());
            let seen = seen.map(|(i, node)| Ok((Arc::clone(node.name), self.read(plan, i, slot)?)));
            outcomes.push(Ok(seen.collect::<Result<_, String>>()?));
        }
        Ok(outcomes)
    }
}
