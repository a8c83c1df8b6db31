//! Rows by index, read and written.
#![expect(unsafe_code, reason = "writes the rows of its chunk")]

use super::Grid;
use crate::{
    place::Place,
    simd::Level,
    tensor::{Bases, TILE, Tensor},
};

/// An index outside its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadId {
    /// Linear position in the ids.
    pub(crate) position: usize,
    pub(crate) value: i64,
    /// How many rows there are.
    pub(crate) rows: usize,
}

/// Checks all ids of a node before the node touches memory. One chunk.
#[derive(Debug)]
pub(crate) struct CheckIds {
    pub(crate) ids: Place,
    pub(crate) rows: usize,
}

impl CheckIds {
    pub(crate) fn run(&self, bases: Bases<'_>) -> Result<(), BadId> {
        let ids = bases.tensor(&self.ids);
        let width = self.ids.shape[0];
        for row in 0..self.ids.rows() {
            let at = self.ids.row_at(row);
            for i in 0..width {
                let value = ids.integer([i, at[0], at[1], at[2]]);
                if !usize::try_from(value).is_ok_and(|id| id < self.rows) {
                    return Err(BadId { position: row * width + i, value, rows: self.rows });
                }
            }
        }
        Ok(())
    }
}

/// The id at a place of the (repeated) ids. Ids were checked, but memory that was imported is only promised not to change:
/// a row is left out rather than trusted.
#[inline(always)]
fn id(ids: &Tensor<'_>, at: [usize; 3], rows: usize) -> Option<usize> {
    let shape = &ids.place().shape;
    let value = ids.integer([at[0], at[1] % shape[1], at[2] % shape[2], 0]);
    usize::try_from(value).ok().filter(|&id| id < rows)
}

/// Rows of a table, decoded.
#[derive(Debug)]
pub(crate) struct GetRows {
    pub(crate) table: Place,
    pub(crate) ids: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl GetRows {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (table, ids, out) = (bases.tensor(&self.table), bases.tensor(&self.ids), bases.tensor(&self.out));
        let same = self.table.dtype == self.out.dtype;
        let mut tile = [0.0; TILE];
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            let Some(id) = id(&ids, at, self.table.shape[1]) else { continue };
            let from = table.row([id, at[1], at[2]]);
            // SAFETY: the row belongs to this chunk.
            let out = unsafe { out.row_mut(at) };
            if same {
                out.copy_units(piece.start, &from, piece.start, piece.end - piece.start);
                continue;
            }
            for (start, len) in piece.tiles() {
                from.load(level, start, &mut tile[..len]);
                out.store(level, start, &tile[..len]);
            }
        }
    }
}

/// `a` plus rows of `b` by index.
#[derive(Debug)]
pub(crate) struct AddId {
    pub(crate) a: Place,
    pub(crate) b: Place,
    pub(crate) ids: Place,
    pub(crate) out: Place,
    pub(crate) grid: Grid,
}

impl AddId {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (a, b, ids) = (bases.tensor(&self.a), bases.tensor(&self.b), bases.tensor(&self.ids));
        let out = bases.tensor(&self.out);
        let (mut sum, mut added) = ([0.0; TILE], [0.0; TILE]);
        for piece in self.grid.chunk(chunk) {
            let at = self.out.row_at(piece.row);
            let Some(id) = id(&ids, at, self.b.shape[1]) else { continue };
            // SAFETY: the piece belongs to this chunk.
            let (a, b, out) = (a.row(at), b.row([id, 0, 0]), unsafe { out.row_mut(at) });
            for (start, len) in piece.tiles() {
                a.load(level, start, &mut sum[..len]);
                b.load(level, start, &mut added[..len]);
                sum[..len].iter_mut().zip(&added[..len]).for_each(|(a, b)| *a += b);
                out.store(level, start, &sum[..len]);
            }
        }
    }
}

/// Rows written to a target, encoded.
///
/// A chunk owns the target rows whose index leaves its number as remainder: two chunks never write one row, and of several
/// rows with one id the last is written last, whoever runs the chunks.
#[derive(Debug)]
pub(crate) struct SetRows {
    pub(crate) target: Place,
    pub(crate) rows: Place,
    pub(crate) ids: Place,
    pub(crate) chunks: usize,
}

impl SetRows {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (target, rows, ids) = (bases.tensor(&self.target), bases.tensor(&self.rows), bases.tensor(&self.ids));
        let width = self.target.shape[0];
        let same = self.rows.dtype == self.target.dtype;
        let mut tile = [0.0; TILE];
        for row in 0..self.rows.rows() {
            let at = self.rows.row_at(row);
            let Some(id) = id(&ids, at, self.target.shape[1]) else { continue };
            if id % self.chunks != chunk {
                continue;
            }
            let from = rows.row(at);
            // SAFETY: the target row has this chunk's remainder.
            let to = unsafe { target.row_mut([id, at[1], at[2]]) };
            if same {
                to.copy_units(0, &from, 0, width);
                continue;
            }
            for start in (0..width).step_by(TILE) {
                let len = (width - start).min(TILE);
                from.load(level, start, &mut tile[..len]);
                to.store(level, start, &tile[..len]);
            }
        }
    }
}
