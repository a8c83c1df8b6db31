//! The graph builder: shapes and dtypes are checked when a node is added, not when the graph runs.

mod ops;

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use bevy_ecs::entity::Entity;
use entensor_components::{BackendIndex, DType, MAX_PIPELINE_COPIES, Op, OpError, Shape, TensorDesc, TensorFlags};

use crate::{engine::TensorId, error::BuildError};

/// A tensor of a graph under construction. Cheap to copy; only its own builder understands it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub(crate) builder: u32,
    pub(crate) index: u32,
    /// Dtype, shape and strides.
    pub desc: TensorDesc,
}

impl Tensor {
    /// Elements per axis, fastest first.
    #[must_use]
    pub fn shape(&self) -> [u64; 4] {
        self.desc.shape.0
    }
}

pub(crate) enum Origin {
    /// A leaf that exists already, shared between graphs.
    Shared(Entity),
    /// A tensor of this graph.
    Own { op: Op, sources: Vec<u32>, root: Option<u32>, offset_bytes: u64 },
}

pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) desc: TensorDesc,
    pub(crate) origin: Origin,
    pub(crate) flags: TensorFlags,
    pub(crate) pin: Option<BackendIndex>,
}

/// Collects a graph. Nothing reaches the engine before [`crate::Engine::add_graph`].
///
/// Operands come in the order of ggml's constructors; shapes have the fastest axis first.
///
/// ```
/// use entensor::{DType, GraphBuilder};
///
/// let mut g = GraphBuilder::new("example");
/// let x = g.input("x", DType::F32, &[4, 2])?;
/// let y = g.silu(x)?;
/// let y = g.output("y", y)?;
/// assert_eq!(y.shape(), [4, 2, 1, 1]);
/// let wide = g.input("wide", DType::F32, &[5])?;
/// assert!(g.add(x, wide).is_err());
/// # Ok::<(), entensor::BuildError>(())
/// ```
pub struct GraphBuilder {
    pub(crate) id: u32,
    pub(crate) name: Arc<str>,
    pub(crate) nodes: Vec<Node>,
    names: HashSet<Arc<str>>,
    pub(crate) copies: u32,
    pub(crate) arena: Option<Entity>,
}

impl GraphBuilder {
    /// An empty graph.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        // Builders are told apart so that a tensor of another is an error and not a wrong node.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, name: name.into(), nodes: Vec::new(), names: HashSet::new(), copies: 1, arena: None }
    }

    /// Keeps inputs, outputs and copies this many times, so that runs can overlap; from 1 to [`MAX_PIPELINE_COPIES`]. With more
    /// than one, inputs must be written before every run.
    pub fn pipeline_copies(&mut self, copies: u32) -> &mut Self {
        self.copies = copies.clamp(1, MAX_PIPELINE_COPIES);
        self
    }

    /// Uses planned memory together with other graphs, one after the other; see [`crate::Engine::new_arena`].
    pub fn share_arena(&mut self, arena: crate::ArenaId) -> &mut Self {
        self.arena = Some(arena.0);
        self
    }

    fn push(&mut self, node: Node) -> Result<Tensor, BuildError> {
        if !self.names.insert(Arc::clone(&node.name)) {
            return Err(BuildError::DuplicateName { graph: Arc::clone(&self.name), name: node.name });
        }
        // Planning checks the same bound; a builder never comes near it.
        let index = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        let tensor = Tensor { builder: self.id, index, desc: node.desc };
        self.nodes.push(node);
        Ok(tensor)
    }

    fn leaf(&mut self, name: &str, dtype: DType, dims: &[u64], flags: TensorFlags) -> Result<Tensor, BuildError> {
        let name: Arc<str> = name.into();
        let too_many = entensor_components::ShapeError::TooManyAxes { rank: dims.len() };
        let desc = Shape::new(dims).ok_or(too_many).and_then(|shape| TensorDesc::packed(dtype, shape));
        let fail = |source| BuildError::Leaf { graph: Arc::clone(&self.name), leaf: Arc::clone(&name), source };
        let desc = desc.map_err(fail)?;
        let origin = Origin::Own { op: Op::None {}, sources: Vec::new(), root: None, offset_bytes: 0 };
        self.push(Node { name, desc, origin, flags, pin: None })
    }

    /// A tensor that the user writes before a run. What was written stays for later runs.
    ///
    /// # Errors
    /// A shape that cannot exist, or a name that is taken.
    pub fn input(&mut self, name: &str, dtype: DType, dims: &[u64]) -> Result<Tensor, BuildError> {
        self.leaf(name, dtype, dims, TensorFlags { input: true, ..TensorFlags::default() })
    }

    /// An input that each run consumes: its memory serves other tensors after its last reader, so the graph needs less, and the
    /// input is written before every run.
    ///
    /// # Errors
    /// As [`Self::input`].
    ///
    /// ```
    /// # use entensor::{DType, Engine, GraphBuilder};
    /// # let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    /// let mut planned_bytes = |consumed: bool| -> Result<u64, Box<dyn std::error::Error>> {
    ///     let mut g = GraphBuilder::new("image");
    ///     let dims = [64, 64];
    ///     let x = if consumed { g.consumed_input("x", DType::F32, &dims)? } else { g.input("x", DType::F32, &dims)? };
    ///     let y = g.relu(x)?;
    ///     g.output("y", y)?;
    ///     let graph = engine.add_graph(g);
    ///     engine.plan(graph)?;
    ///     Ok(engine.plan_of(graph).map_or(0, |plan| plan.planned_bytes()))
    /// };
    /// assert_eq!(planned_bytes(false)?, 2 * 64 * 64 * 4);
    /// assert_eq!(planned_bytes(true)?, 64 * 64 * 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn consumed_input(&mut self, name: &str, dtype: DType, dims: &[u64]) -> Result<Tensor, BuildError> {
        self.leaf(name, dtype, dims, TensorFlags { input: true, consumed: true, output: false })
    }

    /// Planned memory without contents: a target of `set_rows` or `cpy`.
    ///
    /// # Errors
    /// As [`Self::input`].
    pub fn scratch(&mut self, name: &str, dtype: DType, dims: &[u64]) -> Result<Tensor, BuildError> {
        self.leaf(name, dtype, dims, TensorFlags::default())
    }

    /// A tensor that exists already: weights, a cache.
    ///
    /// # Errors
    /// A name that is taken: the same tensor needs to be added only once.
    pub fn shared(&mut self, tensor: &TensorId) -> Result<Tensor, BuildError> {
        self.push(Node {
            name: Arc::clone(&tensor.name),
            desc: tensor.desc,
            origin: Origin::Shared(tensor.entity),
            flags: TensorFlags::default(),
            pin: None,
        })
    }

    /// Any op of the table.
    ///
    /// # Errors
    /// When the op does not fit its operands.
    pub fn op(&mut self, op: Op, operands: &[Tensor]) -> Result<Tensor, BuildError> {
        let name = format!("{}_{}", op.kind().name(), self.nodes.len());
        self.named(&name, op, operands)
    }

    /// Any op of the table, from operands of which some may be left out.
    fn given(&mut self, op: Op, operands: impl IntoIterator<Item = Option<Tensor>>) -> Result<Tensor, BuildError> {
        match op.given_operands(operands) {
            Ok(operands) => self.op(op, &operands),
            Err(source) => Err(self.refused(&format!("{}_{}", op.kind().name(), self.nodes.len()), source)),
        }
    }

    fn refused(&self, node: &str, source: OpError) -> BuildError {
        BuildError::Op { graph: Arc::clone(&self.name), node: node.into(), source }
    }

    /// Any op of the table, under a name of the user's.
    ///
    /// # Errors
    /// When the op does not fit its operands, or the name is taken.
    pub fn named(&mut self, name: &str, op: Op, operands: &[Tensor]) -> Result<Tensor, BuildError> {
        let node: Arc<str> = name.into();
        if let Some(operand) = operands.iter().position(|t| t.builder != self.id) {
            return Err(BuildError::ForeignTensor { graph: Arc::clone(&self.name), node, operand });
        }
        let descs: Vec<TensorDesc> = operands.iter().map(|t| t.desc).collect();
        let result = op.result(&descs).map_err(|source| self.refused(name, source))?;
        let (root, offset_bytes) = match result.view {
            Some(view) => {
                let source = operands[view.operand].index;
                let (root, base) = self.root_of(source);
                (Some(root), base + view.offset_bytes)
            }
            None => (None, 0),
        };
        let sources = operands.iter().map(|t| t.index).collect();
        let origin = Origin::Own { op, sources, root, offset_bytes };
        self.push(Node { name: node, desc: result.desc, origin, flags: TensorFlags::default(), pin: None })
    }

    fn root_of(&self, index: u32) -> (u32, u64) {
        match &self.nodes[index as usize].origin {
            Origin::Own { root: Some(root), offset_bytes, .. } => (*root, *offset_bytes),
            _ => (index, 0),
        }
    }

    fn own(&mut self, tensor: Tensor) -> Result<&mut Node, BuildError> {
        if tensor.builder != self.id {
            let graph = Arc::clone(&self.name);
            return Err(BuildError::ForeignTensor { node: Arc::clone(&graph), graph, operand: 0 });
        }
        let node = &mut self.nodes[tensor.index as usize];
        if matches!(node.origin, Origin::Shared(_)) {
            return Err(BuildError::SharedTensor { graph: Arc::clone(&self.name), tensor: Arc::clone(&node.name) });
        }
        Ok(node)
    }

    /// Names a tensor.
    ///
    /// # Errors
    /// A name that is taken, or a tensor that is shared or of another builder.
    pub fn name(&mut self, name: &str, tensor: Tensor) -> Result<Tensor, BuildError> {
        let name: Arc<str> = name.into();
        let old = Arc::clone(&self.own(tensor)?.name);
        if *old != *name && !self.names.insert(Arc::clone(&name)) {
            return Err(BuildError::DuplicateName { graph: Arc::clone(&self.name), name });
        }
        self.own(tensor)?.name = Arc::clone(&name);
        if *old != *name {
            self.names.remove(&old);
        }
        Ok(tensor)
    }

    /// Names a tensor and keeps it to be read after the run.
    ///
    /// # Errors
    /// As [`Self::name`].
    pub fn output(&mut self, name: &str, tensor: Tensor) -> Result<Tensor, BuildError> {
        let tensor = self.name(name, tensor)?;
        self.own(tensor)?.flags.output = true;
        Ok(tensor)
    }

    /// Wishes a tensor onto a backend.
    ///
    /// # Errors
    /// A tensor that is shared or of another builder.
    pub fn pin(&mut self, tensor: Tensor, backend: BackendIndex) -> Result<Tensor, BuildError> {
        self.own(tensor)?.pin = Some(backend);
        Ok(tensor)
    }
}
