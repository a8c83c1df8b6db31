//! The CPU backend: every op on host memory, with SIMD chosen at run time, on the calling thread and whoever helps.
//!
//! - **Cost.** A split is lowered once, in `prepare`; `submit` takes the memory locks, walks the steps and allocates
//!   nothing (one small job when helpers come from a shared pool). Splits below some 30 µs stay on the calling thread.
//! - **Bits.** Results depend on the instruction level, never on the number of threads or on who helped.
//! - **Numerics.** f32 accumulation (f64 for sums of rows); products with block weights round activations to 8-bit blocks of 32,
//!   where a NaN or an infinity makes the whole product NaN. Outer axes of the weights are repeated in groups, as
//!   grouped-query attention needs it.
//! - **Cuts.** A prepared split runs from a cursor up to a deadline. Chunks are some microseconds of work on a grid that the shapes fix, so a
//!   run that is cancelled or out of time comes back within a chunk or two, and where it was cut changes no bit.
//! - **Unsafe.** `tensor` (strides to pointers), `run` (who may touch them when) and `simd` (instructions); kernels promise only that they
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
mod place;
mod run;
mod simd;
mod support;
mod sync;
mod tensor;
mod walk;
mod work;

use std::sync::Arc;

use entensor_components::{
    Backend, BackendError, BufferKey, Capabilities, HOST_ALIGN_BYTES, HostBuffers, ImportedBytes, MemoryHandle,
    MemoryReport, OpDesc, PreparedSplit, SplitView, Support, Usage, host_io,
};
pub use simd::Simd;

use crate::{
    crew::Crew,
    run::{Prepared, Run},
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
    /// The pool whose free workers help. Without one the backend starts threads of its own, which sleep between runs.
    pub pool: Option<Arc<rayon::ThreadPool>>,
    /// Which instructions to use.
    pub simd: Simd,
}

impl Default for CpuConfig {
    fn default() -> Self {
        Self { name: "cpu".into(), threads: None, pool: None, simd: Simd::Detect }
    }
}

/// The CPU as a backend.
pub struct CpuBackend {
    name: String,
    capabilities: Capabilities,
    buffers: HostBuffers,
    level: AnyLevel,
    crew: Option<Arc<Crew>>,
}

impl CpuBackend {
    /// Makes the backend and starts its threads.
    ///
    /// # Errors
    /// None today; making a backend may fail in general.
    pub fn new(config: CpuConfig) -> Result<Self, BackendError> {
        let crew = match config.pool {
            Some(pool) => {
                let workers = pool.current_num_threads();
                let helpers = config.threads.map_or(workers, |threads| workers.min(threads.saturating_sub(1)));
                Crew::Pool { pool, helpers }
            }
            None => {
                let system = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
                let helpers = config.threads.unwrap_or_else(system).saturating_sub(1);
                Crew::own(&config.name, helpers)
            }
        };
        Ok(Self {
            name: config.name,
            capabilities: Capabilities { align_bytes: HOST_ALIGN_BYTES, imports_host: true, ..Capabilities::host() },
            buffers: HostBuffers::default(),
            level: AnyLevel::choose(config.simd),
            crew: (crew.helpers() > 0).then(|| Arc::new(crew)),
        })
    }

    /// The instruction level in use: `portable` or `avx2`.
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

    fn create_buffer(&self, size_bytes: u64, _usage: Usage) -> Result<BufferKey, BackendError> {
        self.buffers.create(size_bytes)
    }

    fn import_host(&self, bytes: Arc<dyn ImportedBytes>) -> Result<BufferKey, BackendError> {
        Ok(self.buffers.import(bytes))
    }

    fn destroy_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        self.buffers.destroy(key)
    }

    fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        self.buffers.memory(key)
    }

    fn write(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        host_io::write(memory, offset_bytes, bytes)
    }

    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        host_io::read(memory, offset_bytes, bytes)
    }

    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        let program = lower::lower(split)?;
        let helpers = self.crew.as_ref().map_or(0, |crew| crew.helpers());
        let run = Run::new(program, self.level, helpers)?;
        Ok(Box::new(Prepared::new(run, self.crew.clone())))
    }

    fn memory_report(&self) -> MemoryReport {
        MemoryReport { ours_bytes: self.buffers.allocated_bytes(), ..MemoryReport::default() }
    }
}
