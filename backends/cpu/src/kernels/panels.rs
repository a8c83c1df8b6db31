//! Products with many rows of activations: a tile of weights is decoded once, into a panel that stays in cache, and meets row after row.
//!
//! A panel has sixteen rows of weights side by side, so that a row of activations needs nothing but loads, spread elements and
//! multiply-adds, and every result keeps a lane of its own: nothing is ever added across lanes. What a result is does not depend on the
//! rows around it. Panels are f32, or bytes where a level multiplies those faster.
#![expect(unsafe_code, reason = "writes the elements of its chunk")]

use std::ops::Range;

use entensor_components::{DType, codec};

use super::{
    matmul::{Activations, Rows, side_rows},
    routes::Routes,
};
use crate::{
    place::Place,
    simd::{AnyLevel, BLOCK, BYTE_PARTS, Blocks, GROUP, Level, PANEL_DEPTH, PANEL_ROWS, Panel, PanelRows, Panels},
    tensor::Bases,
};

/// From this many rows of activations on, decoding weights into panels is cheaper than decoding them again for every few rows.
const MANY: usize = 16;

/// Rows of activations that a chunk has at most; their sums lie on the stack.
const CHUNK_ROWS: usize = 264;

/// Rows of activations that meet a panel at once: as many sums as registers hold beside two vectors of weights.
const N_TILE: usize = 6;

/// Multiply-adds of a chunk, if it may have fewer rows: a few tenths of a millisecond, so that runs stop soon when they are told to.
const CHUNK_PRODUCTS: usize = 6 << 20;

/// `[k,m] × [k,n] → [m,n]` for every outer index of the activations, for many `n`.
#[derive(Debug)]
pub(crate) struct PanelProduct {
    /// Packed rows.
    pub(crate) weights: Place,
    /// Packed f32 rows with the axes of the activations, or rounded ones.
    pub(crate) x: Place,
    /// Which of both.
    pub(crate) form: Activations,
    pub(crate) out: Place,
    /// Elements that are summed over.
    pub(crate) k: usize,
    /// How many planes of activations share a plane of weights, on axes 2 and 3.
    pub(crate) group: [usize; 2],
    pub(crate) tiling: PanelTiling,
    /// For products with chosen planes: the table of routes, by which activations are ordered, and its groups.
    pub(crate) routes: Option<(Place, usize)>,
}

/// How a product is cut into chunks of one panel each; depends on shapes alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelTiling {
    m: usize,
    n: usize,
    n_chunk: usize,
    planes: usize,
}

impl PanelTiling {
    pub(crate) fn new(k: usize, out: &Place) -> Self {
        let [m, n, d2, d3] = out.shape;
        let planes = if out.is_empty() { 0 } else { d2 * d3 };
        Self { m, n, n_chunk: Self::n_chunk(k, n), planes }
    }

    /// For rows of activations in groups, each with a plane of the weights: `rows` rows in up to `groups` groups.
    pub(crate) fn routed(k: usize, out: &Place, rows: usize, groups: usize) -> Self {
        Self { m: out.shape[0], n: groups * GROUP, n_chunk: Self::n_chunk(k, rows), planes: 1 }
    }

    /// Chunks of like size, of whole tiles and groups.
    fn n_chunk(k: usize, n: usize) -> usize {
        let whole = N_TILE * GROUP / 2;
        let most = (CHUNK_PRODUCTS / (PANEL_ROWS * k.max(1))).clamp(4 * whole, CHUNK_ROWS);
        let chunks = n.div_ceil(most).max(1);
        n.div_ceil(chunks).next_multiple_of(whole).clamp(whole, CHUNK_ROWS)
    }

    pub(crate) fn chunks(&self) -> usize {
        self.planes * self.m.div_ceil(PANEL_ROWS) * self.n.div_ceil(self.n_chunk)
    }
}

/// Decodes elements from `start` on of a row whose blocks lie next to each other, or every `step`th. A function to call instead of a
/// type to compile everything for: it is called for some hundred elements at a time.
type Decode<L> = fn(L, row: &[u8], step: usize, start: usize, out: &mut [f32]);

fn f32_row<L: Level>(_level: L, row: &[u8], _step: usize, start: usize, out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(row[start * 4..].as_chunks().0) {
        *out = f32::from_le_bytes(*bytes);
    }
}

fn f16_row<L: Level>(level: L, row: &[u8], _step: usize, start: usize, out: &mut [f32]) {
    level.vectorize(
        #[inline(always)]
        || level.decode_f16(&row[start * 2..], out),
    );
}

fn bf16_row<L: Level>(level: L, row: &[u8], _step: usize, start: usize, out: &mut [f32]) {
    level.vectorize(
        #[inline(always)]
        || {
            for (out, bytes) in out.iter_mut().zip(row[start * 2..].as_chunks().0) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        },
    );
}

fn blocks<B: Blocks, L: Level>(level: L, row: &[u8], step: usize, start: usize, out: &mut [f32]) {
    level.decode_blocks::<B>(row, step, start / B::ELEMENTS, out);
}

fn decode<L: Level>(dtype: DType) -> Option<Decode<L>> {
    Some(match dtype {
        DType::F32 => f32_row,
        DType::F16 => f16_row,
        DType::Bf16 => bf16_row,
        DType::Q4_0 => blocks::<codec::Q4_0, L>,
        DType::Q4_1 => blocks::<codec::Q4_1, L>,
        DType::Q5_0 => blocks::<codec::Q5_0, L>,
        DType::Q5_1 => blocks::<codec::Q5_1, L>,
        DType::Q8_0 => blocks::<codec::Q8_0, L>,
        DType::Q2K => blocks::<codec::Q2K, L>,
        DType::Q3K => blocks::<codec::Q3K, L>,
        DType::Q4K => blocks::<codec::Q4K, L>,
        DType::Q5K => blocks::<codec::Q5K, L>,
        DType::Q6K => blocks::<codec::Q6K, L>,
        DType::Iq4Nl => blocks::<codec::Iq4Nl, L>,
        DType::Mxfp4 => blocks::<codec::Mxfp4, L>,
        // The op table has no product of integers.
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => return None,
    })
}

/// Packs parts from the given one on of rows that have every so many blocks of their bytes.
type Pack<L> = fn(L, rows: &[(&[u8], usize)], first: usize, panel: &mut [<L as Panels>::Part]);

/// Adds the products of a panel with a group of rows of so many activations, from the given block on.
type ByteDots<L> =
    fn(L, panel: &[<L as Panels>::Part], k: usize, x: &[u8], first: usize, sums: &mut [[f32; PANEL_ROWS]; GROUP]);

/// What is done with the blocks of a dtype as bytes.
struct Bytes<L: Panels> {
    pack: Pack<L>,
    dots: ByteDots<L>,
}

fn bytes_of<B: Blocks, L: Panels>() -> Option<Bytes<L>> {
    L::has_byte_panels::<B>().then_some(Bytes {
        pack: |level, rows, first, panel| level.pack_bytes::<B>(rows, first, panel),
        dots: |level, panel, k, x, first, sums| level.byte_dots::<B>(panel, k, x, first, sums),
    })
}

/// The blocks of a dtype as bytes, where these are faster than f32.
fn bytes<L: Panels>(dtype: DType) -> Option<Bytes<L>> {
    match dtype {
        DType::Q4_0 => bytes_of::<codec::Q4_0, L>(),
        DType::Q4_1 => bytes_of::<codec::Q4_1, L>(),
        DType::Q5_0 => bytes_of::<codec::Q5_0, L>(),
        DType::Q5_1 => bytes_of::<codec::Q5_1, L>(),
        DType::Q8_0 => bytes_of::<codec::Q8_0, L>(),
        DType::Q2K => bytes_of::<codec::Q2K, L>(),
        DType::Q3K => bytes_of::<codec::Q3K, L>(),
        DType::Q4K => bytes_of::<codec::Q4K, L>(),
        DType::Q5K => bytes_of::<codec::Q5K, L>(),
        DType::Q6K => bytes_of::<codec::Q6K, L>(),
        DType::Iq4Nl => bytes_of::<codec::Iq4Nl, L>(),
        DType::Mxfp4 => bytes_of::<codec::Mxfp4, L>(),
        DType::F32 | DType::F16 | DType::Bf16 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => None,
    }
}

/// How a product of `n` rows of activations wants them, if there are enough for panels.
pub(crate) fn panel_activations(level: AnyLevel, weights: DType, n: usize) -> Option<Activations> {
    fn of<L: Panels>(_: L, weights: DType) -> Activations {
        bytes::<L>(weights).map_or(Activations::Plain, |_| L::ROUNDED)
    }
    (n >= MANY).then_some(match level {
        AnyLevel::Portable(level) => of(level, weights),
        #[cfg(target_arch = "x86_64")]
        AnyLevel::Avx2(level) => of(level, weights),
        #[cfg(target_arch = "x86_64")]
        AnyLevel::Avx512(level) => of(level, weights),
    })
}

/// Sums of the rows of activations of a chunk: a few tens of KiB of the stack, as panels are.
type Sums = [[f32; PANEL_ROWS]; CHUNK_ROWS];

impl PanelProduct {
    pub(crate) fn run<L: Panels>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let dtype = self.weights.dtype;
        match self.form {
            Activations::Plain => {
                let Some(decode) = decode(dtype) else { return };
                self.product(bases, chunk, |rows, first, columns, sums| {
                    self.floats(level, decode, rows, first, columns, sums);
                });
            }
            Activations::Bundles | Activations::Shifted => {
                let Some(bytes) = bytes(dtype) else { return };
                self.product(bases, chunk, |rows, first, columns, sums| {
                    self.bytes(level, &bytes, rows, first, columns, sums);
                });
            }
            // Only what `panel_activations` says.
            Activations::Groups => {}
        }
    }

    /// Calls `tile` with the first row of the chunk's panel and the rows of activations that it meets.
    fn product(&self, bases: Bases<'_>, chunk: usize, mut tile: impl FnMut(&Rows<'_>, usize, Range<usize>, &mut Sums)) {
        let tiling = &self.tiling;
        let m_chunks = tiling.m.div_ceil(PANEL_ROWS);
        let n_chunks = tiling.n.div_ceil(tiling.n_chunk);
        // Neighbouring chunks share their activations.
        let (rest, first) = (chunk / m_chunks, chunk % m_chunks * PANEL_ROWS);
        let (plane, n_index) = (rest / n_chunks, rest % n_chunks);
        let d2 = self.out.shape[2];
        let out_plane = [plane % d2, plane / d2];
        let mut rows = Rows {
            weights: bases.tensor(&self.weights),
            weights_plane: [out_plane[0] / self.group[0], out_plane[1] / self.group[1]],
            x: bases.tensor(&self.x),
            out: bases.tensor(&self.out),
            plane: out_plane,
            first_group: plane * tiling.n.div_ceil(GROUP),
            routes: None,
            k: self.k,
            side_rows: side_rows(bases, &self.weights),
        };
        let columns = n_index * tiling.n_chunk..((n_index + 1) * tiling.n_chunk).min(tiling.n);
        let mut sums = [[0.0; PANEL_ROWS]; CHUNK_ROWS];
        let Some((table, groups)) = &self.routes else {
            tile(&rows, first, columns.clone(), &mut sums);
            return self.store(&rows, first, columns, &sums);
        };
        // SAFETY: the table is written by an earlier step of the node, which is done.
        let routes = unsafe { Routes::new(&bases.tensor(table), *groups) };
        rows.routes = Some(routes);
        let (mut group, end) = (columns.start / GROUP, columns.end / GROUP);
        while group < end {
            let Some(plane) = routes.plane(group) else { break };
            let run = (group..end).take_while(|&group| routes.plane(group) == Some(plane)).count();
            rows.weights_plane = [plane, 0];
            let columns = group * GROUP..(group + run) * GROUP;
            sums[..columns.len()].fill([0.0; PANEL_ROWS]);
            tile(&rows, first, columns.clone(), &mut sums);
            self.store(&rows, first, columns, &sums);
            group += run;
        }
    }

    /// Writes the sums of a panel, which begins at row `first` of the weights.
    fn store(&self, rows: &Rows<'_>, first: usize, columns: Range<usize>, sums: &Sums) {
        let count = (self.tiling.m - first).min(PANEL_ROWS);
        for (j, sums) in columns.zip(sums) {
            if let Some(at) = rows.out_at(j) {
                // SAFETY: the elements that are written belong to this chunk.
                let out = unsafe { rows.out.row_mut(at) };
                if count == PANEL_ROWS {
                    out.set_array(first, sums);
                } else {
                    out.set_run(first, &sums[..count]);
                }
            }
        }
    }

    /// The products of a panel of f32, which begins at row `first` of the weights, with some rows of activations.
    fn floats<L: Panels>(
        &self,
        level: L,
        decode: Decode<L::Base>,
        rows: &Rows<'_>,
        first: usize,
        columns: Range<usize>,
        sums: &mut Sums,
    ) {
        let mut decoded: PanelRows = [[0.0; PANEL_DEPTH]; PANEL_ROWS];
        let mut panel: Panel = [[0.0; PANEL_ROWS]; PANEL_DEPTH];
        let count = (self.tiling.m - first).min(PANEL_ROWS);
        let sums = &mut sums[..columns.len()];
        for start in (0..self.k).step_by(PANEL_DEPTH) {
            let depth = (self.k - start).min(PANEL_DEPTH);
            for (row, decoded) in decoded[..count].iter_mut().enumerate() {
                let (bytes, step) = rows.spread_weight(first + row);
                decode(level.base(), bytes, step, start, &mut decoded[..depth]);
            }
            level.base().interleave(&decoded, depth, &mut panel);
            let mut j = 0;
            while j + N_TILE <= sums.len() {
                columns_of::<L, N_TILE>(level, rows, columns.start + j, start, &panel[..depth], &mut sums[j..]);
                j += N_TILE;
            }
            let (x, rest) = (columns.start + j, &mut sums[j..]);
            match rest.len() {
                1 => columns_of::<L, 1>(level, rows, x, start, &panel[..depth], rest),
                2 => columns_of::<L, 2>(level, rows, x, start, &panel[..depth], rest),
                3 => columns_of::<L, 3>(level, rows, x, start, &panel[..depth], rest),
                4 => columns_of::<L, 4>(level, rows, x, start, &panel[..depth], rest),
                5 => columns_of::<L, 5>(level, rows, x, start, &panel[..depth], rest),
                _ => {}
            }
        }
    }

    /// The products of a panel of bytes with some rows of activations.
    fn bytes<L: Panels>(
        &self,
        level: L,
        bytes: &Bytes<L>,
        rows: &Rows<'_>,
        first: usize,
        columns: Range<usize>,
        sums: &mut Sums,
    ) {
        let mut panel = [L::NO_ROWS; BYTE_PARTS];
        let count = (self.tiling.m - first).min(PANEL_ROWS);
        let mut weights = [(&[][..], 1); PANEL_ROWS];
        for (row, weights) in weights[..count].iter_mut().enumerate() {
            *weights = rows.spread_weight(first + row);
        }
        let parts = self.k / BLOCK;
        for start in (0..parts).step_by(BYTE_PARTS) {
            let panel = &mut panel[..(parts - start).min(BYTE_PARTS)];
            (bytes.pack)(level, &weights[..count], start, panel);
            // The last group may have fewer rows than there are sums; what the others become, nobody reads.
            for (j, sums) in columns.clone().step_by(GROUP).zip(sums.as_chunks_mut().0) {
                (bytes.dots)(level, panel, self.k, rows.group(j), start, sums);
            }
        }
    }
}

/// Adds the products of a panel with `N` rows of activations from `j` on, of the panel's depth from element `start` on.
fn columns_of<L: Panels, const N: usize>(
    level: L,
    rows: &Rows<'_>,
    j: usize,
    start: usize,
    panel: &[[f32; PANEL_ROWS]],
    sums: &mut [[f32; PANEL_ROWS]],
) {
    let x = rows.plain::<N>(j).map(|x| &x[start * 4..(start + panel.len()) * 4]);
    level.panel_dots::<N>(panel, x, sums.first_chunk_mut().expect("a sum for each row"));
}
