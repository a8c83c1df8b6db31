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

/// Elements of a block of activations that are rounded to 8 bits together; the block size of the block dtypes.
pub(crate) const BLOCK: usize = 32;

/// Bytes of a row of `k` activations in 8-bit blocks: `k` signed bytes, then the scale and the sum of each block as f32.
/// Rounded up to whole cache lines, so that rows written by different workers share none.
pub(crate) fn quantized_row_bytes(k: usize) -> usize {
    (k + k / BLOCK * 8).next_multiple_of(64)
}

/// The operations that are worth writing by hand for an instruction set; everything else is plain Rust that the compiler
/// vectorizes inside [`Level::vectorize`].
///
/// The `dots` methods return the dot products of `M` rows of weights with `N` rows of activations of `k` elements. Every
/// product is summed in one order, whatever `M` and `N` are, so that tiling never shows in the result.
///
/// # Panics
/// All methods panic when a slice is shorter than its element count asks for; kernels size them from checked shapes.
pub(crate) trait Level: Copy + Send + Sync {
    /// Runs `f` compiled for this level, as far as it is inlined.
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R;

    /// Decodes little-endian f16.
    fn decode_f16(self, bytes: &[u8], out: &mut [f32]);

    /// Encodes little-endian f16, rounding to nearest even.
    fn encode_f16(self, x: &[f32], bytes: &mut [u8]);

    /// Rounds whole blocks of activations to 8 bits, in the layout of [`quantized_row_bytes`]. A block with a NaN or an
    /// infinity gets a NaN scale and sum, so that no product hides it.
    fn quantize(self, x: &[f32], row: &mut [u8]);

    /// `q8_0` weights, quantized activations.
    fn dots_q8_0<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M];

    /// `q4_1` weights, quantized activations.
    fn dots_q4_1<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M];

    /// f32 weights, f32 activations.
    fn dots_f32<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M];

    /// f16 weights, f32 activations.
    fn dots_f16<const M: usize, const N: usize>(self, k: usize, w: [&[u8]; M], x: [&[u8]; N]) -> [[f32; N]; M];
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
