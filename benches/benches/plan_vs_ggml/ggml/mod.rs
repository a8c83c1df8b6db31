//! ggml's scheduler and its graphs, behind types that cannot be used wrongly.
//!
//! ggml aborts the process where it is unhappy; graphs that come from a plan of ours give it no cause.
#![expect(unsafe_code, reason = "ggml is C; this folder is the seam to it")]

mod abi;
mod graph;
mod mock;
mod ops;

use std::{
    ffi::{CStr, c_char, c_int},
    sync::Arc,
    time::{Duration, Instant},
};

use entensor::Backend;
use llama_cpp_sys_2 as sys;

pub(crate) use graph::{Drawing, Placed, Protected};
use mock::Mocks;
pub(crate) use ops::has_op;

/// How many copies of its inputs a parallel scheduler keeps: ggml's `GGML_SCHED_MAX_COPIES`.
pub(crate) const MAX_COPIES: u32 = 4;

/// Says why mock devices cannot be had from the ggml that is linked.
pub(crate) fn mock_trouble() -> Option<String> {
    abi::mismatch()
}

fn text(chars: *const c_char) -> String {
    if chars.is_null() {
        return "?".into();
    }
    // SAFETY: what ggml returns as text is static and ends with a zero.
    unsafe { CStr::from_ptr(chars) }.to_string_lossy().trim().to_owned()
}

/// ggml's version and what it was built for.
pub(crate) fn version() -> String {
    // SAFETY: these calls have no conditions.
    let (version, commit, system) =
        unsafe { (text(sys::ggml_version()), text(sys::ggml_commit()), text(sys::llama_print_system_info())) };
    format!("ggml {version} ({commit}), {system}")
}

/// Silences what ggml says about itself while it works.
pub(crate) fn silence() {
    unsafe extern "C" fn nothing(_: sys::ggml_log_level, _: *const c_char, _: *mut std::ffi::c_void) {}
    // SAFETY: the callback takes anything.
    unsafe { sys::ggml_log_set(Some(nothing), std::ptr::null_mut()) }
}

/// Backends that schedulers place graphs on.
pub(crate) struct Machine {
    backends: Vec<sys::ggml_backend_t>,
    types: Vec<sys::ggml_backend_buffer_type_t>,
    /// Of each backend, buffers of its own for leaves that have memory: any, weights, and both again with a private layout.
    /// They are of one byte; nobody looks at more than whose they are.
    buffers: Vec<[sys::ggml_backend_buffer_t; 4]>,
    mocks: Option<Mocks>,
}

impl Machine {
    /// ggml's own processor backend. `None` if it does not start.
    pub(crate) fn cpu() -> Option<Self> {
        // SAFETY: these calls have no conditions; the backend is freed with the machine.
        let (backend, buffer_type) = unsafe { (sys::ggml_backend_cpu_init(), sys::ggml_backend_cpu_buffer_type()) };
        (!backend.is_null()).then(|| Self::with(vec![backend], vec![[buffer_type; 2]], None))
    }

    /// A mock device for each backend, the last a processor. Ask [`mock_trouble`] first.
    pub(crate) fn mock(backends: &[Arc<dyn Backend>]) -> Self {
        let mut mocks = Mocks::new(backends);
        let types = (0..backends.len()).map(|b| [mocks.buffer_type(b, false), mocks.buffer_type(b, true)]).collect();
        let backends = (0..backends.len()).map(|b| mocks.backend(b)).collect();
        Self::with(backends, types, Some(mocks))
    }

    fn with(
        backends: Vec<sys::ggml_backend_t>,
        types: Vec<[sys::ggml_backend_buffer_type_t; 2]>,
        mocks: Option<Mocks>,
    ) -> Self {
        let buffer = |buffer_type, usage| {
            // SAFETY: the buffer type is ggml's own or a mock of this machine; the buffer is freed with the machine.
            unsafe {
                let buffer = sys::ggml_backend_buft_alloc_buffer(buffer_type, 1);
                sys::ggml_backend_buffer_set_usage(buffer, usage);
                buffer
            }
        };
        let (any, weights) = (sys::GGML_BACKEND_BUFFER_USAGE_ANY, sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        let buffers = types.iter().map(|&[plain, opaque]| {
            [buffer(plain, any), buffer(plain, weights), buffer(opaque, any), buffer(opaque, weights)]
        });
        let buffers = buffers.collect();
        Self { backends, types: types.into_iter().map(|[plain, _]| plain).collect(), buffers, mocks }
    }

    fn buffer(&self, memory: crate::described::Memory) -> sys::ggml_backend_buffer_t {
        self.buffers[memory.backend][usize::from(memory.is_weights) + 2 * usize::from(memory.opaque)]
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: buffers and backends are the machine's own; schedulers and drawings borrow it, so they are gone. Mock
        // backends are no allocations of ggml's and go with `mocks`.
        unsafe {
            self.buffers.iter().flatten().for_each(|&buffer| sys::ggml_backend_buffer_free(buffer));
            if self.mocks.is_none() {
                self.backends.iter().for_each(|&backend| sys::ggml_backend_free(backend));
            }
        }
    }
}

/// ggml's scheduler.
pub(crate) struct Scheduler<'m> {
    raw: sys::ggml_backend_sched_t,
    machine: &'m Machine,
}

impl<'m> Scheduler<'m> {
    /// A scheduler for graphs of up to so many nodes and leaves together. `parallel` keeps four copies of inputs.
    pub(crate) fn new(machine: &'m Machine, graph_size: usize, parallel: bool) -> Self {
        let (mut backends, mut types) = (machine.backends.clone(), machine.types.clone());
        let count = c_int::try_from(backends.len()).unwrap_or(c_int::MAX);
        // SAFETY: the lists are read during the call only; the last backend is a processor, as ggml demands.
        let raw = unsafe {
            let (backends, types) = (backends.as_mut_ptr(), types.as_mut_ptr());
            sys::ggml_backend_sched_new(backends, types, count, graph_size, parallel, false)
        };
        Self { raw, machine }
    }

    /// Makes the scheduler ready for a graph, then cuts it into splits and allocates it. Pins are set in between, and not
    /// counted in the time. `None` if it cannot be allocated.
    pub(crate) fn allocate(&mut self, drawing: &Drawing<'m>) -> Option<Duration> {
        let start = Instant::now();
        // SAFETY: the scheduler exists.
        unsafe { sys::ggml_backend_sched_reset(self.raw) };
        let reset = start.elapsed();
        self.place(drawing);
        let start = Instant::now();
        // SAFETY: the graph's tensors exist, and it is fresh: nothing was allocated for it before.
        let fits = unsafe { sys::ggml_backend_sched_alloc_graph(self.raw, drawing.graph()) };
        fits.then(|| reset + start.elapsed())
    }

    /// Makes the scheduler ready for a graph and cuts it into splits only.
    pub(crate) fn split(&mut self, drawing: &Drawing<'m>) -> Duration {
        let start = Instant::now();
        // SAFETY: the scheduler exists.
        unsafe { sys::ggml_backend_sched_reset(self.raw) };
        let reset = start.elapsed();
        self.place(drawing);
        let start = Instant::now();
        // SAFETY: as in `allocate`.
        unsafe { sys::ggml_backend_sched_split_graph(self.raw, drawing.graph()) };
        reset + start.elapsed()
    }

    /// Makes buffers that this graph fits into.
    pub(crate) fn reserve(&mut self, drawing: &Drawing<'m>) -> Option<Duration> {
        // SAFETY: the scheduler exists.
        unsafe { sys::ggml_backend_sched_reset(self.raw) };
        self.place(drawing);
        let start = Instant::now();
        // SAFETY: as in `allocate`.
        let fits = unsafe { sys::ggml_backend_sched_reserve(self.raw, drawing.graph()) };
        fits.then(|| start.elapsed())
    }

    fn place(&mut self, drawing: &Drawing<'m>) {
        for (tensor, backend) in drawing.placed() {
            // SAFETY: tensor and backend exist, and the backend is one of the scheduler's.
            unsafe { sys::ggml_backend_sched_set_tensor_backend(self.raw, tensor, self.machine.backends[backend]) };
        }
    }

    /// How many splits the last graph was cut into.
    pub(crate) fn splits(&self) -> usize {
        // SAFETY: the scheduler exists.
        let splits = unsafe { sys::ggml_backend_sched_get_n_splits(self.raw) };
        usize::try_from(splits).unwrap_or(0)
    }

    /// Bytes of all compute buffers.
    pub(crate) fn planned_bytes(&self) -> u64 {
        // SAFETY: scheduler and backends exist. A buffer that several backends share is counted with the first.
        let of = |&backend| unsafe { sys::ggml_backend_sched_get_buffer_size(self.raw, backend) } as u64;
        self.machine.backends.iter().map(of).sum()
    }
}

impl Drop for Scheduler<'_> {
    fn drop(&mut self) {
        // SAFETY: nobody else has the scheduler. Its mock buffers need nothing from the machine but that it exists.
        unsafe { sys::ggml_backend_sched_free(self.raw) };
    }
}
