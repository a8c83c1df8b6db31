use std::{sync::Arc, time::Instant};
use entensor_components::*;
use entensor_cpu::*;

fn node(name: &str, op: Op, output: TensorRef, operands: Vec<TensorRef>) -> NodeDesc {
    NodeDesc { name: Arc::from(name), op, output, operands }
}
fn main() {
    let threads: usize = std::env::args().nth(1).map_or(2, |s| s.parse().unwrap());
    let simd = if std::env::args().nth(2).is_some() { Simd::Portable } else { Simd::Detect };
    let cpu = CpuBackend::new(CpuConfig { threads: Some(threads), simd, ..Default::default() }).unwrap();
    println!("{} threads {}", cpu.simd_level(), cpu.threads());
    for dtype in [DType::Q4_1, DType::Q8_0, DType::F16, DType::F32] {
        for n in [1_u64, 8, 64, 512] {
            // 30 layers of SmolLM2-135M: q 576x576, k,v 192x576, o 576x576, gate,up 1536x576, down 576x1536
            let shapes = [(576u64, 576u64), (576, 192), (576, 192), (576, 576), (576, 1536), (576, 1536), (1536, 576)];
            let layers = if dtype == DType::F32 { 10 } else { 30 };
            let mut w_end = 0; let mut nodes = vec![]; let mut flops = 0u64;
            let r = |memory, dtype, shape: [u64; 4], off| TensorRef { desc: TensorDesc::packed(dtype, Shape(shape)).unwrap(), memory: MemorySlot(memory), offset_bytes: off };
            let x576 = r(1, DType::F32, [576, n, 1, 1], 0);
            let x1536 = r(1, DType::F32, [1536, n, 1, 1], 576 * n * 4);
            let out_off = (576 + 1536) * n * 4;
            for _ in 0..layers { for &(k, m) in &shapes {
                let w = r(0, dtype, [k, m, 1, 1], w_end); w_end += w.desc.size_bytes(); flops += 2 * k * m * n;
                nodes.push(node("w", Op::MulMat {}, r(1, DType::F32, [m, n, 1, 1], out_off), vec![w, if k == 576 { x576 } else { x1536 }]));
            } }
            let key = cpu.create_buffer(w_end, Usage::Weights).unwrap(); let wm = cpu.memory(key).unwrap();
            let am = cpu.memory(cpu.create_buffer(out_off + 1536 * n * 4, Usage::Compute).unwrap()).unwrap();
            cpu.write(&wm, 0, &vec![1u8; w_end as usize]).unwrap();
            let split = cpu.prepare(SplitDesc { nodes, memory_slots: 2 }).unwrap();
            let mem = [wm, am];
            split.submit(&mem).unwrap();
            let mut best = f64::MAX; let reps = if n > 64 { 2 } else { 8 };
            for _ in 0..reps { let t = Instant::now(); split.submit(&mem).unwrap(); best = best.min(t.elapsed().as_secs_f64()); }
            let scale = 30.0 / layers as f64;
            println!("{dtype} n={n}: {:.2} ms, {:.1} GB/s weights, {:.1} GFLOP/s, {:.0} tok/s (layers only)", best * scale * 1e3, w_end as f64 / best / 1e9, flops as f64 / best / 1e9, n as f64 / best / scale);
            cpu.destroy_buffer(key).unwrap();
        }
    }
}
