//! What every op means, one function a family, on decoded operands in linear order.

use std::sync::Arc;

use entensor_components::{BackendError, DType, NodeDesc, Op, RopeMode, Shape};

use crate::access::{Evaluated, Operand, RowValues, index, rows};

/// Evaluates a node. The op table's rules hold for it.
pub(crate) fn node(node: &NodeDesc, operands: &[Operand<'_>]) -> Result<Evaluated, BackendError> {
    let shape = node.output.desc.shape;
    Ok(match &node.op {
        // Refused when the split is prepared.
        Op::None {} | Op::View { .. } | Op::Reshape { .. } | Op::Permute { .. } | Op::Transpose {} => {
            Evaluated::Units(Vec::new())
        }
        Op::Add {} => binary(operands, |a, b| a + b),
        Op::Mul {} => binary(operands, |a, b| a * b),
        Op::Scale { by } => unary(&operands[0], |x| x * f64::from(*by)),
        Op::Relu {} => unary(&operands[0], |x| if x > 0.0 { x } else { 0.0 }),
        Op::Silu {} => unary(&operands[0], silu),
        Op::Swiglu {} => swiglu(operands),
        Op::RmsNorm { eps } => by_row(&operands[0], |row| rms_norm(row, f64::from(*eps))),
        Op::SoftMax { scale } => soft_max(operands, f64::from(*scale)),
        Op::MulMat {} => mul_mat(operands, shape),
        Op::GetRows {} => get_rows(node, operands)?,
        Op::SetRows {} => set_rows(node, operands)?,
        Op::Cpy {} | Op::Cont {} => copy(&operands[0], node.output.desc.dtype),
        Op::Rope { mode, n_dims, base, freq_scale } => {
            rope(operands, *mode, *n_dims, f64::from(*base), f64::from(*freq_scale))
        }
        Op::Repeat { shape } => repeat(&operands[0], *shape),
        Op::SumRows {} => by_row(&operands[0], |row| vec![row.iter().sum()]),
    })
}

fn unary(x: &Operand<'_>, f: impl Fn(f64) -> f64) -> Evaluated {
    Evaluated::Values(x.values().into_iter().map(f).collect())
}

fn by_row(x: &Operand<'_>, f: impl Fn(&[f64]) -> Vec<f64>) -> Evaluated {
    Evaluated::Values(rows(x.desc.shape).flat_map(|at| f(&x.row(at))).collect())
}

/// The row of a repeated operand that stands at a row of the whole.
fn repeated(at: [u64; 3], shape: Shape) -> [u64; 3] {
    std::array::from_fn(|axis| at[axis] % shape.0[axis + 1].max(1))
}

fn binary(operands: &[Operand<'_>], f: impl Fn(f64, f64) -> f64) -> Evaluated {
    let (a, b) = (&operands[0], &operands[1]);
    let mut out = Vec::new();
    if !a.desc.shape.is_empty() {
        for at in rows(a.desc.shape) {
            let second = b.row(repeated(at, b.desc.shape));
            out.extend(a.row(at).iter().zip(second.iter().cycle()).map(|(&a, &b)| f(a, b)));
        }
    }
    Evaluated::Values(out)
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn swiglu(operands: &[Operand<'_>]) -> Evaluated {
    let gated = |gate: &[f64], value: &[f64]| -> Vec<f64> {
        gate.iter().zip(value).map(|(&gate, &value)| silu(gate) * value).collect()
    };
    match operands.get(1) {
        Some(value) => Evaluated::Values(
            rows(value.desc.shape).flat_map(|at| gated(&operands[0].row(at), &value.row(at))).collect(),
        ),
        None => by_row(&operands[0], |row| {
            let (gate, value) = row.split_at(row.len() / 2);
            gated(gate, value)
        }),
    }
}

fn rms_norm(row: &[f64], eps: f64) -> Vec<f64> {
    let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    row.iter().map(|x| x * scale).collect()
}

fn soft_max(operands: &[Operand<'_>], scale: f64) -> Evaluated {
    let x = &operands[0];
    let mut out = Vec::new();
    for at in rows(x.desc.shape) {
        let mut row: Vec<f64> = x.row(at).iter().map(|v| v * scale).collect();
        if let Some(mask) = operands.get(1) {
            let planes = mask.desc.shape.0;
            let mask = mask.row([at[0], at[1] % planes[2].max(1), at[2] % planes[3].max(1)]);
            row.iter_mut().zip(mask).for_each(|(x, m)| *x += m);
        }
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if max == f64::NEG_INFINITY && !row.iter().any(|x| x.is_nan()) {
            row.fill(0.0);
        } else {
            row.iter_mut().for_each(|x| *x = (*x - max).exp());
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|x| *x /= sum);
        }
        out.extend(row);
    }
    Evaluated::Values(out)
}

/// Outer axes of the weights are repeated in groups, as grouped-query attention needs it: with twice as many planes of `x`,
/// planes 0 and 1 of `x` meet plane 0 of the weights.
fn mul_mat(operands: &[Operand<'_>], shape: Shape) -> Evaluated {
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

/// Every id, checked against the number of rows.
fn checked_ids(node: &NodeDesc, ids: &Operand<'_>, rows: u64) -> Result<Vec<u64>, BackendError> {
    let checked = |(position, &id): (usize, &i64)| {
        u64::try_from(id).ok().filter(|&id| id < rows).ok_or_else(|| BackendError::IndexOutOfRange {
            node: Arc::clone(&node.name),
            position: position as u64,
            value: id,
            rows,
        })
    };
    ids.integers().iter().enumerate().map(checked).collect()
}

/// Linear position of an id.
fn position(ids: Shape, at: [u64; 3]) -> usize {
    index(at[0] + ids.0[0] * (at[1] % ids.0[1].max(1) + ids.0[1] * (at[2] % ids.0[2].max(1))))
}

fn get_rows(node: &NodeDesc, operands: &[Operand<'_>]) -> Result<Evaluated, BackendError> {
    let (table, ids) = (&operands[0], &operands[1]);
    let checked = checked_ids(node, ids, table.desc.shape.0[1])?;
    let output = node.output.desc;
    let from = |at: [u64; 3]| [checked[position(ids.desc.shape, at)], at[1], at[2]];
    Ok(if table.desc.dtype == output.dtype {
        Evaluated::Units(rows(output.shape).flat_map(|at| table.row_units(from(at))).collect())
    } else {
        Evaluated::Values(rows(output.shape).flat_map(|at| table.row(from(at))).collect())
    })
}

fn set_rows(node: &NodeDesc, operands: &[Operand<'_>]) -> Result<Evaluated, BackendError> {
    let (target, source, ids) = (&operands[0], &operands[1], &operands[2]);
    let checked = checked_ids(node, ids, target.desc.shape.0[1])?;
    let written = rows(source.desc.shape)
        .map(|at| RowValues { at: [checked[position(ids.desc.shape, at)], at[1], at[2]], values: source.row(at) });
    Ok(Evaluated::Rows(written.collect()))
}

fn copy(x: &Operand<'_>, dtype: DType) -> Evaluated {
    if x.desc.dtype == dtype {
        Evaluated::Units(rows(x.desc.shape).flat_map(|at| x.row_units(at)).collect())
    } else {
        Evaluated::Values(x.values())
    }
}

fn rope(operands: &[Operand<'_>], mode: RopeMode, n_dims: u32, base: f64, freq_scale: f64) -> Evaluated {
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

fn repeat(x: &Operand<'_>, shape: Shape) -> Evaluated {
    let mut out = Vec::new();
    if !shape.is_empty() {
        let times = index(shape.0[0] / x.desc.shape.0[0].max(1));
        for at in rows(shape) {
            out.extend(x.row_units(repeated(at, x.desc.shape)).repeat(times));
        }
    }
    Evaluated::Units(out)
}
