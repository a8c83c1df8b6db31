//! Rows by index.

use std::sync::Arc;

use entensor_components::{BackendError, NodeDesc, Shape};

use crate::access::{Contents, Evaluated, Operand, Row, index, rows};

/// Every id, checked against the number of rows.
pub(super) fn checked_ids(node: &NodeDesc, ids: &Operand<'_>, rows: u64) -> Result<Vec<u64>, BackendError> {
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

pub(super) fn get_rows(node: &NodeDesc, operands: &[Operand<'_>]) -> Result<Evaluated, BackendError> {
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

pub(super) fn add_id(node: &NodeDesc, operands: &[Operand<'_>]) -> Result<Evaluated, BackendError> {
    let (a, b, ids) = (&operands[0], &operands[1], &operands[2]);
    let checked = checked_ids(node, ids, b.desc.shape.0[1])?;
    let sums = rows(a.desc.shape).zip(&checked).flat_map(|(at, &id)| {
        let added = b.row([id, 0, 0]);
        a.row(at).into_iter().zip(added).map(|(a, b)| a + b).collect::<Vec<_>>()
    });
    Ok(Evaluated::Values(sums.collect()))
}

pub(super) fn set_rows(node: &NodeDesc, operands: &[Operand<'_>]) -> Result<Evaluated, BackendError> {
    let (target, source, ids) = (&operands[0], &operands[1], &operands[2]);
    let checked = checked_ids(node, ids, target.desc.shape.0[1])?;
    let moves = source.desc.dtype == target.desc.dtype;
    let written = rows(source.desc.shape).map(|at| Row {
        at: [checked[position(ids.desc.shape, at)], at[1], at[2]],
        contents: if moves { Contents::Units(source.row_units(at)) } else { Contents::Values(source.row(at)) },
    });
    Ok(Evaluated::Rows(written.collect()))
}
