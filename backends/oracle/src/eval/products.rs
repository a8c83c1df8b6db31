//! Matrix products.

use entensor_components::Shape;

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
