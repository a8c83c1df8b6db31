//! Instruction levels: what the hot loops are written against, and which one this CPU has.
//!
//! A level is a value that can only be made where the CPU has its instructions, so kernels that hold one need no check
//! of their own. Adding a level means implementing [`Level`] and [`Panels`], or [`Panels`] alone, and offering it in [`AnyLevel::choose`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
mod vector;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use portable::Portable;
pub(crate) use vector::{Pairing, QUAD, QUAD_BYTES, WeightRows, vector_bytes};

use entensor_components::{
    Sameness,
    codec::{self, BlockCodec},
};

use crate::{
    kernels::{Activations, LayerProduct, Map, Zip},
    math::{exp_below_zero, relu},
};

/// Elements of a block of activations, and of what is unpacked of weights at a time.
pub(crate) const BLOCK: usize = codec::PART;

/// Elements that share a half of a block by turns. Activations are rounded to 8 bits with two scales a block, one for the even
/// fours and one for the odd: an outlier then spoils 15 neighbours and not 31, and since every second lane of a vector has the
/// same scale, both scales come with one load. On a real model this takes a quarter off the error of log-probabilities.
pub(crate) const FOUR: usize = 4;

/// Partial sums of f32.
pub(crate) const LANES: usize = 8;

/// Where streams of weights in blocks are fetched to ahead of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    /// Into all caches: the next run finds them there.
    Keep,
    /// Past them: a run reads more than they hold, and what nobody will find again need not push out anything else. On a Zen 4 server, whose
    /// third-level cache takes what the second gives up, streams are up to a tenth faster for it.
    Pass,
}

/// Bytes from the first to the last of `blocks` blocks, of which every `step`th is meant.
#[inline(always)]
pub(crate) fn spread_bytes(blocks: usize, step: usize, block_bytes: usize) -> usize {
    if blocks == 0 { 0 } else { ((blocks - 1) * step + 1) * block_bytes }
}

/// Panics unless these are rows of one panel, each of which holds so many parts from part `first` on.
#[cfg(target_arch = "x86_64")]
fn check_parts<B: Blocks>(rows: &[(&[u8], usize)], first: usize, parts: usize) {
    assert!(rows.len() <= PANEL_ROWS);
    let blocks = ((first + parts) * BLOCK).div_ceil(B::ELEMENTS);
    assert!(rows.iter().all(|(row, step)| row.len() >= spread_bytes(blocks, *step, B::BYTES)));
}

/// Rows of activations that are rounded side by side, so that one instruction scales all of them.
pub(crate) const GROUP: usize = 4;

/// Bytes of the scales and sums of a block of a group: two scales for each row, then a sum for each.
const GROUP_SCALES: usize = GROUP * 12;

/// Bytes of a group of rows of `k` activations in 8-bit blocks: `k` signed bytes a row, one row after the other, then
/// the scales and the sums of each block as f32. Rounded up to whole cache lines, so that groups written by different
/// workers share none.
pub(crate) fn group_bytes(k: usize) -> usize {
    (GROUP * k + k / BLOCK * GROUP_SCALES).next_multiple_of(64)
}

/// `N` rows of a group of rounded activations.
#[derive(Clone, Copy)]
pub(crate) struct Rounded<'a> {
    /// The whole group.
    pub(crate) group: &'a [u8],
    /// The first of the rows.
    pub(crate) first: usize,
}

/// Where a group's parts lie.
#[derive(Clone, Copy)]
struct GroupLayout {
    k: usize,
}

impl GroupLayout {
    /// The quants of a block of a row.
    #[inline(always)]
    fn quants(self, row: usize, block: usize) -> usize {
        row * self.k + block * BLOCK
    }

    /// The two scales of a block of a row, even fours first; those of the next rows follow.
    #[inline(always)]
    fn scales(self, row: usize, block: usize) -> usize {
        GROUP * self.k + block * GROUP_SCALES + row * 8
    }

    /// The sum of a block of a row; those of the next rows follow.
    #[inline(always)]
    fn sum(self, row: usize, block: usize) -> usize {
        GROUP * self.k + block * GROUP_SCALES + GROUP * 8 + row * 4
    }
}

/// Rows of weights that lie side by side in a panel.
pub(crate) const PANEL_ROWS: usize = 16;

/// Elements of a row that a panel has at most: with the rows of activations that meet it, it stays in the first-level cache.
pub(crate) const PANEL_DEPTH: usize = 256;

/// Decoded rows of weights.
pub(crate) type PanelRows = [[f32; PANEL_DEPTH]; PANEL_ROWS];

/// The same, one element of all rows after the other.
pub(crate) type Panel = [[f32; PANEL_ROWS]; PANEL_DEPTH];

/// Elements of a row that a panel of bytes has at most, in parts of 32.
pub(crate) const BYTE_PARTS: usize = 16;

/// 32 elements of sixteen rows of weights, as bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct BytePart {
    /// Fours of elements of eight rows and of the other eight, the even fours first, then the odd ones.
    quants: [[u8; BLOCK]; PANEL_ROWS],
    /// What a step of each row is worth.
    scales: [f32; PANEL_ROWS],
    /// What is added to every element of each row.
    offsets: [f32; PANEL_ROWS],
}

impl BytePart {
    pub(crate) const ZERO: Self =
        Self { quants: [[0; BLOCK]; PANEL_ROWS], scales: [0.0; PANEL_ROWS], offsets: [0.0; PANEL_ROWS] };
}

/// Where the parts of a block of a bundle lie. Bundles are [`GROUP`] rows of activations as panels of bytes want them: block by block
/// the quants of each row, then the scales of each row's even and odd fours as whole numbers (each twice, for products of pairs), then
/// what one of these is worth, then the sum of what the quants stand for.
const BUNDLE_STEPS: usize = GROUP * BLOCK;
const BUNDLE_SCALES: usize = BUNDLE_STEPS + GROUP * 8;
const BUNDLE_SUMS: usize = BUNDLE_SCALES + GROUP * 4;

/// The larger of a block's two scales as a whole number, or one more. Whole numbers let the products of both fours be added before
/// they become floats; so many that the smaller scale is met well enough, and so few that sums fit 32 bits.
const STEPS_MOST: f32 = 1024.0;

/// Where a block of a bundle begins.
#[inline(always)]
pub(crate) const fn bundle_block(block: usize) -> usize {
    block * (BUNDLE_SUMS + GROUP * 4)
}

/// A block dtype that every level has products of.
#[cfg(target_arch = "x86_64")]
pub(crate) trait Blocks: BlockCodec + avx2::Unpack {}
#[cfg(target_arch = "x86_64")]
impl<B: BlockCodec + avx2::Unpack> Blocks for B {}

/// A block dtype that every level has products of.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) trait Blocks: BlockCodec {}
#[cfg(not(target_arch = "x86_64"))]
impl<B: BlockCodec> Blocks for B {}

/// A block dtype that every level has products with a single row of.
#[cfg(target_arch = "x86_64")]
pub(crate) trait Streams: BlockCodec + avx2::Stream {}
#[cfg(target_arch = "x86_64")]
impl<B: BlockCodec + avx2::Stream> Streams for B {}

/// A block dtype that every level has products with a single row of.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) trait Streams: BlockCodec {}
#[cfg(not(target_arch = "x86_64"))]
impl<B: BlockCodec> Streams for B {}

/// The operations that are worth writing by hand for an instruction set; everything else is plain Rust that the compiler
/// vectorizes inside [`Level::vectorize`].
///
/// The `dots` methods return the dot products of `M` rows of weights with `N` rows of activations of `k` elements. Every
/// product is summed in one order, whatever `M` and `N` are, so that tiling never shows in the result. Those of block dtypes read
/// every `S`th block: rows lie by themselves (1), or side by side in the private layout of repacked weights.
///
/// # Panics
/// All methods panic when a slice is shorter than its element count asks for; kernels size them from checked shapes.
pub(crate) trait Level: Copy + Send + Sync {
    /// Runs `f` compiled for this level, as far as it is inlined.
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R;

    /// Applies `f` to every element of `from`; the results go to `to`.
    fn map(self, f: &dyn Map, from: &[f32], to: &mut [f32]);

    /// Applies `f` to every pair of elements; the result goes to `a`.
    fn zip(self, f: &dyn Zip, a: &mut [f32], b: &[f32]);
    /// `a · b + c`, rounded once where the level has an instruction for it.
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32;

    /// A layer of `out.len()` rows of weights with rows of activations side by side, of which so many are meant:
    /// `out[j][row] = bias[j] + Σ weights[j][i] · x[i][row]`, added in that order; then what is below zero becomes zero if the layer says so.
    #[inline(always)]
    fn lines_product(self, layer: &LayerProduct<'_>, rows: usize, x: &[[f32; PANEL]], out: &mut [[f32; PANEL]]) {
        for (j, out) in out.iter_mut().enumerate() {
            let out = &mut out[..rows];
            out.fill(portable::read_f32(layer.bias, j));
            let weights = &layer.rows.bytes[j * layer.rows.stride_bytes..];
            for (i, x) in x[..layer.k].iter().enumerate() {
                let w = portable::read_f32(weights, i);
                for (out, x) in out.iter_mut().zip(x) {
                    *out = self.mul_add(*x, w, *out);
                }
            }
            if layer.relu {
                out.iter_mut().for_each(|v| *v = relu(*v));
            }
        }
    }

    /// The same with a single row of little-endian f32, added up in [`LANES`] partial sums before the bias.
    #[inline(always)]
    fn row_product(self, layer: &LayerProduct<'_>, x: &[u8], out: &mut [f32]) {
        for (j, out) in out.iter_mut().enumerate() {
            let weights = &layer.rows.bytes[j * layer.rows.stride_bytes..];
            let mut sums = [0.0; LANES];
            for start in (0..layer.k).step_by(LANES) {
                for (i, sum) in (start..layer.k).zip(&mut sums) {
                    *sum = self.mul_add(portable::read_f32(x, i), portable::read_f32(weights, i), *sum);
                }
            }
            *out = portable::read_f32(layer.bias, j) + sums.iter().sum::<f32>();
            if layer.relu {
                *out = relu(*out);
            }
        }
    }

    /// Decodes little-endian f16.
    fn decode_f16(self, bytes: &[u8], out: &mut [f32]);

    /// Encodes little-endian f16, rounding to nearest even.
    fn encode_f16(self, x: &[f32], bytes: &mut [u8]);

    /// Rounds whole blocks of activations, the first of which is block `first` of row `row` of `k` activations of a group,
    /// in the layout of [`group_bytes`]. Half a block with a NaN or an infinity gets a NaN scale, so that no product hides
    /// it.
    fn quantize(self, x: &[f32], k: usize, row: usize, first: usize, group: &mut [u8]);

    /// `q8_0` weights, rounded activations.
    fn dots_q8_0<const M: usize, const N: usize, const S: usize>(
        self,
        k: usize,
        w: [&[u8]; M],
        x: Rounded<'_>,
    ) -> [[f32; N]; M];

    /// `q4_1` weights, rounded activations.
    fn dots_q4_1<const M: usize, const N: usize, const S: usize>(
        self,
        k: usize,
        w: [&[u8]; M],
        x: Rounded<'_>,
    ) -> [[f32; N]; M];

    /// Weights of any other block dtype, rounded activations; `k` is a whole number of blocks.
    fn dots_blocks<B: Blocks, const M: usize, const N: usize, const S: usize>(
        self,
        k: usize,
        w: [&[u8]; M],
        x: Rounded<'_>,
    ) -> [[f32; N]; M];

    /// f32 weights, f32 activations.
    fn dots_f32<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M];

    /// f16 weights, f32 activations.
    fn dots_f16<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M];

    /// Decodes blocks from `first` on, of a row with every `step`th block of `row`.
    fn decode_blocks<B: Blocks>(self, row: &[u8], step: usize, first: usize, out: &mut [f32]);

    /// Turns the first `depth` elements of all rows into a panel.
    fn interleave(self, rows: &PanelRows, depth: usize, panel: &mut Panel);

    /// Rounds whole blocks of activations, the first of which is block `first` of row `row` of a bundle, as [`Self::quantize`] does for
    /// groups. A block with a NaN or an infinity gets a NaN scale.
    fn round_bundle(self, x: &[f32], row: usize, first: usize, bundle: &mut [u8]);

    /// bf16 weights, f32 activations.
    fn dots_bf16<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M];

    /// Rounds whole blocks of a single row of activations, the first of which is block `first` of the row, in the layout of
    /// [`vector`]. What is not finite becomes NaN as in [`Level::quantize`].
    fn quantize_vector(self, x: &[f32], first: usize, pairing: Pairing, out: &mut [u8]);

    /// Products of `out.len()` neighbouring rows of weights of any block dtype with a single row of activations in the layout of [`vector`],
    /// with the dtype's pairing. A product does not depend on how many others are asked for.
    fn vector_blocks<B: Streams, const S: usize>(
        self,
        k: usize,
        w: WeightRows<'_>,
        x: &[u8],
        fetch: Fetch,
        out: &mut [f32],
    );

    /// The same for f32 weights and a single row of f32 activations.
    fn vector_f32(self, k: usize, w: WeightRows<'_>, x: &[u8], out: &mut [f32]);

    /// The same for f16 weights and a single row of f32 activations.
    fn vector_f16(self, k: usize, w: WeightRows<'_>, x: &[u8], out: &mut [f32]);

    /// The same for bf16 weights and a single row of f32 activations.
    fn vector_bf16(self, k: usize, w: WeightRows<'_>, x: &[u8], out: &mut [f32]);

    /// Decodes whole blocks of `q8_0`.
    fn decode_q8_0(self, bytes: &[u8], out: &mut [f32]);

    /// Adds the products of rows of `k` elements with `N` queries to the scores: `scores[n][j] += rows[j] · queries[n]`.
    fn add_scores<const N: usize>(self, k: usize, rows: PlainRows<'_>, queries: [&[f32]; N], scores: [&mut [f32]; N]);

    /// Multiplies scores by `scale` and adds their masks, multiplied by a slope; a mask of minus infinity makes any score minus infinity.
    /// Gives the largest score, or `most` if none is larger, and passes NaN over.
    #[inline(always)]
    fn mask_scores(self, scores: &mut [f32], scale: f32, mask: Option<(&[f32], f32)>, most: f32) -> f32 {
        for score in scores.iter_mut() {
            *score *= scale;
        }
        if let Some((mask, slope)) = mask {
            for (score, &mask) in scores.iter_mut().zip(mask) {
                let out = mask == f32::NEG_INFINITY;
                *score = if out { f32::NEG_INFINITY } else { *score + slope * mask };
            }
        }
        scores.iter().fold(most, |most, &score| if score > most { score } else { most })
    }

    /// Turns scores into powers of e, relative to what is at least as large as any of them; gives their sum, added up in [`LANES`] partial
    /// sums. There are whole vectors of scores.
    #[inline(always)]
    fn weigh_scores(self, scores: &mut [f32], reference: f32) -> f32 {
        let mut sums = [0.0; LANES];
        for scores in scores.as_chunks_mut::<LANES>().0 {
            for (score, sum) in scores.iter_mut().zip(&mut sums) {
                *score = exp_below_zero(self, *score - reference);
                *sum += *score;
            }
        }
        portable::sum_lanes(sums)
    }

    /// Weighted sums of rows: `sums[n] = sums[n] · rescale[n] + Σ weights[n][j] · rows[j]`.
    fn add_weighted<const N: usize>(
        self,
        rows: PlainRows<'_>,
        weights: [&[f32]; N],
        rescale: [f32; N],
        sums: [&mut [f32]; N],
    );

    /// `M` rows of `a`, `strides[0]` apart, times a panel of as many rows as `a` has columns, added to `M` rows of `sums`, `strides[1]`
    /// apart.
    fn add_panel<const M: usize>(self, a: &[f32], panel: &[[f32; PANEL]], sums: &mut [f32], strides: [usize; 2]);

    /// Turns up to [`PANEL`] rows, `stride` apart, into columns of a panel: `panel[d][row] = rows[row][d]`. Columns without a row become
    /// zeros.
    fn turn_into_panel(self, rows: &[f32], stride: usize, panel: &mut [[f32; PANEL]]);
}

/// What products with many rows of activations are made of, see [`crate::kernels::PanelProduct`]. Apart from [`Level`], so that a set of
/// instructions that is good for these products and nothing else does not compile every kernel once more.
pub(crate) trait Panels: Copy + Send + Sync {
    /// The level of everything else.
    type Base: Level;

    /// 32 elements of sixteen rows of weights, as bytes.
    type Part: Copy;

    /// A part without rows.
    const NO_ROWS: Self::Part;

    /// How byte panels want rounded activations.
    const ROUNDED: Activations;

    fn base(self) -> Self::Base;

    /// Adds the products of a panel with `N` rows of as many f32 to the sums of each.
    fn panel_dots<const N: usize>(self, panel: &[[f32; PANEL_ROWS]], x: [&[u8]; N], sums: &mut [[f32; PANEL_ROWS]; N]);

    /// Whether it multiplies bytes of a dtype faster than f32.
    fn has_byte_panels<B: Blocks>() -> bool;

    /// Packs parts of up to sixteen rows from part `first` on, each row with every so many blocks of its bytes. Rows that are not there
    /// stay as they are.
    fn pack_bytes<B: Blocks>(self, rows: &[(&[u8], usize)], first: usize, panel: &mut [Self::Part]);

    /// Adds the products of a panel with rounded rows of `k` activations, from block `first` on, to the sums of each.
    fn byte_dots<B: Blocks>(
        self,
        panel: &[Self::Part],
        k: usize,
        x: &[u8],
        first: usize,
        sums: &mut [[f32; PANEL_ROWS]; GROUP],
    );
}

/// Columns of a panel.
pub(crate) const PANEL: usize = 16;

/// Rows of plain elements at equal distances.
#[derive(Clone, Copy)]
pub(crate) struct PlainRows<'a> {
    /// Little-endian f16 instead of f32.
    pub(crate) halves: bool,
    /// From the first row to the end of the last.
    pub(crate) bytes: &'a [u8],
    pub(crate) stride_bytes: usize,
    pub(crate) count: usize,
}

impl PlainRows<'_> {
    /// Panics unless every row has so many elements.
    #[inline(always)]
    pub(crate) fn check(&self, width: usize) {
        let last = self.count.saturating_sub(1).checked_mul(self.stride_bytes);
        let end = last.and_then(|last| last.checked_add(width * if self.halves { 2 } else { 4 }));
        assert!(self.count == 0 || end.is_some_and(|end| end <= self.bytes.len()));
    }
}

/// Which instructions a backend may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Simd {
    /// The best level that this CPU has.
    #[default]
    Detect,
    /// Only what every CPU of the target has.
    Portable,
    /// AVX2, FMA and F16C and nothing above, where the CPU has them; else as [`Simd::Portable`].
    Avx2,
    /// The arithmetic of the portable level, operation by operation, as a promise ([`Sameness::Strict`]): the same bits on every x86-64
    /// machine, whatever it has. Slower than what the CPU could do.
    ///
    /// Bits cannot differ because nothing that rounds depends on the CPU. The level is one piece of code without a choice at run time;
    /// its sums have a fixed order of lanes; additions, products, quotients and square roots are rounded as IEEE 754 says, and the
    /// compiler neither reorders them nor joins a product and a sum. Chunks, panels and kernels are chosen by shapes, dtypes and level
    /// alone. Exponentials and their like are this crate's own, angles come from the `libm` crate, and the C library, which has one function
    /// for one processor and another for the next, is never asked. Conversions of f16 may use an instruction, which gives the bits of the
    /// code without it.
    Strict,
}

impl Simd {
    /// What is called like this: `detect`, `portable`, `avx2` or `strict`.
    ///
    /// ```
    /// use entensor_cpu::Simd;
    ///
    /// assert_eq!(Simd::from_name("strict"), Some(Simd::Strict));
    /// assert_eq!(Simd::from_name("fast"), None);
    /// ```
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "detect" => Some(Self::Detect),
            "portable" => Some(Self::Portable),
            "avx2" => Some(Self::Avx2),
            "strict" => Some(Self::Strict),
            _ => None,
        }
    }

    /// What it promises of results. Only [`Simd::Strict`] promises the portable level's bits; the others may round better one day.
    #[must_use]
    pub fn sameness(self) -> Sameness {
        match self {
            Self::Strict => Sameness::Strict,
            Self::Detect | Self::Portable | Self::Avx2 => Sameness::Machine,
        }
    }

    /// The level that it comes to on this machine: `portable`, `avx2` or `avx512`.
    #[must_use]
    pub fn level_name(self) -> &'static str {
        AnyLevel::choose(self).name()
    }
}

/// The level that was chosen.
#[derive(Clone, Copy)]
pub(crate) enum AnyLevel {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl AnyLevel {
    pub(crate) fn choose(simd: Simd) -> Self {
        match simd {
            Simd::Portable | Simd::Strict => Self::Portable(Portable),
            Simd::Avx2 => Self::avx2(),
            #[cfg(target_arch = "x86_64")]
            Simd::Detect => Avx512::detect().map_or_else(Self::avx2, Self::Avx512),
            #[cfg(not(target_arch = "x86_64"))]
            Simd::Detect => Self::avx2(),
        }
    }

    /// AVX2, or what there is without it.
    fn avx2() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(level) = Avx2::detect() {
            return Self::Avx2(level);
        }
        Self::Portable(Portable)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
        }
    }
}

#[cfg(test)]
mod tests;
