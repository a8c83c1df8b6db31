//! A running engine's graph, or a finished plan, becomes text: each real backend as a line that declares the same abilities.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use bevy_ecs::{entity::EntityHashMap, prelude::*};
use entensor_components::{
    BufferMemory, BufferName, BufferType, DType, GraphName, GraphTensors, MAX_PIPELINE_COPIES, MemoryKind, Op, OpKind,
    Opaque, Pinned, PipelineCopies, Shape, Sources, StoredIn, Strides, TensorDesc, TensorFlags, TensorName, Usage,
    Wanted,
};
use entensor_systems::{Backends, Plan};

use super::{BackendText, BufferText, GraphError, GraphText, Origin, TensorText};

/// Names as they can stand in a text, each given once.
#[derive(Default)]
struct NameTable(HashSet<Arc<str>>);

impl NameTable {
    fn add(&mut self, name: &str) -> Arc<str> {
        let forbidden = |c: char| c.is_whitespace() || c.is_control() || "#=,[]".contains(c);
        let mut clean: String = name.chars().map(|c| if forbidden(c) { '_' } else { c }).collect();
        if clean.is_empty() || clean == "output" {
            clean.push('_');
        }
        let mut unique: Arc<str> = clean.as_str().into();
        let mut count = 1_u64;
        while !self.0.insert(Arc::clone(&unique)) {
            count += 1;
            unique = format!("{clean}.{count}").into();
        }
        unique
    }
}

/// A buffer as the engine has it.
struct Found<'a> {
    name: &'a str,
    kind: &'a MemoryKind,
    buffer_type: &'a str,
    usage: Usage,
    opaque: bool,
    /// Its backend, where that is known for sure.
    backend: Option<usize>,
}

/// A text that grows from what is found.
struct Builder {
    text: GraphText,
    names: NameTable,
    buffer_names: NameTable,
}

impl Builder {
    fn new<'a>(name: &str, backends: impl Iterator<Item = &'a dyn entensor_components::Backend>) -> Self {
        let mut names = NameTable::default();
        let clean = |kind: &MemoryKind| MemoryKind(NameTable::default().add(&kind.0));
        let machine = backends.map(|backend| {
            let mut text = BackendText::of(backend);
            text.name = names.add(&text.name);
            let capabilities = &mut text.capabilities;
            capabilities.memory = clean(&capabilities.memory);
            capabilities.reads = capabilities.reads.iter().map(clean).collect();
            capabilities.buffer_type = NameTable::default().add(&capabilities.buffer_type);
            text
        });
        let text = GraphText {
            name: name.into(),
            machine: machine.collect(),
            buffers: Vec::new(),
            tensors: Vec::new(),
            copies: 1,
            run: Vec::new(),
        };
        Self { text, names: NameTable::default(), buffer_names: NameTable::default() }
    }

    /// Where memory in a buffer comes from: the line of its own, or the weights of a backend.
    fn home(&mut self, buffer: &Found<'_>) -> Result<Origin, GraphError> {
        let machine = &self.text.machine;
        let exact = |b: &BackendText| {
            b.capabilities.memory == *buffer.kind && *b.capabilities.buffer_type == *buffer.buffer_type
        };
        // The lowest in priority of those with the same memory: on the host that is the host backend itself.
        let backend = buffer.backend.or_else(|| machine.iter().rposition(exact));
        let backend = backend.or_else(|| machine.iter().rposition(|b| b.capabilities.memory == *buffer.kind));
        let backend = backend.ok_or_else(|| GraphError::NotOnMachine {
            what: format!("buffer `{}`", buffer.name),
            backend: Arc::clone(&buffer.kind.0),
        })?;
        // Weights buffers that were spawned from text go back to `weight` lines, further ones of a full buffer too.
        let rest = buffer.name.strip_prefix(&*machine[backend].name).and_then(|rest| rest.strip_prefix(".weights"));
        let is_number = |rest: &str| rest.strip_prefix('.').is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
        if buffer.usage == Usage::Weights && !buffer.opaque && rest.is_some_and(|r| r.is_empty() || is_number(r)) {
            return Ok(Origin::Weight { backend });
        }
        let name = self.buffer_names.add(buffer.name);
        self.text.buffers.push(BufferText { name, backend, usage: buffer.usage, opaque: buffer.opaque });
        Ok(Origin::Tensor { buffer: self.text.buffers.len() - 1 })
    }

    /// Adds a tensor and returns its place.
    fn push(
        &mut self,
        name: &str,
        desc: TensorDesc,
        origin: Origin,
        pin: Option<u32>,
        output: bool,
    ) -> Result<usize, GraphError> {
        let not_expressible = |reason: &str| GraphError::NotExpressible { tensor: name.into(), reason: reason.into() };
        match &origin {
            Origin::Node { op, operands } => {
                let descs: Vec<TensorDesc> = operands.iter().map(|&o| self.text.tensors[o].desc).collect();
                let result = op.result(&descs).map_err(|error| not_expressible(&error.to_string()))?;
                if result.desc != desc {
                    return Err(not_expressible("its description is not what its op makes"));
                }
            }
            _ if TensorDesc::packed(desc.dtype, desc.shape) != Ok(desc) => {
                return Err(not_expressible("leaves with holes between their elements have no words"));
            }
            _ => {}
        }
        let pin = pin.map(|pin| pin as usize);
        if pin.is_some_and(|pin| pin >= self.text.machine.len()) {
            return Err(not_expressible("it is pinned to a backend that does not exist"));
        }
        let tensor = TensorText { name: self.names.add(name), desc, origin, pin, output };
        self.text.tensors.push(tensor);
        Ok(self.text.tensors.len() - 1)
    }
}

impl GraphText {
    /// The text of what a plan was made for: the nodes that it needs, on its backends.
    ///
    /// # Errors
    /// Something that text has no words for.
    pub fn from_plan(name: &str, plan: &Plan) -> Result<Self, GraphError> {
        let mut builder = Builder::new(name, plan.backends.iter().map(|b| &*b.handle));
        let mut homes: Vec<Option<Origin>> = vec![None; plan.existing.len()];
        let mut leaf_outputs = Vec::new();
        for (i, node) in plan.nodes().enumerate() {
            let is_leaf = node.op.kind() == OpKind::None;
            let origin = match node.existing {
                Some(_) if !is_leaf => return Err(stored_node(node.name)),
                Some((buffer, _)) => match &homes[buffer as usize] {
                    Some(home) => home.clone(),
                    None => {
                        let existing = &plan.existing[buffer as usize];
                        let found = Found {
                            name: &existing.name,
                            kind: &existing.kind,
                            buffer_type: &existing.buffer_type,
                            usage: existing.usage,
                            opaque: existing.opaque,
                            backend: None,
                        };
                        homes[buffer as usize].insert(builder.home(&found)?).clone()
                    }
                },
                None if !is_leaf => {
                    let operands = node.sources.iter().map(|&s| s as usize).collect();
                    Origin::Node { op: node.op.clone(), operands }
                }
                None if node.flags.input => Origin::Input,
                None => Origin::Scratch,
            };
            builder.push(node.name, node.desc, origin, node.pin, node.flags.output && !is_leaf)?;
            if is_leaf && node.flags.output {
                leaf_outputs.push(i);
            }
        }
        let mut text = builder.text;
        text.want_leaves(leaf_outputs);
        let copies = u32::try_from(plan.programs.len()).unwrap_or(MAX_PIPELINE_COPIES);
        Ok(text.with_copies(copies))
    }

    /// Wants leaves that are outputs. Only `run` can want a leaf, and then it has to name the other outputs too.
    fn want_leaves(&mut self, leaves: Vec<usize>) {
        if self.run.is_empty() && !leaves.is_empty() {
            let outputs = (0..self.tensors.len()).filter(|&i| self.tensors[i].output);
            self.run = leaves.into_iter().chain(outputs).collect();
        }
    }

    /// The text of a graph that lives in a world, with the world's backends.
    ///
    /// # Errors
    /// A graph, tensor or buffer that is gone, or something that text has no words for.
    pub fn from_graph(world: &World, graph: Entity) -> Result<Self, GraphError> {
        let gone = |what: &str| GraphError::Gone { what: what.into() };
        let tensors = world.get::<GraphTensors>(graph).ok_or_else(|| gone("the graph"))?;
        let name = world.get::<GraphName>(graph).map_or("graph", |name| &name.0);
        let backends = world.get_resource::<Backends>().ok_or_else(|| gone("the list of backends"))?;
        let builder = Builder::new(name, backends.0.iter().map(|b| &**b));
        let mut capture = Capture {
            world,
            backends,
            builder,
            places: EntityHashMap::new(),
            homes: HashMap::new(),
            leaf_outputs: Vec::new(),
        };
        for &tensor in &tensors.0 {
            capture.add_with_sources(tensor)?;
        }
        let (places, mut text) = (capture.places, capture.builder.text);
        let wanted = world.get::<Wanted>(graph).map_or(&[][..], |wanted| &wanted.0);
        let place = |entity| places.get(entity).copied().ok_or_else(|| gone("a wanted tensor"));
        text.run = wanted.iter().map(place).collect::<Result<_, _>>()?;
        text.want_leaves(capture.leaf_outputs);
        let copies = world.get::<PipelineCopies>(graph).copied().unwrap_or_default();
        Ok(text.with_copies(copies.0))
    }
}

fn stored_node(name: &Arc<str>) -> GraphError {
    let reason = "only leaves can lie in a buffer".into();
    GraphError::NotExpressible { tensor: Arc::clone(name), reason }
}

struct Capture<'w> {
    world: &'w World,
    backends: &'w Backends,
    builder: Builder,
    places: EntityHashMap<usize>,
    homes: HashMap<Entity, Origin>,
    leaf_outputs: Vec<usize>,
}

impl<'w> Capture<'w> {
    fn part<C: Component>(&self, entity: Entity) -> Result<&'w C, GraphError> {
        self.world.get::<C>(entity).ok_or_else(|| GraphError::Gone { what: "a tensor of the graph".into() })
    }

    /// Adds a tensor; before it, operands that are no tensors of the graph itself: leaves that graphs share.
    fn add_with_sources(&mut self, tensor: Entity) -> Result<(), GraphError> {
        for &source in &self.part::<Sources>(tensor)?.0 {
            if !self.places.contains_key(&source) {
                if self.part::<Op>(source)?.kind() != OpKind::None {
                    let reason = "an operand comes after it, or is another graph's".into();
                    let tensor = Arc::clone(&self.part::<TensorName>(tensor)?.0);
                    return Err(GraphError::NotExpressible { tensor, reason });
                }
                self.add(source)?;
            }
        }
        // A leaf may have come as an operand already, if it stands after its user.
        if self.places.contains_key(&tensor) { Ok(()) } else { self.add(tensor) }
    }

    fn add(&mut self, tensor: Entity) -> Result<(), GraphError> {
        let name = &self.part::<TensorName>(tensor)?.0;
        let (dtype, shape) = (*self.part::<DType>(tensor)?, *self.part::<Shape>(tensor)?);
        let desc = TensorDesc { dtype, shape, strides: *self.part::<Strides>(tensor)? };
        let flags = *self.part::<TensorFlags>(tensor)?;
        let op = self.part::<Op>(tensor)?;
        let origin = match (self.part::<StoredIn>(tensor)?.0, op.kind()) {
            (Some(stored), OpKind::None) => self.home(stored.buffer)?,
            (Some(_), _) => return Err(stored_node(name)),
            (None, OpKind::None) if flags.input => Origin::Input,
            (None, OpKind::None) => Origin::Scratch,
            (None, _) => {
                let sources = &self.part::<Sources>(tensor)?.0;
                let operands = sources.iter().filter_map(|source| self.places.get(source).copied()).collect();
                Origin::Node { op: op.clone(), operands }
            }
        };
        let pin = self.part::<Pinned>(tensor)?.0.map(|pin| pin.0);
        let is_leaf = op.kind() == OpKind::None;
        let place = self.builder.push(name, desc, origin, pin, flags.output && !is_leaf)?;
        if is_leaf && flags.output {
            self.leaf_outputs.push(place);
        }
        self.places.insert(tensor, place);
        Ok(())
    }

    fn home(&mut self, buffer: Entity) -> Result<Origin, GraphError> {
        if let Some(home) = self.homes.get(&buffer) {
            return Ok(home.clone());
        }
        let gone = || GraphError::Gone { what: "a buffer of the graph".into() };
        let world = self.world;
        let memory = world.get::<BufferMemory>(buffer).ok_or_else(gone)?;
        let owner = memory.0.backend();
        let found = Found {
            name: &world.get::<BufferName>(buffer).ok_or_else(gone)?.0,
            kind: world.get::<MemoryKind>(buffer).ok_or_else(gone)?,
            buffer_type: &world.get::<BufferType>(buffer).ok_or_else(gone)?.0,
            usage: *world.get::<Usage>(buffer).ok_or_else(gone)?,
            opaque: world.get::<Opaque>(buffer).ok_or_else(gone)?.0,
            backend: self.backends.0.iter().position(|b| Arc::ptr_eq(b, owner)),
        };
        let home = self.builder.home(&found)?;
        self.homes.insert(buffer, home.clone());
        Ok(home)
    }
}
