//! Byte-pair encoding of one piece: the pair of the lowest rank is merged first, the leftmost of equals.
//!
//! Neighbouring symbols sit in a linked list, candidate pairs in a heap, so that a piece of `n` bytes costs
//! `O(n log n)` also where it is one long word. Pairs whose symbols were merged away meanwhile stay in the heap and are
//! recognised when they come up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

/// Stands for a byte without a token. No merge names it, so that it separates its neighbours.
pub(super) const NO_TOKEN: u32 = u32::MAX;

/// The end of the linked list.
const END: u32 = u32::MAX;

/// One merge: two neighbouring tokens become one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    pub(super) left: u32,
    pub(super) right: u32,
    pub(super) merged: u32,
}

/// All merges, by rank and by pair.
#[derive(Clone, Debug, Default)]
pub(super) struct Merges {
    by_rank: Vec<Merge>,
    ranks: HashMap<(u32, u32), u32>,
}

impl Merges {
    pub(super) fn with_capacity(merges: usize) -> Self {
        Self { by_rank: Vec::with_capacity(merges), ranks: HashMap::with_capacity(merges) }
    }

    /// Adds the merge of the next rank. A pair that occurs twice keeps its first rank.
    pub(super) fn push(&mut self, merge: Merge) {
        let rank = self.by_rank.len() as u32;
        self.by_rank.push(merge);
        self.ranks.entry((merge.left, merge.right)).or_insert(rank);
    }
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
}

/// Buffers that encoding reuses from piece to piece and from call to call.
#[derive(Clone, Debug, Default)]
pub struct EncodeScratch {
    symbols: Vec<Symbol>,
    /// Rank in the high half, position of the left symbol in the low half.
    candidates: BinaryHeap<Reverse<u64>>,
}

impl EncodeScratch {
    /// Appends the tokens of a piece, given the tokens of its bytes. There are fewer than `u32::MAX` of those.
    pub(super) fn encode(&mut self, merges: &Merges, bytes: impl Iterator<Item = u32>, out: &mut Vec<u32>) {
        self.symbols.clear();
        self.candidates.clear();
        self.symbols.extend(bytes.zip(0u32..).map(|(id, i)| Symbol { id, previous: i.wrapping_sub(1), next: i + 1 }));
        let Some(last) = self.symbols.last_mut() else { return };
        last.next = END;

        for left in 0..self.symbols.len() as u32 - 1 {
            self.add_candidate(merges, left);
        }
        while let Some(Reverse(candidate)) = self.candidates.pop() {
            self.merge(merges, (candidate >> 32) as u32, candidate as u32);
        }
        let mut at = 0;
        while at != END {
            let symbol = self.symbols[at as usize];
            if symbol.id != NO_TOKEN {
                out.push(symbol.id);
            }
            at = symbol.next;
        }
    }

    fn add_candidate(&mut self, merges: &Merges, left: u32) {
        let symbol = self.symbols[left as usize];
        if symbol.next == END {
            return;
        }
        let pair = (symbol.id, self.symbols[symbol.next as usize].id);
        if let Some(&rank) = merges.ranks.get(&pair) {
            self.candidates.push(Reverse(u64::from(rank) << 32 | u64::from(left)));
        }
    }

    /// Applies a candidate, unless one of its symbols has changed since it was found.
    fn merge(&mut self, merges: &Merges, rank: u32, left: u32) {
        let merge = merges.by_rank[rank as usize];
        let Symbol { id, previous, next: right } = self.symbols[left as usize];
        if id != merge.left || right == END || self.symbols[right as usize].id != merge.right {
            return;
        }
        let next = self.symbols[right as usize].next;
        self.symbols[left as usize] = Symbol { id: merge.merged, previous, next };
        // The right symbol has left the list: candidates that start there must not match any more.
        self.symbols[right as usize].id = NO_TOKEN;
        if next != END {
            self.symbols[next as usize].previous = left;
            self.add_candidate(merges, left);
        }
        if left != 0 {
            self.add_candidate(merges, previous);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Scans for the best pair after every merge.
    fn naive(merges: &Merges, bytes: &[u32]) -> Vec<u32> {
        let mut ids = bytes.to_vec();
        loop {
            let ranks = ids.windows(2).map(|pair| merges.ranks.get(&(pair[0], pair[1])));
            let Some((&rank, at)) = ranks.enumerate().filter_map(|(i, rank)| Some((rank?, i))).min() else { break };
            ids[at] = merges.by_rank[rank as usize].merged;
            ids.remove(at + 1);
        }
        ids.retain(|&id| id != NO_TOKEN);
        ids
    }

    proptest! {
        /// Merges of arbitrary tokens into arbitrary tokens, also such as no real vocabulary has.
        #[test]
        fn heap_and_scan_agree(
            pairs in prop::collection::vec((0..6u32, 0..6u32), 0..20),
            bytes in prop::collection::vec(prop_oneof![9 => 0..4u32, 1 => Just(NO_TOKEN)], 0..40),
        ) {
            let mut merges = Merges::default();
            for (rank, (left, right)) in pairs.into_iter().enumerate() {
                merges.push(Merge { left, right, merged: 4 + rank as u32 });
            }
            let mut out = Vec::new();
            EncodeScratch::default().encode(&merges, bytes.iter().copied(), &mut out);
            prop_assert_eq!(out, naive(&merges, &bytes));
        }
    }
}
