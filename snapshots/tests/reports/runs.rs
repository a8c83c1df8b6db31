//! Graphs that really run: on watched oracles, as entities or through the engine.

use std::sync::Arc;

use bevy_ecs::prelude::*;
use entensor::graph_text::{GraphError, GraphText};
use entensor_components::{DTypeClass, MemoryHandle, SharedGeneration, TensorDesc};
use entensor_snapshots::generate::Random;
use entensor_systems::{
    GraphPlan, Plan, PlanCache, PlanError, PlanSalt, PlanStatus, Planning, Recording, plan_schedule, publish, run_plan,
    verify,
};

use crate::{
    devices::{Log, oracles},
    tools::nodes,
};

/// A world with one graph on watched oracles.
pub(crate) struct Run {
    pub(crate) world: World,
    pub(crate) graph: Entity,
    pub(crate) log: Arc<Log>,
    schedule: Schedule,
}

impl Run {
    pub(crate) fn new(text: &GraphText) -> Result<Self, GraphError> {
        let (log, mut world) = (Arc::new(Log::default()), World::new());
        let graph = text.spawn_on(&mut world, oracles(text, &log))?;
        log.start();
        Ok(Self { world, graph, log, schedule: plan_schedule(Recording::Off) })
    }

    /// Plans (again); every plan is proved.
    pub(crate) fn plan(&mut self) -> Result<Arc<Plan>, PlanError> {
        self.world.insert_resource(Planning(self.graph));
        self.world.insert_resource(PlanStatus::Planning);
        self.schedule.run(&mut self.world);
        // Without memory for several slots there is a second try with one, as the engine makes it.
        if matches!(self.world.resource::<PlanStatus>(), PlanStatus::Retry) {
            self.world.insert_resource(PlanStatus::Planning);
            self.schedule.run(&mut self.world);
        }
        match self.world.resource::<PlanStatus>() {
            PlanStatus::Ready => {}
            PlanStatus::Failed { error, .. } => return Err(error.clone()),
            status => panic!("planning ended as {status:?}"),
        }
        let plan = Arc::clone(&self.world.get::<GraphPlan>(self.graph).expect("it is ready").plan);
        verify(&plan).unwrap_or_else(|violations| panic!("{violations:?}"));
        Ok(plan)
    }

    /// Forgets plan, cache and planned memory, as if the graph had just been added.
    pub(crate) fn reset(&mut self) {
        publish::unpublish(&mut self.world, self.graph);
        self.world.resource_mut::<PlanCache>().clear();
    }

    /// Makes the next plan a new one, although nothing changed.
    pub(crate) fn distrust(&mut self) {
        self.world.resource_mut::<PlanSalt>().0 += 1;
        self.world.resource_mut::<SharedGeneration>().0 += 1;
    }

    fn planned(&self) -> &GraphPlan {
        self.world.get::<GraphPlan>(self.graph).expect("it is planned")
    }

    fn memory(&self) -> &[MemoryHandle] {
        &self.planned().binding
    }

    /// Writes leaves, runs every slot twice, and says what outputs and existing memory hold after each run.
    pub(crate) fn results(&self) -> Vec<(String, Result<Vec<u8>, String>)> {
        let plan = &self.planned().plan;
        let (nodes, mut results) = (nodes(plan), Vec::new());
        let write = |node: usize, slot: u32, bytes: &[u8]| {
            let place = plan.locate(node, slot).expect("every tensor has a place");
            let memory = &self.memory()[place.memory.0 as usize];
            let backend = &plan.backends[nodes[node].backend as usize].handle;
            backend.write(memory, place.offset_bytes, bytes).expect("it fits");
        };
        for (i, node) in
            nodes.iter().enumerate().filter(|(i, node)| node.existing.is_some() && node.root as usize == *i)
        {
            write(i, 0, &contents(&node.name, 0, &node.desc));
        }
        let slots = u32::try_from(plan.programs.len()).expect("few");
        for run in 0..slots * 2 {
            let slot = run % slots;
            for (i, node) in nodes.iter().enumerate().filter(|(_, node)| node.flags.input) {
                write(i, slot, &contents(&node.name, u64::from(run), &node.desc));
            }
            if let Err(PlanError::Run { source, .. }) = run_plan(plan, self.memory(), slot) {
                results.push((format!("run {run}"), Err(source.to_string())));
                return results;
            }
            for (i, node) in nodes.iter().enumerate().filter(|(_, n)| n.flags.output || n.existing.is_some()) {
                let place = plan.locate(i, slot).expect("every tensor has a place");
                let memory = &self.memory()[place.memory.0 as usize];
                let mut span = vec![0; usize::try_from(place.desc.size_bytes()).expect("small")];
                let backend = &plan.backends[node.backend as usize].handle;
                backend.read(memory, place.offset_bytes, &mut span).expect("it is there");
                results.push((format!("run {run}: {}", node.name), Ok(elements(&place.desc, &span))));
            }
        }
        results
    }
}

/// What a graph computes on its machine; `None` where it has no plan.
pub(crate) fn results(text: &GraphText) -> Option<Vec<(String, Result<Vec<u8>, String>)>> {
    let mut run = Run::new(text).ok()?;
    run.plan().ok()?;
    Some(run.results())
}

/// The same graph on a machine whose backends are all one host: nothing is copied there.
pub(crate) fn on_one_host(source: &str) -> String {
    let line = |line: &str| match line.strip_prefix("backend ").and_then(|rest| rest.split(' ').next()) {
        Some(name) => format!("backend {name} memory=host"),
        None => line.to_owned(),
    };
    source.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// A graph computes the same bits on its machine as on one host.
#[track_caller]
pub(crate) fn computes_what_one_host_does(source: &str) {
    let many = results(&crate::common::parse("many", source)).unwrap_or_else(|| panic!("no plan\n{source}"));
    let one = results(&crate::common::parse("one", &on_one_host(source))).expect("an easier machine");
    assert!(many.iter().all(|(_, result)| result.is_ok()), "a run fails: {many:?}\n{source}");
    assert!(!many.is_empty());
    for (many, one) in many.iter().zip(&one) {
        assert_eq!(many, one, "{source}");
    }
}

/// Bytes of sensible values for a tensor, the same for a name wherever it lies.
pub(crate) fn contents(name: &str, round: u64, desc: &TensorDesc) -> Vec<u8> {
    let elements = desc.shape.elements().expect("small");
    let seed = name.bytes().fold(round, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut random = Random::new(seed);
    let is_integer = desc.dtype.row().class == DTypeClass::Integer;
    // Two rows are what nearly every table has.
    let mut value = || if is_integer { random.below(2) as f32 } else { random.below(64) as f32 / 16.0 - 2.0 };
    let values: Vec<f32> = (0..elements).map(|_| value()).collect();
    let mut bytes = vec![0; usize::try_from(desc.size_bytes()).expect("small")];
    (desc.dtype.row().quantize)(&values, &mut bytes);
    bytes
}

/// The bytes of a tensor's elements, without the holes between them.
fn elements(desc: &TensorDesc, span: &[u8]) -> Vec<u8> {
    let unit = usize::try_from(desc.dtype.block_bytes()).expect("small");
    let [columns, rows, planes, cubes] = desc.shape.0;
    let [s0, s1, s2, s3] = desc.strides.0;
    let mut bytes = Vec::new();
    for d in 0..cubes {
        for c in 0..planes {
            for b in 0..rows {
                for a in 0..columns / desc.dtype.block_elements() {
                    let start = usize::try_from(a * s0 + b * s1 + c * s2 + d * s3).expect("small");
                    bytes.extend(&span[start..start + unit]);
                }
            }
        }
    }
    bytes
}
