//! Graphs as the allocator sees them: sizes, operands and what may be computed in place.

use crate::{
    columns::index_u32,
    liveness::{Arena, Block, Live},
};

/// A node: its bytes, what it reads, and whether it may be computed over an operand of its size.
struct Node {
    size: u64,
    sources: Vec<usize>,
    elementwise: bool,
    input: bool,
    output: bool,
}

/// A graph in the order of its steps.
#[derive(Default)]
pub(super) struct Net(Vec<Node>);

impl Net {
    fn push(&mut self, size: u64, sources: &[usize], elementwise: bool) -> usize {
        self.0.push(Node { size, sources: sources.to_vec(), elementwise, input: false, output: false });
        self.0.len() - 1
    }

    /// How many nodes there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn input(&mut self, size: u64) -> usize {
        let node = self.push(size, &[], false);
        self.0[node].input = true;
        node
    }

    /// A node with memory of its own.
    pub(super) fn op(&mut self, size: u64, sources: &[usize]) -> usize {
        self.push(size, sources, false)
    }

    /// A node that takes over a dying operand of its size.
    pub(super) fn map(&mut self, sources: &[usize]) -> usize {
        self.push(self.0[sources[0]].size, sources, true)
    }

    pub(super) fn output(&mut self, node: usize) {
        self.0[node].output = true;
    }

    pub(super) fn size(&self, node: usize) -> u64 {
        self.0[node].size
    }

    /// Lifetimes on one backend, found naively.
    pub(super) fn live(&self, align_bytes: u64, max_buffer_bytes: u64) -> Live {
        let mut live = Live::default();
        let kind = entensor_components::MemoryKind::host();
        live.arenas.push(Arena { buffer_type: "host".into(), kind, owner: 0, align_bytes, max_buffer_bytes });
        let steps = self.0.iter().filter(|node| !node.input).count();
        live.steps = index_u32(steps);
        let mut last = vec![0; self.0.len()];
        let mut step_of = vec![0; self.0.len()];
        let mut step = 0;
        for (i, node) in self.0.iter().enumerate() {
            (step_of[i], last[i]) = (step, step);
            node.sources.iter().for_each(|&s| last[s] = step);
            step += usize::from(!node.input);
        }
        let mut block_of = vec![0; self.0.len()];
        for (i, node) in self.0.iter().enumerate() {
            let end = if node.input || node.output { steps.saturating_sub(1) } else { last[i] };
            let first = if node.input { 0 } else { step_of[i] };
            let over = node.sources.iter().find(|&&s| {
                let old = &self.0[s];
                let free = !old.input && !old.output && last[s] == step_of[i];
                node.elementwise && free && old.size == node.size
            });
            if let Some(&over) = over {
                block_of[i] = block_of[over];
                live.blocks[block_of[i]].last = index_u32(end);
            } else {
                block_of[i] = live.blocks.len();
                let (first, last) = (index_u32(first), index_u32(end));
                live.blocks.push(Block { arena: 0, size_bytes: node.size, first, last });
            }
        }
        live
    }
}
