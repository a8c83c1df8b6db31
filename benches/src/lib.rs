//! What the benches share: graphs of a known size, the machine's limits, and the page of results. Numbers come from
//! `cargo bench -p entensor-benches`.

pub mod limits;
pub mod results;
mod spread;
mod stack;

pub use spread::{Spread, spread};
pub use stack::{NODES_PER_LAYER, Placement, Stack, StackError, layers_for, machine};

use std::borrow::BorrowMut;

use bevy_ecs::prelude::World;
use entensor::{BuildError, DType, Engine, EngineError, GraphBuilder, GraphId};

/// A chain of feed-forward layers: eight nodes each, half of them products with weights of their own.
///
/// # Errors
/// Only if the engine cannot hold the weights.
pub fn layers<W: BorrowMut<World>>(engine: &mut Engine<W>, count: usize, width: u64) -> Result<GraphId, EngineError> {
    let mut weights = Vec::new();
    for layer in 0..count {
        for part in ["gate", "up", "down", "norm"] {
            let dims: &[u64] = if part == "norm" { &[width] } else { &[width, width] };
            let buffer_bytes = dims.iter().product::<u64>() * 4;
            let name = format!("{part}.{layer}");
            let host = engine.host();
            let buffer = engine.create_buffer(&name, host, entensor::Usage::Weights, buffer_bytes)?;
            weights.push(engine.tensor_in(&name, DType::F32, dims, buffer, 0)?);
        }
    }
    let build = || -> Result<GraphBuilder, BuildError> {
        let mut g = GraphBuilder::new("layers");
        let mut x = g.input("x", DType::F32, &[width, 4])?;
        for layer in weights.chunks(4) {
            let [gate, up, down, norm] = [0, 1, 2, 3].map(|i| g.shared(&layer[i]));
            let normed = g.rms_norm(x, 1e-5)?;
            let normed = g.mul(normed, norm?)?;
            let gate = g.mul_mat(gate?, normed)?;
            let up = g.mul_mat(up?, normed)?;
            let gated = g.swiglu(gate, Some(up))?;
            let down = g.mul_mat(down?, gated)?;
            let scaled = g.scale(down, 0.5)?;
            x = g.add(x, scaled)?;
        }
        g.output("y", x)?;
        Ok(g)
    };
    let graph = build()?;
    Ok(engine.add_graph(graph))
}
