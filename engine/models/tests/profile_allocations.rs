//! A steady run under a profile allocates nothing. One test alone in its process, since it counts allocations.

mod counting;

use std::time::Duration;

use counting::allocations;
use entensor::{DType, Engine, GraphBuilder, ProfileConfig};

#[test]
fn a_steady_run_under_a_profile_allocates_nothing() {
    let mut engine = Engine::builder().backend("cpu:threads=2").build().expect("the backend starts");
    let mut g = GraphBuilder::new("layers");
    let x = g.input("x", DType::F32, &[128, 200]).expect("an input");
    let w = g.input("w", DType::F32, &[128, 128]).expect("an input");
    let mut y = x;
    for _ in 0..8 {
        y = g.mul_mat(w, y).expect("shapes fit");
        y = g.silu(y).expect("shapes fit");
    }
    g.output("y", y).expect("a node");
    let graph = engine.add_graph(g);
    engine.write(graph, x, &vec![0.25_f32; 128 * 200]).expect("it fits");
    engine.write(graph, w, &vec![0.01_f32; 128 * 128]).expect("it fits");
    let mut made_in_100_runs = |config: Option<ProfileConfig>| {
        engine.set_profile(config);
        for _ in 0..3 {
            engine.run(graph).expect("it runs");
        }
        let before = allocations();
        for _ in 0..100 {
            engine.run(graph).expect("it runs");
        }
        let made = allocations() - before;
        if config.is_some() {
            let profile = engine.profile_of(graph).expect("it ran");
            assert!(profile.runs.count == 103 && profile.nodes.iter().any(|node| node.count >= 2), "{profile:?}");
        }
        made
    };
    let plain = made_in_100_runs(None);
    let in_parts = ProfileConfig { short_run: Duration::ZERO, ..ProfileConfig::default() };
    for config in [ProfileConfig::default(), in_parts] {
        assert_eq!(made_in_100_runs(Some(config)), plain);
    }
    assert_eq!(plain, 0);
}
