//! A text becomes entities: backends, buffers, tensors and a graph, ready to be planned.

use std::sync::Arc;

use bevy_ecs::prelude::*;
use entensor_components::{
    Backend, BackendError, BackendHandle, BackendIndex, BackendName, BufferBundle, DeviceBuffer, GraphBundle,
    GraphTensors, InGraph, Op, Opaque, Pinned, PipelineCopies, Priority, Sources, Stored, StoredIn, TensorBundle,
    TensorDesc, TensorFlags, Usage, ViewSrc, Wanted,
};
use entensor_systems::Backends;

use super::{GraphError, GraphText, Origin};

/// Existing memory that one line, or one backend's `weight` lines, ask for.
struct Memory {
    name: Arc<str>,
    backend: usize,
    usage: Usage,
    opaque: bool,
    tensors: Vec<usize>,
}

impl GraphText {
    /// Spawns the graph on null backends. See [`GraphText::spawn_on`].
    ///
    /// # Errors
    /// When existing memory does not fit the machine's buffers.
    pub fn spawn(&self, world: &mut World) -> Result<Entity, GraphError> {
        self.spawn_on(world, self.backends())
    }

    /// Spawns the graph on these backends, one for each `backend` line, and returns the graph's entity.
    ///
    /// Gives the world every resource that the passes use, and makes these backends its only ones. A buffer holds the
    /// tensors in their order, each aligned; where they exceed the backend's largest buffer, several buffers hold them.
    /// Nothing is spawned on an error.
    ///
    /// # Errors
    /// A tensor above the largest buffer, or what a backend reports when it makes a buffer.
    pub fn spawn_on(&self, world: &mut World, backends: Vec<Arc<dyn Backend>>) -> Result<Entity, GraphError> {
        let (declared, given) = (self.machine.len(), backends.len());
        if declared != given {
            return Err(GraphError::BackendCount { declared, given });
        }
        let mut places = vec![None; self.tensors.len()];
        let mut buffers = Vec::new();
        for memory in self.memories() {
            self.lay_out(&memory, &backends[memory.backend], &mut buffers, &mut places)?;
        }
        entensor_systems::init_resources(world);
        set_backends(world, backends);
        let buffers: Vec<Entity> = buffers.into_iter().map(|buffer| world.spawn(buffer).id()).collect();
        Ok(self.spawn_graph(world, &buffers, &places))
    }

    /// Declared buffers first, then the weights of each backend that has some.
    fn memories(&self) -> Vec<Memory> {
        let declared = self.buffers.iter().map(|b| Memory {
            name: Arc::clone(&b.name),
            backend: b.backend,
            usage: b.usage,
            opaque: b.opaque,
            tensors: Vec::new(),
        });
        let weights = self.machine.iter().enumerate().map(|(backend, b)| Memory {
            name: format!("{}.weights", b.name).into(),
            backend,
            usage: Usage::Weights,
            opaque: false,
            tensors: Vec::new(),
        });
        let mut memories: Vec<Memory> = declared.chain(weights).collect();
        for (i, tensor) in self.tensors.iter().enumerate() {
            match tensor.origin {
                Origin::Tensor { buffer } => memories[buffer].tensors.push(i),
                Origin::Weight { backend } => memories[self.buffers.len() + backend].tensors.push(i),
                Origin::Input | Origin::Scratch | Origin::Node { .. } => {}
            }
        }
        let count = self.buffers.len();
        let mut place = 0;
        memories.retain(|memory| {
            place += 1;
            place <= count || !memory.tensors.is_empty()
        });
        memories
    }

    /// Makes the buffers of a memory, and says where in them each tensor lies.
    fn lay_out(
        &self,
        memory: &Memory,
        backend: &Arc<dyn Backend>,
        buffers: &mut Vec<BufferBundle>,
        places: &mut [Option<(usize, u64)>],
    ) -> Result<(), GraphError> {
        let capabilities = backend.capabilities();
        let align_bytes = capabilities.align_bytes.max(1);
        let (mut ends, mut end) = (Vec::new(), 0_u64);
        for &tensor in &memory.tensors {
            let text = &self.tensors[tensor];
            let size_bytes = backend.allocation_bytes(&text.desc);
            let fits = |end: &u64| *end <= capabilities.max_buffer_bytes;
            let behind = end.checked_next_multiple_of(align_bytes);
            let behind = behind.and_then(|at| Some((at, at.checked_add(size_bytes).filter(fits)?)));
            let (offset, new_end) = match behind {
                Some(place) => place,
                None if fits(&size_bytes) => {
                    ends.push(end);
                    (0, size_bytes)
                }
                None => {
                    return Err(GraphError::TooLarge {
                        tensor: Arc::clone(&text.name),
                        size_bytes,
                        buffer: Arc::clone(&memory.name),
                        backend: backend.name().into(),
                        max_bytes: capabilities.max_buffer_bytes,
                    });
                }
            };
            places[tensor] = Some((buffers.len() + ends.len(), offset));
            end = new_end;
        }
        ends.push(end);
        for (i, &size_bytes) in ends.iter().enumerate() {
            let name = if i == 0 { Arc::clone(&memory.name) } else { format!("{}.{i}", memory.name).into() };
            let failed = |source: BackendError| GraphError::Buffer {
                buffer: Arc::clone(&name),
                backend: backend.name().into(),
                source,
            };
            let buffer = DeviceBuffer::create(backend, size_bytes, memory.usage).map_err(failed)?;
            let opaque = Opaque(memory.opaque);
            buffers.push(BufferBundle { opaque, ..BufferBundle::new(name, memory.usage, buffer) });
        }
        Ok(())
    }

    fn spawn_graph(&self, world: &mut World, buffers: &[Entity], places: &[Option<(usize, u64)>]) -> Entity {
        let graph = world.spawn(GraphBundle::new(Arc::clone(&self.name))).id();
        let mut entities: Vec<Entity> = Vec::with_capacity(self.tensors.len());
        // Root and offset of each tensor; a view of a view is a view of its root.
        let mut roots: Vec<(usize, u64)> = Vec::with_capacity(self.tensors.len());
        for (i, tensor) in self.tensors.iter().enumerate() {
            let (root, offset_bytes) = self.root_of(i, &roots);
            roots.push((root, offset_bytes));
            let (op, operands): (Op, &[usize]) = match &tensor.origin {
                Origin::Node { op, operands } => (op.clone(), operands),
                _ => (Op::None {}, &[]),
            };
            let stored = places[i].map(|(buffer, offset_bytes)| Stored { buffer: buffers[buffer], offset_bytes });
            let view_root = (root != i).then(|| entities[root]);
            let input = matches!(tensor.origin, Origin::Input);
            let flags = TensorFlags { input, output: tensor.output, ..TensorFlags::default() };
            let bundle = TensorBundle {
                in_graph: InGraph(Some(graph)),
                op,
                sources: Sources(operands.iter().map(|&o| entities[o]).collect()),
                view_src: ViewSrc { root: view_root, offset_bytes },
                flags,
                pinned: Pinned(tensor.pin.map(backend_index)),
                stored_in: StoredIn(stored),
                ..TensorBundle::leaf(Arc::clone(&tensor.name), tensor.desc)
            };
            entities.push(world.spawn(bundle).id());
        }
        let wanted = Wanted(self.run.iter().map(|&i| entities[i]).collect());
        world.entity_mut(graph).insert((GraphTensors(entities), wanted, PipelineCopies(self.copies)));
        graph
    }

    fn root_of(&self, tensor: usize, roots: &[(usize, u64)]) -> (usize, u64) {
        let Origin::Node { op, operands } = &self.tensors[tensor].origin else { return (tensor, 0) };
        let descs: Vec<TensorDesc> = operands.iter().map(|&o| self.tensors[o].desc).collect();
        match op.result(&descs).ok().and_then(|result| result.view) {
            Some(view) => {
                let (root, offset_bytes) = roots[operands[view.operand]];
                // Views lie inside their sources, so offsets never exceed the root's size.
                (root, offset_bytes.saturating_add(view.offset_bytes))
            }
            None => (tensor, 0),
        }
    }
}

/// Machines have few backends: their number is bounded by lines of text.
fn backend_index(backend: usize) -> BackendIndex {
    BackendIndex(u32::try_from(backend).unwrap_or(u32::MAX))
}

/// Makes these the world's backends, as resource and as entities.
fn set_backends(world: &mut World, backends: Vec<Arc<dyn Backend>>) {
    let old: Vec<Entity> = world.query_filtered::<Entity, With<BackendHandle>>().iter(world).collect();
    for entity in old {
        world.despawn(entity);
    }
    for (i, backend) in backends.iter().enumerate() {
        let name = BackendName(backend.name().into());
        world.spawn((name, Priority(backend_index(i)), BackendHandle(Arc::clone(backend))));
    }
    world.insert_resource(Backends(backends));
}
