//! What went wrong elsewhere with layouts, padding and widths, each as a test of the whole kind of fault.

mod common;

use std::sync::Arc;

use common::{Liar, Lie, assert_cpu_conforms, backends, cpu, first_hole};
use entensor_components::{
    Backend, BackendError, DTYPES, DType, MemorySlot, NodeDesc, OPS, Op, OpDesc, Shape, ShapeError, SplitDesc, Strides,
    Support, TensorDesc, TensorRef,
};
use entensor_conformance::{Case, Fill, Gap, Layout, cases, map_cases, run_case_padded, run_cases};
use entensor_cpu::Simd;
use entensor_oracle::OracleBackend;

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
    match (answer, backend.prepare(&split(op, operands, output))) {
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
