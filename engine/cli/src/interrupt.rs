//! Ctrl-C: ends what is computed, or the command if nothing is.

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use entensor::CancelToken;

use crate::output::note;

/// The exit status of a command that Ctrl-C ended, as shells have it: 128 and the signal's number.
pub(crate) const EXIT_CODE: u8 = 130;

/// What Ctrl-C sets.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    token: CancelToken,
    computing: Arc<AtomicBool>,
}

impl Interrupt {
    /// From now on Ctrl-C ends what is computed, and its text is kept. While nothing is, it ends the command at once, and so
    /// does a second one. Where the system does not let us, it ends the command as it always did.
    pub(crate) fn install() -> Self {
        let interrupt = Self::default();
        let seen = interrupt.clone();
        let handler = move || {
            if seen.token.is_cancelled() || !seen.computing.load(Ordering::Acquire) {
                process::exit(EXIT_CODE.into());
            }
            seen.token.cancel();
        };
        if let Err(error) = ctrlc::set_handler(handler) {
            note(format_args!("Ctrl-C will not keep what was generated: {error}"));
        }
        interrupt
    }

    /// What runs are cancelled by.
    pub(crate) fn token(&self) -> CancelToken {
        self.token.clone()
    }

    /// Whether Ctrl-C was pressed while something was computed.
    pub(crate) fn came(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Says whether something is computed that Ctrl-C should end before the command.
    pub(crate) fn computing(&self, computing: bool) {
        self.computing.store(computing, Ordering::Release);
    }
}
