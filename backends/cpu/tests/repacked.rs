//! Weights in the private layout: products of them have the bits of plain ones, and nothing else reads them.

mod common;

use common::{contents, cpu, floats, memory, node, tensor};
use entensor_components::{
    Backend, BackendError, DType, MemoryHandle, Op, OpDesc, Shape, SplitDesc, TensorDesc, TensorRef, Usage,
};
use entensor_cpu::{CpuBackend, CpuConfig, REPACKED, Simd};

const REPACKABLE: [DType; 3] = [DType::Q4_0, DType::Q4_1, DType::Q8_0];

/// Weights of a dtype, encoded.
fn encoded(desc: &TensorDesc) -> Vec<u8> {
    let count = usize::try_from(desc.shape.elements().expect("small")).expect("small");
    let values: Vec<f32> =
        (0..count).map(|i| ((i * 7919 % 1009) as f32 / 504.0 - 1.0) * (1.0 + (i % 5) as f32)).collect();
    let mut bytes = vec![0; usize::try_from(desc.size_bytes()).expect("small")];
    (desc.dtype.row().quantize)(&values, &mut bytes);
    bytes
}

/// A buffer of the private type that holds a tensor at an offset.
fn repacked(cpu: &CpuBackend, desc: &TensorDesc, offset_bytes: u64, bytes: &[u8]) -> MemoryHandle {
    let size_bytes = offset_bytes + bytes.len() as u64;
    let key = cpu.create_buffer_of(REPACKED, size_bytes, Usage::Weights).expect("small");
    let memory = cpu.memory(key).expect("just made");
    cpu.init_tensor(&memory, offset_bytes, desc, desc.size_bytes()).expect("there is room");
    cpu.write(&memory, offset_bytes, bytes).expect("in bounds");
    memory
}

fn results(cpu: &CpuBackend, split: &SplitDesc, weights: MemoryHandle, rest: &[u8], out_bytes: u64) -> Vec<u8> {
    let out = memory(cpu, &vec![0; usize::try_from(out_bytes).expect("small")]);
    let prepared = cpu.prepare(split).expect("supported");
    prepared.submit(&[weights, memory(cpu, rest), out.clone()]).expect("runs");
    contents(cpu, &out)
}

#[test]
fn products_of_repacked_weights_have_the_bits_of_plain_ones() {
    for simd in [Simd::Portable, Simd::Detect] {
        for threads in [1, 3] {
            let cpu =
                CpuBackend::new(CpuConfig { threads: Some(threads), simd, ..CpuConfig::default() }).expect("a cpu");
            for dtype in REPACKABLE {
                for (k, m, planes) in [(32, 1, 1), (64, 7, 1), (64, 8, 1), (96, 19, 2), (256, 64, 1), (512, 150, 1)] {
                    for n in [1, 3, 4, 6, 17, 40] {
                        let weights = tensor(0, 40, dtype, &[k, m, planes]);
                        let x = tensor(1, 0, DType::F32, &[k, n, planes * 2]);
                        let out = tensor(2, 0, DType::F32, &[m, n, planes * 2]);
                        let split = SplitDesc {
                            nodes: vec![node("product", Op::MulMat {}, &[weights, x], out)],
                            memory_slots: 3,
                        };
                        let bytes = encoded(&weights.desc);
                        let mut plain = vec![0; 40];
                        plain.extend(&bytes);
                        let rest = floats(usize::try_from(x.desc.size_bytes() / 4).expect("small"));
                        let expected = results(&cpu, &split, memory(&cpu, &plain), &rest, out.desc.size_bytes());
                        let private = repacked(&cpu, &weights.desc, 40, &bytes);
                        let found = results(&cpu, &split, private.clone(), &rest, out.desc.size_bytes());
                        assert_eq!(found, expected, "{simd:?} {threads} {dtype} {k}×{m}×{planes} · {n}");
                        assert!(expected.iter().any(|&byte| byte != 0));
                        let mut back = vec![0; bytes.len()];
                        cpu.read(&private, 40, &mut back).expect("in bounds");
                        assert_eq!(back, bytes, "{dtype} {k}×{m}×{planes}: read back as written");
                    }
                }
            }
        }
    }
}

#[test]
fn experts_may_be_repacked() {
    let cpu = cpu(2);
    for dtype in REPACKABLE {
        let experts = tensor(0, 0, dtype, &[64, 20, 3]);
        let x = tensor(1, 0, DType::F32, &[64, 2, 5]);
        let ids = tensor(1, x.desc.size_bytes(), DType::I32, &[2, 5]);
        let out = tensor(2, 0, DType::F32, &[20, 2, 5]);
        let nodes = vec![node("experts", Op::MulMatId {}, &[experts, x, ids], out)];
        let split = SplitDesc { nodes, memory_slots: 3 };
        let bytes = encoded(&experts.desc);
        let mut rest = floats(640);
        rest.extend([0, 2, 1, 1, 2, 0, 0, 1, 2, 2].into_iter().flat_map(i32::to_le_bytes));
        let expected = results(&cpu, &split, memory(&cpu, &bytes), &rest, out.desc.size_bytes());
        let found = results(&cpu, &split, repacked(&cpu, &experts.desc, 0, &bytes), &rest, out.desc.size_bytes());
        assert_eq!(found, expected, "{dtype}");
    }
}

#[test]
fn nothing_else_reads_repacked_weights() {
    let cpu = cpu(1);
    let weights = tensor(0, 0, DType::Q8_0, &[64, 16]);
    let private = repacked(&cpu, &weights.desc, 0, &encoded(&weights.desc));
    let refused = |split: SplitDesc, memory_of_weights: &MemoryHandle| {
        let rest = memory(&cpu, &vec![0; 1 << 12]);
        let out = memory(&cpu, &vec![0; 1 << 14]);
        match cpu.prepare(&split).expect("supported").submit(&[memory_of_weights.clone(), rest, out]) {
            Err(BackendError::UnsupportedNode { node, reason, .. }) => (node.to_string(), reason),
            other => panic!("{other:?}"),
        }
    };
    let product = |weights: TensorRef, m| {
        let (x, out) = (tensor(1, 0, DType::F32, &weights.desc.shape.0[..1]), tensor(2, 0, DType::F32, &[m]));
        SplitDesc { nodes: vec![node("product", Op::MulMat {}, &[weights, x], out)], memory_slots: 3 }
    };
    let ids = tensor(1, 0, DType::I32, &[2]);
    let rows = node("rows", Op::GetRows {}, &[weights, ids], tensor(2, 0, DType::F32, &[64, 2]));
    let (node, reason) = refused(SplitDesc { nodes: vec![rows], memory_slots: 3 }, &private);
    assert_eq!((node.as_str(), reason.as_str()), ("rows", "an operand has a private layout that only products read"));
    // Views: other rows, other shapes, other dtypes.
    for view in [
        tensor(0, 8 * 68, DType::Q8_0, &[64, 8]),
        tensor(0, 0, DType::Q8_0, &[64, 8]),
        tensor(0, 0, DType::Q8_0, &[32, 32]),
        tensor(0, 0, DType::F32, &[64, 2]),
    ] {
        let m = view.desc.shape.0[1];
        let (_, reason) = refused(product(view, m), &private);
        assert!(reason.contains("view"), "{reason}");
    }
    let key = cpu.create_buffer_of(REPACKED, weights.desc.size_bytes(), Usage::Weights).expect("small");
    let (_, reason) = refused(product(weights, 16), &cpu.memory(key).expect("just made"));
    assert!(reason.contains("init_tensor"), "{reason}");
    cpu.reset_buffer(key).expect("live");
    // What the planner is told.
    let operands = [weights.desc, tensor(1, 0, DType::F32, &[64]).desc];
    let desc = OpDesc { op: &Op::MulMat {}, output: tensor(2, 0, DType::F32, &[16]).desc, operands: &operands };
    assert!(cpu.reads_opaque(&desc, 0, true, REPACKED).is_yes());
    assert!(!cpu.reads_opaque(&desc, 0, false, REPACKED).is_yes(), "views");
    assert!(!cpu.reads_opaque(&desc, 1, true, REPACKED).is_yes(), "activations");
    assert!(!cpu.reads_opaque(&desc, 0, true, "other-layout").is_yes());
    let plain = TensorDesc::packed(DType::F32, Shape([64, 16, 1, 1])).expect("small");
    let desc = OpDesc { operands: &[plain, operands[1]], ..desc };
    assert!(!cpu.reads_opaque(&desc, 0, true, REPACKED).is_yes(), "f32 has no private layout");
}

#[test]
fn buffers_of_the_private_type_are_checked_like_all_others() {
    let cpu = cpu(1);
    let key = cpu.create_buffer_of(REPACKED, 1000, Usage::Weights).expect("small");
    assert_eq!(cpu.memory_report().ours_bytes, 1000);
    let memory = cpu.memory(key).expect("just made");
    assert!(memory.as_host().is_none(), "no other backend takes it for plain bytes");
    assert!(matches!(cpu.write(&memory, 999, &[0; 2]), Err(BackendError::OutOfBounds { .. })));
    assert!(matches!(cpu.fill(&memory, 1, 1000, 0), Err(BackendError::OutOfBounds { .. })));
    let desc = tensor(0, 0, DType::Q8_0, &[32, 100]).desc;
    assert!(matches!(cpu.init_tensor(&memory, 0, &desc, 3400), Err(BackendError::OutOfBounds { .. })));
    cpu.destroy_buffer(key).expect("live");
    assert!(matches!(cpu.reset_buffer(key), Err(BackendError::StaleBuffer)));
    assert!(matches!(cpu.destroy_buffer(key), Err(BackendError::StaleBuffer)));
    let report = cpu.memory_report();
    assert_eq!((report.ours_bytes, report.peak_bytes), (0, 1000));
    let unknown = cpu.create_buffer_of("tape", 1, Usage::Any).expect_err("no such type");
    assert_eq!(unknown.to_string(), "`cpu` makes no buffers of type `tape`; it makes: host, cpu-repacked, cpu-huge");
}
