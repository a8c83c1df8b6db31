//! Panels of weights, and bundles of activations.

use super::*;

/// Levels whose byte panels meet bundles.
pub(super) trait Bundled: Level + Panels<Base = Self, Part = BytePart> {}
impl<L: Level + Panels<Base = L, Part = BytePart>> Bundled for L {}

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
                1 => x
                    .iter_mut()
                    .enumerate()
                    .for_each(|(i, v)| *v *= if (i / FOUR).is_multiple_of(2) { 1e-3 } else { 1.0 }),
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

fn check_panels_of<B: Blocks, L: Bundled>(level: L, dtype: DType) {
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
            level.byte_dots::<B>(panel, k, &bundle, first, &mut sums);
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
fn check_extremes<B: Blocks, L: Bundled>(level: L, dtype: DType, fill: u8) {
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
        level.byte_dots::<B>(&panel, k, &bundle, 0, &mut sums);
        let exact = codec::dot(dtype, &row, &bundled(&bundle, k, 0));
        assert!((f64::from(sums[0][0]) - exact).abs() <= 1e-5 * (1.0 + exact.abs()), "{dtype}: {exact}");
    }
}

pub(super) fn check_panels<L: Bundled>(level: L) {
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
    check_panel_dots(level);
}

/// Panels of f32.
fn check_panel_dots<L: Panels>(level: L) {
    for depth in [1, 7, 8, 200, PANEL_DEPTH] {
        let decoded: PanelRows = std::array::from_fn(|i| {
            noise(i as u32 + 1, PANEL_DEPTH).try_into().expect("as many elements as a row has")
        });
        let mut panel: Panel = [[f32::NAN; PANEL_ROWS]; PANEL_DEPTH];
        level.base().interleave(&decoded, depth, &mut panel);
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

/// Byte panels that meet groups with 128 added to each quant, for dtypes with quants of every kind.
#[cfg(target_arch = "x86_64")]
fn check_shifted_of<B: Blocks>(level: Avx512, dtype: DType) {
    assert!(Avx512::has_byte_panels::<B>());
    for (k, count, side, extreme) in
        [(1024, 16, 1, false), (768, 11, 1, false), (1024, 16, 8, false), (256, 8, 8, false), (512, 16, 1, true)]
    {
        let mut weights: Vec<Vec<u8>> = (0..count).map(|i| encode(dtype, &noise(i as u32 + 1, k))).collect();
        if extreme {
            // The largest quants of both signs, scales as they are.
            let scale = |at: usize| match dtype {
                DType::Q6K => at >= 192,
                DType::Q3K => at >= 96,
                _ => at < if B::OFFSETS { if B::ELEMENTS == BLOCK { 4 } else { 16 } } else { 2 },
            };
            for (i, row) in weights.iter_mut().enumerate() {
                for (at, byte) in row.iter_mut().enumerate().filter(|(at, _)| !scale(at % B::BYTES)) {
                    *byte = if dtype == DType::Q8_0 { [0x80, 0x7f][(i + at) % 2] } else { [0, 0xff][i % 2] };
                }
            }
        }
        let laid_out = laid_out(&weights, B::BYTES, side);
        let rows: Vec<_> = (0..count)
            .map(|i| (&laid_out[(i / side * side * (k / B::ELEMENTS) + i % side) * B::BYTES..], side))
            .collect();
        let x: [Vec<f32>; GROUP] = std::array::from_fn(|row| match (extreme, row % 2) {
            (false, _) => noise(row as u32 + 90, k),
            (true, 0) => vec![127.0; k],
            (true, _) => vec![-127.0; k],
        });
        let rounded = Activations::new(level.base(), &x);
        let mut group = rounded.group.clone();
        group[..GROUP * k].iter_mut().for_each(|quant| *quant ^= 0x80);
        let mut sums = [[1.0; PANEL_ROWS]; GROUP];
        let mut panel = [Avx512::NO_ROWS; BYTE_PARTS];
        for first in (0..k / BLOCK).step_by(BYTE_PARTS) {
            let panel = &mut panel[..(k / BLOCK - first).min(BYTE_PARTS)];
            level.pack_bytes::<B>(&rows, first, panel);
            level.byte_dots::<B>(panel, k, &group, first, &mut sums);
        }
        for (j, sums) in sums.iter().enumerate() {
            let met = rounded.rounded(k, j);
            for (i, sum) in sums.iter().enumerate() {
                let exact = 1.0 + if i < count { codec::dot(dtype, &weights[i], &met) } else { 0.0 };
                let mut values = vec![0.0; k];
                if i < count {
                    (dtype.row().dequantize)(&weights[i], &mut values);
                }
                let size: f64 = values.iter().zip(&met).map(|(w, x)| f64::from((w * x).abs())).sum();
                assert!((f64::from(*sum) - exact).abs() <= 1e-6 * (1.0 + size), "{dtype} {i} {j}: {sum}, not {exact}");
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) fn check_shifted(level: Avx512) {
    check_shifted_of::<codec::Q4_0>(level, DType::Q4_0);
    check_shifted_of::<codec::Q4_1>(level, DType::Q4_1);
    check_shifted_of::<codec::Q5_0>(level, DType::Q5_0);
    check_shifted_of::<codec::Q5_1>(level, DType::Q5_1);
    check_shifted_of::<codec::Q8_0>(level, DType::Q8_0);
    check_shifted_of::<codec::Q3K>(level, DType::Q3K);
    check_shifted_of::<codec::Q4K>(level, DType::Q4K);
    check_shifted_of::<codec::Q5K>(level, DType::Q5K);
    check_shifted_of::<codec::Q6K>(level, DType::Q6K);
    check_shifted_of::<codec::Iq4Nl>(level, DType::Iq4Nl);
    check_shifted_of::<codec::Mxfp4>(level, DType::Mxfp4);
    assert!(!Avx512::has_byte_panels::<codec::Q2K>(), "offsets of halves are not met");
    check_panel_dots(level);
}
