//! What went wrong elsewhere with layouts, masks and widths, each as a test of the whole kind of fault.

mod common;

use std::sync::Arc;

use common::{Liar, Lie, cpu, first_hole};
use entensor_components::{
    Backend, BackendError, DTYPES, DType, MemorySlot, NodeDesc, OPS, Op, OpDesc, Shape, ShapeError, SplitDesc, Strides,
    Support, TensorDesc, TensorRef,
};
use entensor_conformance::{Case, Contents, Fill, Gap, Layout, Recorded, cases, map_cases, run_case_padded, run_cases};
use entensor_cpu::{CpuBackend, Simd};
use entensor_oracle::OracleBackend;

/// Runs cases on the CPU backend, on two threads.
fn assert_cpu_conforms(cases: &[Case]) {
    run_cases(cases, &[(&cpu(2, Simd::Detect), &[] as &[Gap])])[0].assert_passed();
}

/// A small case of each op for each mixture of dtypes: those whose operands are all packed, and no edges.
fn packed_cases() -> Vec<Case> {
    let mut seen = std::collections::HashSet::new();
    let mut cases = cases();
    cases.retain(|case| {
        let dtypes: Vec<DType> = case.operands.iter().map(|o| o.desc.dtype).collect();
        case.fill == Fill::Plain
            && case.in_place.is_none()
            && case.operands.iter().all(|o| o.layout == Layout::Contiguous && !o.desc.shape.is_empty())
            && !case.output().shape.is_empty()
            && seen.insert((case.op.kind(), dtypes))
    });
    cases
}

/// A node on operands and a result that lie one behind the other in one memory.
fn split(op: &Op, operands: &[TensorDesc], output: TensorDesc) -> SplitDesc {
    let mut end = 0;
    let mut place = |desc: TensorDesc| {
        let offset_bytes = end;
        // Descriptions that no tensor has may have no size either.
        end = (end + desc.span_bytes().unwrap_or(1 << 20) + 4096).next_multiple_of(64);
        TensorRef { desc, memory: MemorySlot(0), offset_bytes }
    };
    let operands: Vec<TensorRef> = operands.iter().map(|desc| place(*desc)).collect();
    let written = op.row().writes.and_then(|written| operands.get(written).copied());
    let output = written.unwrap_or_else(|| place(output));
    let node = NodeDesc { name: Arc::from("node"), op: op.clone(), output, operands };
    SplitDesc { nodes: vec![node], memory_slots: 1 }
}

/// Whether a backend takes a node; what it says and what it does must agree.
fn takes(backend: &dyn Backend, op: &Op, operands: &[TensorDesc], output: TensorDesc) -> Result<bool, String> {
    let described = || format!("{}: {op} on {operands:?} to {output:?}", backend.name());
    let answer = backend.support(&OpDesc { op, output, operands });
    match (answer, backend.prepare(split(op, operands, output))) {
        (Support::Yes, Ok(_)) => Ok(true),
        (Support::No(reason), Err(BackendError::UnsupportedNode { node, op: name, .. })) => {
            let named = &*node == "node" && name == op.kind().name() && !reason.is_empty();
            if named { Ok(false) } else { Err(format!("{}: the refusal names nothing", described())) }
        }
        (Support::Yes, Err(error)) => Err(format!("{}: supported, but {error}", described())),
        (Support::No(reason), Ok(_)) => Err(format!("{}: refused ({reason}), but prepared", described())),
        (Support::No(_), Err(error)) => Err(format!("{}: refused, but not as a node: {error}", described())),
    }
}

fn backends() -> (OracleBackend, CpuBackend) {
    (OracleBackend::new("oracle"), cpu(1, Simd::Detect))
}

#[test]
fn report_56_every_op_has_every_layout_on_every_operand_and_all_agree_with_the_oracle() {
    let suite = cases();
    for row in OPS.iter().filter(|row| row.computes()) {
        for (index, operand) in row.operands.iter().enumerate() {
            let of_op = || suite.iter().filter(|case| case.op.kind() == row.kind);
            let operands = || of_op().filter_map(|case| case.operands.get(index));
            for layout in Layout::ALL {
                // Lists have no order of axes, blocks are not torn apart, and targets do not repeat themselves.
                let possible = operands().any(|operand| {
                    let (dtype, shape) = (operand.desc.dtype, operand.desc.shape);
                    let packed = Layout::Contiguous.apply(dtype, shape);
                    layout.apply(dtype, shape).is_some_and(|desc| layout == Layout::Contiguous || Some(desc) != packed)
                });
                let possible = possible && !(layout == Layout::Broadcast && row.writes == Some(index));
                let exists = operands().any(|operand| operand.layout == layout);
                assert!(exists || !possible, "{} {}:{layout}", row.name, operand.name);
            }
        }
    }
    // All of them run in `cpu_conforms_at_every_level_and_thread_count`; here those with layouts of their own.
    let strided: Vec<Case> =
        suite.into_iter().filter(|case| case.operands.iter().any(|o| o.layout != Layout::Contiguous)).collect();
    assert!(strided.len() > 1000, "{} cases", strided.len());
    assert_cpu_conforms(&strided);
}

#[test]
fn report_56_results_in_any_layout_are_right_or_refused() {
    let cpu = cpu(2, Simd::Detect);
    let layouts = [Layout::Permuted, Layout::Transposed, Layout::Sliced];
    let mut supported = Vec::new();
    for case in packed_cases() {
        for result in layouts {
            let case = Case { result, ..case.clone() };
            let supports = |backend: &dyn Backend| takes(backend, &case.op, &case.descs(), case.output());
            if case.is_valid() && supports(&cpu).unwrap_or_else(|fault| panic!("{fault}")) {
                supported.push(case);
            }
        }
    }
    assert!(supported.len() > 20, "{} cases", supported.len());
    run_cases(&supported, &[(&cpu, &[] as &[Gap])])[0].assert_passed();
}

#[test]
fn report_56_what_no_rule_allows_is_refused_before_it_runs() {
    let (oracle, cpu) = backends();
    let mut refused = 0;
    for case in packed_cases() {
        let (descs, output) = (case.descs(), case.output());
        let mut wrong: Vec<(Vec<TensorDesc>, TensorDesc)> = Vec::new();
        for (index, row) in case.op.row().operands.iter().enumerate().take(descs.len()) {
            for dtype in DTYPES.iter().map(|row| row.dtype).filter(|dtype| !row.dtypes.contains(*dtype)) {
                if let Ok(desc) = TensorDesc::packed(dtype, descs[index].shape) {
                    let mut descs = descs.clone();
                    descs[index] = desc;
                    wrong.push((descs, output));
                }
            }
        }
        // Too many operands, too few, and results that are none.
        wrong.push((
            [&descs[..], &[TensorDesc::packed(DType::F32, Shape([1; 4])).expect("one element"); 5]].concat(),
            output,
        ));
        if case.op.row().min_operands() > 0 {
            wrong.push((Vec::new(), output));
        }
        if case.op.row().writes.is_none() {
            let [d0, d1, d2, d3] = output.shape.0;
            let larger = TensorDesc::packed(output.dtype, Shape([d0, d1 + 1, d2, d3])).expect("as wide as before");
            wrong.push((descs.clone(), larger));
            for dtype in DTYPES.iter().map(|row| row.dtype).filter(|dtype| *dtype != output.dtype) {
                if let Ok(other) = TensorDesc::packed(dtype, output.shape) {
                    wrong.push((descs.clone(), other));
                }
            }
        }
        for (operands, output) in wrong {
            for backend in [&oracle as &dyn Backend, &cpu] {
                let taken = takes(backend, &case.op, &operands, output).unwrap_or_else(|fault| panic!("{fault}"));
                assert!(!taken, "{}: {} on {operands:?} to {output:?} is no case", backend.name(), case.op);
                refused += 1;
            }
        }
    }
    assert!(refused > 500, "{refused} refusals");
}

#[test]
fn report_56_blocks_that_are_torn_apart_are_refused_or_right() {
    let (oracle, cpu) = backends();
    let mut torn = 0;
    for case in packed_cases() {
        for (index, operand) in case.operands.iter().enumerate() {
            let unit = operand.desc.dtype.block_bytes();
            if !operand.desc.dtype.is_block() || operand.desc.shape.0[0] < 2 * operand.desc.dtype.block_elements() {
                continue;
            }
            let mut descs = case.descs();
            let Strides([_, s1, s2, s3]) = operand.desc.strides;
            descs[index].strides = Strides([2 * unit, 2 * s1, 2 * s2, 2 * s3]);
            let output = if case.op.row().writes == Some(index) { descs[index] } else { case.output() };
            let taken = |backend: &dyn Backend| {
                takes(backend, &case.op, &descs, output).unwrap_or_else(|fault| panic!("{fault}"))
            };
            assert!(taken(&oracle), "the oracle steps over anything: {case}");
            assert!(!taken(&cpu), "kernels decode rows of whole blocks: {case}");
            torn += 1;
        }
    }
    assert!(torn >= 4, "{torn} rows of two blocks or more");
}

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

#[test]
fn report_60_poisoned_padding_never_reaches_a_result() {
    // Whatever lies around and between tensors, results have the same bits.
    let cpu = cpu(1, Simd::Detect);
    let suite = cases();
    let results = |padding: u8| map_cases(&suite, |case| run_case_padded(&cpu, case, padding));
    let poisoned = results(0xff);
    for padding in [0x00, 0x3c] {
        for ((case, poisoned), other) in suite.iter().zip(&poisoned).zip(results(padding)) {
            assert!(*poisoned == other, "{case}: the result depends on what lies around its operands");
        }
    }
    // A backend that reads between rows is found out, whatever the op.
    let leaky = Liar { inner: Arc::new(OracleBackend::new("inner")), lie: Lie::Padding };
    for row in OPS.iter().filter(|row| row.computes()) {
        let mut sliced = suite.clone();
        sliced.retain(|case| {
            let read = case.operands.iter().enumerate().filter(|(index, _)| row.writes != Some(*index));
            case.op.kind() == row.kind && read.into_iter().any(|(_, operand)| first_hole(&operand.desc).is_some())
        });
        sliced.truncate(40);
        let report = &run_cases(&sliced, &[(&leaky, &[] as &[Gap])])[0];
        // Not all of them: ids may name the first row only, which lies where it would in packed memory, and of the kernel of
        // `im2col` nothing is read.
        assert!(report.failures.len() * 2 > sliced.len() || sliced.is_empty(), "{}: {report}", row.name);
    }
    // And what it gives where a result is made of all that was read is NaN.
    let lines = [
        "cont x=f32[7,5,3]:sliced",
        "add a=f32[7,5,3]:sliced b=f16[7,5,3]:sliced",
        "mul a=f32[7,5,3]:contiguous b=f32[7,5,3]:sliced",
        "silu x=f16[31,2]:sliced",
        "swiglu gate=f32[7,5]:sliced value=f32[7,5]:sliced",
        "rms_norm x=f32[7,5,3]:sliced",
        "soft_max x=f32[7,5,3]:sliced",
        "sum_rows x=f32[7,5,3]:sliced",
        "mul_mat weights=f32[7,5]:contiguous x=f32[7,3]:sliced",
        "mul_mat weights=q8_0[64,5]:sliced x=f32[64,3]:contiguous",
        "mul_mat weights=q4_1[64,5]:sliced x=f32[64,3]:contiguous",
        "get_rows table=f16[7,5]:sliced ids=i32[9]:contiguous",
        "rope x=f32[10,3,5]:sliced positions=i32[5]:contiguous",
        "repeat shape=[14,10] x=f32[7,5]:sliced",
    ];
    let sliced = lines.map(|line| line.parse::<Case>().unwrap_or_else(|error| panic!("{line}: {error}")));
    assert_cpu_conforms(&sliced);
    let report = &run_cases(&sliced, &[(&leaky, &[] as &[Gap])])[0];
    assert_eq!(report.failures.len(), sliced.len(), "{report}");
    for failure in &report.failures {
        assert!(failure.contains("is NaN, not "), "{failure}");
    }
}

#[test]
fn report_61_rows_of_no_whole_blocks_are_refused_everywhere() {
    let (oracle, cpu) = backends();
    let mut tried = 0;
    for case in packed_cases() {
        for (index, operand) in case.operands.iter().enumerate().filter(|(_, o)| o.desc.dtype.is_block()) {
            let dtype = operand.desc.dtype;
            let block = dtype.block_elements();
            for width in [1, 31, 32, 33, 255, 256, 257, block - 1, block + 1, 2 * block - 1, 2 * block + 1] {
                if width % block == 0 {
                    continue;
                }
                let [from, d1, d2, d3] = operand.desc.shape.0;
                let shape = Shape([width, d1, d2, d3]);
                let refused = TensorDesc::packed(dtype, shape);
                assert_eq!(refused, Err(ShapeError::PartialBlock { dtype, shape, block }));
                // Nor does it help to write the description by hand, with other operands as wide.
                let mut descs = case.descs();
                for desc in &mut descs {
                    if desc.shape.0[0] == from {
                        let row = width.div_ceil(desc.dtype.block_elements()) * desc.dtype.block_bytes();
                        desc.shape.0[0] = width;
                        desc.strides =
                            Strides([desc.dtype.block_bytes(), row, row * d1.max(1), row * d1.max(1) * d2.max(1)]);
                    }
                }
                assert!(case.op.result(&descs).is_err(), "{} on {descs:?}", case.op);
                let output = if case.op.row().writes == Some(index) { descs[index] } else { case.output() };
                for backend in [&oracle as &dyn Backend, &cpu] {
                    let taken = takes(backend, &case.op, &descs, output).unwrap_or_else(|fault| panic!("{fault}"));
                    assert!(!taken, "{}: {} on {descs:?}", backend.name(), case.op);
                }
                tried += 1;
            }
        }
    }
    assert!(tried > 50, "{tried} widths");
}

#[test]
fn report_61_every_block_dtype_has_rows_of_one_and_of_two_blocks() {
    // Whether plain dtypes have rows of 0, 1 and an odd number of elements, where the op's rule allows them, the suite
    // says itself, with its coverage.
    let suite = cases();
    for row in OPS.iter().filter(|row| row.computes()) {
        for (index, operand) in row.operands.iter().enumerate() {
            for dtype in operand.dtypes.iter().filter(|dtype| dtype.is_block()) {
                let of_op = suite.iter().filter(|case| case.op.kind() == row.kind);
                let operands = of_op.filter_map(|case| case.operands.get(index)).filter(|o| o.desc.dtype == dtype);
                let widths: Vec<u64> = operands.map(|o| o.desc.shape.0[0]).collect();
                for blocks in [1, 2] {
                    let width = blocks * dtype.block_elements();
                    assert!(widths.contains(&width), "{} {}: no {dtype} row of {width}", row.name, operand.name);
                }
            }
        }
    }
}
