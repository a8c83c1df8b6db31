use entensor_components::*;
use entensor_cpu::*;
use std::{sync::Arc, time::Instant};

fn node(name: &str, op: Op, output: TensorRef, operands: Vec<TensorRef>) -> NodeDesc {
    NodeDesc { name: Arc::from(name), op, output, operands }
}
fn main() {
    let threads: usize = std::env::args().nth(1).map_or(2, |s| s.parse().unwrap());
    let cpu = CpuBackend::new(CpuConfig { threads: Some(threads), ..Default::default() }).unwrap();
    println!("{} threads {}", cpu.simd_level(), cpu.threads());
    for (dtype, n) in [(DType::Q4_1, 1u64), (DType::Q4_1, 64), (DType::Q4_1, 256), (DType::Q8_0, 1)] {
        let shapes = [(576u64, 576u64), (576, 192), (576, 192), (576, 576), (576, 1536), (576, 1536), (1536, 576)];
        let r = |memory, dtype, shape: [u64; 4], off| TensorRef { desc: TensorDesc::packed(dtype, Shape(shape)).unwrap(), memory: MemorySlot(memory), offset_bytes: off };
        let (mut w_end, mut nodes) = (0, vec![]);
        let x576 = r(1, DType::F32, [576, n, 1, 1], 0);
        let x1536 = r(1, DType::F32, [1536, n, 1, 1], 576 * n * 4);
        let mut push = |k: u64, m: u64, out: TensorRef| { let w = r(0, dtype, [k, m, 1, 1], w_end); w_end += w.desc.size_bytes(); nodes.push(node("w", Op::MulMat {}, out, vec![w, if k == 576 { x576 } else { x1536 }])); };
        let o = 2112 * n * 4;
        for _ in 0..30 { for (i, &(k, m)) in shapes.iter().enumerate() { let out = if i == 6 { x576 } else if i == 5 { x1536 } else { r(1, DType::F32, [m, n, 1, 1], o) }; push(k, m, out); } }
        if n == 1 { push(576, 49152, r(1, DType::F32, [49152, 1, 1, 1], o)); }
        let key = cpu.create_buffer(w_end, Usage::Weights).unwrap(); let wm = cpu.memory(key).unwrap();
        let am = cpu.memory(cpu.create_buffer(o + 49152 * n * 4, Usage::Compute).unwrap()).unwrap();
        cpu.write(&wm, 0, &vec![1u8; w_end as usize]).unwrap();
        let split = cpu.prepare(SplitDesc { nodes, memory_slots: 2 }).unwrap();
        let mem = [wm, am];
        let mut best = f64::MAX; let start = Instant::now();
        while start.elapsed().as_secs_f64() < 3.0 { let t = Instant::now(); split.submit(&mem).unwrap(); best = best.min(t.elapsed().as_secs_f64()); }
        println!("{dtype} n={n}: {:.2} ms, {:.1} GB/s, {:.0} tok/s", best * 1e3, w_end as f64 / best / 1e9, n as f64 / best);
    }
}
