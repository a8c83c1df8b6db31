//! What every op means: one line an op here, the loops in one file a family, on decoded operands in linear order.

mod attention;
mod elementwise;
mod indexing;
mod movement;
mod products;
mod recurrent;
mod reductions;
mod spatial;

use entensor_components::{BackendError, NodeDesc, Op, Shape, TensorDesc};

use crate::access::{Evaluated, Operand, rows};

/// Evaluates a node. The op table's rules hold for it.
pub(crate) fn node(node: &NodeDesc, operands: &[Operand<'_>]) -> Result<Evaluated, BackendError> {
    let shape = node.output.desc.shape;
    let descs: Vec<TensorDesc> = operands.iter().map(|operand| operand.desc).collect();
    let mut contents = node.op.row().operands.iter().map(|row| row.content);
    if shape.is_empty() && !contents.any(|content| content.indexed(&descs).is_some()) {
        // Nothing to compute, of however many empty rows; but ids are looked at.
        return Ok(Evaluated::Values(Vec::new()));
    }
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
        Op::Log {} => elementwise::unary(&operands[0], libm::log),
        Op::Exp {} => elementwise::unary(&operands[0], libm::exp),
        Op::Neg {} => elementwise::unary(&operands[0], |x| -x),
        Op::Abs {} => elementwise::unary(&operands[0], f64::abs),
        Op::Sgn {} => elementwise::unary(&operands[0], elementwise::sgn),
        Op::Step {} => elementwise::unary(&operands[0], |x| if x > 0.0 { 1.0 } else { 0.0 }),
        Op::Clamp { min, max } => elementwise::unary(&operands[0], |x| x.clamp(f64::from(*min), f64::from(*max))),
        Op::Relu {} => elementwise::unary(&operands[0], elementwise::relu),
        Op::LeakyRelu { negative_slope } => {
            elementwise::unary(&operands[0], |x| if x > 0.0 { x } else { f64::from(*negative_slope) * x })
        }
        Op::Elu {} => elementwise::unary(&operands[0], |x| if x > 0.0 { x } else { libm::expm1(x) }),
        Op::Sigmoid {} => elementwise::unary(&operands[0], elementwise::sigmoid),
        Op::Tanh {} => elementwise::unary(&operands[0], libm::tanh),
        Op::Silu {} => elementwise::unary(&operands[0], elementwise::silu),
        Op::Gelu {} => elementwise::unary(&operands[0], elementwise::gelu),
        Op::GeluQuick {} => elementwise::unary(&operands[0], elementwise::gelu_quick),
        Op::GeluErf {} => elementwise::unary(&operands[0], elementwise::gelu_erf),
        Op::Hardsigmoid {} => elementwise::unary(&operands[0], elementwise::hardsigmoid),
        Op::Hardswish {} => elementwise::unary(&operands[0], elementwise::hardswish),
        Op::Softplus {} => elementwise::unary(&operands[0], |x| x.max(0.0) + libm::log1p(libm::exp(-x.abs()))),
        Op::Swiglu {} => elementwise::gated(operands, elementwise::silu),
        Op::Geglu {} => elementwise::gated(operands, elementwise::gelu),
        Op::Reglu {} => elementwise::gated(operands, elementwise::relu),
        Op::RmsNorm { eps } => by_row(&operands[0], |row| reductions::rms_norm(row, f64::from(*eps))),
        Op::Norm { eps } => by_row(&operands[0], |row| reductions::norm(row, f64::from(*eps))),
        Op::GroupNorm { n_groups, eps } => reductions::group_norm(&operands[0], u64::from(*n_groups), f64::from(*eps)),
        Op::L2Norm { eps } => by_row(&operands[0], |row| reductions::l2_norm(row, f64::from(*eps))),
        Op::SoftMax { scale, max_bias } => reductions::soft_max(operands, f64::from(*scale), f64::from(*max_bias)),
        Op::DiagMaskInf { n_past } => reductions::diag_mask_inf(&operands[0], u64::from(*n_past)),
        Op::Argmax {} => by_row(&operands[0], reductions::argmax),
        Op::Argsort { order } => by_row(&operands[0], |row| reductions::argsort(row, *order)),
        Op::TopK { k } => by_row(&operands[0], |row| reductions::top_k(row, *k as usize)),
        Op::Sum {} => Evaluated::Values(vec![operands[0].values().iter().fold(0.0, |sum, x| sum + x)]),
        Op::MulMat {} => products::mul_mat(operands, shape),
        Op::MulMatId {} => products::mul_mat_id(node, operands)?,
        Op::AddId {} => indexing::add_id(node, operands)?,
        Op::GetRows {} => indexing::get_rows(node, operands)?,
        Op::SetRows {} => indexing::set_rows(node, operands)?,
        Op::Cpy {} | Op::Cont {} => movement::copy(&operands[0], node.output.desc.dtype),
        Op::Rope { .. } => attention::rope(&node.op, operands),
        Op::FlashAttnExt { .. } => attention::flash_attn_ext(&node.op, operands, shape),
        Op::Lstm {} => recurrent::lstm(operands),
        Op::Gru {} => recurrent::gru(operands),
        Op::Concat { dim } => movement::concat(operands, *dim as usize, shape),
        Op::Pad { left, .. } => movement::pad(&operands[0], *left, shape),
        Op::Roll { shifts } => movement::roll(&operands[0], *shifts),
        Op::Upscale { ne, mode, align_corners } => movement::upscale(&operands[0], *ne, *mode, *align_corners),
        Op::Cast { dtype } => movement::copy(&operands[0], *dtype),
        Op::Arange { start, step, .. } => movement::arange(f64::from(*start), f64::from(*step), shape),
        Op::TimestepEmbedding { dim, max_period } => movement::timestep_embedding(&operands[0], *dim, *max_period),
        Op::Repeat { shape } => movement::repeat(&operands[0], *shape),
        Op::SumRows {} => by_row(&operands[0], |row| vec![row.iter().sum()]),
        Op::Mean {} => by_row(&operands[0], |row| vec![row.iter().sum::<f64>() / row.len() as f64]),
        Op::Cumsum {} => by_row(&operands[0], reductions::cumsum),
        op @ Op::Im2col { .. } => spatial::im2col(op, operands, shape),
        op @ (Op::Conv1d { .. }
        | Op::Conv2d { .. }
        | Op::Conv2dDw { .. }
        | Op::ConvTranspose1d { .. }
        | Op::ConvTranspose2d { .. }) => spatial::conv(op, operands, shape),
        Op::Pool1d { op, k0, s0, p0 } => spatial::pool(&operands[0], shape, *op, [*k0, 1], [*s0, 1], [*p0, 0]),
        Op::Pool2d { op, k0, k1, s0, s1, p0, p1 } => {
            spatial::pool(&operands[0], shape, *op, [*k0, *k1], [*s0, *s1], [*p0, *p1])
        }
    })
}

fn by_row(x: &Operand<'_>, f: impl Fn(&[f64]) -> Vec<f64>) -> Evaluated {
    Evaluated::Values(rows(x.desc.shape).flat_map(|at| f(&x.row(at))).collect())
}

/// The row of a repeated operand that stands at a row of the whole.
fn repeated(at: [u64; 3], shape: Shape) -> [u64; 3] {
    std::array::from_fn(|axis| at[axis] % shape.0[axis + 1].max(1))
}
