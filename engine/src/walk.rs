//! Walking a plan by hand, piece by piece: for whoever looks at results while the rest is still to come.
//!
//! A walk does what a run does, in the same order, but waits for every piece before the next. Whole splits run as they were
//! prepared; parts of a split are prepared when they are asked for.

use std::{borrow::BorrowMut, ops::Range, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{
    Backend, BackendError, DeviceBuffer, MemoryHandle, NodeDesc, SplitView, TensorDesc, TensorRef, Usage,
};
use entensor_systems::{GraphPlan, GraphRuns, Plan, PlanError, Step};

use crate::{
    engine::{Engine, GraphId, InputState},
    error::EngineError,
    runs::RunId,
};

/// A run of one slot of a plan, as far as it has come.
pub(crate) struct Walk {
    pub(crate) plan: Arc<Plan>,
    pub(crate) slot: u32,
    memory: Vec<MemoryHandle>,
    existing: Vec<Arc<DeviceBuffer>>,
    /// The next step, and how many nodes of its split are done.
    step: usize,
    done: usize,
}

/// Some nodes of a split, as a split of their own.
struct Part<V> {
    split: V,
    range: Range<usize>,
}

impl<V: SplitView> SplitView for Part<V> {
    fn len(&self) -> usize {
        self.range.len()
    }

    fn node(&self, index: usize) -> NodeDesc {
        self.split.node(self.range.start + index)
    }

    fn memory_slots(&self) -> u32 {
        self.split.memory_slots()
    }
}

impl Walk {
    /// The run of the next slot, before its first step. The graph is planned and bound.
    pub(crate) fn new(world: &World, graph: GraphId) -> Result<Self, EngineError> {
        let planned = world.get::<GraphPlan>(graph.0).ok_or(EngineError::UnknownGraph)?;
        Ok(Self {
            plan: Arc::clone(&planned.plan),
            slot: planned.slot,
            memory: planned.binding.clone(),
            existing: planned.existing.clone(),
            step: 0,
            done: 0,
        })
    }

    fn steps(&self) -> &[Step] {
        let programs = &self.plan.programs;
        &programs[self.slot as usize % programs.len()].steps
    }

    /// Does everything before the next launch; gives its split, and how many of its nodes are done. `None` at the end of the run.
    pub(crate) fn next_launch(&mut self) -> Result<Option<(u32, usize)>, PlanError> {
        loop {
            let (copy, wait) = match self.steps().get(self.step) {
                None => return Ok(None),
                Some(Step::Launch { split }) => return Ok(Some((*split, self.done))),
                Some(Step::Copy { split, from, to, .. }) => (Some((*split, *from, *to)), None),
                Some(Step::Wait { of, .. }) => (None, Some(*of)),
                // Nothing to mark: whoever waits, waits for all.
                Some(Step::Record { .. }) => (None, None),
            };
            if let Some((split, from, to)) = copy {
                let copied = self.read(&from).and_then(|bytes| self.write(&to, &bytes));
                copied.map_err(|source| self.failed("copy", self.plan.splits[split as usize].backend, source))?;
            }
            if let Some(of) = wait {
                let waited = self.plan.backends[of as usize].handle.synchronize();
                waited.map_err(|source| self.failed("wait", of, source))?;
            }
            self.step += 1;
        }
    }

    /// Runs the next `count` nodes of the split that [`Self::next_launch`] gave, and waits for them.
    pub(crate) fn launch(&mut self, split: u32, count: usize) -> Result<(), PlanError> {
        let range = self.done..self.done + count;
        let len = self.plan.split_nodes(&self.plan.splits[split as usize]).len();
        self.run_part(split, range)?;
        self.done += count;
        if self.done >= len {
            (self.step, self.done) = (self.step + 1, 0);
        }
        Ok(())
    }

    /// Runs nodes of a split, and waits for them. Does not move on.
    pub(crate) fn run_part(&self, split: u32, range: Range<usize>) -> Result<(), PlanError> {
        let plan = &self.plan;
        let planned = &plan.splits[split as usize];
        let backend = &plan.backends[planned.backend as usize].handle;
        let run = || {
            let programs = &plan.programs;
            let prepared = &programs[self.slot as usize % programs.len()].prepared[split as usize];
            if range == (0..plan.split_nodes(planned).len()) {
                // What the work failed with is asked for by its ticket.
                let ticket = prepared.submit(&self.memory)?;
                return backend.wait_for(ticket, None).map(drop);
            }
            let part = Part { split: plan.split_view(planned, self.slot), range: range.clone() };
            let prepared = backend.prepare(&part)?;
            let ticket = prepared.submit(&self.memory)?;
            // Before what was prepared goes.
            backend.wait_for(ticket, None).map(drop)
        };
        run().map_err(|source| self.failed("launch", planned.backend, source))
    }

    /// Waits for everything that is under way, on every backend.
    pub(crate) fn synchronize(&self) -> Result<(), PlanError> {
        for (backend, index) in self.plan.backends.iter().zip(0..) {
            backend.handle.synchronize().map_err(|source| self.failed("wait", index, source))?;
        }
        Ok(())
    }

    fn failed(&self, what: &str, backend: u32, source: BackendError) -> PlanError {
        let backend = Arc::clone(&self.plan.backends[backend as usize].name);
        PlanError::Run { step: self.step, what: what.into(), backend, source }
    }

    /// Whose memory it is.
    fn owner(&self, memory: usize) -> &dyn Backend {
        match self.plan.buffers.get(memory) {
            Some(buffer) => &*self.plan.backends[buffer.backend as usize].handle,
            None => &**self.existing[memory - self.plan.buffers.len()].backend(),
        }
    }

    /// Whether a tensor lies in memory that no run writes.
    pub(crate) fn is_constant(&self, tensor: &TensorRef) -> bool {
        let existing = (tensor.memory.0 as usize).checked_sub(self.plan.buffers.len());
        existing.is_some_and(|buffer| {
            let buffer = &self.plan.existing[buffer];
            buffer.read_only || buffer.usage == Usage::Weights
        })
    }

    /// The bytes that a tensor spans, holes included.
    pub(crate) fn read(&self, tensor: &TensorRef) -> Result<Vec<u8>, BackendError> {
        let mut bytes = zeroed(tensor.desc.size_bytes())?;
        if !bytes.is_empty() {
            let memory = tensor.memory.0 as usize;
            self.owner(memory).read(&self.memory[memory], tensor.offset_bytes, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Writes what [`Self::read`] gave of a tensor of the same description.
    pub(crate) fn write(&self, tensor: &TensorRef, bytes: &[u8]) -> Result<(), BackendError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let memory = tensor.memory.0 as usize;
        self.owner(memory).write(&self.memory[memory], tensor.offset_bytes, bytes)
    }

    /// The existing buffers that the run binds.
    pub(crate) fn existing(&self) -> &[Arc<DeviceBuffer>] {
        &self.existing
    }
}

/// Zeroed bytes, or an error instead of an abort.
pub(crate) fn zeroed(size_bytes: u64) -> Result<Vec<u8>, BackendError> {
    let out_of_memory = || BackendError::OutOfMemory { size_bytes };
    let size = usize::try_from(size_bytes).map_err(|_| out_of_memory())?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|_| out_of_memory())?;
    bytes.resize(size, 0);
    Ok(bytes)
}

/// A tensor's elements without the holes between them, from the bytes that it spans.
pub(crate) fn without_holes(desc: &TensorDesc, span: Vec<u8>) -> Vec<u8> {
    if desc.is_packed() {
        return span;
    }
    let unit = desc.dtype.block_bytes();
    let [d0, d1, d2, d3] = desc.shape.0;
    let units = d0 / desc.dtype.block_elements();
    let [s0, s1, s2, s3] = desc.strides.0;
    let mut packed = Vec::with_capacity(span.len());
    for (i3, i2, i1) in (0..d3).flat_map(|i3| (0..d2).flat_map(move |i2| (0..d1).map(move |i1| (i3, i2, i1)))) {
        for i0 in 0..units {
            let at = i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3;
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            // The span of a checked description holds every element.
            packed.extend_from_slice(&span[at..at + unit as usize]);
        }
    }
    packed
}

impl<W: BorrowMut<World>> Engine<W> {
    /// Plans a graph, binds its memory and checks its inputs, for a walk, once no run is under way. What it computed before is gone
    /// from then on.
    pub(crate) fn begin_walk(&mut self, graph: GraphId) -> Result<Walk, EngineError> {
        self.abandon(graph);
        self.check_runnable(graph)?;
        self.settle_all();
        let walk = Walk::new(self.world(), graph)?;
        let world = self.world_mut();
        if let Some(runs) = world.get::<GraphRuns>(graph.0) {
            runs.forget_results();
        }
        if let Some(mut state) = world.get_mut::<InputState>(graph.0) {
            state.start(&walk.plan);
        }
        Ok(walk)
    }

    /// Notes that a walk came to its end: its outputs can be read, and the next run has the next slot.
    pub(crate) fn end_walk(&mut self, graph: GraphId, walk: &Walk) {
        let slots = u32::try_from(walk.plan.programs.len()).unwrap_or(1).max(1);
        let world = self.world_mut();
        if let Some(mut planned) = world.get_mut::<GraphPlan>(graph.0) {
            planned.slot = (walk.slot + 1) % slots;
        }
        if let Some(runs) = world.get::<GraphRuns>(graph.0) {
            runs.note_finished(walk.slot);
        }
        if slots > 1
            && let Some(mut state) = world.get_mut::<InputState>(graph.0)
        {
            state.written.fill(false);
        }
    }

    /// Why a walk failed.
    pub(crate) fn walk_failed(&mut self, graph: GraphId, error: PlanError) -> EngineError {
        let number = self.world().get::<GraphRuns>(graph.0).map_or(0, GraphRuns::last);
        self.run_failed(RunId { graph, number }, error)
    }
}

#[cfg(test)]
mod tests {
    use entensor_components::{DType, Shape, Strides};

    use super::*;

    #[test]
    fn holes_are_left_out() {
        let desc = TensorDesc { dtype: DType::F16, shape: Shape([2, 3, 1, 1]), strides: Strides([6, 2, 0, 0]) };
        let span: Vec<u8> = (0..12).collect();
        assert_eq!(without_holes(&desc, span), [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
        let blocks = TensorDesc { dtype: DType::Q8_0, shape: Shape([32, 2, 1, 1]), strides: Strides([34, 40, 80, 80]) };
        let packed = without_holes(&blocks, (0..74).collect());
        assert_eq!((packed.len(), packed[33], packed[34]), (68, 33, 40));
    }
}
