//! Work memory of a prepared split: allocated once, shared by the workers of its runs.
#![expect(unsafe_code, reason = "points into memory that is handed out by address")]

use std::cell::UnsafeCell;

use bytemuck::Zeroable;
use entensor_components::BackendError;

use crate::tensor::Base;

#[derive(Clone, Copy, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Regions of zeroed memory, each on its own cache lines.
pub(crate) struct WorkMemory {
    lines: Box<[UnsafeCell<Line>]>,
    /// First line and bytes of each region.
    regions: Box<[(usize, usize)]>,
}

impl WorkMemory {
    pub(crate) fn new(region_bytes: &[usize]) -> Result<Self, BackendError> {
        let mut total = 0_usize;
        let mut regions = Vec::with_capacity(region_bytes.len());
        for &bytes in region_bytes {
            regions.push((total, bytes));
            total = total.saturating_add(bytes.div_ceil(64));
        }
        let size_bytes = (total as u64).saturating_mul(64);
        let limit = isize::MAX as usize / 64;
        let lines = if total > limit { None } else { bytemuck::allocation::try_zeroed_vec(total).ok() };
        let lines: Vec<UnsafeCell<Line>> = lines.ok_or(BackendError::OutOfMemory { size_bytes })?;
        Ok(Self { lines: lines.into_boxed_slice(), regions: regions.into() })
    }

    /// Where each region begins.
    pub(crate) fn bases(&self) -> impl Iterator<Item = Base> {
        let first = self.lines.as_ptr().cast::<u8>().cast_mut();
        // The cells allow writing through a shared pointer.
        self.regions.iter().map(move |&(line, len)| Base { bytes: first.wrapping_add(line * 64), len, repacked: false })
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.lines.len() * 64
    }
}

// SAFETY: the bytes are reached only through `bases`, under the rules of `Bases::new`.
unsafe impl Sync for WorkMemory {}

impl std::fmt::Debug for WorkMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WorkMemory({} bytes)", self.size_bytes())
    }
}
