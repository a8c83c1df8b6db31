//! The locked memories of a submission as pointers for kernels.

use entensor_components::{BackendError, HostLocks, MemoryHandle, MemorySlot, SlotUse};

use crate::{place::Place, tensor::Base};

/// Adds a place to the uses of a program.
pub(crate) fn note(uses: &mut Vec<SlotUse>, place: &Place, written: bool) {
    let needed_bytes = if place.is_empty() { 0 } else { place.region().end };
    let slot = u32::try_from(place.slot).expect("slots come from `MemorySlot`");
    SlotUse::note(uses, MemorySlot(slot), written, needed_bytes as u64);
}

/// Locks what a program uses, writes down where each slot begins, and says whether that was written there already.
pub(crate) fn lock<'a>(
    uses: &[SlotUse],
    memory: &'a [MemoryHandle],
    bases: &mut [Base],
) -> Result<(HostLocks<'a>, bool), BackendError> {
    let mut locks = HostLocks::take(uses, memory)?;
    let mut same = true;
    for slot_use in uses {
        let base = if slot_use.written {
            let bytes = locks.bytes_mut(slot_use.slot);
            Base { bytes: bytes.as_mut_ptr(), len: bytes.len() }
        } else {
            let bytes = locks.bytes(slot_use.slot);
            Base { bytes: bytes.as_ptr().cast_mut(), len: bytes.len() }
        };
        let written_down = &mut bases[slot_use.slot.0 as usize];
        same &= *written_down == base;
        *written_down = base;
    }
    Ok((locks, same))
}
