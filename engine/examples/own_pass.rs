//! A pass of one's own: `expand` is taken out, and another rule put in its place.
//!
//! The rule: a run on an accelerator goes on only over nodes that are large enough to be worth a launch there. The host takes
//! the small ones, whatever their neighbours do.
//!
//! ```sh
//! cargo run -p entensor --example own_pass
//! ```

use std::{error::Error, sync::Arc};

use bevy_ecs::{
    prelude::*,
    schedule::{ScheduleCleanupPolicy, ScheduleError},
};
use entensor::{
    Cause, DType, Engine, GraphBuilder, GraphId, Pass, PlanSalt, Usage,
    components::MemoryKind,
    systems::{Backends, Nodes, PassResult, Placements, PlanSchedule, SupportMasks, pass_system},
};
use entensor_null::{NullBackend, NullConfig};

/// Below so many elements a node is not worth a launch.
pub(crate) const SMALL: u64 = 1024;

/// The columns say what is known of each node; `Placements` is where the nodes are so far.
///
/// Nothing in this graph writes into planned memory (`set_rows`, `cpy`). Where something does, the nodes that
/// `WriterFamilies` lists together go together.
pub(crate) fn expand_over_large_nodes(
    backends: Res<'_, Backends>,
    nodes: Res<'_, Nodes>,
    support: Res<'_, SupportMasks>,
    mut placements: Placements<'_, '_>,
) -> PassResult {
    placements.pull();
    let host = backends.0.len() - 1;
    let (mut carried, mut changed) = (host, 0);
    for node in nodes.computing() {
        if let Some(backend) = placements.get(node) {
            carried = backend;
            continue;
        }
        let is_large = nodes.descs[node].shape.elements().is_none_or(|elements| elements >= SMALL);
        let backend = if is_large { carried } else { host };
        // Nobody may place a node where it cannot run. What is left open here, `upgrade` places.
        if support.0.get(node, backend) {
            changed += usize::from(placements.set(node, backend, Cause::User));
        }
    }
    placements.push();
    Ok(changed)
}

/// Puts the rule in the place of `expand`. Plans made by the old rule do not hold, which is what the salt says.
pub(crate) fn replace_expand(world: &mut World) -> Result<(), ScheduleError> {
    world.schedule_scope(PlanSchedule, |world, schedule| {
        schedule.remove_systems_in_set(Pass::Expand, world, ScheduleCleanupPolicy::RemoveSystemsOnly)?;
        schedule.add_systems(pass_system(Pass::Expand, expand_over_large_nodes));
        Ok::<_, ScheduleError>(())
    })?;
    world.resource_mut::<PlanSalt>().0 += 1;
    Ok(())
}

/// A machine that one does not need to have: its accelerator has memory of its own, and neither backend computes anything.
pub(crate) fn engine() -> Result<Engine, Box<dyn Error>> {
    let mut gpu = NullConfig::host("gpu");
    gpu.capabilities.memory = MemoryKind("gpu memory".into());
    gpu.capabilities.reads = vec![gpu.capabilities.memory.clone()];
    gpu.capabilities.buffer_type = "gpu".into();
    let builder = Engine::builder().backend_instance(Arc::new(NullBackend::new(gpu)));
    Ok(builder.backend_instance(Arc::new(NullBackend::new(NullConfig::host("host")))).build()?)
}

/// A large product and a small one, each with some nodes behind it.
pub(crate) fn add_net(engine: &mut Engine, name: &str) -> Result<GraphId, Box<dyn Error>> {
    let gpu = engine.backend_index("gpu")?;
    let mut g = GraphBuilder::new(name);
    let mut x = g.input("x", DType::F32, &[64, 32])?;
    for (layer, rows) in [64, 8].into_iter().enumerate() {
        let name = format!("w.{layer}");
        let buffer = engine.create_buffer(&name, gpu, Usage::Weights, 64 * rows * 4)?;
        let w = engine.tensor_in(&name, DType::F32, &[64, rows], buffer, 0)?;
        let w = g.shared(&w)?;
        let product = g.mul_mat(w, x)?;
        let product = g.name(&format!("product.{layer}"), product)?;
        let active = g.relu(product)?;
        x = g.name(&format!("active.{layer}"), active)?;
    }
    let y = g.tanh(x)?;
    g.output("y", y)?;
    Ok(engine.add_graph(g))
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut engine = engine()?;
    let net = add_net(&mut engine, "net")?;
    let before = engine.explain(net)?;
    replace_expand(engine.world_mut())?;
    for (old, new) in before.iter().zip(&engine.explain(net)?) {
        println!("{:<10} {:<8} {:<12} {} -> {}", new.node, new.op, new.shape.to_string(), old.backend, new.backend);
    }
    println!("time in the pass: {} ns", engine.timings().get(Pass::Expand).last_ns);
    Ok(())
}
