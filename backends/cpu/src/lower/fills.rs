//! What lies in work memory between two chunks, and how it gets there again when another run has used it meanwhile.
//!
//! A region is filled by one step and read by steps behind it. Doing the step over fills it again as long as what that step read is still
//! there. Where a later step has overwritten that while the region is still wanted (an operand that was set aside because the result
//! shares its bytes), the run must not be left: such steps are held.

use smallvec::SmallVec;

use super::Step;
use crate::place::Region;

/// Regions of work memory, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    reads: u64,
    writes: u64,
    /// Whether it writes anything else too; what it writes in work memory is then of use inside a chunk only, or it cannot be done over.
    results: bool,
}

/// How a region was filled last.
#[derive(Default)]
struct Fill {
    /// What the step read.
    sources: SmallVec<[Region; 4]>,
    /// The regions of work memory among that.
    of: u64,
    /// Whether doing the step over would give something else.
    stale: bool,
}

/// The fills so far.
pub(crate) struct Fills {
    /// Slots from here on are work memory.
    first: usize,
    regions: Vec<Fill>,
    /// Per step, the regions that cannot be filled again once it has begun.
    stale: Vec<u64>,
}

impl Fills {
    pub(crate) fn new(first: usize) -> Self {
        Self { first, regions: Vec::new(), stale: Vec::new() }
    }

    fn bit(&self, region: &Region) -> u64 {
        // There are as many regions as an op has operands, and a few.
        region.slot.checked_sub(self.first).map_or(0, |index| 1 << index.min(63))
    }

    /// Notes a step.
    pub(crate) fn note(
        &mut self,
        reads: impl Iterator<Item = Region> + Clone,
        writes: impl Iterator<Item = Region> + Clone,
    ) -> Uses {
        let bits = |regions: &mut dyn Iterator<Item = Region>| regions.fold(0, |bits, r| bits | self.bit(&r));
        let results = writes.clone().any(|write| self.bit(&write) == 0);
        let uses = Uses { reads: bits(&mut reads.clone()), writes: bits(&mut writes.clone()), results };
        for fill in &mut self.regions {
            fill.stale |= writes.clone().any(|write| fill.sources.iter().any(|source| source.overlaps(&write)));
        }
        // What was made of something that cannot be made again cannot either.
        while let Some(index) = self.regions.iter().position(|fill| !fill.stale && fill.of & self.stale() != 0) {
            self.regions[index].stale = true;
        }
        self.stale.push(self.stale() & !uses.writes);
        for index in (0..64).filter(|index| uses.writes >> index & 1 == 1) {
            if self.regions.len() <= index {
                self.regions.resize_with(index + 1, Fill::default);
            }
            self.regions[index] = Fill { sources: reads.clone().collect(), of: uses.reads, stale: results };
        }
        uses
    }

    fn stale(&self) -> u64 {
        (0..).zip(&self.regions).fold(0, |stale, (index, fill)| stale | u64::from(fill.stale) << index)
    }
}

/// Finds out where a run must not pause.
pub(crate) fn hold(steps: &mut [Step], fills: Fills) {
    // What is wanted behind a step.
    let mut wanted = 0;
    for index in (0..steps.len()).rev() {
        let Step { work: Uses { reads, writes, results }, shape, .. } = &mut steps[index];
        let half_filled = *results && wanted & *writes != 0;
        wanted = wanted & !*writes | *reads;
        // Cursors have 32 bits.
        let no_place = u32::try_from(index).is_err() || u32::try_from(shape.chunks).is_err();
        let before = index.checked_sub(1).map_or(0, |before| fills.stale[before]);
        shape.held_before = wanted & before != 0 || no_place;
        shape.held_inside = wanted & fills.stale[index] != 0 || half_filled || no_place;
    }
}

/// See [`super::Program::refill`].
pub(super) fn refill(steps: &[Step], step: usize, mut again: impl FnMut(usize)) {
    let (mut wanted, mut filled) = (0, 0);
    for Step { work, .. } in &steps[step.min(steps.len())..] {
        wanted |= work.reads & !filled;
        filled |= work.writes;
    }
    // What the step itself has filled in part is gone too.
    if steps.get(step).is_some_and(|at| at.work.writes != 0 && !at.work.results) {
        again(step);
    }
    for (index, Step { work, .. }) in steps[..step.min(steps.len())].iter().enumerate().rev() {
        if work.writes & wanted != 0 {
            again(index);
            wanted = wanted & !work.writes | work.reads;
        }
    }
}
