//! What went wrong in other systems that do the same job, each fault as a test of its whole kind. A test's name holds the
//! number of the report, so that a table from report to test is one search; none of the planner's may be missing.

#[path = "../common/mod.rs"]
mod common;

mod capacity;
mod devices;
mod lifetimes;
mod memory;
mod offload;
mod placement;
mod plain_rules;
mod replanning;
mod runs;
mod tools;

mod reserve;

/// The reports of planning and running: capacity, placement, memory, re-planning, asynchronous work, cancelling and lost devices.
const REPORTS: std::ops::RangeInclusive<u32> = 1..=45;

#[test]
fn every_report_of_the_planner_has_a_test() {
    let mut sources = String::new();
    for folder in ["tests/reports", "tests/asynchronous", "tests"] {
        for entry in std::fs::read_dir(common::folder(folder)).expect("the tests are there") {
            let path = entry.expect("readable").path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                sources += &std::fs::read_to_string(path).expect("UTF-8");
            }
        }
    }
    let missing: Vec<u32> = REPORTS.filter(|n| !sources.contains(&format!("\nfn report_{n:02}_"))).collect();
    assert!(missing.is_empty(), "reports without a test: {missing:?}");
    // Each function stands under `#[test]`, or nobody runs it.
    let lines: Vec<&str> = sources.lines().collect();
    for (i, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("fn report_")) {
        let above = lines[..i].iter().rev().take_while(|line| line.starts_with("#["));
        assert!(above.into_iter().any(|line| *line == "#[test]"), "{line} is no test");
    }
}
