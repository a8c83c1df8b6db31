//! Default cases of each op: shapes and parameters that the conformance suite crosses with dtypes and layouts, and the
//! larger ones that are measured. One file a family, as in the table.

mod attention;
mod elementwise;
mod indexing;
mod movement;
mod products;
mod recurrent;
mod reductions;
mod spatial;
mod views;

use crate::{
    op::Op,
    shape::{MAX_DIMS, Shape},
};

pub(super) use attention::*;
pub(super) use elementwise::*;
pub(super) use indexing::*;
pub(super) use movement::*;
pub(super) use products::*;
pub(super) use recurrent::*;
pub(super) use reductions::*;
pub(super) use spatial::*;
pub(super) use views::*;

/// One operand of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleOperand {
    /// Its shape.
    pub shape: Shape,
}

/// One default case: an op with operand shapes. Dtypes and layouts are the suite's to choose.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The op and its parameters.
    pub op: Op,
    /// Its operands.
    pub operands: Vec<SampleOperand>,
}

fn sample(op: Op, shapes: &[[u64; MAX_DIMS]]) -> Sample {
    Sample { op, operands: shapes.iter().map(|&s| SampleOperand { shape: Shape(s) }).collect() }
}

/// Shapes that catch most faults: one, odd, empty, a block, several planes.
const SHAPES: [[u64; MAX_DIMS]; 10] = [
    [1, 1, 1, 1],
    [7, 5, 3, 2],
    [0, 3, 1, 1],
    [31, 2, 1, 1],
    [33, 1, 1, 1],
    [32, 3, 1, 1],
    [64, 5, 2, 3],
    [255, 2, 1, 1],
    [256, 3, 1, 1],
    [257, 1, 2, 1],
];

pub(super) fn none(_: &Op) -> Vec<Sample> {
    Vec::new()
}
