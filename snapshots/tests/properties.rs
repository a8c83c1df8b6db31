//! A share of the random graphs on random machines, always the same ones; `examples/properties` runs as many more as one likes.

#[path = "../examples/properties/checks/mod.rs"]
mod checks;

use std::time::Instant;

use checks::sweep;
use entensor::graph_text::{GraphText, Origin};
use entensor_components::DType;
use entensor_snapshots::generate::{Limits, case};

const PAIRS: u64 = 10_000;

#[test]
fn random_graphs_give_a_proved_plan_or_a_typed_error_and_the_same_bits_wherever_they_run() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let summary = sweep(0..PAIRS, threads, None, |_| ()).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{summary}");
    assert_eq!(summary.pairs, PAIRS);
    assert!(summary.planned * 2 > PAIRS && summary.refused.len() >= 6, "too few cases are plannable: {summary}");
    let Some(&fewest) = summary.chunks.values().min() else { panic!("nothing was compared: {summary}") };
    assert!(summary.chunks.len() == 6 && fewest >= 100, "too few chunk sizes: {summary}");
    assert!(summary.copies.iter().all(|&count| count >= 500), "too few pipelined slots: {summary}");
    assert!(summary.consuming * 5 > summary.compared, "too few that consume inputs: {summary}");
    assert!(summary.spread * 4 > summary.placements, "too few copies between memories: {summary}");
    assert!(summary.exhausted >= 500 && summary.compared * 2 > PAIRS / checks::NUMBERS_EVERY, "too few: {summary}");
    assert!(summary.cached == summary.compared && summary.fresh * 5 > summary.compared, "{summary}");
}

#[test]
fn a_range_has_one_summary_whatever_the_threads() {
    let one = sweep(70..170, 1, None, |_| ()).unwrap_or_else(|failure| panic!("{failure}"));
    let three = sweep(70..170, 3, None, |_| ()).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(one, three);
}

#[test]
fn what_is_not_begun_in_time_is_not_counted() {
    let summary = sweep(0..PAIRS, 2, Some(Instant::now()), |_| ()).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(summary.pairs, 0);
}

#[test]
fn generated_cases_hold_what_they_are_for() {
    let mut seen = [0_u32; 6];
    for seed in 0..300 {
        let source = case(seed, Limits::default());
        let text = GraphText::parse("case.graph", &source).unwrap_or_else(|error| panic!("{error}\n{source}"));
        let rows = || {
            text.tensors().iter().filter_map(|t| match &t.origin {
                Origin::Node { op, .. } => Some(op.row()),
                _ => None,
            })
        };
        let found = [
            rows().any(|row| row.view),
            rows().any(|row| row.writes.is_some()),
            text.tensors().iter().any(|t| t.origin == Origin::Scratch),
            text.tensors().iter().any(|t| t.pin.is_some()),
            text.buffers().iter().any(|b| b.opaque),
            text.tensors().iter().any(|t| t.desc.dtype == DType::Q8_0),
        ];
        for (count, found) in seen.iter_mut().zip(found) {
            *count += u32::from(found);
        }
    }
    assert!(seen.iter().all(|&count| count >= 15), "{seen:?}");
}
