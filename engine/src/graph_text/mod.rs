//! The `.graph` text: a machine and a graph as lines, to be read, printed, spawned, and taken from a running engine.
//!
//! One statement a line, `#` starts a comment, numbers take `K`, `M` and `G` (×1024), shapes have the fastest axis first:
//!
//! ```text
//! backend NAME [memory=KIND] [reads=KIND,…] [ops=all|OP,…|all,-OP,…] [dtypes=all|all,-T,…] [buffer_type=NAME]
//!              [max_buffer=BYTES] [align=BYTES] [pad=BYTES] [offload_batch=N] [max_inputs=N] [min_batch=N] [events] [async]
//! buffer  NAME on BACKEND [usage=weights|any|compute] [opaque]
//! tensor  NAME DTYPE [D0,D1,D2,D3] in BUFFER
//! weight  NAME DTYPE [D0,…] on BACKEND
//! input   NAME DTYPE [D0,…]
//! scratch NAME DTYPE [D0,…]
//! NAME = OP OPERAND … [key=value …] [pin=BACKEND] [output]
//! pin     NAME BACKEND
//! copies  N
//! run     NAME,NAME,…
//! ```
//!
//! The order of `backend` lines is their priority, and the last is on host memory. A name is defined before it is used.
//! Tensors, buffers and backends have names of their own kinds. `run` names the wanted tensors; without it every `output`
//! is wanted, else the last node. A text without nodes plans to a plan with nothing in it, unless `run` wants a leaf.
//!
//! ```
//! use entensor::graph_text::GraphText;
//!
//! let text = GraphText::parse("tiny.graph", "
//!     backend cpu
//!     weight w f32 [64,32] on cpu
//!     input  x f32 [64,2]
//!     y = mul_mat w x output
//! ")?;
//! assert_eq!(text.tensors()[2].desc.to_string(), "f32 [32,2]");
//! assert_eq!(GraphText::parse("tiny.graph", &text.to_string())?, text);
//! # Ok::<(), entensor::graph_text::GraphTextError>(())
//! ```

mod capture;
mod error;
mod lex;
mod machine;
mod parse;
mod print;
mod spawn;

use std::sync::Arc;

use entensor_components::{Backend, MAX_PIPELINE_COPIES, Op, TensorDesc, Usage};
use entensor_null::NullBackend;

pub use error::{GraphError, GraphTextError, GraphTextProblem};
pub use machine::BackendText;

/// A `buffer` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferText {
    /// Its name.
    pub name: Arc<str>,
    /// Its backend, as a place in [`GraphText::machine`].
    pub backend: usize,
    /// What it is used for.
    pub usage: Usage,
    /// Whether only its own buffer type understands the layout.
    pub opaque: bool,
}

/// What a tensor comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// A `tensor` line: existing memory in a declared buffer.
    Tensor {
        /// A place in [`GraphText::buffers`].
        buffer: usize,
    },
    /// A `weight` line: existing memory in a backend's own weights buffer.
    Weight {
        /// A place in [`GraphText::machine`].
        backend: usize,
    },
    /// An `input` line.
    Input,
    /// A `scratch` line.
    Scratch,
    /// A line `NAME = OP …`.
    Node {
        /// The op and its parameters.
        op: Op,
        /// Its operands, as places in [`GraphText::tensors`], each before this one.
        operands: Vec<usize>,
    },
}

/// A leaf or a node.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorText {
    /// Its name.
    pub name: Arc<str>,
    /// Dtype, shape and strides; for nodes what the op makes.
    pub desc: TensorDesc,
    /// What it comes from.
    pub origin: Origin,
    /// The backend it is pinned to, as a place in [`GraphText::machine`].
    pub pin: Option<usize>,
    /// Whether the user reads it after each run.
    pub output: bool,
}

/// A machine and a graph. Its references hold by construction: it comes from text or from a graph that was checked.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphText {
    name: Arc<str>,
    machine: Vec<BackendText>,
    buffers: Vec<BufferText>,
    tensors: Vec<TensorText>,
    copies: u32,
    run: Vec<usize>,
}

impl GraphText {
    /// Reads a text. `file_name` is for messages, and its stem becomes the graph's name. Never panics, whatever the text.
    ///
    /// # Errors
    /// The first fault, with file, line, column and the fix.
    pub fn parse(file_name: &str, text: &str) -> Result<Self, GraphTextError> {
        parse::parse(file_name, text)
    }

    /// The graph's name.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The backends by priority, highest first.
    #[must_use]
    pub fn machine(&self) -> &[BackendText] {
        &self.machine
    }

    /// The declared buffers.
    #[must_use]
    pub fn buffers(&self) -> &[BufferText] {
        &self.buffers
    }

    /// Leaves and nodes in creation order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorText] {
        &self.tensors
    }

    /// How often inputs, outputs and copies exist.
    #[must_use]
    pub fn copies(&self) -> u32 {
        self.copies
    }

    /// This text with another number of pipelined slots, at least 1 and at most [`MAX_PIPELINE_COPIES`].
    #[must_use]
    pub fn with_copies(mut self, copies: u32) -> Self {
        self.copies = copies.clamp(1, MAX_PIPELINE_COPIES);
        self
    }

    /// What the `run` line wants, as places in [`GraphText::tensors`]; empty without one.
    #[must_use]
    pub fn run(&self) -> &[usize] {
        &self.run
    }

    /// A null backend for each `backend` line, in order.
    #[must_use]
    pub fn backends(&self) -> Vec<Arc<dyn Backend>> {
        let null = |b: &BackendText| Arc::new(NullBackend::new(b.null_config())) as Arc<dyn Backend>;
        self.machine.iter().map(null).collect()
    }

    /// This graph on another text's machine. Memory and pins go to the backend of the same name and memory. Where there is
    /// none, memory that lies on the host goes to the host of the other machine, its last backend, and so do pins to the last
    /// backend; the others go to a backend of the same name, else of the same memory.
    ///
    /// # Errors
    /// [`GraphError::NotOnMachine`] when the other machine has no such backend.
    pub fn with_machine(&self, other: &Self) -> Result<Self, GraphError> {
        let last = other.machine.len().saturating_sub(1);
        let find = |fits: &dyn Fn(&BackendText) -> bool| other.machine.iter().position(fits);
        let place = |backend: usize, to_last: bool, what: &dyn Fn() -> String| {
            let old = &self.machine[backend];
            let named = |new: &BackendText| new.name == old.name;
            let memory = |new: &BackendText| new.capabilities.memory == old.capabilities.memory;
            let new = find(&|new| named(new) && memory(new)).or(to_last.then_some(last));
            let new = new.or_else(|| find(&named)).or_else(|| find(&memory));
            new.ok_or_else(|| GraphError::NotOnMachine { what: what(), backend: Arc::clone(&old.name) })
        };
        let on_host = |backend: usize| self.machine[backend].capabilities.memory.is_host();
        let mut text = Self { machine: other.machine.clone(), ..self.clone() };
        for buffer in &mut text.buffers {
            let name = &buffer.name;
            buffer.backend = place(buffer.backend, on_host(buffer.backend), &|| format!("buffer `{name}`"))?;
        }
        for tensor in &mut text.tensors {
            if let Origin::Weight { backend } = &mut tensor.origin {
                *backend = place(*backend, on_host(*backend), &|| format!("weight `{}`", tensor.name))?;
            }
            if let Some(pin) = &mut tensor.pin {
                let is_last = *pin + 1 == self.machine.len();
                *pin = place(*pin, is_last, &|| format!("the pin of `{}`", tensor.name))?;
            }
        }
        Ok(text)
    }

    /// This text with some of its existing tensors, chosen by name, in memory of another backend, a place in
    /// [`GraphText::machine`]: weights become its weights, tensors of other buffers get a buffer like theirs on it. A place
    /// that does not exist moves nothing.
    #[must_use]
    pub fn with_memory_on(mut self, backend: usize, moves: impl Fn(&str) -> bool) -> Self {
        let Some(home) = self.machine.get(backend) else { return self };
        let suffix = format!("@{}", home.name);
        // For each buffer of the text, the one that takes its tensors' place.
        let mut moved: Vec<Option<usize>> = vec![None; self.buffers.len()];
        for tensor in self.tensors.iter_mut().filter(|tensor| moves(&tensor.name)) {
            match &mut tensor.origin {
                Origin::Weight { backend: home } => *home = backend,
                Origin::Tensor { buffer } => {
                    let old = self.buffers[*buffer].clone();
                    if old.backend == backend {
                        continue;
                    }
                    if old.usage == Usage::Weights && !old.opaque {
                        tensor.origin = Origin::Weight { backend };
                        continue;
                    }
                    let next = self.buffers.len();
                    let new = *moved[*buffer].get_or_insert(next);
                    if new == next {
                        let mut name = format!("{}{suffix}", old.name);
                        while self.buffers.iter().any(|other| *other.name == *name) {
                            name.push('_');
                        }
                        self.buffers.push(BufferText { name: name.into(), backend, ..old });
                    }
                    *buffer = new;
                }
                Origin::Input | Origin::Scratch | Origin::Node { .. } => {}
            }
        }
        self
    }
}
