//! What the workspace is tested with: the conformance suite that every backend runs.
#![forbid(unsafe_code)]

pub mod conformance;
