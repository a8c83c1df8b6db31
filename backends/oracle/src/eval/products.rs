//! Matrix products.

use entensor_components::{BackendError, NodeDesc, Shape};

use super::indexing::checked_ids;
use crate::access::{Evaluated, Operand, rows};

/// Outer axes of the weights are repeated in groups, as grouped-query attention needs it: with twice as many planes of `x`,
/// planes 0 and 1 of `x` meet plane 0 of the weights.
pub(super) fn mul_mat(operands: &[Operand<'_>], shape: Shape) -> Evaluated {
    let (weights, x) = (&operands[0], &operands[1]);
    let group = |axis: usize| x.desc.shape.0[axis] / weights.desc.shape.0[axis].max(1);
    let mut out = Vec::new();
    let mut plane = (None, Vec::new());
    for [j, i2, i3] in rows(Shape([0, shape.0[1], shape.0[2], shape.0[3]])) {
        let of = [i2 / group(2).max(1), i3 / group(3).max(1)];
        if plane.0 != Some(of) {
            plane = (Some(of), (0..shape.0[0]).map(|i| weights.row([i, of[0], of[1]])).collect());
        }
        let row = x.row([j, i2, i3]);
        out.extend(plane.1.iter().map(|w: &Vec<f64>| w.iter().zip(&row).map(|(w, x)| w * x).sum::<f64>()));
    }
    Evaluated::Values(out)
}

/// Row (slot, token) of the result: the rows of the plane that its id names, with the token's row of `x`.
pub(super) fn mul_mat_id(node: &NodeDesc, operands: &[Operand<'_>]) -> Result<Evaluated, BackendError> {
    let (experts, x, ids) = (&operands[0], &operands[1], &operands[2]);
    let checked = checked_ids(node, ids, experts.desc.shape.0[2])?;
    let [m, ..] = node.output.desc.shape.0;
    let mut out = Vec::new();
    for ([slot, token, _], &expert) in rows(node.output.desc.shape).zip(&checked) {
        let row = x.row([slot % x.desc.shape.0[1], token, 0]);
        out.extend((0..m).map(|i| experts.row([i, expert, 0]).iter().zip(&row).map(|(w, x)| w * x).sum::<f64>()));
    }
    Ok(Evaluated::Values(out))
}
