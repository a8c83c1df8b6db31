//! A stack of transformer layers as llama-like models have them: 28 nodes and eight weights each, at the widths of SmolLM2-135M
//! and 512 tokens. What planners are measured on, since its memory does not depend on how many layers there are.

use std::borrow::BorrowMut;

use bevy_ecs::prelude::World;
use entensor::{
    BackendIndex, BuildError, DType, Engine, EngineBuilder, EngineError, GraphBuilder, Op, RopeMode, Tensor, TensorId,
    Usage,
    graph_text::{GraphText, GraphTextError},
};

/// Nodes of a layer, views among them.
pub const NODES_PER_LAYER: usize = 28;

const WIDTH: u64 = 576;
const HEADS: u64 = 9;
const KV_HEADS: u64 = 3;
const HEAD_WIDTH: u64 = WIDTH / HEADS;
const FEED_FORWARD_WIDTH: u64 = 1536;
const TOKENS: u64 = 512;

/// The weights of a layer, in the order that [`Stack::graph`] uses them.
const WEIGHTS: [(&str, &[u64]); 8] = [
    ("attn_norm", &[WIDTH]),
    ("attn_q", &[WIDTH, WIDTH]),
    ("attn_k", &[WIDTH, KV_HEADS * HEAD_WIDTH]),
    ("attn_v", &[WIDTH, KV_HEADS * HEAD_WIDTH]),
    ("attn_out", &[WIDTH, WIDTH]),
    ("ffn_norm", &[WIDTH]),
    ("ffn_gate_up", &[WIDTH, 2 * FEED_FORWARD_WIDTH]),
    ("ffn_down", &[FEED_FORWARD_WIDTH, WIDTH]),
];

/// Where the layers of a stack are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Each layer where its weights are, and these go round the backends: copies at every layer, if there are several.
    Layers,
    /// Every computing node is pinned to the backend after that of the one before it: as many copies as there can be.
    Nodes,
}

/// Why a stack could not be made.
#[derive(Debug)]
pub enum StackError {
    /// The machine's text does not parse.
    Machine(GraphTextError),
    /// The engine refused.
    Engine(EngineError),
}

impl std::fmt::Display for StackError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Machine(error) => error.fmt(f),
            Self::Engine(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StackError {}

impl From<GraphTextError> for StackError {
    fn from(error: GraphTextError) -> Self {
        Self::Machine(error)
    }
}

impl From<EngineError> for StackError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

/// The number of layers whose nodes come closest to `nodes` without falling short.
#[must_use]
pub fn layers_for(nodes: usize) -> usize {
    nodes.div_ceil(NODES_PER_LAYER).max(1)
}

/// An engine that plans for a machine of null backends: devices with memory of their own and the host below them. It does not
/// verify plans, so that only planning is measured.
///
/// # Errors
/// When the engine does not start.
pub fn machine(backends: usize) -> Result<Engine, StackError> {
    let devices = (1..backends).map(|device| format!("backend dev{device}\n"));
    let text = devices.chain(["backend cpu\n".into()]).collect::<String>();
    let text = GraphText::parse("machine", &text)?;
    let builder = text.backends().into_iter().fold(Engine::builder(), EngineBuilder::backend_instance);
    Ok(builder.verify_plans(false).build()?)
}

/// The weights of a stack, from which its graph can be built any number of times.
pub struct Stack {
    weights: Vec<Vec<TensorId>>,
    backends: u32,
    placement: Placement,
}

impl Stack {
    /// Lays the weights of so many layers into buffers, one on each backend.
    ///
    /// # Errors
    /// Only if the engine cannot hold the weights.
    pub fn new<W: BorrowMut<World>>(
        engine: &mut Engine<W>,
        layers: usize,
        placement: Placement,
    ) -> Result<Self, EngineError> {
        let backends = engine.host().0 + 1;
        let mut stack = Self { weights: Vec::with_capacity(layers), backends, placement };
        let dtype = |dims: &[u64]| if dims.len() == 1 { DType::F32 } else { DType::Q8_0 };
        let weight_bytes = |dims: &[u64]| {
            let row = dtype(dims).row();
            (dims.iter().product::<u64>() / row.block_elements * row.block_bytes).next_multiple_of(32)
        };
        let layer_bytes: u64 = WEIGHTS.iter().map(|(_, dims)| weight_bytes(dims)).sum();
        let mut buffers = Vec::new();
        for backend in 0..backends {
            let name = format!("weights{backend}");
            let size_bytes = layer_bytes * layers as u64;
            buffers.push((engine.create_buffer(&name, BackendIndex(backend), Usage::Weights, size_bytes)?, 0));
        }
        for layer in 0..layers {
            let mut tensors = Vec::with_capacity(WEIGHTS.len());
            for (part, (name, dims)) in WEIGHTS.iter().enumerate() {
                let (buffer, end) = &mut buffers[stack.home_of(layer, part) as usize];
                tensors.push(engine.tensor_in(&format!("{name}.{layer}"), dtype(dims), dims, *buffer, *end)?);
                *end += weight_bytes(dims);
            }
            stack.weights.push(tensors);
        }
        Ok(stack)
    }

    /// How many nodes the graph has, views among them, leaves not.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.weights.len() * NODES_PER_LAYER
    }

    /// How many leaves the graph has.
    #[must_use]
    pub fn leaves(&self) -> usize {
        self.weights.len() * WEIGHTS.len() + 3
    }

    /// The backend of a layer's weight: weights are where the node is that uses them.
    fn home_of(&self, layer: usize, part: usize) -> u32 {
        /// Which computing node of its layer uses each weight.
        const USERS: [u32; WEIGHTS.len()] = [1, 2, 3, 4, 12, 15, 16, 18];
        let layer = u32::try_from(layer).unwrap_or(u32::MAX);
        match self.placement {
            Placement::Layers => layer % self.backends,
            Placement::Nodes => (layer.wrapping_mul(COMPUTING_PER_LAYER) + USERS[part]) % self.backends,
        }
    }

    /// The graph.
    ///
    /// # Errors
    /// None: its shapes fit.
    pub fn graph(&self) -> Result<GraphBuilder, BuildError> {
        let mut g = GraphBuilder::new("stack");
        let x = g.input("x", DType::F32, &[WIDTH, TOKENS])?;
        let positions = g.input("positions", DType::I32, &[TOKENS])?;
        let mask = g.input("mask", DType::F32, &[TOKENS, TOKENS])?;
        let mut layer = Layer { g, positions, mask, computing: 0, pins: None };
        if self.placement == Placement::Nodes {
            layer.pins = Some(self.backends);
        }
        let mut x = x;
        for weights in &self.weights {
            x = layer.add(x, weights)?;
        }
        layer.g.output("y", x)?;
        Ok(layer.g)
    }
}

/// Nodes of a layer that are no views.
const COMPUTING_PER_LAYER: u32 = 20;

struct Layer {
    g: GraphBuilder,
    positions: Tensor,
    mask: Tensor,
    /// How many computing nodes there are.
    computing: u32,
    /// The number of backends that computing nodes are pinned to in turn.
    pins: Option<u32>,
}

impl Layer {
    /// Counts a computing node, and pins it if nodes are pinned.
    fn next(&mut self, node: Tensor) -> Result<Tensor, BuildError> {
        let index = self.computing;
        self.computing += 1;
        match self.pins {
            Some(backends) => self.g.pin(node, BackendIndex(index % backends)),
            None => Ok(node),
        }
    }

    fn op(&mut self, op: Op, operands: &[Tensor]) -> Result<Tensor, BuildError> {
        let node = self.g.op(op, operands)?;
        self.next(node)
    }

    fn product(&mut self, weights: Tensor, x: Tensor) -> Result<Tensor, BuildError> {
        self.op(Op::MulMat {}, &[weights, x])
    }

    fn norm(&mut self, x: Tensor, weights: Tensor) -> Result<Tensor, BuildError> {
        let normed = self.op(Op::RmsNorm { eps: 1e-5 }, &[x])?;
        self.op(Op::Mul {}, &[normed, weights])
    }

    fn rope(&mut self, x: Tensor, heads: u64) -> Result<Tensor, BuildError> {
        let x = self.g.reshape(x, [HEAD_WIDTH, heads, TOKENS, 1])?;
        let rope = Op::Rope {
            mode: RopeMode::Normal,
            n_dims: 0,
            n_ctx_orig: 0,
            base: 10_000.0,
            freq_scale: 1.0,
            ext_factor: 0.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            sections: [0; 4],
        };
        let rotated = self.op(rope, &[x, self.positions])?;
        self.g.permute(rotated, [0, 2, 1, 3])
    }

    /// One layer. Queries, keys and values are computed first, as models do.
    fn add(&mut self, x: Tensor, weights: &[TensorId]) -> Result<Tensor, BuildError> {
        let mut leaves = Vec::with_capacity(weights.len());
        for weight in weights {
            leaves.push(self.g.shared(weight)?);
        }
        let normed = self.norm(x, leaves[0])?;
        let query = self.product(leaves[1], normed)?;
        let key = self.product(leaves[2], normed)?;
        let value = self.product(leaves[3], normed)?;
        let query = self.rope(query, HEADS)?;
        let key = self.rope(key, KV_HEADS)?;
        let value = self.g.reshape(value, [HEAD_WIDTH, KV_HEADS, TOKENS, 1])?;
        let value = self.g.permute(value, [1, 2, 0, 3])?;
        let value = self.op(Op::Cont {}, &[value])?;
        let scores = self.product(key, query)?;
        let scores = self.op(Op::SoftMax { scale: 0.125, max_bias: 0.0 }, &[scores, self.mask])?;
        let mixed = self.product(value, scores)?;
        let mixed = self.g.permute(mixed, [0, 2, 1, 3])?;
        let mixed = self.op(Op::Cont {}, &[mixed])?;
        let mixed = self.g.reshape(mixed, [WIDTH, TOKENS, 1, 1])?;
        let attended = self.product(leaves[4], mixed)?;
        let x = self.op(Op::Add {}, &[attended, x])?;
        let normed = self.norm(x, leaves[5])?;
        let gates = self.product(leaves[6], normed)?;
        let gated = self.op(Op::Swiglu {}, &[gates])?;
        let down = self.product(leaves[7], gated)?;
        self.op(Op::Add {}, &[down, x])
    }
}
