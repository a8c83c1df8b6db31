//! How each block dtype is unpacked: 32 bytes of quants at a time, scales as floats once a block.

use core::arch::x86_64::*;

use entensor_components::codec::{
    BlockCodec, CODEBOOK_IQ4_NL, CODEBOOK_MXFP4, Iq4Nl, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0,
    power_of_two_half,
};

/// The scales of a block, and what is added.
pub(crate) trait Head: Copy {
    /// Stands where no head is yet.
    const NONE: Self;

    /// The scales of a part: those of its first half in the low lanes, those of its second in the high ones.
    ///
    /// # Safety
    /// The CPU must have AVX2, FMA and F16C.
    unsafe fn scales(&self, part: usize) -> __m256;

    /// The offsets of a part, like its scales.
    ///
    /// # Safety
    /// As for [`Head::scales`].
    unsafe fn offsets(&self, part: usize) -> __m256;
}

/// One scale, and perhaps an offset, for the whole block. They stay in all lanes from the start: a conversion of one lane
/// would wait for whatever register that lane is merged into.
#[derive(Clone, Copy)]
pub(crate) struct Whole {
    scale: __m256,
    offset: __m256,
}

impl Head for Whole {
    // SAFETY: zeros are floats.
    const NONE: Self = unsafe { core::mem::zeroed() };

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(&self, _part: usize) -> __m256 {
        self.scale
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn offsets(&self, _part: usize) -> __m256 {
        self.offset
    }
}

/// A scale and an offset for each part.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    scales: [f32; 8],
    offsets: [f32; 8],
}

impl Head for Parts {
    const NONE: Self = Self { scales: [0.0; 8], offsets: [0.0; 8] };

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(&self, part: usize) -> __m256 {
        _mm256_set1_ps(self.scales[part])
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn offsets(&self, part: usize) -> __m256 {
        _mm256_set1_ps(self.offsets[part])
    }
}

/// A scale and an offset for each half of a part.
#[derive(Clone, Copy)]
pub(crate) struct Halves {
    scales: [f32; 16],
    offsets: [f32; 16],
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn halves(of: &[f32; 16], part: usize) -> __m256 {
    _mm256_set_m128(_mm_set1_ps(of[2 * part + 1]), _mm_set1_ps(of[2 * part]))
}

impl Head for Halves {
    const NONE: Self = Self { scales: [0.0; 16], offsets: [0.0; 16] };

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(&self, part: usize) -> __m256 {
        halves(&self.scales, part)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn offsets(&self, part: usize) -> __m256 {
        halves(&self.offsets, part)
    }
}

/// How quants are given: vectors multiply unsigned with signed bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quants {
    /// From 0 to 31.
    Unsigned,
    /// From 0 to 63, with this much to be taken off each.
    Biased(i8),
    /// Any signed byte: slower, since signs have to move to the activations.
    Signed,
}

/// A block dtype that the AVX2 level has products of. What the numbers mean is the codec's to say, and tests hold both
/// together.
pub(crate) trait Unpack: BlockCodec {
    /// How quants are given as bytes.
    const QUANTS: Quants;
    /// Whether the halves of a part have scales of their own.
    const HALF_SCALES: bool;
    /// Whether the halves of a part have offsets of their own.
    const HALF_OFFSETS: bool;
    /// Scales and offsets.
    type Head: Head;

    /// Scales and offsets of a block.
    ///
    /// # Safety
    /// `block` must point to the bytes of a block, and the CPU must have AVX2, FMA and F16C.
    unsafe fn head(block: *const u8) -> Self::Head;

    /// The quants of a part of a block.
    ///
    /// # Safety
    /// As for [`Unpack::head`], and the block must have the part.
    unsafe fn quants(block: *const u8, part: usize) -> __m256i;
}

/// The low half is elements 0–15 (low nibbles), the high half elements 16–31 (high nibbles).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack_nibbles(packed: __m128i) -> __m256i {
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// −1 where a bit of the word is set, 0 where it is not.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn spread_bits(word: u32) -> __m256i {
    // Every byte gets the byte of the word that its bit is in, then keeps that bit alone.
    let bytes = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(word.cast_signed()), bytes);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit)
}

/// The low bits of bytes after a shift by less than a byte.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shifted(v: __m256i, bits: usize, mask: i8) -> __m256i {
    let moved = _mm256_srl_epi16(v, _mm_cvtsi32_si128(bits as i32));
    _mm256_and_si256(moved, _mm256_set1_epi8(mask))
}

/// −1 where the bit of a byte is set, 0 where it is not.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn test_bit(v: __m256i, bit: usize) -> __m256i {
    let mask = _mm256_set1_epi8((1_u8 << bit).cast_signed());
    _mm256_cmpeq_epi8(_mm256_and_si256(v, mask), mask)
}

/// Two f16; or one, when something follows that can be read: a load of 16 bits alone would wait for whatever register it is
/// merged into.
///
/// # Safety
/// `at` must point to 4 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn two_f16(at: *const u8) -> [f32; 2] {
    // SAFETY: the caller promises the bytes.
    let both = _mm_cvtph_ps(_mm_cvtsi32_si128(unsafe { at.cast::<i32>().read_unaligned() }));
    [_mm_cvtss_f32(both), _mm_cvtss_f32(_mm_movehdup_ps(both))]
}

/// # Safety
/// `at` must point to a f16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn one_f16(at: *const u8) -> f32 {
    // SAFETY: the caller promises the bytes.
    let bits = unsafe { at.cast::<u16>().read_unaligned() };
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}

/// # Safety
/// `at` must point to 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn sixteen(at: *const u8) -> __m128i {
    // SAFETY: the caller promises the bytes.
    unsafe { _mm_loadu_si128(at.cast()) }
}

/// # Safety
/// `at` must point to 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn thirty_two(at: *const u8) -> __m256i {
    // SAFETY: the caller promises the bytes.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

/// A word of a block.
///
/// # Safety
/// `at` must point to 4 bytes.
#[inline(always)]
unsafe fn word(at: *const u8) -> u32 {
    // SAFETY: the caller promises the bytes.
    unsafe { at.cast::<u32>().read_unaligned() }
}

/// Eight signed bytes times a float.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eight_times(bytes: __m128i, by: f32, out: &mut [f32]) {
    let products = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), _mm256_set1_ps(by));
    let out = &mut out[..8];
    // SAFETY: eight floats.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), products) };
}

/// Sixteen signed bytes times a float.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sixteen_times(bytes: __m128i, by: f32, out: &mut [f32; 16]) {
    eight_times(bytes, by, &mut out[..8]);
    eight_times(_mm_srli_si128::<8>(bytes), by, &mut out[8..]);
}

/// A f16 in all lanes.
///
/// # Safety
/// `at` must point to a f16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn all_f16(at: *const u8) -> __m256 {
    // SAFETY: the caller promises the bytes.
    _mm256_cvtph_ps(_mm_set1_epi16(unsafe { at.cast::<i16>().read_unaligned() }))
}

/// A scale at the start of a block, and nothing added.
///
/// # Safety
/// As for [`all_f16`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scale_alone(at: *const u8) -> Whole {
    // SAFETY: the caller promises the bytes.
    Whole { scale: unsafe { all_f16(at) }, offset: _mm256_setzero_ps() }
}

/// Scales and minima of `q4_K` and `q5_K` as they are stored, a byte each.
///
/// # Safety
/// `block` must point to 16 bytes.
#[inline(always)]
pub(super) unsafe fn six_bit_scales(block: *const u8) -> (u64, u64) {
    // SAFETY: the caller promises the bytes.
    let [a, b, c] = unsafe { [word(block.add(4)), word(block.add(8)), word(block.add(12))] };
    let (low, high) = (0x0f0f_0f0f, 0x3030_3030);
    let join = |first: u32, second: u32| u64::from(first & 0x3f3f_3f3f) | u64::from(second) << 32;
    (join(a, c & low | a >> 2 & high), join(b, c >> 4 & low | b >> 2 & high))
}

/// Scales and minima of `q4_K` and `q5_K`.
///
/// # Safety
/// `block` must point to 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn six_bit_head(block: *const u8) -> Parts {
    // SAFETY: the caller promises the bytes.
    let ([d, dmin], (scales, minima)) = unsafe { (two_f16(block), six_bit_scales(block)) };
    let mut head = Parts::NONE;
    eight_times(_mm_cvtsi64_si128(scales.cast_signed()), d, &mut head.scales);
    eight_times(_mm_cvtsi64_si128(minima.cast_signed()), -dmin, &mut head.offsets);
    head
}

/// The scales of `q3_K` without what they are worth, from −32 to 31.
///
/// # Safety
/// `block` must point to a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn q3_k_scales(block: *const u8) -> __m128i {
    // SAFETY: the caller promises the bytes.
    let [a, b, c] = unsafe { [word(block.add(96)), word(block.add(100)), word(block.add(104))] };
    let (low, high) = (0x0f0f_0f0f, 0x3030_3030);
    let scales = _mm_setr_epi32(
        (a & low | c << 4 & high).cast_signed(),
        (b & low | c << 2 & high).cast_signed(),
        (a >> 4 & low | c & high).cast_signed(),
        (b >> 4 & low | c >> 2 & high).cast_signed(),
    );
    _mm_sub_epi8(scales, _mm_set1_epi8(32))
}

/// A codebook whose entries are not negative.
pub(super) const fn biased(codebook: [i8; 16], bias: i8) -> [u8; 16] {
    let mut biased = [0; 16];
    let mut i = 0;
    while i < 16 {
        biased[i] = (codebook[i] + bias).cast_unsigned();
        i += 1;
    }
    biased
}

macro_rules! is_halves {
    (Halves) => {
        true
    };
    ($other:ident) => {
        false
    };
}

/// One dtype: how its quants are given, its head, and the quants of a part.
macro_rules! unpack {
    ($name:ident, $kind:expr, $Head:ident |$block:ident| $head:expr, |$at:ident, $part:ident| $quants:expr) => {
        impl Unpack for $name {
            const QUANTS: Quants = $kind;
            const HALF_SCALES: bool = is_halves!($Head);
            const HALF_OFFSETS: bool = $name::OFFSETS && is_halves!($Head);
            type Head = $Head;

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn head($block: *const u8) -> $Head {
                // SAFETY: the caller promises a block, and everything read lies inside its `BYTES`.
                unsafe { $head }
            }

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn quants($at: *const u8, $part: usize) -> __m256i {
                // SAFETY: the caller promises a block with that part, and everything read lies inside its `BYTES`.
                unsafe { $quants }
            }
        }
    };
}

unpack!(Q4_0, Quants::Biased(8), Whole | block | scale_alone(block), |block, _part| unpack_nibbles(sixteen(
    block.add(2)
)));

unpack!(
    Q4_1,
    Quants::Unsigned,
    Whole | block | Whole { scale: all_f16(block), offset: all_f16(block.add(2)) },
    |block, _part| unpack_nibbles(sixteen(block.add(4)))
);

unpack!(Q8_0, Quants::Signed, Whole | block | scale_alone(block), |block, _part| thirty_two(block.add(2)));

unpack!(Q5_0, Quants::Biased(16), Whole | block | scale_alone(block), |block, _part| {
    let upper = _mm256_and_si256(spread_bits(word(block.add(2))), _mm256_set1_epi8(16));
    _mm256_or_si256(unpack_nibbles(sixteen(block.add(6))), upper)
});

unpack!(
    Q5_1,
    Quants::Unsigned,
    Whole | block | Whole { scale: all_f16(block), offset: all_f16(block.add(2)) },
    |block, _part| {
        let upper = _mm256_and_si256(spread_bits(word(block.add(4))), _mm256_set1_epi8(16));
        _mm256_or_si256(unpack_nibbles(sixteen(block.add(8))), upper)
    }
);

unpack!(Iq4Nl, Quants::Signed, Whole | block | scale_alone(block), |block, _part| {
    let codebook = _mm256_broadcastsi128_si256(sixteen(CODEBOOK_IQ4_NL.as_ptr().cast()));
    _mm256_shuffle_epi8(codebook, unpack_nibbles(sixteen(block.add(2))))
});

unpack!(
    Mxfp4,
    Quants::Biased(12),
    Whole | block | Whole { scale: _mm256_set1_ps(power_of_two_half(block.read())), offset: _mm256_setzero_ps() },
    |block, _part| {
        let codebook = const { biased(CODEBOOK_MXFP4, 12) };
        let codebook = _mm256_broadcastsi128_si256(sixteen(codebook.as_ptr()));
        _mm256_shuffle_epi8(codebook, unpack_nibbles(sixteen(block.add(1))))
    }
);

unpack!(
    Q2K,
    Quants::Unsigned,
    Halves | block | {
        let ([d, dmin], both) = (two_f16(block.add(80)), sixteen(block));
        let low = _mm_set1_epi8(15);
        let mut head = Halves::NONE;
        sixteen_times(_mm_and_si128(both, low), d, &mut head.scales);
        sixteen_times(_mm_and_si128(_mm_srli_epi16::<4>(both), low), -dmin, &mut head.offsets);
        head
    },
    |block, part| shifted(thirty_two(block.add(16 + part / 4 * 32)), part % 4 * 2, 3)
);

unpack!(
    Q3K,
    Quants::Biased(4),
    Halves | block | {
        let mut head = Halves::NONE;
        sixteen_times(q3_k_scales(block), one_f16(block.add(108)), &mut head.scales);
        head
    },
    |block, part| {
        let low = shifted(thirty_two(block.add(32 + part / 4 * 32)), part % 4 * 2, 3);
        let upper = _mm256_and_si256(test_bit(thirty_two(block), part), _mm256_set1_epi8(4));
        _mm256_or_si256(low, upper)
    }
);

unpack!(Q4K, Quants::Unsigned, Parts | block | six_bit_head(block), |block, part| shifted(
    thirty_two(block.add(16 + part / 2 * 32)),
    part % 2 * 4,
    15
));

unpack!(Q5K, Quants::Unsigned, Parts | block | six_bit_head(block), |block, part| {
    let low = shifted(thirty_two(block.add(48 + part / 2 * 32)), part % 2 * 4, 15);
    let upper = _mm256_and_si256(test_bit(thirty_two(block.add(16)), part), _mm256_set1_epi8(16));
    _mm256_or_si256(low, upper)
});

unpack!(
    Q6K,
    Quants::Biased(32),
    Halves | block | {
        let mut head = Halves::NONE;
        sixteen_times(sixteen(block.add(192)), one_f16(block.add(208)), &mut head.scales);
        head
    },
    |block, part| {
        let run = part / 4 * 64 + part % 2 * 32;
        let low = shifted(thirty_two(block.add(run)), part % 4 / 2 * 4, 15);
        let upper = shifted(thirty_two(block.add(128 + part / 4 * 32)), part % 4 * 2, 3);
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(upper))
    }
);
