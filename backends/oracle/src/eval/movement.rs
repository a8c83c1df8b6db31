//! Copies and repetition.

use entensor_components::{DType, Shape};

use super::repeated;
use crate::access::{Evaluated, Operand, index, rows};

pub(super) fn copy(x: &Operand<'_>, dtype: DType) -> Evaluated {
    if x.desc.dtype == dtype {
        Evaluated::Units(rows(x.desc.shape).flat_map(|at| x.row_units(at)).collect())
    } else {
        Evaluated::Values(x.values())
    }
}

pub(super) fn repeat(x: &Operand<'_>, shape: Shape) -> Evaluated {
    let mut out = Vec::new();
    if !shape.is_empty() {
        let times = index(shape.0[0] / x.desc.shape.0[0].max(1));
        for at in rows(shape) {
            out.extend(x.row_units(repeated(at, x.desc.shape)).repeat(times));
        }
    }
    Evaluated::Units(out)
}
