//! What the planner is tested with: random graphs. Fixtures and goldens lie beside this crate.
#![forbid(unsafe_code)]

pub mod generate;
