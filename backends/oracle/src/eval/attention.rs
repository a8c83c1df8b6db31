//! What attention layers need beside products.

use entensor_components::RopeMode;

use crate::access::{Evaluated, Operand, index, rows};

pub(super) fn rope(operands: &[Operand<'_>], mode: RopeMode, n_dims: u32, base: f64, freq_scale: f64) -> Evaluated {
    let x = &operands[0];
    let positions = operands[1].integers();
    let factors = operands.get(2).map(Operand::values);
    let width = index(x.desc.shape.0[0]);
    let rotated = if n_dims == 0 { width } else { n_dims as usize };
    let mut out = Vec::new();
    for at in rows(x.desc.shape) {
        let mut row = x.row(at);
        let position = positions[index(at[1])] as f64;
        for i in 0..rotated / 2 {
            let factor = factors.as_ref().map_or(1.0, |f| f[i]);
            let angle = position * freq_scale * base.powf(-2.0 * i as f64 / rotated as f64) / factor;
            let (first, second) = match mode {
                RopeMode::Normal => (2 * i, 2 * i + 1),
                RopeMode::Neox => (i, i + rotated / 2),
            };
            let (a, b) = (row[first], row[second]);
            row[first] = a * angle.cos() - b * angle.sin();
            row[second] = a * angle.sin() + b * angle.cos();
        }
        out.extend(row);
    }
    Evaluated::Values(out)
}
