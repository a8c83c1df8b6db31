//! Merging the symbols of a piece of text: the neighbours of the lowest rank first, the leftmost of equals.
//!
//! Symbols are consecutive ranges of the piece in a linked list, candidate pairs sit in a heap, so that a piece of `n`
//! symbols costs `O(n log n)` also where it is one long word; the few candidates of a short piece are faster to look through.
//! Pairs whose symbols were merged away meanwhile stay among them and are recognised when they come up. Which pairs merge,
//! and into what, is the caller's rule.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Stands for a part of text without a token.
pub(super) const NO_TOKEN: u32 = u32::MAX;

/// The end of the linked list.
const END: u32 = u32::MAX;

/// Up to so many symbols, candidates are looked through.
const FEW_SYMBOLS: usize = 24;

/// What a rule makes of a pair: the lowest ranks are merged first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    pub(super) rank: u32,
    pub(super) merged: u32,
}

/// Two neighbouring symbols: their tokens, and where in the piece they begin, meet and end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) left: u32,
    pub(super) right: u32,
    pub(super) start: usize,
    pub(super) middle: usize,
    pub(super) end: usize,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    id: u32,
    start: u32,
    previous: u32,
    next: u32,
}

/// A pair that may be merged unless one of its symbols has changed when its turn comes.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Rank in the high half, position of the left symbol in the low half.
    order: u64,
    merged: u32,
    /// Symbols only grow and keep their start, so that a pair of this length is still the same pair.
    length: u32,
}

impl Ord for Candidate {
    /// The heap gives its greatest element: the lowest rank, the leftmost of equals.
    fn cmp(&self, other: &Self) -> Ordering {
        other.order.cmp(&self.order)
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Candidate {}

/// The symbols of one piece, in buffers that are reused from piece to piece.
#[derive(Clone, Debug, Default)]
pub(super) struct Merging {
    symbols: Vec<Symbol>,
    /// Candidates of a piece of few symbols.
    few: Vec<Candidate>,
    /// Candidates of a longer one.
    many: BinaryHeap<Candidate>,
    end: u32,
}

impl Merging {
    /// Begins a piece: tokens and lengths of its symbols, none of them empty, fewer than `u32::MAX` bytes in all.
    pub(super) fn start(&mut self, symbols: impl Iterator<Item = (u32, u32)>) {
        self.symbols.clear();
        self.few.clear();
        self.many.clear();
        self.end = 0;
        for ((id, length), i) in symbols.zip(0u32..) {
            self.symbols.push(Symbol { id, start: self.end, previous: i.wrapping_sub(1), next: i + 1 });
            self.end += length;
        }
        if let Some(last) = self.symbols.last_mut() {
            last.next = END;
        }
    }

    /// Merges until the rule allows no more.
    pub(super) fn run(&mut self, mut rule: impl FnMut(Pair) -> Option<Merge>) {
        for left in 0..self.symbols.len() as u32 {
            self.add_candidate(left, &mut rule);
        }
        while let Some(candidate) = self.next_candidate() {
            self.merge(candidate, &mut rule);
        }
    }

    fn next_candidate(&mut self) -> Option<Candidate> {
        if self.symbols.len() > FEW_SYMBOLS {
            return self.many.pop();
        }
        let mut best = 0;
        let mut order = self.few.first()?.order;
        for (i, candidate) in self.few.iter().enumerate() {
            (best, order) = if candidate.order < order { (i, candidate.order) } else { (best, order) };
        }
        Some(self.few.swap_remove(best))
    }

    /// The symbols that are left: their tokens and ranges.
    pub(super) fn symbols(&self) -> impl Iterator<Item = (u32, Range<usize>)> + '_ {
        let mut at = if self.symbols.is_empty() { END } else { 0 };
        std::iter::from_fn(move || {
            let symbol = self.symbols.get(at as usize)?;
            at = symbol.next;
            Some((symbol.id, symbol.start as usize..self.end_of(symbol) as usize))
        })
    }

    fn end_of(&self, symbol: &Symbol) -> u32 {
        self.symbols.get(symbol.next as usize).map_or(self.end, |next| next.start)
    }

    fn add_candidate(&mut self, left: u32, rule: &mut impl FnMut(Pair) -> Option<Merge>) {
        let first = self.symbols[left as usize];
        let Some(second) = self.symbols.get(first.next as usize) else { return };
        let end = self.end_of(second);
        let pair = Pair {
            left: first.id,
            right: second.id,
            start: first.start as usize,
            middle: second.start as usize,
            end: end as usize,
        };
        if let Some(Merge { rank, merged }) = rule(pair) {
            let order = u64::from(rank) << 32 | u64::from(left);
            let candidate = Candidate { order, merged, length: end - first.start };
            if self.symbols.len() > FEW_SYMBOLS { self.many.push(candidate) } else { self.few.push(candidate) }
        }
    }

    fn merge(&mut self, candidate: Candidate, rule: &mut impl FnMut(Pair) -> Option<Merge>) {
        let left = candidate.order as u32;
        let Symbol { start, previous, next: right, .. } = self.symbols[left as usize];
        let Some(second) = self.symbols.get(right as usize) else { return };
        if self.end_of(second) - start != candidate.length {
            return;
        }
        let next = second.next;
        self.symbols[left as usize] = Symbol { id: candidate.merged, start, previous, next };
        // The right symbol has left the list: candidates that start there find no neighbour any more.
        self.symbols[right as usize].next = END;
        if let Some(third) = self.symbols.get_mut(next as usize) {
            third.previous = left;
        }
        if previous != END {
            self.add_candidate(previous, rule);
        }
        self.add_candidate(left, rule);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Symbols on both sides of [`FEW_SYMBOLS`].
    const MOST_SYMBOLS: usize = 2 * FEW_SYMBOLS;

    type Merges = HashMap<(u32, u32), Merge>;

    /// Scans for the best pair after every merge.
    fn naive(merges: &Merges, symbols: &[u32]) -> Vec<u32> {
        let mut ids = symbols.to_vec();
        loop {
            let found = ids.windows(2).map(|pair| merges.get(&(pair[0], pair[1])));
            let best = found.enumerate().filter_map(|(i, merge)| Some((merge?.rank, i, merge?.merged))).min();
            let Some((_, at, merged)) = best else { break };
            ids[at] = merged;
            ids.remove(at + 1);
        }
        ids
    }

    proptest! {
        /// Merges of arbitrary tokens into arbitrary tokens, of one rank too, such as no real vocabulary has.
        #[test]
        fn merging_agrees_with_a_scan(
            pairs in prop::collection::vec((0..6u32, 0..6u32, 0..8u32), 0..20),
            symbols in prop::collection::vec((prop_oneof![9 => 0..4u32, 1 => Just(NO_TOKEN)], 1..4u32), 0..MOST_SYMBOLS),
        ) {
            let mut merges = Merges::default();
            for (i, (left, right, rank)) in pairs.into_iter().enumerate() {
                merges.entry((left, right)).or_insert(Merge { rank, merged: 4 + i as u32 });
            }
            let mut merging = Merging::default();
            merging.start(symbols.iter().copied());
            merging.run(|pair| {
                assert!(pair.start < pair.middle && pair.middle < pair.end);
                merges.get(&(pair.left, pair.right)).copied()
            });
            let left: Vec<(u32, Range<usize>)> = merging.symbols().collect();
            let mut end = 0;
            for (_, range) in &left {
                prop_assert_eq!(range.start, end);
                end = range.end;
            }
            prop_assert_eq!(end, symbols.iter().map(|&(_, length)| length as usize).sum::<usize>());
            let ids: Vec<u32> = symbols.into_iter().map(|(id, _)| id).collect();
            prop_assert_eq!(left.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), naive(&merges, &ids));
        }
    }
}
