//! How far a backend's results are the same.

use std::fmt;

/// Under which conditions a backend gives the same bits for the same graph and the same data: the levels, the one that promises least
/// first. Whatever the level, neither the number of threads nor where a run is cut may change a bit.
///
/// Said of one build of the program. Which of the many NaN an operation gives is left to the compiler, so another build may give
/// another one of them.
///
/// ```
/// use entensor_components::Sameness;
///
/// // A graph on several backends keeps what the weakest of them promises.
/// let weakest = [Sameness::Strict, Sameness::Machine].into_iter().min();
/// assert_eq!(weakest, Some(Sameness::Machine));
/// assert_eq!(Sameness::Machine.name(), "machine");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Sameness {
    /// On the same device: another device or driver may give others.
    Device,
    /// On the same machine with the same instruction level: another level rounds differently, or sums in another order.
    Machine,
    /// At every instruction level, and therefore on every x86-64 machine.
    Strict,
}

impl Sameness {
    /// Its name in texts for tools: `device`, `machine` or `strict`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Machine => "machine",
            Self::Strict => "strict",
        }
    }
}

impl fmt::Display for Sameness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "the same bits on the same device only",
            Self::Machine => "the same bits on the same machine with the same instruction level",
            Self::Strict => "the same bits at every instruction level, on every x86-64 machine",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_by_what_they_promise() {
        let levels = [Sameness::Device, Sameness::Machine, Sameness::Strict];
        assert!(levels.is_sorted());
        for level in levels {
            assert!(
                level.to_string().starts_with("the same bits ")
                    && level.to_string().contains(match level {
                        Sameness::Device => "device",
                        Sameness::Machine => "same machine",
                        Sameness::Strict => "every x86-64 machine",
                    })
            );
        }
    }
}
