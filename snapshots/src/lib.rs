//! What the workspace is tested with: the conformance suite that every backend runs, and random graphs for the planner.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod generate;
