//! Allocations that are alive in one step must not share bytes, but for a result that takes over its operand's memory.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use crate::plan::Plan;

/// Pairs that share bytes and steps must be one chain of in-place results, each beginning where the last ends.
///
/// A sweep over the steps: what is alive is kept by place, so that a new allocation meets its neighbours only.
pub(super) fn check(plan: &Plan, violations: &mut Vec<Violation>) {
    let all = &plan.allocations;
    let mut order: Vec<usize> = (0..all.len()).filter(|&i| all[i].size_bytes > 0).collect();
    order.sort_by_key(|&i| (all[i].first, i));
    let end = |i: usize| all[i].offset_bytes.saturating_add(all[i].size_bytes);
    // (buffer, offset, index), and (last step, index) of the same.
    let mut by_place: BTreeSet<(u32, u64, usize)> = BTreeSet::new();
    let mut by_end: BTreeMap<(u32, usize), (u32, u64, usize)> = BTreeMap::new();
    for &i in &order {
        let new = &all[i];
        while let Some(entry) = by_end.first_entry().filter(|entry| entry.key().0 < new.first) {
            by_place.remove(&entry.remove());
        }
        let mut passed = None;
        for &(_, offset, j) in by_place.range((new.buffer, 0, 0)..(new.buffer, end(i), 0)).rev() {
            // Alive ranges are disjoint or begin at one place, so behind the first that ends before this one all do.
            if passed.is_some_and(|passed| passed != offset) {
                break;
            }
            if end(j) <= new.offset_bytes {
                passed = Some(offset);
                continue;
            }
            let hand_over = new.in_place_of == u32::try_from(j).ok() && all[j].last == new.first;
            if !hand_over {
                let (first, second) = (plan.allocation_name(&all[j]), plan.allocation_name(new));
                violations.push(Violation::Overlap { first, second });
            }
        }
        let place = (new.buffer, new.offset_bytes, i);
        by_place.insert(place);
        by_end.insert((new.last, i), place);
    }
}
