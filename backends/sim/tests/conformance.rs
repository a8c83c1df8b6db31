//! The conformance suite through queues: a simulated device computes what the backend behind it does, on every layout.

use std::sync::Arc;

use entensor_conformance::run_suite;
use entensor_oracle::OracleBackend;
use entensor_sim::{Pieces, SimConfig, SimWorld};

#[test]
fn sim_conforms_as_device_and_as_host() {
    for is_device in [true, false] {
        let inner = Arc::new(OracleBackend::new("inner"));
        let world = SimWorld::new(11);
        world.set_recording(false);
        let config = if is_device { SimConfig::device("sim", inner) } else { SimConfig::host("sim", inner) };
        let device = world.device(SimConfig { pieces: Pieces::Nodes(1), ..config });
        let report = run_suite(&*device, &[]);
        assert!(report.failures.is_empty(), "{}", report.failures.join("\n"));
        assert!(report.passed > 1000, "{} cases", report.passed);
    }
}
