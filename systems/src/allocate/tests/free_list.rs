//! The free list against one flag a byte.

use super::Random;
use crate::allocate::{
    BlockPlace,
    free_list::{FreeList, Limits},
};

/// Every byte of every buffer: whose it is.
#[derive(Default)]
struct Naive(Vec<Vec<Option<usize>>>);

impl Naive {
    fn mark(&mut self, place: BlockPlace, bytes: std::ops::Range<u64>, from: Option<usize>, to: Option<usize>) {
        let buffer = place.buffer as usize;
        if self.0.len() <= buffer {
            self.0.resize(buffer + 1, Vec::new());
        }
        let [start, end] = [bytes.start, bytes.end].map(|b| usize::try_from(place.offset_bytes + b).expect("small"));
        if self.0[buffer].len() < end {
            self.0[buffer].resize(end, None);
        }
        for byte in &mut self.0[buffer][start..end] {
            assert_eq!(*byte, from, "{place:?} {bytes:?}");
            *byte = to;
        }
    }

    /// Bytes below the last one in use that nobody uses.
    fn holes(&self, buffer: usize) -> usize {
        let used = self.0[buffer].iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.0[buffer][..used].iter().filter(|byte| byte.is_none()).count()
    }
}

/// Report 29: as many blocks as come to mind, in any order, some given back in part.
#[test]
fn report_29_random_takes_and_frees_equal_a_naive_model() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let align = 1 << random.below(7);
        let max = if random.below(2) == 0 { u64::MAX } else { 200 + random.below(2000) };
        let mut list = FreeList::default();
        list.reset(Limits::new(align, max));
        let mut naive = Naive::default();
        // Place, bytes, name.
        let mut alive: Vec<(BlockPlace, u64, usize)> = Vec::new();
        let many = random.below(200);
        for name in 0..600 {
            if random.below(200 + many) < many || alive.is_empty() {
                let bytes = 1 + random.below(200);
                let place = list.take(bytes);
                assert!(place.offset_bytes + bytes <= max && place.offset_bytes.is_multiple_of(align));
                naive.mark(place, 0..bytes, None, Some(name));
                alive.push((place, bytes, name));
            } else {
                let at = usize::try_from(random.below(alive.len() as u64)).expect("small");
                let (place, bytes, name) = alive[at];
                let keep = if random.below(3) == 0 { random.below(bytes) } else { 0 };
                list.free(place, bytes, keep);
                naive.mark(place, keep..bytes, Some(name), None);
                if keep > 0 {
                    alive[at].1 = keep;
                } else {
                    alive.swap_remove(at);
                }
            }
        }
        let sizes = list.sizes();
        assert_eq!(
            sizes.iter().map(|&s| usize::try_from(s).expect("small")).collect::<Vec<_>>(),
            naive.0.iter().map(Vec::len).collect::<Vec<_>>()
        );
        report_28_all_bytes_merge_back(&mut list, alive, &sizes, max);
    }
}

/// Report 28: when the last block is gone, every buffer is one free range from its start: it is filled by one block, and the
/// buffers do not grow.
fn report_28_all_bytes_merge_back(list: &mut FreeList, alive: Vec<(BlockPlace, u64, usize)>, sizes: &[u64], max: u64) {
    for (place, bytes, _) in alive {
        list.free(place, bytes, 0);
    }
    let whole = if max == u64::MAX { sizes[0] } else { max };
    let mut places: Vec<BlockPlace> = sizes.iter().map(|_| list.take(whole)).collect();
    places.sort_unstable_by_key(|place| place.buffer);
    for (buffer, place) in places.iter().enumerate() {
        assert_eq!((place.buffer as usize, place.offset_bytes), (buffer, 0));
    }
}

/// Report 26: holes beyond any table, then blocks of exactly their sizes: all of them are found again.
#[test]
fn report_26_every_hole_is_found_again() {
    for align in [1, 8] {
        let mut list = FreeList::default();
        list.reset(Limits::new(align, u64::MAX));
        let mut naive = Naive::default();
        let size = |i: usize| 8 + (i as u64 * 7919) % 400 / 8 * 8;
        let places: Vec<BlockPlace> = (0..20_000).map(|i| list.take(size(i))).collect();
        for (i, &place) in places.iter().enumerate() {
            naive.mark(place, 0..size(i), None, Some(i));
        }
        let before = list.sizes();
        for i in (0..20_000).step_by(2) {
            list.free(places[i], size(i), 0);
            naive.mark(places[i], 0..size(i), Some(i), None);
        }
        let free = naive.holes(0);
        assert!(free > 1_000_000);
        for i in (0..20_000).step_by(2).rev() {
            let place = list.take(size(i));
            naive.mark(place, 0..size(i), None, Some(i));
        }
        assert_eq!((naive.holes(0), list.sizes()), (0, before));
    }
}
