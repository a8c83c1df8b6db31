//! The real gemm backend above the real CPU: fixtures that declare such a machine plan there as they declare it.

mod common;

use std::sync::Arc;

use bevy_ecs::prelude::*;
use common::{Planned, fixture};
use entensor_components::{Backend, Cause};
use entensor_cpu::{CpuBackend, CpuConfig};
use entensor_gemm::{GemmBackend, GemmConfig};
use entensor_systems::{GraphPlan, PlanStatus, Planning, Recording, plan_schedule, verify};

fn real() -> Vec<Arc<dyn Backend>> {
    let gemm = GemmBackend::new(GemmConfig { threads: Some(1), ..GemmConfig::default() }).expect("it starts");
    let cpu = CpuBackend::new(CpuConfig { threads: Some(1), ..CpuConfig::default() }).expect("it starts");
    vec![Arc::new(gemm), Arc::new(cpu)]
}

#[test]
fn fixtures_plan_on_the_real_backends_as_they_declare_them() {
    for (name, causes) in
        [("gemm_prompt", [Cause::Weights, Cause::Best]), ("gemm_upgrade", [Cause::Upgrade, Cause::RestDown])]
    {
        let text = fixture(name);
        let declared = Planned::new(&text).expect();
        let mut world = World::new();
        let graph = text.spawn_on(&mut world, real()).expect("it is spawned");
        let mut schedule = plan_schedule(Recording::Off);
        world.insert_resource(Planning(graph));
        world.insert_resource(PlanStatus::Planning);
        schedule.run(&mut world);
        let plan = Arc::clone(&world.get::<GraphPlan>(graph).expect("it is planned").plan);
        verify(&plan).unwrap_or_else(|violations| panic!("{name}: {violations:?}"));
        assert_eq!((&plan.placements, &plan.causes), (&declared.placements, &declared.causes), "{name}");
        assert_eq!((plan.copies_made(), plan.buffers.len()), (0, 1), "{name}: one memory, nothing is copied");
        for cause in causes {
            assert!(plan.causes.contains(&cause), "{name} shows {cause}");
        }
        for (node, of_node) in plan.nodes().enumerate() {
            let is_product = of_node.op.kind().name() == "mul_mat";
            let wide = of_node.desc.shape.0[1] >= 32;
            assert_eq!(is_product && wide, of_node.op.row().computes() && of_node.backend == 0, "{}", of_node.name);
            if is_product && !wide {
                let why = plan.why(node);
                assert!(why.contains("gemm refuses it (") && why.contains("fewer than 32)"), "{why}");
            }
        }
    }
}
