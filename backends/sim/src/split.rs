//! Splits: every node is prepared by itself, so that a split can be cut into submissions anywhere.

use std::{ops::Range, sync::Arc};

use entensor_components::{
    BackendError, Cursor, MemoryHandle, PreparedSplit, Progress, RunLimit, SplitDesc, SplitView, TensorDesc, TensorRef,
    Ticket,
};

use crate::{
    backend::Device,
    config::{Pieces, SimConfig},
    fault::Call,
    job::Task,
    memory::{inner_handle, memory_id},
    timeline::Access,
    world::State,
};

/// Bytes of one of a split's memories.
#[derive(Clone, Debug)]
struct SlotAccess {
    slot: u32,
    bytes: Range<u64>,
    write: bool,
}

struct Node {
    name: Arc<str>,
    prepared: Box<dyn PreparedSplit>,
    accesses: Vec<SlotAccess>,
    cost_ns: u64,
}

/// The nodes of a split, ready.
pub(crate) struct SplitNodes {
    nodes: Vec<Node>,
}

impl SplitNodes {
    fn prepare(split: &dyn SplitView, config: &SimConfig) -> Result<Self, BackendError> {
        let mut nodes = Vec::with_capacity(split.len());
        for index in 0..split.len() {
            let node = split.node(index);
            let descs: Vec<TensorDesc> = node.operands.iter().map(|operand| operand.desc).collect();
            let flops = (node.op.row().flops)(&descs, &node.output.desc);
            let access = |tensor: &TensorRef, write| {
                let end = tensor.offset_bytes.saturating_add(tensor.desc.size_bytes());
                SlotAccess { slot: tensor.memory.0, bytes: tensor.offset_bytes..end, write }
            };
            // A writer's target is what it writes; that it is an operand too reads nothing of it but what stays.
            let operands = node.operands.iter().map(|operand| access(operand, false));
            let accesses: Vec<SlotAccess> = operands.chain([access(&node.output, true)]).collect();
            let bytes = accesses.iter().map(|a| a.bytes.end - a.bytes.start).fold(0, u64::saturating_add);
            let name = Arc::clone(&node.name);
            let alone = SplitDesc { nodes: vec![node], memory_slots: split.memory_slots() };
            let prepared = config.inner.prepare(&alone)?;
            nodes.push(Node { name, prepared, accesses, cost_ns: config.compute.cost_ns(flops, bytes) });
        }
        Ok(Self { nodes })
    }

    /// Runs some nodes.
    pub(crate) fn run(&self, nodes: Range<usize>, memory: &[MemoryHandle]) -> Result<(), BackendError> {
        let inner: Vec<MemoryHandle> = memory.iter().map(|memory| inner_handle(memory).clone()).collect();
        for node in &self.nodes[nodes] {
            node.prepared.submit(&inner)?;
        }
        Ok(())
    }

    fn accesses(&self, nodes: Range<usize>, memory: &[MemoryHandle]) -> Vec<Access> {
        let all = self.nodes[nodes].iter().flat_map(|node| &node.accesses);
        let on = |access: &SlotAccess| {
            let memory = memory_id(memory.get(access.slot as usize)?)?;
            (!access.bytes.is_empty()).then(|| Access { memory, bytes: access.bytes.clone(), write: access.write })
        };
        all.filter_map(on).collect()
    }

    fn label(&self, nodes: Range<usize>) -> Arc<str> {
        let names: Vec<&str> = self.nodes[nodes].iter().map(|node| &*node.name).collect();
        names.join(" ").into()
    }

    /// Where submissions end.
    fn pieces(&self, pieces: Pieces) -> Vec<usize> {
        let mut ends = Vec::new();
        let (mut first, mut cost_ns) = (0, 0_u64);
        for (index, node) in self.nodes.iter().enumerate() {
            let is_full = match pieces {
                Pieces::Whole => false,
                Pieces::Nodes(most) => index - first >= most.max(1),
                Pieces::Time(most_ns) => index > first && cost_ns.saturating_add(node.cost_ns) > most_ns,
            };
            if is_full {
                ends.push(index);
                (first, cost_ns) = (index, 0);
            }
            cost_ns = cost_ns.saturating_add(node.cost_ns);
        }
        ends.push(self.nodes.len());
        ends
    }
}

/// A split of a simulated device.
pub(crate) struct SimSplit {
    device: Arc<Device>,
    nodes: Arc<SplitNodes>,
    /// Where each submission ends.
    ends: Vec<usize>,
    /// What each is called.
    labels: Vec<Arc<str>>,
    /// Memories that it touches, and whether it writes there and up to which byte.
    slots: Vec<(u32, bool, u64)>,
}

impl SimSplit {
    pub(crate) fn prepare(device: &Arc<Device>, split: &dyn SplitView) -> Result<Self, BackendError> {
        let nodes = SplitNodes::prepare(split, &device.config)?;
        let ends = nodes.pieces(device.config.pieces);
        let starts = [0].into_iter().chain(ends.iter().copied());
        let labels = starts.zip(&ends).map(|(first, &end)| nodes.label(first..end)).collect();
        let mut slots: Vec<(u32, bool, u64)> = Vec::new();
        for access in nodes.nodes.iter().flat_map(|node| &node.accesses) {
            match slots.iter_mut().find(|slot| slot.0 == access.slot) {
                Some(slot) => {
                    slot.1 |= access.write;
                    slot.2 = slot.2.max(access.bytes.end);
                }
                None => slots.push((access.slot, access.write, access.bytes.end)),
            }
        }
        Ok(Self { device: Arc::clone(device), nodes: Arc::new(nodes), ends, labels, slots })
    }

    /// What can be known before it runs.
    fn check(&self, memory: &[MemoryHandle]) -> Result<(), BackendError> {
        for &(slot, write, end) in &self.slots {
            let missing = BackendError::OutOfBounds { offset_bytes: 0, len_bytes: end, size_bytes: 0 };
            let memory = memory.get(slot as usize).ok_or(missing)?;
            self.device.check_memory(memory, write, 0, end)?;
        }
        Ok(())
    }
}

impl SimSplit {
    /// Puts some nodes into the compute queue, or runs them at once on a synchronous device.
    fn piece(
        &self,
        state: &mut State,
        nodes: Range<usize>,
        label: Arc<str>,
        memory: &Arc<Vec<MemoryHandle>>,
        after: Option<u64>,
    ) -> Result<Option<u64>, BackendError> {
        let split = Arc::clone(&self.nodes);
        let accesses = split.accesses(nodes.clone(), memory);
        let costs = split.nodes[nodes.clone()].iter().map(|node| node.cost_ns);
        let cost_ns = costs.fold(0, u64::saturating_add);
        let task = Task::Nodes { split, first: nodes.start, end: nodes.end, memory: Arc::clone(memory) };
        if self.device.config.capabilities.asynchronous {
            return Ok(Some(state.submit(self.device.compute, task, label, accesses, cost_ns, after)));
        }
        state.run_on_host(self.device.index, &task, label, accesses, cost_ns).map(|()| None)
    }
}

impl PreparedSplit for SimSplit {
    fn submit(&self, memory: &[MemoryHandle]) -> Result<Ticket, BackendError> {
        let mut state = self.device.call(Call::Submit)?;
        self.check(memory)?;
        let memory = Arc::new(memory.to_vec());
        let (mut first, mut last) = (0, None);
        for (&end, label) in self.ends.iter().zip(&self.labels) {
            last = self.piece(&mut state, first..end, Arc::clone(label), &memory, last)?;
            first = end;
        }
        Ok(last.map_or(Ticket::Done, Ticket::Pending))
    }

    /// Its grid is its nodes: one row each.
    fn run_from(&self, memory: &[MemoryHandle], from: Cursor, limit: &RunLimit<'_>) -> Result<Progress, BackendError> {
        let count = self.nodes.nodes.len();
        let first = usize::try_from(from.step).unwrap_or(usize::MAX);
        if from.row != 0 || first > count || (first == count && count > 0) {
            return Err(BackendError::BadCursor { step: from.step, row: from.row });
        }
        if limit.is_none() && from.is_start() {
            return self.submit(memory).map(Progress::Done);
        }
        let mut state = self.device.call(Call::Submit)?;
        self.check(memory)?;
        let memory = Arc::new(memory.to_vec());
        for node in first..count {
            if limit.is_cancelled() {
                return Err(BackendError::Cancelled);
            }
            let label = self.nodes.label(node..node + 1);
            if let Some(ticket) = self.piece(&mut state, node..node + 1, label, &memory, None)? {
                state.host_wait(ticket)?;
            }
            if node + 1 < count && limit.is_over() {
                let step = u32::try_from(node + 1).unwrap_or(u32::MAX);
                return Ok(Progress::Paused(Cursor { step, row: 0 }));
            }
        }
        Ok(Progress::Done(Ticket::Done))
    }
}
