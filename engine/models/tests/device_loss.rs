//! The real model on a device that goes away in the middle of a text.
//!
//! Needs the model file named by `ENTENSOR_MODEL`; says so loudly when it is not there.

mod real_model;

use std::sync::Arc;

use entensor::{BackendIndex, Engine, components::Backend};
use entensor_cpu::{CpuBackend, CpuConfig};
use entensor_models::{LanguageModel, Session, SessionConfig};
use entensor_sim::{Call, Fault, SimConfig, SimWorld};
use real_model::{argmax, path, reference, say};

fn cpu(name: &str) -> Arc<dyn Backend> {
    let config = CpuConfig { name: name.into(), threads: Some(2), ..CpuConfig::default() };
    Arc::new(CpuBackend::new(config).expect("it starts"))
}

/// Weights and cache lie on the device, which is lost at some call while it generates; the texts are those recorded.
#[test]
fn generation_goes_on_after_a_device_is_lost() {
    let Some(path) = path() else { return };
    let mut checked = 0;
    for (round, case) in (0..).zip(reference("f32").into_iter().filter(|case| case.greedy_must_match > 0)) {
        let world = SimWorld::new(round);
        world.set_recording(false);
        let device = world.device(SimConfig::device("device0", cpu("inner")));
        let mut engine = Engine::builder()
            .backend_instance(Arc::clone(&device) as Arc<dyn Backend>)
            .backend_instance(cpu("cpu"))
            .build()
            .expect("they start");
        let model = LanguageModel::load_on(&mut engine, &path, BackendIndex(0), |_| ()).expect("the model loads");
        let config = SessionConfig { cache: Some(BackendIndex(0)), shadow: true, ..SessionConfig::default() };
        let mut session = Session::new(&mut engine, &model, config).expect("a small cache");
        session.feed(&mut engine, &model, &case.prompt_ids).expect("the prompt runs");
        let at = case.greedy_must_match / 2;
        let (mut ids, mut on_device) = (Vec::new(), 0);
        while ids.len() < case.greedy_must_match {
            if ids.len() == at {
                // Somewhere in the work of the next token: while it runs, waits, or its rows are read for the shadow.
                device.fail(None, 10 + 7 * round, Fault::Lose);
            }
            let next = argmax(session.logits());
            ids.push(next);
            session.feed(&mut engine, &model, &[next]).unwrap_or_else(|error| panic!("case {}: {error}", case.name));
            on_device += u32::from(!device.is_lost());
        }
        assert!(
            device.is_lost() && device.calls(Some(Call::Submit)) > 0,
            "case {}: it ran there until then",
            case.name
        );
        assert_eq!(ids, case.generated_ids[..case.greedy_must_match], "case {}", case.name);
        say(&format!(
            "{}: {} tokens as recorded, {on_device} of them on the device",
            case.name, case.greedy_must_match
        ));
        checked += 1;
    }
    assert!(checked >= 2, "the reference has cases that must match");
}
