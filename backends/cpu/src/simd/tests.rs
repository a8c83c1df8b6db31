//! Every level against the codecs' meaning, and against each other.

mod attention;
mod panels;

use attention::{check_attention, check_columns, check_q8_0, check_weights};
use entensor_components::{DType, DTypeSet, codec};

use panels::check_panels;
#[cfg(target_arch = "x86_64")]
use panels::check_shifted;

use super::*;

/// Values with structure and noise, no dependency needed.
pub(super) fn noise(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (f64::from(state) / f64::from(u32::MAX) * 4.0 - 2.0) as f32
    };
    (0..len).map(|_| next()).collect()
}

fn encode(dtype: DType, x: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.row_bytes(x.len() as u64).expect("whole blocks") as usize];
    (dtype.row().quantize)(x, &mut bytes);
    bytes
}

/// Four rows, as a product wants them: f32 bytes, or a rounded group.
struct Activations {
    plain: [Vec<u8>; GROUP],
    group: Vec<u8>,
}

impl Activations {
    fn new<L: Level>(level: L, x: &[Vec<f32>; GROUP]) -> Self {
        let k = x[0].len();
        let mut group = vec![0xaa; group_bytes(k)];
        for (row, x) in x.iter().enumerate() {
            // In two parts, as kernels do it a tile at a time.
            let whole = x.len() / BLOCK * BLOCK;
            let split = whole / 2 / BLOCK * BLOCK;
            level.quantize(&x[..split], k, row, 0, &mut group);
            level.quantize(&x[split..whole], k, row, split / BLOCK, &mut group);
        }
        Self { plain: x.each_ref().map(|x| encode(DType::F32, x)), group }
    }

    /// What a rounded row stands for.
    fn rounded(&self, k: usize, row: usize) -> Vec<f32> {
        let layout = GroupLayout { k };
        let float = |at: usize| f32::from_le_bytes(self.group[at..at + 4].try_into().expect("4 bytes"));
        let value = |i: usize| {
            let scale = layout.scales(row, i / BLOCK) + i / FOUR % 2 * 4;
            f32::from(self.group[layout.quants(row, 0) + i].cast_signed()) * float(scale)
        };
        (0..k).map(value).collect()
    }

    fn dots<L: Level, const M: usize, const N: usize>(
        &self,
        level: L,
        dtype: DType,
        k: usize,
        w: [&[u8]; M],
        first: usize,
    ) -> [[f32; N]; M] {
        let plain = std::array::from_fn(|row| &self.plain[first + row][..]);
        let rounded = Rounded { group: &self.group, first };
        match dtype {
            DType::F32 => level.dots_f32(k, w, plain),
            DType::F16 => level.dots_f16(k, w, plain),
            DType::Bf16 => level.dots_bf16(k, w, plain),
            DType::Q4_1 => level.dots_q4_1::<M, N, 1>(k, w, rounded),
            DType::Q8_0 => level.dots_q8_0::<M, N, 1>(k, w, rounded),
            DType::Q4_0 => level.dots_blocks::<codec::Q4_0, M, N, 1>(k, w, rounded),
            DType::Q5_0 => level.dots_blocks::<codec::Q5_0, M, N, 1>(k, w, rounded),
            DType::Q5_1 => level.dots_blocks::<codec::Q5_1, M, N, 1>(k, w, rounded),
            DType::Q2K => level.dots_blocks::<codec::Q2K, M, N, 1>(k, w, rounded),
            DType::Q3K => level.dots_blocks::<codec::Q3K, M, N, 1>(k, w, rounded),
            DType::Q4K => level.dots_blocks::<codec::Q4K, M, N, 1>(k, w, rounded),
            DType::Q5K => level.dots_blocks::<codec::Q5K, M, N, 1>(k, w, rounded),
            DType::Q6K => level.dots_blocks::<codec::Q6K, M, N, 1>(k, w, rounded),
            DType::Iq4Nl => level.dots_blocks::<codec::Iq4Nl, M, N, 1>(k, w, rounded),
            DType::Mxfp4 => level.dots_blocks::<codec::Mxfp4, M, N, 1>(k, w, rounded),
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => unreachable!("no products of integers"),
        }
    }
}

fn check_level<L: Level>(level: L) {
    for dtype in DTypeSet::REALS.iter() {
        for k in [0, 1, 7, 8, 9, 31, 32, 33, 64, 96, 255, 256, 512, 576, 1536] {
            if dtype.row_bytes(k as u64).is_none() {
                continue;
            }
            let weights: [Vec<u8>; 4] = std::array::from_fn(|i| encode(dtype, &noise(i as u32 + 1, k)));
            let x: [Vec<f32>; 4] = std::array::from_fn(|j| noise(j as u32 + 100, k));
            let rows = Activations::new(level, &x);
            let w = weights.each_ref().map(|w| &w[..]);
            let tile: [[f32; 4]; 4] = rows.dots(level, dtype, k, w, 0);
            for i in 0..4 {
                for j in 0..4 {
                    let alone: [[f32; 1]; 1] = rows.dots(level, dtype, k, [w[i]], j);
                    assert_eq!(alone[0][0].to_bits(), tile[i][j].to_bits(), "tiling shows");
                    // With the activations as they were rounded, nothing is left but errors of f32 sums.
                    let met = if dtype.is_block() { rows.rounded(k, j) } else { x[j].clone() };
                    let exact = codec::dot(dtype, w[i], &met);
                    let error = (f64::from(tile[i][j]) - exact).abs();
                    let close = 1e-6 * (1.0 + k as f64);
                    assert!(error <= close, "{dtype} k={k}: {} instead of {exact}", tile[i][j]);
                }
            }
        }
    }
}

/// Blocks of random bytes, whose scales and quants meet every bit pattern, with scales that keep sums small.
fn check_patterns<L: Level>(level: L) {
    let k = 1024;
    for dtype in DTypeSet::BLOCKS.iter() {
        let (unit, elements) = (dtype.block_bytes() as usize, dtype.block_elements() as usize);
        let scales: &[usize] = match dtype {
            DType::Mxfp4 => &[],
            DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
            DType::Q2K => &[80, 82],
            DType::Q3K => &[108],
            DType::Q6K => &[208],
            _ => &[0],
        };
        let weights: [Vec<u8>; 4] = std::array::from_fn(|i| {
            let mut bytes: Vec<u8> =
                noise(40 + i as u32, k / elements * unit).iter().map(|v| (v * 4096.0).to_bits() as u8).collect();
            for (b, block) in bytes.chunks_exact_mut(unit).enumerate() {
                let scale = half::f16::from_f32(0.01 * (b as f32 - 1.5));
                scales.iter().for_each(|&at| block[at..at + 2].copy_from_slice(&scale.to_le_bytes()));
                if dtype == DType::Mxfp4 {
                    block[0] = 120 + b as u8 % 4;
                }
            }
            bytes
        });
        let x: [Vec<f32>; 4] = std::array::from_fn(|j| noise(j as u32 + 50, k));
        let rows = Activations::new(level, &x);
        let tile: [[f32; 4]; 4] = rows.dots(level, dtype, k, weights.each_ref().map(|w| &w[..]), 0);
        for (w, sums) in weights.iter().zip(tile) {
            let mut values = vec![0.0; k];
            (dtype.row().dequantize)(w, &mut values);
            for (j, sum) in sums.into_iter().enumerate() {
                let met = rows.rounded(k, j);
                let exact = codec::dot(dtype, w, &met);
                let size: f64 = values.iter().zip(&met).map(|(w, x)| f64::from((w * x).abs())).sum();
                assert!((f64::from(sum) - exact).abs() <= 1e-6 * size, "{dtype}: {sum} instead of {exact}");
            }
        }
    }
}

fn check_quantize<L: Level>(level: L) {
    let mut x = noise(7, 4 * BLOCK);
    x[..BLOCK].fill(0.0);
    x[BLOCK] = f32::NAN;
    x[2 * BLOCK + FOUR] = f32::NEG_INFINITY;
    let k = x.len();
    let rows: [Vec<f32>; GROUP] = std::array::from_fn(|row| x.iter().map(|v| v * (row + 1) as f32).collect());
    let (found, portable) = (Activations::new(level, &rows), Activations::new(Portable, &rows));
    assert_eq!(found.group, portable.group, "levels agree");
    let rounded = found.rounded(k, 0);
    assert!(rounded[..BLOCK].iter().all(|&v| v == 0.0));
    for (i, v) in rounded[BLOCK..3 * BLOCK].iter().enumerate() {
        // The even fours of the first block and the odd ones of the second; the other halves are unharmed.
        let spoilt = i / FOUR % 2 == i / BLOCK;
        assert_eq!(v.is_nan(), spoilt, "element {i}");
    }
    let step = x[3 * BLOCK..].iter().fold(0.0_f32, |m, v| m.max(v.abs())) / 127.0;
    for (a, b) in x[3 * BLOCK..].iter().zip(&rounded[3 * BLOCK..]) {
        assert!((a - b).abs() <= 0.5001 * step);
    }
}

fn check_f16<L: Level>(level: L) {
    let mut x = noise(3, 37);
    x[..6].copy_from_slice(&[f32::INFINITY, f32::NAN, 65_519.9, 65_520.0, 1.0 + 1.0 / 2048.0, -1e-7]);
    let mut bytes = vec![0; x.len() * 2];
    level.encode_f16(&x, &mut bytes);
    let mut back = vec![0.0; x.len()];
    level.decode_f16(&bytes, &mut back);
    for (x, back) in x.iter().zip(back) {
        let expected = half::f16::from_f32(*x).to_f32();
        assert!(back == expected || (back.is_nan() && expected.is_nan()), "{x} became {back}");
    }
}

#[test]
fn the_portable_level_computes_what_the_codecs_say() {
    check_level(Portable);
    check_patterns(Portable);
    check_quantize(Portable);
    check_panels(Portable);
    check_f16(Portable);
    check_attention(Portable);
    check_columns(Portable);
    check_weights(Portable);
    check_q8_0(Portable);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx2_computes_what_the_codecs_say() {
    let Some(level) = Avx2::detect() else { return };
    check_level(level);
    check_patterns(level);
    check_quantize(level);
    check_panels(level);
    check_f16(level);
    check_attention(level);
    check_columns(level);
    check_weights(level);
    check_q8_0(level);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn avx512_computes_what_the_codecs_say() {
    let Some(level) = Avx512::detect() else {
        use std::io::Write;
        // What a test prints is not seen when it passes.
        let _ = writeln!(std::io::stderr(), "SKIPPED: this CPU has no AVX-512 with VNNI");
        return;
    };
    check_shifted(level);
}
