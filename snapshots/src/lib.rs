//! What the planner is tested with: random graphs, and damaged texts. Fixtures and goldens lie beside this crate.
#![forbid(unsafe_code)]

pub mod generate;
pub mod mutate;
