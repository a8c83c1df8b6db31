//! A system of one's own between two passes: attention stays on the host while the game needs its accelerator for something else.
//!
//! ```sh
//! cargo run -p entensor --example attention_on_host
//! ```

use std::{error::Error, sync::Arc};

use bevy_ecs::{lifecycle::HookContext, prelude::*, world::DeferredWorld};
use entensor::{
    BackendIndex, Cause, DType, Engine, GraphBuilder, GraphId, Op, PlanSalt, PlanSystems, Tensor, Usage,
    components::{BackendId, Capabilities, MemoryKind},
    planning,
    systems::{Backends, NodeOrder, PlanSchedule},
};
use entensor_oracle::OracleBackend;

/// While this is in the world, attention runs on the host.
///
/// A plan that was made without it must not serve now, so it changes the salt by itself: its own bit, since others may have bits.
#[derive(Resource)]
#[component(on_add = set_salt, on_remove = clear_salt)]
pub(crate) struct AttentionOnHost;

const SALT: u64 = 1;

fn set_salt(mut world: DeferredWorld<'_>, _: HookContext) {
    world.resource_mut::<PlanSalt>().0 |= SALT;
}

fn clear_salt(mut world: DeferredWorld<'_>, _: HookContext) {
    world.resource_mut::<PlanSalt>().0 &= !SALT;
}

/// Runs behind `assign`, which has followed pins and weights, and before `expand`, which lets others follow these nodes.
pub(crate) fn keep_attention_on_host(
    order: Res<'_, NodeOrder>,
    backends: Res<'_, Backends>,
    mut tensors: Query<'_, '_, (&Op, &mut BackendId, &mut Cause)>,
) {
    // The lowest backend is always on host memory.
    let host = backends.0.len() - 1;
    // The world may hold other graphs: these are the tensors of the one that is being planned.
    let mut tensors = tensors.iter_many_mut(order.entities.iter());
    while let Some(tensor) = tensors.fetch_next() {
        if let Ok((Op::FlashAttnExt { .. } | Op::SoftMax { .. }, mut backend, mut cause)) = tensor {
            *backend = BackendId(Some(BackendIndex(host as u32)));
            *cause = Cause::User;
        }
    }
}

pub(crate) fn add_to(world: &mut World) {
    let system = keep_attention_on_host
        .after(PlanSystems::Assign)
        .before(PlanSystems::Expand)
        .run_if(planning)
        .run_if(resource_exists::<AttentionOnHost>);
    world.resource_mut::<Schedules>().add_systems(PlanSchedule, system);
}

/// An engine with an accelerator that has memory of its own. It is the oracle under another name, so this runs anywhere.
pub(crate) fn engine() -> Result<Engine, Box<dyn Error>> {
    let memory = MemoryKind("gpu memory".into());
    let reads = vec![memory.clone()];
    let gpu = Capabilities { memory, reads, buffer_type: "gpu".into(), ..Capabilities::host() };
    let gpu = OracleBackend::with_capabilities("gpu", gpu);
    let host = OracleBackend::new("host");
    Ok(Engine::builder().backend_instance(Arc::new(gpu)).backend_instance(Arc::new(host)).build()?)
}

/// Two layers of attention over four tokens, with weights on the accelerator.
pub(crate) fn add_layers(engine: &mut Engine, name: &str) -> Result<(GraphId, Tensor, Tensor), Box<dyn Error>> {
    let gpu = engine.backend_index("gpu")?;
    let mut g = GraphBuilder::new(name);
    let input = g.input("x", DType::F32, &[8, 4])?;
    let mut x = input;
    for layer in 0..2 {
        let mut weights = Vec::new();
        for (seed, part) in ["q", "k", "v", "out"].into_iter().enumerate() {
            let name = format!("w_{part}.{layer}");
            let buffer = engine.create_buffer(&name, gpu, Usage::Weights, 256)?;
            let w = engine.tensor_in(&name, DType::F32, &[8, 8], buffer, 0)?;
            let values: Vec<f32> = (0..64).map(|i| ((i * 7 + seed * 5) % 13) as f32 / 13.0 - 0.5).collect();
            engine.write_tensor(&w, &values)?;
            weights.push(g.shared(&w)?);
        }
        let q = g.mul_mat(weights[0], x)?;
        let k = g.mul_mat(weights[1], x)?;
        let v = g.mul_mat(weights[2], x)?;
        let attended = g.flash_attn_ext(q, k, v, None, None, 0.35, 0.0, 0.0)?;
        let attended = g.name(&format!("attended.{layer}"), attended)?;
        let attended = g.reshape(attended, [8, 4, 1, 1])?;
        let out = g.mul_mat(weights[3], attended)?;
        x = g.add(out, x)?;
        x = g.name(&format!("layer.{layer}"), x)?;
    }
    let y = g.output("y", x)?;
    Ok((engine.add_graph(g), input, y))
}

pub(crate) fn run(engine: &mut Engine, layers: (GraphId, Tensor, Tensor)) -> Result<Vec<f32>, Box<dyn Error>> {
    let (graph, x, y) = layers;
    engine.plan(graph)?;
    engine.write(graph, x, &(0..32).map(|i| i as f32 / 32.0).collect::<Vec<_>>())?;
    engine.run(graph)?;
    let mut result = vec![0.0; 32];
    engine.read(graph, y, &mut result)?;
    Ok(result)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut engine = engine()?;
    add_to(engine.world_mut());
    let layers = add_layers(&mut engine, "policy")?;
    let mut before = engine.explain(layers.0)?;
    let expected = run(&mut engine, layers)?;
    for on in [true, false, true] {
        if on {
            engine.world_mut().insert_resource(AttentionOnHost);
        } else {
            engine.world_mut().remove_resource::<AttentionOnHost>();
        }
        println!("attention on the host: {on}");
        let now = engine.explain(layers.0)?;
        for (old, new) in before.iter().zip(&now).filter(|(old, new)| old.backend != new.backend) {
            println!("  {:<12} {} -> {}  {}", new.node, old.backend, new.backend, new.why);
        }
        before = now;
        assert_eq!(run(&mut engine, layers)?, expected, "where it runs changes no result");
    }
    let counters = engine.counters();
    println!("{} plans made, {} taken from the cache", counters.planned, counters.cached);
    Ok(())
}
