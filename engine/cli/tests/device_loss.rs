//! A made-up model on simulated devices that go away: the text is the same, or the error says what was lost.

mod common;

use std::sync::Arc;

use common::{Files, Tiny};
use entensor::{BackendIndex, Engine, EngineError, components::Backend};
use entensor_cpu::{CpuBackend, CpuConfig};
use entensor_models::{LanguageModel, ModelError, Session, SessionConfig};
use entensor_sim::{Fault, SimBackend, SimConfig, SimWorld, check};

const TOKENS: usize = 8;
const PROMPT: [u32; 6] = [10, 60, 61, 100, 7, 33];

fn cpu(name: &str) -> Arc<dyn Backend> {
    let config = CpuConfig { name: name.into(), threads: Some(1), ..CpuConfig::default() };
    Arc::new(CpuBackend::new(config).expect("it starts"))
}

/// A machine of a device and a recorded host, both computing as the cpu backend does.
struct Machine {
    world: SimWorld,
    device: Arc<SimBackend>,
    engine: Engine,
}

impl Machine {
    fn new(seed: u64) -> Self {
        let world = SimWorld::new(seed);
        let device = world.device(SimConfig::device("device0", cpu("inner")));
        let host = world.device(SimConfig::host("host", cpu("inner")));
        let engine = Engine::builder()
            .backend_instance(Arc::clone(&device) as Arc<dyn Backend>)
            .backend_instance(host)
            .build()
            .expect("they start");
        Self { world, device, engine }
    }
}

fn largest(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
    u32::try_from(best.expect("a vocabulary")).expect("a small one")
}

/// Feeds the prompt and generates.
fn generate(engine: &mut Engine, model: &LanguageModel, config: SessionConfig) -> Result<Vec<u32>, ModelError> {
    let mut session = Session::new(engine, model, config)?;
    session.feed(engine, model, &PROMPT)?;
    let mut ids = Vec::new();
    while ids.len() < TOKENS {
        let next = largest(session.logits());
        ids.push(next);
        session.feed(engine, model, &[next])?;
    }
    session.remove(engine);
    Ok(ids)
}

fn config(shadow: bool) -> SessionConfig {
    SessionConfig { context: 64, micro_batch: 4, cache: Some(BackendIndex(0)), shadow }
}

/// The device goes at every call of a whole generation, loading left out: with a shadow of the cache the text is always the
/// same.
#[test]
fn a_text_goes_on_wherever_its_device_is_lost() {
    let files = Files::new();
    let file = files.write("tiny.gguf", Tiny::default().build());
    let mut engine = Engine::builder().backend_instance(cpu("cpu")).build().expect("it starts");
    let model = LanguageModel::load(&mut engine, &file, |_| ()).expect("a valid file");
    let expected = generate(&mut engine, &model, SessionConfig { cache: None, ..config(false) }).expect("on the host");
    let mut whole = Machine::new(0);
    let model = LanguageModel::load_on(&mut whole.engine, &file, BackendIndex(0), |_| ()).expect("a valid file");
    let before = whole.device.calls(None);
    assert_eq!(generate(&mut whole.engine, &model, config(true)).expect("nothing is wrong"), expected);
    let calls = whole.device.calls(None) - before;
    check(&whole.world.timeline()).unwrap_or_else(|races| panic!("{races:?}"));
    assert!(calls > 100, "{calls} calls");
    let step = usize::try_from(calls / 150).expect("few").max(1);
    let (mut lost, mut refused) = (0, 0);
    for at in (0..calls).step_by(step) {
        let mut machine = Machine::new(at);
        let model = LanguageModel::load_on(&mut machine.engine, &file, BackendIndex(0), |_| ()).expect("a valid file");
        machine.device.fail(None, at, Fault::Lose);
        match generate(&mut machine.engine, &model, config(true)) {
            Ok(ids) => assert_eq!(ids, expected, "lost at call {at}"),
            // Where the cache was being made there is nothing to go on with yet.
            Err(ModelError::Engine(error)) if error.is_device_lost() => refused += 1,
            Err(error) => panic!("lost at call {at}: {error}"),
        }
        lost += u32::from(machine.device.is_lost());
        while machine.world.step() {}
        check(&machine.world.timeline()).unwrap_or_else(|races| panic!("lost at call {at}: {races:?}"));
    }
    println!("{calls} calls; lost at {lost} of them, refused at {refused}");
    assert!(lost > 100 && refused < 5, "{lost} lost, {refused} refused");
}

/// Without a shadow the cache is gone, and no text is made up from zeros.
#[test]
fn without_a_shadow_the_cache_is_lost() {
    let files = Files::new();
    let file = files.write("tiny.gguf", Tiny::default().build());
    let mut machine = Machine::new(1);
    let model = LanguageModel::load_on(&mut machine.engine, &file, BackendIndex(0), |_| ()).expect("a valid file");
    let mut session = Session::new(&mut machine.engine, &model, config(false)).expect("a small cache");
    session.feed(&mut machine.engine, &model, &PROMPT).expect("on the device");
    machine.device.lose("unplugged");
    let error = session.feed(&mut machine.engine, &model, &[3]).expect_err("the cache is gone");
    let ModelError::Engine(EngineError::StateLost { buffer, backend, .. }) = &error else { panic!("{error}") };
    assert_eq!((&**buffer, &**backend), ("kv_cache", "device0"));
    session.remove(&mut machine.engine);
    // The model is still there: its weights came back from the file.
    let again = SessionConfig { cache: None, ..config(false) };
    generate(&mut machine.engine, &model, again).expect("on the host");
}
