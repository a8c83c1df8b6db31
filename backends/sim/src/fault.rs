//! Faults on order: the n-th call of a kind fails, or the device is lost there.

use entensor_components::BackendError;

/// What can be made to fail, and is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// `create_buffer`.
    Create,
    /// `import_host`.
    Import,
    /// `prepare`.
    Prepare,
    /// `submit`.
    Submit,
    /// `write` and `write_async`.
    Write,
    /// `read` and `read_async`.
    Read,
    /// `copy_from`.
    Copy,
    /// `record` on either queue.
    Record,
    /// `wait` on either queue.
    Wait,
    /// `poll`, `query` and `wait_for`.
    Poll,
    /// `synchronize`.
    Synchronize,
    /// Work of a queue begins: what goes wrong there shows later.
    Run,
}

impl Call {
    /// Every kind.
    pub const ALL: [Self; 12] = [
        Self::Create,
        Self::Import,
        Self::Prepare,
        Self::Submit,
        Self::Write,
        Self::Read,
        Self::Copy,
        Self::Record,
        Self::Wait,
        Self::Poll,
        Self::Synchronize,
        Self::Run,
    ];
}

/// What happens at the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It alone fails.
    Fail(BackendError),
    /// The device is lost: this call and all later ones fail, and what is queued never runs.
    Lose,
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    counts: [u64; Call::ALL.len()],
    /// Which calls count (all of them for `None`), how many may still pass, and what then.
    next: Option<(Option<Call>, u64, Fault)>,
}

impl Faults {
    pub(crate) fn set(&mut self, call: Option<Call>, passing: u64, fault: Fault) {
        self.next = Some((call, passing, fault));
    }

    pub(crate) fn clear(&mut self) {
        self.next = None;
    }

    pub(crate) fn count(&self, call: Option<Call>) -> u64 {
        match call {
            Some(call) => self.counts[call as usize],
            None => self.counts.iter().sum(),
        }
    }

    /// Counts a call; what is to happen at it.
    pub(crate) fn note(&mut self, call: Call) -> Option<Fault> {
        self.counts[call as usize] += 1;
        let (wanted, passing, _) = self.next.as_mut()?;
        if wanted.is_some_and(|wanted| wanted != call) {
            return None;
        }
        if *passing > 0 {
            *passing -= 1;
            return None;
        }
        self.next.take().map(|(.., fault)| fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_of_a_kind_fails_once() {
        let mut faults = Faults::default();
        faults.set(Some(Call::Read), 1, Fault::Lose);
        let seen = [Call::Read, Call::Write, Call::Read, Call::Read].map(|call| faults.note(call).is_some());
        assert_eq!(seen, [false, false, true, false]);
        assert_eq!((faults.count(Some(Call::Read)), faults.count(None)), (3, 4));
        faults.set(None, 0, Fault::Fail(BackendError::StaleBuffer));
        faults.clear();
        assert_eq!(faults.note(Call::Run), None);
        assert!(Call::ALL.iter().enumerate().all(|(i, &call)| i == call as usize));
    }
}
