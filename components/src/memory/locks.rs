//! Locks of a submission on host memory: exclusive for memories that any node writes, shared for the others.

use smallvec::SmallVec;

use super::{HostMemory, HostRead, HostWrite, MemoryHandle};
use crate::backend::{BackendError, MemorySlot};

/// What a split does with one memory slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotUse {
    /// The slot.
    pub slot: MemorySlot,
    /// Whether any node writes there.
    pub written: bool,
    /// Bytes that the memory must have at least.
    pub needed_bytes: u64,
}

impl SlotUse {
    /// Adds a use to those of a split, one entry a slot.
    pub fn note(uses: &mut Vec<Self>, slot: MemorySlot, written: bool, needed_bytes: u64) {
        match uses.iter_mut().find(|u| u.slot == slot) {
            Some(found) => {
                found.written |= written;
                found.needed_bytes = found.needed_bytes.max(needed_bytes);
            }
            None => uses.push(Self { slot, written, needed_bytes }),
        }
    }
}

enum HostGuard<'a> {
    Read(HostRead<'a>),
    Write(HostWrite<'a>),
}

impl HostGuard<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Read(guard) => guard,
            Self::Write(guard) => guard,
        }
    }
}

/// Memories that one submission locks without touching the heap; more spill to it.
const INLINE: usize = 16;

/// The locked memories of one submission.
pub struct HostLocks<'a> {
    guards: SmallVec<[HostGuard<'a>; INLINE]>,
    /// Which guard each used slot has.
    slots: SmallVec<[(MemorySlot, usize); INLINE]>,
}

impl<'a> HostLocks<'a> {
    /// Locks what a split uses, waiting where others hold it.
    ///
    /// Memories are locked in order of their addresses, so that splits that run at the same time on overlapping sets
    /// of memories never wait for each other in a circle; a memory that several slots read is locked once.
    ///
    /// # Errors
    /// [`BackendError::ForeignMemory`] for what is no host memory, [`BackendError::OutOfBounds`] for a slot that is missing or too
    /// small, [`BackendError::AliasedMemory`] when a memory that is written is bound to two slots, and
    /// [`BackendError::ReadOnly`].
    pub fn take(uses: &[SlotUse], memory: &'a [MemoryHandle]) -> Result<Self, BackendError> {
        Self::take_with(uses, memory, MemoryHandle::as_host)
    }

    /// As [`Self::take`], for backends that keep host memory in handles of their own: `host` finds it.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_with(
        uses: &[SlotUse],
        memory: &'a [MemoryHandle],
        host: impl Fn(&'a MemoryHandle) -> Option<&'a HostMemory>,
    ) -> Result<Self, BackendError> {
        let mut hosts: SmallVec<[(&'a HostMemory, SlotUse); INLINE]> = SmallVec::new();
        for &slot_use in uses {
            let len_bytes = slot_use.needed_bytes;
            let missing = BackendError::OutOfBounds { offset_bytes: 0, len_bytes, size_bytes: 0 };
            let handle = memory.get(slot_use.slot.0 as usize).ok_or(missing)?;
            let host = host(handle).ok_or(BackendError::ForeignMemory)?;
            let size_bytes = host.size_bytes();
            if len_bytes > size_bytes {
                return Err(BackendError::OutOfBounds { offset_bytes: 0, len_bytes, size_bytes });
            }
            hosts.push((host, slot_use));
        }
        // Unstable: the stable sort may allocate.
        hosts.sort_unstable_by_key(|(host, _)| std::ptr::from_ref(*host).addr());
        for pair in hosts.windows(2) {
            if std::ptr::eq(pair[0].0, pair[1].0) && (pair[0].1.written || pair[1].1.written) {
                return Err(BackendError::AliasedMemory);
            }
        }
        let mut locks = Self { guards: SmallVec::new(), slots: SmallVec::new() };
        let mut last: Option<&HostMemory> = None;
        for (host, slot_use) in hosts {
            if !last.is_some_and(|last| std::ptr::eq(last, host)) {
                let guard =
                    if slot_use.written { HostGuard::Write(host.write()?) } else { HostGuard::Read(host.read()) };
                locks.guards.push(guard);
                last = Some(host);
            }
            locks.slots.push((slot_use.slot, locks.guards.len() - 1));
        }
        Ok(locks)
    }

    fn guard(&self, slot: MemorySlot) -> Option<usize> {
        self.slots.iter().find(|(s, _)| *s == slot).map(|&(_, guard)| guard)
    }

    /// The bytes of a slot; none for a slot that the split does not use.
    #[must_use]
    pub fn bytes(&self, slot: MemorySlot) -> &[u8] {
        self.guard(slot).map_or(&[], |guard| self.guards[guard].bytes())
    }

    /// The bytes of a slot that the split writes; none for others.
    #[must_use]
    pub fn bytes_mut(&mut self, slot: MemorySlot) -> &mut [u8] {
        let Some(guard) = self.guard(slot) else { return &mut [] };
        match &mut self.guards[guard] {
            HostGuard::Read(_) => &mut [],
            HostGuard::Write(guard) => guard,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_is_written_is_bound_once_and_large_enough() {
        let handle = |bytes| MemoryHandle::new(Arc::new(HostMemory::zeroed(bytes).expect("small")));
        let (a, b) = (handle(64), handle(32));
        let uses = |written, needed_bytes| {
            let mut uses = Vec::new();
            SlotUse::note(&mut uses, MemorySlot(0), written, needed_bytes);
            SlotUse::note(&mut uses, MemorySlot(1), false, 8);
            SlotUse::note(&mut uses, MemorySlot(1), false, 16);
            uses
        };
        let memory = [a.clone(), b.clone()];
        let mut locks = HostLocks::take(&uses(true, 64), &memory).expect("fits");
        locks.bytes_mut(MemorySlot(0))[63] = 7;
        assert_eq!((locks.bytes(MemorySlot(0))[63], locks.bytes(MemorySlot(1)).len()), (7, 32));
        assert!(locks.bytes_mut(MemorySlot(1)).is_empty() && locks.bytes(MemorySlot(2)).is_empty());
        drop(locks);
        assert!(HostLocks::take(&uses(false, 64), &[a.clone(), a.clone()]).is_ok());
        let aliased = HostLocks::take(&uses(true, 64), &[a.clone(), a.clone()]).err();
        assert_eq!(aliased, Some(BackendError::AliasedMemory));
        assert!(matches!(HostLocks::take(&uses(true, 65), &memory), Err(BackendError::OutOfBounds { .. })));
        assert!(matches!(HostLocks::take(&uses(true, 8), &memory[..1]), Err(BackendError::OutOfBounds { .. })));
        let foreign = [a, MemoryHandle::new(Arc::new(5_u8))];
        assert!(matches!(HostLocks::take(&uses(true, 8), &foreign), Err(BackendError::ForeignMemory)));
    }
}
