//! What went wrong elsewhere with rotations, scales and masks, worked out here by formula for both backends.

mod common;

use common::{assert_cpu_conforms, backends};
use entensor_components::{Backend, Op};
use entensor_conformance::{Case, Contents, Layout, Recorded, cases};

#[test]
fn report_57_rope_on_part_of_a_row_of_any_layout() {
    let mut suite = cases();
    suite.retain(|case| match &case.op {
        Op::Rope { n_dims, .. } => *n_dims > 0 && u64::from(*n_dims) < case.operands[0].desc.shape.0[0],
        _ => false,
    });
    let count = |what: &dyn Fn(&Case) -> bool| suite.iter().filter(|case| what(case)).count();
    for layout in Layout::ALL {
        for factors in [false, true] {
            let found = count(&|case| case.operands[0].layout == layout && (case.operands.len() == 3) == factors);
            assert!(found > 0, "{layout}, factors: {factors}");
        }
    }
    for factors in [false, true] {
        assert!(count(&|case| case.in_place == Some(0) && (case.operands.len() == 3) == factors) > 0, "in place");
    }
    assert_cpu_conforms(&suite);

    // And by the formula: pairs are turned by position · base^(−2i/n_dims) / factor, the rest stays.
    let (heads, tokens, n_dims, base) = (3, 4, 6_usize, 100.0_f64);
    let x: Vec<f64> = (0..10 * heads * tokens).map(|i| f64::from((i * 37 + 11) % 61 - 30) / 16.0).collect();
    let positions = [0.0, 3.0, 1.0, 250.0];
    let factors = [1.5, 0.75, 2.0];
    for (mode, layout) in ["normal", "neox"].iter().flat_map(|mode| Layout::ALL.map(|layout| (mode, layout))) {
        if layout == Layout::Broadcast {
            // Rows that repeat would need contents that repeat.
            continue;
        }
        let line = format!(
            "rope mode={mode} n_dims=6 base=100.0 x=f32[10,3,4]:{layout} positions=i32[4]:contiguous factors=f32[3]:sliced"
        );
        let mut expected = x.clone();
        for (row, values) in expected.chunks_mut(10).enumerate() {
            for (pair, factor) in factors.iter().enumerate() {
                let (a, b) = if *mode == "normal" { (2 * pair, 2 * pair + 1) } else { (pair, pair + n_dims / 2) };
                let exponent = -2.0 * f64::from(u8::try_from(pair).expect("small")) / 6.0;
                let angle = positions[row / 3] * base.powf(exponent) / factor;
                let (sin, cos) = angle.sin_cos();
                (values[a], values[b]) = (values[a] * cos - values[b] * sin, values[a] * sin + values[b] * cos);
            }
        }
        let operands =
            vec![Contents::Values(x.clone()), Contents::Values(positions.to_vec()), Contents::Values(factors.to_vec())];
        check_recorded(&line, operands, expected);
    }
}

/// Both backends must give what was worked out here.
fn check_recorded(line: &str, operands: Vec<Contents>, expected: Vec<f64>) {
    let case = line.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
    let recorded = Recorded { case, operands, expected: Contents::Values(expected) };
    let (oracle, cpu) = backends();
    for backend in [&oracle as &dyn Backend, &cpu] {
        recorded.check(backend).unwrap_or_else(|fault| panic!("{}: {line}: {fault}", backend.name()));
    }
}

#[test]
fn report_58_a_permuted_tensor_is_scaled_in_its_own_order() {
    let x: Vec<f64> = (0..7 * 5 * 3).map(f64::from).collect();
    for layout in [Layout::Permuted, Layout::Transposed, Layout::Sliced] {
        for dtype in ["f32", "f16"] {
            let line = format!("scale by=3.0 x={dtype}[7,5,3]:{layout}");
            check_recorded(&line, vec![Contents::Values(x.clone())], x.iter().map(|v| 3.0 * v).collect());
        }
    }
}

/// Softmax of a row, and zeros for a row that is all minus infinity.
fn softmax(row: &[f64]) -> Vec<f64> {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return vec![0.0; row.len()];
    }
    let sum: f64 = row.iter().map(|v| (v - max).exp()).sum();
    row.iter().map(|v| (v - max).exp() / sum).collect()
}

#[test]
fn report_59_fully_masked_rows_give_zeros_and_leave_the_others_alone() {
    let row = |r: u32| (0..9).map(move |i| f64::from((i * 5 + r * 7) % 13) / 4.0);
    let mut x: Vec<f64> = (0..4).flat_map(row).collect();
    // By the operand itself: rows 1 and 3 whole, row 2 in part.
    x[9..18].fill(f64::NEG_INFINITY);
    x[20..25].fill(f64::NEG_INFINITY);
    x[27..36].fill(f64::NEG_INFINITY);
    let expected: Vec<f64> = x.chunks(9).flat_map(softmax).collect();
    for layout in ["contiguous", "sliced", "transposed", "contiguous in_place=0"] {
        check_recorded(&format!("soft_max x=f32[9,4]:{layout}"), vec![Contents::Values(x.clone())], expected.clone());
    }
    // By a mask.
    let x: Vec<f64> = (0..4).flat_map(row).collect();
    let mut mask = vec![0.0; 36];
    mask[9..18].fill(f64::NEG_INFINITY);
    mask[20..25].fill(f64::NEG_INFINITY);
    let masked: Vec<f64> = x.iter().zip(&mask).map(|(x, m)| x + m).collect();
    let expected: Vec<f64> = masked.chunks(9).flat_map(softmax).collect();
    for (dtype, layout) in [("f32", "contiguous"), ("f16", "sliced"), ("f16", "transposed")] {
        let line = format!("soft_max x=f32[9,4]:contiguous mask={dtype}[9,4]:{layout}");
        check_recorded(&line, vec![Contents::Values(x.clone()), Contents::Values(mask.clone())], expected.clone());
    }
}

#[test]
fn report_59_fused_attention_gives_zeros_for_fully_masked_rows() {
    // [dk, queries, heads] = [4, 3, 2], 5 keys of one head for both, values of width 3.
    let value = |i: usize, step: usize| f64::from(u8::try_from((i * step + 3) % 17).expect("small")) / 8.0 - 1.0;
    let list = |count: usize, step: usize| (0..count).map(|i| value(i, step)).collect::<Vec<f64>>();
    let (q, k, v) = (list(4 * 3 * 2, 5), list(4 * 5, 7), list(3 * 5, 11));
    let mut mask = vec![0.0; 5 * 3];
    mask[5..10].fill(f64::NEG_INFINITY);
    mask[12] = f64::NEG_INFINITY;
    // The result is [dv, heads, queries].
    let mut expected = vec![0.0; 3 * 2 * 3];
    for (head, query) in (0..2).flat_map(|head| (0..3).map(move |query| (head, query))) {
        let q = &q[(head * 3 + query) * 4..][..4];
        let score = |key: usize| {
            let dot: f64 = q.iter().zip(&k[key * 4..]).map(|(q, k)| q * k).sum();
            0.5 * dot + mask[query * 5 + key]
        };
        let weights = softmax(&(0..5).map(score).collect::<Vec<_>>());
        for d in 0..3 {
            let sum = weights.iter().enumerate().map(|(key, weight)| weight * v[key * 3 + d]).sum();
            expected[(query * 2 + head) * 3 + d] = sum;
        }
    }
    assert!(expected[6..12].iter().all(|v| *v == 0.0), "the second query sees nothing");
    let operands = [q, k, v, mask].map(Contents::Values).to_vec();
    for (keys, mask) in [("f32", "f32"), ("f16", "f16"), ("f32", "f16")] {
        for layout in ["contiguous", "sliced", "permuted"] {
            let line = format!(
                "flash_attn_ext scale=0.5 q=f32[4,3,2]:{layout} k={keys}[4,5]:{layout} v={keys}[3,5]:{layout} mask={mask}[5,3]:{layout}"
            );
            check_recorded(&line, operands.clone(), expected.clone());
        }
    }
}
