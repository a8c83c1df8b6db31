//! Entensor.
pub mod graph_text;
