//! One conversation with a model: a key-value cache, a position, and graphs that are kept for the shapes they serve.
//!
//! Position is data, not topology. Cache rows are written by index, and a mask says which of them a token may look at. Attention skips
//! what is masked for all, so every decoded token runs the same plan and costs what is in use of the cache: nothing is planned and
//! nothing is allocated. Only where the mask itself would be large do graphs read a part of the cache, in doublings.

use std::borrow::BorrowMut;

use bevy_ecs::prelude::World;
use entensor::{
    ArenaId, BackendIndex, BufferId, CancelToken, DType, Engine, EngineError, GraphBuilder, GraphId, RunLimit, Usage,
};
use half::f16;

use crate::{
    ModelError,
    arch::{CacheTensors, StepShape, StepTensors},
    model::LanguageModel,
};

/// Elements of a mask (two bytes each) up to which a graph reads all rows of the cache, whatever is in use of them.
const WHOLE_MASK_ELEMENTS: u64 = 1 << 16;

/// Rows that a graph reads at least where it does not read all.
const FEWEST_ROWS: u32 = 256;

/// Most tokens that run at once.
pub const MICRO_BATCH_TOKENS: u32 = 512;

/// Graphs kept per session; the one not used for longest goes first.
const MAX_GRAPHS: usize = 16;

/// How a session is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Tokens that fit into the conversation: the cache's rows.
    pub context: u32,
    /// Most tokens that run at once, from 1 to [`MICRO_BATCH_TOKENS`].
    pub micro_batch: u32,
    /// The backend whose memory the key-value cache lies in; `None` for the host.
    pub cache: Option<BackendIndex>,
    /// Whether the host keeps a copy of the cache: the conversation goes on should the device be lost. It takes as much memory again,
    /// and a read of each token's rows.
    pub shadow: bool,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self { context: 2048, micro_batch: MICRO_BATCH_TOKENS, cache: None, shadow: false }
    }
}

/// Which tokens' logits a call to [`Session::feed_with`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// Those of the last token.
    Last,
    /// Those of every token.
    All,
}

struct Step {
    shape: StepShape,
    graph: GraphId,
    tensors: StepTensors,
    used: u64,
}

/// Values written before a step, kept so that steps allocate nothing.
#[derive(Default)]
struct StepInputs {
    ids: Vec<i32>,
    positions: Vec<i32>,
    mask: Vec<f16>,
    wanted: Vec<i32>,
}

/// One conversation. It belongs to the engine and model that it was made with, and leaves its graphs and cache in the engine
/// unless [`Session::remove`] takes them out.
pub struct Session {
    config: SessionConfig,
    cache: CacheTensors,
    cache_buffer: BufferId,
    /// Bytes from one of the cache's tensors to the next.
    cache_stride_bytes: u64,
    arena: ArenaId,
    steps: Vec<Step>,
    clock: u64,
    position: u32,
    inputs: StepInputs,
    logits: Vec<f32>,
    cancel: Option<CancelToken>,
}

impl Session {
    /// An empty conversation with a cache for `config.context` tokens.
    ///
    /// # Errors
    /// A context or micro-batch of zero, or a cache that does not fit into memory.
    pub fn new<W: BorrowMut<World>>(
        engine: &mut Engine<W>,
        model: &LanguageModel,
        config: SessionConfig,
    ) -> Result<Self, ModelError> {
        let network = model.network().config();
        if config.context == 0 || i32::try_from(config.context).is_err() {
            return Err(ModelError::Context { context: config.context });
        }
        if config.micro_batch == 0 || config.micro_batch > MICRO_BATCH_TOKENS {
            return Err(ModelError::MicroBatch { tokens: config.micro_batch, max: MICRO_BATCH_TOKENS });
        }
        let (width, rows) = (network.kv_width(), u64::from(config.context));
        // One buffer holds both tensors of all layers; each starts on a cache line.
        let tensor_bytes = (width * rows * DType::F16.block_bytes()).next_multiple_of(64);
        let count = u64::from(network.layers) * 2;
        let place = config.cache.unwrap_or(engine.host());
        let cache_buffer = engine.create_buffer("kv_cache", place, Usage::Any, tensor_bytes * count)?;
        if config.shadow {
            engine.keep_shadow(cache_buffer)?;
        }
        let mut cache = CacheTensors { keys: Vec::new(), values: Vec::new() };
        for layer in 0..u64::from(network.layers) {
            let dims = [width, rows];
            let (at, name) = (2 * layer * tensor_bytes, format!("cache_k.{layer}"));
            cache.keys.push(engine.tensor_in(&name, DType::F16, &dims, cache_buffer, at)?);
            let name = format!("cache_v.{layer}");
            cache.values.push(engine.tensor_in(&name, DType::F16, &dims, cache_buffer, at + tensor_bytes)?);
        }
        let arena = engine.new_arena();
        Ok(Self {
            config,
            cache,
            cache_buffer,
            cache_stride_bytes: tensor_bytes,
            arena,
            steps: Vec::new(),
            clock: 0,
            position: 0,
            inputs: StepInputs::default(),
            logits: Vec::new(),
            cancel: None,
        })
    }

    /// Lets whoever holds the token end a feed that is under way, from any thread, within about a millisecond on the CPU. A feed that was
    /// ended reports [`EngineError::Cancelled`](entensor::EngineError::Cancelled), as do those behind it until the session gets another
    /// token, or none. Whole micro-batches stay in the conversation, and [`Session::position`] says how many tokens that are; of the
    /// one that was cancelled nothing does. So the caller can feed the rest, or [`Session::truncate`] what was kept.
    pub fn set_cancel_token(&mut self, token: Option<CancelToken>) {
        self.cancel = token;
    }

    /// Tokens in the conversation so far.
    #[must_use]
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Tokens that still fit.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.config.context - self.position
    }

    /// Forgets every token from `position` on, and the logits with them.
    pub fn truncate(&mut self, position: u32) {
        if position < self.position {
            self.position = position;
            self.logits.clear();
        }
    }

    /// The logits of the last token fed; empty before the first, after [`Self::truncate`] and after an error.
    #[must_use]
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Feeds tokens, in micro-batches, and keeps the logits of the last.
    ///
    /// # Errors
    /// No tokens, more than fit into the context, an id outside the vocabulary; or what the engine reports. After an error
    /// the conversation is as it was before the micro-batch that failed, or that was cancelled. When a device is lost and another backend can do its work, the
    /// micro-batch is run again there; if the cache was on the device and had no shadow, that is
    /// [`entensor::EngineError::StateLost`].
    pub fn feed<W: BorrowMut<World>>(
        &mut self,
        engine: &mut Engine<W>,
        model: &LanguageModel,
        tokens: &[u32],
    ) -> Result<(), ModelError> {
        self.feed_with(engine, model, tokens, Logits::Last, |_, _| ())
    }

    /// Feeds tokens and hands out the logits that were asked for, with the position of their token.
    ///
    /// # Errors
    /// As [`Self::feed`].
    pub fn feed_with<W: BorrowMut<World>>(
        &mut self,
        engine: &mut Engine<W>,
        model: &LanguageModel,
        tokens: &[u32],
        wanted: Logits,
        mut each: impl FnMut(u32, &[f32]),
    ) -> Result<(), ModelError> {
        self.check(model, tokens)?;
        self.logits.clear();
        // Logits of a whole micro-batch of a large vocabulary take much memory; fewer tokens at once take less.
        let most = match wanted {
            Logits::Last => self.config.micro_batch,
            Logits::All => self.config.micro_batch.min(64),
        };
        let pieces = tokens.len().div_ceil(most as usize);
        for (i, piece) in tokens.chunks(most as usize).enumerate() {
            let count = u32::try_from(piece.len()).unwrap_or(most);
            let outputs = match wanted {
                Logits::All => count,
                Logits::Last => 1,
            };
            let shape = StepShape { tokens: count, cache_rows: self.cache_rows(count), outputs };
            let read = matches!(wanted, Logits::All) || i + 1 == pieces;
            self.run_piece(engine, model, shape, piece, read)?;
            if read {
                let vocabulary = usize::try_from(model.network().config().vocabulary).unwrap_or(0);
                for (position, row) in (self.position + count - outputs..).zip(self.logits.chunks(vocabulary.max(1))) {
                    if row.iter().any(|logit| !logit.is_finite()) {
                        return Err(ModelError::NotFinite { position });
                    }
                    each(position, row);
                }
                // `logits` means the last token's.
                let extra = self.logits.len() - vocabulary;
                self.logits.copy_within(extra.., 0);
                self.logits.truncate(vocabulary);
            }
            self.position += count;
        }
        Ok(())
    }

    /// Runs one micro-batch and reads its logits; again, without the device, if one is lost meanwhile. Rows of the cache are written by
    /// index, so doing them twice changes nothing.
    fn run_piece<W: BorrowMut<World>>(
        &mut self,
        engine: &mut Engine<W>,
        model: &LanguageModel,
        shape: StepShape,
        tokens: &[u32],
        read: bool,
    ) -> Result<(), ModelError> {
        // Each round is with a device less.
        for _ in 0..engine.backends().len() {
            let lost = match self.try_piece(engine, model, shape, tokens, read) {
                Err(ModelError::Engine(error)) if error.is_device_lost() => error,
                other => return other,
            };
            if let EngineError::DeviceLost { recovered: false, .. } = lost {
                return Err(lost.into());
            }
            engine.check_devices()?;
        }
        self.try_piece(engine, model, shape, tokens, read)
    }

    fn try_piece<W: BorrowMut<World>>(
        &mut self,
        engine: &mut Engine<W>,
        model: &LanguageModel,
        shape: StepShape,
        tokens: &[u32],
        read: bool,
    ) -> Result<(), ModelError> {
        let step = self.step_of(engine, model, shape)?;
        self.run(engine, step, tokens)?;
        if read {
            let (graph, logits) = (self.steps[step].graph, self.steps[step].tensors.logits);
            let vocabulary = usize::try_from(model.network().config().vocabulary).unwrap_or(0);
            self.logits.resize(vocabulary * shape.outputs as usize, 0.0);
            engine.read(graph, logits, &mut self.logits)?;
        }
        if self.config.shadow { self.update_shadow(engine, shape.tokens) } else { Ok(()) }
    }

    /// Copies the rows of the tokens that have just run into the cache's shadow.
    fn update_shadow<W: BorrowMut<World>>(&self, engine: &Engine<W>, tokens: u32) -> Result<(), ModelError> {
        for (index, tensor) in (0..).zip(self.cache.keys.iter().zip(&self.cache.values).flat_map(|(k, v)| [k, v])) {
            let row_bytes = tensor.desc.strides.0[1];
            let start = index * self.cache_stride_bytes + u64::from(self.position) * row_bytes;
            engine.update_shadow(self.cache_buffer, start..start + u64::from(tokens) * row_bytes)?;
        }
        Ok(())
    }

    fn check(&self, model: &LanguageModel, tokens: &[u32]) -> Result<(), ModelError> {
        if tokens.is_empty() {
            return Err(ModelError::NoTokens);
        }
        if tokens.len() > self.remaining() as usize {
            return Err(ModelError::ContextFull {
                tokens: tokens.len(),
                used: self.position,
                context: self.config.context,
            });
        }
        let vocabulary = model.network().config().vocabulary;
        match tokens.iter().find(|&&id| u64::from(id) >= vocabulary) {
            Some(&id) => Err(ModelError::UnknownToken { id, vocabulary }),
            None => Ok(()),
        }
    }

    /// Rows of the cache that a graph for the next tokens reads.
    fn cache_rows(&self, tokens: u32) -> u32 {
        let context = self.config.context;
        if u64::from(tokens) * u64::from(context) <= WHOLE_MASK_ELEMENTS {
            return context;
        }
        // The context fits into 31 bits.
        (self.position + tokens).next_power_of_two().max(FEWEST_ROWS).min(context)
    }

    /// The graph of a shape, built if it is not kept.
    fn step_of<W: BorrowMut<World>>(
        &mut self,
        engine: &mut Engine<W>,
        model: &LanguageModel,
        shape: StepShape,
    ) -> Result<usize, ModelError> {
        self.clock += 1;
        if let Some(found) = self.steps.iter().position(|step| step.shape == shape) {
            self.steps[found].used = self.clock;
            return Ok(found);
        }
        let mut g = GraphBuilder::new(format!("step.{}.{}.{}", shape.tokens, shape.cache_rows, shape.outputs));
        g.share_arena(self.arena);
        let tensors = model.network().step(&mut g, &self.cache, shape)?;
        if self.steps.len() >= MAX_GRAPHS
            && let Some(oldest) = (0..self.steps.len()).min_by_key(|&i| self.steps[i].used)
        {
            let step = self.steps.swap_remove(oldest);
            engine.remove_graph(step.graph);
        }
        let graph = engine.add_graph(g);
        self.steps.push(Step { shape, graph, tensors, used: self.clock });
        Ok(self.steps.len() - 1)
    }

    fn run<W: BorrowMut<World>>(
        &mut self,
        engine: &mut Engine<W>,
        step: usize,
        tokens: &[u32],
    ) -> Result<(), ModelError> {
        self.write_inputs(engine, step, tokens)?;
        match &self.cancel {
            None => engine.run(self.steps[step].graph)?,
            // Without a deadline there is no pause.
            cancel => {
                let limit = RunLimit { deadline: None, cancel: cancel.as_ref() };
                engine.run_until(self.steps[step].graph, &limit)?;
            }
        }
        Ok(())
    }

    fn write_inputs<W: BorrowMut<World>>(
        &mut self,
        engine: &mut Engine<W>,
        step: usize,
        tokens: &[u32],
    ) -> Result<(), ModelError> {
        let Step { shape, graph, tensors, .. } = &self.steps[step];
        let inputs = &mut self.inputs;
        // Positions and ids were checked to fit i32: the context does, and ids are below the vocabulary's row count.
        let as_i32 = |v: u32| i32::try_from(v).unwrap_or(i32::MAX);
        inputs.ids.clear();
        inputs.ids.extend(tokens.iter().map(|&t| as_i32(t)));
        inputs.positions.clear();
        inputs.positions.extend((self.position..self.position + shape.tokens).map(as_i32));
        inputs.mask.clear();
        for position in self.position..self.position + shape.tokens {
            let seen = (position + 1) as usize;
            let row = inputs.mask.len();
            inputs.mask.resize(row + seen, f16::ZERO);
            inputs.mask.resize(row + shape.cache_rows as usize, f16::NEG_INFINITY);
        }
        engine.write(*graph, tensors.ids, &inputs.ids)?;
        engine.write(*graph, tensors.positions, &inputs.positions)?;
        engine.write(*graph, tensors.rows, &inputs.positions)?;
        engine.write(*graph, tensors.mask, &inputs.mask)?;
        if let Some(wanted) = tensors.wanted {
            inputs.wanted.clear();
            inputs.wanted.extend((shape.tokens - shape.outputs..shape.tokens).map(as_i32));
            engine.write(*graph, wanted, &inputs.wanted)?;
        }
        Ok(())
    }

    /// The graph that feeding these tokens at once would run now, with its inputs written: for whoever runs it in a way of their own.
    /// The conversation does not go on.
    ///
    /// # Errors
    /// As [`Self::feed`]; more tokens than run at once.
    pub fn stage<W: BorrowMut<World>>(
        &mut self,
        engine: &mut Engine<W>,
        model: &LanguageModel,
        tokens: &[u32],
        wanted: Logits,
    ) -> Result<GraphId, ModelError> {
        self.check(model, tokens)?;
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        if count > self.config.micro_batch {
            return Err(ModelError::MicroBatch { tokens: count, max: self.config.micro_batch });
        }
        let outputs = match wanted {
            Logits::All => count,
            Logits::Last => 1,
        };
        let shape = StepShape { tokens: count, cache_rows: self.cache_rows(count), outputs };
        let step = self.step_of(engine, model, shape)?;
        self.write_inputs(engine, step, tokens)?;
        Ok(self.steps[step].graph)
    }

    /// The graph that feeding `tokens` tokens at the current position would run, for plans and explanations.
    ///
    /// # Errors
    /// As [`Self::feed`].
    pub fn graph_for<W: BorrowMut<World>>(
        &mut self,
        engine: &mut Engine<W>,
        model: &LanguageModel,
        tokens: u32,
    ) -> Result<GraphId, ModelError> {
        if tokens == 0 {
            return Err(ModelError::NoTokens);
        }
        if tokens > self.config.micro_batch {
            return Err(ModelError::MicroBatch { tokens, max: self.config.micro_batch });
        }
        if tokens > self.remaining() {
            let (used, context) = (self.position, self.config.context);
            return Err(ModelError::ContextFull { tokens: tokens as usize, used, context });
        }
        let shape = StepShape { tokens, cache_rows: self.cache_rows(tokens), outputs: 1 };
        let step = self.step_of(engine, model, shape)?;
        Ok(self.steps[step].graph)
    }

    /// Removes the session's graphs and cache from the engine.
    pub fn remove<W: BorrowMut<World>>(self, engine: &mut Engine<W>) {
        for step in &self.steps {
            engine.remove_graph(step.graph);
        }
        let tensors = self.cache.keys.iter().chain(&self.cache.values).map(|t| t.entity);
        for entity in tensors.chain([self.cache_buffer.0, self.arena.0]) {
            engine.world_mut().try_despawn(entity).ok();
        }
    }
}
