//! The vocabulary of Entensor: the components that tensors, buffers, splits, graphs and backends are made of, the
//! dtype table, the op table, shapes, the [`Backend`] trait and its errors.
//!
//! No algorithm, no IO, no unsafe code: everything else in the workspace speaks these words, and this crate speaks none
//! of theirs.
//!
//! ```
//! use entensor_components::{DType, Op, Shape, TensorDesc};
//!
//! let weights = TensorDesc::packed(DType::Q8_0, Shape([64, 32, 1, 1]))?;
//! let x = TensorDesc::packed(DType::F32, Shape([64, 8, 1, 1]))?;
//! let result = Op::MulMat {}.result(&[weights, x])?;
//! assert_eq!(result.desc.to_string(), "f32 [32,8]");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod backend;
mod dtype;
mod generation;
mod graph;
mod memory;
#[macro_use]
mod op;
mod shape;
mod tensor;

pub use backend::*;
pub use dtype::*;
pub use generation::*;
pub use graph::*;
pub use memory::*;
pub use op::*;
pub use shape::*;
pub use tensor::*;
