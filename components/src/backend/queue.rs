//! Queues: what has been submitted and may not be done yet.
//!
//! **What runs when.** An asynchronous backend has a compute queue, and may have a copy queue beside it
//! ([`Backend::has_copy_queue`](super::Backend::has_copy_queue)). Work of one queue runs in the order in which it was submitted.
//! Nothing else is ordered: work of two queues that touches the same bytes needs an event between them, which the planner puts
//! into every plan. Work that the host submits after it has waited for something runs after that.
//!
//! **Events are tickets.** A ticket's number and an event's number mean the same thing, a point of one of the backend's queues:
//! what was submitted up to there in that queue is done when the point is reached. Either may be polled, waited for by the host,
//! and waited for by another queue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::BackendError;
use crate::memory::{HostMemory, MemoryHandle};

/// The result of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ticket {
    /// The work is done.
    Done,
    /// The work is queued: [`Backend::wait_for`](super::Backend::wait_for) waits for it, and so can other queues: the number is an
    /// event of the backend.
    Pending(u64),
}

/// Which of a backend's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueKind {
    /// Splits.
    #[default]
    Compute,
    /// Asynchronous reads, writes and copies to this backend, where they have a queue of their own.
    Copy,
}

impl QueueKind {
    /// The word in texts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Copy => "copy",
        }
    }
}

/// Where an asynchronous read puts its bytes. Cloning is an `Arc` clone: the backend keeps one until the read is done, so that
/// dropping the other in between is safe.
#[derive(Clone, Debug)]
pub struct Readback(Arc<Mutex<Vec<u8>>>);

impl Readback {
    /// Room for so many bytes, zero until they arrive.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; never aborts.
    pub fn new(len_bytes: u64) -> Result<Self, BackendError> {
        let out_of_memory = || BackendError::OutOfMemory { size_bytes: len_bytes };
        let len = usize::try_from(len_bytes).map_err(|_| out_of_memory())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| out_of_memory())?;
        bytes.resize(len, 0);
        Ok(Self(Arc::new(Mutex::new(bytes))))
    }

    /// How many bytes are read.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.lock().len() as u64
    }

    /// The bytes; what was read, once the ticket of the read is done. For backends: where to put them.
    pub fn with<R>(&self, visit: impl FnOnce(&mut [u8]) -> R) -> R {
        visit(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        // A panic elsewhere cannot leave bytes half-typed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies between two host memories without a detour; false where one of them is not on the host, or they are one and the same.
pub(super) fn copy_on_host(
    (to, to_offset_bytes): (&MemoryHandle, u64),
    (from, from_offset_bytes): (&MemoryHandle, u64),
    len_bytes: u64,
) -> Result<bool, BackendError> {
    let (Some(target), Some(source)) = (to.as_host(), from.as_host()) else { return Ok(false) };
    if std::ptr::eq(target, source) {
        return Ok(false);
    }
    let range = |host: &HostMemory, offset_bytes: u64| {
        let size_bytes = host.size_bytes();
        let end = offset_bytes.checked_add(len_bytes).filter(|&end| end <= size_bytes);
        let range = end.and_then(|end| Some(usize::try_from(offset_bytes).ok()?..usize::try_from(end).ok()?));
        range.ok_or(BackendError::OutOfBounds { offset_bytes, len_bytes, size_bytes })
    };
    let (from_range, to_range) = (range(source, from_offset_bytes)?, range(target, to_offset_bytes)?);
    // In the order of their addresses, as submissions lock memories: else two copies in opposite directions could wait for each other.
    let (mut into, from) = if std::ptr::from_ref(target).addr() < std::ptr::from_ref(source).addr() {
        let into = target.write()?;
        (into, source.read())
    } else {
        let from = source.read();
        (target.write()?, from)
    };
    into[to_range].copy_from_slice(&from[from_range]);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::host_io;

    #[test]
    fn copies_on_the_host_are_checked() {
        let handle = |bytes| MemoryHandle::new(Arc::new(HostMemory::zeroed(bytes).expect("small")));
        let (a, b) = (handle(8), handle(8));
        host_io::write(&a, 0, &[1, 2, 3, 4, 5, 6, 7, 8]).expect("fits");
        assert_eq!(copy_on_host((&b, 1), (&a, 4), 4), Ok(true));
        let mut back = [0; 8];
        host_io::read(&b, 0, &mut back).expect("fits");
        assert_eq!(back, [0, 5, 6, 7, 8, 0, 0, 0]);
        assert!(matches!(copy_on_host((&b, 0), (&a, 5), 4), Err(BackendError::OutOfBounds { .. })));
        assert!(matches!(copy_on_host((&b, 5), (&a, 0), 4), Err(BackendError::OutOfBounds { .. })));
        assert!(matches!(copy_on_host((&b, 0), (&a, u64::MAX), 4), Err(BackendError::OutOfBounds { .. })));
        assert_eq!(copy_on_host((&a, 0), (&a, 4), 4), Ok(false), "one memory is copied with a detour");
    }

    #[test]
    fn copies_in_opposite_directions_do_not_wait_for_each_other() {
        let handle = || MemoryHandle::new(Arc::new(HostMemory::zeroed(1 << 12).expect("small")));
        let (a, b) = (handle(), handle());
        let copies = |to: &MemoryHandle, from: &MemoryHandle| {
            (0..20_000).for_each(|_| assert_eq!(copy_on_host((to, 0), (from, 0), 1 << 12), Ok(true)));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| copies(&a, &b));
            scope.spawn(|| copies(&b, &a));
        });
    }

    #[test]
    fn what_cannot_be_held_is_an_error() {
        assert!(matches!(Readback::new(u64::MAX), Err(BackendError::OutOfMemory { .. })));
        let back = Readback::new(3).expect("three bytes");
        back.clone().with(|bytes| bytes.copy_from_slice(&[1, 2, 3]));
        assert_eq!((back.len_bytes(), back.with(|bytes| bytes.to_vec())), (3, vec![1, 2, 3]));
    }
}
