//! Matrix products of the cpu backend at the sizes of a small language model: decode (one row of activations) and prompt.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use entensor::{DType, Engine, GraphBuilder};
use entensor_components::DTypeSet;

fn mul_mat(c: &mut Criterion) {
    for threads in [1, 2] {
        let mut group = c.benchmark_group(format!("mul_mat/{threads}t"));
        for dtype in DTypeSet::REALS.iter() {
            for rows in [1_u64, 64] {
                let mut engine =
                    Engine::builder().backend(format!("cpu:threads={threads}")).build().expect("the cpu starts");
                // The nearest whole number of blocks.
                let (k, m) = (576_u64.next_multiple_of(dtype.block_elements()), 1536_u64);
                let values: Vec<f32> = (0..k * m).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect();
                let weights = engine.weights("w", dtype, &[k, m], &values).expect("whole blocks");
                let mut g = GraphBuilder::new("product");
                let w = g.shared(&weights).expect("one tensor");
                let x = g.input("x", DType::F32, &[k, rows]).expect("a small input");
                let y = g.mul_mat(w, x).expect("shapes fit");
                g.output("y", y).expect("a free name");
                let graph = engine.add_graph(g);
                let input: Vec<f32> = (0..k * rows).map(|i| (i % 13) as f32 / 6.0 - 1.0).collect();
                engine.write(graph, x, &input).expect("an input");
                if rows == 1 {
                    group.throughput(Throughput::Bytes(weights.desc.size_bytes()));
                } else {
                    group.throughput(Throughput::Elements(2 * k * m * rows));
                }
                group.bench_function(BenchmarkId::new(dtype.name(), rows), |b| {
                    b.iter(|| engine.run(graph).expect("runs"));
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, mul_mat);
criterion_main!(benches);
