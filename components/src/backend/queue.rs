//! Queues: what has been submitted and may not be done yet.

/// The result of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ticket {
    /// The work is done.
    Done,
    /// The work is queued; [`Backend::synchronize`] waits for it.
    Pending(u64),
}
