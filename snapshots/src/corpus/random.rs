//! Random graphs on random machines, of seeds whose graphs can be planned: some taken as they come, some that are hard to pack.

use super::CorpusFile;
use crate::generate::{Limits, large_case};

const CASES: &[(&str, &str, u64)] = &[
    ("random_164", "random graph, 3 copies, seed 164", 164),
    ("random_79", "random graph, seed 79", 79),
    ("random_282", "random graph of many splits, seed 282", 282),
    ("random_352", "random graph, seed 352", 352),
    ("random_1137", "random graph that is hard to pack, seed 1137", 1137),
    ("random_2929", "random graph that is hard to pack, seed 2929", 2929),
    ("random_2695", "random graph that is hard to pack, seed 2695", 2695),
    ("random_5067", "random graph that is hard to pack, seed 5067", 5067),
];

/// The files of this family.
pub(super) fn files() -> Vec<CorpusFile> {
    let limits = Limits { scratch: true, nodes: 160 };
    CASES.iter().map(|&(name, about, seed)| CorpusFile { name, about, text: large_case(seed, limits) }).collect()
}
