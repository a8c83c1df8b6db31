//! The gemm backend: `mul_mat` of many columns through the `gemm` crate, on host memory that it shares with the CPU backend.
//!
//! Placed above `cpu` it takes the products of prompts and batches, and leaves everything else, products of few columns
//! among it, where it is. Both use one kind of memory and one buffer type, so nothing is copied.
//!
//! - **Numerics.** Everything is multiplied and summed in f32. Weights and activations that are not f32 are decoded to f32 first,
//!   a panel of rows at a time; f32 operands are read where they lie, in whatever strides. So a product with block weights is
//!   closer to the oracle than that of the CPU backend, which rounds activations to 8 bits.
//! - **Bits.** Results depend on the instructions and the cache sizes that `gemm` finds, never on the number of threads, on who helped or
//!   on where a run was cut.
//! - **Cost.** Each thread that works has at most 2.5 MiB of work memory, which the backend owns and its splits share. A
//!   submission allocates one small job a helper, and `gemm` packs panels into memory that it takes and gives back by itself.
//! - **Threads.** The calling thread does all the work that nobody else has taken: a busy pool delays nothing. Helpers are workers of the
//!   caller's rayon pool, or of a pool of the backend's own.
//! - **Unsafe.** `run` (shares locked memory with helpers) and `product` (rows of it as slices, and the call of `gemm`).
//!
//! ```
//! use entensor_components::Backend;
//! use entensor_gemm::{GemmBackend, GemmConfig};
//!
//! let gemm = GemmBackend::new(GemmConfig { threads: Some(2), ..GemmConfig::default() })?;
//! assert_eq!(&*gemm.capabilities().buffer_type, "host");
//! # Ok::<(), entensor_components::BackendError>(())
//! ```

#[cfg(target_endian = "big")]
compile_error!("tensors are little-endian in memory; this backend reads them in place");

mod decode;
mod place;
mod product;
mod run;
mod support;
mod work;

use std::sync::Arc;

use entensor_components::{
    Backend, BackendError, BufferKey, ByteRows, Capabilities, HOST_ALIGN_BYTES, HostBuffers, ImportedBytes,
    MemoryHandle, MemoryReport, OpDesc, PreparedSplit, Sameness, SplitView, Support, Usage, host_io,
};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::{
    product::Product,
    run::{Helpers, Prepared},
    work::WorkPool,
};

/// How a [`GemmBackend`] is made.
#[derive(Clone)]
pub struct GemmConfig {
    /// The name it is registered under.
    pub name: String,
    /// Threads that work on a split, the calling one included; by default as many as the pool and the caller are, or as
    /// the system has. 1 keeps all work on the calling thread.
    pub threads: Option<usize>,
    /// The pool whose free workers help: that of the CPU backend, if that has one. Without one the backend starts workers of its own.
    pub pool: Option<Arc<ThreadPool>>,
    /// Products of fewer columns are refused: there a panel is decoded for too little work.
    pub min_columns: u64,
}

impl GemmConfig {
    /// The least columns of a product, unless somebody says otherwise.
    pub const MIN_COLUMNS: u64 = 32;
}

impl Default for GemmConfig {
    fn default() -> Self {
        Self { name: "gemm".into(), threads: None, pool: None, min_columns: Self::MIN_COLUMNS }
    }
}

/// The `gemm` crate as a backend.
pub struct GemmBackend {
    name: String,
    capabilities: Capabilities,
    min_columns: u64,
    buffers: HostBuffers,
    helpers: Option<Helpers>,
    work: Arc<WorkPool>,
}

impl GemmBackend {
    /// Makes the backend and starts its threads; fewer, or none, where the system refuses them.
    ///
    /// # Errors
    /// None today; making a backend may fail in general.
    pub fn new(config: GemmConfig) -> Result<Self, BackendError> {
        let helpers = match config.pool {
            Some(pool) => {
                let workers = pool.current_num_threads();
                let count = config.threads.map_or(workers, |threads| workers.min(threads.saturating_sub(1)));
                Some(Helpers { pool, count })
            }
            None => {
                let system = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
                own_helpers(&config.name, config.threads.unwrap_or_else(system).saturating_sub(1))
            }
        };
        Ok(Self {
            name: config.name,
            capabilities: Capabilities { align_bytes: HOST_ALIGN_BYTES, imports_host: true, ..Capabilities::host() },
            min_columns: config.min_columns,
            buffers: HostBuffers::default(),
            helpers: helpers.filter(|helpers| helpers.count > 0),
            work: Arc::default(),
        })
    }

    /// How many threads work on a split at most, the calling one included.
    #[must_use]
    pub fn threads(&self) -> usize {
        1 + self.helpers.as_ref().map_or(0, |helpers| helpers.count)
    }
}

fn own_helpers(name: &str, count: usize) -> Option<Helpers> {
    if count == 0 {
        // A rayon pool of no threads would be one of as many as the system has.
        return None;
    }
    let name = name.to_owned();
    let builder = ThreadPoolBuilder::new().num_threads(count);
    let pool = builder.thread_name(move |index| format!("{name} helper {index}")).build().ok()?;
    Some(Helpers { pool: Arc::new(pool), count })
}

impl Backend for GemmBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn support(&self, op: &OpDesc<'_>) -> Support {
        support::support(op, self.min_columns)
    }

    /// `gemm` takes the instructions that this CPU has, and sums in an order that depends on them.
    fn sameness(&self) -> Sameness {
        Sameness::Machine
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
        host_io::write(memory, offset_bytes, bytes)
    }

    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        host_io::read(memory, offset_bytes, bytes)
    }

    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        let nodes = (0..split.len()).map(|index| split.node(index));
        let products = nodes.map(|node| Product::new(&node, self.min_columns)).collect::<Result<Vec<_>, _>>()?;
        let sizes = products.iter().map(Product::work_sizes).fold(work::Sizes::default(), work::Sizes::largest);
        self.work.keep(self.threads(), sizes)?;
        Ok(Box::new(Prepared::new(products, sizes, self.helpers.clone(), Arc::clone(&self.work))))
    }

    fn memory_report(&self) -> MemoryReport {
        self.buffers.report()
    }

    fn fill(&self, memory: &MemoryHandle, offset_bytes: u64, len_bytes: u64, value: u8) -> Result<(), BackendError> {
        host_io::fill(memory, offset_bytes, len_bytes, value)
    }

    fn write_rows(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        host_io::write_rows(memory, offset_bytes, rows, bytes)
    }

    fn read_rows(
        &self,
        memory: &MemoryHandle,
        offset_bytes: u64,
        rows: &ByteRows,
        bytes: &mut [u8],
    ) -> Result<(), BackendError> {
        host_io::read_rows(memory, offset_bytes, rows, bytes)
    }
}
