//! Products with many rows of activations: what a row becomes does not depend on the rows around it, nor on who computes it.

mod common;

use common::{contents, memory, node, tensor};
use entensor_components::{Backend, DType, DTypeSet, Op, SplitDesc};
use entensor_cpu::{CpuBackend, CpuConfig, Simd};

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 % 1009) as f32 / 504.0 - 1.0) * (1.0 + (i % 5) as f32)).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn encoded(dtype: DType, k: u64, values: &[f32]) -> Vec<u8> {
    let mut bytes =
        vec![0; usize::try_from(dtype.row_bytes(k).expect("whole blocks")).expect("small") * values.len() / k as usize];
    (dtype.row().quantize)(values, &mut bytes);
    bytes
}

/// `[k, m] × [k, n]`, of the first rows of some activations.
fn product(cpu: &CpuBackend, dtype: DType, [k, m, n]: [u64; 3], weights: &[u8], x: &[f32]) -> Vec<u8> {
    let operands = [tensor(0, 0, dtype, &[k, m]), tensor(1, 0, DType::F32, &[k, n])];
    let out = tensor(2, 0, DType::F32, &[m, n]);
    let split = SplitDesc { nodes: vec![node("product", Op::MulMat {}, &operands, out)], memory_slots: 3 };
    let result = memory(cpu, &vec![0; usize::try_from(m * n * 4).expect("small")]);
    let memories = [memory(cpu, weights), memory(cpu, &bytes(&x[..usize::try_from(k * n).expect("small")])), result];
    cpu.prepare(&split).expect("supported").submit(&memories).expect("runs");
    contents(cpu, &memories[2])
}

fn backends() -> Vec<CpuBackend> {
    let with = |simd, threads| {
        CpuBackend::new(CpuConfig { threads: Some(threads), simd, ..CpuConfig::default() }).expect("the CPU is there")
    };
    vec![with(Simd::Detect, 1), with(Simd::Detect, 3), with(Simd::Avx2, 2), with(Simd::Portable, 1)]
}

#[test]
fn rows_do_not_depend_on_the_rows_around_them() {
    for cpu in backends() {
        for dtype in DTypeSet::REALS.iter() {
            let k = if dtype.is_block() { 768 } else { 301 };
            for m in [5_u64, 37] {
                let weights = encoded(dtype, k, &values((k * m) as usize));
                let x = values((k * 271) as usize);
                let all = product(&cpu, dtype, [k, m, 271], &weights, &x);
                for n in [16_u64, 17, 31, 265] {
                    let some = product(&cpu, dtype, [k, m, n], &weights, &x);
                    assert!(some[..] == all[..some.len()], "{dtype} {m} × {n} at {}", cpu.simd_level());
                }
                assert!(all.iter().any(|&byte| byte != 0));
            }
        }
    }
}

/// By hand, since no other test compares products of as many rows in all dtypes at once.
#[test]
fn many_rows_become_what_few_do() {
    for cpu in backends() {
        for dtype in DTypeSet::REALS.iter() {
            let (k, m, n) = (512, 21, 40);
            let weights = encoded(dtype, k, &values((k * m) as usize));
            let x = values((k * n) as usize);
            let many = product(&cpu, dtype, [k, m, n], &weights, &x);
            let mut decoded = vec![0.0; (k * m) as usize];
            (dtype.row().dequantize)(&weights, &mut decoded);
            for j in 0..n as usize {
                for i in 0..m as usize {
                    let pairs = decoded[i * k as usize..].iter().zip(&x[j * k as usize..][..k as usize]);
                    let (exact, size) = pairs.fold((0.0, 0.0), |(sum, size), (w, x)| {
                        let product = f64::from(*w) * f64::from(*x);
                        (sum + product, size + product.abs())
                    });
                    let at = (j * m as usize + i) * 4;
                    let found = f32::from_le_bytes(many[at..at + 4].try_into().expect("4 bytes"));
                    // Activations of 8 bits lose up to half of a 127th of the largest; everything else is far smaller.
                    let close = if dtype.is_block() { 4e-3 } else { 1e-5 };
                    assert!((f64::from(found) - exact).abs() <= close * size, "{dtype} {i} {j}: {found}, not {exact}");
                }
            }
        }
    }
}

/// Rows that are not finite spoil their own results only.
#[test]
fn what_is_not_finite_stays_in_its_row() {
    for cpu in backends() {
        for dtype in DTypeSet::REALS.iter() {
            let (k, m, n) = (256, 19, 22);
            let weights = encoded(dtype, k, &values((k * m) as usize));
            let mut x = values((k * n) as usize);
            let clean = product(&cpu, dtype, [k, m, n], &weights, &x);
            x[7 * k as usize + 100] = f32::NAN;
            x[20 * k as usize + 3] = f32::INFINITY;
            let found = product(&cpu, dtype, [k, m, n], &weights, &x);
            let row = |bytes: &[u8], j: usize| bytes[j * m as usize * 4..][..m as usize * 4].to_vec();
            for j in 0..n as usize {
                if j == 7 || j == 20 {
                    let finite = |b: &[u8; 4]| f32::from_le_bytes(*b).is_finite();
                    // A weight that is zero times an infinity is NaN, too.
                    assert!(!row(&found, j).as_chunks().0.iter().any(finite), "{dtype}: row {j}");
                } else {
                    assert!(row(&found, j) == row(&clean, j), "{dtype}: row {j}");
                }
            }
        }
    }
}
