//! Dtypes of independent blocks of 32.

use core::arch::x86_64::*;

use entensor_components::codec::{
    BlockCodec, CODEBOOK_IQ4_NL, CODEBOOK_MXFP4, Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0,
};

use super::{
    super::{
        super::{BLOCK, QUAD, QUAD_BYTES},
        blocks::biased,
    },
    Quad, Stream, both, fetch_ahead, fold_16, fold_32, high_nibbles, low_nibbles, unsigned_pair, widen,
};

/// What quants are, and what becomes of their products.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quants {
    /// From 0 to 31.
    Unsigned,
    /// From 0 to 31, with this much to be taken off each.
    Biased(i16),
    /// Any signed byte: signs have to move to the activations, and products fill 16 bits.
    Signed,
}

/// Blocks of 32.
trait Small: BlockCodec {
    const QUANTS: Quants;

    /// The scales of four blocks, each followed by what is added (or anything, where nothing is), from their first words.
    ///
    /// # Safety
    /// The CPU must have AVX2, FMA and F16C.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn heads(words: __m128i) -> __m256 {
        _mm256_cvtph_ps(words)
    }

    /// The quants of two blocks: elements 0–15 of both, then 16–31.
    ///
    /// # Safety
    /// Each must point to a block, and the CPU must have AVX2, FMA and F16C.
    unsafe fn quants(a: *const u8, b: *const u8) -> [__m256i; 2];
}

/// The first four bytes of each block.
///
/// # Safety
/// Each must point to 4 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn first_words(blocks: [*const u8; QUAD]) -> __m128i {
    // SAFETY: the caller promises the bytes.
    let [a, c, b, d] = unsafe { [word(blocks[0]), word(blocks[1]), word(blocks[2]), word(blocks[3])] };
    // Broadcasts are loads, and a blend is the cheapest instruction there is.
    _mm_blend_epi32::<0b1100>(_mm_blend_epi32::<0b10>(a, c), _mm_blend_epi32::<0b1000>(b, d))
}

/// The same for four blocks of one row, with half as many instructions: whatever surrounds a word is loaded with it, so that it comes into
/// the lane where it is wanted.
///
/// # Safety
/// They must be `A C B D`, each at least a block behind the one before it in the alphabet, and all memory from the first to the end of the
/// last must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn first_words_of_quad<B: Small>(blocks: [*const u8; QUAD]) -> __m128i {
    // Then 16 bytes before `B` and 20 before `D` are not before `A`, and 32 bytes from `A`, or from 4 before `C`, are not behind `D`.
    const { assert!(B::BYTES >= 16) };
    let [a, c, b, d] = blocks;
    // SAFETY: the caller promises what lies between the first block and the end of the last.
    let [a, c, b, d] = unsafe {
        [
            _mm256_loadu_si256(a.cast()),
            _mm256_loadu_si256(c.sub(4).cast()),
            _mm256_loadu_si256(b.sub(16).cast()),
            _mm256_loadu_si256(d.sub(20).cast()),
        ]
    };
    let low = _mm256_blend_epi32::<0b10>(a, c);
    let all = _mm256_blend_epi32::<0b10_0000>(_mm256_blend_epi32::<0b1_0000>(low, b), d);
    _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(all))
}

/// Four bytes, again and again.
///
/// # Safety
/// `at` must point to 4 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn word(at: *const u8) -> __m128i {
    // SAFETY: the caller promises the bytes.
    _mm_set1_epi32(unsafe { at.cast::<i32>().read_unaligned() })
}

/// Stands for blocks that are missing in the last quad: its scale is zero in every dtype that has a zero.
static MISSING: [u8; 64] = [0; 64];

/// The partial sums of a row: products, and what is added.
#[derive(Clone, Copy)]
struct Sums {
    products: __m256,
    added: __m256,
}

/// Adds the products of four blocks, in the order `A C B D`, whose first words are `words`; of two, `A` and `B`, if there is one pair.
///
/// # Safety
/// Each must point to a block, and `x` must be a quad of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_quad<B: Small, const PAIRS: usize>(
    blocks: [*const u8; QUAD],
    words: __m128i,
    x: Quad,
    sums: Sums,
) -> Sums {
    let mut pairs = [_mm256_setzero_si256(); 2];
    // SAFETY: as the caller promises.
    let dots = unsafe {
        pairs[0] = pair::<B>(blocks[0], blocks[2], [x.quants(0, 0), x.quants(0, 1)]);
        if PAIRS == 2 {
            pairs[1] = pair::<B>(blocks[1], blocks[3], [x.quants(1, 0), x.quants(1, 1)]);
        }
        match B::QUANTS {
            Quants::Signed => fold_32(pairs),
            // At most 31 · 127 · 8, so 16 bits are enough.
            Quants::Unsigned => widen(fold_16(pairs)),
            Quants::Biased(8) => widen(_mm256_sub_epi16(fold_16(pairs), _mm256_slli_epi16::<3>(x.counts()))),
            Quants::Biased(16) => widen(_mm256_sub_epi16(fold_16(pairs), _mm256_slli_epi16::<4>(x.counts()))),
            Quants::Biased(by) => {
                let bias = _mm256_mullo_epi16(x.counts(), _mm256_set1_epi16(by));
                widen(_mm256_sub_epi16(fold_16(pairs), bias))
            }
        }
    };
    // SAFETY: as the caller promises.
    unsafe {
        let heads = B::heads(words);
        let scales = _mm256_mul_ps(_mm256_moveldup_ps(heads), x.scales());
        Sums {
            products: _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), scales, sums.products),
            added: if B::OFFSETS { _mm256_fmadd_ps(heads, x.sums(), sums.added) } else { sums.added },
        }
    }
}

/// Products of two blocks: four sums each, of 16 bits or, where quants are signed, of 32.
///
/// # Safety
/// Each must point to a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn pair<B: Small>(a: *const u8, b: *const u8, x: [__m256i; 2]) -> __m256i {
    // SAFETY: as the caller promises.
    let quants = unsafe { B::quants(a, b) };
    if B::QUANTS != Quants::Signed {
        return unsigned_pair(quants, x);
    }
    // |w| · (x with the sign of w): at most 2 · 128 · 127, so 16 bits are enough for two, and for no more.
    let first = _mm256_maddubs_epi16(_mm256_abs_epi8(quants[0]), _mm256_sign_epi8(x[0], quants[0]));
    let second = _mm256_maddubs_epi16(_mm256_abs_epi8(quants[1]), _mm256_sign_epi8(x[1], quants[1]));
    _mm256_add_epi32(widen(first), widen(second))
}

/// # Safety
/// As for [`Stream::row`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn row<B: Small, const S: usize, const PASS: bool>(w: *const u8, k: usize, x: *const u8) -> __m256 {
    let mut sums = Sums { products: _mm256_setzero_ps(), added: _mm256_setzero_ps() };
    let blocks = k / BLOCK;
    let at = |block: usize| w.wrapping_add(block * S * B::BYTES);
    for quad in 0..blocks / QUAD {
        let first = at(quad * QUAD);
        // Four blocks of a row by itself have at most so many bytes; those of rows side by side are fetched by all eight.
        if QUAD * B::BYTES <= 96 {
            fetch_ahead::<96, PASS>(first);
        } else {
            fetch_ahead::<136, PASS>(first);
        }
        let block = |i: usize| first.wrapping_add(i * S * B::BYTES);
        // SAFETY: all four blocks lie in the row, and the quad in the activations.
        sums = unsafe {
            let x = Quad(x.add(quad * QUAD_BYTES));
            let blocks = [block(0), block(2), block(1), block(3)];
            add_quad::<B, 2>(blocks, first_words_of_quad::<B>(blocks), x, sums)
        };
    }
    let rest = blocks % QUAD;
    if rest > 0 {
        let first = blocks - rest;
        let block = |i: usize| if i < rest { at(first + i) } else { MISSING.as_ptr() };
        let four = [block(0), block(2), block(1), block(3)];
        // SAFETY: as above; blocks beyond the row are replaced.
        sums = unsafe {
            let x = Quad(x.add(blocks / QUAD * QUAD_BYTES));
            let words = first_words(four);
            if rest <= 2 { add_quad::<B, 1>(four, words, x, sums) } else { add_quad::<B, 2>(four, words, x, sums) }
        };
    }
    if B::OFFSETS { _mm256_add_ps(sums.products, sums.added) } else { sums.products }
}

/// Nibbles of two blocks: the lower ones are elements 0–15, the upper ones 16–31.
///
/// # Safety
/// Each must point to 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn nibbles(a: *const u8, b: *const u8) -> [__m256i; 2] {
    // SAFETY: as the caller promises.
    let packed = unsafe { both(a, b) };
    [low_nibbles(packed), high_nibbles(packed)]
}

/// Fifth bits of two blocks, from a word each: elements 0–15 of both, then 16–31.
///
/// # Safety
/// Each must point to 4 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fifth_bits(a: *const u8, b: *const u8) -> [__m256i; 2] {
    // SAFETY: as the caller promises.
    let words = unsafe { _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(word(a)), word(b)) };
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    // Every byte gets the byte of its word that its bit is in, then keeps that bit alone.
    let (zero, two) = (0, 0x0202_0202_0202_0202);
    let (one, three) = (0x0101_0101_0101_0101, 0x0303_0303_0303_0303);
    let first = _mm256_shuffle_epi8(words, _mm256_setr_epi64x(zero, one, zero, one));
    let second = _mm256_shuffle_epi8(words, _mm256_setr_epi64x(two, three, two, three));
    let sixteen = _mm256_set1_epi8(16);
    [
        _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(first, bit), bit), sixteen),
        _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(second, bit), bit), sixteen),
    ]
}

/// Nibbles at `NIBBLES` of two blocks with the fifth bits at `BITS`.
///
/// # Safety
/// Each must point to a block that has both.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn five_bits<const BITS: usize, const NIBBLES: usize>(a: *const u8, b: *const u8) -> [__m256i; 2] {
    // SAFETY: as the caller promises.
    let (low, high) = unsafe { (nibbles(a.add(NIBBLES), b.add(NIBBLES)), fifth_bits(a.add(BITS), b.add(BITS))) };
    [_mm256_or_si256(low[0], high[0]), _mm256_or_si256(low[1], high[1])]
}

/// What the nibbles at `NIBBLES` of two blocks stand for.
///
/// # Safety
/// Each must point to a block that has them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn looked_up<const NIBBLES: usize>(a: *const u8, b: *const u8, codebook: &[u8; 16]) -> [__m256i; 2] {
    // SAFETY: as the caller promises, and the codebook has 16 bytes.
    let (indices, book) = unsafe {
        (
            nibbles(a.add(NIBBLES), b.add(NIBBLES)),
            _mm256_broadcastsi128_si256(_mm_loadu_si128(codebook.as_ptr().cast())),
        )
    };
    [_mm256_shuffle_epi8(book, indices[0]), _mm256_shuffle_epi8(book, indices[1])]
}

macro_rules! small {
    ($($name:ident, $quants:expr, |$a:ident, $b:ident| $unpacked:expr $(, heads $heads:path)?;)+) => {$(
        impl Small for $name {
            const QUANTS: Quants = $quants;

            $(
                #[inline]
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn heads(words: __m128i) -> __m256 {
                    $heads(words)
                }
            )?

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn quants($a: *const u8, $b: *const u8) -> [__m256i; 2] {
                // SAFETY: the caller promises two blocks, and everything read lies inside their `BYTES`.
                unsafe { $unpacked }
            }
        }

        impl Stream for $name {
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn row<const S: usize, const PASS: bool>(w: *const u8, k: usize, x: *const u8) -> __m256 {
                // SAFETY: as the caller promises.
                unsafe { row::<$name, S, PASS>(w, k, x) }
            }
        }
    )+};
}

const BOOK_IQ4_NL: [u8; 16] = biased(CODEBOOK_IQ4_NL, 0);
const BOOK_MXFP4: [u8; 16] = biased(CODEBOOK_MXFP4, 12);

small! {
    Q4_0, Quants::Biased(8), |a, b| nibbles(a.add(2), b.add(2));
    Q4_1, Quants::Unsigned, |a, b| nibbles(a.add(4), b.add(4));
    Q5_0, Quants::Biased(16), |a, b| five_bits::<2, 6>(a, b);
    Q5_1, Quants::Unsigned, |a, b| five_bits::<4, 8>(a, b);
    Q8_0, Quants::Signed, |a, b| [both(a.add(2), b.add(2)), both(a.add(18), b.add(18))];
    Iq4Nl, Quants::Signed, |a, b| looked_up::<2>(a, b, &BOOK_IQ4_NL);
    Mxfp4, Quants::Biased(12), |a, b| looked_up::<1>(a, b, &BOOK_MXFP4), heads powers_of_two;
}

/// Half the powers of two that exponent bytes stand for: [`power_of_two_half`](entensor_components::codec::power_of_two_half) of the lowest bytes of
/// four words.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn powers_of_two(words: __m128i) -> __m256 {
    let exponents = _mm256_cvtepu32_epi64(_mm_and_si128(words, _mm_set1_epi32(255)));
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)));
    let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponents);
    let is_normal = _mm256_cmpgt_epi32(exponents, _mm256_set1_epi32(1));
    _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal))
}
