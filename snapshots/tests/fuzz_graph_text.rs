//! A share of the fuzzer's cases, always the same ones; `examples/fuzz_graph_text` runs as many more as one likes.

#[path = "../examples/fuzz_graph_text/cases.rs"]
mod cases;

use cases::{Summary, keep_panics, run, texts};

#[test]
fn damaged_texts_are_refused_or_planned_and_never_panic() {
    let (texts, mut summary) = (texts(), Summary::default());
    assert!(texts.len() >= 20, "the fixtures are there");
    keep_panics();
    let failed = (1..=4000).find_map(|seed| run(seed, &texts, &mut summary).err());
    drop(std::panic::take_hook());
    if let Some(failure) = failed {
        panic!("{failure}");
    }
    println!("{summary}");
    assert!(summary.planned >= 1000 && summary.refused.len() >= 8, "too few cases reach the planner: {summary}");
}
