//! The gemm backend against the oracle: products of any width and layout, and nothing else.

use entensor_components::{Backend, DType, OPS, Op, OpKind, Shape};
use entensor_conformance::{Case, CaseOperand, Fill, Gap, Layout, cases, map_cases, run_case, run_cases, run_suite_on};
use entensor_gemm::{GemmBackend, GemmConfig};

/// The backend without its limit on columns: cases are narrow.
fn gemm(threads: usize) -> GemmBackend {
    let config = GemmConfig { threads: Some(threads), min_columns: 0, ..GemmConfig::default() };
    GemmBackend::new(config).expect("it needs host memory only")
}

/// Everything but `mul_mat`.
fn gaps() -> Vec<Gap> {
    let others = OPS.iter().filter(|row| row.computes() && row.kind != OpKind::MulMat);
    others.map(|row| Gap { op: row.kind, dtype: None, layout: None }).collect()
}

#[test]
fn gemm_conforms_at_every_thread_count() {
    let (gaps, backends) = (gaps(), [1, 2].map(gemm));
    let with_gaps: Vec<(&dyn Backend, &[Gap])> = backends.iter().map(|b| (b as &dyn Backend, &gaps[..])).collect();
    for (backend, report) in backends.iter().zip(run_suite_on(&with_gaps)) {
        println!("gemm threads={}: {report}", backend.threads());
        report.assert_passed();
        assert!(report.passed > 1000 || std::env::var_os("CONFORMANCE_CASE").is_some(), "{report}");
    }
}

/// Sizes around panels, kernels and the depth that is decoded at once, and every kind of group.
fn wide_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes = [
        ([64, 95, 1, 1], [64, 33, 1, 1]),
        ([576, 97, 1, 1], [576, 32, 1, 1]),
        ([256, 193, 2, 1], [256, 40, 4, 1]),
        ([512, 7, 1, 2], [512, 129, 3, 4]),
        ([4096, 5, 1, 1], [4096, 65, 1, 1]),
        ([4352, 100, 1, 1], [4352, 70, 1, 1]),
        ([8448, 3, 1, 1], [8448, 34, 1, 1]),
    ];
    for (weights_shape, x_shape) in shapes {
        for dtype in [DType::F32, DType::F16, DType::Bf16, DType::Q4_1, DType::Q6K, DType::Mxfp4] {
            for x_dtype in [DType::F32, DType::F16] {
                for (layout, x_layout) in [
                    (Layout::Contiguous, Layout::Contiguous),
                    (Layout::Sliced, Layout::Permuted),
                    (Layout::Transposed, Layout::Transposed),
                ] {
                    let weights = CaseOperand::new(dtype, Shape(weights_shape), layout);
                    let x = CaseOperand::new(x_dtype, Shape(x_shape), x_layout);
                    cases.extend(weights.zip(x).map(|(weights, x)| Case::new(Op::MulMat {}, vec![weights, x])));
                }
            }
        }
    }
    for fill in [Fill::Nan, Fill::Infinity, Fill::Large] {
        let fills: Vec<Case> = cases.iter().take(6).map(|case| Case { fill, ..case.clone() }).collect();
        cases.extend(fills);
    }
    cases
}

#[test]
fn wide_products_conform() {
    let cases = wide_cases();
    assert!(cases.len() > 200, "{} cases", cases.len());
    let (alone, together) = (gemm(1), gemm(3));
    for report in run_cases(&cases, &[(&alone, &[] as &[Gap]), (&together, &[])]) {
        report.assert_passed();
    }
}

#[test]
fn thread_counts_never_change_bits_of_gemm() {
    let (alone, together) = (gemm(1), gemm(4));
    let mut products = cases();
    products.retain(|case| case.op.kind() == OpKind::MulMat);
    products.extend(wide_cases());
    map_cases(&products, |case| assert_eq!(run_case(&alone, case), run_case(&together, case), "{case}"));
}
