//! Instruction levels: what the hot loops are written against, and which one this CPU has.
//!
//! A level is a value that can only be made where the CPU has its instructions, so kernels that hold one need no check
//! of their own. Adding a level means implementing [`Level`] and offering it in [`AnyLevel::detect`].

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
pub(crate) use portable::Portable;

use entensor_components::codec::{self, BlockCodec};

use crate::kernels::{Map, Zip};

/// Elements of a block of activations, and of what is unpacked of weights at a time.
pub(crate) const BLOCK: usize = codec::PART;

/// Elements that share a half of a block by turns. Activations are rounded to 8 bits with two scales a block, one for the even
/// fours and one for the odd: an outlier then spoils 15 neighbours and not 31, and since every second lane of a vector has the
/// same scale, both scales come with one load. On a real model this takes a quarter off the error of log-probabilities.
pub(crate) const FOUR: usize = 4;

/// Bytes from the first to the last of `blocks` blocks, of which every `step`th is meant.
#[inline(always)]
pub(crate) fn spread_bytes(blocks: usize, step: usize, block_bytes: usize) -> usize {
    if blocks == 0 { 0 } else { ((blocks - 1) * step + 1) * block_bytes }
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

    /// Applies `f` to every element.
    fn map(self, f: &dyn Map, tile: &mut [f32]);

    /// Applies `f` to every pair of elements; the result goes to `a`.
    fn zip(self, f: &dyn Zip, a: &mut [f32], b: &[f32]);
    /// `a · b + c`, rounded once where the level has an instruction for it.
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32;

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

    /// bf16 weights, f32 activations.
    fn dots_bf16<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M];

    /// Decodes whole blocks of `q8_0`.
    fn decode_q8_0(self, bytes: &[u8], out: &mut [f32]);

    /// Adds the products of rows of `k` elements with `N` queries to the scores: `scores[n][j] += rows[j] · queries[n]`.
    fn add_scores<const N: usize>(self, k: usize, rows: PlainRows<'_>, queries: [&[f32]; N], scores: [&mut [f32]; N]);

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
    fn check(&self, width: usize) {
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
}

impl Simd {
    /// The level that it comes to on this machine: `portable` or `avx2`.
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
}

impl AnyLevel {
    pub(crate) fn choose(simd: Simd) -> Self {
        match simd {
            Simd::Detect => Self::detect(),
            Simd::Portable => Self::Portable(Portable),
        }
    }

    fn detect() -> Self {
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
        }
    }
}

#[cfg(test)]
mod tests;
