//! Tensors without elements cost nothing, whatever their other axes and strides say.

use std::sync::Arc;

use entensor_components::{
    Backend, BackendError, DType, MemorySlot, NodeDesc, Op, Shape, SplitDesc, Strides, TensorDesc, TensorRef, Usage,
};
use entensor_oracle::OracleBackend;

fn run(op: Op, operand: TensorDesc) -> Result<(), BackendError> {
    let output = op.result(&[operand]).expect("legal").desc;
    let tensor = |desc| TensorRef { desc, memory: MemorySlot(0), offset_bytes: 0 };
    let node = NodeDesc { name: Arc::from("node"), op, output: tensor(output), operands: vec![tensor(operand)] };
    let oracle = OracleBackend::new("oracle");
    let memory = oracle.memory(oracle.create_buffer(64, Usage::Any)?)?;
    let prepared = oracle.prepare(&SplitDesc { nodes: vec![node], memory_slots: 1 })?;
    prepared.submit(std::slice::from_ref(&memory)).map(|_| ())
}

#[test]
fn empty_tensors_of_any_shape_return_at_once() {
    let many_rows = TensorDesc::packed(DType::F32, Shape([0, 1 << 60, 1, 1])).expect("no bytes");
    for op in [Op::Neg {}, Op::RmsNorm { eps: 1e-5 }, Op::Cont {}] {
        run(op, many_rows).expect("nothing to do");
    }
}

#[test]
fn strides_of_empty_tensors_are_not_looked_at() {
    let shape = Shape([0, 8, 1, 1]);
    let odd = TensorDesc { dtype: DType::F32, shape, strides: Strides([4, 1 << 62, 0, 0]) };
    for op in [Op::SumRows {}, Op::Neg {}] {
        run(op, odd).expect("nothing to read");
    }
}
