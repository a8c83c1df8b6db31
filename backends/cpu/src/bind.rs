//! The locked memories of a submission as pointers for kernels.

use std::sync::Arc;

use entensor_components::{BackendError, HostLocks, MemoryHandle, MemorySlot, SlotUse};

use crate::{
    lower::Program,
    memory::{Repacked, host_of},
    place::Place,
    tensor::Base,
};

/// Adds a place to the uses of a program.
pub(crate) fn note(uses: &mut Vec<SlotUse>, place: &Place, written: bool) {
    let needed_bytes = if place.is_empty() { 0 } else { place.region().end };
    let slot = u32::try_from(place.slot).expect("slots come from `MemorySlot`");
    SlotUse::note(uses, MemorySlot(slot), written, needed_bytes as u64);
}

/// Locks what a program uses, writes down where each slot begins, and says whether that was written there already.
pub(crate) fn lock<'a>(
    program: &Program,
    memory: &'a [MemoryHandle],
    bases: &mut [Base],
) -> Result<(HostLocks<'a>, bool), BackendError> {
    let mut locks = HostLocks::take_with(&program.uses, memory, host_of)?;
    let (mut same, mut any_repacked) = (true, false);
    for slot_use in &program.uses {
        let slot = slot_use.slot.0 as usize;
        let repacked = memory[slot].downcast_ref::<Repacked>().is_some();
        any_repacked |= repacked;
        let base = if slot_use.written {
            let bytes = locks.bytes_mut(slot_use.slot);
            Base { bytes: bytes.as_mut_ptr(), len: bytes.len(), repacked }
        } else {
            let bytes = locks.bytes(slot_use.slot);
            Base { bytes: bytes.as_ptr().cast_mut(), len: bytes.len(), repacked }
        };
        let written_down = &mut bases[slot];
        same &= *written_down == base;
        *written_down = base;
    }
    if any_repacked {
        check_layouts(program, memory)?;
    }
    Ok((locks, same))
}

/// Products read whole weights in the private layout, and nobody reads anything else of them.
fn check_layouts(program: &Program, memory: &[MemoryHandle]) -> Result<(), BackendError> {
    for operand in &program.operands {
        let Some(repacked) = memory.get(operand.place.slot).and_then(MemoryHandle::downcast_ref::<Repacked>) else {
            continue;
        };
        let reason = match repacked.lies(&operand.place) {
            Ok(is_private) if operand.place.is_empty() || is_private == operand.repacked => continue,
            Ok(true) => "an operand has a private layout that only products read",
            Ok(false) => {
                "weights in a buffer with a private layout were not made ready for it; use `init_tensor` first"
            }
            Err(reason) => reason,
        };
        let (node, op) = (Arc::clone(&program.names[operand.node]), operand.op);
        return Err(BackendError::UnsupportedNode { node, op, reason: reason.into() });
    }
    Ok(())
}
