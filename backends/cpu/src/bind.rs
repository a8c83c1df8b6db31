//! Locks of a submission: write locks for memories that any node writes, read locks for the others.

use entensor_components::{BackendError, HostMemory, HostRead, HostWrite, MemoryHandle};
use smallvec::SmallVec;

use crate::{place::Place, tensor::Base};

/// What a program does with one memory slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotUse {
    pub(crate) slot: usize,
    pub(crate) written: bool,
    /// Bytes that the memory must have at least.
    pub(crate) needed_bytes: usize,
}

impl SlotUse {
    /// Adds a place to the uses of a program.
    pub(crate) fn note(uses: &mut Vec<Self>, place: &Place, written: bool) {
        let needed_bytes = if place.is_empty() { 0 } else { place.region().end };
        match uses.iter_mut().find(|u| u.slot == place.slot) {
            Some(found) => {
                found.written |= written;
                found.needed_bytes = found.needed_bytes.max(needed_bytes);
            }
            None => uses.push(Self { slot: place.slot, written, needed_bytes }),
        }
    }
}

enum Guard<'a> {
    Read(HostRead<'a>),
    Write(HostWrite<'a>),
}

impl Guard<'_> {
    fn base(&mut self) -> Base {
        match self {
            Self::Read(guard) => Base { bytes: guard.as_ptr().cast_mut(), len: guard.len() },
            Self::Write(guard) => Base { bytes: guard.as_mut_ptr(), len: guard.len() },
        }
    }
}

/// Memories that one submission binds without touching the heap; more spill to it.
const INLINE: usize = 16;

/// The locked memories of one submission.
pub(crate) struct Locks<'a>(#[expect(dead_code, reason = "held, not used")] SmallVec<[Guard<'a>; INLINE]>);

impl<'a> Locks<'a> {
    /// Locks what a program uses and writes down where each slot begins.
    ///
    /// Memories are locked in order of their addresses, so that splits that run at the same time on overlapping sets
    /// of memories never wait for each other in a circle; a memory that several slots read is locked once.
    pub(crate) fn take(uses: &[SlotUse], memory: &'a [MemoryHandle], bases: &mut [Base]) -> Result<Self, BackendError> {
        let mut hosts: SmallVec<[(&'a HostMemory, SlotUse); INLINE]> = SmallVec::new();
        for &slot_use in uses {
            let len_bytes = slot_use.needed_bytes as u64;
            let missing = BackendError::OutOfBounds { offset_bytes: 0, len_bytes, size_bytes: 0 };
            let handle = memory.get(slot_use.slot).ok_or(missing)?;
            hosts.push((handle.as_host().ok_or(BackendError::ForeignMemory)?, slot_use));
        }
        // Unstable: the stable sort may allocate.
        hosts.sort_unstable_by_key(|(host, _)| std::ptr::from_ref(*host).addr());
        for pair in hosts.windows(2) {
            if std::ptr::eq(pair[0].0, pair[1].0) && (pair[0].1.written || pair[1].1.written) {
                return Err(BackendError::AliasedMemory);
            }
        }
        let mut guards = SmallVec::new();
        let mut last: Option<(&HostMemory, Base)> = None;
        for (host, slot_use) in hosts {
            let base = match last {
                Some((locked, base)) if std::ptr::eq(locked, host) => base,
                _ => {
                    let mut guard =
                        if slot_use.written { Guard::Write(host.write()?) } else { Guard::Read(host.read()) };
                    let base = guard.base();
                    guards.push(guard);
                    base
                }
            };
            last = Some((host, base));
            if slot_use.needed_bytes > base.len {
                let (len_bytes, size_bytes) = (slot_use.needed_bytes as u64, base.len as u64);
                return Err(BackendError::OutOfBounds { offset_bytes: 0, len_bytes, size_bytes });
            }
            bases[slot_use.slot] = base;
        }
        Ok(Self(guards))
    }
}
