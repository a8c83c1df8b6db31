//! Products with chosen planes: rows of activations are sorted by the plane they want, so that rows with one plane lie side by
//! side and share the tiles of ordinary products.
#![expect(unsafe_code, reason = "writes and reads work memory, a group a chunk")]

use super::{
    Grid, Piece,
    matmul::{Activations, round_row},
};
use crate::{
    place::Place,
    simd::{GROUP, Level},
    tensor::{Bases, Tensor, work_row},
};

/// No row, or no plane.
const NONE: u32 = u32::MAX;

/// Groups of rows that want one plane: enough for any ids.
pub(crate) fn max_groups(rows: usize, planes: usize) -> usize {
    rows.div_ceil(GROUP) + rows.min(planes)
}

/// Entries of a table of routes: what [`Routes`] reads, then a count for each plane.
pub(crate) fn table_len(groups: usize, planes: usize) -> usize {
    groups * (GROUP + 1) + planes
}

/// The table of routes: the plane of each group, then the rows of each group.
#[derive(Clone, Copy)]
pub(super) struct Routes<'a> {
    entries: &'a [u8],
    groups: usize,
}

impl<'a> Routes<'a> {
    /// # Safety
    /// The step that made the table must be done, and nobody may write it while the result lives.
    #[inline(always)]
    pub(super) unsafe fn new(table: &Tensor<'a>, groups: usize) -> Self {
        // SAFETY: the caller promises that nobody writes.
        Self { entries: unsafe { table.row_bytes([0; 3]) }, groups }
    }

    #[inline(always)]
    fn entry(&self, index: usize) -> Option<usize> {
        let at = index * 4;
        let e = &self.entries[at..at + 4];
        let value = u32::from_le_bytes([e[0], e[1], e[2], e[3]]);
        (value != NONE).then_some(value as usize)
    }

    /// The plane of a group; `None` for groups that are not needed, which are the last ones.
    #[inline(always)]
    pub(super) fn plane(&self, group: usize) -> Option<usize> {
        self.entry(group)
    }

    /// The linear index of a group's row; only the last ones of a group are missing.
    #[inline(always)]
    pub(super) fn row(&self, group: usize, row: usize) -> Option<usize> {
        self.entry(self.groups + group * GROUP + row)
    }

    /// Rows of a group.
    #[inline(always)]
    pub(super) fn rows(&self, group: usize) -> usize {
        (0..GROUP).take_while(|&row| self.row(group, row).is_some()).count()
    }
}

/// Sorts rows by the plane that their id names. One chunk.
#[derive(Debug)]
pub(crate) struct Route {
    /// `[slots, tokens]`.
    pub(crate) ids: Place,
    /// How many planes there are.
    pub(crate) planes: usize,
    pub(crate) groups: usize,
    /// In work memory.
    pub(crate) table: Place,
}

impl Route {
    pub(crate) fn run(&self, bases: Bases<'_>) {
        let (ids, table) = (bases.tensor(&self.ids), bases.tensor(&self.table));
        // SAFETY: the step has one chunk, and the table is its own.
        let entries = unsafe { work_row(&table, [0; 3]) }.as_chunks_mut::<4>().0;
        let (groups, rest) = entries.split_at_mut(self.groups);
        let (rows, next) = rest.split_at_mut(self.groups * GROUP);
        let [slots, tokens, ..] = self.ids.shape;
        // Ids were checked, but memory that was imported is only promised not to change: a row is left out rather than trusted.
        let planes = (0..slots * tokens).map(|row| {
            let id = ids.integer([row % slots, row / slots, 0, 0]);
            (row, usize::try_from(id).ok().filter(|&id| id < self.planes))
        });
        let planes = planes.filter_map(|(row, plane)| Some((row, plane?)));
        let get = |entry: &[u8; 4]| u32::from_le_bytes(*entry);
        groups.fill(NONE.to_le_bytes());
        rows.fill(NONE.to_le_bytes());
        next.fill([0; 4]);
        for (_, plane) in planes.clone() {
            next[plane] = (get(&next[plane]) + 1).to_le_bytes();
        }
        let mut first = 0;
        for (plane, next) in next.iter_mut().enumerate() {
            let count = get(next) as usize;
            // From here on: where the plane's next row goes.
            *next = index((first * GROUP) as u64).to_le_bytes();
            let end = first + count.div_ceil(GROUP);
            groups[first..end].fill(index(plane as u64).to_le_bytes());
            first = end;
        }
        for (row, plane) in planes {
            let to = get(&next[plane]);
            // If ids changed while they were counted, a row may find no place.
            if let Some(entry) = rows.get_mut(to as usize) {
                *entry = index(row as u64).to_le_bytes();
            }
            next[plane] = (to + 1).to_le_bytes();
        }
    }
}

/// Programs are refused whose rows do not fit.
fn index(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(NONE)
}

/// Activations in the order of a table of routes.
#[derive(Debug)]
pub(crate) struct Gather {
    /// `[k, rows a token, tokens]`.
    pub(crate) x: Place,
    /// How many slots a token has; its rows are repeated over them.
    pub(crate) slots: usize,
    pub(crate) table: Place,
    pub(crate) groups: usize,
    pub(crate) form: Activations,
    /// In work memory: a row of f32 a row, or a group a row.
    pub(crate) out: Place,
    /// Over the groups.
    pub(crate) grid: Grid,
}

impl Gather {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let (x, out) = (bases.tensor(&self.x), bases.tensor(&self.out));
        let [k, per_token, ..] = self.x.shape;
        // SAFETY: the table is written by an earlier step of the node, which is done.
        let routes = unsafe { Routes::new(&bases.tensor(&self.table), self.groups) };
        for Piece { row: group, .. } in self.grid.chunk(chunk) {
            for row in 0..routes.rows(group) {
                let Some(from) = routes.row(group, row) else { continue };
                let x = x.row([from % self.slots % per_token, from / self.slots, 0]);
                match self.form {
                    Activations::Plain => {
                        // SAFETY: the group belongs to this chunk.
                        let out = unsafe { out.row_mut([group * GROUP + row, 0, 0]) };
                        let mut tile = [0.0; crate::tensor::TILE];
                        for (start, len) in (Piece { row: 0, start: 0, end: k }).tiles() {
                            x.load(level, start, &mut tile[..len]);
                            out.store(level, start, &tile[..len]);
                        }
                    }
                    Activations::Groups | Activations::Bundles | Activations::Shifted => {
                        // SAFETY: the group belongs to this chunk, and nobody else uses it before the step is done.
                        let out = unsafe { work_row(&out, [group, 0, 0]) };
                        round_row(level, self.form, &x, None, row, out);
                    }
                }
            }
        }
    }
}
