//! The CPU backend: every op on host memory, with SIMD chosen at run time, on the calling thread and whoever helps.
//!
//! - **Cost.** A split is lowered once, in `prepare`; `submit` takes the memory locks, walks the steps and allocates
//!   nothing (one small job when helpers come from a shared pool). Splits below some 30 µs stay on the calling thread.
//! - **Bits.** Results depend on the instruction level, never on the number of threads or on who helped. [`Simd::Strict`] promises the same
//!   bits on every x86-64 machine.
//! - **Numerics.** f32 accumulation (f64 for sums of rows); products with block weights round activations to 8-bit blocks of 32,
//!   where a NaN or an infinity makes the whole product NaN. Outer axes of the weights are repeated in groups, as
//!   grouped-query attention needs it.
//! - **Cuts.** A prepared split runs from a cursor up to a deadline. Chunks are some microseconds of work on a grid that the shapes fix, so a
//!   run that is out of time comes back within a chunk or two, one that is cancelled within what its threads have claimed (some tens of
//!   microseconds), and where it was cut changes no bit.
//! - **Memory.** Ordinary, or high-bandwidth memory through `libmemkind` ([`CpuMemory`]); buffers of the type [`HUGE`] lie on pages of 2 MiB. Weights of `q4_0`, `q4_1` and `q8_0` may lie in
//!   buffers of the type [`REPACKED`], eight rows side by side, for products alone: the same bits, from one stream.
//! - **Unsafe.** `memory::hbm` (a C allocator), `tensor` (strides to pointers), `run` and `prepared` (who may touch them when) and `simd` (instructions); kernels promise only that they
//!   write the rows of their chunk.
//!
//! ```
//! use entensor_components::Backend;
//! use entensor_cpu::{CpuBackend, CpuConfig};
//!
//! let cpu = CpuBackend::new(CpuConfig { threads: Some(2), ..CpuConfig::default() })?;
//! assert_eq!(cpu.capabilities().align_bytes, 64);
//! # Ok::<(), entensor_components::BackendError>(())
//! ```

#[cfg(target_endian = "big")]
compile_error!("tensors are little-endian in memory; this backend reads them in place");

mod bell;
mod bind;
mod crew;
mod kernels;
mod lower;
mod math;
mod memory;
mod place;
mod prepared;
mod run;
mod simd;
mod support;
mod sync;
mod tensor;
mod timed;
mod walk;
mod work;

use std::sync::Arc;

use entensor_components::{
    Backend, BackendError, BufferKey, BufferTypeInfo, ByteRows, Capabilities, ImportedBytes, MemoryHandle,
    MemoryReport, OpDesc, PreparedSplit, Sameness, SplitView, Support, TensorDesc, Usage,
};
pub use memory::{CpuMemory, HIGH_BANDWIDTH, HUGE, REPACKED, host_memory};
pub use simd::Simd;

use crate::{
    crew::Crew,
    memory::{Buffers, io},
    prepared::Prepared,
    run::Run,
    simd::AnyLevel,
};

/// How a [`CpuBackend`] is made.
#[derive(Clone)]
pub struct CpuConfig {
    /// The name it is registered under.
    pub name: String,
    /// Threads that work on a split, the calling one included; by default as many as the pool and the caller are, or as
    /// the system has. 1 keeps all work on the calling thread.
    pub threads: Option<usize>,
    /// The pool whose free workers help; they need 256 KiB of stack. Without one the backend starts threads of its own, which sleep between runs.
    pub pool: Option<Arc<rayon::ThreadPool>>,
    /// Which instructions to use.
    pub simd: Simd,
    /// Where its ordinary buffers lie.
    pub memory: CpuMemory,
}

impl Default for CpuConfig {
    fn default() -> Self {
        Self { name: "cpu".into(), threads: None, pool: None, simd: Simd::Detect, memory: CpuMemory::Ordinary }
    }
}

/// The CPU as a backend.
pub struct CpuBackend {
    name: String,
    capabilities: Capabilities,
    buffers: Buffers,
    level: AnyLevel,
    sameness: Sameness,
    crew: Option<Arc<Crew>>,
}

impl CpuBackend {
    /// Makes the backend and starts its threads.
    ///
    /// # Errors
    /// [`BackendError::MissingLibrary`] for high-bandwidth memory without the library that gives it.
    pub fn new(config: CpuConfig) -> Result<Self, BackendError> {
        let buffers = Buffers::new(config.memory)?;
        let crew = match config.pool {
            Some(pool) => {
                let workers = pool.current_num_threads();
                let helpers = config.threads.map_or(workers, |threads| workers.min(threads.saturating_sub(1)));
                Crew::pool(pool, helpers)
            }
            None => {
                let helpers = config.threads.unwrap_or_else(crew::cores).saturating_sub(1);
                Crew::own(&config.name, helpers)
            }
        };
        Ok(Self {
            name: config.name,
            capabilities: buffers.capabilities(),
            buffers,
            level: AnyLevel::choose(config.simd),
            sameness: config.simd.sameness(),
            crew: (crew.helpers() > 0).then(|| Arc::new(crew)),
        })
    }

    /// The instruction level in use: `portable`, `avx2` or `avx512`. That of [`Simd::Strict`] is `portable`.
    #[must_use]
    pub fn simd_level(&self) -> &'static str {
        self.level.name()
    }

    /// How many threads work on a split at most, the calling one included.
    #[must_use]
    pub fn threads(&self) -> usize {
        1 + self.crew.as_ref().map_or(0, |crew| crew.helpers())
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn support(&self, op: &OpDesc<'_>) -> Support {
        support::support(op)
    }

    fn sameness(&self) -> Sameness {
        self.sameness
    }

    fn create_buffer(&self, size_bytes: u64, _usage: Usage) -> Result<BufferKey, BackendError> {
        self.buffers.create(size_bytes)
    }

    fn import_host(&self, bytes: Arc<dyn ImportedBytes>) -> Result<BufferKey, BackendError> {
        self.buffers.import(bytes, self.capabilities.import_align_bytes)
    }

    fn destroy_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        self.buffers.destroy(key)
    }

    fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        self.buffers.memory(key)
    }

    fn write(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        io::write(memory, offset_bytes, bytes)
    }

    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        io::read(memory, offset_bytes, bytes)
    }

    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        let program = lower::lower(split, self.level)?;
        let helpers = self.crew.as_ref().map_or(0, |crew| crew.helpers());
        let run = Run::new(program, self.level, helpers)?;
        Ok(Box::new(Prepared::new(run, self.crew.clone())))
    }

    fn memory_report(&self) -> MemoryReport {
        self.buffers.report()
    }

    fn buffer_types(&self) -> Vec<BufferTypeInfo> {
        self.buffers.types(&self.capabilities)
    }

    fn create_buffer_of(&self, buffer_type: &str, size_bytes: u64, usage: Usage) -> Result<BufferKey, BackendError> {
        if *buffer_type == *self.capabilities.buffer_type {
            return self.create_buffer(size_bytes, usage);
        }
        if buffer_type == REPACKED {
            return self.buffers.create_repacked(size_bytes);
        }
        if buffer_type == HUGE {
            return self.buffers.create_huge(size_bytes);
        }
        let known = self.buffer_types().iter().map(|info| info.name.to_string()).collect();
        let (backend, buffer_type) = (self.name.as_str().into(), buffer_type.into());
        Err(BackendError::UnknownBufferType { backend, buffer_type, known })
    }

    fn init_tensor(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        desc: &TensorDesc,
        allocated_bytes: u64,
    ) -> Result<(), BackendError> {
        io::init_tensor(memory, offset_bytes, desc, allocated_bytes)
    }

    fn fill(&self, memory: &MemoryHandle, offset_bytes: u64, len_bytes: u64, value: u8) -> Result<(), BackendError> {
        io::fill(memory, offset_bytes, len_bytes, value)
    }

    fn reset_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        self.buffers.reset(key)
    }

    fn write_rows(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        io::write_rows(memory, offset_bytes, rows, bytes)
    }

    fn read_rows(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &mut [u8],
    ) -> Result<(), BackendError> {
        io::read_rows(memory, offset_bytes, rows, bytes)
    }

    fn reads_opaque(&self, op: &OpDesc<'_>, operand: usize, is_whole: bool, buffer_type: &str) -> Support {
        if *buffer_type == *self.capabilities.buffer_type {
            return Support::Yes;
        }
        if buffer_type != REPACKED {
            return Support::no("a private layout that it does not know");
        }
        let reads = op.operands.get(operand).is_some_and(|desc| support::reads_repacked(op.op.kind(), operand, desc));
        match reads {
            true if is_whole => Support::Yes,
            true => Support::no("a view into weights whose layout is private; views need a buffer of an ordinary type"),
            false => Support::no(
                "a private layout, which mul_mat and mul_mat_id read, as weights of q4_0, q4_1 or q8_0, and nothing else does",
            ),
        }
    }
}
