//! What the planner is tested with: random graphs, damaged texts, and a corpus of graphs as real models make them. Fixtures and
//! goldens lie beside this crate.
#![forbid(unsafe_code)]

pub mod corpus;
pub mod generate;
pub mod mutate;
