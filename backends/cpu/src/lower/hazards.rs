//! Which steps a step must wait for: those that write what it touches, or touch what it writes.

use smallvec::SmallVec;

use crate::place::Region;

/// How far back independent steps are looked for; beyond, a step waits although it might not need to.
const WINDOW: usize = 32;

struct Access {
    reads: SmallVec<[Region; 4]>,
    writes: SmallVec<[Region; 2]>,
}

impl Access {
    fn conflicts(&self, later: &Self) -> bool {
        let touches = |access: &Self, write: &Region| {
            access.reads.iter().chain(&access.writes).any(|region| region.overlaps(write))
        };
        self.writes.iter().any(|write| touches(later, write)) || later.writes.iter().any(|write| touches(self, write))
    }
}

/// What the steps so far touch.
#[derive(Default)]
pub(crate) struct Hazards {
    steps: Vec<Access>,
}

impl Hazards {
    /// Notes a step, and says how many of the steps before it must be complete when it starts.
    pub(crate) fn note(
        &mut self,
        reads: impl Iterator<Item = Region>,
        writes: impl IntoIterator<Item = Region>,
    ) -> usize {
        let step = Access { reads: reads.collect(), writes: writes.into_iter().collect() };
        let oldest = self.steps.len().saturating_sub(WINDOW);
        let found = self.steps[oldest..].iter().rposition(|earlier| {
            // A check of ids writes nothing, and yet what comes behind it must not run when it fails.
            earlier.writes.is_empty() || earlier.conflicts(&step)
        });
        self.steps.push(step);
        found.map_or(oldest, |index| oldest + index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(start: usize, end: usize) -> Region {
        Region { slot: 0, start, end }
    }

    #[test]
    fn steps_wait_for_what_they_touch_and_no_more() {
        let mut hazards = Hazards::default();
        assert_eq!(hazards.note([bytes(0, 8)].into_iter(), Some(bytes(8, 16))), 0);
        assert_eq!(hazards.note([bytes(0, 8)].into_iter(), Some(bytes(16, 24))), 0, "reads of one input are free");
        assert_eq!(hazards.note([bytes(8, 16)].into_iter(), Some(bytes(24, 32))), 1, "reads what step 0 wrote");
        assert_eq!(hazards.note([].into_iter(), Some(bytes(0, 4))), 2, "overwrites what step 1 reads");
        assert_eq!(hazards.note([].into_iter(), Some(bytes(28, 36))), 3, "overwrites what step 2 wrote");
        assert_eq!(hazards.note([bytes(90, 94)].into_iter(), None), 0);
        assert_eq!(hazards.note([].into_iter(), Some(bytes(100, 104))), 6, "behind a check");
        assert_eq!(hazards.note([].into_iter(), [bytes(110, 114), bytes(120, 124)]), 6);
        assert_eq!(hazards.note([bytes(122, 123)].into_iter(), Some(bytes(130, 134))), 8, "reads what step 7 wrote");
    }
}
