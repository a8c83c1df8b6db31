//! A node's row of a plan's columns.

use std::sync::Arc;

use entensor_components::{Cause, Op, TensorDesc, TensorFlags};

use super::Plan;
use crate::columns::index_u32;

/// A node or leaf of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanNode<'a> {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: &'a Arc<str>,
    /// Its op.
    pub op: &'a Op,
    /// Dtype, shape, strides.
    pub desc: TensorDesc,
    /// Operands.
    pub sources: &'a [u32],
    /// Whose memory it is; its own index for roots.
    pub root: u32,
    /// Bytes from the root's first element.
    pub offset_bytes: u64,
    /// Input and output; wanted nodes are outputs.
    pub flags: TensorFlags,
    /// The user's wish.
    pub pin: Option<u32>,
    /// Index into [`Plan::existing`] and byte offset, for roots with memory.
    pub existing: Option<(u32, u64)>,
    /// Where it is.
    pub backend: u32,
    /// Why.
    pub cause: Cause,
}

impl Plan {
    /// A node's row.
    ///
    /// # Panics
    /// At or behind [`Plan::node_count`].
    #[must_use]
    pub fn node(&self, node: usize) -> PlanNode<'_> {
        let table = &*self.table;
        PlanNode {
            index: index_u32(node),
            name: &table.names[node],
            op: &table.ops[node],
            desc: table.descs[node],
            sources: table.sources.of(node),
            root: table.roots.root[node],
            offset_bytes: table.roots.offset_bytes[node],
            flags: self.flags[node],
            pin: table.pins[node].map(|backend| backend.0),
            existing: self.memory.place(node).map(|place| (place.buffer, place.offset_bytes)),
            backend: self.placements[node],
            cause: self.causes[node],
        }
    }

    /// Every node's row, in order.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = PlanNode<'_>> + ExactSizeIterator {
        (0..self.node_count()).map(|node| self.node(node))
    }

    /// The split that computes a node.
    #[must_use]
    pub fn split_of(&self, node: usize) -> Option<u32> {
        let position = index_u32(self.launches.binary_search(&index_u32(node)).ok()?);
        let behind = self.splits.partition_point(|split| split.nodes.start <= position);
        Some(index_u32(behind.checked_sub(1)?))
    }
}
