//! The op table. A row here (in its family's file), its rule and samples, an oracle line and a line in each backend make
//! an op; everything else is derived: the enum, the text form, the builder's constructor, test and bench cases.
//!
//! A row reads `name Kind(operands) { parameters } => TEMPLATE { what differs from the template }`. An operand is
//! `name: One<DTYPES>` or `name: Maybe<DTYPES>` (it may be left out), with what its elements mean after a comma.

#[macro_use]
mod attention;
#[macro_use]
mod elementwise;
#[macro_use]
mod indexing;
#[macro_use]
mod movement;
#[macro_use]
mod products;
#[macro_use]
mod recurrent;
#[macro_use]
mod reductions;
#[macro_use]
mod spatial;
#[macro_use]
mod views;

#[macro_use]
mod declare;

use crate::{
    dtype::{DType, DTypeSet},
    op::{
        OpParam, ParamError, PoolOp, RopeMode, SortOrder, UpscaleMode,
        row::{BatchRule, Content, OpRow, OperandRow, Tolerance},
        rules, samples,
    },
    shape::{MAX_DIMS, Shape, Strides, TensorDesc},
};
use bevy_ecs::prelude::*;

use crate::generation::bump_generation;

const F32: DTypeSet = DTypeSet::of(&[DType::F32]);
/// f32 and integers.
const F32_OR_INTEGER: DTypeSet = DTypeSet::INTEGERS.with(DType::F32);
const FLOATS: DTypeSet = DTypeSet::FLOATS;
const I32: DTypeSet = DTypeSet::of(&[DType::I32]);
/// Row indices.
const IDS: DTypeSet = DTypeSet::INDICES;
/// Everything that stands for real numbers.
const REALS: DTypeSet = DTypeSet::REALS;
/// Plain numbers: floats and integers.
const PLAIN: DTypeSet = DTypeSet::FLOATS.union(DTypeSet::INTEGERS);
const ANY: DTypeSet = DTypeSet::ALL;

/// As many operations as the result has elements.
fn per_element(_: &[TensorDesc], out: &TensorDesc) -> u64 {
    out.shape.elements().unwrap_or(0)
}

/// As many operations as the first operand has elements.
fn per_input(operands: &[TensorDesc], _: &TensorDesc) -> u64 {
    operands[0].shape.elements().unwrap_or(0)
}

/// What rows leave unsaid.
const ROW: OpRow = OpRow {
    kind: OpKind::None,
    name: "",
    operands: &[],
    view: false,
    writes: None,
    anchor: None,
    overwrites: &[],
    batch: BatchRule::Rows,
    result: rules::leaf,
    flops: |_, _| 0,
    tolerance: Tolerance::Exact,
    samples: samples::none,
    bench: samples::none,
    doc: "",
    source: "",
};

/// One operand; the result is like it and may take its memory.
const UNARY: OpRow = OpRow {
    overwrites: &[0],
    result: rules::like_first,
    flops: per_element,
    tolerance: Tolerance::Rounding,
    samples: samples::unary,
    bench: samples::bench_unary,
    ..ROW
};

/// A transcendental function of one operand.
const FUNCTION: OpRow = OpRow { tolerance: Tolerance::Sum, ..UNARY };

/// Two operands, the second repeated over the first.
const BINARY: OpRow = OpRow {
    overwrites: &[0, 1],
    result: rules::broadcast_second,
    flops: per_element,
    tolerance: Tolerance::Rounding,
    samples: samples::binary,
    bench: samples::bench_binary,
    ..ROW
};

/// A function of a gate, times a value: two operands or the halves of one.
const GATED: OpRow = OpRow {
    overwrites: &[0, 1],
    result: rules::gated,
    flops: |_, out| 6 * out.shape.elements().unwrap_or(0),
    tolerance: Tolerance::Sum,
    samples: samples::gated,
    bench: samples::bench_binary,
    ..ROW
};

/// A function of each row, of its shape; the result may take the operand's memory.
const ROWWISE: OpRow = OpRow { flops: |_, out| 4 * out.shape.elements().unwrap_or(0), ..FUNCTION };

/// One value of each row.
const REDUCTION: OpRow = OpRow {
    result: rules::sum_rows,
    flops: per_input,
    tolerance: Tolerance::Linear,
    samples: samples::unary,
    bench: samples::bench_unary,
    ..ROW
};

/// A kernel, which is a weight, and what it moves over.
const CONV: OpRow = OpRow { anchor: Some(0), tolerance: Tolerance::Linear, ..ROW };

/// One value of each window.
const POOL: OpRow = OpRow { flops: per_input, tolerance: Tolerance::Linear, ..ROW };

/// Elements are moved, not changed.
const MOVE: OpRow = OpRow { samples: samples::unary, bench: samples::bench_unary, result: rules::like_first, ..ROW };

/// No computation: the result is memory of the operand.
const VIEW: OpRow = OpRow { view: true, bench: samples::none, ..ROW };

with_ops!(declare_ops);

/// A parameter value behind a reference: what printing and plan keys need.
pub trait ParamValue {
    /// The text form; `None` for an absent optional value.
    fn text(&self) -> Option<String>;
    /// Appends what identifies the value to a plan key.
    fn key(&self, key: &mut Vec<u64>);
}

impl<T: OpParam> ParamValue for T {
    fn text(&self) -> Option<String> {
        OpParam::text(self)
    }

    fn key(&self, key: &mut Vec<u64>) {
        OpParam::key(self, key);
    }
}

impl Op {
    /// Appends the op and its parameters to a plan key.
    pub fn key(&self, key: &mut Vec<u64>) {
        key.push(self.kind() as u64);
        self.visit_params(&mut |_, value| value.key(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_enum_order_and_documented() {
        for (i, row) in OPS.iter().enumerate() {
            assert_eq!(row.kind as usize, i);
            assert_eq!(OpKind::from_name(row.name), Some(row.kind));
            assert!(!row.doc.is_empty() && !row.source.is_empty(), "{}", row.name);
            assert!(row.kind == OpKind::None || !row.test_samples().is_empty(), "{} has no samples", row.name);
            assert!(!row.computes() || !row.bench_samples().is_empty(), "{} has no bench samples", row.name);
        }
    }

    #[test]
    fn samples_obey_the_rules_of_their_row() {
        for row in OPS {
            for sample in row.test_samples().into_iter().chain(row.bench_samples()) {
                assert_eq!(sample.op.kind(), row.kind);
                assert!((row.min_operands()..=row.operands.len()).contains(&sample.operands.len()), "{}", row.name);
            }
        }
    }

    #[test]
    fn params_round_trip_through_text() {
        for row in OPS {
            for sample in row.test_samples() {
                let mut back = row.kind.default_op();
                sample.op.visit_params(&mut |name, value| {
                    if let Some(text) = value.text() {
                        back.set_param(name, &text).expect("printed text parses");
                    }
                });
                assert_eq!(back, sample.op);
            }
        }
    }
}
