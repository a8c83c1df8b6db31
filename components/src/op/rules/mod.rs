//! Dtype and shape rules: what each op makes of its operands, or why it cannot. One file a family, as in the table.

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
    op::{Op, OpError, OpResult},
    shape::{Shape, TensorDesc},
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

type Rule = Result<OpResult, OpError>;

fn refuse(op: &Op, rule: &'static str, operands: &[TensorDesc]) -> Rule {
    Err(op.row().shape_error(rule, operands))
}

/// A parameter out of range.
fn refuse_param(op: &Op, param: &'static str, rule: &'static str) -> Rule {
    Err(OpError::Param { op: op.row().name, param, rule })
}

/// The largest ALiBi bias: from here on the smallest slope would be no normal f32, and a slope of 0 would lose the
/// mask's infinities.
const MAX_BIAS: f32 = 126.0;

/// Whether a mask's outer axes divide those of what it masks; of no matter where the result is empty.
fn mask_planes_fit(mask: Shape, masked: Shape, empty: bool) -> bool {
    empty || (2..4).all(|axis| mask.0[axis] != 0 && masked.0[axis].is_multiple_of(mask.0[axis]))
}

fn repeats(small: u64, large: u64) -> bool {
    if small == 0 { large == 0 } else { large.is_multiple_of(small) }
}

/// Leaves have no operands and no rule; their description is given, not derived.
pub(super) fn leaf(op: &Op, operands: &[TensorDesc]) -> Rule {
    refuse(op, "a leaf's dtype and shape are declared, not derived", operands)
}
