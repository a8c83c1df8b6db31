//! Buffers as an engine's users meet them.

mod configured;
mod mistakes;
mod parts;
mod private;
mod usage;

use std::sync::Arc;

use entensor::{
    Engine,
    components::{Backend, Capabilities},
};
use entensor_oracle::OracleBackend;
use entensor_sim::{SimBackend, SimConfig, SimWorld};

/// An engine on a simulated device above the oracle.
pub(crate) fn with_device(capabilities: impl FnOnce(&mut Capabilities)) -> Engine {
    and_device(capabilities).0
}

/// The same, with the device.
pub(crate) fn and_device(capabilities: impl FnOnce(&mut Capabilities)) -> (Engine, Arc<SimBackend>) {
    let world = SimWorld::new(11);
    let mut config = SimConfig::device("device", Arc::new(OracleBackend::new("inner")));
    capabilities(&mut config.capabilities);
    let host = OracleBackend::new("host");
    let device = world.device(config);
    let backends: [Arc<dyn Backend>; 2] = [Arc::clone(&device) as Arc<dyn Backend>, Arc::new(host)];
    let builder = backends.into_iter().fold(Engine::builder(), entensor::EngineBuilder::backend_instance);
    (builder.verify_plans(true).build().expect("both start"), device)
}
