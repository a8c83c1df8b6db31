//! Every level against the codecs' meaning, and against each other.

use entensor_components::{DType, DTypeSet, codec};

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

/// What a row of a bundle stands for.
fn bundled(bundle: &[u8], k: usize, row: usize) -> Vec<f32> {
    let value = |i: usize| {
        let block = &bundle[bundle_block(i / BLOCK)..];
        let float = |at: usize| f32::from_le_bytes(block[at..at + 4].try_into().expect("4 bytes"));
        let steps = BUNDLE_STEPS + row * 8 + i / FOUR % 2 * 4;
        assert_eq!(block[steps..steps + 2], block[steps + 2..steps + 4], "the same number twice");
        let steps = i16::from_le_bytes([block[steps], block[steps + 1]]);
        let quant = f32::from(block[row * BLOCK + i % BLOCK].cast_signed());
        quant * (f32::from(steps) * float(BUNDLE_SCALES + row * 4))
    };
    (0..k).map(value).collect()
}

/// Rows of activations with zeros, small halves and outliers, as a bundle.
fn bundle<L: Level>(level: L, k: usize) -> ([Vec<f32>; GROUP], Vec<u8>) {
    let mut bundle = vec![0xaa; bundle_block(k / BLOCK)];
    let rows: [Vec<f32>; GROUP] = std::array::from_fn(|row| {
        let mut x = noise(row as u32 + 70, k);
        for (block, x) in x.chunks_exact_mut(BLOCK).enumerate() {
            match (block + row) % 5 {
                0 => x.fill(0.0),
                1 => x.iter_mut().enumerate().for_each(|(i, v)| *v *= if i / FOUR % 2 == 0 { 1e-3 } else { 1.0 }),
                2 => x[9] *= 100.0,
                3 => x.iter_mut().for_each(|v| *v *= 1e-38),
                _ => {}
            }
        }
        let split = k / BLOCK / 2;
        level.round_bundle(&x[..split * BLOCK], row, 0, &mut bundle);
        level.round_bundle(&x[split * BLOCK..], row, split, &mut bundle);
        x
    });
    (rows, bundle)
}

fn check_bundles<L: Level>(level: L) {
    let k = 10 * BLOCK;
    let (rows, found) = bundle(level, k);
    assert_eq!(found, bundle(Portable, k).1, "levels agree");
    for (row, x) in rows.iter().enumerate() {
        for (b, (x, met)) in x.chunks_exact(BLOCK).zip(bundled(&found, k, row).chunks_exact(BLOCK)).enumerate() {
            for half in 0..2 {
                let of_half = || (0..BLOCK).filter(|i| i / FOUR % 2 == half);
                let most = of_half().fold(0.0_f32, |most, i| most.max(x[i].abs()));
                // A number of steps is rounded up, by at most one of 1024 of the larger scale.
                let other = x.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
                let close = 0.501 * (most / 127.0 + other / 127.0 / 1024.0) + 1e-34;
                for i in of_half() {
                    assert!((x[i] - met[i]).abs() <= close, "row {row} block {b}: {} became {}", x[i], met[i]);
                }
            }
            let sum: f64 = met.iter().map(|&v| f64::from(v)).sum();
            let at = bundle_block(b) + BUNDLE_SUMS + row * 4;
            let stored = f32::from_le_bytes(found[at..at + 4].try_into().expect("4 bytes"));
            let size: f64 = met.iter().map(|v| f64::from(v.abs())).sum();
            assert!((f64::from(stored) - sum).abs() <= 1e-5 * size, "row {row} block {b}: {stored} instead of {sum}");
        }
    }
    let mut x = noise(3, 3 * BLOCK);
    x[3] = f32::NAN;
    x[BLOCK + 5] = f32::INFINITY;
    let mut bundle = [level_bundle(level, &x), level_bundle(Portable, &x)];
    let met = bundled(&bundle[0], x.len(), 2);
    assert!(met[..2 * BLOCK].iter().all(|v| v.is_nan()) && met[2 * BLOCK..].iter().all(|v| v.is_finite()));
    // NaNs have many bit patterns; everything else is the same.
    for bundle in &mut bundle {
        for at in (0..3).flat_map(|b| [BUNDLE_SCALES, BUNDLE_SUMS].map(|part| bundle_block(b) + part + 8)) {
            let float = f32::from_le_bytes(bundle[at..at + 4].try_into().expect("4 bytes"));
            if float.is_nan() {
                bundle[at..at + 4].fill(0);
            }
        }
    }
    assert_eq!(bundle[0], bundle[1], "levels agree about what is not finite");
}

fn level_bundle<L: Level>(level: L, x: &[f32]) -> Vec<u8> {
    let mut bundle = vec![0; bundle_block(x.len() / BLOCK)];
    level.round_bundle(x, 2, 0, &mut bundle);
    bundle
}

/// Rows as they lie in memory: one after the other, or their blocks side by side.
fn laid_out(rows: &[Vec<u8>], unit: usize, side: usize) -> Vec<u8> {
    let blocks = rows[0].len() / unit;
    let mut bytes = vec![0; rows.len() * blocks * unit];
    for (i, row) in rows.iter().enumerate() {
        for (b, block) in row.chunks_exact(unit).enumerate() {
            let at = i / side * side * blocks + b * side + i % side;
            bytes[at * unit..][..unit].copy_from_slice(block);
        }
    }
    bytes
}

fn check_panels_of<B: Blocks, L: Level>(level: L, dtype: DType) {
    for (k, count, side) in [(1024, 16, 1), (768, 11, 1), (1024, 16, 8), (256, 8, 8)] {
        let weights: Vec<Vec<u8>> = (0..count).map(|i| encode(dtype, &noise(i as u32 + 1, k))).collect();
        let laid_out = laid_out(&weights, B::BYTES, side);
        let row = |i: usize| (&laid_out[(i / side * side * (k / B::ELEMENTS) + i % side) * B::BYTES..], side);
        let mut values = vec![vec![0.0; k]; count];
        for (i, values) in values.iter_mut().enumerate() {
            (dtype.row().dequantize)(&weights[i], values);
            let start = 256;
            let mut out = vec![0.0; k.saturating_sub(start)];
            level.decode_blocks::<B>(row(i).0, side, start / B::ELEMENTS, &mut out);
            for (found, expected) in out.iter().zip(&values[start.min(k)..]) {
                assert!((found - expected).abs() <= 1e-6 * (1.0 + expected.abs()), "{dtype}: {found}, not {expected}");
            }
        }
        if !L::has_byte_panels::<B>() && !is_portable_too::<B>() {
            continue;
        }
        let (_, bundle) = bundle(level, k);
        let rows: Vec<_> = (0..count).map(row).collect();
        let mut sums = [[1.0; PANEL_ROWS]; GROUP];
        let mut panel = [BytePart::ZERO; BYTE_PARTS];
        for first in (0..k / BLOCK).step_by(BYTE_PARTS) {
            let panel = &mut panel[..(k / BLOCK - first).min(BYTE_PARTS)];
            level.pack_bytes::<B>(&rows, first, panel);
            level.byte_dots(panel, &bundle[bundle_block(first)..], &mut sums);
        }
        for (j, sums) in sums.iter().enumerate() {
            let met = bundled(&bundle, k, j);
            for (i, sum) in sums.iter().enumerate() {
                let exact = 1.0 + if i < count { codec::dot(dtype, &weights[i], &met) } else { 0.0 };
                let size: f64 = if i < count {
                    values[i].iter().zip(&met).map(|(w, x)| f64::from((w * x).abs())).sum()
                } else {
                    0.0
                };
                assert!((f64::from(*sum) - exact).abs() <= 1e-6 * (1.0 + size), "{dtype} {i} {j}: {sum}, not {exact}");
            }
        }
    }
}

/// What the AVX2 level packs, the portable level packs for comparison.
fn is_portable_too<B: Blocks>() -> bool {
    #[cfg(target_arch = "x86_64")]
    return Avx2::has_byte_panels::<B>();
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// The largest quants that a dtype has, against the largest activations: nothing overflows.
fn check_extremes<B: Blocks, L: Level>(level: L, dtype: DType, fill: u8) {
    if !L::has_byte_panels::<B>() {
        return;
    }
    let k = 256;
    let mut row = encode(dtype, &noise(9, k));
    let scales = if matches!(dtype, DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K) { 4 } else { 2 };
    let scales = if dtype == DType::Mxfp4 { 1 } else { scales };
    row.chunks_exact_mut(B::BYTES).for_each(|block| block[scales..].fill(fill));
    for sign in [1.0, -1.0] {
        let x = vec![sign * 127.0; k];
        let mut bundle = vec![0; bundle_block(k / BLOCK)];
        level.round_bundle(&x, 0, 0, &mut bundle);
        let mut panel = [BytePart::ZERO; 8];
        level.pack_bytes::<B>(&[(&row, 1)], 0, &mut panel);
        let mut sums = [[0.0; PANEL_ROWS]; GROUP];
        level.byte_dots(&panel, &bundle, &mut sums);
        let exact = codec::dot(dtype, &row, &bundled(&bundle, k, 0));
        assert!((f64::from(sums[0][0]) - exact).abs() <= 1e-5 * (1.0 + exact.abs()), "{dtype}: {exact}");
    }
}

fn check_panels<L: Level>(level: L) {
    check_panels_of::<codec::Q4_0, L>(level, DType::Q4_0);
    check_panels_of::<codec::Q4_1, L>(level, DType::Q4_1);
    check_panels_of::<codec::Q5_0, L>(level, DType::Q5_0);
    check_panels_of::<codec::Q5_1, L>(level, DType::Q5_1);
    check_panels_of::<codec::Q8_0, L>(level, DType::Q8_0);
    check_panels_of::<codec::Q2K, L>(level, DType::Q2K);
    check_panels_of::<codec::Q3K, L>(level, DType::Q3K);
    check_panels_of::<codec::Q4K, L>(level, DType::Q4K);
    check_panels_of::<codec::Q5K, L>(level, DType::Q5K);
    check_panels_of::<codec::Q6K, L>(level, DType::Q6K);
    check_panels_of::<codec::Iq4Nl, L>(level, DType::Iq4Nl);
    check_panels_of::<codec::Mxfp4, L>(level, DType::Mxfp4);
    for fill in [0, 0xff] {
        check_extremes::<codec::Q4_0, L>(level, DType::Q4_0, fill);
        check_extremes::<codec::Q4_1, L>(level, DType::Q4_1, fill);
        check_extremes::<codec::Q5_0, L>(level, DType::Q5_0, fill);
        check_extremes::<codec::Q5_1, L>(level, DType::Q5_1, fill);
        check_extremes::<codec::Q4K, L>(level, DType::Q4K, fill);
        check_extremes::<codec::Q5K, L>(level, DType::Q5K, fill);
        check_extremes::<codec::Mxfp4, L>(level, DType::Mxfp4, fill);
    }
    check_bundles(level);
    for depth in [1, 7, 8, 200, PANEL_DEPTH] {
        let decoded: PanelRows = std::array::from_fn(|i| {
            noise(i as u32 + 1, PANEL_DEPTH).try_into().expect("as many elements as a row has")
        });
        let mut panel: Panel = [[f32::NAN; PANEL_ROWS]; PANEL_DEPTH];
        level.interleave(&decoded, depth, &mut panel);
        let x: [Vec<f32>; 6] = std::array::from_fn(|j| noise(j as u32 + 20, depth));
        let bytes = x.each_ref().map(|x| encode(DType::F32, x));
        let mut sums = [[0.5; PANEL_ROWS]; 6];
        level.panel_dots::<6>(&panel[..depth], bytes.each_ref().map(|x| &x[..]), &mut sums);
        for j in 0..6 {
            let mut alone = [[0.5; PANEL_ROWS]];
            level.panel_dots::<1>(&panel[..depth], [&bytes[j][..]], &mut alone);
            assert_eq!(alone[0].map(f32::to_bits), sums[j].map(f32::to_bits), "tiling shows");
            for (i, row) in decoded.iter().enumerate() {
                let dot: f64 = row.iter().zip(&x[j]).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                assert!((f64::from(sums[j][i]) - dot - 0.5).abs() <= 1e-6 * (1.0 + depth as f64), "{depth}: {i} {j}");
            }
        }
    }
}

/// Rows of f32 or f16 at a distance, with what lies between them being no numbers, and what they hold.
fn spread_rows(halves: bool, count: usize, k: usize) -> (Vec<u8>, usize, Vec<Vec<f32>>) {
    let dtype = if halves { DType::F16 } else { DType::F32 };
    let mut bytes = Vec::new();
    let mut values = Vec::new();
    for row in 0..count {
        let encoded = encode(dtype, &noise(row as u32 + 60, k));
        let mut held = vec![0.0; k];
        (dtype.row().dequantize)(&encoded, &mut held);
        values.push(held);
        bytes.extend(&encoded);
        // The last row ends where the bytes do.
        if row + 1 < count {
            bytes.extend([0xff; 12]);
        }
    }
    (bytes, k * if halves { 2 } else { 4 } + 12, values)
}

fn check_attention<L: Level>(level: L) {
    for halves in [false, true] {
        for (count, k) in [(1, 1), (3, 7), (4, 8), (5, 64), (32, 80), (31, 33), (7, 128)] {
            let (bytes, stride_bytes, values) = spread_rows(halves, count, k);
            let rows = PlainRows { halves, bytes: &bytes, stride_bytes, count };
            let queries: [Vec<f32>; 3] = std::array::from_fn(|n| noise(n as u32 + 7, k));
            let mut scores = [vec![0.5; count], vec![0.5; count], vec![0.5; count + 1]];
            let [a, b, c] = &mut scores;
            level.add_scores(k, rows, queries.each_ref().map(|q| &q[..]), [a, b, c]);
            for (query, scores) in queries.iter().zip(&scores) {
                let mut alone = vec![0.5; count];
                level.add_scores(k, rows, [query], [&mut alone]);
                assert_eq!(alone[..], scores[..count], "tiling shows");
                for (value, score) in values.iter().zip(scores) {
                    let exact: f64 = value.iter().zip(query).map(|(v, q)| f64::from(*v) * f64::from(*q)).sum();
                    assert!((f64::from(*score) - exact - 0.5).abs() <= 1e-6 * (1.0 + k as f64), "{score}, not {exact}");
                }
            }
            assert_eq!(scores[2][count], 0.5, "nothing beyond the rows");
            let weights: [Vec<f32>; 3] = std::array::from_fn(|n| noise(n as u32 + 90, count));
            let mut sums: [Vec<f32>; 3] = std::array::from_fn(|n| noise(n as u32 + 30, k));
            let before = sums.clone();
            let [a, b, c] = &mut sums;
            let rescale = [1.0, 0.25, 0.0];
            level.add_weighted(rows, weights.each_ref().map(|w| &w[..]), rescale, [a, b, c]);
            for n in 0..3 {
                let mut alone = before[n].clone();
                level.add_weighted(rows, [&weights[n][..]], [rescale[n]], [&mut alone]);
                assert_eq!(alone, sums[n], "tiling shows");
                for column in 0..k {
                    let added = |(value, weight): (&Vec<f32>, &f32)| f64::from(value[column]) * f64::from(*weight);
                    let exact = f64::from(before[n][column] * rescale[n])
                        + values.iter().zip(&weights[n]).map(added).sum::<f64>();
                    let found = f64::from(sums[n][column]);
                    assert!((found - exact).abs() <= 1e-6 * (1.0 + count as f64), "{found}, not {exact}");
                }
            }
        }
    }
}

fn check_panels<L: Level>(level: L) {
    for (rows, k) in [(PANEL, 8), (PANEL, 64), (PANEL, 13), (3, 16)] {
        let stride = k + 3;
        let held = noise(11, rows * stride);
        let mut panel = vec![[f32::NAN; PANEL]; k];
        level.turn_into_panel(&held, stride, &mut panel);
        for (d, line) in panel.iter().enumerate() {
            for (row, v) in line.iter().enumerate() {
                assert_eq!(*v, if row < rows { held[row * stride + d] } else { 0.0 });
            }
        }
        let (a, mut sums) = (noise(12, 6 * stride), noise(13, 6 * 20));
        let before = sums.clone();
        level.add_panel::<6>(&a, &panel, &mut sums, [stride, 20]);
        for row in 0..6 {
            for column in 0..20 {
                let (found, was) = (sums[row * 20 + column], before[row * 20 + column]);
                if column >= PANEL {
                    assert_eq!(found, was, "beyond the panel");
                    continue;
                }
                let exact: f64 = (0..k).map(|d| f64::from(a[row * stride + d]) * f64::from(panel[d][column])).sum();
                assert!((f64::from(found) - f64::from(was) - exact).abs() <= 1e-6 * (1.0 + k as f64));
            }
        }
    }
}

fn check_q8_0<L: Level>(level: L) {
    let bytes = encode(DType::Q8_0, &noise(5, 96));
    let (mut found, mut expected) = (vec![0.0; 96], vec![0.0; 96]);
    level.decode_q8_0(&bytes, &mut found);
    (DType::Q8_0.row().dequantize)(&bytes, &mut expected);
    assert_eq!(found, expected);
}

#[test]
fn the_portable_level_computes_what_the_codecs_say() {
    check_level(Portable);
    check_patterns(Portable);
    check_quantize(Portable);
    check_panels(Portable);
    check_f16(Portable);
    check_attention(Portable);
    check_panels(Portable);
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
    check_panels(level);
    check_q8_0(level);
}
