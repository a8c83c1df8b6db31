//! What a simulated device is like.

use std::sync::Arc;

use entensor_components::{Backend, Capabilities, MemoryKind};

/// How long work takes, in virtual time. A rate of 0 costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speed {
    /// Nanoseconds for every node or copy, however small.
    pub each_ns: u64,
    /// Floating-point operations in a microsecond, counted by the op table.
    pub flops_per_us: u64,
    /// Bytes read and written in a microsecond.
    pub bytes_per_us: u64,
}

impl Speed {
    /// So many bytes in a microsecond, and nothing else counts.
    #[must_use]
    pub fn bytes_per_us(bytes_per_us: u64) -> Self {
        Self { bytes_per_us, ..Self::default() }
    }

    pub(crate) fn cost_ns(self, flops: u64, bytes: u64) -> u64 {
        let at = |amount: u64, per_us: u64| {
            let ns = (u128::from(amount) * 1000).checked_div(u128::from(per_us)).unwrap_or(0);
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        self.each_ns.saturating_add(at(flops, self.flops_per_us)).saturating_add(at(bytes, self.bytes_per_us))
    }
}

/// How a split is cut into submissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pieces {
    /// One submission a split.
    #[default]
    Whole,
    /// At most so many nodes in each.
    Nodes(usize),
    /// As many nodes as are estimated to run in so many virtual nanoseconds, and at least one.
    Time(u64),
}

/// How a simulated device is made.
#[derive(Clone)]
pub struct SimConfig {
    /// The backend that computes: any synchronous one on host memory.
    pub inner: Arc<dyn Backend>,
    /// Its name.
    pub name: String,
    /// What it claims. With `asynchronous` off, splits run in the caller, as on a host.
    pub capabilities: Capabilities,
    /// Speed of splits.
    pub compute: Speed,
    /// Speed of reads, writes and copies.
    pub copy: Speed,
    /// Whether copies have a queue of their own.
    pub copy_queue: bool,
    /// Its memory.
    pub memory_bytes: u64,
    /// How splits are cut into submissions.
    pub pieces: Pieces,
    /// The device is lost when a submission of more than one node takes longer than this, as drivers with a watchdog do.
    pub watchdog_ns: Option<u64>,
}

impl SimConfig {
    /// An asynchronous device with memory of its own and a copy queue, which takes no time.
    #[must_use]
    pub fn device(name: impl Into<String>, inner: Arc<dyn Backend>) -> Self {
        let name = name.into();
        let memory = MemoryKind(name.as_str().into());
        let capabilities = Capabilities {
            reads: vec![memory.clone()],
            buffer_type: name.as_str().into(),
            memory,
            events: true,
            asynchronous: true,
            ..Capabilities::host()
        };
        Self::new(name, inner, capabilities)
    }

    /// A synchronous device on host memory: a processor whose every access is recorded.
    #[must_use]
    pub fn host(name: impl Into<String>, inner: Arc<dyn Backend>) -> Self {
        let capabilities = Capabilities { imports_host: true, ..Capabilities::host() };
        Self { copy_queue: false, ..Self::new(name.into(), inner, capabilities) }
    }

    /// A device that claims all this, and takes no time.
    #[must_use]
    pub fn new(name: String, inner: Arc<dyn Backend>, capabilities: Capabilities) -> Self {
        Self {
            inner,
            name,
            capabilities,
            compute: Speed::default(),
            copy: Speed::default(),
            copy_queue: true,
            memory_bytes: u64::MAX,
            pieces: Pieces::default(),
            watchdog_ns: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_add_up_and_do_not_overflow() {
        let speed = Speed { each_ns: 5, flops_per_us: 1000, bytes_per_us: 500 };
        assert_eq!(speed.cost_ns(2000, 1000), 5 + 2000 + 2000);
        assert_eq!(Speed::default().cost_ns(u64::MAX, u64::MAX), 0);
        assert_eq!(Speed::bytes_per_us(1).cost_ns(0, u64::MAX), u64::MAX);
    }
}
