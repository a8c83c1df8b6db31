//! Locks of a submission: write locks for memories that any node writes, read locks for the others.

use entensor_components::{BackendError, HostMemory, HostRead, HostWrite, MemoryHandle, MemorySlot, TensorRef};

/// What a split does with one memory slot.
pub(crate) struct SlotUse {
    slot: MemorySlot,
    written: bool,
    /// Bytes that the memory must have at least.
    needed_bytes: u64,
}

impl SlotUse {
    /// Adds a tensor to the uses of a split.
    pub(crate) fn note(uses: &mut Vec<Self>, tensor: &TensorRef, written: bool) -> Result<(), &'static str> {
        let end = tensor.desc.span_bytes().and_then(|span| span.checked_add(tensor.offset_bytes));
        let needed_bytes = end.filter(|&end| usize::try_from(end).is_ok()).ok_or("a tensor's end overflows")?;
        let needed_bytes = if tensor.desc.shape.is_empty() { 0 } else { needed_bytes };
        match uses.iter_mut().find(|u| u.slot == tensor.memory) {
            Some(found) => {
                found.written |= written;
                found.needed_bytes = found.needed_bytes.max(needed_bytes);
            }
            None => uses.push(Self { slot: tensor.memory, written, needed_bytes }),
        }
        Ok(())
    }
}

enum Guard<'a> {
    Read(HostRead<'a>),
    Write(HostWrite<'a>),
}

impl Guard<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Read(guard) => guard,
            Self::Write(guard) => guard,
        }
    }
}

/// The locked memories of one submission.
pub(crate) struct Bound<'a> {
    guards: Vec<Guard<'a>>,
    /// Which guard each used slot has.
    slots: Vec<(MemorySlot, usize)>,
}

impl<'a> Bound<'a> {
    /// Locks what a split uses.
    ///
    /// Memories are locked in order of their addresses, so that splits that run at the same time on overlapping sets
    /// of memories never wait for each other in a circle; a memory that several slots read is locked once.
    pub(crate) fn lock(uses: &[SlotUse], memory: &'a [MemoryHandle]) -> Result<Self, BackendError> {
        let mut hosts: Vec<(&'a HostMemory, &SlotUse)> = Vec::with_capacity(uses.len());
        for slot_use in uses {
            let missing =
                BackendError::OutOfBounds { offset_bytes: 0, len_bytes: slot_use.needed_bytes, size_bytes: 0 };
            let handle = memory.get(slot_use.slot.0 as usize).ok_or(missing)?;
            hosts.push((handle.as_host().ok_or(BackendError::ForeignMemory)?, slot_use));
        }
        hosts.sort_by_key(|(host, _)| std::ptr::from_ref(*host).addr());
        for pair in hosts.windows(2) {
            if std::ptr::eq(pair[0].0, pair[1].0) && (pair[0].1.written || pair[1].1.written) {
                return Err(BackendError::AliasedMemory);
            }
        }
        let mut bound = Self { guards: Vec::with_capacity(hosts.len()), slots: Vec::with_capacity(hosts.len()) };
        let mut last: Option<&HostMemory> = None;
        for (host, slot_use) in hosts {
            if !last.is_some_and(|last| std::ptr::eq(last, host)) {
                bound.guards.push(if slot_use.written {
                    Guard::Write(host.write()?)
                } else {
                    Guard::Read(host.read())
                });
                last = Some(host);
            }
            let guard = bound.guards.len() - 1;
            let size_bytes = bound.guards[guard].bytes().len() as u64;
            if slot_use.needed_bytes > size_bytes {
                let len_bytes = slot_use.needed_bytes;
                return Err(BackendError::OutOfBounds { offset_bytes: 0, len_bytes, size_bytes });
            }
            bound.slots.push((slot_use.slot, guard));
        }
        Ok(bound)
    }

    fn guard(&self, slot: MemorySlot) -> Option<usize> {
        self.slots.iter().find(|(s, _)| *s == slot).map(|&(_, guard)| guard)
    }

    /// The bytes of a slot.
    pub(crate) fn bytes(&self, slot: MemorySlot) -> &[u8] {
        self.guard(slot).map_or(&[], |guard| self.guards[guard].bytes())
    }

    /// The bytes of a slot that the split writes.
    pub(crate) fn bytes_mut(&mut self, slot: MemorySlot) -> Option<&mut [u8]> {
        let guard = self.guard(slot)?;
        match &mut self.guards[guard] {
            Guard::Read(_) => None,
            Guard::Write(guard) => Some(guard),
        }
    }
}
