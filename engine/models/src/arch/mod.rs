//! Architectures: what a model file's metadata and tensors mean as a graph.

mod llama;

pub use llama::{Llama, LlamaConfig};

use entensor::{GraphBuilder, Tensor, TensorId};

use crate::{ModelError, gguf::GgufHeader};

/// The architectures that can be run.
pub const SUPPORTED_ARCHITECTURES: &[&str] = &["llama"];

/// The shape of one step of a language model: what a graph, and so a plan, is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// Tokens fed at once.
    pub tokens: u32,
    /// Rows of the cache that attention reads.
    pub cache_rows: u32,
    /// Tokens whose logits are wanted.
    pub outputs: u32,
}

/// What is written before a step, and what is read after it.
#[derive(Clone, Copy, Debug)]
pub struct StepTensors {
    /// i32 `[tokens]`: token ids.
    pub ids: Tensor,
    /// i32 `[tokens]`: positions.
    pub positions: Tensor,
    /// i32 `[tokens]`: cache rows that keys and values are written to.
    pub rows: Tensor,
    /// f16 `[cache_rows, tokens]`: 0 where a token may look, minus infinity elsewhere.
    pub mask: Tensor,
    /// i32 `[outputs]`: which of the tokens' logits are wanted. Absent when all are.
    pub wanted: Option<Tensor>,
    /// f32 `[vocabulary, outputs]`.
    pub logits: Tensor,
}

/// The key-value cache of one context: two tensors per layer, each f16 `[key or value width, rows]`.
#[derive(Clone, Debug)]
pub struct CacheTensors {
    /// Keys per layer.
    pub keys: Vec<TensorId>,
    /// Values per layer.
    pub values: Vec<TensorId>,
}

/// The architecture that a file names, configured from its metadata.
pub(crate) fn from_header(header: &GgufHeader) -> Result<LlamaConfig, ModelError> {
    let name = header.metadata.get_str("general.architecture")?;
    match name {
        "llama" => LlamaConfig::from_header(header),
        other => Err(ModelError::UnknownArchitecture {
            name: other.chars().take(64).collect(),
            known: SUPPORTED_ARCHITECTURES.join(", "),
        }),
    }
}

/// Multiplies with weights and adds a bias if there is one.
pub(crate) fn linear(
    g: &mut GraphBuilder,
    weights: &TensorId,
    bias: Option<&TensorId>,
    x: Tensor,
) -> Result<Tensor, ModelError> {
    let w = g.shared(weights)?;
    let product = g.mul_mat(w, x)?;
    match bias {
        Some(bias) => {
            let b = g.shared(bias)?;
            Ok(g.add(product, b)?)
        }
        None => Ok(product),
    }
}
