//! The backends that this crate was built with.

use std::sync::Arc;

#[cfg(any(feature = "cpu", feature = "gemm"))]
use entensor_components::Backend;
use entensor_components::{BufferTypeInfo, Capabilities};

#[cfg(any(feature = "cpu", feature = "gemm"))]
use super::{BackendSpec, RegistryError};
use super::{DeviceInfo, RegistryEntry};

/// The entries, in the order of listings.
pub(super) fn entries() -> Vec<RegistryEntry> {
    let mut entries = Vec::new();
    #[cfg(feature = "cpu")]
    entries.push(cpu::entry());
    #[cfg(feature = "gemm")]
    entries.push(gemm::entry());
    entries.push(RegistryEntry {
        devices: || vec![library("oracle", "f64 loops on the calling thread")],
        ..RegistryEntry::new("oracle", "naive f64 loops: slow, exact, for checking", |spec| {
            Ok(Arc::new(entensor_oracle::OracleBackend::new(&spec.name)))
        })
    });
    entries.push(RegistryEntry {
        devices: || vec![library("null", "no device at all")],
        ..RegistryEntry::new("null", "accepts everything, computes nothing: for planning", |spec| {
            Ok(Arc::new(entensor_null::NullBackend::new(entensor_null::NullConfig::host(&spec.name))))
        })
    });
    entries
}

/// What needs no device.
fn library(spec: &str, description: &str) -> DeviceInfo {
    DeviceInfo {
        spec: spec.into(),
        description: description.into(),
        total_bytes: None,
        free_bytes: None,
        buffer_types: vec![BufferTypeInfo::of(&Capabilities::host())],
    }
}

#[cfg(any(feature = "cpu", feature = "gemm"))]
fn started<B: Backend + 'static>(
    spec: &BackendSpec,
    backend: Result<B, entensor_components::BackendError>,
) -> Result<Arc<dyn Backend>, RegistryError> {
    match backend {
        Ok(backend) => Ok(Arc::new(backend)),
        Err(source) => Err(RegistryError::Start { backend: spec.name.clone(), source }),
    }
}

#[cfg(any(feature = "cpu", feature = "gemm"))]
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(feature = "cpu")]
mod cpu {
    use entensor_components::HostMemory;
    use entensor_cpu::{CpuBackend, CpuConfig, CpuMemory, Simd, host_memory};

    use super::{Arc, Backend, BackendSpec, DeviceInfo, RegistryEntry, RegistryError, cores, started};

    pub(super) fn entry() -> RegistryEntry {
        RegistryEntry {
            options: &["threads", "simd"],
            flags: &["hbm"],
            // The host: whatever else there is stands above it.
            auto: Some(0),
            devices,
            host_memory: Some(allocate),
            ..RegistryEntry::new(
                "cpu",
                "this machine's processor, on all its cores unless `threads` says otherwise; `simd` is detect (the best instructions), \
                 avx2, portable or strict (the same bits on every x86-64 machine); `hbm` puts its buffers into high-bandwidth memory",
                make,
            )
        }
    }

    fn memory(spec: &BackendSpec) -> CpuMemory {
        if spec.flag("hbm") { CpuMemory::HighBandwidth } else { CpuMemory::Ordinary }
    }

    fn simd(spec: &BackendSpec) -> Result<Simd, RegistryError> {
        let Some(value) = spec.option("simd") else { return Ok(Simd::Detect) };
        Simd::from_name(value).ok_or_else(|| spec.unfit("simd", value, "detect, avx2, portable or strict"))
    }

    fn make(spec: &BackendSpec) -> Result<Arc<dyn Backend>, RegistryError> {
        let (name, threads, simd) = (spec.name.clone(), spec.threads("threads")?, simd(spec)?);
        started(spec, CpuBackend::new(CpuConfig { name, threads, simd, memory: memory(spec), ..Default::default() }))
    }

    fn allocate(spec: &BackendSpec, size_bytes: u64) -> Result<HostMemory, RegistryError> {
        let start = |source| RegistryError::Start { backend: spec.name.clone(), source };
        memory(spec).zeroed(size_bytes).map_err(start)
    }

    fn devices() -> Vec<DeviceInfo> {
        let (total_bytes, free_bytes) = host_memory();
        let description = format!("{} threads, {}", cores(), Simd::Detect.level_name());
        let device = |spec: &str, memory: CpuMemory| {
            let buffer_types = memory.buffer_types().ok()?;
            let (spec, description) = (spec.into(), description.clone());
            Some(DeviceInfo { spec, description, total_bytes, free_bytes, buffer_types })
        };
        // Without the library there is no such memory to be listed.
        let all = [device("cpu", CpuMemory::Ordinary), device("cpu:hbm", CpuMemory::HighBandwidth)];
        all.into_iter().flatten().collect()
    }
}

#[cfg(feature = "gemm")]
mod gemm {
    use entensor_gemm::{GemmBackend, GemmConfig};

    use super::{Arc, Backend, BackendSpec, DeviceInfo, RegistryEntry, RegistryError, cores, library, started};

    pub(super) fn entry() -> RegistryEntry {
        RegistryEntry {
            options: &["threads"],
            devices: || vec![DeviceInfo { description: format!("{} threads", cores()), ..library("gemm", "") }],
            ..RegistryEntry::new(
                "gemm",
                "matrix products of 32 columns or more; above cpu, on the same memory, it takes prompts",
                make,
            )
        }
    }

    fn make(spec: &BackendSpec) -> Result<Arc<dyn Backend>, RegistryError> {
        let (name, threads) = (spec.name.clone(), spec.threads("threads")?);
        started(spec, GemmBackend::new(GemmConfig { name, threads, ..Default::default() }))
    }
}
