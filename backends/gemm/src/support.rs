//! What the backend runs: products of enough columns, in every layout that `gemm` takes strides for.

use entensor_components::{OpDesc, OpKind, Support, TensorDesc};

/// Whether the backend can run an op.
pub(crate) fn support(op: &OpDesc<'_>, min_columns: u64) -> Support {
    match op.op.kind() {
        OpKind::MulMat => mul_mat(op, min_columns),
        OpKind::None | OpKind::View | OpKind::Reshape | OpKind::Permute | OpKind::Transpose => {
            Support::no("leaves and view ops launch nothing")
        }
        OpKind::MulMatId => Support::no("products with planes that ids choose"),
        OpKind::FlashAttnExt
        | OpKind::Im2col
        | OpKind::Conv1d
        | OpKind::Conv2d
        | OpKind::Conv2dDw
        | OpKind::ConvTranspose1d
        | OpKind::ConvTranspose2d
        | OpKind::Lstm
        | OpKind::Gru
        | OpKind::Rope
        | OpKind::Add
        | OpKind::Sub
        | OpKind::Mul
        | OpKind::Div
        | OpKind::Scale
        | OpKind::Sqr
        | OpKind::Sqrt
        | OpKind::Log
        | OpKind::Exp
        | OpKind::Neg
        | OpKind::Abs
        | OpKind::Sgn
        | OpKind::Step
        | OpKind::Clamp
        | OpKind::Relu
        | OpKind::LeakyRelu
        | OpKind::Elu
        | OpKind::Sigmoid
        | OpKind::Tanh
        | OpKind::Silu
        | OpKind::Gelu
        | OpKind::GeluQuick
        | OpKind::GeluErf
        | OpKind::Hardsigmoid
        | OpKind::Hardswish
        | OpKind::Softplus
        | OpKind::Swiglu
        | OpKind::Geglu
        | OpKind::Reglu
        | OpKind::GetRows
        | OpKind::SetRows
        | OpKind::AddId
        | OpKind::Cpy
        | OpKind::Cont
        | OpKind::Repeat
        | OpKind::Concat
        | OpKind::Pad
        | OpKind::Roll
        | OpKind::Upscale
        | OpKind::Cast
        | OpKind::Arange
        | OpKind::TimestepEmbedding
        | OpKind::RmsNorm
        | OpKind::Norm
        | OpKind::GroupNorm
        | OpKind::L2Norm
        | OpKind::SoftMax
        | OpKind::DiagMaskInf
        | OpKind::Argmax
        | OpKind::Argsort
        | OpKind::TopK
        | OpKind::Sum
        | OpKind::SumRows
        | OpKind::Mean
        | OpKind::Cumsum
        | OpKind::Pool1d
        | OpKind::Pool2d => Support::no("it multiplies matrices and nothing else"),
    }
}

fn mul_mat(op: &OpDesc<'_>, min_columns: u64) -> Support {
    match op.op.result(op.operands) {
        Err(error) => return Support::no(error.to_string()),
        Ok(result) if (result.desc.dtype, result.desc.shape) != (op.output.dtype, op.output.shape) => {
            return Support::no(format!("the result is {}, not {}", result.desc, op.output));
        }
        Ok(_) => {}
    }
    if !op.output.is_packed() {
        return Support::no("a result that is not packed");
    }
    if !op.operands.iter().all(blocks_are_packed) {
        return Support::no("rows that are not whole blocks in one piece");
    }
    if !op.operands.iter().all(strides_are_elements) {
        return Support::no("strides that are no whole number of elements");
    }
    let columns = op.output.shape.0[1];
    if columns < min_columns {
        let unit = if columns == 1 { "column" } else { "columns" };
        return Support::no(format!("{columns} {unit}, fewer than {min_columns}"));
    }
    Support::Yes
}

/// Whether a row is whole blocks in one piece, as every block codec needs it.
fn blocks_are_packed(desc: &TensorDesc) -> bool {
    let one_block = desc.shape.0[0] <= desc.dtype.block_elements();
    !desc.dtype.is_block() || desc.is_row_packed() || one_block
}

/// `gemm` counts in elements. A stride that is never taken can be anything.
fn strides_are_elements(desc: &TensorDesc) -> bool {
    let axes = desc.shape.0.iter().zip(desc.strides.0);
    let mut taken = axes.filter(|(length, _)| **length > 1).map(|(_, stride)| stride);
    desc.dtype.is_block()
        || desc.shape.is_empty()
        || taken.all(|stride| stride.is_multiple_of(desc.dtype.block_bytes()))
}

#[cfg(test)]
mod tests {
    use entensor_components::{DType, OPS, Op, Shape, Strides};

    use super::*;

    fn reason(weights: TensorDesc, x: TensorDesc) -> String {
        let operands = [weights, x];
        let output = Op::MulMat {}.result(&operands).expect("a product").desc;
        match support(&OpDesc { op: &Op::MulMat {}, output, operands: &operands }, 32) {
            Support::Yes => "yes".into(),
            Support::No(reason) => reason.into_owned(),
        }
    }

    #[test]
    fn refusals_say_why() {
        let packed = |dtype, shape| TensorDesc::packed(dtype, Shape(shape)).expect("valid");
        let weights = packed(DType::Q8_0, [64, 5, 1, 1]);
        let x = |columns| packed(DType::F32, [64, columns, 1, 1]);
        assert_eq!(reason(weights, x(32)), "yes");
        assert_eq!(reason(weights, x(31)), "31 columns, fewer than 32");
        assert_eq!(reason(weights, x(1)), "1 column, fewer than 32");
        let odd = TensorDesc { strides: Strides([4, 258, 0, 0]), ..x(32) };
        assert_eq!(reason(weights, odd), "strides that are no whole number of elements");
        let torn = TensorDesc { strides: Strides([68, 136, 0, 0]), ..weights };
        assert_eq!(reason(torn, x(32)), "rows that are not whole blocks in one piece");
        let far = TensorDesc { strides: Strides([4, 1024, 3, 5]), ..x(32) };
        assert_eq!(reason(weights, far), "yes", "axes of length 1 take no step");
    }

    #[test]
    fn every_other_op_is_refused() {
        for row in OPS.iter().filter(|row| row.kind != OpKind::MulMat) {
            let op = row.kind.default_op();
            let output = TensorDesc::packed(DType::F32, Shape([64, 64, 1, 1])).expect("valid");
            let answer = support(&OpDesc { op: &op, output, operands: &[output, output] }, 0);
            assert!(matches!(answer, Support::No(reason) if !reason.is_empty()), "{}", row.name);
        }
    }
}
