//! What the backend runs: the op table's rules, on every layout whose block rows are packed.

use entensor_components::{OpDesc, OpKind, Support, TensorDesc};

use crate::memory::layout::is_repacked;

/// Whether a row is whole blocks in one piece, as every block codec needs it.
fn blocks_are_packed(desc: &TensorDesc) -> bool {
    let one_block = desc.shape.0[0] <= desc.dtype.block_elements();
    !desc.dtype.is_block() || desc.dtype.row_bytes(desc.shape.0[0]).is_some() && (desc.is_row_packed() || one_block)
}

/// Whether the backend can run an op. Lowering answers for every op of the table, so only layouts are refused here.
pub(crate) fn support(op: &OpDesc<'_>) -> Support {
    if !op.op.row().computes() {
        return Support::no("leaves and view ops launch nothing");
    }
    let needs_packed_result = matches!(
        op.op.kind(),
        OpKind::MulMat
            | OpKind::MulMatId
            | OpKind::FlashAttnExt
            | OpKind::Im2col
            | OpKind::Conv1d
            | OpKind::Conv2d
            | OpKind::ConvTranspose1d
            | OpKind::ConvTranspose2d
    );
    if needs_packed_result && !op.output.is_packed() {
        return Support::no("a result that is not packed");
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

/// Whether an op reads an operand in the private layout of repacked weights: products do with their weights.
pub(crate) fn reads_repacked(op: OpKind, operand: usize, desc: &TensorDesc) -> bool {
    operand == 0 && matches!(op, OpKind::MulMat | OpKind::MulMatId) && is_repacked(desc.dtype) && desc.is_packed()
}
