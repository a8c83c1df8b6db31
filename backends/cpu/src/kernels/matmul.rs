//! Matrix products: activations are prepared once a node, then tiles of rows meet tiles of rows.
#![expect(unsafe_code, reason = "reads rows of operands in place, and writes the elements of its chunk")]

use std::marker::PhantomData;

use entensor_components::{DType, codec};

use super::{CHUNK_COST, Gate, Grid, Piece, Zip, routes::Routes};
use crate::{
    memory::layout::{SIDE, is_repacked},
    place::Place,
    simd::{BLOCK, Blocks, GROUP, Level, Rounded, bundle_block, group_bytes},
    tensor::{Bases, Row, RowMut, TILE, Tensor, work_row},
};

/// How products want their activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activations {
    /// Packed f32 rows.
    Plain,
    /// 8-bit blocks, in groups.
    Groups,
    /// 8-bit blocks, in bundles.
    Bundles,
    /// As [`Self::Groups`], with 128 added to each quant, so that they are unsigned.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "wanted by AVX-512 alone"))]
    Shifted,
}

impl Activations {
    /// Bytes of [`GROUP`] rows of `k` elements.
    pub(crate) fn bytes(self, k: usize) -> usize {
        match self {
            Self::Plain => GROUP * k * 4,
            Self::Groups | Self::Shifted => group_bytes(k),
            Self::Bundles => bundle_block(k / BLOCK),
        }
    }
}

/// Rows of activations rounded to 8-bit blocks, in groups or bundles that do not cross planes.
#[derive(Debug)]
pub(crate) struct Quantize {
    pub(crate) x: Place,
    /// What the rows are made of, if they are written nowhere.
    pub(crate) gate: Option<Gate>,
    /// Not plain.
    pub(crate) form: Activations,
    /// `[group, groups]` in work memory; the dtype stands for bytes only.
    pub(crate) out: Place,
    /// Over the groups.
    pub(crate) grid: Grid,
}

impl Quantize {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        let out = bases.tensor(&self.out);
        let x = bases.tensor(self.gate.as_ref().map_or(&self.x, |gate| &gate.x));
        let with = self.gate.as_ref().map(|gate| (&*gate.f, bases.tensor(&gate.with)));
        let [_, n, d2, _] = self.x.shape;
        let groups_per_plane = n.div_ceil(GROUP);
        for piece in self.grid.chunk(chunk) {
            let (plane, first) = (piece.row / groups_per_plane, piece.row % groups_per_plane * GROUP);
            // SAFETY: the group belongs to this chunk, and nobody else uses it before the step is done.
            let group = unsafe { work_row(&out, [piece.row, 0, 0]) };
            for row in 0..(n - first).min(GROUP) {
                let at = [first + row, plane % d2, plane / d2];
                let with = with.as_ref().map(|(f, with)| (*f, with.row(at)));
                round_row(level, self.form, &x.row(at), with, row, group);
            }
        }
    }
}

/// Rounds a row of activations to 8-bit blocks, as row `row` of its group or bundle; or what a function makes of it and another row.
#[inline(always)]
pub(super) fn round_row<L: Level>(
    level: L,
    form: Activations,
    x: &Row,
    with: Option<(&dyn Zip, Row)>,
    row: usize,
    group: &mut [u8],
) {
    let (mut tile, mut second) = ([0.0; TILE], [0.0; TILE]);
    let k = x.len();
    for (start, len) in (Piece { row: 0, start: 0, end: k }).tiles() {
        x.load(level, start, &mut tile[..len]);
        if let Some((f, with)) = &with {
            with.load(level, start, &mut second[..len]);
            level.zip(*f, &mut tile[..len], &second[..len]);
        }
        match form {
            Activations::Bundles => level.round_bundle(&tile[..len], row, start / BLOCK, group),
            Activations::Plain | Activations::Groups => level.quantize(&tile[..len], k, row, start / BLOCK, group),
            Activations::Shifted => {
                level.quantize(&tile[..len], k, row, start / BLOCK, group);
                let whole = len / BLOCK * BLOCK;
                group[row * k + start..][..whole].iter_mut().for_each(|quant| *quant ^= 0x80);
            }
        }
    }
}

/// `[k,m] × [k,n] → [m,n]` for every outer index of the activations.
#[derive(Debug)]
pub(crate) struct MulMat {
    /// Packed rows.
    pub(crate) weights: Place,
    /// Packed f32 rows with the axes of the activations, or groups of rounded ones.
    pub(crate) x: Place,
    pub(crate) out: Place,
    /// Elements that are summed over.
    pub(crate) k: usize,
    /// How many planes of activations share a plane of weights, on axes 2 and 3.
    pub(crate) group: [usize; 2],
    pub(crate) tiling: Tiling,
    /// For products with chosen planes: the table of routes, by which activations are ordered, and its groups.
    pub(crate) routes: Option<(Place, usize)>,
}

/// How a product is cut into chunks; depends on shapes alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiling {
    m: usize,
    n: usize,
    m_chunk: usize,
    n_chunk: usize,
    planes: usize,
}

/// Rows of activations that share each unpacked row of weights.
const N_TILE: usize = GROUP;
/// Rows of weights side by side when there are enough activations; more accumulators would not fit the registers.
const M_TILE: usize = 2;
/// Rows of weights side by side for single activations: enough independent sums to hide the latency of adding.
const M_TILE_SINGLE: usize = 4;

impl Tiling {
    /// For products of `row_bytes` of weights a row.
    pub(crate) fn new(k: usize, row_bytes: usize, out: &Place) -> Self {
        let [m, n, d2, d3] = out.shape;
        // Up to this many rows of activations stay in the second-level cache while a chunk's weights pass by.
        let n_chunk = n.clamp(1, 64);
        // A few multiply-adds cost as much as moving a byte.
        let row_cost = row_bytes.max(k.saturating_mul(n_chunk) / 2).max(16);
        let m_chunk = (CHUNK_COST / row_cost).next_multiple_of(M_TILE_SINGLE).max(4 * M_TILE_SINGLE);
        let planes = if out.is_empty() { 0 } else { d2 * d3 };
        Self { m, n, m_chunk, n_chunk, planes }
    }

    /// For rows of activations in groups, each with a plane of the weights: `rows` rows in up to `groups` groups.
    pub(crate) fn routed(k: usize, row_bytes: usize, out: &Place, rows: usize, groups: usize) -> Self {
        let shape = |n| Place { shape: [out.shape[0], n, 1, 1], ..*out };
        let Self { m, m_chunk, n_chunk, planes, .. } = Self::new(k, row_bytes, &shape(rows));
        Self { m, n: groups * GROUP, m_chunk, n_chunk: n_chunk.next_multiple_of(GROUP), planes }
    }

    pub(crate) fn chunks(&self) -> usize {
        self.planes * self.m.div_ceil(self.m_chunk) * self.n.div_ceil(self.n_chunk)
    }
}

/// One kind of product: which level method it is, and what of the activations it wants.
trait Product {
    /// `N` rows of activations.
    type X<'a, const N: usize>: Copy;

    /// Whether its weights may lie side by side.
    const REPACKED: bool;

    fn x<'a, const N: usize>(rows: &Rows<'a>, j: usize) -> Self::X<'a, N>;

    /// Of rows whose blocks lie next to each other, or every `S`th block.
    fn dots<L: Level, const M: usize, const N: usize, const S: usize>(
        level: L,
        k: usize,
        w: [&[u8]; M],
        x: Self::X<'_, N>,
    ) -> [[f32; N]; M];
}

macro_rules! product {
    ($($name:ident $method:ident $([$s:ident])?, $x:ty, $rows:ident, $repacked:expr;)+) => {$(
        struct $name;

        impl Product for $name {
            type X<'a, const N: usize> = $x;

            const REPACKED: bool = $repacked;

            #[inline(always)]
            fn x<'a, const N: usize>(rows: &Rows<'a>, j: usize) -> $x {
                rows.$rows(j)
            }

            #[inline(always)]
            fn dots<L: Level, const M: usize, const N: usize, const S: usize>(
                level: L,
                k: usize,
                w: [&[u8]; M],
                x: Self::X<'_, N>,
            ) -> [[f32; N]; M] {
                level.$method::<M, N $(, $s)?>(k, w, x)
            }
        }
    )+};
}

product! {
    F32 dots_f32, [&'a [u8]; N], plain, false;
    F16 dots_f16, [&'a [u8]; N], plain, false;
    Bf16 dots_bf16, [&'a [u8]; N], plain, false;
    Q4_1 dots_q4_1 [S], Rounded<'a>, rounded, is_repacked(DType::Q4_1);
    Q8_0 dots_q8_0 [S], Rounded<'a>, rounded, is_repacked(DType::Q8_0);
}

/// The product of a block dtype without one of its own.
struct Other<B, const REPACKED: bool>(PhantomData<B>);

impl<B: Blocks, const REPACKED: bool> Product for Other<B, REPACKED> {
    type X<'a, const N: usize> = Rounded<'a>;

    const REPACKED: bool = REPACKED;

    #[inline(always)]
    fn x<'a, const N: usize>(rows: &Rows<'a>, j: usize) -> Rounded<'a> {
        rows.rounded(j)
    }

    #[inline(always)]
    fn dots<L: Level, const M: usize, const N: usize, const S: usize>(
        level: L,
        k: usize,
        w: [&[u8]; M],
        x: Rounded<'_>,
    ) -> [[f32; N]; M] {
        level.dots_blocks::<B, M, N, S>(k, w, x)
    }
}

/// The rows that a chunk multiplies.
pub(super) struct Rows<'a> {
    pub(super) weights: Tensor<'a>,
    pub(super) weights_plane: [usize; 2],
    pub(super) x: Tensor<'a>,
    pub(super) out: Tensor<'a>,
    /// Axes 2 and 3 of activations and result.
    pub(super) plane: [usize; 2],
    /// The first group of the plane, where activations are rounded.
    pub(super) first_group: usize,
    /// Where rows of the result lie, if not in the order of the activations.
    pub(super) routes: Option<Routes<'a>>,
    pub(super) k: usize,
    /// Rows of a plane of weights that lie side by side; none in ordinary memory.
    pub(super) side_rows: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn weight<const S: usize>(&self, i: usize) -> &'a [u8] {
        let at = [i, self.weights_plane[0], self.weights_plane[1]];
        // SAFETY: no step writes an operand of a product while it runs, and its result lies elsewhere.
        unsafe { if S == 1 { self.weights.row_bytes(at) } else { self.weights.side_row_bytes::<S>(at) } }
    }

    /// A row of weights, of which every so many blocks are meant.
    #[inline(always)]
    pub(super) fn spread_weight(&self, i: usize) -> (&'a [u8], usize) {
        if i < self.side_rows { (self.weight::<SIDE>(i), SIDE) } else { (self.weight::<1>(i), 1) }
    }

    #[inline(always)]
    pub(super) fn plain<const N: usize>(&self, j: usize) -> [&'a [u8]; N] {
        // SAFETY: as for the weights.
        std::array::from_fn(|row| unsafe { self.x.row_bytes([j + row, self.plane[0], self.plane[1]]) })
    }

    /// The group or bundle of a row of activations.
    #[inline(always)]
    pub(super) fn group(&self, j: usize) -> &'a [u8] {
        // SAFETY: as for the weights.
        unsafe { self.x.row_bytes([self.first_group + j / GROUP, 0, 0]) }
    }

    #[inline(always)]
    fn rounded(&self, j: usize) -> Rounded<'a> {
        Rounded { group: self.group(j), first: j % GROUP }
    }

    /// Where the row of the result lies that a row of activations is for; nowhere, if its group has no such row.
    #[inline(always)]
    pub(super) fn out_at(&self, j: usize) -> Option<[usize; 3]> {
        match &self.routes {
            None => Some([j, self.plane[0], self.plane[1]]),
            Some(routes) => routes.row(j / GROUP, j % GROUP).map(|row| self.out.place().row_at(row)),
        }
    }

    #[inline(always)]
    fn tile<P: Product, L: Level, const M: usize, const N: usize, const S: usize>(
        &self,
        level: L,
        i: usize,
        x: P::X<'a, N>,
        out: &[RowMut; N],
    ) {
        let sums = P::dots::<L, M, N, S>(level, self.k, std::array::from_fn(|row| self.weight::<S>(i + row)), x);
        for (column, out) in out.iter().enumerate() {
            for (row, sums) in sums.iter().enumerate() {
                out.set(i + row, sums[column]);
            }
        }
    }

    #[inline(always)]
    fn columns<P: Product, L: Level, const M: usize, const N: usize>(
        &self,
        level: L,
        weights: &std::ops::Range<usize>,
        j: usize,
    ) {
        let x = P::x::<N>(self, j);
        // SAFETY: the elements that are set belong to this chunk.
        let out = std::array::from_fn(|column| unsafe {
            self.out.row_mut(self.out_at(j + column).expect("only rows that a group has are multiplied"))
        });
        let border = if P::REPACKED { self.side_rows.clamp(weights.start, weights.end) } else { weights.start };
        if P::REPACKED {
            self.tiles::<P, L, M, N, SIDE>(level, weights.start..border, x, &out);
        }
        self.tiles::<P, L, M, N, 1>(level, border..weights.end, x, &out);
    }

    #[inline(always)]
    fn tiles<P: Product, L: Level, const M: usize, const N: usize, const S: usize>(
        &self,
        level: L,
        weights: std::ops::Range<usize>,
        x: P::X<'a, N>,
        out: &[RowMut; N],
    ) {
        let mut i = weights.start;
        while i + M <= weights.end {
            self.tile::<P, L, M, N, S>(level, i, x, out);
            i += M;
        }
        while i < weights.end {
            self.tile::<P, L, 1, N, S>(level, i, x, out);
            i += 1;
        }
    }
}

/// Rows of a plane that lie side by side, where the weights' memory has the private layout.
#[inline(always)]
pub(super) fn side_rows(bases: Bases<'_>, weights: &Place) -> usize {
    let rows = weights.shape[1];
    if bases.is_repacked(weights) { rows - rows % SIDE } else { 0 }
}

impl MulMat {
    #[inline(always)]
    pub(crate) fn run<L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        match self.weights.dtype {
            DType::F32 => self.product::<F32, L>(level, bases, chunk),
            DType::F16 => self.product::<F16, L>(level, bases, chunk),
            DType::Bf16 => self.product::<Bf16, L>(level, bases, chunk),
            DType::Q4_1 => self.product::<Q4_1, L>(level, bases, chunk),
            DType::Q8_0 => self.product::<Q8_0, L>(level, bases, chunk),
            DType::Q4_0 => self.product::<Other<codec::Q4_0, { is_repacked(DType::Q4_0) }>, L>(level, bases, chunk),
            DType::Q5_0 => self.product::<Other<codec::Q5_0, { is_repacked(DType::Q5_0) }>, L>(level, bases, chunk),
            DType::Q5_1 => self.product::<Other<codec::Q5_1, { is_repacked(DType::Q5_1) }>, L>(level, bases, chunk),
            DType::Q2K => self.product::<Other<codec::Q2K, { is_repacked(DType::Q2K) }>, L>(level, bases, chunk),
            DType::Q3K => self.product::<Other<codec::Q3K, { is_repacked(DType::Q3K) }>, L>(level, bases, chunk),
            DType::Q4K => self.product::<Other<codec::Q4K, { is_repacked(DType::Q4K) }>, L>(level, bases, chunk),
            DType::Q5K => self.product::<Other<codec::Q5K, { is_repacked(DType::Q5K) }>, L>(level, bases, chunk),
            DType::Q6K => self.product::<Other<codec::Q6K, { is_repacked(DType::Q6K) }>, L>(level, bases, chunk),
            DType::Iq4Nl => self.product::<Other<codec::Iq4Nl, { is_repacked(DType::Iq4Nl) }>, L>(level, bases, chunk),
            DType::Mxfp4 => self.product::<Other<codec::Mxfp4, { is_repacked(DType::Mxfp4) }>, L>(level, bases, chunk),
            // The op table has no product of integers.
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => {}
        }
    }

    #[inline(always)]
    fn product<P: Product, L: Level>(&self, level: L, bases: Bases<'_>, chunk: usize) {
        if let Some((table, groups)) = &self.routes {
            return self.routed::<P, L>(table, *groups, level, bases, chunk);
        }
        let tiling = &self.tiling;
        let m_chunks = tiling.m.div_ceil(tiling.m_chunk);
        let n_chunks = tiling.n.div_ceil(tiling.n_chunk);
        // Neighbouring chunks share their activations.
        let (rest, m_index) = (chunk / m_chunks, chunk % m_chunks);
        let (plane, n_index) = (rest / n_chunks, rest % n_chunks);
        let d2 = self.out.shape[2];
        let out_plane = [plane % d2, plane / d2];
        let rows = Rows {
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
        let weights = m_index * tiling.m_chunk..((m_index + 1) * tiling.m_chunk).min(tiling.m);
        let end = ((n_index + 1) * tiling.n_chunk).min(tiling.n);
        let mut j = n_index * tiling.n_chunk;
        while j + N_TILE <= end {
            rows.columns::<P, L, M_TILE, N_TILE>(level, &weights, j);
            j += N_TILE;
        }
        while j < end {
            rows.columns::<P, L, M_TILE_SINGLE, 1>(level, &weights, j);
            j += 1;
        }
    }

    /// A chunk of a product with chosen planes: some of the groups, which mostly share a plane with the next.
    #[inline(always)]
    fn routed<P: Product, L: Level>(&self, table: &Place, groups: usize, level: L, bases: Bases<'_>, chunk: usize) {
        let tiling = &self.tiling;
        let m_chunks = tiling.m.div_ceil(tiling.m_chunk);
        let (n_index, m_index) = (chunk / m_chunks, chunk % m_chunks);
        let weights = m_index * tiling.m_chunk..((m_index + 1) * tiling.m_chunk).min(tiling.m);
        // SAFETY: the table is written by an earlier step of the node, which is done.
        let routes = unsafe { Routes::new(&bases.tensor(table), groups) };
        let per_chunk = tiling.n_chunk / GROUP;
        for group in n_index * per_chunk..((n_index + 1) * per_chunk).min(groups) {
            let Some(plane) = routes.plane(group) else { break };
            let rows = Rows {
                weights: bases.tensor(&self.weights),
                weights_plane: [plane, 0],
                x: bases.tensor(&self.x),
                out: bases.tensor(&self.out),
                plane: [0; 2],
                first_group: 0,
                routes: Some(routes),
                k: self.k,
                side_rows: side_rows(bases, &self.weights),
            };
            let count = routes.rows(group);
            if count == GROUP {
                rows.columns::<P, L, M_TILE, N_TILE>(level, &weights, group * GROUP);
            } else {
                for row in 0..count {
                    rows.columns::<P, L, M_TILE_SINGLE, 1>(level, &weights, group * GROUP + row);
                }
            }
        }
    }
}
