//! Products with a single row at every level, against the codecs' meaning.

use entensor_components::{DType, DTypeSet, codec};

use super::{
    super::{Fetch, Level, Portable, tests::noise},
    *,
};
use crate::memory::layout::{SIDE, is_repacked};

/// A rounded row, and what it stands for.
struct Vector {
    bytes: Vec<u8>,
    met: Vec<f32>,
}

impl Vector {
    fn new(level: impl Level, x: &[f32], pairing: Pairing) -> Self {
        let mut bytes = vec![0xaa; vector_bytes(x.len())];
        if !x.len().is_multiple_of(QUAD * BLOCK) {
            bytes[x.len() / (QUAD * BLOCK) * QUAD_BYTES..].fill(0);
        }
        // In two parts, as kernels do it a tile at a time.
        let split = x.len() / 2 / 256 * 256;
        level.quantize_vector(&x[..split], 0, pairing, &mut bytes);
        level.quantize_vector(&x[split..], split / BLOCK, pairing, &mut bytes);
        let float = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let value = |i: usize| {
            let (slot, at) = (pairing.slot(i / BLOCK), i % BLOCK);
            let quant = bytes[slot.quants() + at / 16 * BLOCK + at % 16].cast_signed();
            f32::from(quant) * float(slot.scales() + at / FOUR % 2 * 4)
        };
        let met = (0..x.len()).map(value).collect();
        Self { bytes, met }
    }
}

fn products<const S: usize>(level: impl Level, dtype: DType, k: usize, w: WeightRows<'_>, x: &[u8], out: &mut [f32]) {
    // Rows alone are fetched past the caches, which no bit may show.
    let fetch = if out.len() == 1 { Fetch::Pass } else { Fetch::Keep };
    match dtype {
        DType::F32 => level.vector_f32(k, w, x, out),
        DType::F16 => level.vector_f16(k, w, x, out),
        DType::Bf16 => level.vector_bf16(k, w, x, out),
        DType::Q4_0 => level.vector_blocks::<codec::Q4_0, S>(k, w, x, fetch, out),
        DType::Q4_1 => level.vector_blocks::<codec::Q4_1, S>(k, w, x, fetch, out),
        DType::Q5_0 => level.vector_blocks::<codec::Q5_0, S>(k, w, x, fetch, out),
        DType::Q5_1 => level.vector_blocks::<codec::Q5_1, S>(k, w, x, fetch, out),
        DType::Q8_0 => level.vector_blocks::<codec::Q8_0, S>(k, w, x, fetch, out),
        DType::Q2K => level.vector_blocks::<codec::Q2K, S>(k, w, x, fetch, out),
        DType::Q3K => level.vector_blocks::<codec::Q3K, S>(k, w, x, fetch, out),
        DType::Q4K => level.vector_blocks::<codec::Q4K, S>(k, w, x, fetch, out),
        DType::Q5K => level.vector_blocks::<codec::Q5K, S>(k, w, x, fetch, out),
        DType::Q6K => level.vector_blocks::<codec::Q6K, S>(k, w, x, fetch, out),
        DType::Iq4Nl => level.vector_blocks::<codec::Iq4Nl, S>(k, w, x, fetch, out),
        DType::Mxfp4 => level.vector_blocks::<codec::Mxfp4, S>(k, w, x, fetch, out),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => unreachable!("no products of integers"),
    }
}

/// The product of one row.
fn product(level: impl Level, dtype: DType, k: usize, bytes: &[u8], x: &[u8]) -> f32 {
    let mut out = [0.0];
    products::<1>(level, dtype, k, WeightRows { bytes, stride_bytes: bytes.len() }, x, &mut out);
    out[0]
}

/// The activations as the products of a dtype want them, and what they stand for.
fn activations(level: impl Level, dtype: DType, x: &[f32]) -> Vector {
    if dtype.is_block() {
        Vector::new(level, x, Pairing::of(dtype.block_elements() as usize))
    } else {
        Vector { bytes: x.iter().flat_map(|v| v.to_le_bytes()).collect(), met: x.to_vec() }
    }
}

/// Checks rows against the codec, alone and among others, which lie some bytes apart.
fn check_rows(level: impl Level, dtype: DType, weights: &[Vec<u8>; 4], x: &[f32]) {
    let k = x.len();
    let x = activations(level, dtype, x);
    let stride_bytes = weights[0].len() + 6;
    let spread: Vec<u8> = weights.iter().flat_map(|w| w.iter().copied().chain([0x55; 6])).collect();
    let rows = WeightRows { bytes: &spread[..4 * stride_bytes - 6], stride_bytes };
    let mut four = [0.0; 4];
    products::<1>(level, dtype, k, rows, &x.bytes, &mut four);
    for (w, found) in weights.iter().zip(four) {
        let alone = product(level, dtype, k, w, &x.bytes);
        assert_eq!(alone.to_bits(), found.to_bits(), "{dtype} k={k}: tiling shows");
        let mut values = vec![0.0; k];
        (dtype.row().dequantize)(w, &mut values);
        // With the activations as they were rounded, nothing is left but errors of f32 sums.
        let exact = codec::dot(dtype, w, &x.met);
        let size: f64 = values.iter().zip(&x.met).map(|(w, x)| f64::from((w * x).abs())).sum();
        assert!((f64::from(found) - exact).abs() <= 1e-6 * size, "{dtype} k={k}: {found} instead of {exact}");
    }
    if is_repacked(dtype) {
        check_side_by_side(level, dtype, weights, &x.bytes, k, four);
    }
}

/// Rows beside others have the bits of rows by themselves.
fn check_side_by_side(level: impl Level, dtype: DType, weights: &[Vec<u8>; 4], x: &[u8], k: usize, alone: [f32; 4]) {
    let unit = dtype.block_bytes() as usize;
    let blocks = k / dtype.block_elements() as usize;
    let mut side = vec![0x55; blocks * SIDE * unit];
    for (row, w) in weights.iter().enumerate() {
        for (block, bytes) in w.chunks_exact(unit).enumerate() {
            side[(block * SIDE + row) * unit..][..unit].copy_from_slice(bytes);
        }
    }
    let mut found = [0.0; 4];
    let rows = WeightRows { bytes: &side, stride_bytes: blocks * unit };
    products::<SIDE>(level, dtype, k, rows, x, &mut found);
    assert_eq!(found.map(f32::to_bits), alone.map(f32::to_bits), "{dtype} k={k}: the layout shows");
}

fn check_level(level: impl Level) {
    for dtype in DTypeSet::REALS.iter() {
        for k in [0, 1, 7, 8, 9, 31, 32, 33, 64, 96, 128, 160, 224, 255, 256, 512, 576, 1536] {
            let Some(bytes) = dtype.row_bytes(k as u64) else { continue };
            let weights = std::array::from_fn(|i| {
                let mut row = vec![0; bytes as usize];
                (dtype.row().quantize)(&noise(i as u32 + 1, k), &mut row);
                row
            });
            check_rows(level, dtype, &weights, &noise(100 + k as u32, k));
        }
    }
}

/// Where the f16 scales of a block are.
fn scales_of(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Mxfp4 => &[],
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
        DType::Q2K => &[80, 82],
        DType::Q3K => &[108],
        DType::Q6K => &[208],
        _ => &[0],
    }
}

/// Blocks made of `byte`, with scales that keep sums small.
fn pattern(dtype: DType, k: usize, mut byte: impl FnMut() -> u8) -> Vec<u8> {
    let (unit, elements) = (dtype.block_bytes() as usize, dtype.block_elements() as usize);
    let mut bytes: Vec<u8> = (0..k / elements * unit).map(|_| byte()).collect();
    for (b, block) in bytes.chunks_exact_mut(unit).enumerate() {
        let scale = half::f16::from_f32(0.01 * (b as f32 % 5.0 - 1.5));
        scales_of(dtype).iter().for_each(|&at| block[at..at + 2].copy_from_slice(&scale.to_le_bytes()));
        if dtype == DType::Mxfp4 {
            block[0] = b as u8 % 4 + if b % 7 == 6 { 0 } else { 120 };
        }
    }
    bytes
}

/// Random bytes, whose scales and quants meet every bit pattern; and the largest quants with the largest activations, of one sign and of
/// alternating signs, which fill every narrow sum.
fn check_patterns(level: impl Level) {
    let k = 1024;
    for dtype in DTypeSet::BLOCKS.iter() {
        let mut state = 0x2545_f491_u32;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 16) as u8
        };
        let weights = std::array::from_fn(|_| pattern(dtype, k, &mut random));
        check_rows(level, dtype, &weights, &noise(50, k));
        // All bits set, none set, and the ends of signed bytes.
        let weights = [0xff, 0x00, 0x80, 0x7f].map(|byte| pattern(dtype, k, || byte));
        for sign in [0, 1, 4, 8, 16] {
            let x: Vec<f32> = (0..k).map(|i| if sign > 0 && i / sign % 2 == 1 { -2.0 } else { 2.0 }).collect();
            check_rows(level, dtype, &weights, &x);
        }
    }
}

/// What the levels write is the same, and what is not finite shows.
fn check_rounding(level: impl Level) {
    for (pairing, k) in [(Pairing::Neighbours, 5 * BLOCK), (Pairing::Halves, 512)] {
        let mut x = noise(7, k);
        x[BLOCK] = f32::NAN;
        x[2 * BLOCK + FOUR] = f32::NEG_INFINITY;
        let (found, portable) = (Vector::new(level, &x, pairing), Vector::new(Portable, &x, pairing));
        assert_eq!(found.bytes, portable.bytes, "levels agree");
        for (i, v) in found.met.iter().enumerate() {
            // The even fours of the second block and the odd ones of the third.
            let spoilt = i / BLOCK == 1 && (i / FOUR).is_multiple_of(2) || i / BLOCK == 2 && i / FOUR % 2 == 1;
            assert_eq!(v.is_nan(), spoilt, "element {i}");
        }
        let step = x[3 * BLOCK..].iter().fold(0.0_f32, |m, v| m.max(v.abs())) / 127.0;
        assert!(x[3 * BLOCK..].iter().zip(&found.met[3 * BLOCK..]).all(|(a, b)| (a - b).abs() <= 0.5001 * step));
        let dtypes: &[DType] =
            if pairing == Pairing::Halves { &[DType::Q4K, DType::Q6K] } else { &[DType::Q4_1, DType::Q8_0] };
        for &dtype in dtypes {
            let w = pattern(dtype, k, || 1);
            assert!(
                product(level, dtype, k, &w, &found.bytes).is_nan(),
                "{dtype}: a product of what is not finite is NaN"
            );
        }
    }
}

#[test]
fn every_block_has_one_place() {
    for (pairing, blocks) in [(Pairing::Neighbours, 9), (Pairing::Neighbours, 8), (Pairing::Halves, 16)] {
        let mut taken = vec![false; vector_bytes(blocks * BLOCK)];
        for block in 0..blocks {
            let slot = pairing.slot(block);
            let mut take = |at: usize, len: usize| {
                for taken in &mut taken[at..at + len] {
                    assert!(!std::mem::replace(taken, true), "block {block}: bytes from {at} on are another's");
                }
            };
            take(slot.quants(), 16);
            take(slot.quants() + BLOCK, 16);
            take(slot.scales(), 8);
            take(slot.sums(), 8);
            take(slot.counts(), 8);
        }
        assert_eq!(taken.iter().all(|&taken| taken), blocks.is_multiple_of(QUAD), "and nothing is left over");
    }
}

#[test]
fn the_portable_level_multiplies_vectors_as_the_codecs_say() {
    check_level(Portable);
    check_patterns(Portable);
    check_rounding(Portable);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx2_multiplies_vectors_as_the_codecs_say() {
    let Some(level) = super::super::Avx2::detect() else { return };
    check_level(level);
    check_patterns(level);
    check_rounding(level);
}
