//! A graph in ggml's form.

use std::ptr;

use entensor::{Op, RopeMode, TensorDesc};
use llama_cpp_sys_2 as sys;

use super::{Machine, ops::ggml_op};
use crate::described::Described;

/// Which tensors the scheduler is told where to put.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placed {
    /// Those that the user pinned.
    Pins,
    /// All, where our plan has them.
    AsOurs,
}

/// What may not be overwritten.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protected {
    /// Outputs, as ggml has it: memory of an input is used again after its last reader.
    Outputs,
    /// Inputs too, as in our plans, where they can be written at any time between runs.
    InputsAndOutputs,
}

/// The tensors and graph of one description, which can be drawn any number of times: ggml changes a graph that it
/// allocates.
pub(crate) struct Drawing<'m> {
    machine: &'m Machine,
    nodes: &'m [Described],
    placed: Placed,
    protected: Protected,
    /// Holds the leaves with memory, which stay.
    kept: Arena,
    /// Holds the others.
    drawn: Arena,
    tensors: Vec<*mut sys::ggml_tensor>,
    graph: *mut sys::ggml_cgraph,
}

/// A context of ggml's.
struct Arena(*mut sys::ggml_context);

impl Arena {
    fn new(size: usize) -> Self {
        let params = sys::ggml_init_params { mem_size: size, mem_buffer: ptr::null_mut(), no_alloc: true };
        // SAFETY: no conditions; ggml allocates the memory and aborts if it cannot.
        Self(unsafe { sys::ggml_init(params) })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the context is this one's own.
        unsafe { sys::ggml_free(self.0) };
    }
}

impl<'m> Drawing<'m> {
    /// Prepares a drawing; [`Self::draw`] makes it.
    pub(crate) fn new(machine: &'m Machine, nodes: &'m [Described], placed: Placed, protected: Protected) -> Self {
        // SAFETY: no conditions.
        let (tensor, graph) =
            unsafe { (sys::ggml_tensor_overhead(), sys::ggml_graph_overhead_custom(nodes.len(), false)) };
        // A constructor whose result turns out unlike ours leaves its tensor behind: room for two of each.
        let (kept, drawn) =
            (Arena::new(tensor * (nodes.len() + 1)), Arena::new(tensor * (2 * nodes.len() + 1) + graph));
        let mut drawing = Self {
            machine,
            nodes,
            placed,
            protected,
            kept,
            drawn,
            tensors: vec![ptr::null_mut(); nodes.len()],
            graph: ptr::null_mut(),
        };
        drawing.keep();
        drawing
    }

    /// Makes the leaves that have memory.
    fn keep(&mut self) {
        for (place, node) in self.nodes.iter().enumerate() {
            let Some(memory) = node.memory else { continue };
            let tensor = new_tensor(&self.kept, &node.desc);
            // SAFETY: the tensor is new. Its address lies in no memory; nothing reads it since nothing is computed.
            unsafe {
                (*tensor).buffer = self.machine.buffer(memory);
                (*tensor).data = ptr::without_provenance_mut(1 << 51);
            }
            self.mark(tensor, node);
            self.tensors[place] = tensor;
        }
    }

    fn mark(&self, tensor: *mut sys::ggml_tensor, node: &Described) {
        let mut flags = 0;
        if node.is_input {
            flags |= sys::GGML_TENSOR_FLAG_INPUT;
        }
        if node.is_output || (node.is_input && self.protected == Protected::InputsAndOutputs) {
            flags |= sys::GGML_TENSOR_FLAG_OUTPUT;
        }
        // SAFETY: the tensor was made by this drawing.
        unsafe {
            (*tensor).flags |= flags.cast_signed();
            if self.placed == Placed::AsOurs {
                // What mock devices look at: see `mock::supports_op`.
                (*tensor).extra = ptr::without_provenance_mut(node.backend + 1);
            }
        }
    }

    /// Makes tensors and graph anew, nodes in our order. Those of the last time are gone.
    pub(crate) fn draw(&mut self) {
        // SAFETY: tensors of the last time are not used again: each is made anew, below or by `keep`.
        unsafe {
            sys::ggml_reset(self.drawn.0);
            self.graph = sys::ggml_new_graph_custom(self.drawn.0, self.nodes.len(), false);
        }
        for (place, node) in self.nodes.iter().enumerate() {
            if node.memory.is_some() {
                continue;
            }
            let tensor = if node.is_leaf() { new_tensor(&self.drawn, &node.desc) } else { self.compute(node) };
            self.mark(tensor, node);
            self.tensors[place] = tensor;
            if !node.is_leaf() {
                // SAFETY: the graph has room for every node, and the operands of this one stand in it already, so that
                // ggml does not recurse.
                unsafe { sys::ggml_build_forward_expand(self.graph, tensor) };
            }
        }
    }

    pub(super) fn graph(&self) -> *mut sys::ggml_cgraph {
        self.graph
    }

    /// What the scheduler is told about places.
    pub(super) fn placed(&self) -> impl Iterator<Item = (*mut sys::ggml_tensor, usize)> {
        let place = |node: &Described| match self.placed {
            Placed::Pins => node.pin,
            Placed::AsOurs => Some(node.backend),
        };
        let tensors = self.tensors.iter().zip(self.nodes);
        tensors.filter_map(move |(&tensor, node)| Some((tensor, place(node)?)))
    }

    fn compute(&self, node: &Described) -> *mut sys::ggml_tensor {
        // Stacks are built as ggml's users build graphs. Files hold layouts on which ggml's constructors abort although its planner
        // takes them; there every field is written here.
        if self.placed == Placed::Pins
            && let Some(tensor) = self.construct(node)
            && is_like(tensor, &node.desc)
        {
            return tensor;
        }
        let kind = node.op.kind();
        let row = kind.row();
        let source = |operand: usize| self.tensors[node.sources[operand] as usize];
        let tensor = if row.view {
            view_of(&self.drawn, source(0), node)
        } else if let Some(target) = row.writes {
            view_of(&self.drawn, source(target), node)
        } else {
            new_tensor(&self.drawn, &node.desc)
        };
        // SAFETY: the tensor is new, its operands exist, and there is room for ten; our ops have five at most.
        unsafe {
            (*tensor).op = ggml_op(kind).unwrap_or(sys::GGML_OP_CUSTOM);
            for (slot, &operand) in (*tensor).src.iter_mut().zip(&node.sources) {
                *slot = self.tensors[operand as usize];
            }
        }
        tensor
    }

    /// ggml's own constructor, for the ops of language models.
    fn construct(&self, node: &Described) -> Option<*mut sys::ggml_tensor> {
        let context = self.drawn.0;
        let operand = |i: usize| self.tensors[node.sources[i] as usize];
        let is_packed = |i: usize| self.nodes[node.sources[i] as usize].desc.is_packed();
        let [e0, e1, e2, e3] = node.desc.shape.0.map(|elements| i64::try_from(elements).unwrap_or(i64::MAX));
        // SAFETY: operands are tensors of this drawing. What the constructors demand of them is what our table's rules have
        // checked, or stands in the guards.
        unsafe {
            Some(match (&node.op, node.sources.len()) {
                (Op::Add {}, _) => sys::ggml_add(context, operand(0), operand(1)),
                (Op::Sub {}, _) => sys::ggml_sub(context, operand(0), operand(1)),
                (Op::Mul {}, _) => sys::ggml_mul(context, operand(0), operand(1)),
                (Op::Div {}, _) => sys::ggml_div(context, operand(0), operand(1)),
                (Op::Scale { by }, _) if is_packed(0) => sys::ggml_scale(context, operand(0), *by),
                (Op::RmsNorm { eps }, _) => sys::ggml_rms_norm(context, operand(0), *eps),
                (Op::Norm { eps }, _) => sys::ggml_norm(context, operand(0), *eps),
                (Op::Silu {}, _) if is_packed(0) => sys::ggml_silu(context, operand(0)),
                (Op::Gelu {}, _) if is_packed(0) => sys::ggml_gelu(context, operand(0)),
                (Op::Relu {}, _) if is_packed(0) => sys::ggml_relu(context, operand(0)),
                (Op::Swiglu {}, 1) if is_packed(0) => sys::ggml_swiglu(context, operand(0)),
                (Op::Swiglu {}, 2) if is_packed(0) && is_packed(1) => {
                    sys::ggml_swiglu_split(context, operand(0), operand(1))
                }
                (Op::MulMat {}, _) => sys::ggml_mul_mat(context, operand(0), operand(1)),
                (Op::SoftMax { scale, max_bias }, operands @ 1..=2) if (0..operands).all(is_packed) => {
                    let mask = if operands == 2 { operand(1) } else { ptr::null_mut() };
                    sys::ggml_soft_max_ext(context, operand(0), mask, *scale, *max_bias)
                }
                (Op::Rope { .. }, _) => return self.rope(node),
                (Op::Cont {}, _) => sys::ggml_cont(context, operand(0)),
                (Op::Reshape { .. }, _) => sys::ggml_reshape_4d(context, operand(0), e0, e1, e2, e3),
                (Op::Permute { axes }, _) => {
                    let [a0, a1, a2, a3] = axes.map(u32::cast_signed);
                    sys::ggml_permute(context, operand(0), a0, a1, a2, a3)
                }
                (Op::Transpose {}, _) => sys::ggml_transpose(context, operand(0)),
                _ => return None,
            })
        }
    }

    fn rope(&self, node: &Described) -> Option<*mut sys::ggml_tensor> {
        let Op::Rope {
            mode,
            n_dims,
            n_ctx_orig,
            base,
            freq_scale,
            ext_factor,
            attn_factor,
            beta_fast,
            beta_slow,
            sections: _,
        } = &node.op
        else {
            return None;
        };
        let mode = match mode {
            RopeMode::Normal => 0,
            RopeMode::Neox => 2,
            _ => return None,
        };
        let operand = |i: usize| node.sources.get(i).map(|&s| self.tensors[s as usize]);
        let n_dims = if *n_dims == 0 { u32::try_from(node.desc.shape.0[0]).ok()? } else { *n_dims };
        let (n_dims, n_ctx_orig) = (n_dims.cast_signed(), n_ctx_orig.cast_signed());
        let factors = operand(2).unwrap_or(ptr::null_mut());
        // SAFETY: operands are tensors of this drawing, and what ggml demands of them our table's rule has checked.
        Some(unsafe {
            sys::ggml_rope_ext(
                self.drawn.0,
                operand(0)?,
                operand(1)?,
                factors,
                n_dims,
                mode,
                n_ctx_orig,
                *base,
                *freq_scale,
                *ext_factor,
                *attn_factor,
                *beta_fast,
                *beta_slow,
            )
        })
    }
}

fn new_tensor(arena: &Arena, desc: &TensorDesc) -> *mut sys::ggml_tensor {
    let [e0, e1, e2, e3] = desc.shape.0.map(|elements| i64::try_from(elements).unwrap_or(i64::MAX));
    // SAFETY: the context has room for every tensor of its description, and GGUF ids are ggml's types.
    unsafe { sys::ggml_new_tensor_4d(arena.0, desc.dtype.row().gguf_id, e0, e1, e2, e3) }
}

/// A view with the node's shape and place.
fn view_of(arena: &Arena, source: *mut sys::ggml_tensor, node: &Described) -> *mut sys::ggml_tensor {
    // SAFETY: the source exists and the view is new. Its fields say what our table's rule has checked to lie in its root.
    unsafe {
        let view = sys::ggml_view_tensor(arena.0, source);
        (*view).ne = node.desc.shape.0.map(|elements| i64::try_from(elements).unwrap_or(i64::MAX));
        (*view).nb = node.desc.strides.0.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        (*view).view_offs = usize::try_from(node.offset_bytes).unwrap_or(usize::MAX);
        view
    }
}

/// Whether a tensor has the node's dtype and shape.
fn is_like(tensor: *mut sys::ggml_tensor, desc: &TensorDesc) -> bool {
    // SAFETY: the tensor was just made.
    let (dtype, shape) = unsafe { ((*tensor).type_, (*tensor).ne) };
    dtype == desc.dtype.row().gguf_id && shape.iter().zip(desc.shape.0).all(|(&a, b)| u64::try_from(a) == Ok(b))
}
