//! Where tensors lie in a run, from the plan's columns.

use std::sync::Arc;

use entensor_components::{MemorySlot, NodeDesc, SplitDesc, SplitView, TensorRef};

use super::{Allocation, Plan, PlanSplit, existing_memory};
use crate::columns::index_u32;

impl Plan {
    /// The allocation of one slot; what has no slots of its own is in the first.
    fn in_slot(&self, first: u32, slot: u32) -> Option<&Allocation> {
        let allocation = self.allocations.get(first as usize)?;
        let of_slot = self.allocations.get(first as usize + slot as usize);
        Some(of_slot.filter(|other| other.held == allocation.held).unwrap_or(allocation))
    }

    /// Where a node lies in a slot's run, in its own memory; `None` for memory that nothing allocates.
    #[must_use]
    pub fn locate(&self, node: usize, slot: u32) -> Option<TensorRef> {
        let root = self.table.roots.of(node);
        let (memory, base) = match self.memory.place(root) {
            Some(place) => (existing_memory(self, place.buffer), place.offset_bytes),
            None => {
                let first = self.allocation_of.get(root)?.checked_sub(1)?;
                let allocation = self.in_slot(first, slot)?;
                (allocation.buffer, allocation.offset_bytes)
            }
        };
        Some(TensorRef {
            desc: self.table.descs[node],
            memory: MemorySlot(memory),
            offset_bytes: base + self.table.roots.offset_bytes[node],
        })
    }

    /// Where a copy lies in a slot's run.
    #[must_use]
    pub fn locate_copy(&self, copy: u32, slot: u32) -> Option<TensorRef> {
        let allocation = self.in_slot(*self.allocation_of_copy.get(copy as usize)?, slot)?;
        Some(TensorRef {
            desc: self.table.descs[self.copies[copy as usize].source as usize],
            memory: MemorySlot(allocation.buffer),
            offset_bytes: allocation.offset_bytes,
        })
    }

    /// A tensor as a backend reads it: its copy there if there is one, else its own memory.
    #[must_use]
    pub fn locate_read(&self, node: u32, backend: u32, slot: u32) -> Option<TensorRef> {
        let found = self.copy_of.binary_search_by_key(&(node, backend), |&(node, backend, _)| (node, backend));
        match found {
            Ok(found) => self.locate_copy(self.copy_of[found].2, slot),
            Err(_) => self.locate(node as usize, slot),
        }
    }

    /// Every split as its backend sees it, slot by slot, written out: for tests that damage what backends are given.
    #[must_use]
    pub fn write_out(&self) -> Vec<Vec<SplitDesc>> {
        let written = |split: &PlanSplit, slot| {
            let view = self.split_view(split, slot);
            SplitDesc {
                nodes: (0..view.len()).map(|index| view.node(index)).collect(),
                memory_slots: view.memory_slots(),
            }
        };
        let slots = 0..index_u32(self.programs.len());
        slots.map(|slot| self.splits.iter().map(|split| written(split, slot)).collect()).collect()
    }

    /// A split as its backend sees it in a slot's run.
    #[must_use]
    pub fn split_view<'a>(&'a self, split: &'a PlanSplit, slot: u32) -> impl SplitView + 'a {
        SplitInSlot { plan: self, split, slot }
    }
}

struct SplitInSlot<'a> {
    plan: &'a Plan,
    split: &'a PlanSplit,
    slot: u32,
}

impl SplitView for SplitInSlot<'_> {
    fn len(&self) -> usize {
        self.split.nodes.len()
    }

    fn node(&self, index: usize) -> NodeDesc {
        let index = self.plan.split_nodes(self.split)[index];
        let node = self.plan.node(index as usize);
        let allocated = "`build_plan` allocates every root that has no memory";
        NodeDesc {
            name: Arc::clone(node.name),
            op: node.op.clone(),
            output: self.plan.locate(index as usize, self.slot).expect(allocated),
            operands: (node.sources.iter())
                .map(|&source| self.plan.locate_read(source, self.split.backend, self.slot).expect(allocated))
                .collect(),
        }
    }

    fn memory_slots(&self) -> u32 {
        index_u32(self.plan.memory_count())
    }

    fn is_read_elsewhere(&self, index: usize) -> bool {
        let node = self.plan.split_nodes(self.split)[index] as usize;
        let root = self.plan.table.roots.of(node);
        let first = self.plan.allocation_of.get(root).and_then(|first| first.checked_sub(1));
        // Memory that exists outlives the run.
        let Some(allocation) = first.and_then(|first| self.plan.in_slot(first, self.slot)) else { return true };
        // Steps are the copies of a split, then its nodes; outputs live to the last of all.
        let behind = self.split.inputs.end + self.split.nodes.end;
        let steps = index_u32(self.plan.split_inputs.len() + self.plan.launches.len());
        allocation.last >= behind.min(steps.saturating_sub(1))
    }
}
