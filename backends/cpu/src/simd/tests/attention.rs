//! What attention is made of.

use super::*;
use crate::math::exp_below_zero;

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

pub(super) fn check_attention<L: Level>(level: L) {
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

pub(super) fn check_weights<L: Level>(level: L) {
    const NAN: f32 = f32::NAN;
    const OUT: f32 = f32::NEG_INFINITY;
    for count in [8, 32, 40, 64] {
        for special in [0.0, OUT, NAN, 1e30] {
            for at in [0, 5, count - 1] {
                let mut raw: Vec<f32> = noise(3, count).iter().map(|v| 20.0 * v).collect();
                raw[at] = special;
                let mut mask = noise(50, count);
                mask[count / 2] = OUT;
                for (mask, most) in
                    [(None, OUT), (None, 1e6), (Some((&mask[..], 0.5)), OUT), (Some((&mask[..], 2.0)), 3.0)]
                {
                    let mut found = raw.clone();
                    let max = level.mask_scores(&mut found, 0.125, mask, most);
                    let expected: Vec<f32> = (0..count)
                        .map(|i| match mask {
                            Some((mask, _)) if mask[i] == OUT => OUT,
                            Some((mask, slope)) => raw[i] * 0.125 + slope * mask[i],
                            None => raw[i] * 0.125,
                        })
                        .collect();
                    let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&found), bits(&expected));
                    let largest = expected.iter().filter(|v| !v.is_nan()).fold(most, |most, v| most.max(*v));
                    assert_eq!(max, largest, "{expected:?}");
                    let reference = if max == OUT { 0.0 } else { max };
                    let sum = level.weigh_scores(&mut found, reference);
                    // By the same instructions, one at a time.
                    let weights: Vec<f32> = level.vectorize(|| {
                        expected.iter().map(|v| exp_below_zero(level, *v - reference)).collect::<Vec<_>>()
                    });
                    assert_eq!(bits(&found), bits(&weights));
                    let exact: f64 = weights.iter().map(|v| f64::from(*v)).sum();
                    assert!(exact.is_nan() && sum.is_nan() || (f64::from(sum) - exact).abs() <= 1e-6 * exact);
                }
            }
        }
    }
    assert_eq!(level.weigh_scores(&mut [OUT; 8], 0.0), 0.0, "nothing is left of what is taken out");
}

pub(super) fn check_columns<L: Level>(level: L) {
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

pub(super) fn check_q8_0<L: Level>(level: L) {
    let bytes = encode(DType::Q8_0, &noise(5, 96));
    let (mut found, mut expected) = (vec![0.0; 96], vec![0.0; 96]);
    level.decode_q8_0(&bytes, &mut found);
    (DType::Q8_0.row().dequantize)(&bytes, &mut expected);
    assert_eq!(found, expected);
}
