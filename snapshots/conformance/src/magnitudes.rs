//! How exact sums can be: what the op makes of the operands' magnitudes, times what a rounding may lose.

use std::sync::Arc;

use entensor_components::{
    Backend, Content, DType, MemorySlot, NodeDesc, SplitDesc, TensorDesc, TensorRef, Tolerance, Usage,
};
use entensor_oracle::OracleBackend;

use crate::{Case, compare::values, image::Image};

/// Activations share the scale of their rounding in blocks of this many.
const ACTIVATION_BLOCK: usize = 32;

/// For each element of the result: `1e-5` of the same sum over magnitudes, and where activations may be rounded to
/// 8 bits (operand 1 beside block weights) half a step of each block of them as well.
pub(super) fn bounds(oracle: &OracleBackend, case: &Case, image: &Image) -> Vec<f64> {
    let magnitudes: Vec<Vec<f64>> = image
        .operands
        .iter()
        .map(|operand| values(operand, &image.bytes).into_iter().map(magnitude).collect())
        .collect();
    let sums = evaluate(oracle, case, image, &magnitudes);
    let rounds = case.op.row().tolerance == Tolerance::QuantizedProduct && case.operands[0].desc.dtype.is_block();
    if !rounds {
        return sums.into_iter().map(|sum| 1e-5 * sum + 1e-30).collect();
    }
    let mut steps = magnitudes;
    for row in steps[1].chunks_mut(usize::try_from(case.operands[1].desc.shape.0[0]).expect("small").max(1)) {
        for block in row.chunks_mut(ACTIVATION_BLOCK) {
            block.fill(block.iter().fold(0.0_f64, |most, &v| most.max(v)) / 254.0);
        }
    }
    let rounding = evaluate(oracle, case, image, &steps);
    sums.into_iter().zip(rounding).map(|(sum, rounding)| 1e-5 * sum + 1.001 * rounding + 1e-30).collect()
}

fn magnitude(v: f64) -> f64 {
    if v.is_finite() { v.abs() } else { 0.0 }
}

/// What the op makes of packed f32 operands with these values; operands that are no data stay as they are.
fn evaluate(oracle: &OracleBackend, case: &Case, image: &Image, data: &[Vec<f64>]) -> Vec<f64> {
    let mut bytes = image.bytes.clone();
    let mut place = |desc: TensorDesc, contents: &[u8]| {
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        let offset_bytes = bytes.len() as u64;
        bytes.extend_from_slice(contents);
        TensorRef { desc, memory: MemorySlot(0), offset_bytes }
    };
    let operands: Vec<TensorRef> = image
        .operands
        .iter()
        .zip(case.op.row().operands)
        .zip(data)
        .map(|((operand, row), values)| {
            if row.content != Content::Data {
                return *operand;
            }
            let desc = TensorDesc::packed(DType::F32, operand.desc.shape).expect("cases are small");
            // Rounding to f32 is far below what the bound allows.
            let contents: Vec<u8> = values.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect();
            place(desc, &contents)
        })
        .collect();
    let descs: Vec<TensorDesc> = operands.iter().map(|o| o.desc).collect();
    let result = case.op.result(&descs).expect("sums take f32").desc;
    let output = place(result, &vec![0; usize::try_from(result.size_bytes()).expect("small")]);
    let node = NodeDesc { name: Arc::from("magnitudes"), op: case.op.clone(), output, operands };
    let run = || {
        let prepared = oracle.prepare(&SplitDesc { nodes: vec![node], memory_slots: 1 })?;
        let key = oracle.create_buffer(bytes.len() as u64, Usage::Compute)?;
        let memory = oracle.memory(key)?;
        oracle.write(&memory, 0, &bytes)?;
        prepared.submit(std::slice::from_ref(&memory))?;
        oracle.read(&memory, 0, &mut bytes)?;
        oracle.destroy_buffer(key)
    };
    run().expect("the oracle runs what it ran before");
    values(&output, &bytes)
}
