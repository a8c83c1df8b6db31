//! The facts of a graph's nodes, gathered once and shared: by the graph, by every pass, and by the plans made from them.

use std::{hash::Hasher, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{BackendIndex, Op, Stored, TensorDesc, TensorFlags};
use rustc_hash::FxHasher;

use super::{
    index_u32,
    kinds::{Kinds, Seen},
};

/// Operands of each node, as node indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSources {
    starts: Vec<u32>,
    indices: Vec<u32>,
}

impl Default for NodeSources {
    fn default() -> Self {
        Self { starts: vec![0], indices: Vec::new() }
    }
}

impl NodeSources {
    /// Adds the next node's operands.
    pub fn push(&mut self, sources: impl IntoIterator<Item = u32>) {
        self.indices.extend(sources);
        self.starts.push(index_u32(self.indices.len()));
    }

    /// The operands of a node.
    #[must_use]
    pub fn of(&self, node: usize) -> &[u32] {
        &self.indices[self.starts[node] as usize..self.starts[node + 1] as usize]
    }
}

/// Whose memory each node is: itself, or the root it views or writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRoots {
    /// The root's index; the node's own for roots.
    pub root: Vec<u32>,
    /// Bytes from the root's first element.
    pub offset_bytes: Vec<u64>,
}

impl NodeRoots {
    /// The root of a node.
    #[must_use]
    pub fn of(&self, node: usize) -> usize {
        self.root[node] as usize
    }

    /// Whether a node is its own root.
    #[must_use]
    pub fn is_root(&self, node: usize) -> bool {
        self.of(node) == node
    }
}

/// What is known of a graph's nodes before any pass has decided anything: one column a fact, in indexed order, leaves first.
///
/// It never changes once it is made, so a plan keeps it without copying it.
#[derive(Debug, Default)]
pub struct NodeTable {
    /// The first `leaves` nodes are leaves.
    pub leaves: usize,
    /// Name of each node.
    pub names: Vec<Arc<str>>,
    /// Dtype, shape and strides of each node.
    pub descs: Vec<TensorDesc>,
    /// Op of each node.
    pub ops: Vec<Op>,
    /// Operands of each node.
    pub sources: NodeSources,
    /// Whose memory each node is.
    pub roots: NodeRoots,
    /// Input and output flags of each node, as the user set them.
    pub flags: Vec<TensorFlags>,
    /// The user's wish for each node.
    pub pins: Vec<Option<BackendIndex>>,
    /// What the passes ask of each node's op.
    pub traits: Vec<NodeTraits>,
    /// Per node the operands, one bit each, that its op may overwrite and that look exactly like its result.
    pub replaceable: Vec<u8>,
    /// The nodes that launch work, in order.
    pub computing: Vec<u32>,
    /// Nodes of one layout have the same dtype, shape and strides.
    pub layouts: Kinds,
    /// Nodes of one kind have the same op and parameters, layout and operands' layouts: backends cannot tell them apart.
    pub kinds: Kinds,
    /// Where the keys of each kind's op begin and end.
    kind_keys: Vec<(u32, u32)>,
    /// Ops and parameters bit by bit: what equality of ops means for a plan.
    op_keys: Vec<u64>,
    /// Bytes of the names' texts, with what an `Arc` adds.
    name_bytes: usize,
    hash: u64,
}

/// What the passes ask of a node's op, in one number: the op table's rows are larger than all that planning needs of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTraits(u8);

impl NodeTraits {
    const COMPUTES: u8 = 1;
    const WRITES: u8 = 2;
    /// Above these bits stands 1 + the anchor operand.
    const ANCHOR_SHIFT: u32 = 4;

    fn of(op: &Op) -> Self {
        let row = op.row();
        let anchor = row.anchor.and_then(|anchor| u8::try_from(anchor + 1).ok()).unwrap_or(0);
        Self(
            (u8::from(row.computes()) * Self::COMPUTES)
                | (u8::from(row.writes.is_some()) * Self::WRITES)
                | (anchor << Self::ANCHOR_SHIFT),
        )
    }

    /// Whether it launches work: neither a leaf nor a view op.
    #[must_use]
    pub fn computes(self) -> bool {
        self.0 & Self::COMPUTES != 0
    }

    /// Whether it writes one of its operands.
    #[must_use]
    pub fn writes(self) -> bool {
        self.0 & Self::WRITES != 0
    }

    /// The operand whose existing memory decides placement.
    #[must_use]
    pub fn anchor(self) -> Option<usize> {
        (self.0 >> Self::ANCHOR_SHIFT).checked_sub(1).map(usize::from)
    }
}

/// One row of a [`NodeTable`] to be.
pub struct NodeFacts {
    /// Its name.
    pub name: Arc<str>,
    /// Dtype, shape and strides.
    pub desc: TensorDesc,
    /// The op.
    pub op: Op,
    /// Whose memory it is; `None` for its own.
    pub root: Option<u32>,
    /// Bytes from the root's first element.
    pub offset_bytes: u64,
    /// Input and output.
    pub flags: TensorFlags,
    /// The user's wish.
    pub pin: Option<BackendIndex>,
}

/// A [`NodeTable`] that is being made.
#[derive(Debug, Default)]
pub struct NodeTableBuilder {
    table: NodeTable,
    layouts: Seen,
    kinds: Seen,
}

impl NodeTableBuilder {
    /// An empty table with room for some nodes.
    #[must_use]
    pub fn with_capacity(nodes: usize) -> Self {
        let mut table = NodeTable::default();
        table.names.reserve_exact(nodes);
        table.descs.reserve_exact(nodes);
        table.ops.reserve_exact(nodes);
        table.sources.starts.reserve_exact(nodes);
        table.sources.indices.reserve(nodes * 2);
        table.roots.root.reserve_exact(nodes);
        table.roots.offset_bytes.reserve_exact(nodes);
        table.flags.reserve_exact(nodes);
        table.pins.reserve_exact(nodes);
        table.traits.reserve_exact(nodes);
        table.replaceable.reserve_exact(nodes);
        table.computing.reserve(nodes);
        table.op_keys.reserve(nodes * 2);
        table.layouts.reserve(nodes);
        table.kinds.reserve(nodes);
        Self { table, ..Self::default() }
    }

    /// Adds the next node. Its operands and its root have been added before.
    pub fn push(&mut self, node: NodeFacts, sources: impl IntoIterator<Item = u32>) {
        let table = &mut self.table;
        let index = index_u32(table.names.len());
        let traits = NodeTraits::of(&node.op);
        if traits.computes() {
            table.computing.push(index);
        }
        let (key, operands) = (table.op_keys.len(), table.sources.indices.len());
        node.op.key(&mut table.op_keys);
        table.sources.push(sources);
        let [a, b, c, d] = node.desc.shape.0;
        let shape = a ^ b.rotate_left(16) ^ c.rotate_left(32) ^ d.rotate_left(48) ^ (node.desc.dtype as u64) << 59;
        let mut hasher = FxHasher::default();
        hasher.write_u64(table.hash);
        hasher.write_u64(shape);
        hasher.write_u64(node.offset_bytes);
        hasher.write(bytemuck::cast_slice(&table.op_keys[key..]));
        hasher.write(bytemuck::cast_slice(&table.sources.indices[operands..]));
        table.hash = hasher.finish();
        table.name_bytes += node.name.len() + 2 * size_of::<usize>();
        table.replaceable.push(replaceable(&node, &table.sources.indices[operands..], &table.descs));
        table.names.push(node.name);
        table.descs.push(node.desc);
        table.ops.push(node.op);
        table.traits.push(traits);
        table.roots.root.push(node.root.unwrap_or(index));
        table.roots.offset_bytes.push(node.offset_bytes);
        table.flags.push(node.flags);
        table.pins.push(node.pin);
        self.sort(index as usize, key, shape);
    }

    /// Finds the layout and the kind of the node that was added.
    fn sort(&mut self, node: usize, key: usize, shape: u64) {
        let Self { table, layouts, kinds } = self;
        let mut hasher = FxHasher::default();
        hasher.write_u64(shape);
        table.descs[node].strides.0.into_iter().for_each(|stride| hasher.write_u64(stride));
        let descs = &table.descs;
        table.layouts.add(layouts, hasher.finish(), |_, other| descs[other] == descs[node]);
        let mut hasher = FxHasher::default();
        hasher.write_usize(table.layouts.of(node));
        hasher.write(bytemuck::cast_slice(&table.op_keys[key..]));
        let (layouts, sources, keys) = (&table.layouts, &table.sources, &table.op_keys);
        // Operands that stand behind their user have no layout yet, and are refused once the table is whole.
        let of_sources = |node: usize| sources.of(node).iter().map(|&source| layouts.by_node().get(source as usize));
        of_sources(node).flatten().for_each(|&layout| hasher.write_u32(layout));
        let (kind_keys, known) = (&mut table.kind_keys, table.kinds.count());
        table.kinds.add(kinds, hasher.finish(), |kind, other| {
            let (start, end) = kind_keys[kind];
            layouts.of(other) == layouts.of(node)
                && keys[start as usize..end as usize] == keys[key..]
                && of_sources(other).eq(of_sources(node))
        });
        if table.kinds.count() > known {
            kind_keys.push((index_u32(key), index_u32(keys.len())));
        }
    }

    /// The table of the nodes added so far, of which the first `leaves` are leaves.
    #[must_use]
    pub fn build(mut self, leaves: usize) -> NodeTable {
        self.table.leaves = leaves;
        self.table
    }
}

impl NodeTable {
    /// How many nodes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The nodes that launch work, in order.
    pub fn computing(&self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator + '_ {
        self.computing.iter().map(|&node| node as usize)
    }

    /// The row of a node, to make another table of it.
    #[must_use]
    pub fn facts(&self, node: usize) -> NodeFacts {
        NodeFacts {
            name: Arc::clone(&self.names[node]),
            desc: self.descs[node],
            op: self.ops[node].clone(),
            root: (!self.roots.is_root(node)).then(|| self.roots.root[node]),
            offset_bytes: self.roots.offset_bytes[node],
            flags: self.flags[node],
            pin: self.pins[node],
        }
    }

    /// A number that equal tables share. What it leaves out, names and strides among it, only equality tells apart.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Bytes of its columns; names are counted once for each table that holds them.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.name_bytes
            + size_of_val(&*self.names)
            + size_of_val(&*self.descs)
            + size_of_val(&*self.ops)
            + size_of_val(&*self.sources.starts)
            + size_of_val(&*self.sources.indices)
            + size_of_val(&*self.roots.root)
            + size_of_val(&*self.roots.offset_bytes)
            + size_of_val(&*self.flags)
            + size_of_val(&*self.pins)
            + size_of_val(&*self.traits)
            + size_of_val(&*self.replaceable)
            + size_of_val(&*self.computing)
            + self.layouts.size_bytes()
            + self.kinds.size_bytes()
            + size_of_val(&*self.kind_keys)
            + size_of_val(&*self.op_keys)
    }
}

fn replaceable(node: &NodeFacts, sources: &[u32], descs: &[TensorDesc]) -> u8 {
    let overwrites = node.op.row().overwrites.iter();
    let fits = |&&operand: &&usize| sources.get(operand).is_some_and(|&source| descs[source as usize] == node.desc);
    overwrites.filter(fits).fold(0, |bits, &operand| bits | 1_u8.checked_shl(operand as u32).unwrap_or(0))
}

/// Every fact is compared: two graphs never share a plan by accident.
impl PartialEq for NodeTable {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && self.leaves == other.leaves
            && self.op_keys == other.op_keys
            && self.sources == other.sources
            && self.descs == other.descs
            && self.roots == other.roots
            && self.flags == other.flags
            && self.pins == other.pins
            && self.names == other.names
    }
}

/// The table of the graph being planned: all that `index` found out, for every later pass to read.
#[derive(Resource, Clone, Debug, Default)]
pub struct Nodes(pub Arc<NodeTable>);

impl Nodes {
    /// The nodes that a split computes, in order.
    #[must_use]
    pub fn computed_by(&self, split: &crate::split::Split) -> &[u32] {
        &self.computing[split.nodes.start as usize..split.nodes.end as usize]
    }
}

impl std::ops::Deref for Nodes {
    type Target = NodeTable;

    fn deref(&self) -> &NodeTable {
        &self.0
    }
}

/// On a graph: the table of all its tensors, as long as it is up to date. Whoever makes a graph may leave one, so that `index`
/// need not gather it from the tensors' components.
#[derive(Component, Clone, Debug, Default)]
pub struct GraphNodes {
    /// The facts, of needed tensors and others.
    pub table: Arc<NodeTable>,
    /// Entity of each node.
    pub entities: Arc<Vec<Entity>>,
    /// The nodes that have memory, in order.
    pub stored: Arc<Vec<(u32, Stored)>>,
    /// The leaves that several graphs may share, in order.
    pub shared: Arc<Vec<u32>>,
    /// The graph's generation when this was gathered.
    pub generation: u64,
    /// The generation of shared leaves when this was gathered.
    pub shared_generation: u64,
}
