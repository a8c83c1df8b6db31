//! What was tried, as one line.

use std::{collections::BTreeMap, fmt};

/// Counts over many seeds: the same for a range, however it was spread over threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Random graphs on random machines.
    pub(crate) pairs: u64,
    /// Those with a plan, which was proved, made three times with one text, and found in the cache.
    pub(crate) planned: u64,
    /// Pairs that were planned in a new world too.
    pub(crate) new_worlds: u64,
    /// Those without a plan, by the kind of their error.
    pub(crate) refused: BTreeMap<&'static str, u64>,
    /// Graphs whose numbers were compared with those of one host.
    pub(crate) compared: u64,
    /// Those whose runs consumed their inputs.
    pub(crate) consuming: u64,
    /// Those that had every legal placement tried.
    pub(crate) exhausted: u64,
    /// Placements whose plan was proved and run.
    pub(crate) placements: u64,
    /// Those that copied between memories.
    pub(crate) spread: u64,
    /// Placements without a plan, by the kind of the error.
    pub(crate) unplannable: BTreeMap<&'static str, u64>,
    /// Runs whose every output and every existing tensor was compared.
    pub(crate) runs: u64,
    /// Placements run, by pipelined slots.
    pub(crate) copies: [u64; 4],
    /// Placements run, by largest buffer.
    pub(crate) chunks: BTreeMap<&'static str, u64>,
    /// Plans taken from the cache and run again.
    pub(crate) cached: u64,
    /// Placements planned and run again in a new world.
    pub(crate) fresh: u64,
}

impl Summary {
    /// Adds another range's counts.
    pub(crate) fn add(&mut self, other: &Self) {
        let add = |to: &mut BTreeMap<&'static str, u64>, from: &BTreeMap<&'static str, u64>| {
            from.iter().for_each(|(key, count)| *to.entry(key).or_default() += count);
        };
        add(&mut self.refused, &other.refused);
        add(&mut self.unplannable, &other.unplannable);
        add(&mut self.chunks, &other.chunks);
        self.copies.iter_mut().zip(other.copies).for_each(|(to, from)| *to += from);
        for (to, from) in [
            (&mut self.pairs, other.pairs),
            (&mut self.planned, other.planned),
            (&mut self.new_worlds, other.new_worlds),
            (&mut self.compared, other.compared),
            (&mut self.consuming, other.consuming),
            (&mut self.exhausted, other.exhausted),
            (&mut self.placements, other.placements),
            (&mut self.spread, other.spread),
            (&mut self.runs, other.runs),
            (&mut self.cached, other.cached),
            (&mut self.fresh, other.fresh),
        ] {
            *to += from;
        }
    }
}

fn counts(f: &mut fmt::Formatter<'_>, counts: &BTreeMap<&'static str, u64>) -> fmt::Result {
    let mut between = "";
    counts.iter().try_for_each(|(key, count)| write!(f, "{}{key} {count}", std::mem::replace(&mut between, ", ")))
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pairs: {} planned and proved, refused (", self.pairs, self.planned)?;
        counts(f, &self.refused)?;
        write!(
            f,
            "), {} in a new world too; {} compared with one host, {} of them with inputs that runs consume, in {} runs: ",
            self.new_worlds, self.compared, self.consuming, self.runs
        )?;
        write!(f, "{} placements, {} with copies between memories, ", self.placements, self.spread)?;
        write!(f, "all legal ones of {} graphs, without a plan (", self.exhausted)?;
        counts(f, &self.unplannable)?;
        write!(f, "); by largest buffer (")?;
        counts(f, &self.chunks)?;
        let [one, two, three, four] = self.copies;
        write!(f, "); by copies (1: {one}, 2: {two}, 3: {three}, 4: {four}); ")?;
        write!(f, "{} run again from the cache, {} in a new world", self.cached, self.fresh)
    }
}
