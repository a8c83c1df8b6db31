//! What the backend runs: the op table's rules, on every layout whose block rows are packed.

use entensor_components::{OpDesc, OpKind, Support, TensorDesc};

/// Whether a row is whole blocks in one piece, as every block codec needs it.
fn blocks_are_packed(desc: &TensorDesc) -> bool {
    let one_block = desc.shape.0[0] <= desc.dtype.block_elements();
    !desc.dtype.is_block() || desc.dtype.row_bytes(desc.shape.0[0]).is_some() && (desc.is_row_packed() || one_block)
}

/// Whether the backend can run an op.
pub(crate) fn support(op: &OpDesc<'_>) -> Support {
    match op.op.kind() {
        OpKind::None | OpKind::View | OpKind::Reshape | OpKind::Permute | OpKind::Transpose => {
            return Support::no("leaves and view ops launch nothing");
        }
        OpKind::MulMat | OpKind::MulMatId | OpKind::FlashAttnExt if !op.output.is_packed() => {
            return Support::no("a result that is not packed");
        }
        OpKind::Add
        | OpKind::Mul
        | OpKind::Scale
        | OpKind::Relu
        | OpKind::Silu
        | OpKind::Swiglu
        | OpKind::RmsNorm
        | OpKind::SoftMax
        | OpKind::MulMat
        | OpKind::MulMatId
        | OpKind::AddId
        | OpKind::FlashAttnExt
        | OpKind::Lstm
        | OpKind::Gru
        | OpKind::GetRows
        | OpKind::SetRows
        | OpKind::Cpy
        | OpKind::Cont
        | OpKind::Rope
        | OpKind::Repeat
        | OpKind::SumRows => {}
    }
    if !op.operands.iter().chain([&op.output]).all(blocks_are_packed) {
        return Support::no("rows that are not whole blocks in one piece");
    }
    match op.op.result(op.operands) {
        Err(error) => Support::no(error.to_string()),
        Ok(result) if (result.desc.dtype, result.desc.shape) != (op.output.dtype, op.output.shape) => {
            Support::no(format!("the result is {}, not {}", result.desc, op.output))
        }
        Ok(_) => Support::Yes,
    }
}
