//! What every op means: one line an op here, the loops in one file a family, on decoded operands in linear order.

mod attention;
mod elementwise;
mod indexing;
mod movement;
mod products;
mod reductions;

use entensor_components::{BackendError, NodeDesc, Op, Shape};

use crate::access::{Evaluated, Operand, rows};

/// Evaluates a node. The op table's rules hold for it.
pub(crate) fn node(node: &NodeDesc, operands: &[Operand<'_>]) -> Result<Evaluated, BackendError> {
    let shape = node.output.desc.shape;
    Ok(match &node.op {
        // Refused when the split is prepared.
        Op::None {} | Op::View { .. } | Op::Reshape { .. } | Op::Permute { .. } | Op::Transpose {} => {
            Evaluated::Units(Vec::new())
        }
        Op::Add {} => elementwise::binary(operands, |a, b| a + b),
        Op::Sub {} => elementwise::binary(operands, |a, b| a - b),
        Op::Mul {} => elementwise::binary(operands, |a, b| a * b),
        Op::Div {} => elementwise::binary(operands, |a, b| a / b),
        Op::Scale { by } => elementwise::unary(&operands[0], |x| x * f64::from(*by)),
        Op::Sqr {} => elementwise::unary(&operands[0], |x| x * x),
        Op::Sqrt {} => elementwise::unary(&operands[0], f64::sqrt),
        Op::Log {} => elementwise::unary(&operands[0], f64::ln),
        Op::Exp {} => elementwise::unary(&operands[0], f64::exp),
        Op::Neg {} => elementwise::unary(&operands[0], |x| -x),
        Op::Abs {} => elementwise::unary(&operands[0], f64::abs),
        Op::Sgn {} => elementwise::unary(&operands[0], elementwise::sgn),
        Op::Step {} => elementwise::unary(&operands[0], |x| if x > 0.0 { 1.0 } else { 0.0 }),
        Op::Clamp { min, max } => elementwise::unary(&operands[0], |x| x.clamp(f64::from(*min), f64::from(*max))),
        Op::Relu {} => elementwise::unary(&operands[0], elementwise::relu),
        Op::LeakyRelu { negative_slope } => {
            elementwise::unary(&operands[0], |x| if x > 0.0 { x } else { f64::from(*negative_slope) * x })
        }
        Op::Elu {} => elementwise::unary(&operands[0], |x| if x > 0.0 { x } else { x.exp_m1() }),
        Op::Sigmoid {} => elementwise::unary(&operands[0], elementwise::sigmoid),
        Op::Tanh {} => elementwise::unary(&operands[0], f64::tanh),
        Op::Silu {} => elementwise::unary(&operands[0], elementwise::silu),
        Op::Gelu {} => elementwise::unary(&operands[0], elementwise::gelu),
        Op::GeluQuick {} => elementwise::unary(&operands[0], elementwise::gelu_quick),
        Op::GeluErf {} => elementwise::unary(&operands[0], elementwise::gelu_erf),
        Op::Hardsigmoid {} => elementwise::unary(&operands[0], elementwise::hardsigmoid),
        Op::Hardswish {} => elementwise::unary(&operands[0], elementwise::hardswish),
        Op::Swiglu {} => elementwise::gated(operands, elementwise::silu),
        Op::Geglu {} => elementwise::gated(operands, elementwise::gelu),
        Op::Reglu {} => elementwise::gated(operands, elementwise::relu),
        Op::RmsNorm { eps } => by_row(&operands[0], |row| reductions::rms_norm(row, f64::from(*eps))),
        Op::SoftMax { scale } => reductions::soft_max(operands, f64::from(*scale)),
        Op::MulMat {} => products::mul_mat(operands, shape),
        Op::GetRows {} => indexing::get_rows(node, operands)?,
        Op::SetRows {} => indexing::set_rows(node, operands)?,
        Op::Cpy {} | Op::Cont {} => movement::copy(&operands[0], node.output.desc.dtype),
        Op::Rope { mode, n_dims, base, freq_scale } => {
            attention::rope(operands, *mode, *n_dims, f64::from(*base), f64::from(*freq_scale))
        }
        Op::Concat { dim } => movement::concat(operands, *dim as usize, shape),
        Op::Pad { left, .. } => movement::pad(&operands[0], *left, shape),
        Op::Roll { shifts } => movement::roll(&operands[0], *shifts),
        Op::Upscale { ne, mode, align_corners } => movement::upscale(&operands[0], *ne, *mode, *align_corners),
        Op::Cast { dtype } => movement::copy(&operands[0], *dtype),
        Op::Arange { start, step, .. } => movement::arange(f64::from(*start), f64::from(*step), shape),
        Op::TimestepEmbedding { dim, max_period } => movement::timestep_embedding(&operands[0], *dim, *max_period),
        Op::Repeat { shape } => movement::repeat(&operands[0], *shape),
        Op::SumRows {} => by_row(&operands[0], |row| vec![row.iter().sum()]),
    })
}

fn by_row(x: &Operand<'_>, f: impl Fn(&[f64]) -> Vec<f64>) -> Evaluated {
    Evaluated::Values(rows(x.desc.shape).flat_map(|at| f(&x.row(at))).collect())
}

/// The row of a repeated operand that stands at a row of the whole.
fn repeated(at: [u64; 3], shape: Shape) -> [u64; 3] {
    std::array::from_fn(|axis| at[axis] % shape.0[axis + 1].max(1))
}
