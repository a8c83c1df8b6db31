//! Planning: cold, for graphs of several sizes, and the look at an unchanged graph. Weights are buffers without memory on null
//! backends, so only the passes are measured.

use std::{io, sync::Arc};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use entensor::{Engine, PlanSalt};
use entensor_benches::{layers, results};
use entensor_null::{NullBackend, NullConfig};

fn engine() -> Engine {
    let backend = Arc::new(NullBackend::new(NullConfig::host("null")));
    Engine::builder().backend_instance(backend).verify_plans(false).build().expect("a null backend starts")
}

fn plan(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    for count in [12_usize, 125, 1250] {
        let mut engine = engine();
        let graph = layers(&mut engine, count, 8).expect("no memory is needed");
        group.throughput(Throughput::Elements(8 * count as u64));
        group.sample_size(10);
        let mut salt = 0;
        group.bench_function(BenchmarkId::new("cold", 8 * count), |b| {
            b.iter(|| {
                salt += 1;
                engine.world_mut().insert_resource(PlanSalt(salt));
                engine.plan(graph).expect("a legal graph")
            });
        });
        group.bench_function(BenchmarkId::new("unchanged", 8 * count), |b| {
            b.iter(|| engine.plan(graph).expect("a legal graph"));
        });
        for (pass, timing) in engine.timings().iter().filter(|(_, t)| t.calls > 0) {
            let per_node = timing.total_ns as f64 / timing.calls as f64 / (8 * count) as f64;
            println!("{:>6} nodes {:<9} {per_node:7.1} ns a node", 8 * count, pass.name());
        }
    }
    group.finish();
}

criterion_group!(benches, plan);

fn main() -> io::Result<()> {
    if results::recorded("plan", "")? {
        return Ok(());
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
    Ok(())
}
